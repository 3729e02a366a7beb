"""Order our queues against the streams and events of other libraries (rules I1, Q6).

Foreign streams and events are never destroyed and never owned: each is
adopted for one native call, or for as long as a queue runs on it. An event of
ours is recorded on a foreign stream, or waited for there, only when that means
something: a record is made during the call, and a wait once our work
has been issued. Nothing here is on the path of an ordinary submission.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, SupportsFloat

from hal._base import sync
from hal._base.failures import fresh
from hal._engine import steps, timelines
from hal._engine.closing import end_all
from hal._engine.device_context import DeviceContext
from hal._engine.events import Event, EventRecorder, settle_all
from hal._engine.fence import Waits
from hal._engine.operation import DONE, ISSUED, PENDING, Operation
from hal._engine.payload import NOTHING, Payload
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission
from hal._engine.submitting import submit
from hal.arguments import as_int, as_seconds, ask, shown
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.handlers import own
from hal.native import MemoryType, NativeDevice

_FEATURE: Final = "external_streams"
CUDA: Final = 2
ROCM: Final = 10
"""DLPack's types of devices of CUDA and of ROCm."""

CUDA_KINDS: Final = frozenset({CUDA, 3, 13})
"""Types of DLPack devices that are CUDA's: device, pinned and managed memory."""

_SHORT_SECONDS: Final = 0.0001
_LONG_SECONDS: Final = 0.001
"""Pauses between two looks at whether an operation was issued, at first and later."""


class Captured:
    """An event of ours that was recorded on a foreign stream.

    Only operations that wait for it know the event, so the last
    of them gives it back from a finaliser, which takes no lock (I10).
    """

    __slots__ = ("event", "keeper")

    def __init__(self, event: Event, keeper: object = None) -> None:
        self.event = event
        self.keeper = keeper  # kept alive as long as this

    def __del__(self) -> None:
        self.event.release()

    def payload(self, context: DeviceContext) -> Payload:
        """Return the payload that makes a queue wait for it."""
        return _wait_captured, (context.events.own, self), self


class External:
    """The native streams on which a device meets foreign streams.

    They are not those of queues: such a stream belongs to the holder of its queue's baton, and
    another library enqueues on what it is given whenever it likes.
    """

    __slots__ = ("_all", "_context", "_free", "_lock", "_outgoing")

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._free: list[int] = []
        self._all: list[int] = []
        self._lock = sync.OwnedLock()  # held during the calls on the outgoing stream
        self._outgoing = 0

    def take(self) -> Intake:
        """Return a stream for a producer to enqueue waits on; the device is bound."""
        try:
            stream = self._free.pop()
        except own(IndexError):
            stream = self._context.native.create_stream()
            self._all.append(stream)
        return Intake(self, stream)

    def let_all_wait(self, captured: Captured) -> None:
        """Make every queue of the device wait for a captured event."""
        payload = captured.payload(self._context)
        for queue in self._context.queues:
            try:
                submit(queue, "wait_external", payload, (), ())
            except own(ClosedError):
                continue  # it will run nothing

    def outgoing(self) -> int | None:
        """Return a vendor's stream that is behind everything issued so far, or None if all ended.

        The same one each time; it lives as long as the device.
        """
        points = issued(self._context)
        if not points:
            return None
        native = self._context.native
        try:
            native.bind()
            with steps.unheld(self._lock):
                if not self._outgoing:
                    self._outgoing = native.create_stream()
                    self._all.append(self._outgoing)
                for operation in points:
                    self._context.events.let_wait(native, self._outgoing, operation)
            return native.export_stream(self._outgoing)
        finally:
            give_back(points)

    def close(self) -> None:
        """Destroy the streams, which nobody uses any more; a lost device takes them along."""
        streams, self._all = self._all, []
        self._free.clear()
        if self._context.lost is None:
            end_all(self._context, self._context.native.destroy_stream, streams)


class Intake:
    """The owner of a stream of `External` until what was enqueued on it has ended."""

    __slots__ = ("_external", "stream")

    def __init__(self, external: External, stream: int) -> None:
        self._external = external
        self.stream = stream

    def __del__(self) -> None:
        self._external._free.append(self.stream)

    def capture(self) -> Captured:
        """Return an event behind everything enqueued so far, which keeps the stream."""
        context = self._external._context
        context.native.bind()
        captured = Captured(context.events.take(), self)
        context.events.record_foreign(captured.event.handle, self.stream)
        return captured


# Arguments


_HANDLE_BITS: Final = 64


def is_external(context: DeviceContext) -> bool:
    """Return whether a device can be ordered against foreign streams."""
    return _FEATURE in context.native.features


def check_features(context: DeviceContext, what: str) -> None:
    """Raise unless a device can be ordered against foreign streams."""
    if not is_external(context):
        raise UnimplementedError(
            f"{what}: {context.name} knows no streams of others (the feature {_FEATURE!r}); "
            "wait on the host for the one before using the other"
        )


def check_stream(context: DeviceContext, given: Any, what: str) -> int:  # noqa: ANN401 - another library's
    """Return the vendor's handle of a stream: an int, or an object with ``__cuda_stream__``."""
    if isinstance(given, int) and not isinstance(given, bool):
        return _not_negative(as_int(given, f"{what} takes a handle as an int"), what)
    protocol = getattr(given, "__cuda_stream__", None)
    if protocol is None:
        raise ArgumentTypeError(
            f"{what} takes a stream with __cuda_stream__, or its handle as an int, not "
            f"{type(given).__name__}"
        )
    where = context.native.dlpack_device(MemoryType.DEVICE)
    if where is None or where[0] not in {CUDA, ROCM}:
        message = f"{what}: {type(given).__name__} is a stream of CUDA, and {context.name} is not"
        raise InvalidArgumentError(message)
    version, handle = ask(_called, protocol, f"{what} takes a stream with __cuda_stream__")
    if version != 0:
        raise InvalidArgumentError(
            f"{what}: its __cuda_stream__ has version {shown(version)}, and hal knows version 0"
        )
    return _not_negative(as_int(handle, f"{what}: the handle is an int"), what)


def _check_event(given: Any, what: str) -> int:  # noqa: ANN401 - another library's
    """Return the vendor's handle of an event: an int, or an object's ``handle``."""
    number: Any = given if isinstance(given, int) else getattr(given, "handle", None)
    if isinstance(number, bool) or not hasattr(number, "__int__"):
        raise ArgumentTypeError(
            f"{what} takes an event with .handle, or its handle as an int, not "
            f"{type(given).__name__}"
        )
    handle = _not_negative(ask(int, number, f"{what}: the handle of an event is an int"), what)
    if not handle:
        raise InvalidArgumentError(f"{what}: 0 is no event")
    return handle


def _called(protocol: Any) -> tuple[Any, Any]:  # noqa: ANN401 - another library's
    version, handle = protocol()
    return version, handle


def _not_negative(handle: int, what: str) -> int:
    if not 0 <= handle < 1 << _HANDLE_BITS:
        message = f"{what}: a handle is 0 or more, of {_HANDLE_BITS} bits, not {shown(handle)}"
        raise InvalidArgumentError(message)
    return handle


def _check_one(stream: object, event: object, what: str) -> None:
    if (stream is None) == (event is None):
        raise ArgumentTypeError(f"{what} takes a stream or an event: one of them")


# Our streams for other libraries


def stream_handle(queue: StreamQueue) -> int:
    """Return the vendor's handle of a queue's stream; see `Queue.stream_handle`."""
    context = queue._context
    check_features(context, "stream_handle")
    if queue._closed:
        raise ClosedError(f"{queue.name} is closed, and its stream is gone")
    queue._shown = True
    settle_all([queue])  # events recorded later would wait for the work of others
    context.native.bind()
    return context.native.export_stream(queue._stream)


def cuda_stream(queue: StreamQueue) -> Callable[[], tuple[int, int]]:
    """Return a queue's ``__cuda_stream__``; raise if its stream is not CUDA's."""
    context = queue._context
    where = context.native.dlpack_device(MemoryType.DEVICE)
    if where is None or where[0] not in CUDA_KINDS or not is_external(context):
        raise _NoCudaStreamError(f"{queue.name} has no stream that CUDA's libraries could use")
    return lambda: (0, stream_handle(queue))


class _NoCudaStreamError(UnimplementedError, AttributeError):
    """The error for a queue without such a stream; ``hasattr`` is false then."""


# Our queue waits for foreign work


def wait_payload(context: DeviceContext, stream: object, event: object) -> Payload:
    """Check a wait, and capture what is on a stream now; see `Queue.wait_external`."""
    _check_one(stream, event, "wait_external")
    check_features(context, "wait_external")
    native = context.native
    if event is not None:
        return _wait_adopted, (native, _check_event(event, "wait_external"), event), None
    handle = check_stream(context, stream, "wait_external")
    return capture(context, handle).payload(context)


def capture(context: DeviceContext, handle: int) -> Captured:
    """Return an event of ours behind everything that is on a vendor's stream now."""
    native = context.native
    native.bind()
    adopted = native.adopt_stream(handle)
    try:
        captured = Captured(context.events.take())
        context.events.record_foreign(captured.event.handle, adopted)
    finally:
        native.release_stream(adopted)
    return captured


def _wait_captured(stream: int, events: EventRecorder, captured: Captured) -> None:
    events.wait_event(stream, captured.event.handle)


def _wait_adopted(stream: int, native: NativeDevice, handle: int, _owner: object) -> None:
    event = native.adopt_event(handle)
    try:
        native.wait_event(stream, event)
    finally:
        native.release_event(event)


def _record_adopted(stream: int, native: NativeDevice, handle: int, _owner: object) -> None:
    event = native.adopt_event(handle)
    try:
        native.record_event(event, stream)
    finally:
        native.release_event(event)


# Foreign work waits for our queue


def notify(
    queue: StreamQueue, stream: object, event: object, wait: Waits, timeout: SupportsFloat | None
) -> Submission:
    """Order foreign work behind a queue; see `Queue.notify_external`."""
    _check_one(stream, event, "notify_external")
    context = queue._context
    check_features(context, "notify_external")
    native = context.native
    deadline = None if timeout is None else sync.monotonic() + as_seconds(timeout)
    payload = NOTHING
    handle = 0
    if event is not None:
        payload = _record_adopted, (native, _check_event(event, "notify_external"), event), None
    else:
        handle = check_stream(context, stream, "notify_external")
    # A stream may wait only for an event that has been recorded (I1), so this waits for the issue.
    marker = submit(queue, "notify_external", payload, wait, ())
    if not _await_issue([marker], deadline):
        marker.cancel()  # else the event, which may be destroyed by then, would be recorded later
        raise DeadlineExceededError(
            f"notify_external: what {queue.name} was given so far was not issued in {timeout} "
            "seconds: it waits for something that nobody has promised, or for the host; let that "
            "happen first, or pass a longer timeout"
        )
    points: list[Operation] = []
    with timelines.lock:
        if marker._state > DONE:
            raise fresh(marker._error)
        if stream is not None and not marker._retired:
            marker._event.hold()
            points.append(marker)
    _let_wait(context, handle, points)
    return marker


def let_stream_wait(context: DeviceContext, handle: int) -> None:
    """Make a vendor's stream wait for all work of a device that needs no further action."""
    # A stream waits only for events that have been recorded (I1), so what can be issued is first.
    settle(context)
    _let_wait(context, handle, issued(context))


def _let_wait(context: DeviceContext, handle: int, points: list[Operation]) -> None:
    """Make a vendor's stream wait for issued operations, and drop the counts of their events."""
    if not points:
        return
    native = context.native
    try:
        native.bind()
        adopted = native.adopt_stream(handle)
        try:
            for operation in points:
                context.events.let_wait(native, adopted, operation)
        finally:
            native.release_stream(adopted)
    finally:
        give_back(points)


def issued(context: DeviceContext) -> list[Operation]:
    """Return the newest operation of each queue that has unretired work, its event counted."""
    with timelines.lock:
        points = _newest(context)
        for operation in points:
            operation._event.hold()
    return points


def _newest(context: DeviceContext) -> list[Operation]:
    """Return the newest operation of each queue that has unretired work; under the lock."""
    # Its own function: a condition is not looked at inside of the ``with`` (`timelines.lock`).
    return [queue._ring[-1] for queue in context.queues if queue._ring]


def give_back(points: list[Operation]) -> None:
    """Drop the counts of operations' events."""
    with timelines.lock:
        for operation in points:
            operation._event.release()


def _await_issue(operations: Sequence[Operation], deadline: float | None) -> bool:
    """Wait until operations are issued, or until host operations have ended."""
    # It looks again and again: an issue as such wakes nobody, and mostly it has happened by now.
    pause = _SHORT_SECONDS
    while any(each._state < (DONE if each._is_host else ISSUED) for each in operations):
        if deadline is not None and sync.monotonic() >= deadline:
            return False
        sync.nap(pause)
        pause = _LONG_SECONDS
    return True


def settle(context: DeviceContext) -> None:
    """Block until work that needs no further action is on its stream, or done by the host."""
    with timelines.lock:
        ready = [operation for queue in context.queues for operation in _ready(queue)]
    _await_issue(ready, None)


def _ready(queue: StreamQueue) -> list[Operation]:
    """Return the operations of a queue that are about to be issued; under the lock."""
    # Without host functions and what stands behind them: these may take forever.
    found = [] if queue._issuing is None else [queue._issuing]
    found += [each for each in queue._hosts if each._kind != "call"]
    if queue._ordered and any(each._kind == "call" for each in queue._hosts):
        return found
    for operation in queue._backlog:
        if operation._state != PENDING:
            continue
        if operation._unresolved or operation._kind == "call":
            if queue._ordered:
                break
            continue
        found.append(operation)
    return found
