"""Hold what the queues of one native context share, and end it (rules S5, Q6)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, cast

from hal import _progress, _sync, _timeline, _wait
from hal._events import EventPool
from hal._failure import fresh, keep
from hal._operation import CANCELLED, ISSUED
from hal._stream import StreamQueue
from hal._submission import Submission
from hal._timeline import Work
from hal.errors import ClosedError, DeadlineExceededError, DeviceLostError, HalError
from hal.native import NativeDevice

if TYPE_CHECKING:
    from hal._peers import Visit

__all__ = ["Context", "wait_idle"]

_NAP_SECONDS = 0.001
"""Pause between two looks at another thread that is in the middle of a native call."""

_NATIVE_CALL_SECONDS = 0.25
"""Longest time that another thread may need to ask an event, which it holds meanwhile."""

_left_behind: list[object] = []
"""What operations use that were abandoned while they ran: it can never be given back."""


class Context:
    """Be one native context: its queues, its event pool, and whether it is lost."""

    __slots__ = (
        "_rotation",
        "events",
        "lost",
        "max_in_flight",
        "name",
        "native",
        "queues",
        "refuses_visits",
        "visits",
    )

    def __init__(self, native: NativeDevice, name: str, max_in_flight: int) -> None:
        self.native = native
        self.name = name
        self.max_in_flight = max_in_flight
        self.events = EventPool(native)
        self.queues: list[StreamQueue] = []  # replaced, never changed in place
        self.lost: BaseException | None = None
        # What operations of other devices have to do with our memory, see `hal._peers`
        self.visits: dict[int, weakref.ref[Visit]] = {}
        self.refuses_visits = False
        self._rotation = 0

    def refuse(self, what: str) -> NoReturn:
        """Raise why nothing can be submitted to a closed queue; under the lock."""
        if self.lost is not None:
            raise fresh(self.lost)
        message = f"{what} is closed; create another with hal.create_device or create_queue"
        raise ClosedError(message)

    def harvest_some(self, queue: StreamQueue) -> None:
        """Retire what has completed on a queue and, in rotation, on one other."""
        queue._harvest()
        queues = self.queues
        self._rotation += 1
        if queues:
            other = queues[self._rotation % len(queues)]
            if other is not queue:
                other._harvest()

    def harvest(self) -> None:
        """Retire what has completed on every queue."""
        for queue in self.queues:
            queue._harvest()

    def lose(self, error: BaseException, work: Work) -> None:
        """Mark the context lost and fail everything unretired on it, and only that (S5)."""
        with _timeline.lock:
            if self.lost is not None:
                return
            self.lost = keep(error)
            for queue in self.queues:
                queue._abandon(error, work)

    def close_queues(self, queues: list[StreamQueue], deadline: float) -> tuple[str, ...]:
        """Cancel what is not issued, wait for the rest, destroy the streams (Q6).

        Returns a description of every operation that was still running at
        `deadline`; the context is lost then, and its streams are left behind.
        """
        with _timeline.lock:
            ours = list(filter(_is_open, queues))
            for queue in ours:
                queue._closed = queue._closing = True
        try:
            abandoned = self._close_ours(ours, deadline)
        finally:
            # After Ctrl-C another call does what is left.
            with _timeline.lock:
                for queue in ours:
                    queue._closing = False
        # Another thread may be closing the others: none is closed before all are.
        while any(queue._closing for queue in queues) and _sync.monotonic() < deadline:
            _sync.nap(_NAP_SECONDS)
        return abandoned

    def cancel(self) -> None:
        """Refuse new operations and cancel what is not issued: the first part of a close."""
        with _timeline.lock:
            queues = self.queues
            for queue in queues:
                queue._closed = True
        _cancel(queues)

    def _close_ours(self, ours: list[StreamQueue], deadline: float) -> tuple[str, ...]:
        """Do what `close_queues` does for queues that no other thread is closing."""
        work: Work = []
        _cancel(ours)
        abandoned: tuple[str, ...] = ()
        while True:
            if self.lost is None:
                for queue in ours:
                    queue._harvest()
            with _timeline.lock:
                issuing = any(queue._issuing is not None for queue in ours)
                running = [op for queue in ours for op in (*queue._ring, *queue._hosts)]
            if not issuing and not running:
                break
            remaining = deadline - _sync.monotonic()
            if remaining <= 0:
                abandoned = tuple(operation._describe() for operation in running)
                self._give_up(abandoned, work)
                break
            self._wait_for(cast("list[Submission]", running), min(remaining, 0.05))
        if not abandoned:
            self._destroy_streams(ours, deadline)
        with _timeline.lock:
            for queue in ours:
                queue._gone = True
            self.queues = list(filter(_is_there, self.queues))
        return abandoned

    def _wait_for(self, running: list[Submission], seconds: float) -> None:
        """Wait a while for something of `running` to end."""
        last = running[-1] if running else None
        if last is None or last._state != ISSUED:
            # In another thread's hands, or failed and kept for its resources only.
            _sync.nap(min(seconds, _NAP_SECONDS))
            return
        try:
            # It was asked just now.
            _wait.wait_all((last._as_timepoint(),), seconds)
        except HalError:
            return  # it is looked at again, whatever became of it

    def give_up(self, abandoned: tuple[str, ...]) -> None:
        """Lose the context: what uses it did not end in time."""
        self._give_up(abandoned, [])

    def _give_up(self, abandoned: tuple[str, ...], work: Work) -> None:
        """Lose the context: its work did not end in time."""
        error = DeviceLostError(
            f"{self.name} was closed while {len(abandoned)} operations were still running and "
            f"did not end in time: {', '.join(abandoned[:8])}"
        )
        error.given_up = True
        with _timeline.lock:
            for queue in self.queues:
                _left_behind.extend(queue._in_use())
        self.lose(error, work)
        _progress.drain(work)

    def _destroy_streams(self, queues: list[StreamQueue], deadline: float) -> None:
        """Destroy idle streams, once no other thread is in a native call on them."""
        with _timeline.lock:
            for queue in queues:
                queue._dead = True
        while any(queue._notifier.arming for queue in queues) and _sync.monotonic() < deadline:
            _sync.nap(_NAP_SECONDS)
        if self.lost is not None or not queues:
            return
        try:
            self.native.bind()
            for queue in queues:
                queue._notifier.close()
                if queue._stream:
                    if queue._borrowed is None:
                        self.native.destroy_stream(queue._stream)
                    else:
                        self.native.release_stream(queue._stream)
                    queue._stream = 0
                    queue._borrowed = None
        except HalError as error:
            self._lose_closing(error)

    def close_events(self, deadline: float) -> None:
        """Destroy the events, once no thread is in a native call on one."""
        deadline = min(deadline, _sync.monotonic() + _NATIVE_CALL_SECONDS)
        while not self.events.is_idle() and _sync.monotonic() < deadline:
            _sync.nap(_NAP_SECONDS)
        try:
            self.native.bind()
            self.events.close()
        except HalError as error:
            self._lose_closing(error)

    def end_all(self, end: Callable[[int], object], handles: list[int]) -> None:
        """End native handles, while the device is being closed."""
        try:
            if handles:
                self.native.bind()
            for handle in handles:
                end(handle)
        except HalError as error:
            self._lose_closing(error)

    def _lose_closing(self, error: HalError) -> None:
        """Lose the context: what cannot be given back goes with it, and close goes on."""
        work: Work = []
        self.lose(error, work)
        _progress.drain(work)


def _cancel(queues: list[StreamQueue]) -> None:
    """Cancel what is not issued."""
    work: Work = []
    with _timeline.lock:
        for queue in queues:
            queue._cancel(CANCELLED, work)
    _progress.drain(work)


def _is_open(queue: StreamQueue) -> bool:
    """Return whether nobody has closed a queue or is closing it; under the lock."""
    return not (queue._gone or queue._closing)


def _is_there(queue: StreamQueue) -> bool:
    """Return whether a queue's native stream was not destroyed or left behind; under the lock."""
    return not queue._gone


def wait_idle(queues: list[StreamQueue], timeout: float | None) -> None:
    """Block until everything submitted so far to `queues` has ended, well or not.

    Raises `DeadlineExceededError` after `timeout` seconds; None is for ever.
    """
    deadline = None if timeout is None else _sync.monotonic() + timeout
    with _timeline.lock:
        operations = [operation for queue in queues for operation in queue._unended()]
    for operation in operations:
        remaining = None if deadline is None else max(deadline - _sync.monotonic(), 0.0)
        try:
            operation.wait(remaining)
        except DeadlineExceededError:
            raise
        except HalError:
            continue  # its error is its own
