"""Announce the CUDA backend to hal; load nothing of the vendor's until it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal.errors import BackendUnavailableError
from hal.plugin import Backend, hookimpl

if TYPE_CHECKING:
    from hal.native import NativeCompiler, NativeDriver

__all__ = ["hal_backend"]


def _import_bindings() -> None:
    """Import the vendor's bindings; raise how to get them if they are missing."""
    try:
        from hal_cuda import _driver  # noqa: F401, PLC0415 - nothing is loaded before first use
    except ImportError as error:
        if not (error.name or "").startswith("cuda"):
            raise
        message = (
            f"the CUDA bindings for Python are not installed ({error}): pip install cuda-bindings"
        )
        raise BackendUnavailableError(message) from error


def _probe() -> None:
    """Check that the bindings, a driver and a device are here."""
    _import_bindings()
    from hal_cuda import _driver  # noqa: PLC0415 - imports the bindings

    _driver.probe()


def _open() -> NativeDriver:
    """Return the driver."""
    from hal_cuda import driver  # noqa: PLC0415 - nothing is loaded before first use

    return driver.CudaDriver()


def _compiler() -> NativeCompiler:
    """Return the compiler that needs no device."""
    _import_bindings()
    from hal_cuda import compiler  # noqa: PLC0415 - imports the bindings

    return compiler.CudaCompiler()


@hookimpl
def hal_backend() -> Backend:
    """Return the record of this backend."""
    return Backend(
        name="cuda",
        summary="NVIDIA GPUs, through the CUDA driver",
        probe=_probe,
        open=_open,
        compiler=_compiler,
    )
