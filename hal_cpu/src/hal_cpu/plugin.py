"""Announce the CPU backend to hal; load nothing until it is used."""

from __future__ import annotations

from hal.plugin import Backend, hookimpl, on_first_use

__all__ = ["hal_backend"]


@hookimpl
def hal_backend() -> Backend:
    """Return the record of this backend."""
    return Backend(
        name="cpu",
        summary="the processor, with kernels compiled by the machine's C++ compiler",
        probe=on_first_use("hal_cpu._driver:load_runtime"),
        open=on_first_use("hal_cpu.driver:CpuDriver"),
        compiler=on_first_use("hal_cpu.compiler:CpuCompiler"),
    )
