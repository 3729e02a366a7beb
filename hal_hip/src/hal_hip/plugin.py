"""Announce the HIP backend to hal; load nothing until it is used."""

from __future__ import annotations

from hal.plugin import Backend, hookimpl, on_first_use

__all__ = ["hal_backend"]


@hookimpl
def hal_backend() -> Backend:
    """Return the record of this backend."""
    return Backend(
        name="hip",
        summary="AMD GPUs, through HIP",
        probe=on_first_use("hal_hip._driver:probe"),
        open=on_first_use("hal_hip.driver:HipDriver"),
        compiler=on_first_use("hal_hip.compiler:HipCompiler"),
    )
