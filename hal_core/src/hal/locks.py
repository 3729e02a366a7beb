"""Locks for ``with``: those of `threading`, but on Python 3.14, which loses them to a Ctrl-C.

Users' signal handlers may raise anywhere (O3), so hal relies on a ``with`` of a lock of C's own:
what a handler raises comes before the lock is taken, or in the block, whose end releases it. Python
3.14 looks for signals in between as well, after the call of ``__enter__`` (python/cpython#148874,
cured in 3.15). So an interrupt left the lock taken for good, and the next thread that wanted it
waited for ever.

No look follows the call of a Python function, so ``__enter__`` is one. Inside it an iterator of C's
takes the lock: a loop looks for signals before it begins another round, not as it begins the first.
A call of ``acquire`` would be followed by a look. ``__exit__`` stays C's: a Python function looks
for signals as it begins, before it could release anything.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from itertools import repeat, starmap
from typing import Any, Final

__all__ = ["Lock", "RLock"]

_IS_SAFE: Final = sys.version_info[:2] != (3, 14)


def _enter(self: Any) -> bool:  # noqa: ANN401 - a method of both classes
    for _ in self._taking:
        return True
    raise AssertionError


class SafeLock:
    """A `threading.Lock` for such a ``with``."""

    __slots__ = ("__exit__", "_taking", "acquire", "locked", "release")

    def __init__(self) -> None:
        lock = threading.Lock()
        self.acquire, self.release, self.locked = lock.acquire, lock.release, lock.locked
        self.__exit__ = lock.__exit__
        self._taking: Iterator[bool] = starmap(lock.acquire, repeat(()))

    __enter__ = _enter


def safe_owned_lock(kind: Any) -> type[Any]:  # noqa: ANN401 - a class known at run time
    """Return a class of locks of this kind, which know their owner, for such a ``with``."""

    class SafeOwnedLock(kind):  # type: ignore[misc]
        """A lock of this kind whose ``with`` leaves it free after a Ctrl-C."""

        __slots__ = ("_taking",)

        def __init__(self) -> None:
            # The lock refers to itself by it, and is left to the collector.
            self._taking: Iterator[bool] = starmap(super().__enter__, repeat(()))

        __enter__ = _enter

    return SafeOwnedLock


def fit(kind: type[Any]) -> type[Any]:
    """Return a class of locks of this kind whose ``with`` is safe on this Python."""
    return kind if _IS_SAFE else safe_owned_lock(kind)


Lock: Callable[[], Any] = threading.Lock if _IS_SAFE else SafeLock
"""A lock, not re-entrant: ``acquire(blocking=True, timeout=-1)``, ``release()``, ``with``."""

RLock: Callable[[], Any] = fit(type(threading.RLock()))
"""A re-entrant lock for ``with``; ``_is_owned()`` tells whether the calling thread holds it."""
