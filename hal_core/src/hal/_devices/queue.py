"""Queues: the operations that users submit (rules Q1 to Q6).

Every argument is checked here, once; the engine and the backends may assume
valid input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, SupportsFloat, SupportsIndex

import numpy as np

from hal._base import sync
from hal._buffers import alloca
from hal._buffers.buffer import Buffer
from hal._commands.bindings import Bindings
from hal._commands.command_buffer import CommandBuffer
from hal._commands.executions import check_execution, execute_parts, once
from hal._engine import external, timelines
from hal._engine.closing import close_queue
from hal._engine.device_context import DeviceContext
from hal._engine.fence import Waits
from hal._engine.payload import NOTHING
from hal._engine.progress import act_or_put_off
from hal._engine.steps import CallStep
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission
from hal._engine.submitted import call, wait_idle
from hal._engine.submitting import issue_ready, submit
from hal._engine.timestamps import Timer, Timestamp, check_timestamps, record
from hal._engine.wait_lists import Signals
from hal._kernels.dispatch import Grid, check_dispatch
from hal._transfers import files, peer_copies, transfers
from hal._transfers.collective_methods import Collectives, check_options
from hal._transfers.collectives import enter
from hal._transfers.files import File
from hal.arguments import as_function, as_seconds
from hal.errors import HalError
from hal.handlers import dropped
from hal.native import MemoryType

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hal._devices.device import Device
    from hal._kernels.executable import Kernel


class Queue(StreamQueue, Collectives[Buffer, Submission]):
    """A queue of operations for one native stream of a device.

    Every method that submits returns a `Submission` at once, whatever its
    waits (Q1), and takes keyword-only ``wait`` (timepoints, submissions and
    fences, all of which the operation waits for) and ``signal`` (timepoints
    that it signals when it has ended). Any thread may submit. An operation keeps
    what it uses alive until it has retired (Q5).

    An ordered queue runs its operations first-in first-out; in an unordered
    one only waits order them (Q2).

    Errors of every submitting method: `ArgumentTypeError` and
    `InvalidArgumentError` for arguments, `ClosedError` for a closed queue,
    device or buffer; nothing has changed then. Later failures fail the
    submission and its signals.
    """

    __slots__ = ("_device",)

    def __init__(
        self,
        device: Device,
        context: DeviceContext,
        name: str,
        *,
        ordered: bool,
        borrowed: tuple[int, object] | None = None,
    ) -> None:
        super().__init__(context, name, ordered=ordered, borrowed=borrowed)
        self._device = device

    @property
    def device(self) -> Device:
        """The device that the queue belongs to."""
        return self._device

    @property
    def closed(self) -> bool:
        """Whether the queue was closed."""
        return self._closed

    def __repr__(self) -> str:
        return f"<Queue {self._name!r} {'ordered' if self._ordered else 'unordered'}>"

    def fill(
        self,
        buffer: Buffer,
        value: object,
        *,
        offset: SupportsIndex = 0,
        size: SupportsIndex | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Write a pattern over `size` bytes of a buffer from `offset` on; None means the rest.

        `value` is 1, 2, 4, 8 or 16 bytes, a numpy scalar of the buffer's elements, or a number
        of Python's that is converted to its dtype. `size` is a multiple of the pattern's
        length, and so is `offset`, up to 4; zero bytes are a no-op that still
        orders.
        """
        payload = transfers.fill(self._device, buffer, value, offset, size)
        return submit(self, "fill", payload, wait, signal)

    def update(
        self,
        buffer: Buffer,
        data: object,
        *,
        offset: SupportsIndex = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Write the current bytes of `data` (bytes-like or an array), captured during the call."""
        payload, is_host = transfers.write(self._device, buffer, data, offset, "update")
        return submit(self, "update", payload, wait, signal, is_host)

    def copy(
        self,
        source: Buffer,
        target: Buffer,
        *,
        source_offset: SupportsIndex = 0,
        target_offset: SupportsIndex = 0,
        size: SupportsIndex | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Copy `size` bytes between buffers; None means all of the source's rest.

        The ranges must not overlap, unless they are the same, which is a no-op
        that still orders. One of the two buffers may belong to another device of
        the same driver, if this device has the feature ``"peer_access"``. Nothing has to
        be enabled, but before `Device.enable_access` the driver may stage the bytes
        through host memory.
        Closing the other device cancels an unissued copy, and waits for an issued one.
        Between pinned memories the copy is a host operation (see `call`) on a device
        without the feature ``"pageable_copies"``, whose driver would block.
        """
        device = self._device
        offsets = source_offset, target_offset
        if peer_copies.is_between_devices(device, source, target):
            payload, is_host = peer_copies.copy(device, source, target, offsets, size)
        else:
            payload, is_host = transfers.copy(device, source, target, offsets, size)
        return submit(self, "copy", payload, wait, signal, is_host)

    def write(
        self,
        buffer: Buffer,
        array: object,
        *,
        offset: SupportsIndex = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Copy a C-contiguous host array, or a `File`, into a buffer, from `offset` bytes on.

        An array of up to 64 KiB is captured during the call. A larger one is kept
        alive, and must stay unchanged until the operation has ended; use
        `update` for bytes that change at once.

        A file is opened and read when the operation runs, as a host operation
        (see `call`). An error then (no such file, a directory, too
        short, not allowed) fails the submission with an `OperationError` whose
        cause is the `OSError`. A file that is too short is noticed before
        anything is written, unless it is cut off meanwhile; after any other
        failure the content of the range is undefined.
        """
        if type(array) is File:
            payload = files.write(self._device, buffer, array, offset)
            return submit(self, "write", payload, wait, signal, True)  # noqa: FBT003
        payload, is_host = transfers.write(self._device, buffer, array, offset, "write")
        return submit(self, "write", payload, wait, signal, is_host)

    def read(
        self,
        buffer: Buffer,
        array: object,
        *,
        offset: SupportsIndex = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Copy a buffer, from `offset` bytes on, into a writable C-contiguous array or a `File`.

        The array's bytes are undefined until the operation has ended.

        A file is opened when the operation runs, as a host operation (see
        `call`), and created if it does not exist, readable and writable for
        everyone that the umask allows. Bytes outside of the range stay: the file is never
        truncated, and a gap before the range reads as zeros. An error
        then (not allowed, a directory, no space left) fails the submission
        with an `OperationError` whose cause is the `OSError`; the content of the range
        is undefined then. The operating system writes the bytes to the disk later.
        Zero bytes touch no file.
        """
        if type(array) is File:
            payload = files.read(self._device, buffer, array, offset)
            return submit(self, "read", payload, wait, signal, True)  # noqa: FBT003
        payload, is_host = transfers.read(self._device, buffer, array, offset)
        return submit(self, "read", payload, wait, signal, is_host)

    def dispatch(
        self,
        kernel: Kernel,
        *,
        grid: Grid,
        block: SupportsIndex | Sequence[SupportsIndex] | None = None,
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: SupportsIndex | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Launch a kernel over `grid` blocks of `block` threads, up to three numbers each.

        `args` are checked against the kernel's signature by name (C5) and
        copied. `shared_memory` is the dynamic shared memory in bytes. `block`
        and `shared_memory` are the kernel's own unless given. A zero in the
        grid is a no-op that still orders.

        A grid that is a buffer holds three 32-bit numbers, 12 bytes at a
        multiple of 4, which are read when the kernel is launched and have no
        limits other than the device's. If the device cannot read them
        (``"indirect_dispatch"`` is not in `Device.features`) the host does, in
        a host operation (see `call`).
        """
        payload, is_host = check_dispatch(self._device, kernel, grid, block, args, shared_memory)
        return submit(self, "dispatch", payload, wait, signal, is_host)

    def call(
        self,
        function: Callable[..., object],
        *arguments: object,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Call a host function, on one of hal's threads, as an operation.

        It may block, submit and wait; it must not wait for operations behind
        it in an ordered queue, for its own submission, or for their
        signals. At most 256 calls run at once, fewer if the system starts
        fewer threads. Beyond that, a call that blocks until a later one has run may
        block forever: return what it waits for instead.
        Its exceptions fail the submission and its signals. Raises
        `OperationError` if there is no thread, and none can be started.

        If it returns a timepoint, a submission, a fence, or a list or tuple of
        them, the operation ends when all of that is reached, and fails with
        the first failure among them, as if it had waited for them, but
        without holding a thread. A list that mixes them with other things fails it with
        `ArgumentTypeError`, and a wait for its own signals
        with `InvalidArgumentError` (S1). Any other result is dropped.
        """
        as_function(function, "call()")
        payload = (call, (function, *arguments), None)
        return submit(self, "call", payload, wait, signal, True)  # noqa: FBT003

    def execute(
        self,
        commands: CommandBuffer,
        *,
        bindings: Bindings | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Run a recorded command buffer; it may be submitted again at once (C1).

        `bindings` are what each of its slots stands for, in order or by index (C3): a buffer, a
        scalar argument of its kernels, or a grid of one to three numbers. Buffers are kept alive
        until the execution has retired, numbers are taken during the call; the sequence
        itself may change at once. One that has no memory yet, from `alloca`,
        must have it when the execution is issued. Also raises
        `InvalidArgumentError` for too few or too many, for a buffer that is
        smaller than the recording needs, for copies between overlapping bytes,
        with ``hazards="auto"`` for buffers that share written bytes, and, with
        `ArgumentTypeError`, for numbers that a parameter does not take; and
        `ClosedError` for a one-shot recording that was executed.
        """
        device = self._device
        parted = isinstance(commands, CommandBuffer) and commands._stages is not None
        if parted and commands._only is not self:
            return execute_parts(self, device, commands, bindings, wait, signal)
        payload, is_host = check_execution(device, commands, bindings)
        if commands._runs is None:
            return submit(self, "execute", payload, wait, signal, is_host)
        return once(commands, lambda: submit(self, "execute", payload, wait, signal, is_host))

    def alloca(
        self,
        size: SupportsIndex,
        *,
        dtype: DTypeLike = np.uint8,
        memory: str | MemoryType = MemoryType.DEVICE,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Buffer:
        """Allocate `size` bytes in the order of the queue; return the buffer at once.

        `Buffer.allocation` is the submission. The memory is reserved when that
        is issued. Without memory the alloca keeps its place in the queue until
        earlier work has given enough back; it fails with `OutOfMemoryError`
        when no running or issued work on the device can. Operations on
        other queues that use the buffer must wait for the allocation: one that
        is issued before it fails, and one that is issued later without a wait may
        overlap with an earlier use of the same memory. What waits for the allocation may
        also wait for this queue's next operation, if that uses the buffer. If the allocation
        fails (out of memory, a failed wait, cancelled), operations that use the buffer fail
        with the same error. `dtype` and `memory` as in `Device.allocate`; the content is
        undefined. Give the memory back with `dealloca`, or drop the buffer.
        Never blocks. Raises, already during the call, `OutOfMemoryError` for more than the
        ``memory_limit``, or than the device has of device memory.
        """
        return alloca.alloca(self._device, self, size, dtype, memory, wait, signal)

    def dealloca(self, buffer: Buffer, *, wait: Waits = (), signal: Signals = ()) -> Submission:
        """End the use of a buffer of `alloca`, on any queue of its device.

        The buffer and its parts are unusable from now on: they raise
        `ClosedError`. Operations submitted before go on. When this is issued
        the memory is given back: later operations of this queue may have it, and
        those that wait past this on others. If something that uses it is not ordered
        before this (on another queue, by a view, by another library), the
        memory comes back when all that has ended. A buffer whose allocation has
        failed may be given back like any other. On another queue this must wait
        for the allocation: issued before, it fails with `OperationError`.
        Raises `ClosedError` for a buffer that was given back or closed, and
        `InvalidArgumentError` for a part, a buffer that `alloca` did not make
        or of another device, one that a living recording uses directly, and
        if `signal` has the value that the buffer's own allocation waits for.
        """
        return alloca.dealloca(self._device, self, buffer, wait, signal)

    def barrier(self, *, wait: Waits = (), signal: Signals = ()) -> Submission:
        """Signal, after `wait` and after all work that the queue's order puts before it."""
        return submit(self, "barrier", NOTHING, wait, signal)

    def timestamp(self, *, wait: Waits = (), signal: Signals = ()) -> Timestamp:
        """Take the device's time when it gets here, after `wait` and the operations before.

        The result is a submission whose `Timestamp.seconds_since` tells
        how long after another one it was. Raises `UnimplementedError` on a
        device without the feature ``"timestamps"``.
        """
        check_timestamps(self._native, self._device._name)
        timer = Timer(self._device._timers)
        payload = (record, (timer._pool, timer), timer)
        made = submit(self, "timestamp", payload, wait, signal, False, Timestamp)  # noqa: FBT003
        assert isinstance(made, Timestamp)  # noqa: S101 - for the type checker
        made._timer = timer
        return made

    def wait_external(
        self, stream: object = None, *, event: object = None, wait: Waits = (), signal: Signals = ()
    ) -> Submission:
        """Make later operations wait for work of another library (docs/interop.md).

        They wait for everything that is on its `stream` during this call: an object with
        ``__cuda_stream__``, or the vendor's handle as an int. Or they wait for its
        `event`, an object with ``.handle`` or the vendor's handle, as it was
        recorded when this operation is issued, which is at once unless it has
        to wait; an event that was never recorded counts as complete. Both belong to this
        device. A stream must live until the call returns, an event's handle until the
        operation is issued; an event object is kept alive.

        Never waits on the host. Raises `UnimplementedError` on a device
        without the feature ``"external_streams"``, and `OperationError` if
        the driver refuses the handle.
        """
        self._device._live()
        payload = external.wait_payload(self._context, stream, event)
        return submit(self, "wait_external", payload, wait, signal)

    def notify_external(
        self,
        stream: object = None,
        *,
        event: object = None,
        wait: Waits = (),
        timeout: SupportsFloat | None = None,
    ) -> Submission:
        """Make work of another library wait for this queue (docs/interop.md).

        Work put on its `stream` from now on begins when everything
        submitted to this queue so far, and `wait`, has ended. Or its `event`
        is recorded behind that, for others to wait for. Both as in
        `wait_external`. In an unordered queue it waits only for `wait` and for what
        was issued so far.

        No stream can wait for operations that are not issued, so this blocks until they
        are. That takes no time, unless they wait for a value that nobody has promised, for
        a host operation or for room on the native stream. Raises
        `DeadlineExceededError` after `timeout` seconds (0: never blocks), with
        no order established, and the failure of `wait`; the other errors are
        those of `wait_external`. Returns the submission that it waited for.
        """
        return external.notify(self, stream, event, wait, timeout)

    def _gather(
        self,
        kind: str,
        *arguments: object,
        wait: Waits = (),
        signal: Signals = (),
        **unknown: object,
    ) -> Submission:
        check_options(kind, unknown, "wait= and signal=")
        return enter(self, self._device, wait, signal, kind, *arguments)

    @property
    def stream_handle(self) -> int:
        """The vendor's handle of the native stream: a ``cudaStream_t``, a ``hipStream_t``.

        Foreign work on it is ordered with the operations issued here; the queue
        neither knows of it nor waits for it when it is closed, which ends the
        stream. Raises `ClosedError` then, and `UnimplementedError` on a device
        without the feature ``"external_streams"``.
        """
        return external.stream_handle(self)

    @property
    def __cuda_stream__(self) -> Callable[[], tuple[int, int]]:
        """The `stream_handle` in CUDA libraries' form; raises AttributeError elsewhere."""
        return external.cuda_stream(self)

    def flush(self) -> None:
        """Issue ready operations now; submissions make progress without it. Never blocks."""
        act_or_put_off(issue_ready, self, None)

    def wait_idle(self, timeout: SupportsFloat | None = None) -> None:
        """Block until every operation submitted so far has ended, successfully or not.

        Blocks for at most `timeout` seconds; None means forever. Raises
        `DeadlineExceededError`, and not the operations' own errors.
        """
        wait_idle([self], None if timeout is None else as_seconds(timeout))

    def close(self, timeout: SupportsFloat = 10.0) -> tuple[str, ...]:
        """Cancel what is not issued (`Submission.cancel`), wait for the rest, free the stream (Q6).

        If all this takes more than `timeout` seconds the device is marked lost. Returns a line for
        every operation that had to be abandoned; empty if all went well. May be called twice, and
        from ``with``: while another thread closes the queue it waits for that, at most `timeout`
        seconds, and returns a line if that was too short.
        """
        return close_queue(self, sync.monotonic() + as_seconds(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Queues:
    """The three queues that every device has, each with a stream of its own (Q3)."""

    __slots__ = ("compute", "download", "upload")

    def __init__(self, device: Device, context: DeviceContext) -> None:
        made: list[Queue] = []
        try:
            for name in ("compute", "upload", "download"):
                made.append(Queue(device, context, f"{device._name}/{name}", ordered=True))  # noqa: PERF401 - those made are to be known
        except BaseException:
            for queue in made:
                with dropped(HalError):
                    context.native.destroy_stream(queue._stream)
            raise
        self.compute: Final = made[0]
        self.upload: Final = made[1]
        self.download: Final = made[2]

    def __repr__(self) -> str:
        return f"<Queues {self.compute.name}, {self.upload.name}, {self.download.name}>"


def add_queue(
    step: CallStep, device: Device, given: tuple[str | None, bool, tuple[int, object] | None]
) -> Queue:
    """Make a queue of a device, whose close waits for the native call."""
    name, ordered, borrowed = given
    context = device._context
    with timelines.lock:
        device._live()
        step.contexts = (context,)
        device._queue_count += 1
        name = name or f"queue{device._queue_count}"
    step.calm = True  # no engine state in its hands: a signal handler may call anything
    title = f"{device._name}/{name}"
    queue = Queue(device, context, title, ordered=ordered, borrowed=borrowed)
    # The device may have been closed while the native stream was made.
    with timelines.lock:
        is_late = device._closed
        if not is_late:
            context.queues = [*context.queues, queue]
    if is_late:
        queue.close()
        device._live()
    return queue
