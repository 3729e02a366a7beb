"""Mark classes for mypyc, which compiles the engine where that is asked for.

The marks mean nothing to Python, so nothing has to be installed for them.

A class whose subclasses need not be compiled finds its own methods by name at
every call, compiled or not. The hottest calls name the class instead, as in
``Ring._ask(queue, operation)``: compiled, those are plain calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

__all__ = ["is_compiled", "mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_: object) -> Callable[[type], type]:
        """Return a decorator that returns the class."""
        return lambda marked: marked


def is_compiled(file: str) -> bool:
    """Return whether the module whose ``__file__`` is given was compiled."""
    return not file.endswith((".py", ".pyc"))
