"""Have a driver ring the doorbell of a thread of ours when an operation has completed.

The driver never calls Python: a plain C function rings the doorbell. Where the driver does not
call it for an event by itself, a stream of its own, one per queue, waits for
the operation's event and then runs it (design section 5, "Notification"). On the
queue's own stream that function would hold up the operations behind it.

To sleep in the driver instead, in a call that blocks on the event, was rejected: no failure, signal
or close could end it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hal._base import sync
from hal._base.failures import as_failure
from hal._engine import timelines
from hal._engine.events import EventRecorder
from hal._engine.operation import Operation
from hal._engine.timelines import CHANGE, Work
from hal.native import NativeDevice

if TYPE_CHECKING:
    from hal._engine.steps import CallStep


class Notifier:
    """The notifications of one queue, which any thread arms for itself.

    A notify stream runs its functions in order. So nothing is armed behind a later operation: that
    would come too late.
    """

    IDLE: Final = 0
    """Nothing of the queue is wanted."""
    ARMED: Final = 1
    """The driver will ring."""
    BEHIND: Final = 2
    """The driver will ring too late or not at all: ask again soon."""

    MOST: Final = 16
    """How many doorbells may be armed: a wait that ends early leaves its own, and streams fill."""

    __slots__ = ("_bells", "_events", "_native", "_stream", "armed", "arming")

    def __init__(self, native: NativeDevice, events: EventRecorder) -> None:
        self._native = native
        self._events = events
        self._stream = 0
        # What each doorbell was armed for last, and the last of all, by sequence; under the lock
        self._bells: dict[sync.Doorbell, int] = {}
        self.armed = 0
        # The operation whose event a thread is in a native call with; under the lock
        self.arming: Operation | None = None

    def arm(self, operation: Operation, bell: sync.Doorbell, most: int, step: CallStep) -> bool:
        """Have `bell` rung once an issued operation has ended; return whether it will be.

        Not if `most` are armed, nor `bell` for an earlier one: it rings for that first, and more of
        them would fill the stream. No lock held.
        """
        with timelines.lock:
            queue, sequence = operation._queue, operation._sequence
            # One call at a time: an interrupt leaves the count of one event, for `_disarm`.
            if operation._retired or queue._dead or self.arming is not None:
                return False
            first, bells = queue._ring[0]._sequence, self._bells
            last = bells.get(bell, 0)
            if first <= last <= sequence:
                return last == sequence
            _prune(bells, first)
            if len(bells) >= most or (self._stream and self.armed > sequence):
                return False
            # Noted first: whatever ends the call, the event's count is dropped.
            step.work.append((CHANGE, (Notifier._disarm, self, operation)))
            operation._event.hold()
            self.arming = operation
            self.armed = sequence
        native = self._native
        try:
            native.bind()
            event = operation._event.recorded(native)
            # A driver that can ring for an event itself needs no stream, and no thread for one.
            if not self._events.notify_event(event, bell.function, bell.argument):
                if not self._stream:
                    self._stream = native.create_stream()
                self._events.wait_event(self._stream, event)
                native.notify(self._stream, bell.function, bell.argument)
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises there
            as_failure(error, "a notification was armed")  # raises what is the user's (O3)
            return False  # the thread that asks the event will see what is wrong with the device
        with timelines.lock:
            bells[bell] = sequence
        return True

    def _disarm(self, operation: Operation, _: Work) -> None:
        """Drop the count of the event that a call has used; under the lock."""
        if self.arming is operation:
            self.arming = None
            operation._event.release()

    def close(self) -> None:
        """Destroy the stream, once it has run what it was given."""
        if self._stream:
            self._native.synchronize_stream(self._stream)
            stream, self._stream = self._stream, 0  # cleared first: never destroyed twice
            self._native.destroy_stream(stream)


def _prune(bells: dict[sync.Doorbell, int], first: int) -> None:
    """Forget the doorbells that were armed for operations before `first`."""
    for bell in [bell for bell, last in bells.items() if last < first]:
        del bells[bell]
