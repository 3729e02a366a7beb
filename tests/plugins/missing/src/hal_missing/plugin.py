"""Announce a backend whose driver library does not exist."""

from __future__ import annotations

import ctypes

from hal.errors import BackendUnavailableError
from hal.native import NativeDriver
from hal.plugin import Backend, hookimpl

_LIBRARY = "libmissing-driver.so.1"


@hookimpl
def hal_backend() -> Backend:
    """Return the record of the backend."""
    return Backend(name="missing", summary="Missing GPUs", probe=_probe, open=_open)


def _probe() -> None:
    """Load the library, and say what the loader said."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise BackendUnavailableError(
            str(error), native_name="MISSING_NO_DRIVER", native_code=35
        ) from error


def _open() -> NativeDriver:
    """Never be called, because the probe fails."""
    raise AssertionError
