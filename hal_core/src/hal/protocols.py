"""Define what users and other libraries type against; no code.

Each protocol has the public members of the class of the same name in `hal`,
with the same parameters. A proxy that traces or counts, or a fake in a test,
need not inherit. The ids in parentheses are those of the rules in docs/.

What is handed back to hal has to be hal's own, and is typed so: a queue
refuses any other buffer, kernel, command buffer, timepoint, submission or
fence with `ArgumentTypeError`. So a function that only reads a buffer takes a
`protocols.Buffer`, and one that submits it a `hal.Buffer`.

`isinstance` works where it has no effects. It has on a buffer, whose memory
may be gone, and on a submission, whose device it would ask: Python 3.11 looks
at the properties themselves.
"""

from __future__ import annotations

import os
from collections.abc import (
    Awaitable,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex, SupportsInt, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

import hal
from hal._commands.slots import Bindings, SlotSpecs
from hal._devices.queue import Signals
from hal._engine.fence import Waits
from hal._memory.report import MemoryHeap, MemoryQuery, MemoryStatistics
from hal._memory.usage import BufferUsage
from hal.native import DeviceInfo, MemoryType, NativeDevice

__all__ = [
    "Buffer",
    "Callback",
    "CommandBuffer",
    "CudaArray",
    "CudaStream",
    "Device",
    "Driver",
    "Executable",
    "ExternalEvent",
    "Fence",
    "Kernel",
    "Queue",
    "Queues",
    "Semaphore",
    "Signals",
    "Submission",
    "Tensor",
    "Timestamp",
    "Waits",
]


@runtime_checkable
class Driver(Protocol):
    """Enumerate and open the devices of one vendor's driver; see `hal.native.NativeDriver`."""

    def devices(self) -> Sequence[DeviceInfo]:
        """Return every device in the driver's order, index i at position i."""

    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:
        """Open a device and retain its context."""


@runtime_checkable
class Callback(Protocol):
    """Take back a function that `Semaphore.on_reached` was given (S8)."""

    def cancel(self) -> bool:
        """Return True if the function had not been sent off and now never will be."""


@runtime_checkable
class Semaphore(Protocol):
    """Hold a 64-bit value that only rises (S1 to S9)."""

    @property
    def name(self) -> str:
        """Return the name given at creation, or a number that is never used again."""

    def at(self, value: int) -> hal.Timepoint:
        """Return the timepoint of `value`, 0 to 2**63 - 1."""

    def query(self) -> int:
        """Return the value, all work for which has retired (S7); raises a failure (S4)."""

    def poll(self, value: int) -> bool:
        """Return whether `value` has been reached; never blocks (S6)."""

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Block until `value` is reached, for `timeout` seconds at most (S6)."""

    def signal(self, value: int) -> None:
        """Raise the value from the host; it must exceed all reserved before (S1)."""

    def fail(self, error: BaseException) -> None:
        """Fail for good; the first failure wins (S4)."""

    def on_reached(self, value: int, function: Callable[[hal.HalError | None], object]) -> Callback:
        """Call `function` on a thread of hal's once `value` is reached or it fails (S8)."""

    def reached(self, value: int) -> Awaitable[None]:
        """Return an awaitable for asyncio that ends when `value` is reached (S8)."""


@runtime_checkable
class Fence(Protocol):
    """Hold a set of timepoints, one value per semaphore; immutable (S6)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[hal.Timepoint]: ...

    def __or__(self, other: hal.Fence) -> hal.Fence: ...

    def poll(self) -> bool:
        """Return whether every timepoint is reached; never blocks; raises a failure."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until every timepoint is reached, for `timeout` seconds at most."""

    def fail(self, error: BaseException) -> None:
        """Fail every semaphore of the set (S4)."""


class Submission(Protocol):
    """Follow one operation of a queue to its end (Q1, S5); awaitable in asyncio."""

    @property
    def state(self) -> str:
        """Return ``"pending"``, ``"issued"``, ``"done"``, ``"failed"`` or ``"cancelled"``."""

    @property
    def done(self) -> bool:
        """Return whether it has ended, well or not; never blocks."""

    @property
    def error(self) -> hal.HalError | None:
        """Return what it failed with or was cancelled by, afresh; None while it did not."""

    @property
    def kind(self) -> str:
        """Return the name of the queue's method that submitted it."""

    @property
    def queue(self) -> Queue:
        """Return the queue that it was submitted to."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is done, for `timeout` seconds at most; raises its error (S6)."""

    def __await__(self) -> Generator[Any, None, None]: ...


class Timestamp(Submission, Protocol):
    """The time at which a device got to a place of a queue (Q4)."""

    def seconds_since(self, earlier: hal.Timestamp) -> float:
        """Return how much later than `earlier` this was; both have ended."""


class Buffer(Protocol):
    """A range of a device's memory (M1, M2)."""

    @property
    def size(self) -> int:
        """Return the size in bytes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type of an element."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape in elements of `dtype`."""

    @property
    def device(self) -> Device:
        """Return the device that owns the memory."""

    @property
    def memory(self) -> str:
        """Return the kind of memory: ``"device"``, ``"host"`` or ``"shared"`` (M1)."""

    @property
    def usage(self) -> BufferUsage:
        """Return what it may be used for (M1)."""

    @property
    def access(self) -> str:
        """Return ``"all"``, ``"read"`` or ``"write"``: what may be done with the bytes (M1)."""

    @property
    def allocation(self) -> hal.Submission | None:
        """Return the submission of the `Queue.alloca` that makes its memory, if one does (M3)."""

    @property
    def address(self) -> int:
        """Return the device's address of the first byte."""

    @property
    def closed(self) -> bool:
        """Return whether it was closed."""

    def subspan(self, offset: int, size: int, *, dtype: DTypeLike | None = None) -> hal.Buffer:
        """Return a buffer of `size` bytes from `offset` on that shares the memory (M2)."""

    def view(self, dtype: DTypeLike) -> hal.Buffer:
        """Return a buffer over the same memory whose elements are of another type (C5, M2)."""

    def map(
        self, access: str = "all", *, wait: Waits | None = None, timeout: float | None = None
    ) -> NDArray[Any]:
        """Return a numpy view of host-visible memory, after `wait` or all that came before (M2)."""

    def numpy(
        self,
        dtype: DTypeLike | None = None,
        *,
        wait: Waits | None = None,
        timeout: float | None = None,
    ) -> NDArray[Any]:
        """Copy to a new numpy array, after `wait`, or all that was submitted before (M2)."""

    def close(self) -> None:
        """Let the memory go, once no unretired operation and no view uses it (Q5, M2)."""


@runtime_checkable
class Kernel(Protocol):
    """One entry point of an executable (C5)."""

    @property
    def name(self) -> str:
        """Return the name in the source."""

    @property
    def device(self) -> Device:
        """Return the device that the kernel was loaded on."""

    @property
    def signature(self) -> hal.Signature:
        """Return the parameters' names, kinds and sizes."""

    @property
    def max_threads_per_block(self) -> int:
        """Return how many threads a block of this kernel may have."""

    @property
    def static_shared_memory(self) -> int:
        """Return the bytes of shared memory that it declares itself."""

    @property
    def block(self) -> tuple[int, int, int] | None:
        """Return the threads of a block where a dispatch does not say; None: it has to."""

    @property
    def shared_memory(self) -> int:
        """Return the bytes of dynamic shared memory where a dispatch does not say."""

    def occupancy(
        self, block: int | Sequence[int] | None = None, *, shared_memory: int | None = None
    ) -> int:
        """Return how many blocks one compute unit of the device holds at once."""


@runtime_checkable
class Executable(Protocol):
    """A loaded image: a mapping of names to kernels (C5)."""

    @property
    def image(self) -> bytes:
        """Return the bytes that were loaded, which `Device.load` takes again."""

    @property
    def kernels(self) -> tuple[hal.Kernel, ...]:
        """Return the kernels that the image lists, in the order of the source."""

    def kernel(
        self,
        name: str,
        *,
        signature: str | hal.Signature | None = None,
        block: int | Sequence[int] | None = None,
        shared_memory: int | None = None,
    ) -> hal.Kernel:
        """Return a kernel with a description of your own in place of the image's."""

    def global_variable(self, name: str, *, dtype: DTypeLike = np.uint8) -> hal.Buffer:
        """Return the memory of a variable at global scope, which keeps the code loaded."""

    def __getitem__(self, name: str) -> hal.Kernel: ...

    def get(self, name: str, /, default: hal.Kernel | None = None) -> hal.Kernel | None:
        """Return a kernel, or `default` where there is none."""

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...

    def __contains__(self, name: object) -> bool: ...


@runtime_checkable
class CommandBuffer(Protocol):
    """Record operations and submit them together, as often as wanted (C1, C2)."""

    @property
    def device(self) -> Device:
        """Return the device that it records for."""

    def __len__(self) -> int: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @property
    def slots(self) -> Sequence[hal.Slot]:
        """Return the slots, which stand for the buffers of a binding table (C3)."""

    @property
    def one_shot(self) -> bool:
        """Return whether it may be executed only once."""

    @property
    def lowering(self) -> str | None:
        """Return ``"graph"``, ``"stream"`` or ``"host"``; None before `end` (C4)."""

    def alloca(self, size: SupportsIndex, *, dtype: DTypeLike = np.uint8) -> hal.Slot:
        """Return memory that lives inside of the recording (M3)."""

    def dealloca(self, temporary: hal.Slot) -> None:
        """End memory of `alloca`: its bytes serve later ones."""

    def fill(
        self,
        buffer: hal.Buffer | hal.Slot,
        value: object,
        *,
        offset: int = 0,
        size: int | None = None,
        name: str | None = None,
    ) -> None:
        """Record what `Queue.fill` does."""

    def update(
        self,
        buffer: hal.Buffer | hal.Slot,
        data: object,
        *,
        offset: int = 0,
        name: str | None = None,
    ) -> None:
        """Record what `Queue.update` does; the bytes are taken now."""

    def copy(
        self,
        source: hal.Buffer | hal.Slot,
        target: hal.Buffer | hal.Slot,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        name: str | None = None,
    ) -> None:
        """Record what `Queue.copy` does."""

    def dispatch(
        self,
        kernel: hal.Kernel,
        *,
        grid: int | Sequence[int] | hal.Buffer | hal.Slot,
        block: int | Sequence[int] | None = None,
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int | None = None,
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        """Record what `Queue.dispatch` does; the arguments are packed now."""

    def barrier(self) -> None:
        """Order all commands before it with all after it (C2)."""

    def create_event(self, *, name: str | None = None) -> hal.CommandEvent:
        """Return an event of this recording: a barrier in two halves (C1)."""

    def signal_event(self, event: hal.CommandEvent) -> None:
        """Signal an event once all commands recorded so far have ended (C1)."""

    def wait_events(self, *events: hal.CommandEvent) -> None:
        """Order all before the events' signals with all recorded from now on (C1)."""

    def reset_event(self, event: hal.CommandEvent) -> None:
        """Make an event not signalled (C1)."""

    def group(self, name: str) -> AbstractContextManager[object]:
        """Return a context that puts `name` in front of the names of commands."""

    def end(self) -> None:
        """End the recording, which is immutable from then on (C1)."""


@runtime_checkable
class Queue(Protocol):
    """Submit operations to one native stream of a device (Q1 to Q6)."""

    @property
    def name(self) -> str:
        """Return the queue's name, with its device's in front."""

    @property
    def device(self) -> Device:
        """Return the device that the queue belongs to."""

    @property
    def ordered(self) -> bool:
        """Return whether the queue is first-in first-out (Q2)."""

    @property
    def closed(self) -> bool:
        """Return whether the queue was closed."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def fill(
        self,
        buffer: hal.Buffer,
        value: object,
        *,
        offset: int = 0,
        size: int | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Write a pattern over `size` bytes of a buffer from `offset` on (Q4)."""

    def update(
        self,
        buffer: hal.Buffer,
        data: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Write the bytes that `data` holds now, during the call (Q4)."""

    def copy(
        self,
        source: hal.Buffer,
        target: hal.Buffer,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy `size` bytes between buffers of this device, or from or to another (Q4)."""

    def write(
        self,
        buffer: hal.Buffer,
        array: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy a host array, which must not change until then, or a file into a buffer (Q4)."""

    def read(
        self,
        buffer: hal.Buffer,
        array: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy a buffer, from `offset` bytes on, into a host array or a file (Q4)."""

    def dispatch(
        self,
        kernel: hal.Kernel,
        *,
        grid: int | Sequence[int] | hal.Buffer,
        block: int | Sequence[int] | None = None,
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Launch a kernel over `grid` blocks of `block` threads (Q4, C5)."""

    def call(
        self,
        function: Callable[..., object],
        *arguments: object,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Call a host function, on a thread of hal's, in the place of an operation (Q2).

        What it returns to be waited for defers the operation's end to that (Q4).
        """

    def execute(
        self,
        commands: hal.CommandBuffer,
        *,
        bindings: Bindings | None = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Run a recorded command buffer, with a buffer for each of its slots (C1, C3)."""

    def alloca(
        self,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        memory: str | MemoryType = MemoryType.DEVICE,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Buffer:
        """Allocate in the order of the queue, and return the buffer at once (M3)."""

    def dealloca(
        self, buffer: hal.Buffer, *, wait: Waits = (), signal: Signals = ()
    ) -> hal.Submission:
        """End the use of a buffer of `alloca` (M3)."""

    def barrier(self, *, wait: Waits = (), signal: Signals = ()) -> hal.Submission:
        """Do nothing, after `wait` and what the queue's order demands, and signal (Q4)."""

    def timestamp(self, *, wait: Waits = (), signal: Signals = ()) -> hal.Timestamp:
        """Take the device's time when it gets here (Q4)."""

    @property
    def stream_handle(self) -> int:
        """Return the vendor's handle of the native stream."""

    def wait_external(
        self,
        stream: object = None,
        *,
        event: object = None,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Let what follows wait for work of another library."""

    def notify_external(
        self,
        stream: object = None,
        *,
        event: object = None,
        wait: Waits = (),
        timeout: float | None = None,
    ) -> hal.Submission:
        """Let work of another library wait for what was submitted so far."""

    def flush(self) -> None:
        """Issue what is ready now; never blocks."""

    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until everything submitted so far has ended, for `timeout` seconds at most."""

    def close(self, timeout: float = 10.0) -> tuple[str, ...]:
        """Cancel what is not issued, wait for what is, and give the stream back (Q6)."""


@runtime_checkable
class Queues(Protocol):
    """Hold the three queues that every device has (Q3)."""

    @property
    def compute(self) -> Queue:
        """Return the queue for kernels, which is `Device.queue`."""

    @property
    def upload(self) -> Queue:
        """Return the queue for copies to the device."""

    @property
    def download(self) -> Queue:
        """Return the queue for copies to the host."""


@runtime_checkable
class Device(Protocol):
    """An open device: its queues, memory and kernels."""

    @property
    def name(self) -> str:
        """Return the backend and the index, as in ``"cuda:1"``."""

    @property
    def backend(self) -> str:
        """Return the backend's name."""

    @property
    def info(self) -> DeviceInfo:
        """Return what the hardware is."""

    @property
    def features(self) -> frozenset[str]:
        """Return the optional features that work natively, out of `hal.native.FEATURES`."""

    @property
    def queue(self) -> Queue:
        """Return the compute queue (Q3)."""

    @property
    def queues(self) -> Queues:
        """Return the queues ``compute``, ``upload`` and ``download`` (Q3)."""

    @property
    def closed(self) -> bool:
        """Return whether the device was closed."""

    @property
    def lost(self) -> bool:
        """Return whether the native context is gone (S5)."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def create_queue(
        self, *, name: str | None = None, ordered: bool = True, stream: object = None
    ) -> Queue:
        """Create a queue with a native stream of its own, or on another library's (Q2, Q3)."""

    def create_semaphore(self, initial: int = 0, *, name: str | None = None) -> Semaphore:
        """Do what `hal.create_semaphore` does: semaphores belong to no device (S3)."""

    def can_access(self, other: hal.Device) -> bool:
        """Return whether kernels of this device could use memory of `other`."""

    def enable_access(self, other: hal.Device) -> None:
        """Let kernels of this device use buffers of `other`, in place."""

    @property
    def heaps(self) -> tuple[MemoryHeap, ...]:
        """Return the kinds of memory there are (M1)."""

    def query_memory(
        self,
        *,
        memory: str | MemoryType = MemoryType.DEVICE,
        usage: BufferUsage = BufferUsage.ALL,
        access: str = "all",
        size: int = 1,
    ) -> MemoryQuery:
        """Return what can be done with memory of this kind, usage and size (M1)."""

    def allocate(
        self,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        memory: str | MemoryType = MemoryType.DEVICE,
        usage: BufferUsage = BufferUsage.ALL,
        access: str = "all",
    ) -> hal.Buffer:
        """Allocate `size` bytes, whose content is undefined (M1)."""

    def import_array(
        self, array: object, *, release: Callable[[], object] | None = None
    ) -> hal.Buffer:
        """Return a buffer over the memory of a host array, without a copy (M1)."""

    def upload(self, array: object) -> hal.Buffer:
        """Copy a host array to a new buffer; blocks until it is ready on every queue."""

    def compile(
        self,
        source: str | Mapping[str, str],
        *,
        filename: str = "kernel.cpp",
        defines: Mapping[str, object] | None = None,
        options: Sequence[str] | Mapping[str, Sequence[str]] = (),
        include_directories: Sequence[str | os.PathLike[str]] = (),
        trace: bool | str = False,
    ) -> Executable:
        """Compile portable kernel source and load it; blocks (C5)."""

    def load(
        self,
        image: hal.Program | bytes | str | os.PathLike[str],
        *,
        signatures: Mapping[str, str | hal.Signature] | None = None,
    ) -> Executable:
        """Load a program, or an image from bytes or from a file; blocks (C5).

        Perhaps until all work on the device has ended: load before you submit.
        """

    def from_dlpack(self, tensor: object, *, copy: bool | None = None) -> hal.Buffer:
        """Return a buffer over another library's tensor, or over a copy of it (M2)."""

    def record(
        self,
        *,
        slots: SlotSpecs = 0,
        one_shot: bool = False,
        hazards: str = "manual",
        categories: str = "all",
        command_buffer: str | None = None,
    ) -> hal.CommandBuffer:
        """Start to record a command buffer (C1)."""

    def statistics(self, *, reset_peak: bool = False) -> MemoryStatistics:
        """Return what memory is allocated, after retiring what has ended (M1)."""

    def trim(self, keep: int = 0) -> int:
        """Give cached memory back until `keep` bytes are left; return how many went (M1)."""

    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until everything submitted so far has ended, for `timeout` seconds at most."""

    def close(self, timeout: float = 10.0) -> tuple[str, ...]:
        """Close every queue and give back all that is native (Q6)."""


# What other libraries offer; docs/interop.md says what hal does with it.


class Tensor(Protocol):
    """Memory that its owner hands out by DLPack.

    As in https://dmlc.github.io/dlpack/latest/python_spec.html and the Python
    array API standard. Producers of before version 1.0 know `stream` only.
    """

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a capsule named ``dltensor_versioned`` or, of old, ``dltensor``."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the type and the number of the device that the memory is on."""


class CudaArray(Protocol):
    """Memory of a CUDA device, version 3 of the CUDA Array Interface.

    As in https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html.
    """

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        """Return ``shape``, ``typestr``, ``data`` (address, read-only) and ``version``.

        And ``strides``, ``descr``, ``mask`` and ``stream`` where they apply; a
        ``stream`` is one whose work the consumer has to wait for.
        """


class CudaStream(Protocol):
    """A stream of CUDA that another library owns.

    As in https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html.
    """

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version, 0, and the ``cudaStream_t`` as an int."""


class ExternalEvent(Protocol):
    """An event of the vendor's driver that another library owns and has recorded.

    ``handle`` as `cuda.core.Event` has it; hal's own protocol, as there is no standard.
    """

    @property
    def handle(self) -> SupportsInt:
        """Return the ``CUevent`` or ``hipEvent_t``; it stays valid while this object lives."""
