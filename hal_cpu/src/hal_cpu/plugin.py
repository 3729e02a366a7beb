"""Announce the CPU backend to hal; load and build nothing until it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from hal.native import NativeCompiler, NativeDriver

__all__ = ["hal_backend"]


def _probe() -> None:
    """Check that this platform is supported and that a compiler is here."""
    from hal_cpu import _driver  # noqa: PLC0415 - nothing is loaded before first use

    _driver.probe()


def _open() -> NativeDriver:
    """Build or find the runtime, load it and return the driver."""
    from hal_cpu import driver  # noqa: PLC0415 - nothing is loaded before first use

    return driver.CpuDriver()


def _compiler() -> NativeCompiler:
    """Return the compiler that needs no device."""
    from hal_cpu import compiler  # noqa: PLC0415 - nothing is loaded before first use

    return compiler.CpuCompiler()


@hookimpl
def hal_backend() -> Backend:
    """Return the record of this backend."""
    return Backend(
        name="cpu",
        summary="the processor, with kernels compiled by the machine's C++ compiler",
        probe=_probe,
        open=_open,
        compiler=_compiler,
    )
