"""Allocation and deallocation of memory in the order of a queue (rule M3).

Memory is reserved when an alloca is issued: from the driver's stream-ordered pool, or from
the core's own (`hal._memory.segment_pool`), as the parameter ``async_allocations`` says.
An alloca that finds none is *starved*: it keeps its place in the queue, and tries again
whenever work has retired, a dealloca was issued or a finaliser has given memory back. The
`MemorySearch` makes native allocations that may block on a thread of ours. It fails the alloca
when no running work can help any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hal._base.failures import as_failure, keep, told
from hal._buffers.buffer import Buffer
from hal._engine import progress, steps, timelines
from hal._engine.device_context import DeviceContext, MemoryProvider
from hal._engine.ending import end
from hal._engine.operation import DONE, FAILED, PENDING, STARVED, Operation
from hal._engine.payload import CallSequence, Payload
from hal._engine.submission import Submission
from hal._engine.submitting import submit
from hal._engine.wait_lists import Signals, check_signals
from hal._memory.access import check_buffer
from hal._memory.extent import check_allocation
from hal._memory.replay import Give, Take
from hal._memory.storage import Transient, note_uses
from hal.errors import HalError, InvalidArgumentError, OperationError, OutOfMemoryError
from hal.handlers import dropped
from hal.native import MemoryType

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hal._engine.fence import Waits
    from hal._engine.steps import CallStep
    from hal._engine.stream import StreamQueue
    from hal._engine.timelines import Timepoint, Work
    from hal._memory.core import DeviceCore
    from hal._memory.heap import Heap


def alloca(
    device: DeviceCore,
    queue: StreamQueue,
    size: object,
    dtype: DTypeLike,
    memory: str | MemoryType,
    wait: Waits,
    signal: Signals,
) -> Buffer:
    """Check and submit an allocation; see `Queue.alloca`."""
    device._live()
    length, index, element, shape = check_allocation(size, dtype, memory, "alloca")
    (storage,) = transients(device, (length or 1,), index)
    buffer = Buffer(device, storage, 0, length, element, shape)
    submission = submit(queue, "alloca", _payload(Take((storage,)), storage), wait, signal)
    buffer._allocation = storage.source = submission
    return buffer


def transients(device: DeviceCore, sizes: Sequence[int], index: int = 0) -> tuple[Transient, ...]:
    """Return storages that take memory when an operation is issued.

    Raises `OutOfMemoryError` for more than can ever be there.
    """
    context, heap = device._context, device._heap
    heap.refuse_reentrance()
    heap.check_possible(sum(sizes), index)
    if context.provider is None:
        progress.workers.start()  # the thread that finds memory must exist before it is needed
        with timelines.lock:
            context.provider = context.provider or MemorySearch(context, heap)
    return tuple([Transient(heap, size, index) for size in sizes])


def dealloca(
    device: DeviceCore, queue: StreamQueue, buffer: Buffer, wait: Waits, signal: Signals
) -> Submission:
    """Check and submit a deallocation; see `Queue.dealloca`."""
    storage = check_buffer(device, buffer, "dealloca")
    if not isinstance(storage, Transient) or storage.source is None:
        message = "dealloca takes a buffer of alloca; close() ends the use of others"
        raise InvalidArgumentError(message)
    if buffer._is_part:
        message = "dealloca takes the whole buffer that alloca returned, and this is a part of it"
        raise InvalidArgumentError(message)
    if storage.recordings:
        raise InvalidArgumentError(
            "dealloca: a recording that uses the buffer directly may be executed again; drop the "
            "recording first, or record a slot or commands.alloca() in the buffer's place"
        )
    if type(signal) is not tuple or signal:
        signal = check_signals(signal)
        _check_reachable(storage.source, signal)
    payload = _payload(Give((storage,)), storage)
    submission = submit(queue, "dealloca", payload, wait, signal, False, Deallocation)  # noqa: FBT003
    buffer._end()
    # After that: a part that is made meanwhile registers first, and looks at its buffer then.
    if storage.parts is not None:
        for reference in list(storage.parts):  # another thread may add to it
            part = reference()
            if part is not None:
                part._end()
    return submission


def _payload(calls: CallSequence, storage: Transient) -> Payload:
    """Return a sequence's payload; only with the driver's pool there is something to enqueue.

    The resource is the sequence, which keeps the storage. As a resource itself the storage would
    note the operation as a use, and neither an alloca nor a dealloca is one.
    """
    return (calls, (), calls) if storage.is_async else (None, (calls,), calls)


def housing(blocks: tuple[Transient, ...]) -> tuple[Payload, Payload]:
    """Return the payloads of operations that reserve memory, and that give it back behind its use.

    For an execution of several parts, which all come between the two (`Housed` does both).
    """
    return _payload(Take(blocks), blocks[0]), _payload(Give(blocks), blocks[0])


def _check_reachable(source: Submission, signals: tuple[Timepoint, ...]) -> None:
    """Raise if an alloca waits for a signal of its own dealloca."""
    if source._state != PENDING:
        return
    for wait in source._waits:
        for signal in signals:
            semaphore = wait._semaphore
            # Only this value: another one may be signalled by other work.
            if signal._semaphore is semaphore and semaphore._value < wait._value == signal._value:
                raise InvalidArgumentError(
                    f"dealloca: its signal {semaphore.name}@{signal._value} is what the alloca of "
                    f"this buffer waits for ({semaphore.name}@{wait._value}): neither would run"
                )


class Deallocation(Submission):
    """A dealloca; if it could not give the memory back, that is done once nothing uses it.

    The storage's finaliser does not do it: a waiter for memory would have to know
    when the last frame drops the storage.
    """

    __slots__ = ()

    def _let_go(self) -> None:
        calls = self._resources
        super()._let_go()
        # Without a lease it was given back, or the alloca failed; without calls it was refused.
        if isinstance(calls, Give) and self._state >= DONE:
            (storage,) = calls.storages
            if storage._lease is not None:
                storage._heap.reaper.leave(storage)


def run_housed(
    blocks: tuple[Transient, ...], function: Callable[..., object], arguments: tuple[Any, ...]
) -> object:
    """Run an execution with temporaries on the host, with memory reserved for that long.

    There is no stream to order it, so these are ordinary allocations, which may block.
    """
    kept = [block._heap.allocate(block.size, block.index) for block in blocks]
    try:
        for block, storage in zip(blocks, kept, strict=True):
            block.host_address, block.address = storage.host_address, storage.address
        return function(*arguments)
    finally:
        for block in blocks:
            block.address = None
        del kept, storage  # an error may keep this frame


def storages_of(operation: Operation) -> tuple[Transient, ...]:
    """Return the storages that a starved operation wants memory for."""
    calls = operation._function if operation._function is not None else operation._arguments[0]
    assert isinstance(calls, Take)  # noqa: S101 - nothing else starves
    return calls.storages


class MemorySearch(MemoryProvider):
    """The search for memory for a device's starved operations, on a thread of the pool."""

    # An attribute that host operations have, too: both go to the pool by the follow-up `HOST`.
    _kind: Final = "alloca"

    def __init__(self, context: DeviceContext, heap: Heap) -> None:
        super().__init__()
        self._context = context
        self._heap = heap

    note = staticmethod(note_uses)

    def _run_on_host(self) -> None:
        """Search for memory for all operations that have asked for some."""
        while True:
            with timelines.lock:
                if not self.wanted:
                    self.is_posted = False
                    return
                operation = self.wanted.popleft()
            try:
                try:
                    self._provide(operation)
                except Exception as raised:  # noqa: BLE001 - such as no memory of the host's
                    error = OperationError(f"looking for memory was broken off by {told(raised)}")
                    error.__cause__ = keep(raised)
                    progress.act(_fail, operation, error)
            except Exception:
                # The error cannot be made either: the next search looks at the operation again.
                with timelines.lock:
                    self.wanted.append(operation)
                    self.is_posted = False
                raise

    def _provide(self, operation: Operation) -> None:
        """Have an operation try again, wait on, or fail."""
        error: HalError
        with timelines.lock:
            if operation._state != STARVED:
                return
            storages = storages_of(operation)
        try:
            if self._heap.order.provide(operation._queue, storages):
                progress.act(_feed_one, self._context, operation)
                return
            if self._heap.order.is_freeing:
                return  # the thread that frees memory has it try again
            # Twice: work may move between threads between two looks.
            for _ in range(2):
                if progress.act(_may_come, self._context, operation):
                    return
                # What stands in the progress thread's inbox may give memory back: decide behind it.
                if progress.put_behind(_look_again, self._context, operation):
                    return
            if self._heap.order.has_changed(storages):
                # Memory was given back meanwhile.
                progress.act(_feed_one, self._context, operation)
                return
            error = self._out_of_memory(storages)
        except Exception as raised:  # noqa: BLE001 - whatever a plugin raises there
            error = as_failure(raised, "memory was looked for")
            if isinstance(error, OutOfMemoryError):
                storages[0].refuse(error)
                error = self._out_of_memory(storages)
        progress.act(_fail, operation, error)

    def _out_of_memory(self, storages: tuple[Transient, ...]) -> OutOfMemoryError:
        size = sum([storage.size for storage in storages])
        return self._heap.out_of_memory(size, storages[0].memory, storages[0].error)


def _may_come(step: CallStep, context: DeviceContext, operation: Operation) -> bool:
    """Return whether running work may give memory back; have it retired then."""
    with timelines.lock:
        if operation._state != STARVED:
            return True
        is_any = False
        for queue in context.queues:
            is_any |= _is_working(queue, step.work)
        for other in steps.all_steps():
            is_any |= other is not step and _is_busy(other, operation)
        return is_any


def _is_working(queue: StreamQueue, work: Work) -> bool:
    """Return whether work of a queue will end; have it retired then; under the lock."""
    if queue._ring:
        queue._ring[0]._want(work)
    if queue._ring or queue._hosts or queue._issuing is not None:
        return True  # it ends, or enters the ring and is wanted there
    if not queue._backlog:
        return False
    head = queue._backlog[0]
    if head._state == PENDING:
        return not head._unresolved  # a thread is about to issue it
    return head._state != STARVED  # ... or to skip it


def _is_busy(step: CallStep, operation: Operation) -> bool:
    """Return whether a call on another thread issues or ends operations; under the lock.

    Its effects may give memory back. It has memory looked for again once it has made them, even
    if they are that its own operation found none.
    """
    # Before the look: the other thread, which holds no lock, looks at the list once it has no work
    # and no baton any more.
    step.awaited.append(operation)
    queue = step.queue
    if step.work or (queue is not None and queue._context is operation._queue._context):
        return True
    with dropped(ValueError):  # it has just ended, and removed it
        step.awaited.remove(operation)
    return False


def _look_again(step: CallStep, context: DeviceContext, operation: Operation) -> None:
    with timelines.lock:
        context.search_memory(operation, step.work)


def _feed_one(step: CallStep, context: DeviceContext, operation: Operation) -> None:
    with timelines.lock:
        context.feed_one(operation, step.work)


def _fail(step: CallStep, operation: Operation, error: HalError) -> None:
    with timelines.lock:
        if operation._state == STARVED:
            end(operation, FAILED, error, step.work)
