"""Protocols to annotate with, where a proxy or a fake may take the place of one of hal's classes.

Each has the public members of the class of the same name in `hal`, whose docstrings are the
contract; ids in parentheses are rules of docs/. Objects that are handed back to hal must be hal's
own: a queue refuses any other with `ArgumentTypeError`. So a function that only reads a buffer
takes a `protocols.Buffer`, and one that submits it a `hal.Buffer`.

`isinstance` is refused for `Buffer` and `Submission`: Python 3.11 would evaluate their properties,
which raise once the memory is gone, or ask the device.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import (
    TYPE_CHECKING,
    Any,
    Protocol,
    Self,
    SupportsIndex,
    SupportsInt,
    TypedDict,
    TypeVar,
    Unpack,
    runtime_checkable,
)

import numpy as np

import hal
from hal._commands.bindings import Bindings
from hal._commands.slots import SlotSpecs
from hal._devices.device import Shape
from hal._engine.fence import Waits
from hal._engine.wait_lists import Signals
from hal._memory.report import MemoryHeap, MemoryQuery, MemoryStatistics
from hal._memory.usage import BufferUsage
from hal._transfers.collective_methods import CollectiveOptions
from hal.native import DeviceInfo, MemoryType, NativeDevice
from hal.native_collectives import Participant
from hal.tickets import BufferTicket, SemaphoreTicket

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    _Memory = hal.Buffer | hal.Slot

__all__ = [
    "Bindings",
    "Buffer",
    "Callback",
    "CollectiveOptions",
    "Collectives",
    "CommandBuffer",
    "CudaArray",
    "CudaStream",
    "Device",
    "Driver",
    "Executable",
    "ExternalEvent",
    "Order",
    "Queue",
    "Queues",
    "Semaphore",
    "Signals",
    "Submission",
    "Tensor",
    "Waits",
]

_Place_contra = TypeVar("_Place_contra", contravariant=True)
_Made_co = TypeVar("_Made_co", covariant=True)


# What other libraries offer; docs/interop.md says what hal does with it.


class Tensor(Protocol):
    """Memory that its owner hands out by DLPack, as the Python array API standard has it.

    See https://dmlc.github.io/dlpack/latest/python_spec.html. Producers of before version 1.0
    know `stream` only, and their capsules are named ``dltensor``, not ``dltensor_versioned``.
    """

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


class CudaArray(Protocol):
    """Memory of a CUDA device, by version 3 of the CUDA Array Interface.

    See https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html.
    """

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...


class CudaStream(Protocol):
    """A stream of CUDA that another library owns: version 0, and the ``cudaStream_t`` as an int.

    See https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html.
    """

    def __cuda_stream__(self) -> tuple[int, int]: ...


class ExternalEvent(Protocol):
    """An event of the vendor's driver that another library owns and has recorded.

    As in `cuda.core.Event`, `handle` is the ``CUevent`` or ``hipEvent_t``, valid while this lives.
    """

    @property
    def handle(self) -> SupportsInt:
        """The vendor's handle."""


# hal's own


@runtime_checkable
class Driver(Protocol):
    """One vendor's driver, which enumerates and opens devices: `hal.native.NativeDriver`."""

    @property
    def parameters(self) -> tuple[str, ...]: ...
    def devices(self) -> Sequence[DeviceInfo]: ...
    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice: ...


@runtime_checkable
class Callback(Protocol):
    """A function that `Semaphore.on_reached` was given, to be taken back (S8)."""

    def cancel(self) -> bool: ...


@runtime_checkable
class Semaphore(Protocol):
    """A 64-bit value that only rises (S1 to S9)."""

    @property
    def name(self) -> str: ...
    def at(self, value: int) -> hal.Timepoint: ...
    def query(self) -> int: ...
    def poll(self, value: int) -> bool: ...
    def wait(self, value: int, timeout: float | None = None) -> None: ...
    def signal(self, value: int) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def share(self) -> SemaphoreTicket: ...
    def on_reached(
        self, value: int, function: Callable[[hal.HalError | None], object]
    ) -> Callback: ...
    def reached(self, value: int) -> Awaitable[None]: ...


class Submission(Protocol):
    """One operation of a queue, until its end (Q1, S5); awaitable in asyncio and trio."""

    @property
    def state(self) -> str: ...
    @property
    def done(self) -> bool: ...
    @property
    def error(self) -> hal.HalError | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def queue(self) -> Queue: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def cancel(self) -> bool: ...
    def or_cancel(self) -> Awaitable[None]: ...
    def __await__(self) -> Generator[Any, None, None]: ...


class Buffer(Protocol):
    """A range of a device's memory (M1, M2)."""

    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def device(self) -> Device: ...
    @property
    def memory(self) -> str: ...
    @property
    def usage(self) -> BufferUsage: ...
    @property
    def access(self) -> str: ...
    @property
    def allocation(self) -> hal.Submission | None: ...
    @property
    def address(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def subspan(self, offset: int, size: int, *, dtype: DTypeLike | None = None) -> hal.Buffer: ...
    def view(self, dtype: DTypeLike) -> hal.Buffer: ...
    def __getitem__(self, rows: slice) -> hal.Buffer: ...
    def map(
        self, access: str = "all", *, wait: Waits | None = None, timeout: float | None = None
    ) -> NDArray[Any]: ...
    def numpy(
        self,
        dtype: DTypeLike | None = None,
        *,
        wait: Waits | None = None,
        timeout: float | None = None,
    ) -> NDArray[Any]: ...
    def share(self) -> BufferTicket: ...
    def close(self) -> None: ...


@runtime_checkable
class Executable(Protocol):
    """A loaded image: a mapping of names to kernels (C5)."""

    @property
    def image(self) -> bytes: ...
    @property
    def kernels(self) -> tuple[hal.Kernel, ...]: ...
    def kernel(
        self,
        name: str,
        *,
        signature: str | hal.Signature | None = None,
        block: int | Sequence[int] | None = None,
        shared_memory: int | None = None,
    ) -> hal.Kernel: ...
    def global_variable(self, name: str, *, dtype: DTypeLike = np.uint8) -> hal.Buffer: ...
    def __getitem__(self, name: str) -> hal.Kernel: ...
    def get(self, name: str, /, default: hal.Kernel | None = None) -> hal.Kernel | None: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object) -> bool: ...


@runtime_checkable
class Collectives(Protocol[_Place_contra, _Made_co]):
    """The operations that several ranks take part in, for queues and recordings."""

    def all_reduce(
        self,
        buffer: _Place_contra,
        target: _Place_contra | None = None,
        *,
        group: Participant,
        op: str = "sum",
        **options: Unpack[CollectiveOptions],
    ) -> _Made_co: ...
    def reduce(
        self,
        buffer: _Place_contra,
        target: _Place_contra | None = None,
        *,
        group: Participant,
        root: SupportsIndex = 0,
        op: str = "sum",
        **options: Unpack[CollectiveOptions],
    ) -> _Made_co: ...
    def broadcast(
        self,
        buffer: _Place_contra,
        target: _Place_contra | None = None,
        *,
        group: Participant,
        root: SupportsIndex = 0,
        **options: Unpack[CollectiveOptions],
    ) -> _Made_co: ...
    def all_gather(
        self,
        buffer: _Place_contra,
        target: _Place_contra,
        *,
        group: Participant,
        **options: Unpack[CollectiveOptions],
    ) -> _Made_co: ...
    def reduce_scatter(
        self,
        buffer: _Place_contra,
        target: _Place_contra,
        *,
        group: Participant,
        op: str = "sum",
        **options: Unpack[CollectiveOptions],
    ) -> _Made_co: ...
    def all_to_all(
        self,
        buffer: _Place_contra,
        target: _Place_contra,
        *,
        group: Participant,
        **options: Unpack[CollectiveOptions],
    ) -> _Made_co: ...
    def send(
        self,
        buffer: _Place_contra,
        *,
        group: Participant,
        peer: SupportsIndex,
        **options: Unpack[CollectiveOptions],
    ) -> _Made_co: ...
    def receive(
        self,
        buffer: _Place_contra,
        *,
        group: Participant,
        peer: SupportsIndex,
        **options: Unpack[CollectiveOptions],
    ) -> _Made_co: ...
    def group_barrier(
        self, *, group: Participant, **options: Unpack[CollectiveOptions]
    ) -> _Made_co: ...


@runtime_checkable
class CommandBuffer(Collectives["_Memory", None], Protocol):
    """A recording of operations that are submitted together, as often as wanted (C1, C2)."""

    @property
    def device(self) -> Device: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: object, *_: object) -> None: ...
    @property
    def slots(self) -> Sequence[hal.Slot]: ...
    @property
    def one_shot(self) -> bool: ...
    @property
    def lowering(self) -> str | None: ...
    def alloca(self, size: SupportsIndex, *, dtype: DTypeLike = np.uint8) -> hal.Slot: ...
    def dealloca(self, temporary: hal.Slot) -> None: ...
    def fill(
        self,
        buffer: _Memory,
        value: object,
        *,
        offset: int = 0,
        size: int | None = None,
        name: str | None = None,
    ) -> None: ...
    def update(
        self, buffer: _Memory, data: object, *, offset: int = 0, name: str | None = None
    ) -> None: ...
    def copy(
        self,
        source: _Memory,
        target: _Memory,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        name: str | None = None,
    ) -> None: ...
    def dispatch(
        self,
        kernel: hal.Kernel,
        *,
        grid: int | Sequence[int] | _Memory,
        block: int | Sequence[int] | None = None,
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int | None = None,
        reads: Sequence[str] = (),
        writes: Sequence[str] = (),
        name: str | None = None,
    ) -> None: ...
    def barrier(self) -> None: ...
    def create_event(self, *, name: str | None = None) -> hal.CommandEvent: ...
    def signal_event(self, event: hal.CommandEvent) -> None: ...
    def wait_events(self, *events: hal.CommandEvent) -> None: ...
    def reset_event(self, event: hal.CommandEvent) -> None: ...
    def on(self, where: hal.Queue | hal.Device | str) -> AbstractContextManager[object]: ...
    def group(self, name: str) -> AbstractContextManager[object]: ...
    def end(self) -> None: ...


class Order(TypedDict, total=False):
    """The keyword arguments of all that a queue submits: what it waits for, and what it signals."""

    wait: Waits
    signal: Signals


@runtime_checkable
class Queue(Collectives["hal.Buffer", "hal.Submission"], Protocol):
    """A queue of operations for one native stream of a device (Q1 to Q6)."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> Device: ...
    @property
    def ordered(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def fill(
        self,
        buffer: hal.Buffer,
        value: object,
        *,
        offset: int = 0,
        size: int | None = None,
        **order: Unpack[Order],
    ) -> hal.Submission: ...
    def update(
        self, buffer: hal.Buffer, data: object, *, offset: int = 0, **order: Unpack[Order]
    ) -> hal.Submission: ...
    def copy(
        self,
        source: hal.Buffer,
        target: hal.Buffer,
        *,
        source_offset: int = 0,
        target_offset: int = 0,
        size: int | None = None,
        **order: Unpack[Order],
    ) -> hal.Submission: ...
    def write(
        self, buffer: hal.Buffer, array: object, *, offset: int = 0, **order: Unpack[Order]
    ) -> hal.Submission: ...
    def read(
        self, buffer: hal.Buffer, array: object, *, offset: int = 0, **order: Unpack[Order]
    ) -> hal.Submission: ...
    def dispatch(
        self,
        kernel: hal.Kernel,
        *,
        grid: int | Sequence[int] | hal.Buffer,
        block: int | Sequence[int] | None = None,
        args: Sequence[object] | Mapping[str, object] = (),
        shared_memory: int | None = None,
        **order: Unpack[Order],
    ) -> hal.Submission: ...
    def call(
        self, function: Callable[..., object], *arguments: object, **order: Unpack[Order]
    ) -> hal.Submission: ...
    def execute(
        self,
        commands: hal.CommandBuffer,
        *,
        bindings: Bindings | None = None,
        **order: Unpack[Order],
    ) -> hal.Submission: ...
    def alloca(
        self,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        memory: str | MemoryType = MemoryType.DEVICE,
        **order: Unpack[Order],
    ) -> hal.Buffer: ...
    def dealloca(self, buffer: hal.Buffer, **order: Unpack[Order]) -> hal.Submission: ...
    def barrier(self, **order: Unpack[Order]) -> hal.Submission: ...
    def timestamp(self, **order: Unpack[Order]) -> hal.Timestamp: ...
    @property
    def stream_handle(self) -> int: ...
    def wait_external(
        self, stream: object = None, *, event: object = None, **order: Unpack[Order]
    ) -> hal.Submission: ...
    def notify_external(
        self,
        stream: object = None,
        *,
        event: object = None,
        wait: Waits = (),
        timeout: float | None = None,
    ) -> hal.Submission: ...
    def flush(self) -> None: ...
    def wait_idle(self, timeout: float | None = None) -> None: ...
    def close(self, timeout: float = 10.0) -> tuple[str, ...]: ...


@runtime_checkable
class Queues(Protocol):
    """The three queues that every device has (Q3)."""

    @property
    def compute(self) -> Queue: ...
    @property
    def upload(self) -> Queue: ...
    @property
    def download(self) -> Queue: ...


@runtime_checkable
class Device(Protocol):
    """An open device: its queues, memory and kernels."""

    @property
    def name(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def info(self) -> DeviceInfo: ...
    @property
    def features(self) -> frozenset[str]: ...
    @property
    def queue(self) -> Queue: ...
    @property
    def queues(self) -> Queues: ...
    @property
    def closed(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    @property
    def loss(self) -> hal.HalError | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def create_queue(
        self, *, name: str | None = None, ordered: bool = True, stream: object = None
    ) -> Queue: ...
    def create_semaphore(
        self, initial: int = 0, *, name: str | None = None, shareable: bool = False
    ) -> Semaphore: ...
    def open(self, ticket: Any) -> Any: ...  # noqa: ANN401 - by the kind of ticket
    def can_access(self, other: hal.Device) -> bool: ...
    def enable_access(self, other: hal.Device) -> None: ...
    def share_loss(self, other: hal.Device) -> None: ...
    @property
    def heaps(self) -> tuple[MemoryHeap, ...]: ...
    def query_memory(
        self,
        *,
        memory: str | MemoryType = MemoryType.DEVICE,
        usage: BufferUsage = BufferUsage.ALL,
        access: str = "all",
        size: int = 1,
    ) -> MemoryQuery: ...
    def allocate(
        self,
        size: int,
        *,
        dtype: DTypeLike = np.uint8,
        memory: str | MemoryType = MemoryType.DEVICE,
        usage: BufferUsage = BufferUsage.ALL,
        access: str = "all",
        shareable: bool = False,
    ) -> hal.Buffer: ...
    def import_array(
        self, array: object, *, release: Callable[[], object] | None = None
    ) -> hal.Buffer: ...
    def empty(self, shape: Shape, dtype: DTypeLike) -> hal.Buffer: ...
    def zeros(self, shape: Shape, dtype: DTypeLike) -> hal.Buffer: ...
    def full(self, shape: Shape, value: object, dtype: DTypeLike) -> hal.Buffer: ...
    def upload(self, array: object) -> hal.Buffer: ...
    def compile(
        self,
        source: str | Mapping[str, str],
        *,
        filename: str = "kernel.cpp",
        defines: Mapping[str, object] | None = None,
        options: Sequence[str] | Mapping[str, Sequence[str]] = (),
        include_directories: Sequence[str | os.PathLike[str]] = (),
        trace: bool | str | None = None,
        omitted_output: str = "print",
    ) -> Executable: ...
    def load(
        self,
        image: hal.Program | bytes | str | os.PathLike[str],
        *,
        signatures: Mapping[str, str | hal.Signature] | None = None,
    ) -> Executable: ...
    def from_dlpack(self, tensor: object, *, copy: bool | None = None) -> hal.Buffer: ...
    def record(
        self,
        *,
        slots: SlotSpecs = 0,
        one_shot: bool = False,
        hazards: str = "manual",
        categories: str = "all",
        command_buffer: str | None = None,
    ) -> hal.CommandBuffer: ...
    def statistics(self, *, reset_peak: bool = False) -> MemoryStatistics: ...
    def trim(self, keep: int = 0) -> int: ...
    def wait_idle(self, timeout: float | None = None) -> None: ...
    def close(self, timeout: float = 10.0) -> tuple[str, ...]: ...
