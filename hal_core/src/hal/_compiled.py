"""Mark classes for mypyc, which compiles the engine where that is asked for.

The marks mean nothing to Python, so nothing has to be installed for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: object) -> Callable[[type], type]:
        """Return a decorator that returns the class."""
        return lambda marked: marked
