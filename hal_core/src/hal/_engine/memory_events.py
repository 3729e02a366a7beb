"""Events that are numbers in pinned memory, written and awaited by streams (docs/architecture.md).

With ``semaphores=memory`` they stand in for the native events of a device. An event owns four
words of 64 bits: the number that the device has written, the number of the last record, the native
event that has the last record in their place, and whether it has to be a native one. Its handle is
the address of the first word, where C finds them, too (`hal_core/speedups/calls.c`).

Recording has the stream write the next number, waiting has a stream wait for that number, and
asking reads it. Streams of other libraries get native events only, since a capture of theirs would
take a write or a wait into its graph.
"""

from __future__ import annotations

import ctypes
from typing import Final

from hal._base import sync
from hal._engine import steps
from hal._engine.operation import Operation
from hal.errors import HalError, UnimplementedError
from hal.handlers import dropped, own
from hal.native import MemoryType, NativeDevice

_FEATURE: Final = "stream_values"
_WORDS: Final = 4
_DONE: Final = 0
_LAST: Final = 1
_NATIVE: Final = 2
_IS_NATIVE: Final = 3

_EVENT_BYTES: Final = 8 * _WORDS
_BYTES: Final = 4096 * _EVENT_BYTES
"""Pinned memory of a device: for eight full streams. Further events are native; an allocation in
the middle of a submission might block."""

_LOOK_SECONDS: Final = 1e-3
"""The least time between two questions to the driver whether the device still works."""

_PROBE_SECONDS: Final = 5.0
_ADVICE: Final = "leave the parameter out, or give semaphores=events"

_Words = ctypes.c_uint64 * _WORDS


class _Relay:
    """A stream that waits for numbers of one queue, and a native event behind the last wait."""

    __slots__ = ("event", "queue", "sequence", "stream")

    def __init__(self, native: NativeDevice) -> None:
        self.stream = native.create_stream()
        self.event = native.create_event()
        self.queue = self.sequence = 0  # of the operation that it waits for


class MemoryEvents:
    """The events of one device, by the methods that `NativeDevice` has for its own."""

    __slots__ = (
        "_address",
        "_free",
        "_is_watching",
        "_lock",
        "_look_at",
        "_native",
        "_natives",
        "_relays",
        "_watch",
        "_words",
    )

    def __init__(self, native: NativeDevice, address: int) -> None:
        """Take over `_BYTES` of pinned memory, of the same address for host and device."""
        self._native = native
        self._address = address
        ctypes.memset(address, 0, _BYTES)
        self._free = list(range(address, address + _BYTES, _EVENT_BYTES))
        self._words: dict[int, ctypes.Array[ctypes.c_uint64]] = {}
        self._natives: dict[int, int] = {}  # the native event of each that needed one
        self._lock = sync.OwnedLock()  # held while one of these is used
        self._relays = [_Relay(native)]
        self._watch = _Relay(native)  # for a look
        self._is_watching = False
        self._look_at = 0.0

    def create_event(self) -> int:
        """Create an event; it counts as complete until it is recorded."""
        try:
            handle = self._free.pop()
        except own(IndexError):
            words = _Words(0, 0, 0, 1)
            handle = ctypes.addressof(words)
        else:
            words = _Words.from_address(handle)
        self._words[handle] = words
        return handle

    def destroy_event(self, event: int) -> None:
        """Destroy an event, whose last record is complete."""
        words = self._words.pop(event)
        native = self._natives.pop(event, 0)
        if native:
            self._native.destroy_event(native)
        words[_NATIVE] = 0
        if not words[_IS_NATIVE] and words[_DONE] >= words[_LAST]:
            self._free.append(event)

    def record_event(self, event: int, stream: int) -> None:
        """Let the event stand for all work on one of our streams so far."""
        words = self._words[event]
        # While an earlier write is under way the record is native: that write would undo this one.
        if words[_IS_NATIVE] or words[_DONE] < words[_LAST]:
            self.record_natively(event, stream)
            return
        value = words[_LAST] + 1
        words[_NATIVE] = 0
        try:
            self._native.write_value(stream, event, value)
        finally:
            # Counted even if the write fails: the event is native from then on. Not counted before
            # the write: a thread that still asks for the last record would await the new number.
            words[_LAST] = value

    def wait_event(self, stream: int, event: int) -> None:
        """Make later work of one of our streams wait for the event's last record."""
        words = self._words[event]
        if native := words[_NATIVE]:
            self._native.wait_event(stream, native)
        elif words[_DONE] < words[_LAST]:
            self._native.wait_value(stream, event, words[_LAST])

    def notify_event(self, event: int, function: int, argument: int) -> bool:  # noqa: ARG002
        """Return False: only a stream can wait for the number."""
        return False

    def query_event(self, event: int) -> bool:
        """Return whether the event's last record has completed; errors as a native event's."""
        words = self._words[event]
        if native := words[_NATIVE]:
            return self._native.query_event(native)
        last = words[_LAST]
        if words[_DONE] >= last:
            return True
        if sync.monotonic() >= self._look_at:
            self._look(event, last)
        return False

    def _look(self, event: int, value: int) -> None:
        """Ask a native event that is behind a number to come; raise if the device is lost."""
        # A number that never comes gives no reason; an event that cannot be reached gives an error.
        if self._lock._is_owned():
            return  # a signal handler, in the middle of a look
        native = self._native
        with self._lock:
            self._look_at = sync.monotonic() + _LOOK_SECONDS
            watch = self._watch
            if self._is_watching and not native.query_event(watch.event):
                return
            self._is_watching = False
            native.wait_value(watch.stream, event, value)
            native.record_event(watch.event, watch.stream)
            self._is_watching = True

    def record_natively(self, event: int, stream: int) -> None:
        """Let the event stand for all work on any stream so far."""
        native = self._natives.get(event)
        if native is None:
            native = self._natives[event] = self._native.create_event()
        self._native.record_event(native, stream)
        self._words[event][_NATIVE] = native

    def let_wait(self, waiter: NativeDevice, stream: int, operation: Operation) -> None:
        """Make any stream of a device of the domain wait, for a native event behind the number."""
        # It does not wait for the number itself: if this device frees the memory, or is lost and
        # never writes the number, the other stream would wait for ever.
        event, native = operation._event.handle, self._native
        words = self._words[event]
        if recorded := words[_NATIVE]:
            waiter.wait_event(stream, recorded)
        elif words[_DONE] < words[_LAST]:
            with steps.unheld(self._lock):
                native.bind()
                relay = self._relay_for(operation)
                native.wait_value(relay.stream, event, words[_LAST])
                native.record_event(relay.event, relay.stream)
                waiter.bind()
                waiter.wait_event(stream, relay.event)

    def _relay_for(self, operation: Operation) -> _Relay:
        """Return a relay that waits for nothing that may end after an operation; with the lock."""
        # A relay that waits for another queue, or for a later operation, would hold up its user
        # until that ends, too, which may need what the host does only after this operation.
        queue, sequence = operation._queue._id, operation._sequence
        relays = self._relays
        for relay in relays:
            if relay.queue == queue and relay.sequence <= sequence:
                break
        else:
            for relay in relays:
                if self._native.query_event(relay.event):
                    break
            else:
                relay = _Relay(self._native)
                relays.append(relay)
        relay.queue, relay.sequence = queue, sequence
        return relay

    def works(self) -> bool:
        """Try whether one stream's write ends another one's wait, and whether the host sees one.

        If not, the two may never end, and the device is not used.
        """
        native, first, second = self._native, *self._free[:2]
        writer, waiter = self._relays[0].stream, self._watch.stream
        native.write_value(writer, first, 1)
        native.wait_value(waiter, first, 1)
        native.write_value(waiter, second, 1)
        answers = [ctypes.c_uint64.from_address(each) for each in (first, second)]
        until = sync.monotonic() + _PROBE_SECONDS
        while not all(each.value == 1 for each in answers):
            if sync.monotonic() >= until:
                for each in answers:
                    each.value = 1
                return False
            sync.yield_thread()
        for stream in (writer, waiter):
            native.synchronize_stream(stream)
        for each in answers:
            each.value = 0
        return True

    def close(self) -> None:
        """Give everything native back; the events are destroyed, and nothing waits for one."""
        native = self._native
        for relay in (*self._relays, self._watch):
            native.synchronize_stream(relay.stream)
            native.destroy_stream(relay.stream)
            native.destroy_event(relay.event)
        native.free(self._address, MemoryType.HOST)


def open_memory_events(native: NativeDevice, name: str) -> MemoryEvents:
    """Return the events of a device that is being opened.

    Tries first whether they work: what a driver says of it cannot be trusted. Raises
    `UnimplementedError` if they do not, or if the device has not what they need.
    """
    what = f"semaphores=memory was asked for, and {name}"
    if _FEATURE not in native.features:
        raise UnimplementedError(
            f"{what} has no streams that write and await numbers of 64 bits in memory (the "
            f"feature {_FEATURE!r}); {_ADVICE}"
        )
    native.bind()
    address = native.allocate(_BYTES, MemoryType.HOST)
    if native.host_pointer(address, MemoryType.HOST) != address:
        native.free(address, MemoryType.HOST)
        message = f"{what} has other addresses for pinned memory than the host; {_ADVICE}"
        raise UnimplementedError(message)
    events = MemoryEvents(native, address)
    cause: HalError | None = None
    try:
        if events.works():
            return events
    except own(HalError) as error:
        cause = error
        with dropped(HalError):
            events.close()
    # Without an answer nothing is closed: that would wait for streams that may never end. The
    # native device, which is closed next, ends them.
    problem = f"no answer came within {_PROBE_SECONDS:g} seconds" if cause is None else cause
    raise UnimplementedError(
        f"{what} says that its streams write and await numbers in memory, but a trial failed: "
        f"{problem}; {_ADVICE}"
    ) from cause
