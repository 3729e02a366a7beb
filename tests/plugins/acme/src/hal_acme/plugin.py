"""Announce the backend; importing this module loads nothing of the vendor's."""

from __future__ import annotations

from hal.native import NativeDriver
from hal.plugin import Backend, hookimpl

__all__ = ["hal_backend"]


@hookimpl
def hal_backend() -> Backend:
    """Return the record of the Acme backend."""
    return Backend(name="acme", summary="Acme One accelerators", probe=_probe, open=_open)


def _probe() -> None:
    """Load the vendor's library and look for a device."""
    from hal_acme import _driver  # noqa: PLC0415 - the library loads on first use

    _driver.probe()


def _open() -> NativeDriver:
    """Return the driver."""
    from hal_acme import driver  # noqa: PLC0415

    return driver.AcmeDriver()
