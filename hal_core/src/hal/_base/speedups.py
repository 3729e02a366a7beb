"""The C extension `hal._speedups`, where it was built; nothing else imports it.

The variable ``HAL_SPEEDUPS`` of the environment, read when hal is imported, decides: ``0`` leaves
the extension out, and ``require`` raises `ImportError` if it cannot be had.
"""

from __future__ import annotations

import importlib
import os
import sysconfig
from types import ModuleType
from typing import Final

__all__ = ["module", "why_not"]

_NAME: Final = "hal._speedups"


def _load() -> tuple[ModuleType | None, str]:
    """Return the extension, or None and the reason why there is none."""
    wanted = os.environ.get("HAL_SPEEDUPS", "")
    if wanted == "0":
        return None, "HAL_SPEEDUPS=0 in the environment switches them off"
    try:
        return importlib.import_module(_NAME), ""
    except ImportError as error:
        if wanted == "require":
            raise
        if error.name != _NAME or error.path is not None:
            return None, f"they cannot be loaded: {error}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None, "there are none for a free-threaded Python"
    return None, (
        "they were not built: install a C compiler and Python's headers (Debian: gcc and "
        "python3-dev), then install hal-core again"
    )


module: ModuleType | None
"""The extension, or None: then every call takes the Python engine."""
why_not: str
"""Why there is none, in words for users; empty if there is one."""
module, why_not = _load()
