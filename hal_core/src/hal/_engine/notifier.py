"""Have a driver wake the progress thread when an operation has completed.

The driver never calls Python: a stream of its own, one per queue, waits for
the operation's event and then runs a plain C function that posts a doorbell
(design section 5, "Notification"). On the queue's own stream that function would hold up
the operations behind it.
"""

from __future__ import annotations

from typing import Final

from hal._engine import timelines
from hal._engine.events import Event, EventRecorder
from hal.native import NativeDevice


class Notifier:
    """The notify stream of one queue; only the progress thread arms it."""

    IDLE: Final = 0
    """Nothing of the queue is wanted."""
    ARMED: Final = 1
    """The driver will post."""
    BEHIND: Final = 2
    """The driver will post too late or not at all: ask again soon."""

    __slots__ = ("_events", "_native", "_stream", "armed", "arming")

    def __init__(self, native: NativeDevice, events: EventRecorder) -> None:
        self._native = native
        self._events = events
        self._stream = 0
        # The sequence that the driver was last asked to post for; under the lock.
        self.armed = 0
        # Whether the progress thread is in a native call on the stream; under the lock.
        self.arming = False

    def arm(self, event: Event, function: int, argument: int) -> int:
        """Have ``function(argument)`` called after `event`, and drop its count."""
        native = self._native
        state = self.BEHIND
        try:
            native.bind()
            if not self._stream:
                self._stream = native.create_stream()
            self._events.wait_event(self._stream, event.recorded(native))
            native.notify(self._stream, function, argument)
            state = self.ARMED
        except Exception:  # noqa: BLE001, S110 - whatever a plugin raises there
            pass  # the thread that asks the event will see what is wrong with the device
        finally:
            with timelines.lock:
                self.arming = False
                if state != self.ARMED:
                    self.armed = 0  # the next turn tries again
                event.release()
        return state

    def close(self) -> None:
        """Destroy the stream, once it has posted for all that it was armed for."""
        if self._stream:
            self._native.synchronize_stream(self._stream)
            stream, self._stream = self._stream, 0  # cleared first: never destroyed twice
            self._native.destroy_stream(stream)
