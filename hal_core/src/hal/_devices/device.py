"""Devices: opened by users, and makers of everything else."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self, SupportsIndex, TypeAlias, overload
from weakref import WeakKeyDictionary

import numpy as np

from hal._base import sync
from hal._base.checks import check_index
from hal._base.failures import fresh
from hal._buffers import sharing
from hal._buffers.buffer import Buffer
from hal._buffers.imports import import_tensor
from hal._commands.command_buffer import CommandBuffer
from hal._commands.slots import SlotSpecs
from hal._devices import lifecycle
from hal._devices.queue import Queue, Queues, add_queue
from hal._engine import contexts, external, progress, steps
from hal._engine.closing import NAP_SECONDS, trim_events
from hal._engine.device_context import DeviceContext
from hal._engine.semaphore import Semaphore
from hal._engine.shared_semaphore import create_semaphore, open_semaphore
from hal._engine.steps import Closer
from hal._engine.submitted import wait_idle
from hal._engine.timestamps import TimerPool
from hal._kernels.executable import Executable, load_executable
from hal._memory import blocking, peers
from hal._memory.core import DeviceCore
from hal._memory.extent import check_allocation, shape_of
from hal._memory.reaper import INSTANCE
from hal._memory.report import MemoryHeap, MemoryQuery, MemoryStatistics, describe_heaps, query
from hal._memory.settings import MemorySettings
from hal._memory.usage import BufferUsage, check_memory, check_rights
from hal._programs.compile import compile_for
from hal._programs.images import check_signature, read_image
from hal._programs.program import MAGIC, Program
from hal._programs.requests import Includes, Options, Source, TraceOption, check_options, prepare
from hal._programs.signature import Signature
from hal._transfers.patterns import pattern_of
from hal.arguments import (
    as_array,
    as_dtype,
    as_flag,
    as_function,
    as_instance,
    as_int,
    as_items,
    as_mapping,
    as_name,
    as_seconds,
)
from hal.errors import HalError, InvalidArgumentError, UnimplementedError
from hal.handlers import own
from hal.native import MemoryType, NativeDevice

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hal._engine.memory_events import MemoryEvents
    from hal.tickets import BufferTicket, SemaphoreTicket


Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""The length of each axis, or of the only one."""

_AXES: Final = 32  # that every version of numpy takes
_FILLED: Final = 16 << 20  # bytes of an array that are copied to the device at once
_TRIM_SECONDS: Final = 1.0
"""How long `Device.trim` waits for a moment in which no thread asks an event."""


class Device(DeviceCore):
    """An open device: its queues, memory and kernels.

    Made by `create_device`. Any thread may use it. Each call of
    `create_device` opens another one, with queues and failures of its own,
    also on the same hardware.
    """

    __slots__ = ("_closer", "_loaded", "_loading", "_queue_count", "_queues", "_timers")

    def __init__(
        self,
        backend: str,
        native: NativeDevice,
        max_in_flight: int | None,
        settings: MemorySettings | None = None,
        own_name: str = "",
        memory_events: MemoryEvents | None = None,
    ) -> None:
        progress.start()  # waiters need the progress thread
        plain_name = f"{backend}:{native.info.index}" + (f"/{own_name}" if own_name else "")
        name = lifecycle.take_name(self, plain_name)
        context = DeviceContext(native, name, max_in_flight, memory_events)
        super().__init__(backend, plain_name, name, context, settings or MemorySettings())
        self._closer: Closer | None = None  # the call that closes it
        self._queue_count = 0
        self._timers = TimerPool(context)
        # What `load` has loaded for each living program, and a lock so that it is done once
        self._loaded: WeakKeyDictionary[Program, Executable] = WeakKeyDictionary()
        self._loading = sync.OwnedLock()
        self._queues = Queues(self, self._context)
        self._context.queues = [self._queues.compute, self._queues.upload, self._queues.download]
        lifecycle.add(self)  # last: until then its maker closes the native device

    @property
    def queue(self) -> Queue:
        """The compute queue."""
        return self._queues.compute

    @property
    def queues(self) -> Queues:
        """The queues ``compute``, ``upload`` and ``download``."""
        return self._queues

    @property
    def closed(self) -> bool:
        """Whether the device was closed."""
        return self._closed

    @property
    def lost(self) -> bool:
        """Whether the native context is gone; every submission fails then."""
        return self._context.lost is not None

    @property
    def loss(self) -> HalError | None:
        """Why it is lost, as a fresh exception; None as long as it is not."""
        error = self._context.lost
        return None if error is None else fresh(error)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "lost" if self.lost else "open"
        return f"<Device {self._name} {self.info.name!r} {state}>"

    def __enter__(self) -> Self:
        self._live()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_queue(
        self, *, name: str | None = None, ordered: bool = True, stream: object = None
    ) -> Queue:
        """Create a queue with a native stream of its own; ``ordered=False`` as in Q2.

        With `stream`, the queue uses a stream of another library, on this device: an
        object with ``__cuda_stream__``, which is kept alive, or the vendor's
        handle as an int, whose stream must live until the queue is closed.
        Operations that are issued and the library's own work run in the order
        in which they reached the stream. Closing the queue waits for its operations
        and leaves the stream as it is. Raises `UnimplementedError` then on a
        device without the feature ``"external_streams"``.
        """
        self._live()
        if name is not None:
            name = as_name(name, "a queue")
        ordered = as_flag(ordered, "create_queue: ordered")
        borrowed = None
        if stream is not None:
            external.check_features(self._context, "create_queue")
            borrowed = (external.check_stream(self._context, stream, "create_queue"), stream)
        return progress.act(add_queue, self, (name, ordered, borrowed))

    def create_semaphore(
        self, initial: int = 0, *, name: str | None = None, shareable: bool = False
    ) -> Semaphore:
        """Create a semaphore, as `hal.create_semaphore` does: it belongs to no device (S3)."""
        return create_semaphore(initial, name=name, shareable=shareable)

    def allocate(
        self,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        memory: str | MemoryType = MemoryType.DEVICE,
        usage: BufferUsage = BufferUsage.ALL,
        access: str = "all",
        shareable: bool = False,
    ) -> Buffer:
        """Allocate `size` bytes, whose content is undefined; may block.

        `dtype` is the element type for `Buffer.numpy` and fills; `size` is
        a multiple of its item size. `memory` is ``"device"``, ``"host"``
        (pinned, reached by the device) or ``"managed"`` (M1). `usage` and
        `access` (``"all"``, ``"read"`` or ``"write"``) say what the buffer may be
        used for: anything else is refused when it is submitted, recorded or
        mapped. Kernels may use any buffer with ``DISPATCH``. With `shareable`, other processes
        can open it (`Buffer.share`): memory outside the cache, ``"device"`` where the feature
        ``"memory_sharing"`` is, else `UnimplementedError`, or ``"host"``.

        The memory comes from the cache if it has a block of the size, without
        a native call. Raises `OutOfMemoryError` after finished work was
        retired and all unused memory given back.
        """
        self._live()
        length, index, element, shape = check_allocation(size, dtype, memory, "allocate")
        denied = check_rights(usage, access)
        if as_flag(shareable, "allocate: shareable"):
            storage = sharing.allocate_shareable(self, length or 1, index)
        else:
            storage = self._heap.allocate(length or 1, index)
        return Buffer(self, storage, 0, length, element, shape, denied)

    @overload
    def open(self, ticket: BufferTicket) -> Buffer: ...

    @overload
    def open(self, ticket: SemaphoreTicket) -> Semaphore: ...

    def open(self, ticket: BufferTicket | SemaphoreTicket) -> Buffer | Semaphore:
        """Open a buffer or a semaphore of another process, or of this one; may block.

        `ticket` is what its `share` returned, in a process of the same user on this host. A buffer
        is the same memory: what each process does with it is ordered by a shared semaphore.
        Memory of the host is ``"host"`` memory on a GPU. Raises `ArgumentTypeError` for anything
        else, `InvalidArgumentError` for a ticket of another host, boot or user, `ExchangeError`
        for memory of another device, `ClosedError` if it was closed there or that process has
        ended, `OutOfMemoryError` if this one may open no more files, and what `import_array`
        raises.
        """
        self._live()
        from hal.tickets import BufferTicket, SemaphoreTicket  # noqa: PLC0415 - of processes that share

        if isinstance(ticket, SemaphoreTicket):
            return open_semaphore(ticket)
        as_instance(ticket, BufferTicket, "open takes what share() returned")
        storage, dtype = sharing.open_shared(self, ticket)
        return Buffer(self, storage, ticket.offset, ticket.size, dtype, ticket.shape, ticket.denied)

    def import_array(self, array: object, *, release: Callable[[], object] | None = None) -> Buffer:
        """Return a buffer over the memory of a C-contiguous host array, without a copy.

        The array is pinned for the device and kept alive until the last
        unretired use, buffer and view is gone, or the device is closed; then
        `release`, if given, is called once, on a thread of ours. A read-only
        array gives a buffer of access ``"read"``. May block. Raises
        `UnimplementedError` on a device without the feature ``"host_import"``,
        `InvalidArgumentError` for an array with gaps or without bytes, and
        `OperationError` if the driver refuses the memory.
        """
        self._live()
        if release is not None:
            as_function(release, "import_array: release")
        array = as_instance(array, np.ndarray, "import_array takes a numpy array")
        shape_of(array.nbytes, array.dtype, "import_array")
        if not array.flags.c_contiguous or not array.nbytes:
            raise InvalidArgumentError(
                f"import_array takes a C-contiguous array of at least one byte; this one has "
                f"{array.nbytes} bytes and strides {array.strides}"
            )
        if "host_import" not in self._native.features:
            raise UnimplementedError(
                f"{self._name} cannot use host memory in place; copy the array with "
                "device.upload(), or allocate memory='host' and fill its map()"
            )
        writable = array.flags.writeable
        storage = self._heap.import_host(
            array.ctypes.data, array.nbytes, array, release, writable=writable
        )
        denied = check_rights(BufferUsage.ALL, "all" if writable else "read")
        return Buffer(self, storage, 0, array.nbytes, array.dtype, array.shape, denied)

    def empty(self, shape: Shape, dtype: DTypeLike) -> Buffer:
        """Allocate an array of device memory, as `allocate` does; its content is undefined."""
        self._live()
        kind = as_dtype(dtype)
        rule = "a shape is an int or a sequence of ints"
        is_one = hasattr(type(shape), "__index__")
        lengths = (shape,) if is_one else as_items(shape, rule, ordered=True)
        axes = tuple([as_int(each, rule, 0) for each in lengths])
        size = math.prod(axes) * kind.itemsize
        shape_of(size, kind, "the array")
        if not size or len(axes) > _AXES:
            try:
                np.broadcast_to(np.zeros((), kind), axes)
            except own(ValueError) as error:
                message = f"numpy has no such array: {error}"
                raise InvalidArgumentError(message) from error
        return Buffer(self, self._heap.allocate(size or 1, 0), 0, size, kind, axes)

    def zeros(self, shape: Shape, dtype: DTypeLike) -> Buffer:
        """Allocate an array of zeros, as `full` does, also of what a fill has no number for."""
        return self._filled(shape, (0, 1), dtype)

    def full(self, shape: Shape, value: object, dtype: DTypeLike) -> Buffer:
        """Allocate an array that holds `value` (see `Queue.fill`); blocks as `upload` does."""
        return self._filled(shape, pattern_of(value, as_dtype(dtype)), dtype)

    def _filled(self, shape: Shape, repeated: tuple[int, int], dtype: DTypeLike) -> Buffer:
        """Return a new array that holds a pattern, which is a number, and its width in bytes."""
        number, width = repeated
        buffer = self.empty(shape, dtype)
        if buffer.size % width:
            message = f"full: the value has {width} bytes, and the array {buffer.size}, no multiple"
            raise InvalidArgumentError(message)
        pattern = np.frombuffer(number.to_bytes(width, "little"), np.uint8)
        host = np.tile(pattern, min(buffer.size, _FILLED) // width)
        for offset in range(0, buffer.size, _FILLED):
            blocking.write(self, buffer._live(), offset, host[: buffer.size - offset])
        return buffer

    def upload(self, array: object) -> Buffer:
        """Copy a host array, or an array-like object, to a new buffer of its dtype and shape.

        Blocks until the buffer is ready on every queue: the calling thread makes
        the copy, and waits for no queue. Ctrl-C ends it. Raises what `allocate` and the
        driver's copy raise, and `ArgumentTypeError` for what numpy makes no array of.
        """
        self._live()
        given = as_array(array, "upload")
        shape_of(given.nbytes, given.dtype, "upload")
        host = np.ascontiguousarray(given)
        storage = self._heap.allocate(host.nbytes or 1, 0)
        buffer = Buffer(self, storage, 0, host.nbytes, host.dtype, given.shape)
        if host.nbytes:
            blocking.write(self, storage, 0, host)
        return buffer

    def compile(
        self,
        source: Source,
        *,
        filename: str = "kernel.cpp",
        defines: Mapping[str, object] | None = None,
        options: Options = (),
        include_directories: Includes = (),
        trace: TraceOption = None,
        omitted_output: str = "print",
    ) -> Executable:
        """Compile portable kernel source (docs/kernels.md) for this device and load it; blocks.

        `filename` is the source's name in errors; `defines` are macros;
        `options` go to the backend's compiler unchanged. Several sources,
        by name, are compiled side by side and linked, as `hal.compile` does
        with the device as target.
        `trace` says whether ``HAL_TRACE`` logs, or for which threads, and `omitted_output`
        what becomes of output that no `Output` takes, as for `hal.compile`. Loading
        may wait for the device, as in `load`. Raises `CompilationError`, with
        the user's lines and the compiler's log.
        """
        self._live()
        given = check_options(options, [self._backend], only=False)[self._backend]
        requests = prepare(source, filename, defines, include_directories, trace, omitted_output)
        image = compile_for(self, requests, given)
        return load_executable(self, image.image, None, image.kernels)

    def load(
        self,
        image: Program | bytes | str | os.PathLike[str],
        *,
        signatures: Mapping[str, str | Signature] | None = None,
    ) -> Executable:
        """Load a program or an image, the latter from bytes or from a file; blocks.

        On a GPU this may wait until all work on the device has ended, including that of
        other queues and libraries: CUDA loads code that way, and unloads it that way
        some time after the last use of the executable. So load what you need
        before you submit work, never while a kernel runs that waits for what
        this thread does next, and keep the executable as long as you use it.

        Of a program, also as the bytes or the file that it was saved to, the
        image that suits the device best is loaded. A `Program` is loaded once:
        while it lives, all calls return the same executable, which has one
        set of variables. Every load of anything else has variables of its own.

        `signatures` gives the parameters of kernels, by name, as in
        ``{"saxpy": "(f32 a, const f32* x, f32* y, i32 n)"}``; the image gives those
        that it omits. A kernel with neither takes only numpy
        scalars and buffers of its parameters' sizes (C5). Raises
        `FileError` for a file that cannot be read, `InvalidArgumentError` for an
        empty one, one of more than 1 GiB, a device or a pipe in its place, and
        for a signature that contradicts the image,
        `OperationError` for an image of another kind of device and a program
        that has none for this kind, and `NotFoundError` for a kernel that is
        not in it.
        """
        self._live()
        parsed = None
        if signatures is not None:
            signatures = as_mapping(signatures, "load: signatures is a mapping")
            parsed = {name: check_signature(name, each) for name, each in signatures.items()}
        if isinstance(image, Program):
            return self._load_program(image, parsed)
        content, _ = read_image(image, "load")
        if content.startswith(MAGIC):
            return self._load_program(Program.from_bytes(content), parsed)
        return load_executable(self, content, parsed)

    def _load_program(
        self, program: Program, signatures: Mapping[str, Signature] | None
    ) -> Executable:
        """Load the best image of a program, unless that was done."""
        best = program.image_for(self)
        if signatures is not None:
            return load_executable(self, best.image, signatures, best.kernels)
        with steps.unheld(self._loading):
            loaded = self._loaded.get(program)
            if loaded is None:
                loaded = load_executable(self, best.image, None, best.kernels)
                self._loaded[program] = loaded
        return loaded

    def from_dlpack(self, tensor: object, *, copy: bool | None = None) -> Buffer:
        """Return a buffer over the memory of another library's tensor (docs/interop.md).

        Contiguous tensors in this device's own memory (the host's, on the CPU
        backend) are shared; their owner is kept alive until the
        last unretired use and view is gone. Others are copied through the
        host, which blocks. `copy` is True, False (share or raise), or None to
        copy only if necessary. A tensor that is marked read-only gives a read-only
        buffer. An object with only ``__cuda_array_interface__`` is accepted on CUDA.

        A tensor in host memory is not synchronised: wait for its writer
        first. One in device memory is: on import, every queue that the device has now
        waits, on the device, for the work on its owner's current stream.

        Raises `ArgumentTypeError` for anything but a tensor,
        `InvalidArgumentError` for one with gaps unless `copy` is True,
        and `ExchangeError` (a `BufferError`) for memory that cannot
        be taken as asked, or elements that numpy has no type for.
        """
        self._live()
        return import_tensor(self, tensor, copy)

    def record(
        self,
        *,
        slots: SlotSpecs = 0,
        one_shot: bool = False,
        hazards: str = "manual",
        categories: str = "all",
        command_buffer: str | None = None,
    ) -> CommandBuffer:
        """Start to record a command buffer; end it with ``with`` or `CommandBuffer.end`.

        `slots` is how many buffers and scalars each execution binds (C3), or a list: for a buffer
        its dtype, or that and the bytes, or that and the bytes or None and the device whose memory
        it is (else this one), ``"scalar"`` for an argument that is a number, and
        ``"grid"`` for the grid of a dispatch. A `one_shot` recording
        is executed at most once. With ``hazards="auto"`` the commands are
        ordered by the bytes that they touch, with ``"manual"`` by barriers and
        events (C2). `categories` may narrow it to ``"transfer"`` or
        ``"dispatch"`` commands. `command_buffer` is how it runs (C4):
        ``"graph"``, ``"stream"`` or ``"auto"``; the device's setting unless
        given. Makes no native call. Raises `InvalidArgumentError` for an
        unknown setting, and `UnimplementedError` for graphs on a
        device without them.
        """
        self._live()
        return CommandBuffer(self, slots, one_shot, hazards, categories, command_buffer)

    def can_access(self, other: Device) -> bool:
        """Return whether kernels of this device could use memory of `other`; see `enable_access`.

        True for devices of one driver whose hardware is connected, and
        for the same device opened twice. Allocates nothing.
        """
        return peers.can_access(self, other)

    def enable_access(self, other: Device) -> None:
        """Let kernels of this device use buffers of `other` from now on, in place.

        One way only. May be called twice. Work that runs here keeps
        those buffers alive; closing `other` cancels what was not issued, and
        waits for what was. Wait lists order such work, as between queues.
        Raises `UnimplementedError` if `can_access` is false, and says what to do
        instead.
        """
        peers.enable_access(self, other)

    def share_loss(self, other: Device) -> None:
        """Have this device and `other`, opened on the same hardware, be lost at once.

        When the engine learns that one is lost, the work of both fails (S5), and so does that of
        all devices that share the loss of either. One whose close did not end in time is lost
        alone. If one is lost already, so is the other now. Lasts until a close.
        """
        self._live()
        as_instance(other, Device, "share_loss takes a device")._live()
        contexts.share_loss(self._context, other._context)

    @property
    def heaps(self) -> tuple[MemoryHeap, ...]:
        """The kinds of memory, and how much of each is free now."""
        self._live()
        return describe_heaps(self)

    def query_memory(
        self,
        *,
        memory: str | MemoryType = MemoryType.DEVICE,
        usage: BufferUsage = BufferUsage.ALL,
        access: str = "all",
        size: int = 1,
    ) -> MemoryQuery:
        """Return what can be done with memory of this kind, usage and size.

        Allocates nothing, and raises only for malformed arguments.
        """
        self._live()
        length = check_index(size, "query_memory: the size")
        return query(self, check_memory(memory), check_rights(usage, access), length)

    def statistics(self, *, reset_peak: bool = False) -> MemoryStatistics:
        """Return what memory is allocated, after retiring finished work and caching its memory.

        Never blocks: memory that a driver frees only when the device is idle is held until
        a thread of hal's has given it back, and not counted as allocated.
        With `reset_peak` the peak starts again from what is allocated now.
        """
        self._live()
        is_reset = as_flag(reset_peak, "statistics: reset_peak")
        contexts.harvest(self._context)
        heap = self._heap
        whole, kinds = heap.statistics(reset_peak=is_reset)
        return MemoryStatistics(
            **dataclasses.asdict(whole),
            kinds=MappingProxyType(kinds),
            events=self._context.events.size,
            graph_instances=heap.reaper.count(INSTANCE),
        )

    def trim(self, keep: int = 0) -> int:
        """Free unused memory until `keep` bytes of it are left.

        That is the cache, idle segments of `Queue.alloca`, and what the driver's pool
        keeps; also everything else that is kept for reuse: events, and instances of
        native graphs. Returns the number of freed bytes. Blocks as long as the native
        frees do, which may wait until the device is idle.
        """
        self._live()
        least = check_index(keep, "trim: keep")
        context = self._context
        contexts.harvest(context)
        for reference in list(self._instances):
            pool = reference()
            if pool is not None:
                pool.trim()
        deadline = sync.monotonic() + _TRIM_SECONDS
        trim_events(context, deadline, self._heap.reaper.while_open)
        return self._heap.trim(least)

    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until everything submitted so far has ended; see `Queue.wait_idle`."""
        wait_idle(self._context.queues, None if timeout is None else as_seconds(timeout))

    def close(self, timeout: float = 10.0) -> tuple[str, ...]:
        """Close every queue as `Queue.close` does and free all native objects (Q6).

        Memory that a numpy view still shows is kept until the view is gone (M2), and the result
        has a line for it, too. Must not be called from a host call of its own queues: it would
        wait for itself.
        """
        abandoned, left = self._end(sync.monotonic() + as_seconds(timeout))
        return abandoned + left

    def _end(self, deadline: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Close the device; return lines for abandoned work, and for what views still show."""
        while True:
            ended = progress.act(lifecycle.end, self, deadline)
            if ended is not None:
                return ended
            if sync.monotonic() >= deadline:
                return (f"{self._name}, which another thread is still closing",), ()
            sync.nap(NAP_SECONDS)
