"""Announce the HIP backend to hal; load nothing of the vendor's until it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from hal.native import NativeCompiler, NativeDriver

__all__ = ["hal_backend"]


def _probe() -> None:
    """Check that the bindings, HIP's runtime and a device are here."""
    from hal_hip import _bindings  # noqa: PLC0415 - nothing is loaded before first use

    _bindings.check()
    from hal_hip import _driver  # noqa: PLC0415 - imports the bindings

    _driver.probe()


def _open() -> NativeDriver:
    """Return the driver."""
    from hal_hip import driver  # noqa: PLC0415 - nothing is loaded before first use

    return driver.HipDriver()


def _compiler() -> NativeCompiler:
    """Return the compiler that needs no device."""
    from hal_hip import _bindings  # noqa: PLC0415 - nothing is loaded before first use

    _bindings.check()
    from hal_hip import compiler  # noqa: PLC0415 - imports the bindings

    return compiler.HipCompiler()


@hookimpl
def hal_backend() -> Backend:
    """Return the record of this backend."""
    return Backend(
        name="hip",
        summary="AMD GPUs, through HIP",
        probe=_probe,
        open=_open,
        compiler=_compiler,
    )
