"""Announce the CUDA backend to hal; load nothing until it is used."""

from __future__ import annotations

from hal.plugin import Backend, hookimpl, on_first_use

__all__ = ["hal_backend"]


@hookimpl
def hal_backend() -> Backend:
    """Return the record of this backend."""
    return Backend(
        name="cuda",
        summary="NVIDIA GPUs, through the CUDA driver",
        probe=on_first_use("hal_cuda._driver:probe"),
        open=on_first_use("hal_cuda.driver:CudaDriver"),
        compiler=on_first_use("hal_cuda.compiler:CudaCompiler"),
    )
