"""Support for modules that may be compiled by mypyc, as the engine is on request.

Compilation puts conditions on the source:

- A compiled function checks its arguments itself, with errors of its own. Arguments
  of users, which may be wrong, therefore have types that it does not check:
  ``SupportsIndex``, `object`.
- A call with a star builds a list, a tuple and a dictionary; one without builds nothing.
- The timeline lock has a class of its own, whose ``with`` is a plain call.
- A local variable is released after the last line that uses it, not when the function ends, and
  ``del`` does nothing: to keep an object alive until some point, use, close or clear it there.
- A compiled class cannot be weakly referenced, and only one marked with `mypyc_attr` can have
  interpreted subclasses, which can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["is_compiled", "mypyc_attr"]

_Class = TypeVar("_Class", bound=type)

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr  # the compiler recognises it by this name
else:

    def mypyc_attr(**_: object) -> Callable[[_Class], _Class]:
        """Return a decorator that informs the compiler, and does nothing at run time."""
        return _same


def is_compiled(file: str) -> bool:
    """Return whether the module whose ``__file__`` is given was compiled."""
    return not file.endswith((".py", ".pyc"))


def _same(subject: _Class) -> _Class:
    return subject
