"""Check which hip-python is installed, before it is imported."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import Final

from hal.errors import BackendUnavailableError
from hal.handlers import own

_OLDEST: Final = 10
_PACKAGES: Final = ("rocm-bindings-hip", "hip-python")
_COMMAND: Final = f"pip install 'hip-python>={_OLDEST}'"


def version() -> str:
    """Return the version of hip-python, empty if it is not installed as a package."""
    for name in _PACKAGES:
        try:
            return metadata.version(name)
        except own(metadata.PackageNotFoundError):
            continue
    return ""


def check() -> None:
    """Raise `BackendUnavailableError` unless hip-python 10 or later is installed."""
    found = version()
    major = found.partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST:
        message = (
            f"hip-python {found} is installed, and hal needs {_OLDEST} or later: older ones hold "
            f"the interpreter lock in every call, and dead-lock with a second thread; {_COMMAND}"
        )
        raise BackendUnavailableError(message)
    try:
        spec = importlib.util.find_spec("rocm.bindings.hip")
    except own(ImportError):
        spec = None
    if spec is None:
        message = f"the HIP bindings for Python are not installed: {_COMMAND}"
        raise BackendUnavailableError(message)
