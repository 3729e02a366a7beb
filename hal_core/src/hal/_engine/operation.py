"""Operations: the record that a queue keeps of each submission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hal._base.numbers import OperationNumbers
from hal._engine.timelines import WATCH, Timepoint, Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from hal._engine.events import Event
    from hal._engine.stream import StreamQueue


# States, in the order they are passed through: up to STARVED an operation is not issued, and
# from DONE on it has ended.
PENDING: Final = 0
"""Not claimed: it stands in line, or is about to."""
PARTLY: Final = 1
"""Claimed, and put back: the rest of its launches (Q1), or all of them, stand in the backlog."""
STARVED: Final = 2
"""Claimed, and put back because there is no memory for it: earlier work may give some back (M3)."""
ISSUING: Final = 3
"""Claimed by the holder of its queue's baton."""
ISSUED: Final = 4
"""On the native stream, its event recorded."""
SENT: Final = 5
"""A host operation that a thread of the pool is to run."""
RUNNING: Final = 6
"""A host operation whose function runs."""
DEFERRED: Final = 7
"""A host operation that has returned, and ends with the waits that it returned."""
DONE: Final = 8
FAILED: Final = 9
CANCELLED: Final = 10

WORDS: Final = (
    ("pending", "is not issued"),
    ("pending", "is issued in part"),
    ("pending", "waits for memory"),
    ("pending", "is being issued"),
    ("issued", "is running"),
    ("issued", "is running on the host"),
    ("issued", "is running on the host"),
    ("issued", "has returned on the host"),
    ("done", "has ended"),
    ("failed", "has ended"),
    ("cancelled", "has ended"),
)
"""Each state as `Submission.state` has it, and as time-outs tell it."""


class Operation(OperationNumbers):
    """One operation of a queue; `hal.Submission` is its user's view."""

    # One object for the handle and the operation. Every operation has a handle, and a second object
    # would cost a fifth of what a submission may take.
    __slots__ = (
        "_arguments",
        "_dependencies",
        "_error",
        "_event",
        "_function",
        "_is_begun",
        "_is_host",
        "_kind",
        "_launches",
        "_private",
        "_queue",
        "_resources",
        "_retired",
        "_shared",
        "_signals",
        "_state",
        "_stream_waits",
        "_unresolved",
        "_waits",
    )

    def __init__(
        self,
        queue: StreamQueue,
        kind: str,
        payload: tuple[Any, ...],
        signals: tuple[Timepoint, ...],
        is_host: bool,  # noqa: FBT001 - internal, and positional for speed
    ) -> None:
        self._queue = queue
        self._kind = kind
        # The function, its arguments after the stream, and the resources to keep alive. Without a
        # function nothing is enqueued; then the arguments are storages to publish. The collector
        # walks everything that is pending, so no container is kept.
        self._function, self._arguments, self._resources = payload
        # The waits that it stands in line for; mostly empty
        self._waits: tuple[Timepoint, ...] = ()
        self._signals = signals
        self._is_host = is_host
        self._state = PENDING
        self._is_begun = False  # a native call of it was made, or may have been
        self._launches = 1  # native launches of the part that is on the stream (Q1)
        # The waits that are neither recorded nor reached, one bit each, so that releasing one
        # twice, as around a Ctrl-C, does no harm.
        self._unresolved = 0
        # Natively complete, and counted so in its queue. Not a state: an operation that fails has
        # ended for its user, and its work may run on; until that ends it keeps its resources (Q5).
        self._retired = False
        self._private: Timepoint | None = None
        # The event of the operation before it, if nothing is enqueued: both end together
        self._shared: Event | None = None
        # Operations, on any queue, that must retire before this one does
        self._dependencies: list[Operation] | None = None
        # Its place among the operations of its ring, from 1 on, and how many native launches are
        # on the stream up to its end; 0 before that is known
        self._sequence = self._launched = 0
        # The following are set when they first mean something: _stream_waits, _event, _error

    _error: BaseException
    _event: Event
    _stream_waits: list[Operation] | None

    # Of `Submission`: other operations are never waited for
    _make_timepoint: Callable[[], Timepoint]

    def _describe(self) -> str:
        return f"{self._kind} on {self._queue.name}"

    def _want(self, work: Work) -> None:
        """Have the progress thread retire this as soon as it ends; under the lock."""
        if self._retired or self._is_host:
            return
        queue, sequence = self._queue, self._sequence
        if sequence in queue._wanted and queue._watched:
            return
        queue._wanted.add(sequence)
        # Else the thread watches the queue, and wakes for an earlier operation: it arms for this
        # one then.
        if not queue._watched or sequence < queue._notifier.armed:
            work.append((WATCH, queue))
            queue._watched = True

    def _let_go(self) -> None:
        """Drop all that it held; it has ended. Under no lock: that may run the user's code."""
        self._function = self._resources = None
        self._arguments = ()
        self._waits = self._signals = ()
        self._dependencies = None
        if self._private is not None:
            self._private._semaphore._owner = None  # else only the collector would free the two


def is_over(operation: Operation) -> bool:
    """Return whether no part of an operation runs, or ever will."""
    if operation._retired or operation._state < DONE:
        return operation._retired
    if not operation._is_begun:
        return True
    # It may never have entered the ring: its launch count tells when its launches have retired.
    return 0 < operation._launched <= operation._queue._retired


def is_behind(operation: Operation, queue: StreamQueue) -> bool:
    """Return whether the queue's next operations run after an operation has ended.

    Exact for the holder of the queue's baton; a guess for others.
    """
    if is_over(operation):
        return True
    sequence = operation._sequence
    if not sequence:
        return False
    return operation._queue is queue or queue._seen.get(operation._queue._id, 0) >= sequence
