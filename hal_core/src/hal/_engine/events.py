"""Native events, pooled and counted (design section 5, "Events").

An event has one native handle. The ring, the lists of stream waits, and the notifier
each hold a count of it; at zero it returns to the pool. If it returned as soon as its operation
retires, another operation would record it again, and a stream whose wait is not enqueued by then
would wait for that other work.

A thread that only asks an event holds no count. Its step names the context, which destroys no event
until the step is done with it; and since an event that was recorded again answers for other work,
an answer is trusted only if its operation has not retired meanwhile. A never-recorded event counts
as complete, so an event is handed to others only once it was recorded (I1).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, TypeAlias

from hal._base import speedups
from hal._engine import timelines
from hal._engine.memory_events import MemoryEvents
from hal._engine.operation import Operation
from hal.handlers import dropped, own
from hal.native import NativeDevice

if TYPE_CHECKING:
    from collections.abc import Callable

    from hal._engine.stream import StreamQueue

settle_all: Callable[[list[StreamQueue]], object] = (
    len if speedups.module is None else speedups.module.settle_all
)
"""Records the events that the C extension has put off on queues.

Without the extension there are none, and `len` has nothing to do. A function of Python's would
begin a frame, in which a Ctrl-C could be raised.
"""


EventRecorder: TypeAlias = NativeDevice | MemoryEvents
"""An object that records and awaits events."""


class Event:
    """A native event and the count of its holders.

    The C extension puts off recording one (`speedups.h`). Until it is recorded, `due` is the queue
    on whose stream that is to be done, and only operations in that queue's ring hold it. Any other
    holder comes by `hold`, the driver gets the handle from `recorded`, and `is_over` is asked
    before the event is.
    """

    __slots__ = ("_pool", "count", "due", "handle")

    def __init__(self, pool: EventPool, handle: int) -> None:
        self._pool = pool
        self.handle: Final = handle
        self.count = 0
        self.due: StreamQueue | None = None

    def recorded(self, native: NativeDevice) -> int:
        """Return the handle; the event is recorded first, if that was put off.

        `native` is the device that is bound, and is bound afterwards. Raises what recording raises.
        """
        queue = self.due
        if queue is not None:
            if not (speedups.module and speedups.module.settle(self)):
                queue._native.bind()
                queue._record(self.handle, queue._stream)
                self.due = None
            native.bind()
        return self.handle

    def is_over(self) -> bool | None:
        """Return whether all that the event was put off for has ended; None: ask the event."""
        # The stream is asked. To record the event and ask that was rejected: it is not complete at
        # once, so the first `done` of an operation that ended long ago would be False.
        if self.due is None or speedups.module is None:
            return None
        answer: bool | None = speedups.module.ask(self)
        return answer

    def hold(self) -> None:
        """Add a count; under the timeline lock."""
        # Recorded now, if that was put off: once its operations have retired, their stream may be
        # gone. If it fails, `recorded` tries again.
        if self.due is not None and speedups.module is not None:
            speedups.module.settle(self)
        self.count += 1

    def release(self) -> None:
        """Drop one count; the last one returns the event to the pool. Under the timeline lock."""
        self.count -= 1
        if not self.count:
            self.due = None  # the stream has told, and the event need not be recorded any more
            self._pool._free.append(self)


class EventPool:
    """The events of one device, kept for reuse."""

    __slots__ = (
        "_all",
        "_free",
        "_memory",
        "_native",
        "let_wait",
        "own",
        "query_event",
        "record_foreign",
    )

    def __init__(self, native: NativeDevice, memory: MemoryEvents | None = None) -> None:
        self._memory = memory
        self._native = source = native if memory is None else memory
        # Asks an event's handle, as `NativeDevice.query_event`
        self.query_event = source.query_event
        self.own: EventRecorder = source  # records and awaits events on the device's own streams
        # Records an event on another library's stream, as `NativeDevice.record_event`
        self.record_foreign = native.record_event if memory is None else memory.record_natively
        # Makes any stream wait for an operation, one of another library or device of the domain
        # too. Takes the native device of the stream, the stream, and the operation.
        self.let_wait = _let_wait if memory is None else memory.let_wait
        self._free: list[Event] = []
        self._all: dict[Event, None] = {}

    def take(self) -> Event:
        """Return an event with one count; the device is bound. Outside the timeline lock."""
        try:
            # One bytecode takes it, so that two threads never get the same.
            event = self._free.pop()
        except own(IndexError):
            event = Event(self, self._native.create_event())
            self._all[event] = None
        event.count = 1
        event.due = None
        return event

    def is_idle(self) -> bool:
        """Return whether nobody holds an event."""
        with timelines.lock:
            return len(self._free) == len(self._all)

    def close(self) -> None:
        """Destroy every event; nobody holds one any more."""
        while self._all:
            # Removed first: an interrupt leaks one event, and destroys none twice.
            self._native.destroy_event(self._all.popitem()[0].handle)
        self._free.clear()
        memory, self._memory = self._memory, None  # closed once
        if memory is not None:
            memory.close()

    def take_idle(self) -> list[Event]:
        """Remove and return all events that nobody holds; a thread may still be asking one."""
        idle: list[Event] = []
        # One by one, out of the same list: a finaliser may append to it in between, without a lock.
        with dropped(IndexError):
            idle.extend(itertools.islice(iter(self._free.pop, None), len(self._free)))
        return idle

    def put_back(self, events: list[Event]) -> None:
        """Undo `take_idle`."""
        self._free.extend(events)

    def destroy(self, events: list[Event]) -> None:
        """Destroy those of removed events that a close has left; nobody asks one any more.

        The device is bound.
        """
        while events:
            event = events.pop()
            if self._all.pop(event, event) is None:  # it was there: a close takes out what it ends
                self._native.destroy_event(event.handle)

    @property
    def is_empty(self) -> bool:
        """Whether nothing native is left to destroy."""
        return not self._all and self._memory is None

    @property
    def size(self) -> int:
        """The number of existing events."""
        return len(self._all)


def _let_wait(native: NativeDevice, stream: int, operation: Operation) -> None:
    native.wait_event(stream, operation._event.recorded(native))
