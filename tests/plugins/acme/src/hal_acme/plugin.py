"""Announce the backend; importing this module loads nothing of the vendor's."""

from __future__ import annotations

from hal.plugin import Backend, hookimpl, on_first_use

__all__ = ["hal_backend"]


@hookimpl
def hal_backend() -> Backend:
    """Return the record of the Acme backend."""
    return Backend(
        name="acme",
        summary="Acme One accelerators",
        probe=on_first_use("hal_acme._driver:probe"),
        open=on_first_use("hal_acme.driver:AcmeDriver"),
    )
