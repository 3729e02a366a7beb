"""Define submissions: the handle of one operation, and the operation itself."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, cast

from hal import _timeline
from hal._failure import fresh
from hal._semaphore import Semaphore
from hal.errors import HalError

if TYPE_CHECKING:
    from hal._events import Event
    from hal._queue import Queue
    from hal._stream import StreamQueue

__all__ = ["Submission"]

# States, in the order they are passed through; from DONE on an operation has ended.
PENDING: Final = 0
ISSUING: Final = 1
ISSUED: Final = 2
DONE: Final = 3
FAILED: Final = 4
CANCELLED: Final = 5

_STATES: Final = ("pending", "pending", "issued", "done", "failed", "cancelled")


class Submission:
    """Follow one operation of a queue to its end; returned by every queue operation.

    It is no value of a shared semaphore: a failed submission fails its own
    handle and its own signals, nothing else. It can stand in any wait list,
    and is awaitable in asyncio. Any thread may use it. Dropping it changes
    nothing for the operation.
    """

    # One object for the handle and the operation: a submission is made for
    # every operation, and a second object would cost a fifth of the budget.
    __slots__ = (
        "__weakref__",
        "_arguments",
        "_dependencies",
        "_error",
        "_event",
        "_function",
        "_is_host",
        "_kind",
        "_private",
        "_queue",
        "_resources",
        "_retired",
        "_sequence",
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
        waits: tuple[tuple[Semaphore, int], ...],
        signals: tuple[tuple[Semaphore, int], ...],
        is_host: bool,  # noqa: FBT001 - internal, and positional for speed
    ) -> None:
        self._queue = queue
        self._kind = kind
        # What to call, its arguments after the stream, and what to keep alive. The
        # collector walks everything that is pending: no container is kept for them.
        self._function, self._arguments, self._resources = payload
        self._waits = waits
        self._signals = signals
        self._is_host = is_host
        self._state = PENDING
        # The waits that are neither recorded nor reached, a bit each: releasing one
        # twice, as around a Ctrl-C, is the same as once.
        self._unresolved = 0
        self._retired = False  # natively complete, and counted so in its queue
        self._private: Semaphore | None = None
        # Operations, on whatever queue, that must retire before this one does
        self._dependencies: list[Submission] | None = None
        # The following are set when they first mean something:
        # _stream_waits, _sequence, _event, _error

    _error: BaseException
    _event: Event
    _sequence: int
    _stream_waits: list[Submission] | None

    @property
    def state(self) -> str:
        """Return ``"pending"``, ``"issued"``, ``"done"``, ``"failed"`` or ``"cancelled"``."""
        self._look()
        return _STATES[self._state]

    @property
    def done(self) -> bool:
        """Return whether it has ended, well or not; asks the device, never blocks."""
        return self._state >= DONE or self._look()

    @property
    def error(self) -> HalError | None:
        """Return what it failed with or was cancelled by, afresh; None while it did not."""
        self._look()
        return fresh(self._error) if self._state > DONE else None

    @property
    def kind(self) -> str:
        """Return the name of the queue's method that submitted it."""
        return self._kind

    @property
    def queue(self) -> Queue:
        """Return the queue that it was submitted to."""
        return cast("Queue", self._queue)

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is done, for `timeout` seconds at most; None is for ever.

        Raises its error afresh, or `DeadlineExceededError`. Ctrl-C ends the wait.
        """
        if self._state == DONE:
            return
        self._as_semaphore().wait(1, timeout)

    def __await__(self) -> Generator[Any, None, None]:
        return self._as_semaphore().reached(1).__await__()

    def __repr__(self) -> str:
        return f"<Submission {self._describe()} {_STATES[self._state]}>"

    def _describe(self) -> str:
        return f"{self._kind} on {self._queue.name}"

    def _look(self) -> bool:
        """Retire what has finished on the queue; return whether this has ended."""
        if self._state == ISSUED:
            self._queue._harvest()
        return self._state >= DONE

    def _as_semaphore(self) -> Semaphore:
        """Return a semaphore of its own that reaches 1 when this is done.

        Made on first need, so that who never asks never pays.
        """
        semaphore = self._private
        if semaphore is not None:
            return semaphore
        with _timeline.lock:
            semaphore = self._private
            if semaphore is None:
                semaphore = self._private = Semaphore(0, self._describe())
                state = self._state
                if state == DONE:
                    semaphore._value = semaphore._reserved = 1
                elif state > DONE:
                    semaphore._failure = self._error
                else:
                    self._signals = (*self._signals, (semaphore, 1))
                    if state >= ISSUING:
                        semaphore._reserved = 1
                    if state == ISSUED and not self._is_host:
                        semaphore._points.append((1, self))
        return semaphore

    def _run_on_host(self) -> None:
        self._queue._run_host(self)
