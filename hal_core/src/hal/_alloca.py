"""Allocate and give back memory in the order of a queue (rule M3).

A buffer of `alloca` gets its address when the alloca is issued. Where the device
has stream-ordered allocation, and was opened with ``async_allocations=true``, the
issue makes the native call. Else the memory is a block of the cache, taken during
the submission; if there is none, a thread of ours makes the native
allocation, which may block, and the operation waits for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from numpy.typing import DTypeLike

from hal import _progress, _sync, _timeline, _transfers
from hal._buffer import Buffer
from hal._extent import check_allocation
from hal._failure import fresh
from hal._semaphore import Semaphore
from hal._storage import Storage
from hal._submission import Submission
from hal._timeline import HOST, Timepoint, Work
from hal._usage import MEMORY_TYPES
from hal.errors import CancelledError, InvalidArgumentError, OutOfMemoryError
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._memory import Heap
    from hal._queue import Queue
    from hal._step import Step
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
    """Submit an allocation whose memory a thread of ours gets meanwhile."""
    _progress.workers.start()
    ready = Semaphore(0, f"memory for {queue.name}")
    before: list[Timepoint | Submission] = [*waits]
    if queue._ordered:
        with _timeline.lock:
            before += queue._unended()
    try:
        payload = (None, (storage,), storage)
        submission = queue._submit("alloca", payload, (*waits, ready.at(1)), signals)
        provision = _Provision(queue._device._heap, storage, size, index, ready, submission, before)
        _progress.workers.run(provision._run_on_host)
    except BaseException:
        ready.fail(CancelledError("the allocation was interrupted"))
        raise
    return submission


class _Provision:
    """The memory of one allocation, which the native device has to be asked for.

    If there is none it is asked for again once all has ended that the allocation
    comes after, which may give memory back. No thread waits for that.
    """

    _kind: Final = "alloca"

    def __init__(
        self,
        heap: Heap,
        storage: Storage,
        size: int,
        index: int,
        ready: Semaphore,
        submission: Submission,
        before: list[Timepoint | Submission],
    ) -> None:
        self._request = (storage, size, index)
        self._heap = heap
        self._ready = ready
        self._submission = submission
        self._before = before[::-1]
        self._is_tried = False
        self._is_waiting = False
        self._watched: tuple[Timepoint, ...] = ()

    def _run_on_host(self) -> None:
        """Get the memory and let the allocation be issued, or wait for what gives some back."""
        try:
            if not self._is_tried:
                self._is_tried = True
                try:
                    self._heap.grow(*self._request)
                except OutOfMemoryError:
                    pass
                else:
                    self._before.clear()
                    self._ready.signal(1)
                    return
            if not self._must_wait():
                _grow_late(self._heap, *self._request)
                self._ready.signal(1)
        except BaseException as error:  # noqa: BLE001 - whatever a plugin raises there
            self._ready.fail(error)

    def _must_wait(self) -> bool:
        """Register for the first of what it comes after that has not ended, if there is any.

        Raises if the allocation itself has failed or was cancelled. What comes before
        in the queue may fail: order inherits no failure.
        """
        own = self._submission._as_timepoint()
        while self._before:
            entry = self._before[-1]
            other = entry if isinstance(entry, Timepoint) else entry._as_timepoint()
            if _progress.act(_Provision._watch, self, (own, other)):
                return True
            self._before.pop()
        return False

    @staticmethod
    def _watch(step: Step, self: _Provision, points: tuple[Timepoint, Timepoint]) -> bool:
        """Register for the allocation itself and the other one, unless that has ended."""
        own, other = points
        with _timeline.lock:
            for each in self._watched:
                each._semaphore._forget(each._value, self)
            self._watched = ()
            if own._semaphore._failure is not None:
                raise fresh(own._semaphore._failure)
            timeline = other._semaphore
            if timeline._value >= other._value or timeline._failure is not None:
                return False
            self._watched = points
            self._is_waiting = True
            for each in points:
                register = each._semaphore._until_reached(each._value, step.work)
                register.watch(each._value, self, 0)
            return True

    def _notice(self, index: int, work: Work) -> None:  # noqa: ARG002 - either will do
        """Go on, on a thread of the pool; under the lock."""
        if self._is_waiting:
            self._is_waiting = False
            work.append((HOST, self))


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
