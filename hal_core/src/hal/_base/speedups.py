"""The C extension `hal._speedups`, where it was built; nothing else imports it.

The variable ``HAL_SPEEDUPS`` of the environment, read when hal is imported, decides: ``0`` leaves
the extension out, and ``require`` raises `ImportError` if it cannot be had.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Final

__all__ = ["engine", "module", "why_not"]

_NAME: Final = "hal._speedups"
_NOT_BUILT: Final = (
    "the C extension was not built: install a C compiler and Python's headers (Debian: gcc and "
    "python3-dev), then install hal-core again"
)


def _load() -> tuple[ModuleType | None, str]:
    """Return the extension, or None and the reason why there is none."""
    wanted = os.environ.get("HAL_SPEEDUPS", "")
    if wanted == "0":
        return None, "HAL_SPEEDUPS=0 in the environment leaves the C extension out"
    try:
        return importlib.import_module(_NAME), ""
    except ImportError as error:
        import sysconfig  # noqa: PLC0415 - here alone

        if error.name != _NAME or error.path is not None:
            reason = f"the C extension cannot be loaded: {error}"
        elif sysconfig.get_config_var("Py_GIL_DISABLED"):
            reason = "there is no C extension for a free-threaded Python"
        else:
            reason = _NOT_BUILT
        if wanted == "require":
            message = f"HAL_SPEEDUPS=require: {reason}"
            raise ImportError(message) from error
        return None, reason


module: ModuleType | None
"""The extension, or None: then every call takes the Python engine."""
why_not: str
"""Why there is none, in words for users; empty if there is one."""
module, why_not = _load()


def engine() -> str:
    """Return which engine runs, and why it is not the fast one, in words for users."""
    return f"plain Python; {why_not}" if module is None else "with its C extension"
