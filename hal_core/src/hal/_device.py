"""Define devices: what is opened, and what makes everything else."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import DTypeLike

from hal import _lifecycle, _registry, _sync, _timeline
from hal._buffer import Buffer, check_dtype, check_index, shape_of
from hal._commands import CommandBuffer
from hal._context import Context, wait_idle
from hal._executable import Executable, load_executable
from hal._kernel_source import scan, type_table
from hal._memory import Heap, MemoryStatistics
from hal._queue import Queue
from hal._semaphore import Semaphore, create_semaphore
from hal._signature import Signature
from hal._wait import check_timeout
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.native import CompileRequest, DeviceInfo, MemoryType, NativeDevice

__all__ = ["Device", "Queues", "create_device"]


class Queues:
    """Hold the three queues that every device has, each with a stream of its own (Q3)."""

    __slots__ = ("compute", "download", "upload")

    def __init__(self, device: Device, context: Context) -> None:
        self.compute: Final = Queue(device, context, f"{device.name}/compute", ordered=True)
        self.upload: Final = Queue(device, context, f"{device.name}/upload", ordered=True)
        self.download: Final = Queue(device, context, f"{device.name}/download", ordered=True)


class Device:
    """Be an open device: its queues, memory and kernels.

    Made by `create_device`. Any thread may use it. Each call of
    `create_device` opens another one, with queues and failures of its own,
    also on the same hardware.
    """

    __slots__ = (
        "__weakref__",
        "_backend",
        "_closed",
        "_closing",
        "_context",
        "_copy",
        "_copy_from_host",
        "_copy_to_host",
        "_fill",
        "_heap",
        "_launch",
        "_name",
        "_native",
        "_queue_count",
        "_queues",
    )

    def __init__(self, backend: str, native: NativeDevice, max_in_flight: int | None) -> None:
        self._backend = backend
        self._native = native
        # One bound method for all operations: a new one for each would be one more
        # object for the collector to walk while they are pending.
        self._fill = native.fill
        self._copy = native.copy
        self._copy_from_host = native.copy_from_host
        self._copy_to_host = native.copy_to_host
        self._launch = native.launch
        self._name = f"{backend}:{native.info.index}"
        self._closed = False
        self._closing = False
        self._queue_count = 0
        self._context = Context(native, self._name, max_in_flight or native.max_in_flight)
        self._heap = Heap(self._context)
        self._queues = Queues(self, self._context)
        self._context.queues = [self._queues.compute, self._queues.upload, self._queues.download]
        _lifecycle.devices[self] = None

    @property
    def name(self) -> str:
        """Return the backend and the index, as in ``"cuda:1"``."""
        return self._name

    @property
    def backend(self) -> str:
        """Return the backend's name."""
        return self._backend

    @property
    def info(self) -> DeviceInfo:
        """Return what the hardware is."""
        return self._native.info

    @property
    def features(self) -> frozenset[str]:
        """Return the optional features that work natively, out of `hal.native.FEATURES`."""
        return self._native.features

    @property
    def queue(self) -> Queue:
        """Return the compute queue."""
        return self._queues.compute

    @property
    def queues(self) -> Queues:
        """Return the queues ``compute``, ``upload`` and ``download``."""
        return self._queues

    @property
    def closed(self) -> bool:
        """Return whether the device was closed."""
        return self._closed

    @property
    def lost(self) -> bool:
        """Return whether the native context is gone; every submission fails then."""
        return self._context.lost is not None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "lost" if self.lost else "open"
        return f"<Device {self._name} {self.info.name!r} {state}>"

    def __enter__(self) -> Self:
        self._live()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def create_queue(self, *, name: str | None = None, ordered: bool = True) -> Queue:
        """Create a queue with a native stream of its own; ``ordered=False`` as Q2 says."""
        self._live()
        if name is not None and not isinstance(name, str):
            message = f"the name of a queue is a str, not {type(name).__name__}"
            raise ArgumentTypeError(message)
        with _timeline.lock:
            self._queue_count += 1
            count = self._queue_count
        title = f"{self._name}/{name or f'queue{count}'}"
        queue = Queue(self, self._context, title, ordered=bool(ordered))
        with _timeline.lock:
            self._context.queues = [*self._context.queues, queue]
        return queue

    def create_semaphore(self, initial: int = 0, *, name: str | None = None) -> Semaphore:
        """Do what `hal.create_semaphore` does: semaphores belong to no device (S3)."""
        return create_semaphore(initial, name=name)

    def allocate(
        self,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        memory: str | MemoryType = MemoryType.DEVICE,
    ) -> Buffer:
        """Allocate `size` bytes, whose content is undefined; may block.

        `dtype` is what `Buffer.numpy` and fills take the bytes for; `size` is
        a multiple of its item size. `memory` is ``"device"``, ``"host"``
        (pinned, reached by the device) or ``"shared"`` (M1). Raises
        `OutOfMemoryError` after finished work was retired and everything
        unused given back.
        """
        self._live()
        length = check_index(size, "allocate: the size")
        try:
            kind = MemoryType(memory)
        except ValueError:
            message = (
                f"memory is one of {', '.join(repr(each.value) for each in MemoryType)}, "
                f"not {memory!r}"
            )
            raise InvalidArgumentError(message) from None
        element = check_dtype(dtype)
        shape = shape_of(length, element, "allocate")
        storage = self._heap.allocate(max(length, 1), kind)
        return Buffer(self, storage, 0, length, element, shape)

    def upload(self, array: object) -> Buffer:
        """Copy a host array (or what numpy makes one of) to a new buffer of its dtype and shape.

        Blocks until the buffer is ready on every queue.
        """
        self._live()
        given = np.asarray(array)
        shape_of(given.nbytes, given.dtype, "upload")
        host = np.ascontiguousarray(given)
        storage = self._heap.allocate(max(host.nbytes, 1), MemoryType.DEVICE)
        buffer = Buffer(self, storage, 0, host.nbytes, host.dtype, given.shape)
        self._queues.upload.write(buffer, host).wait()
        return buffer

    def compile(
        self,
        source: str,
        *,
        filename: str = "kernel.cpp",
        defines: Mapping[str, object] | None = None,
        options: Sequence[str] = (),
        include_directories: Sequence[str | os.PathLike[str]] = (),
    ) -> Executable:
        """Compile portable kernel source (docs/kernels.md) and load it; blocks.

        `filename` is what errors call the source; `defines` are macros;
        `options` go to the backend's compiler as they are. Raises
        `CompilationError`, with the user's lines and the compiler's log.
        """
        self._live()
        _check_texts("source", [source])
        _check_texts("filename", [filename])
        _check_texts("options", options)
        _check_texts("include_directories", include_directories, os.PathLike)
        if defines is not None and not isinstance(defines, Mapping):
            message = f"compile: defines is a mapping, not {type(defines).__name__}"
            raise ArgumentTypeError(message)
        if "compile" not in self._native.features:
            message = f"{self._name} compiles no kernel source; load an image with device.load()"
            raise UnimplementedError(message)
        entries = scan(source, filename=filename)
        if not entries:
            message = f"{filename} defines no kernel: no __global__ function with a body was found"
            raise InvalidArgumentError(message)
        request = CompileRequest(
            source=source,
            filename=filename,
            entries=entries,
            type_table=type_table(entries),
            defines={str(key): str(value) for key, value in (defines or {}).items()},
            options=tuple(options),
            include_directories=tuple(os.fspath(path) for path in include_directories),
        )
        return load_executable(self, self._native.compile(request), None)

    def load(
        self,
        image: bytes | str | os.PathLike[str],
        *,
        signatures: Mapping[str, str | Signature] | None = None,
    ) -> Executable:
        """Load an image from bytes or from a file; blocks.

        `signatures` says what parameters the kernels have, by name, as in
        ``{"saxpy": "(f32 a, ptr x, ptr y, i32 n)"}``, where the image itself
        does not. Raises `OperationError` for an image of another kind of
        device, and `NotFoundError` for a kernel that is not in it.
        """
        self._live()
        if not isinstance(image, (bytes, bytearray, memoryview, str, os.PathLike)):
            message = f"load takes an image's bytes or a path, not {type(image).__name__}"
            raise ArgumentTypeError(message)
        if isinstance(image, (str, os.PathLike)):
            image = pathlib.Path(image).read_bytes()
        parsed = None
        if signatures is not None:
            parsed = {
                name: each if isinstance(each, Signature) else Signature.parse(each)
                for name, each in signatures.items()
            }
        return load_executable(self, bytes(image), parsed)

    def record(self) -> CommandBuffer:
        """Start to record a command buffer; end it with ``with`` or `CommandBuffer.end`."""
        self._live()
        return CommandBuffer(self)

    def statistics(self) -> MemoryStatistics:
        """Return what memory is allocated, after retiring and freeing what has ended."""
        self._live()
        self._context.harvest()
        return self._heap.statistics()

    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until everything submitted so far has ended, well or not; see `Queue.wait_idle`."""
        wait_idle(self._context.queues, None if timeout is None else check_timeout(timeout))

    def close(self, timeout: float = 10.0) -> tuple[str, ...]:
        """Close every queue as `Queue.close` does and give back all that is native (Q6).

        Memory that a numpy view still shows is kept until the view is gone
        (M2). Returns a line for whatever had to be left behind, none if all
        went well. May be called twice, and from ``with``; must not be called
        from a host call of its own queues, which it would wait for.
        """
        deadline = _sync.monotonic() + check_timeout(timeout)
        with _timeline.lock:
            if self._closing or self not in _lifecycle.devices:
                return ()
            self._closed = self._closing = True
        try:
            context = self._context
            abandoned = context.close_queues(list(context.queues), deadline)
            if context.lost is None:
                context.close_events(deadline)
            # Work that goes on after a time-out keeps its context: it is left behind.
            left = self._heap.close(release_context=not abandoned)
            _lifecycle.devices.pop(self, None)
        finally:
            self._closing = False  # after Ctrl-C another call does what is left
        return abandoned + left

    def _live(self) -> None:
        """Raise unless the device is open."""
        if self._closed:
            message = (
                f"{self._name} is closed; open it again with hal.create_device({self._name!r})"
            )
            raise ClosedError(message)


def create_device(spec: str = "cpu", **parameters: object) -> Device:
    """Open a device.

    `spec` is a backend and an index, ``"cpu"``, ``"cuda:1"``, with parameters
    if wanted, ``"cuda?max_in_flight=64"``, or a device's UUID. Parameters of
    the core: ``max_in_flight``, the operations that a queue issues before the
    rest stand in its backlog (Q1). All others go to the backend. Raises
    `BackendNotFoundError`, `BackendUnavailableError` or `PluginError`,
    `NotFoundError` for an index or a UUID, and `InvalidArgumentError` for a
    parameter that nobody knows.
    """
    _lifecycle.refuse_after_fork()
    backend, driver, index, given = _registry.resolve(spec, parameters)
    rest = dict(given)
    limit_text = rest.pop("max_in_flight", None)
    limit = None
    if limit_text is not None:
        if not (limit_text.isascii() and limit_text.isdecimal() and int(limit_text)):
            message = f"max_in_flight is a number of 1 or more, not {limit_text!r}"
            raise InvalidArgumentError(message)
        limit = int(limit_text)
    native = driver.open_device(index, rest)
    return Device(backend.name, native, limit)


def _check_texts(what: str, values: object, *also: type) -> None:
    """Raise unless `values` is a list of texts; a single text is none."""
    kinds = (str, *also)
    if isinstance(values, (str, *also)) or not isinstance(values, Iterable):
        message = f"compile: {what} is a sequence of texts, not {type(values).__name__}"
        raise ArgumentTypeError(message)
    for value in values:
        if not isinstance(value, kinds):
            message = f"compile: {what} is text, not {type(value).__name__}"
            raise ArgumentTypeError(message)
