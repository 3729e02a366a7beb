"""Define queues: the operations that users submit (rules Q1 to Q6).

Every argument is checked here, once; the engine and the backends may assume
valid input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, SupportsFloat, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from hal._base import sync
from hal._buffers import alloca as _alloca
from hal._buffers.buffer import Buffer
from hal._commands.command_buffer import CommandBuffer
from hal._commands.executions import check_execution
from hal._commands.slots import Bindings
from hal._engine import external
from hal._engine.context import Context, wait_idle
from hal._engine.fence import Waits
from hal._engine.plan import NOTHING
from hal._engine.progress import act, put_off
from hal._engine.steps import Step
from hal._engine.stream import StreamQueue
from hal._engine.submission import Submission
from hal._engine.submitted import call
from hal._engine.timelines import ISSUE, Timepoint
from hal._engine.timestamps import Timer, Timestamp, check_timestamps, record
from hal._engine.wait_lists import check_lists
from hal._kernels.dispatch import Grid, check_dispatch
from hal._transfers import files, peer_copies, transfers
from hal._transfers.files import File
from hal.arguments import as_function, as_seconds
from hal.errors import HalError, ReentrantCallError
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._devices.device import Device
    from hal._kernels.executable import Kernel

__all__ = ["Queue", "Queues"]

Signals: TypeAlias = Iterable[Timepoint] | Timepoint


class Queue(StreamQueue):
    """Submit operations to one native stream of a device.

    Every method that submits returns a `Submission` at once, whatever its
    waits (Q1), and takes keyword-only ``wait`` (timepoints, submissions and
    fences, all of which the operation waits for) and ``signal`` (timepoints
    that it brings about when it has ended). Any thread may submit. What an
    operation uses is kept alive until it has retired (Q5).

    An ordered queue runs its operations first-in first-out; in an unordered
    one only waits order them (Q2).

    Errors of every submitting method: `ArgumentTypeError` and
    `InvalidArgumentError` for arguments, `ClosedError` for a closed queue,
    device or buffer; nothing has changed then. What fails later fails the
    submission and its signals.
    """

    __slots__ = ("_device",)

    def __init__(
        self,
        device: Device,
        context: Context,
        name: str,
        *,
        ordered: bool,
        borrowed: tuple[int, object] | None = None,
    ) -> None:
        super().__init__(context, name, ordered=ordered, borrowed=borrowed)
        self._device = device

    @property
    def device(self) -> Device:
        """Return the device that the queue belongs to."""
        return self._device

    @property
    def closed(self) -> bool:
        """Return whether the queue was closed."""
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
        """Write a pattern over `size` bytes of a buffer from `offset` on; None is the rest.

        `value` is 1, 2, 4, 8 or 16 bytes, a numpy scalar, or a number that is
        converted to the buffer's dtype. `size` is a multiple of the pattern's
        length, and so is `offset`, up to 4; zero bytes are a no-op that still
        orders.
        """
        payload = transfers.fill(self._device, buffer, value, offset, size)
        waits, signals = check_lists(wait, signal)
        return self._submit("fill", payload, waits, signals)

    def update(
        self,
        buffer: Buffer,
        data: object,
        *,
        offset: SupportsIndex = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Write the bytes that `data` (bytes-like or an array) holds now, during the call."""
        payload, is_host = transfers.update(self._device, buffer, data, offset)
        waits, signals = check_lists(wait, signal)
        return self._submit("update", payload, waits, signals, is_host)

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
        """Copy `size` bytes between buffers; None is all of the source's rest.

        The ranges must not overlap, unless they are the same, which is a no-op
        that still orders. One of the two may be another device's of
        the same driver, where this one has the feature ``"peer_access"``;
        nothing has to be enabled for that, but until `Device.enable_access` the
        driver may stage it through the host's memory. Closing that device cancels the
        copy, if it was not issued, and waits for it otherwise. From pinned to
        pinned memory it is a host operation (see `call`) on a device without
        the feature ``"pageable_copies"``, which would block for it.
        """
        device = self._device
        offsets = source_offset, target_offset
        if peer_copies.is_between_devices(device, source, target):
            payload, is_host = peer_copies.copy(device, source, target, offsets, size)
        else:
            payload, is_host = transfers.copy(device, source, target, offsets, size)
        waits, signals = check_lists(wait, signal)
        return self._submit("copy", payload, waits, signals, is_host)

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

        An array of up to 64 KiB is taken during the call. A larger one is kept
        alive, and must stay unchanged until the operation has ended; use
        `update` for bytes that change at once.

        A file is opened and read when the operation runs, as a host operation
        (see `call`). What goes wrong then (no such file, a directory, too
        short, not allowed) fails the submission with an `OperationError` whose
        cause is the `OSError`. A file that is too short is noticed before
        anything is written, unless it is cut off meanwhile; after any other
        failure the range holds anything.
        """
        if type(array) is File:
            payload = files.write(self._device, buffer, array, offset)
            waits, signals = check_lists(wait, signal)
            return self._submit("write", payload, waits, signals, True)  # noqa: FBT003
        payload, is_host = transfers.write(self._device, buffer, array, offset)
        waits, signals = check_lists(wait, signal)
        return self._submit("write", payload, waits, signals, is_host)

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
        `call`), and made where there is none, readable and writable for all
        that the umask lets. Its bytes outside of the range stay: it is never
        cut off, and a gap before the range reads as zeros. What goes wrong
        then (not allowed, a directory, no space left) fails the submission
        with an `OperationError` whose cause is the `OSError`; the range holds
        anything then. The operating system writes the bytes to the disk later.
        Zero bytes touch no file.
        """
        if type(array) is File:
            payload = files.read(self._device, buffer, array, offset)
            waits, signals = check_lists(wait, signal)
            return self._submit("read", payload, waits, signals, True)  # noqa: FBT003
        payload, is_host = transfers.read(self._device, buffer, array, offset)
        waits, signals = check_lists(wait, signal)
        return self._submit("read", payload, waits, signals, is_host)

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
        other limits than the device's. Where the device cannot do that
        (``"indirect_dispatch"`` is not in `Device.features`) the host does, in
        a host operation (see `call`).
        """
        payload, is_host = check_dispatch(self._device, kernel, grid, block, args, shared_memory)
        waits, signals = check_lists(wait, signal)
        return self._submit("dispatch", payload, waits, signals, is_host)

    def call(
        self,
        function: Callable[..., object],
        *arguments: object,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Call a host function, on a thread of ours, in the place of an operation.

        It may block, submit and wait; it must not wait for what stands behind
        it in an ordered queue, for its own submission, or for what these
        bring about. 256 calls run at once at the most, or as many as the
        system starts threads for: beyond that one that blocks until a later
        one has run blocks for good. Return what is to be waited for instead.
        What it raises fails the submission and its signals. Raises
        `OperationError` if there is no thread, and none can be started.

        If it returns a timepoint, a submission, a fence, or a list or tuple of
        them, the operation ends when all of that is reached, and fails with
        the first failure among them, as if it had waited there; no thread is
        held meanwhile. A list that mixes them with other things fails it with
        `ArgumentTypeError`, and something that its own signals would have to
        bring about with `InvalidArgumentError` (S1). Anything else is dropped.
        """
        as_function(function, "call()")
        waits, signals = check_lists(wait, signal)
        payload = (call, (function, *arguments), None)
        return self._submit("call", payload, waits, signals, True)  # noqa: FBT003

    def execute(
        self,
        commands: CommandBuffer,
        *,
        bindings: Bindings | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Run a recorded command buffer; it may be submitted again at once (C1).

        `bindings` are a buffer for each of its slots, in order or by index
        (C3). They are kept alive until the execution has retired; the sequence
        itself may change at once. One that has no memory yet, from `alloca`,
        must have it when the execution is issued. Also raises
        `InvalidArgumentError` for too few or too many, for a buffer that is
        smaller than the recording needs, for copies between overlapping bytes,
        and with ``hazards="auto"`` for buffers that share written bytes; and
        `ClosedError` for a one-shot recording that was executed.
        """
        payload, is_host = check_execution(self._device, commands, bindings)
        waits, signals = check_lists(wait, signal)
        if commands._runs is None:
            return self._submit("execute", payload, waits, signals, is_host)
        commands._take_run()
        try:
            return self._submit("execute", payload, waits, signals, is_host)
        except HalError:
            commands._give_back_run()  # refused: nothing has changed
            raise

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
        when nothing that runs or is issued on the device can. What uses the
        buffer on another queue must wait for the allocation: an operation that
        is issued before fails, and one that is only not ordered behind it may
        meet an earlier use of the same memory. If the allocation fails (out of
        memory, a failed wait, cancelled), what uses the buffer fails with the
        same error. `dtype` and `memory` as in `Device.allocate`; the content is
        undefined. Give the memory back with `dealloca`, or drop the buffer.
        Never blocks. Raises, here already, `OutOfMemoryError` for more than the
        ``memory_limit``, or than the device has of device memory.
        """
        return _alloca.alloca(self._device, self, size, dtype, memory, *check_lists(wait, signal))

    def dealloca(self, buffer: Buffer, *, wait: Waits = (), signal: Signals = ()) -> Submission:
        """End the use of a buffer of `alloca`, on any queue of its device.

        The buffer and its parts are unusable from now on: they raise
        `ClosedError`. What was submitted before goes on. When this is issued
        the memory is given back: what follows in this queue may have it, and
        what waits past this on others. If something that uses it is not ordered
        before this (on another queue, by a view, by another library), the
        memory comes back when all that has ended. A buffer whose allocation has
        failed may be given back as any other. On another queue this must wait
        for the allocation: issued before, it fails with `OperationError`.
        Raises `ClosedError` for a buffer that was given back or closed, and
        `InvalidArgumentError` for a part, a buffer that `alloca` did not make
        or of another device, one that a living recording uses directly, and
        where `signal` has the value that the buffer's own allocation waits for.
        """
        return _alloca.dealloca(self._device, self, buffer, *check_lists(wait, signal))

    def barrier(self, *, wait: Waits = (), signal: Signals = ()) -> Submission:
        """Do nothing, after `wait` and what the queue's order demands, and signal."""
        waits, signals = check_lists(wait, signal)
        return self._submit("barrier", NOTHING, waits, signals)

    def timestamp(self, *, wait: Waits = (), signal: Signals = ()) -> Timestamp:
        """Take the device's time when it gets here, after `wait` and the operations before.

        The result is a submission, and says with `Timestamp.seconds_since`
        how long after another one it was. Raises `UnimplementedError` on a
        device without the feature ``"timestamps"``.
        """
        check_timestamps(self._native, self._device._name)
        timer = Timer(self._device._timers)
        payload = (record, (timer._pool, timer), timer)
        waits, signals = check_lists(wait, signal)
        made = self._submit("timestamp", payload, waits, signals, False, Timestamp)  # noqa: FBT003
        assert isinstance(made, Timestamp)  # noqa: S101 - for the type checker
        made._timer = timer
        return made

    def wait_external(
        self,
        stream: object = None,
        *,
        event: object = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> Submission:
        """Let what follows wait for work of another library (docs/interop.md).

        For all that is on its `stream` now, during this call: an object with
        ``__cuda_stream__``, or the vendor's handle as an int. Or for its
        `event`, an object with ``.handle`` or the vendor's handle, as it was
        recorded when this operation is issued, which is at once unless it has
        to wait; an event that was never recorded counts as complete. Both are
        of this device, and stay alive until the call has returned (a stream)
        or the operation was issued (an event's handle; an object is kept).

        Never waits on the host. Raises `UnimplementedError` on a device
        without the feature ``"external_streams"``, and `OperationError` where
        the driver refuses the handle.
        """
        waits, signals = check_lists(wait, signal)
        self._device._live()
        payload = external.wait_payload(self._context, stream, event)
        return self._submit("wait_external", payload, waits, signals)

    def notify_external(
        self,
        stream: object = None,
        *,
        event: object = None,
        wait: Waits = (),
        timeout: SupportsFloat | None = None,
    ) -> Submission:
        """Let work of another library wait for this queue (docs/interop.md).

        What is put on its `stream` from now on begins when all that was
        submitted to this queue so far, and `wait`, has ended. Or its `event`
        is recorded behind that, for others to wait for. Both as in
        `wait_external`. In an unordered queue only `wait`, and what was issued
        so far, is waited for.

        No stream can wait for what was not issued, so this blocks until it
        is: at once, unless it waits for a value that nobody has promised, for
        a host operation or for room on the native stream. Raises
        `DeadlineExceededError` after `timeout` seconds (0: never blocks), with
        no order established, and the failure of `wait`; the other errors are
        those of `wait_external`. Returns the submission that was waited for.
        """
        waits, _ = check_lists(wait, ())
        return external.notify(self, stream, event, waits, timeout)

    @property
    def stream_handle(self) -> int:
        """Return the vendor's handle of the native stream: a ``cudaStream_t``, a ``hipStream_t``.

        What others put on it is ordered with what was issued here; the queue
        does not know of it, nor waits for it when it is closed, which ends the
        stream. Raises `ClosedError` then, and `UnimplementedError` on a device
        without the feature ``"external_streams"``.
        """
        return external.stream_handle(self)

    @property
    def __cuda_stream__(self) -> Callable[[], tuple[int, int]]:
        """Return how CUDA libraries take `stream_handle`; an AttributeError elsewhere."""
        return external.cuda_stream(self)

    def flush(self) -> None:
        """Issue what is ready now; submissions make progress without it. Never blocks."""
        try:
            act(_flush, self, None)
        except ReentrantCallError:  # called by a signal handler or a finaliser (O3)
            put_off(_flush, self, None)

    def wait_idle(self, timeout: SupportsFloat | None = None) -> None:
        """Block until every operation submitted so far has ended, well or not.

        For `timeout` seconds at most; None is for ever. Raises
        `DeadlineExceededError`; the operations' own errors are theirs.
        """
        wait_idle([self], None if timeout is None else as_seconds(timeout))

    def close(self, timeout: SupportsFloat = 10.0) -> tuple[str, ...]:
        """Cancel what is not issued, wait for what is, and give the stream back (Q6).

        A recording that is issued in parts (Q1) is cancelled behind the last of those
        that are: what it writes is undefined then. If all takes more than `timeout`
        seconds the device is marked lost. Returns a line for every operation that had
        to be abandoned, none if all went well. May be called twice, and from ``with``:
        while another thread closes the queue it waits for that, `timeout` seconds at
        most, and returns a line if that was too short.
        """
        return self._context.close_queue(self, sync.monotonic() + as_seconds(timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _flush(step: Step, queue: Queue, _: None) -> None:
    step.work.append((ISSUE, queue))


class Queues:
    """Hold the three queues that every device has, each with a stream of its own (Q3)."""

    __slots__ = ("compute", "download", "upload")

    def __init__(self, device: Device, context: Context) -> None:
        made: list[Queue] = []
        try:
            for name in ("compute", "upload", "download"):
                made.append(Queue(device, context, f"{device._name}/{name}", ordered=True))  # noqa: PERF401 - those made are to be known
        except BaseException:
            for queue in made:
                with contextlib.suppress(HalError):
                    context.native.destroy_stream(queue._stream)
            raise
        self.compute: Final = made[0]
        self.upload: Final = made[1]
        self.download: Final = made[2]

    def __repr__(self) -> str:
        return f"<Queues {self.compute.name}, {self.upload.name}, {self.download.name}>"
