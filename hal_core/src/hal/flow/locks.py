"""Locks of the flow layer, each of which refuses the thread that has it (O3).

A user's signal handler or finaliser may use a flow in the middle of another call of its thread. A
plain lock would have it wait for itself for ever, and a re-entrant one would let it in between two
steps that belong together. So the locks are re-entrant, and a caller asks before it takes one
whether its thread has it. A handler that runs between the question and the lock does no harm:
nothing has begun yet.

Another thread may have a lock as the process forks. The child gets it free, so that its calls reach
the core, which refuses them, instead of waiting for that thread for ever (Q6).
"""

from __future__ import annotations

import os
from typing import Any, Final
from weakref import WeakSet

from hal.errors import ReentrantCallError
from hal.locks import RLock

_made: Final[WeakSet[Any]] = WeakSet()


def make_lock() -> Any:  # noqa: ANN401 - a `hal.locks.RLock`
    """Return another lock."""
    lock = RLock()
    _made.add(lock)
    return lock


def _free_all() -> None:
    for lock in _made:
        if not lock._is_owned():  # noqa: SLF001 - else this thread will release it
            lock._at_fork_reinit()  # noqa: SLF001 - what the threading module does with its own


os.register_at_fork(after_in_child=_free_all)


def refuse_reentrance(lock: Any) -> None:  # noqa: ANN401 - a `hal.locks.RLock`
    """Raise `ReentrantCallError` if the calling thread has a lock."""
    if lock._is_owned():  # noqa: SLF001 - it tells nobody else
        raise ReentrantCallError(
            "a signal handler or a finaliser used a flow in the middle of a call of the flow "
            "layer's on the same thread; do that on another thread, or after it has returned"
        )
