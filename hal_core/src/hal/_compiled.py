"""Say whether a module is compiled, as the engine is where that is asked for (mypyc).

What compiled code asks of its source:

- A compiled function checks its arguments itself, with errors of its own. Where a
  user's may be wrong, they are of types that it does not know: ``SupportsIndex``,
  `object`.
- A call with a star builds a list, a tuple and a dictionary; one without builds nothing.
- The timeline lock has a class of its own, whose ``with`` is a plain call.
"""

from __future__ import annotations

__all__ = ["is_compiled"]


def is_compiled(file: str) -> bool:
    """Return whether the module whose ``__file__`` is given was compiled."""
    return not file.endswith((".py", ".pyc"))
