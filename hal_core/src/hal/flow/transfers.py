"""Transfers: between host arrays and devices, and between buffers of one device or of two."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

import hal
from hal.arguments import as_array, as_flag, as_int, check_elements, no_data, shown
from hal.errors import (
    ArgumentTypeError,
    DeadlineExceededError,
    InvalidArgumentError,
    OutOfMemoryError,
)
from hal.flow.buffers import TrackedBuffer
from hal.flow.host_arrays import Bytes, HeldArray, ReadsInFlight, bytes_of, is_constant
from hal.flow.modes import check_mode
from hal.flow.scheduler import AnyDevice, QueueName, Scheduler, TraceFunction, doubt, index_of
from hal.flow.tracking import History, Lanes, TrackedAccess, collect, note, part_of
from hal.handlers import dropped, own
from hal.protocols import Signals, Waits

TrackedOffset: TypeAlias = tuple[History, int] | None
"""A history and an offset in its memory; None if the owner orders the accesses."""

_SMALL: Final = 64 << 10  # the most bytes that `hal.Queue.write` captures during the call

_SLOTS: Final = 4  # the pieces of pinned memory for a copy from device to device through the host


class Download:
    """A host array whose transfer is in flight; awaitable.

    The bytes of its `array` are undefined until the transfer, its `submission`, has ended.
    """

    __slots__ = ("array", "submission")

    def __init__(self, array: NDArray[Any], submission: hal.Submission) -> None:
        self.array: Final = array
        self.submission: Final = submission

    def result(self, timeout: float | None = None) -> NDArray[Any]:
        """Return the array once it is there; blocks, and raises, as `hal.Submission.wait`."""
        self.submission.wait(timeout)
        return self.array

    def __repr__(self) -> str:
        shape = list(self.array.shape)
        return f"<Download of {self.array.dtype}{shape} by {self.submission!r}>"

    def __await__(self) -> Generator[Any, None, NDArray[Any]]:
        yield from self.submission.__await__()
        return self.array


class Transfers(Scheduler):
    """Transfers, scheduled like any other work; base of `hal.flow.Flow`."""

    def __init__(
        self,
        devices: Sequence[AnyDevice],
        trace: TraceFunction | None,
        chunk: int,
        snapshot: int,
        *,
        peers: bool,
    ) -> None:
        super().__init__(devices, trace)
        self._chunk = as_int(chunk, "chunk is a number of bytes", 1)
        self._snapshot = as_int(snapshot, "snapshot is a number of bytes", 0)
        self.most_captured = min(self._snapshot, _SMALL)  # of an array that is not held
        self.reads_in_flight = ReadsInFlight()
        # By device: an unordered queue for work that follows the end of a transfer
        self._keepers: dict[hal.Device, hal.Queue] = {}
        self._peers = as_flag(peers, "Flow: peers")
        self._connected: dict[tuple[hal.Device, hal.Device], bool] = {}

    def allocate(
        self,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        device: AnyDevice | None = None,
        memory: str | hal.MemoryType = hal.MemoryType.DEVICE,
        usage: hal.BufferUsage = hal.BufferUsage.ALL,
        clear: bool = False,
    ) -> TrackedBuffer:
        """Allocate `size` bytes as `hal.Device.allocate`: zeros with `clear`, undefined without."""
        zeros = as_flag(clear, "allocate: clear")
        self.check_open()
        lanes = self.lanes_of(device)
        raw = lanes.device.allocate(size, dtype=dtype, memory=memory, usage=usage)
        made = TrackedBuffer(self, lanes.track(raw), raw)
        if zeros:
            self.fill(made.view(np.uint8), 0)
        return made

    def fill(
        self,
        buffer: TrackedBuffer,
        value: object,
        *,
        offset: int = 0,
        size: int | None = None,
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Fill as `hal.Queue.fill` does, on the compute queue."""
        self.check(buffer, "fill")
        buffer.check_fill(value)
        history, raw, part = buffer.history, buffer.raw, buffer.part
        if size is not None or offset.__class__ is not int or offset:
            offset = index_of(offset, "fill: offset")
            size = None if size is None else index_of(size, "fill: size")
            start = buffer.start + offset
            part = part_of(history, start, buffer.stop if size is None else start + size)
        lane = history.lanes.compute if queue is None else self.queue_of(queue, history.lanes)
        return self.run(
            ((history, part, True),),
            lambda waits: lane.fill(
                raw, value, offset=offset, size=size, wait=waits, signal=signal
            ),
            wait,
        )

    def write(
        self,
        buffer: TrackedBuffer,
        array: object,
        *,
        offset: int = 0,
        hold: bool | None = None,
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy a host array, or a `hal.File`, into a buffer, from `offset` bytes on.

        With ``hold=False`` the array's bytes are captured during the call,
        in pinned memory of its size, and it may change at once. With
        ``hold=True`` it is not copied: it is made read-only, with all that it
        is a view of, until the returned submission has ended, so that numpy
        refuses to change it. If memory is not numpy's own, or was changed
        through another view, a checksum detects that, and fails the
        returned submission with `OperationError`. Without `hold` arrays of up
        to `Flow`'s ``snapshot`` bytes are copied; larger ones are held, and so are those
        for which no pinned memory is left. Immutable bytes are
        neither.

        A buffer of a context takes arrays of its own element type, and without an
        offset only as many as it has; bytes are taken as they are.

        Runs on the upload queue. An array that a `read` is still filling is
        refused with `InvalidArgumentError`.
        """
        self.check(buffer, "write")
        history = buffer.history
        lane = history.lanes.upload if queue is None else self.queue_of(queue, history.lanes)
        offset = index_of(offset, "write: offset")
        buffer.check_write(array, is_whole=not offset)
        place = (history, buffer.start + offset)
        return self.write_raw(buffer.raw, array, lane, wait, signal, place, offset, hold)

    def update(
        self,
        buffer: TrackedBuffer,
        data: object,
        *,
        offset: int = 0,
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Write as `write` does with ``hold=False``."""
        return self.write(
            buffer, data, offset=offset, hold=False, queue=queue, wait=wait, signal=signal
        )

    def read(
        self,
        buffer: TrackedBuffer,
        array: object,
        *,
        offset: int = 0,
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy a buffer, from `offset` bytes on, into a writable array or a `hal.File`.

        The array's bytes are undefined until the submission has ended. Runs
        on the download queue.
        """
        self.check(buffer, "read")
        history, raw = buffer.history, buffer.raw
        lane = history.lanes.download if queue is None else self.queue_of(queue, history.lanes)
        offset = index_of(offset, "read: offset")
        if buffer.mode is not None:
            check_mode(repr(buffer.name), buffer.mode, "read")
            if isinstance(array, np.ndarray):
                buffer.check_type(array.dtype, None, "the array")
        start = buffer.start + offset
        size = array.nbytes if isinstance(array, np.ndarray) else _size_of(array)
        if size is None:
            size = buffer.size - offset

        def submit(waits: list[Any]) -> hal.Submission:
            operation = lane.read(raw, array, offset=offset, wait=waits, signal=signal)
            if not isinstance(array, hal.File):
                self.reads_in_flight.add(array, operation)
            return operation

        access = (history, part_of(history, start, start + size), False)
        return self.run((access,), submit, wait)

    def from_host(
        self,
        array: object,
        target: TrackedBuffer | AnyDevice | None = None,
        *,
        hold: bool | None = None,
        wait: Waits = (),
    ) -> TrackedBuffer:
        """Copy a host array, or an array-like object, to a buffer; return that at once.

        `target` is a buffer, or the device for a new one of the array's dtype
        and shape; None means the flow's first. `hold` as in `write`.
        Wait for `TrackedBuffer.written` if necessary.
        """
        host = as_array(array, "from_host")
        if isinstance(target, TrackedBuffer):
            self.write(target, host, hold=hold, wait=wait)
            return target
        self.check_open()
        if host.dtype.hasobject:
            raise no_data(host.dtype, "from_host")
        lanes = self.lanes_of(target)
        buffer = self._new(lanes, host.nbytes, host.dtype, host.shape)
        self.write(buffer, host, hold=hold, wait=wait)
        return buffer

    def to_host(self, buffer: TrackedBuffer, *, wait: Waits = ()) -> Download:
        """Copy a buffer to a new array of its dtype and shape; return that at once."""
        self.check(buffer, "to_host")
        array = np.empty(buffer.shape, buffer.dtype)
        return Download(array, self.read(buffer, array, wait=wait))

    def device_to_device(
        self, source: TrackedBuffer, target: TrackedBuffer | AnyDevice, *, wait: Waits = ()
    ) -> TrackedBuffer:
        """Copy a buffer to another, or to a new one on a device; return that at once.

        The copy is on the source's download queue if that device reaches the other's
        memory (`hal.Device.can_access`). Elsewhere, and between backends, it goes in
        pieces through pinned memory of the host, up to four of them: the
        source's download queue and the target's upload queue work at once.
        """
        self.check(source, "device_to_device: the source")
        if target is None:
            message = "device_to_device: the target is a tracked buffer or a device, not None"
            raise ArgumentTypeError(message)
        if not isinstance(target, TrackedBuffer):
            lanes = self.lanes_of(target)
            target = self._new(lanes, source.size, source.dtype, source.shape)
        self.copy(source, target, wait=wait)
        return target

    def copy(
        self,
        source: TrackedBuffer,
        target: TrackedBuffer,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        queue: QueueName = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy `size` bytes between buffers of any devices; None means all of the source's rest.

        On one device it is `hal.Queue.copy`, on the compute queue, and the
        ranges must not overlap. Between devices see `device_to_device`, which
        chooses the queues: ``queue=`` is refused.
        """
        self.check(source, "copy: the source")
        self.check(target, "copy: the target")
        lanes = source.history.lanes
        source_offset = index_of(source_offset, "copy: source_offset")
        target_offset = index_of(target_offset, "copy: target_offset")
        is_whole = size is None and not source_offset and not target_offset
        target.check_copy(source, is_whole=is_whole)
        size = None if size is None else index_of(size, "copy: size")
        length = source.size - source_offset if size is None else size
        start, place = source.start + source_offset, target.start + target_offset
        reading = (source.history, part_of(source.history, start, start + length), False)
        writing = (target.history, part_of(target.history, place, place + length), True)
        if lanes is target.history.lanes:
            lane = lanes.compute if queue is None else self.queue_of(queue, lanes)
        elif queue is not None:
            message = "copy: between devices the flow chooses the queues; leave queue= out"
            raise InvalidArgumentError(message)
        elif self.reaches(lanes.device, target.device):
            lane = lanes.download
        else:
            # These raise for ranges outside the buffers.
            part = source.raw.subspan(source_offset, length, dtype=np.uint8)
            room = target.raw.subspan(target_offset, length, dtype=np.uint8)
            return self._relay(part, reading, room, writing, wait, signal)
        return self.run(
            (reading, writing),
            lambda waits: lane.copy(
                source.raw,
                target.raw,
                source_offset=source_offset,
                target_offset=target_offset,
                size=size,
                wait=waits,
                signal=signal,
            ),
            wait,
        )

    def _end(self) -> list[hal.Queue]:
        """Close the flow; return the queues that follow transfers, of which no more are made."""
        self._closed = True
        return [*self._keepers.values()]

    @staticmethod
    def _close_keepers(keepers: Sequence[hal.Queue], seconds: float) -> None:
        """Free those queues; wait up to `seconds` until held arrays are given back."""
        deadline = time.monotonic() + seconds
        for queue in keepers:
            if queue.device.closed:
                continue
            # Work that still goes on ends in its queue, which its device closes.
            with dropped(DeadlineExceededError):
                queue.wait_idle(max(0.0, deadline - time.monotonic()))
                queue.close(max(0.0, deadline - time.monotonic()))

    # For the modules of this package

    def _new(
        self, lanes: Lanes, size: int, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> TrackedBuffer:
        raw = lanes.device.allocate(size, dtype=dtype)
        return TrackedBuffer(self, lanes.track(raw), raw, 0, shape)

    def write_raw(
        self,
        raw: hal.Buffer,
        array: object,
        lane: hal.Queue,
        wait: Waits,
        signal: Signals = (),
        place: TrackedOffset = None,
        offset: int = 0,
        hold: bool | None = None,  # noqa: FBT001 - as `write` has it
    ) -> hal.Submission:
        """Write as `write` does to a raw buffer, tracked at a place or ordered by its owner."""
        host: Any = array

        def write(waits: list[Any]) -> hal.Submission:
            return lane.write(raw, host, offset=offset, wait=waits, signal=signal)

        if isinstance(array, hal.File):
            length = raw.size - offset if array.size is None else array.size
            return self.run(_access(place, length), write, wait)
        is_ours = array.__class__ is bytes
        if not is_ours:
            host, is_ours = bytes_of(array, "write")
            if isinstance(array, (np.ndarray, np.generic)):
                check_elements("write", array.dtype, raw.dtype)
            if not (is_ours and is_constant(array)):
                mine = host if isinstance(array, np.generic) else array
                self.reads_in_flight.check(mine, "write")
        size = len(host)
        if not 0 <= offset <= raw.size - size:
            raise InvalidArgumentError(
                f"write: bytes {shown(offset)} to {shown(offset + size)} were asked for, "
                f"and the buffer has {raw.size}"
            )
        accesses = _access(place, size)
        is_asked = hold is not None
        hold = size > self._snapshot if hold is None else as_flag(hold, "write: hold")
        if is_ours or (size <= _SMALL and not hold):
            return self.run(accesses, write, wait)
        block = None
        if not hold:
            try:
                block = raw.device.allocate(size, memory=hal.MemoryType.HOST)
            except own(OutOfMemoryError):
                if is_asked:
                    raise
        if block is None:
            return self._write_held(array, host, write, raw.device, accesses, wait)
        np.copyto(block.map("discard", wait=()), host)
        return self.run(
            accesses,
            lambda waits: lane.copy(block, raw, target_offset=offset, wait=waits, signal=signal),
            wait,
        )

    def _keeper(self, device: hal.Device) -> hal.Queue:
        self.check_open()
        queue = self._keepers.get(device)
        if queue is None:
            # Unordered: in an ordered queue a write would end only after all writes before it,
            # also after those that still wait for something.
            queue = self._keepers[device] = device.create_queue(name="flow", ordered=False)
        return queue

    def _write_held(
        self,
        array: object,
        host: Bytes,
        write: Callable[[list[Any]], hal.Submission],
        device: hal.Device,
        accesses: tuple[TrackedAccess, ...],
        wait: Waits,
    ) -> hal.Submission:
        """Write an array that is held; return the submission that ends when it is given back."""

        def submit(waits: list[Any]) -> hal.Submission:
            transfer = write(waits)
            try:
                return _end_with(transfer, held, keeper)
            except BaseException:
                doubt(accesses)  # the transfer was submitted
                raise

        held = HeldArray(host)
        try:
            held.begin(array)
            keeper = self._alone(self._keeper, device)
            # Work after the write comes after the check, too.
            return self.run(accesses, submit, wait)
        except BaseException:
            held.end()
            raise

    def reaches(self, device: hal.Device, other: hal.Device) -> bool:
        """Return whether a device reaches another's memory in place; enable that if it does."""
        if device is other:
            return True
        if not self._peers:
            return False
        known = self._connected.get((device, other))
        if known is None:
            known = device.can_access(other)
            if known:
                # Until then a driver may itself stage copies through the host.
                device.enable_access(other)
            self._connected[device, other] = known
        return known

    def _relay(
        self,
        part: hal.Buffer,
        reading: TrackedAccess,
        room: hal.Buffer,
        writing: TrackedAccess,
        wait: Waits,
        signal: Signals,
    ) -> hal.Submission:
        """Copy between devices, piece by piece through the host."""
        waits: list[Any] = []

        def submit() -> hal.Submission:
            try:
                found = collect((reading,), self.look, wait)
                found_there = collect((writing,), self.look)
                waits.extend((*found, *found_there))
                read, written = self._pieces(part, found, room, found_there, signal)
                note((reading,), read)
                note((writing,), written)
            except BaseException:
                doubt((reading, writing))  # whatever was raised, pieces may have been submitted
                raise
            return written

        written = self._alone(submit)
        if self.trace is not None:
            self.trace(written, waits)
        return written

    def _pieces(
        self,
        part: hal.Buffer,
        found: list[Any],
        room: hal.Buffer,
        found_there: list[Any],
        signal: Signals,
    ) -> tuple[hal.Submission, hal.Submission]:
        """Submit the pieces of a relay; return its last read and its last write."""
        download, upload = part.device.queues.download, room.device.queues.upload
        size, step = part.size, self._chunk
        blocks: list[hal.Buffer] = []
        writes: list[hal.Submission] = []
        read = download.barrier(wait=found)
        for index, begin in enumerate(range(0, size, step)):
            length = min(step, size - begin)
            if index < _SLOTS:
                blocks.append(room.device.allocate(length, memory=hal.MemoryType.HOST))
            block = blocks[index % _SLOTS]
            before = [read] if index < _SLOTS else [read, writes[index - _SLOTS]]
            array = block.map(wait=())[:length]
            read = download.read(part, array, offset=begin, wait=before)
            is_last = begin + length == size
            # Each write comes after the one before, so that the last one fails if any piece has.
            writes.append(
                upload.copy(
                    block,
                    room,
                    size=length,
                    target_offset=begin,
                    wait=[read, *(writes[-1:] or found_there)],
                    signal=signal if is_last else (),
                )
            )
        if not writes:
            writes.append(upload.barrier(wait=[read, *found_there], signal=signal))
        return read, writes[-1]


def _end_with(transfer: hal.Submission, held: HeldArray, keeper: hal.Queue) -> hal.Submission:
    """Return a submission that ends when a transfer's array was given back and checked."""
    given_back = hal.create_semaphore(name=f"host array of {transfer.queue.name}")

    def give_back(_: object) -> None:
        try:
            held.end()
        finally:
            given_back.signal(1)

    # The callback, and not the call, gives the array back: closing the device cancels the call,
    # and the array would stay read-only for good. A callback comes whatever becomes of the work.
    (timepoint,) = hal.Fence(transfer)
    timepoint.semaphore.on_reached(timepoint.value, give_back)
    return keeper.call(held.verify, transfer, wait=given_back.at(1))


def _access(place: TrackedOffset, size: int) -> tuple[TrackedAccess, ...]:
    if place is None:
        return ()
    history, start = place
    return ((history, part_of(history, start, start + size), True),)


def _size_of(array: object) -> int | None:
    """Return the bytes that a read fills; None means all that there are."""
    if isinstance(array, hal.File):
        return array.size
    try:
        return memoryview(array).nbytes  # type: ignore[arg-type]
    except own(TypeError):
        message = f"read takes a writable array or a File, not {type(array).__name__}"
        raise ArgumentTypeError(message) from None
