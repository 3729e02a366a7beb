"""Find what work comes after, submit it with these waits, and remember it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import hal
from hal.arguments import as_choice, as_flag, as_function, as_instance, as_int, shown
from hal.errors import ArgumentTypeError, ClosedError, HalError, InvalidArgumentError
from hal.flow.buffers import TrackedBuffer, Tracker, not_tracked
from hal.flow.locks import make_lock, refuse_reentrance
from hal.flow.tracking import History, Lanes, TrackedAccess, collect, note
from hal.flow.virtual import VirtualDevice
from hal.handlers import own
from hal.protocols import Waits

QueueName: TypeAlias = str | hal.Queue | None
"""``"upload"``, ``"compute"``, ``"download"``, an ordered queue, or None for the usual one."""

AnyDevice: TypeAlias = hal.Device | VirtualDevice

TraceFunction: TypeAlias = Callable[[hal.Submission, Sequence[Any]], object]

_LANES: Final = ("upload", "compute", "download")

_T = TypeVar("_T")


class Scheduler(Tracker):
    """The order of work by the bytes that it uses; base of `hal.flow.Flow`.

    One lock makes three things one step: finding what an operation comes after,
    submitting it, which never waits, and remembering it. If work of another thread came between the
    first two, this operation would miss it; between the last two, that work would miss this one.
    A lock for each memory was rejected: an operation uses several, which would have to be taken in
    one order by all threads.
    """

    __slots__ = ("_closed", "_first", "_is_busy", "_lanes", "_lock", "_queues", "trace")

    def __init__(self, devices: Sequence[AnyDevice], trace: TraceFunction | None) -> None:
        if not devices:
            message = "a flow takes at least one device: Flow(hal.create_device('cpu'))"
            raise ArgumentTypeError(message)
        self._lock = make_lock()
        # Whether a thread has begun something with the lock. The C extension, which does not take
        # that, leaves a call to Python then.
        self._is_busy = False
        self.trace = None if trace is None else as_function(trace, "Flow: trace")
        self._closed = False
        self._lanes = {device: Lanes(device) for device in map(_opened, devices)}
        self._first = next(iter(self._lanes.values()))
        # All queues that work has ever gone to, except some that were closed since
        self._queues: dict[hal.Queue, None] = {}
        for lanes in self._lanes.values():
            self._queues.update(dict.fromkeys((lanes.upload, lanes.compute, lanes.download)))

    @property
    def devices(self) -> tuple[hal.Device, ...]:
        """The devices."""
        return tuple(self._lanes)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until all work on the flow's queues has ended, for at most `timeout` seconds.

        Waits for all of it, failed or not, also for work that others have submitted there. Raises
        `DeadlineExceededError`, and not the work's own errors.
        """
        hal.Fence([queue.barrier() for queue in self._open_queues()]).wait(timeout)

    def release(self, buffer: TrackedBuffer) -> tuple[hal.Buffer, hal.Fence]:
        """Release a buffer; see `TrackedBuffer.release`."""
        self.check(buffer, "release")
        history = buffer.history
        if buffer.raw is not history.raw:
            raise InvalidArgumentError(
                f"release: this is a part, {buffer.size} bytes of {history.size}; release the "
                "buffer that it was taken from"
            )
        return buffer.raw, self._alone(self._release, history)

    def _release(self, history: History) -> hal.Fence:
        self._settle(history)
        fence = hal.Fence(history.entries(None, readers=True))
        history.end()
        return fence

    def recover(self, buffer: TrackedBuffer) -> None:
        """Recover a buffer; see `TrackedBuffer.recover`."""
        self.check(buffer, "recover")
        self._alone(self._recover, buffer)

    def _recover(self, buffer: TrackedBuffer) -> None:
        buffer.history.doubt()
        self._settle(buffer.history)

    def fence(self, buffer: TrackedBuffer, *, readers: bool) -> hal.Fence:
        """Return `TrackedBuffer.written`, or with `readers`, `TrackedBuffer.used`."""
        readers = as_flag(readers, "fence: readers")
        self.check(buffer, "used" if readers else "written")
        return hal.Fence(self._alone(self._entries, buffer, readers))

    def _entries(self, buffer: TrackedBuffer, readers: object) -> Sequence[Any]:
        self._settle(buffer.history)
        return buffer.history.entries((buffer.start, buffer.stop), readers=bool(readers))

    # For the modules of this package

    def _alone(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function with the lock; raise `ReentrantCallError` if the thread has it."""
        refuse_reentrance(self._lock)
        with self._lock:
            try:
                self._is_busy = True
                return function(*arguments)
            finally:
                self._is_busy = False

    def run(
        self,
        accesses: Sequence[TrackedAccess],
        submit: Callable[[list[Any]], hal.Submission],
        wait: Waits = (),
    ) -> hal.Submission:
        """Submit work with these accesses, after everything that it has to wait for."""
        # `_alone`, written out to save its calls
        if self._is_busy:
            refuse_reentrance(self._lock)
        with self._lock:
            try:
                self._is_busy = True
                waits = collect(accesses, self.look, wait)
                operation = submit(waits)
                note(accesses, operation)
            except BaseException as error:
                doubt(accesses, error)
                raise
            finally:
                self._is_busy = False
        if self.trace is not None:  # without the lock: it is the user's, and may call the flow
            self.trace(operation, waits)
        return operation

    def renew(self, buffer: TrackedBuffer) -> TrackedBuffer:
        """End a whole buffer, and return another of its memory, ordered behind its work."""
        history = self._alone(buffer.history.renew)
        history.lanes.addresses.note(history)
        return TrackedBuffer(buffer.flow, history, buffer.raw, name=buffer.name, mode=buffer.mode)

    def check(self, buffer: object, what: str) -> None:
        """Raise unless an object is a buffer that this flow tracks."""
        if not isinstance(buffer, TrackedBuffer):
            raise not_tracked(buffer, what)
        if buffer.flow is not self:
            raise InvalidArgumentError(
                f"{what}: the buffer belongs to another flow; release it there, and adopt it here "
                "after what release returns"
            )
        if buffer.history.raw is None:
            self.refuse(f"{what}: the buffer")

    def refuse(self, what: str) -> None:
        """Raise that a buffer is not tracked any more."""
        raise ClosedError(f"{what} was released or closed, and is no longer tracked")

    def look(self, history: History, found: list[Any]) -> None:
        """Find what an access waits for besides writers and readers; under the lock."""
        if history.refusal is not None:
            history.refusal()
        if history.raw is None:
            self.refuse("the buffer")
        self._settle(history)
        history.origin = tuple(filter(_is_open, history.origin))
        history.special = bool(history.origin)
        found += history.origin

    def check_open(self) -> None:
        """Raise `ClosedError` if the flow was closed."""
        if self._closed:
            raise ClosedError("the flow is closed; make another with hal.flow.Flow(device)")

    def lanes_of(self, device: AnyDevice | None) -> Lanes:
        """Return the queues of a device of this flow; None means the first one."""
        if device is None:
            return self._first
        opened = _opened(device)
        lanes = self._lanes.get(opened)
        if lanes is None:
            raise InvalidArgumentError(
                f"{opened!r} is not among this flow's devices, {list(self._lanes)}; give it to "
                "Flow(...)"
            )
        return lanes

    def queue_of(self, queue: QueueName, lanes: Lanes) -> hal.Queue:
        """Return the queue that ``queue=`` means for work on a device."""
        if isinstance(queue, str):
            named: hal.Queue = getattr(lanes, as_choice(queue, _LANES, "queue"))
            return named
        if not isinstance(queue, hal.Queue):
            raise ArgumentTypeError(
                f"queue is one of {', '.join(_LANES)}, or an ordered queue, not {shown(queue)}"
            )
        if not queue.ordered:
            raise InvalidArgumentError(
                f"queue: {queue.name} is unordered, and a flow relies on the order of its queues; "
                "give it an ordered one"
            )
        if queue not in self._queues:
            self.lanes_of(queue.device)
            self._alone(self._note_queue, queue)
        return queue

    def _note_queue(self, queue: hal.Queue) -> None:
        self._queues = dict.fromkeys((*self._open_queues(), queue))

    def _settle(self, history: History) -> None:
        """Have a memory with unknown work come after everything; under the lock."""
        if history.is_doubtful:
            history.forget(tuple(hal.Fence([queue.barrier() for queue in self._open_queues()])))

    def _open_queues(self) -> list[hal.Queue]:
        return [
            queue
            for queue in list(self._queues)
            if not (queue.closed or queue.device.closed or queue.device.lost)
        ]


def doubt(accesses: Sequence[TrackedAccess], error: BaseException | None = None) -> None:
    """Note that work may have been submitted, unless it was refused; under the lock."""
    if not isinstance(error, HalError):
        for access in accesses:
            access[0].doubt()


def index_of(number: object, what: str) -> int:
    """Return an integer of any kind as an int, which does not overflow."""
    return number if type(number) is int else as_int(number, f"{what} is a number of bytes")


def _opened(device: object) -> hal.Device:
    """Return the device itself, also for a virtual one."""
    opened = device.device if isinstance(device, VirtualDevice) else device
    return as_instance(opened, hal.Device, "a flow takes devices (hal.create_device)")


def _is_open(timepoint: hal.Timepoint) -> bool:
    """Return whether a timepoint has to be waited for: it is not reached, or has failed."""
    try:
        return not timepoint.semaphore.poll(timepoint.value)
    except own(HalError):
        return True
