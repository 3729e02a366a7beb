"""Copies between a device and host memory that the calling thread makes itself (rules M1, M2).

A call that blocks by itself, such as `Buffer.numpy`, first waits for all that its copy depends
on. Then nothing is left to be ordered, so the copy is no operation: no queue and no other thread
takes part. A host operation that copies from or to pageable memory begins once all that it waits
for is reached, and copies in the same way, on a thread of the pool or on one that waits for it
(`hal._engine.host_calls`). Memory that the host sees is copied by the host. For other memory the
driver copies, on a stream that only such copies use. Both copy in parts, and a Ctrl-C ends a call
between two of them.

Each copy is waited for, writes too: a driver's own call from pageable memory returns once the bytes
are in pinned memory of the driver's, and work on other streams could run before they arrive. A ring
of pinned pieces of ours in between was built, measured and removed: one core copies the bytes
either way, and the driver's own pieces were as fast or faster at every size (benchmarks/NOTES.md,
"Transfers that block").
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hal._base.failures import as_failure, fresh
from hal._engine import contexts, progress, timelines
from hal._engine.closing import end_all
from hal._engine.steps import CallStep
from hal._memory.access import late_address
from hal._memory.core import CopyStream, DeviceCore
from hal._memory.storage import Storage, Transient
from hal._memory.views import array_address, view_of
from hal.errors import DeviceLostError
from hal.handlers import dropped, own

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hal._engine.device_context import DeviceContext


PART: Final = 32 << 20
"""The most bytes of one native copy: some milliseconds."""

IS_OPERATION: Final = True
"""The last argument of `read` and `write` in a host operation."""

_Request: TypeAlias = "tuple[Storage, int, NDArray[Any], Callable[..., object], bool]"
"""A storage, the first byte in it, the array, the primitive, and whether an operation copies."""


def read(
    device: DeviceCore,
    storage: Storage,
    start: int,
    host: NDArray[Any],
    is_operation: bool = False,  # noqa: FBT001, FBT002 - internal, and C takes it by position
) -> None:
    """Fill a contiguous array of at least one byte with the bytes from `start` on.

    Blocks until they are there. Raises what the native calls raise, the loss of the
    device, `OperationError` for memory that an alloca has not made yet, and `ClosedError`, but for
    a host operation (`is_operation`): a close waits for those.
    """
    progress.act(_move, device, (storage, start, host, device._copy_to_host, is_operation))


def write(
    device: DeviceCore,
    storage: Storage,
    start: int,
    host: NDArray[Any],
    is_operation: bool = False,  # noqa: FBT001, FBT002 - as above
) -> None:
    """Copy such an array to the bytes from `start` on; otherwise like `read`."""
    progress.act(_move, device, (storage, start, host, device._copy_from_host, is_operation))


def held_step() -> CallStep:
    """Return a step that never ends: the owner of a copy stream on which C copies."""
    step = CallStep()
    step.mark.__enter__()
    return step


def close(device: DeviceCore) -> None:
    """Destroy the streams; no thread is in a call. Does nothing on a lost context."""
    context, streams = device._context, device._copy_streams
    while streams:
        ours = streams[-1]
        if ours.used is not None and context.lost is None:
            with dropped(DeviceLostError):  # closing goes on
                contexts.synchronize(context, ours.stream)
        streams.pop()  # before its end: a Ctrl-C leaks the stream, and destroys none twice
        if ours.stream and context.lost is None:
            end_all(context, context.native.destroy_stream, [ours.stream])


def _move(step: CallStep, device: DeviceCore, request: _Request) -> None:
    storage, start, host, copy, is_operation = request
    context = device._context
    seen = storage.host_address if device._host_copies(storage) else None
    with timelines.lock:
        if device._closed and not is_operation:
            device._live()
        if context.lost is not None:
            raise fresh(context.lost)
        step.contexts = (context,)  # nothing is freed before the step is done
        ours = _take(device, step) if seen is None else None
    place = late_address(storage)
    view = None
    if storage.__class__ is Transient and not is_operation:
        view = view_of(storage)  # as long as it lives no dealloca gives the memory back
    step.calm = True  # no engine state in its hands: a signal handler may call anything
    array = array_address(host)
    place = (place if seen is None else seen) + start
    target, source = (array, place) if copy is device._copy_to_host else (place, array)
    size = host.nbytes
    if ours is not None:
        heap = device._heap
        # An imported array must stay pinned meanwhile.
        imported = heap.find_import(array, size) if heap.books.imports else None
        _copy(context, ours, copy, target, source, size, (host, storage, view, imported))
        return
    for done in range(0, size, PART):
        ctypes.memmove(target + done, source + done, min(PART, size - done))


def _take(device: DeviceCore, step: CallStep) -> CopyStream:
    """Return a copy stream that no call uses any more; under the lock."""
    for ours in device._copy_streams:
        owner = ours.owner
        if owner is None or owner is step or not owner.mark.locked():
            break
    else:
        ours = CopyStream()
        device._copy_streams.append(ours)
    ours.owner = step
    return ours


def _copy(
    context: DeviceContext,
    ours: CopyStream,
    copy: Callable[..., object],
    target: int,
    source: int,
    size: int,
    used: object,
) -> None:
    """Have the driver copy on a stream of ours."""
    native = context.native
    try:
        native.bind()
        if ours.used is not None:
            contexts.synchronize(context, ours.stream)  # the call was interrupted
        if not ours.stream:
            ours.stream = native.create_stream()
        ours.used = used
        done = 0
        while size - done > PART:
            native.copy_and_wait(copy, ours.stream, target + done, source + done, PART)
            done += PART
        native.copy_and_wait(copy, ours.stream, target + done, source + done, size - done)
    except own(DeviceLostError) as error:
        contexts.lose(context, error)
        raise
    except BaseException as error:
        if ours.used is not None:
            contexts.synchronize(context, ours.stream)  # the copy may go on
            ours.used = None
        if isinstance(error, Exception):
            raise as_failure(error, "it copied") from None
        raise
    ours.used = None
    ours.owner = None
