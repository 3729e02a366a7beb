"""Whether a module is compiled, as the engine is where that is asked for (mypyc).

What compiled code asks of its source:

- A compiled function checks its arguments itself, with errors of its own. Where a
  user's may be wrong, they are of types that it does not know: ``SupportsIndex``,
  `object`.
- A call with a star builds a list, a tuple and a dictionary; one without builds nothing.
- The timeline lock has a class of its own, whose ``with`` is a plain call.
- A local variable's object goes after the last line that uses it, not when the function ends, and
  ``del`` is no use: what must live until some point is used, closed or cleared there.
- A compiled class cannot be weakly referenced, and only one that says so with `mypyc_attr` has
  subclasses that are not compiled, which can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["is_compiled", "mypyc_attr"]

_Class = TypeVar("_Class", bound=type)

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr  # the compiler knows it by this name
else:

    def mypyc_attr(**_: object) -> Callable[[_Class], _Class]:
        """Return a decorator that says something to the compiler, and does nothing."""
        return _same


def is_compiled(file: str) -> bool:
    """Return whether the module whose ``__file__`` is given was compiled."""
    return not file.endswith((".py", ".pyc"))


def _same(subject: _Class) -> _Class:
    return subject
