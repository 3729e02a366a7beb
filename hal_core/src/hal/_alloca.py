"""Allocate and give back memory in the order of a queue (rule M3).

A buffer of `alloca` gets its address when the alloca is issued. Where the device
has stream-ordered allocation, and was opened with ``async_allocations=true``, the
issue makes the native call. Else the memory is a block of the cache, taken during
the submission; if there is none, a thread of the pool makes the native
allocation, which may block, and the operation waits for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from numpy.typing import DTypeLike

from hal import _progress, _sync, _timeline, _transfers
from hal._buffer import Buffer
from hal._extent import check_allocation
from hal._fence import wait_any
from hal._operation import DONE
from hal._semaphore import Semaphore
from hal._storage import Storage
from hal._submission import Submission
from hal._timeline import Timepoint
from hal._usage import MEMORY_TYPES
from hal.errors import CancelledError, HalError, InvalidArgumentError, OutOfMemoryError
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._memory import Heap
    from hal._queue import Queue
    from hal._stream import Waits

__all__ = ["alloca", "dealloca"]

_TRIES: Final[tuple[float, ...]] = (0.0, 0.001, 0.004, 0.016, 0.064)
"""Seconds between tries: whoever retires the last use of memory may hold it for a moment yet."""


def alloca(
    queue: Queue,
    size: object,
    dtype: DTypeLike,
    memory: str | MemoryType,
    waits: Waits,
    signals: tuple[Timepoint, ...],
) -> Buffer:
    """Check and submit an allocation; see `Queue.alloca`."""
    device = queue._device
    device._live()
    length, index, element, shape = check_allocation(size, dtype, memory, "alloca")
    heap, need = device._heap, length or 1
    if not index and device._is_async:
        if heap._doomed:
            heap.absorb()
        storage = Storage(heap, None, need, MEMORY_TYPES[index], None)
        payload: _transfers.Payload = (heap.place_async, (storage, need), storage)
    else:
        storage = heap.reserve(need, index)
        payload = (None, (storage,), storage)  # published when it is issued
    buffer = Buffer(device, storage, 0, length, element, shape)
    if storage._ticket is None and payload[0] is None:
        submission = _submit_without(queue, storage, need, index, waits, signals)
    else:
        submission = queue._submit("alloca", payload, waits, signals)
    buffer._allocation = storage.source = submission
    return buffer


def dealloca(
    queue: Queue,
    buffer: Buffer,
    waits: Waits,
    signals: tuple[Timepoint, ...],
) -> Submission:
    """Check and submit the end of an allocation; see `Queue.dealloca`."""
    storage = _transfers.check_buffer(queue._device, buffer, "dealloca")
    if storage.source is None:
        message = "dealloca takes a buffer of alloca; close() ends the use of others"
        raise InvalidArgumentError(message)
    if buffer._is_part:
        message = "dealloca takes the whole buffer that alloca returned, and this is a part of it"
        raise InvalidArgumentError(message)
    # Nothing to do but to hold the memory until then.
    payload = (None, (), storage)
    submission = queue._submit("dealloca", payload, waits, signals)
    buffer._end()
    for reference in list(storage.parts or ()):  # another thread may add to it
        part = reference()
        if part is not None:
            part._end()
    return submission


def _submit_without(
    queue: Queue,
    storage: Storage,
    size: int,
    index: int,
    waits: Waits,
    signals: tuple[Timepoint, ...],
) -> Submission:
    """Submit an allocation whose memory a thread of the pool gets meanwhile."""
    ready = Semaphore(0, f"memory for {queue.name}")
    before: list[Timepoint | Submission] = [*waits]
    if queue._ordered:
        with _timeline.lock:
            before += queue._unended()
    try:
        payload = (None, (storage,), storage)
        submission = queue._submit("alloca", payload, (*waits, ready.at(1)), signals)
        heap = queue._device._heap
        _progress._pool.run(_provide, heap, storage, size, index, ready, submission, before)
    except BaseException:
        ready.fail(CancelledError("the allocation was interrupted"))
        raise
    return submission


def _provide(
    heap: Heap,
    storage: Storage,
    size: int,
    index: int,
    ready: Semaphore,
    submission: Submission,
    before: Sequence[Timepoint | Submission],
) -> None:
    """Get the memory of an allocation, and let it be issued."""
    try:
        try:
            heap.grow(storage, size, index)
        except OutOfMemoryError:
            _wait_for(before, submission)
            _grow_late(heap, storage, size, index)
    except BaseException as error:  # noqa: BLE001 - whatever a plugin raises there
        ready.fail(error)
    else:
        ready.signal(1)


def _wait_for(before: Sequence[Timepoint | Submission], submission: Submission) -> None:
    """Wait for what an allocation comes after, which may give memory back.

    Raises if the allocation itself has failed or was cancelled.
    """
    for entry in before:
        try:
            wait_any([entry, submission])
        except HalError:
            if submission._state > DONE:
                raise
            # What comes before in the queue may fail: order inherits no failure.


def _grow_late(heap: Heap, storage: Storage, size: int, index: int) -> None:
    """Try again to get memory, a few times."""
    for seconds in _TRIES[:-1]:
        try:
            if seconds:
                _sync.nap(seconds)
            heap.grow(storage, size, index)
        except OutOfMemoryError:
            continue
        else:
            return
    _sync.nap(_TRIES[-1])
    heap.grow(storage, size, index)
