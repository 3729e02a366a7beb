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
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

import hal
from hal._fence import Waits
from hal._memory import MemoryStatistics
from hal._queue import Signals
from hal.native import DeviceInfo, MemoryType, NativeDevice

__all__ = [
    "Buffer",
    "Callback",
    "CommandBuffer",
    "Device",
    "Driver",
    "Executable",
    "Fence",
    "Kernel",
    "Queue",
    "Queues",
    "Semaphore",
    "Signals",
    "Submission",
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


class Buffer(Protocol):
    """Be a range of a device's memory (M1, M2)."""

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
    def address(self) -> int:
        """Return the device's address of the first byte."""

    @property
    def closed(self) -> bool:
        """Return whether it was closed."""

    def subspan(self, offset: int, size: int, *, dtype: DTypeLike | None = None) -> hal.Buffer:
        """Return a buffer of `size` bytes from `offset` on that shares the memory (M2)."""

    def map(self) -> NDArray[Any]:
        """Return a numpy view of host-visible memory, which lives as long as the view (M2)."""

    def numpy(
        self,
        dtype: DTypeLike | None = None,
        *,
        wait: Waits = (),
        timeout: float | None = None,
    ) -> NDArray[Any]:
        """Copy to a new numpy array, after `wait`; blocks for `timeout` seconds at most."""

    def close(self) -> None:
        """Let the memory go, once no unretired operation and no view uses it (Q5, M2)."""


@runtime_checkable
class Kernel(Protocol):
    """Be one entry point of an executable (C5)."""

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


@runtime_checkable
class Executable(Protocol):
    """Be a loaded image: a mapping of names to kernels (C5)."""

    @property
    def image(self) -> bytes:
        """Return the bytes that were loaded, which `Device.load` takes again."""

    @property
    def kernels(self) -> tuple[hal.Kernel, ...]:
        """Return the kernels in the order of the source."""

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

    def fill(
        self, buffer: hal.Buffer, value: object, *, offset: int = 0, size: int | None = None
    ) -> None:
        """Record what `Queue.fill` does."""

    def update(self, buffer: hal.Buffer, data: object, *, offset: int = 0) -> None:
        """Record what `Queue.update` does; the bytes are taken now."""

    def copy(
        self,
        source: hal.Buffer,
        target: hal.Buffer,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
    ) -> None:
        """Record what `Queue.copy` does."""

    def dispatch(
        self,
        kernel: hal.Kernel,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int = 0,
    ) -> None:
        """Record what `Queue.dispatch` does; the arguments are packed now."""

    def barrier(self) -> None:
        """Order all commands before it with all after it (C2)."""

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
        """Copy `size` bytes between buffers of this device (Q4)."""

    def write(
        self,
        buffer: hal.Buffer,
        array: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy a host array, which must not change until then, into a buffer (Q4)."""

    def read(
        self,
        buffer: hal.Buffer,
        array: object,
        *,
        offset: int = 0,
        wait: Waits = (),
        signal: Signals = (),
    ) -> hal.Submission:
        """Copy a buffer, from `offset` bytes on, into a host array (Q4)."""

    def dispatch(
        self,
        kernel: hal.Kernel,
        *,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int = 0,
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
        """Call a host function, on a thread of hal's, in the place of an operation (Q2)."""

    def execute(
        self, commands: hal.CommandBuffer, *, wait: Waits = (), signal: Signals = ()
    ) -> hal.Submission:
        """Run a recorded command buffer (C1)."""

    def barrier(self, *, wait: Waits = (), signal: Signals = ()) -> hal.Submission:
        """Do nothing, after `wait` and what the queue's order demands, and signal (Q4)."""

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
    """Be an open device: its queues, memory and kernels."""

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

    def create_queue(self, *, name: str | None = None, ordered: bool = True) -> Queue:
        """Create a queue with a native stream of its own (Q2, Q3)."""

    def create_semaphore(self, initial: int = 0, *, name: str | None = None) -> Semaphore:
        """Do what `hal.create_semaphore` does: semaphores belong to no device (S3)."""

    def allocate(
        self,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        memory: str | MemoryType = MemoryType.DEVICE,
    ) -> hal.Buffer:
        """Allocate `size` bytes, whose content is undefined (M1)."""

    def upload(self, array: object) -> hal.Buffer:
        """Copy a host array to a new buffer; blocks until it is ready on every queue."""

    def compile(
        self,
        source: str,
        *,
        filename: str = "kernel.cpp",
        defines: Mapping[str, object] | None = None,
        options: Sequence[str] = (),
        include_directories: Sequence[str | os.PathLike[str]] = (),
    ) -> Executable:
        """Compile portable kernel source and load it; blocks (C5)."""

    def load(
        self,
        image: bytes | str | os.PathLike[str],
        *,
        signatures: Mapping[str, str | hal.Signature] | None = None,
    ) -> Executable:
        """Load an image from bytes or from a file; blocks (C5)."""

    def record(self) -> hal.CommandBuffer:
        """Start to record a command buffer (C1)."""

    def statistics(self) -> MemoryStatistics:
        """Return what memory is allocated, after retiring and freeing what has ended (M1)."""

    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until everything submitted so far has ended, for `timeout` seconds at most."""

    def close(self, timeout: float = 10.0) -> tuple[str, ...]:
        """Close every queue and give back all that is native (Q6)."""
