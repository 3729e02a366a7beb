"""Native events, pooled and counted (design section 5, "Events").

An event has one native handle. Each user of it (the ring, a list of stream
waits, a thread that asks it, a notifier) holds a count; at zero it returns to
the pool. A never-recorded or recycled event counts as complete, so an event is
handed to others only once it was recorded (I1), and an answer is trusted only
if its operation has not retired meanwhile.
"""

from __future__ import annotations

from typing import Final

from hal._engine import timelines
from hal.native import NativeDevice

__all__ = ["Event", "EventPool"]


class Event:
    """A native event and the count of its holders."""

    __slots__ = ("_pool", "count", "handle")

    def __init__(self, pool: EventPool, handle: int) -> None:
        self._pool = pool
        self.handle: Final = handle
        self.count = 0

    def release(self) -> None:
        """Drop one count; the last one returns the event to the pool. Under the timeline lock."""
        self.count -= 1
        if not self.count:
            self._pool._free.append(self)


class EventPool:
    """The events of one device, kept for reuse."""

    __slots__ = ("_all", "_free", "_native")

    def __init__(self, native: NativeDevice) -> None:
        self._native = native
        self._free: list[Event] = []
        self._all: dict[Event, None] = {}

    def take(self) -> Event:
        """Return an event with one count; the device is bound. Outside the timeline lock."""
        try:
            # One bytecode takes it, so that two threads never get the same.
            event = self._free.pop()
        except IndexError:
            event = Event(self, self._native.create_event())
            self._all[event] = None
        event.count = 1
        return event

    def is_idle(self) -> bool:
        """Return whether nobody holds an event."""
        with timelines.lock:
            return len(self._free) == len(self._all)

    def close(self) -> None:
        """Destroy every event; nobody holds one any more."""
        while self._all:
            self._native.destroy_event(self._all.popitem()[0].handle)
        self._free.clear()

    def take_idle(self) -> list[Event]:
        """Remove and return all events that nobody holds; a thread may be asking one still."""
        with timelines.lock:
            idle, self._free = self._free, []
        return idle

    def put_back(self, events: list[Event]) -> None:
        """Undo `take_idle`."""
        with timelines.lock:
            while events:  # one by one: a `take` that has begun may take of this list still
                self._free.append(events.pop())

    def destroy(self, events: list[Event]) -> None:
        """Destroy removed events; nobody asks one any more, and the device is bound."""
        while events:
            event = events.pop()
            del self._all[event]
            self._native.destroy_event(event.handle)

    @property
    def size(self) -> int:
        """The number of existing native events."""
        return len(self._all)
