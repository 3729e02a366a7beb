"""The state that the queues of one native context share, and its end (rules S5, Q6).

A close has three parts, each of which may be repeated: it refuses new operations and cancels those
that are not issued; it waits for the others; it destroys the streams. At the deadline it marks the
context lost instead, and frees nothing that native calls may still use.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn

from hal._base import sync
from hal._base.failures import fresh, is_users, keep
from hal._engine import progress, retiring, steps, timelines
from hal._engine.calls import direct_calls, table_of
from hal._engine.ending import call_off_all, lose
from hal._engine.events import Event, EventPool
from hal._engine.memory_events import MemoryEvents
from hal._engine.operation import ISSUED, PARTLY, STARVED, Operation
from hal._engine.steps import CallStep
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission
from hal._engine.timelines import CHANGE, HOST, ISSUE, Work
from hal.errors import ClosedError, DeviceLostError, HalError
from hal.handlers import dropped, own
from hal.native import NativeDevice

_NAP_SECONDS = 0.001
"""Pause between two looks at another thread that is in the middle of a native call."""


class MemoryProvider:
    """A search for memory for a context's starved operations, which also notes uses of such memory.

    A context has one from its first alloca on; `hal._buffers.alloca` has the only one there is.
    """

    def __init__(self) -> None:
        # Operations that have found no memory, and for which it has not searched yet
        self.wanted: deque[Operation] = deque()
        self.is_posted = False  # whether a thread searches, or is about to

    def note(self, operation: Operation, used: object) -> None:
        """Note an operation with the memory of allocas that it uses."""
        raise NotImplementedError


class DeviceContext:
    """One native context: its queues, its event pool, its call table, and whether it is lost."""

    __slots__ = (
        "_rotation",
        "calls",
        "direct",
        "epoch",
        "events",
        "guests",
        "lost",
        "max_in_flight",
        "name",
        "native",
        "provider",
        "queues",
        "refuses_visits",
        "starved",
        "together",
    )

    def __init__(
        self,
        native: NativeDevice,
        name: str,
        max_in_flight: int | None,
        memory: MemoryEvents | None = None,
    ) -> None:
        self.native = native
        self.calls = table_of(native, name)
        self.direct = direct_calls(self.calls, in_memory=memory is not None)
        self.name = name
        # How many launches each stream has in flight at the most (Q1)
        self.max_in_flight: int = max_in_flight or native.max_in_flight
        self.events = EventPool(native, memory)
        self.queues: list[StreamQueue] = []  # replaced, never changed in place
        self.lost: BaseException | None = None
        # The contexts that are lost at once, itself among them; replaced, never changed in place
        self.together: list[DeviceContext] = [self]
        # Devices whose operations have used our memory and that are open, see `hal._engine.visits`
        self.guests: dict[DeviceContext, None] = {}
        self.refuses_visits = False
        # Operations that wait for memory, and its provider from the first alloca on (M3)
        self.starved: dict[StreamQueue, dict[Operation, None]] = {}
        self.provider: MemoryProvider | None = None
        # Another one whenever operations have dropped their resources. No number: of two threads
        # that count at once, one would be missed.
        self.epoch = object()
        self._rotation = 0

    def refuse(self, what: str) -> NoReturn:
        """Raise why a closed queue takes no submission; under the lock."""
        if self.lost is not None:
            raise fresh(self.lost)
        message = f"{what} is closed; create another with hal.create_device or create_queue"
        raise ClosedError(message)

    def harvest(self) -> None:
        """Retire what has completed on every queue."""
        progress.act(_harvest, self.queues, None)

    def starve(self, operation: Operation, work: Work) -> None:
        """Note an operation that found no memory; under the lock."""
        self.search_memory(operation, work)
        self.starved.setdefault(operation._queue, {})[operation] = None

    def search_memory(self, operation: Operation, work: Work) -> None:
        """Have memory searched for an operation; under the lock."""
        provider = self.provider
        assert provider is not None  # noqa: S101 - the first alloca has made it
        provider.wanted.append(operation)
        # One search at a time: it looks at all that wait, and may block in a native allocation.
        if not provider.is_posted:
            work.append((HOST, provider))
            provider.is_posted = True

    def feed(self) -> None:
        """Have starved operations try again: memory may have been given back."""
        if self.starved:
            progress.act(_feed, self, None)

    def feed_some(self, work: Work) -> None:
        """Have the longest waiting operation of each queue try again; under the lock.

        Its outcome decides who is next: if it finds memory its issue feeds
        again, if it fails its end does, and otherwise running work will. Retrying all at once would
        cost an unordered queue the square of their number.
        """
        for queue in list(self.starved):
            for operation in self.starved[queue]:
                self.feed_one(operation, work)
                break

    def feed_one(self, operation: Operation, work: Work) -> None:
        """Have an operation try again; under the lock. This order allows it to be repeated."""
        queue = operation._queue
        if operation._state == STARVED:
            work.append((ISSUE, queue))
            if not queue._ordered:
                queue._backlog.append(operation)
            operation._state = PARTLY  # its signals are reserved already: it is not claimed again
        self.forget(operation)

    def forget(self, operation: Operation) -> None:
        """Remove an operation from the starved ones; under the lock."""
        same = self.starved.get(operation._queue)
        if same is not None:
            same.pop(operation, None)
            if not same:
                self.starved.pop(operation._queue, None)

    def lose(self, error: BaseException) -> None:
        """Mark the context lost and fail everything unretired on it, and only that (S5).

        The contexts that share its loss are lost, too.
        """
        progress.act(progress.change, lose, (self, keep(error)))

    def share_loss(self, other: DeviceContext) -> None:
        """Join two groups of contexts that are lost at once: this one's and the other's."""
        progress.act(_share_loss, self, other)

    def keep_loss(self) -> None:
        """Share no loss any more: the device is being closed; under the lock."""
        rest = [each for each in self.together if each is not self]
        for each in rest:
            each.together = rest
        self.together = [self]

    def close_queues(self, queues: list[StreamQueue], deadline: float) -> tuple[str, ...]:
        """Cancel what is not issued, wait for the rest, destroy the streams (Q6).

        Returns a description of every operation that was still running at
        `deadline`; the context is lost then, and its streams are left behind.
        """
        return progress.act(_close_queues, queues, deadline)

    def close_queue(self, queue: StreamQueue, deadline: float) -> tuple[str, ...]:
        """Close one queue like `close_queues`, or report the other thread that is closing it."""
        abandoned = self.close_queues([queue], deadline)
        if not abandoned and _is_left(queue):
            return (f"{queue.name}, which another thread is still closing",)
        return abandoned

    def cancel(self) -> None:
        """Refuse new operations and cancel those not issued: the first part of a close."""
        progress.act(_cancel, self.queues, None)

    def wait_for_calls(self, deadline: float) -> bool:
        """Wait until no other thread is in a native call; return whether that is so."""
        while steps.users(self) or (self.direct is not None and self.direct.users):
            if sync.monotonic() >= deadline:
                return False
            sync.nap(_NAP_SECONDS)
        return True

    def _close_ours(self, ours: list[StreamQueue], deadline: float) -> tuple[str, ...]:
        """Do the work of `close_queues` for queues that no other thread is closing."""
        progress.act(_cancel, ours, None)
        abandoned: tuple[str, ...] = ()
        while True:
            if self.lost is None:  # a lost one has nothing to retire
                progress.act(_harvest, ours, None)
            with timelines.lock:
                running = [operation for queue in ours for operation in queue._running()]
            if not running:
                break
            remaining = deadline - sync.monotonic()
            if remaining <= 0:
                abandoned = tuple(operation._describe() for operation in running)
                self.give_up(abandoned)
                break
            self._wait_for(running, min(remaining, 0.05))
        if not abandoned:
            self._destroy_streams(ours, deadline)
        with timelines.lock:
            for queue in ours:
                queue._gone = True
            self.queues = list(filter(_is_there, self.queues))
        return abandoned

    def _wait_for(self, running: list[Operation], seconds: float) -> None:
        """Wait for a while until one of `running` may have ended."""
        last = running[-1]
        if not isinstance(last, Submission) or last._state != ISSUED:
            # In another thread's hands, or failed and kept for its resources only.
            sync.nap(min(seconds, _NAP_SECONDS))
            return
        with dropped(HalError):  # the caller looks at it again, whatever its outcome
            last.wait(seconds)

    def give_up(self, abandoned: tuple[str, ...]) -> None:
        """Lose the context: its operations did not end in time."""
        error = DeviceLostError(
            f"{self.name} was closed while {len(abandoned)} operations were still running and "
            f"did not end in time: {', '.join(abandoned[:8])}"
        )
        error.given_up = True
        self.lose(error)

    def _destroy_streams(self, queues: list[StreamQueue], deadline: float) -> None:
        """Destroy idle streams, once no other thread is in a native call on them."""
        with timelines.lock:
            for queue in queues:
                queue._dead = True  # no notification is armed from here on
        while sync.monotonic() < deadline and any(queue._notifier.arming for queue in queues):
            sync.nap(_NAP_SECONDS)
        if self.lost is not None or not queues:
            return
        with self._lost_by_failures():
            self.native.bind()
            for queue in queues:
                queue._notifier.close()
                # Cleared before it is destroyed: a Ctrl-C leaks the stream, and destroys none
                # twice.
                stream, queue._stream = queue._stream, 0
                if stream and queue._borrowed is None:
                    self.native.destroy_stream(stream)
                elif stream:
                    self.native.release_stream(stream)
                queue._borrowed = None

    @contextlib.contextmanager
    def _lost_by_failures(self) -> Iterator[None]:
        """Lose the context if a native call fails: what cannot be freed goes with it.

        Close goes on then, but not after what a user's signal handler raises (O3).
        """
        try:
            yield
        except own(HalError) as error:
            self.lose(error)

    def trim_events(
        self, deadline: float, while_open: Callable[[Callable[[], object]], object]
    ) -> None:
        """Destroy the events that nobody holds, unless other threads ask some until `deadline`.

        `while_open` makes a call unless the device is being closed, which waits for it then.
        """
        idle = self.events.take_idle()  # first: only calls that have begun may still ask one
        if self.lost is None and self.wait_for_calls(deadline):
            while_open(functools.partial(self._destroy_events, idle))
        self.events.put_back(idle)

    def _destroy_events(self, idle: list[Event]) -> None:
        self.native.bind()
        self.events.destroy(idle)

    def close_events(self) -> None:
        """Destroy the events; no thread is in a native call on one."""
        with self._lost_by_failures():
            if not self.events.is_empty:  # else another close has already been here
                self.native.bind()
                self.events.close()

    def synchronize(self, stream: int) -> None:
        """Block until a stream is idle; raises `DeviceLostError`, and the device is lost then."""
        try:
            self.native.bind()
            self.native.synchronize_stream(stream)
        except Exception as error:
            if is_users(error):
                raise
            if isinstance(error, DeviceLostError):
                self.lose(error)
                raise
            message = f"waiting for a copy raised {error!r}: nothing knows when it ends"
            lost = DeviceLostError(message)
            self.lose(lost)
            raise lost from error

    def end_all(self, end: Callable[[int], object], handles: list[int]) -> None:
        """End native handles, while the device is being closed."""
        with self._lost_by_failures():
            if handles:
                self.native.bind()
            for handle in handles:
                end(handle)


def harvest_some(step: CallStep, queue: StreamQueue, _: None = None) -> None:
    """Retire what has completed on a queue and, in rotation, on one other of its device."""
    retiring.harvest(step, queue)
    # A queue that nobody submits to any more would keep what its work used.
    context = queue._context
    context._rotation += 1
    if context.queues:
        other = context.queues[context._rotation % len(context.queues)]
        if other is not queue:
            retiring.harvest(step, other)


def _harvest(step: CallStep, queues: list[StreamQueue], _: None) -> None:
    for queue in queues:
        retiring.harvest(step, queue)


def _feed(step: CallStep, context: DeviceContext, _: None) -> None:
    with timelines.lock:
        context.feed_some(step.work)


def _share_loss(step: CallStep, context: DeviceContext, other: DeviceContext) -> None:
    with timelines.lock:
        together = list(dict.fromkeys((*context.together, *other.together)))
        for each in together:
            each.together = together
        step.work += _losses(together)


def _losses(contexts: list[DeviceContext]) -> Work:
    return [(CHANGE, (lose, each, each.lost)) for each in contexts if each.lost is not None]


def _cancel(step: CallStep, queues: list[StreamQueue], _: None) -> None:
    """Refuse new operations and cancel those not issued."""
    with timelines.lock:
        step.work += [(CHANGE, (call_off_all, queue, None)) for queue in queues]
        for queue in queues:
            queue._closed = True


def _close_queues(step: CallStep, queues: list[StreamQueue], deadline: float) -> tuple[str, ...]:
    """Close the queues that nobody else is closing, and wait for the threads that close the others.

    Each call in here has a step of its own: a signal handler may run between them, and another
    close completes what an interrupt leaves.
    """
    step.calm = True
    abandoned: tuple[str, ...] = ()
    while True:
        with timelines.lock:
            ours = _begin_close(queues, step)
        if ours:
            abandoned += ours[0]._context._close_ours(ours, deadline)
        # Another thread may be closing the others; all of them must be closed.
        if not any(map(_is_left, queues)) or sync.monotonic() >= deadline:
            return abandoned
        sync.nap(_NAP_SECONDS)


def _begin_close(queues: list[StreamQueue], step: CallStep) -> list[StreamQueue]:
    """Have the step close the open queues that nobody else is closing; under the lock."""
    ours = []
    for queue in queues:
        if not queue._gone and not steps.is_another(queue._closer, step):
            queue._closer = step
            ours.append(queue)
    return ours


def _is_left(queue: StreamQueue) -> bool:
    """Return whether a queue still exists and is not being closed further up this stack."""
    return not queue._gone and not steps.is_mine(queue._closer)


def _is_there(queue: StreamQueue) -> bool:
    """Return whether a queue still has its native stream; under the lock."""
    return not queue._gone
