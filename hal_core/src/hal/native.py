"""The interface that a vendor implements: native primitives, nothing generic.

A plugin subclasses `NativeDriver` and `NativeDevice`. Everything that is the
same on every device (timelines, pending work, command buffers, lifetimes,
failure) is the core's. The rules that hold for every method:

- Handles (streams, events, modules, functions, graphs) are positive integers,
  opaque to the core. Addresses are integers. Sizes and offsets are bytes.
- The core has checked every argument: sizes fit, ranges lie inside their
  allocation, handles are alive, features are declared. A method may assume so.
- The core calls `bind` on a thread before the first primitive of each batch.
  Any thread may call any method; for one stream the core makes one call at a
  time, for different streams several threads call at once.
- A user's signal handler may interrupt a method that is written in Python, and have the same
  thread call another: such a method holds no lock that the other waits for (O3).
- A method that takes a stream only enqueues: it waits neither for the device
  nor for the host, except as its docstring says. Release the interpreter lock
  in every call that can take longer than a microsecond.
- A failure raises: `DeviceLostError` when the context cannot go on,
  `OutOfMemoryError` when there is no memory, `UnimplementedError` for a missing
  feature, `OperationError` otherwise, each with ``native_name`` and
  ``native_code``.
- No method calls back into the core, and no driver thread runs Python.
- Methods of an optional feature (`FEATURES`; most are in `hal.native_options`)
  are called only if the device declares it, and need not be implemented otherwise.

The records that the methods take and return are in `hal.native_types`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from hal import native_types
from hal.errors import OperationError, UnimplementedError
from hal.native_options import OptionalPrimitives, missing
from hal.native_types import *  # noqa: F403 - all of it is exported here
from hal.native_types import (
    CallTable,
    CompiledImage,
    CompileRequest,
    DeviceInfo,
    FunctionInfo,
    ImageInfo,
    MemoryType,
)

__all__ = ["NativeCompiler", "NativeDevice", "NativeDriver"]
__all__ += native_types.__all__


class NativeCompiler(ABC):
    """The compiler of a backend, which needs no device; `hal.plugin.Backend.compiler` returns it.

    Any thread may call any method; several compile at once. A target is the
    part behind the colon in ``"cuda:sm_90"``.
    """

    @abstractmethod
    def compile(self, request: CompileRequest, target: str) -> CompiledImage:
        """Compile for a target; an empty one is the backend's default.

        The image's `CompiledImage.target` is never empty. Raises
        `CompilationError` with the compiler's log, `InvalidArgumentError` for
        an unknown target, with some known ones, and
        `UnimplementedError`, whose text says how to get a compiler.
        """

    def link(self, parts: Sequence[CompiledImage], target: str) -> CompiledImage:
        """Link several images that were compiled as parts for the same target.

        Raises `CompilationError` with the linker's log.
        """
        raise UnimplementedError("it links no images")

    def image_info(self, image: bytes, target: str) -> ImageInfo:
        """Return what an image that another compiler made says of itself, without loading it.

        `target` is what the user says that it was made for; empty to be told by the image. May
        be any bytes. Raises `OperationError` with what they are if no device of the backend
        takes them, and `InvalidArgumentError` if the image is for another target, or neither
        says one.
        """
        if not target:
            raise OperationError("its images do not say what they are for")
        return ImageInfo(target)

    def target_of(self, info: DeviceInfo) -> str:
        """Return the target that suits a device best."""
        return info.architecture

    def rank(self, image: CompiledImage, info: DeviceInfo) -> int:
        """Return how well an image suits a device: 0 for not at all, more for better."""
        return int(image.target == info.architecture)


class NativeDriver(ABC):
    """The driver of one vendor, which enumerates and opens its devices."""

    __slots__ = ()

    parameters: ClassVar[tuple[str, ...]] = ()
    """The names of the backend's own device parameters; the core refuses all others."""

    @abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """Return every device in the driver's order, index i at position i; create no context."""

    @abstractmethod
    def open_device(self, index: int, parameters: Mapping[str, str]) -> NativeDevice:
        """Open a device and retain its context.

        `parameters` are those of the class's `parameters` that the user gave,
        as text. Raises `InvalidArgumentError` for a wrong value, and any
        `HalError` if the device cannot be opened: the core makes it a
        `BackendUnavailableError` that names the device.
        """


class NativeDevice(OptionalPrimitives, ABC):
    """One device's context, and the native calls on it."""

    __slots__ = ("domain", "features", "info", "max_in_flight")

    graph_commands: ClassVar[int] = 1
    """From so many commands on, a recording that runs again is submitted faster as a graph than
    replayed on a stream; 0 for never. Measured with ``benchmarks/lowering.py``; "auto" goes by it
    (C4)."""
    graph_launches: ClassVar[int] = 0
    """The same for a recording of nothing but launches; 0 for no other number."""

    info: DeviceInfo
    """What the device is."""
    features: frozenset[str]
    """The optional features that work natively here, out of `FEATURES`."""
    domain: object
    """Devices with equal domains can wait for each other's events on their streams. Usually the
    driver object. Compared with ``is``."""
    max_in_flight: int
    """Launches that one stream takes, each with an event recorded behind it, before launching would
    block (Q1)."""

    # Context

    @abstractmethod
    def bind(self) -> None:
        """Make this device's context current on the calling thread; cheap when it is."""

    @abstractmethod
    def close(self) -> None:
        """Release the context.

        Every stream, event, allocation and module has been destroyed before,
        unless the device was lost.
        """

    def call_table(self) -> CallTable | None:
        """Return the addresses of C functions for the commonest primitives, or None for none.

        Called once, when the device is opened. Without a table the core calls the methods.
        """
        return None

    # Streams and events

    @abstractmethod
    def create_stream(self) -> int:
        """Create a stream that never synchronises with others by itself."""

    @abstractmethod
    def destroy_stream(self, stream: int) -> None:
        """Destroy an idle stream."""

    @abstractmethod
    def synchronize_stream(self, stream: int) -> None:
        """Block until the stream is idle, with the interpreter lock released."""

    @abstractmethod
    def create_event(self) -> int:
        """Create an event without timing; it counts as complete until it is recorded."""

    @abstractmethod
    def destroy_event(self, event: int) -> None:
        """Destroy an event; streams may still hold waits for it.

        Its last record is complete, unless that is on an adopted stream.
        """

    @abstractmethod
    def record_event(self, event: int, stream: int) -> None:
        """Let the event stand for all work enqueued on the stream so far; overwrites."""

    @abstractmethod
    def wait_event(self, stream: int, event: int) -> None:
        """Make later work of the stream wait for the event's last record.

        The record is captured by the call: recording again later changes
        nothing for this wait. The event may belong to another device of the
        same domain.
        """

    @abstractmethod
    def query_event(self, event: int) -> bool:
        """Return whether the event's last record has completed; never blocks.

        Raises `DeviceLostError` if work failed so that the whole context is lost, as in CUDA and
        HIP, `WorkFailedError` if work up to a complete event failed alone (until `forget_failure`),
        and any other `HalError` if the driver refuses to answer (O2). The core asks the newest
        event of a stream first, and takes an answer of True for all before it.
        """

    def forget_failure(self, stream: int, code: int) -> None:
        """Forget a stream's failures up to that of native code `code`: its operation has failed."""
        raise missing("failures of single operations")

    @abstractmethod
    def notify(self, stream: int, function: int, argument: int) -> None:
        """Call a plain C function on a driver's thread after the stream's work so far.

        `function` is the address of a ``void (*)(void *)`` that makes no
        native call, `argument` its argument.
        """

    def notify_event(self, event: int, function: int, argument: int) -> bool:
        """Make such a call once an event's last record is complete, without a stream; return True.

        By default this does nothing and returns False: the core has a stream of its own wait for
        the event, and calls `notify` behind that. On a device whose streams are threads, that
        is one thread more to wake.
        """
        return False

    # Memory

    @abstractmethod
    def allocate(self, size: int, memory: MemoryType) -> int:
        """Return the address of `size` > 0 bytes, aligned to 256; may block.

        `MemoryType.HOST` is pinned for every device of the domain; all of them
        copy from and to it by this address. Raises `OutOfMemoryError` if there is not enough.
        """

    @abstractmethod
    def free(self, address: int, memory: MemoryType) -> None:
        """Give back an allocation that no work uses; may block until the device is idle."""

    @abstractmethod
    def host_pointer(self, address: int, memory: MemoryType) -> int | None:
        """Return the allocation's address for the host, or None if the host cannot see it."""

    @abstractmethod
    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total bytes of device memory."""

    def dlpack_device(self, memory: MemoryType) -> tuple[int, int] | None:
        """Return DLPack's type and number of this device for a kind of memory.

        ``(1, 0)``: the memory is host memory, and the device can use any host memory.
        None: hal exports only memory that the host sees, and copies what it
        imports.
        """
        return None

    def locate(self, address: int) -> tuple[int, int] | None:
        """Return DLPack's type and number of the device that owns a foreign address.

        None: the driver does not know the address, or cannot tell. Called
        before memory is imported whose owner does not name its device.
        """
        return None

    # Transfers, on a stream

    @abstractmethod
    def fill(self, stream: int, address: int, pattern: int, width: int, count: int) -> None:
        """Write `count` > 0 times the low `width` bytes (1, 2 or 4) of `pattern`.

        `address` is a multiple of `width`.
        """

    @abstractmethod
    def copy(self, stream: int, target: int, source: int, size: int) -> None:
        """Copy `size` > 0 bytes between allocations of this device that do not overlap.

        May block where both are of `MemoryType.HOST`, imported ones too, and
        the device does not declare ``pageable_copies``: the core copies those
        itself, and those of a recording on a thread of its own, on a stream
        that is idle. A graph has none of them then.
        """

    @abstractmethod
    def copy_from_host(self, stream: int, target: int, source: int, size: int) -> None:
        """Copy `size` > 0 bytes from host memory, which the core keeps alive until then.

        May block where the memory is pageable, or the target of
        `MemoryType.HOST`, and the device does not declare ``pageable_copies``.
        """

    @abstractmethod
    def copy_to_host(self, stream: int, target: int, source: int, size: int) -> None:
        """Copy `size` > 0 bytes to host memory; the rest as `copy_from_host`."""

    def copy_and_wait(
        self,
        copy: Callable[[int, int, int, int], object],
        stream: int,
        target: int,
        source: int,
        size: int,
    ) -> None:
        """Copy by `copy`, which is `copy_from_host` or `copy_to_host`; block until that is done.

        The stream is idle, and no other thread uses it meanwhile. The host's memory is of any
        kind. The interpreter lock is released as long as it takes.
        """
        copy(stream, target, source, size)
        self.synchronize_stream(stream)

    # Kernels

    @abstractmethod
    def load_module(self, image: bytes) -> int:
        """Load an image; raises `OperationError` when it is not one for this device.

        May block until all work on the device has ended, as CUDA's does: users
        are told to load before they submit.
        """

    @abstractmethod
    def unload_module(self, module: int) -> None:
        """Unload a module that no work uses; may block until all work on the device has ended."""

    @abstractmethod
    def get_function(self, module: int, name: str) -> int:
        """Return a kernel of the module; raises `NotFoundError`."""

    @abstractmethod
    def function_info(self, function: int) -> FunctionInfo:
        """Describe a kernel."""

    @abstractmethod
    def get_global(self, module: int, name: str) -> tuple[int, int]:
        """Return a global's address and size in bytes; raises `NotFoundError`."""

    @abstractmethod
    def launch(
        self,
        stream: int,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_memory: int,
        parameters: int,
    ) -> None:
        """Launch a kernel over ``grid`` blocks of ``block`` threads, all > 0.

        `shared_memory` is the dynamic shared memory in bytes, at most what
        `allow_shared_memory` was last asked for. `parameters` is the address of
        an array with one pointer to each argument's bytes; they are copied
        during the call.
        """

    def allow_shared_memory(self, function: int, size: int) -> None:
        """Allow a function `size` > 0 bytes of dynamic shared memory in launches, and in graphs.

        Called before the first launch, node of a graph or question for the occupancy that has more
        than any before; by any thread, also for less than another one has asked for meanwhile,
        which takes nothing back. Must not block. By default nothing: no request is needed.
        """

    # Points in time: the feature "timestamps"

    def create_timer(self) -> int:
        """Create a timer, by default an event with timing."""
        raise missing("timestamps")

    def destroy_timer(self, timer: int) -> None:
        """Destroy a timer whose last record is complete; by default as an event."""
        self.destroy_event(timer)

    def record_timer(self, timer: int, stream: int) -> None:
        """Take the time when all work enqueued on the stream so far has ended; overwrites.

        By default as `record_event`.
        """
        self.record_event(timer, stream)

    def elapsed(self, first: int, second: int) -> float:
        """Return the seconds from one timer's time to another's, negative if it was earlier.

        Both are this device's, recorded and complete, on any streams.
        """
        raise missing("timestamps")

    # Other devices: the feature "peer_access"

    def can_access_peer(self, other: NativeDevice) -> bool:
        """Return whether kernels of this device could use memory of `other`.

        `other` is an open device of the same domain; or the same hardware, opened twice.
        """
        raise missing("peer_access")

    def enable_peer(self, other: NativeDevice) -> None:
        """Let kernels of this device use all memory of `other` from now on; may block.

        However it is or will be allocated. `can_access_peer` has returned True.
        Enabling again is no error. The opposite direction is not enabled.
        """
        raise missing("peer_access")

    def copy_peer(
        self,
        stream: int,
        target: int,
        target_device: NativeDevice,
        source: int,
        source_device: NativeDevice,
        size: int,
    ) -> None:
        """Copy `size` > 0 bytes between the memories of two devices of this domain.

        On a stream of this device, which is one of the two. Works between any
        two devices of the domain, whether or not `enable_peer` was called. For
        two host allocations the same holds as in `copy`.
        """
        raise missing("peer_access")
