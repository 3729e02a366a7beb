"""The C extension `hal._speedups`, where it was built; nothing else imports it.

The variable ``HAL_SPEEDUPS`` of the environment, read when hal is imported, decides: ``0`` leaves
the extension out, and ``require`` raises `ImportError` if it cannot be had.

An editable installation has the extension's sources beside the modules, and both may be changed
without a build. An extension that was built from other sources is not used, with a warning.
"""

from __future__ import annotations

import importlib
import os
import warnings
from types import ModuleType
from typing import Any, Final

from hal._base.sources import digest
from hal.handlers import own

_NAME: Final = "hal._speedups"
_NOT_BUILT: Final = (
    "the C extension was not built: install a C compiler and Python's headers (Debian: gcc and "
    "python3-dev), then install hal-core again"
)
_SOURCES: Final = os.path.join(os.path.dirname(__file__), *[os.pardir] * 3, "speedups")
_STALE: Final = (
    "the C extension was built from other sources than those that are beside it now: build it "
    "again, by `make speedups` or `pip install -e ./hal_core` in the clone of hal"
)


def _load() -> tuple[ModuleType | None, str]:
    """Return the extension, or None and the reason why there is none."""
    wanted = os.environ.get("HAL_SPEEDUPS", "")
    if wanted == "0":
        return None, "HAL_SPEEDUPS=0 in the environment leaves the C extension out"
    cause: ImportError | None = None
    try:
        found = importlib.import_module(_NAME)
    except own(ImportError) as error:
        cause, reason = error, _why(error)
    else:
        if digest(_SOURCES) in (None, getattr(found, "sources", None)):
            return found, ""
        reason = _STALE
    if wanted == "require":
        raise ImportError(f"HAL_SPEEDUPS=require: {reason}") from cause
    if cause is None:
        warnings.warn(f"{reason}; until then hal is slower", RuntimeWarning, stacklevel=2)
    return None, reason


def _why(error: ImportError) -> str:
    import sysconfig  # noqa: PLC0415 - here alone

    if error.name != _NAME or error.path is not None:
        return f"the C extension cannot be loaded: {error}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "there is no C extension for a free-threaded Python"
    return _NOT_BUILT


module: Any
"""The extension, or None: then every call takes the Python engine."""
why_not: str
"""Why there is none, in words for users; empty if there is one."""
module, why_not = _load()


def engine() -> str:
    """Return which engine runs, and why it is not the fast one, in words for users."""
    return f"plain Python; {why_not}" if module is None else "with its C extension"
