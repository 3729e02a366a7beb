"""Locks for the ``with`` of Python 3.14, which loses those of `threading` to a Ctrl-C.

The engine relies on a ``with`` of a lock of C's own: what a signal's handler raises comes before
the lock is taken, or in the block, whose end releases it. Python 3.14 looks for signals in between
as well, after the call of ``__enter__`` (python/cpython#148874, cured in 3.15). So an interrupt
left the lock taken for good, and the next thread that wanted it waited for ever.

No look follows the call of a Python function, so ``__enter__`` is one. Inside it an iterator of C's
takes the lock: a loop looks for signals before it begins another round, not as it begins the first.
A call of ``acquire`` would be followed by a look. ``__exit__`` stays C's: a Python function looks
for signals as it begins, before it could release anything.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import repeat, starmap
from typing import Any


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
