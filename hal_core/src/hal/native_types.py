"""Arguments and results of the native primitives: plain records and enumerations.

`hal.native` exports all of it; import it from there.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from hal.dialect import needs_files
from hal.errors import InvalidArgumentError

__all__ = [
    "FEATURES",
    "CallTable",
    "CompileRequest",
    "CompiledImage",
    "CopyNode",
    "DeviceInfo",
    "EmptyNode",
    "EntryPoint",
    "FillNode",
    "FunctionInfo",
    "HostCopyNode",
    "ImageInfo",
    "IndirectLaunchNode",
    "KernelInfo",
    "LaunchNode",
    "LaunchUpdate",
    "MemoryType",
    "Node",
    "PeerCopyNode",
]


class MemoryType(enum.Enum):
    """A kind of memory (rule M1)."""

    DEVICE = "device"
    """Device-local: ``cuMemAlloc``, ``hipMalloc``."""
    HOST = "host"
    """Host-local and pinned, reached by the device: ``cuMemHostAlloc``, ``hipHostMalloc``."""
    MANAGED = "managed"
    """Device-local and host-visible: ``cuMemAllocManaged``, ``hipMallocManaged``."""


FEATURES: Final = frozenset(
    {
        "async_allocations",  # stream-ordered allocation
        "compile",  # `NativeCompiler.compile` makes images for the device
        "external_streams",  # streams and events that other libraries have made
        "graphs",  # native command graphs
        "host_import",  # host memory becomes the device's without a copy
        "host_visible_device_memory",  # MemoryType.DEVICE addresses are host pointers
        "memory_sharing",  # processes open device memory of others
        "indirect_dispatch",  # launches that read their grid from memory when they run
        "occupancy",  # how many blocks of a kernel a compute unit holds at once
        "pageable_copies",  # copies from, to and between any host memory enqueue without blocking
        "peer_access",  # copies between devices, and kernels that use another one's memory
        "stream_values",  # a stream writes numbers to pinned memory, and waits for them
        "timestamps",  # points in time on a stream
    }
)
"""Every optional feature that `NativeDevice.features` may name."""

_MACRO: Final = r"(?a)[A-Za-z_]\w*(?:\([^()\n]*\))?"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The description of one physical device."""

    index: int
    """The ordinal in the driver's own order, from 0."""
    name: str
    """The vendor's name of the device."""
    uuid: str
    """A string that is the same in every process on this machine."""
    architecture: str
    """The compile target: ``"sm_90"``, ``"gfx942"``, ``"x86_64"``."""
    total_memory: int
    """Bytes of device memory."""
    compute_units: int
    """Multiprocessors, compute units or processor cores."""
    max_threads_per_block: int
    max_shared_memory: int
    """Limits of one block: threads, and bytes of shared memory."""
    warp_size: int
    """Threads that run in lock-step."""
    driver: str
    """The driver's name and version, for reports."""
    properties: Mapping[str, str | int | float] = field(default_factory=dict)
    """Other information from the vendor, for display only."""


class EntryPoint(NamedTuple):
    """A ``__global__`` function as the core's scanner finds it."""

    name: str
    """The function's name, without namespaces."""
    parameters: tuple[tuple[str, str], ...]
    """Its parameters as ``(type text, name)``, in order."""
    line: int
    """The line of the declaration in the source, from 1."""
    parameters_start: int
    """The offset in the source just after the opening parenthesis."""
    parameters_end: int
    """The offset of the closing one."""
    body_start: int
    """The offset of the opening brace."""
    body_end: int
    """The offset just after the closing one."""
    block: tuple[str, ...] = ()
    """The C++ expressions in its mark ``HAL_BLOCK(x, y, z)``, empty without one. The core has
    blanked the marks out of the source, and put their values into the type table."""
    shared_memory: str = ""
    """The one in ``HAL_SHARED_MEMORY(bytes)``."""
    launch_bounds: str = ""
    """The C++ expression for the most threads of a block, the first one in its
    ``__launch_bounds__``; empty without one."""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A request for an image of portable kernel source.

    Raises `InvalidArgumentError` for an invalid name of a macro, and for a
    value of several lines.
    """

    source: str
    """The user's text in the portable dialect (see docs/kernels.md)."""
    filename: str
    """The source's name in errors."""
    entries: tuple[EntryPoint, ...]
    """Its entry points."""
    type_table: str
    """C++ text to append after the source, at namespace scope. It defines two globals marked
    ``HAL_TABLE``, a macro that the backend defines before it so that `NativeDevice.get_global`
    finds them in the image."""
    defines: Mapping[str, str] = field(default_factory=dict)
    """Macros, name to value."""
    options: tuple[str, ...] = ()
    """Further options, passed to the compiler unchanged."""
    include_directories: tuple[str, ...] = ()
    """Directories for ``#include``, in order."""
    part: bool = False
    """Whether the image is one that `NativeCompiler.link` takes, and no device."""
    prelude: str = ""
    """Portable C++ text to put before the source, at namespace scope, which neither the places of
    the entry points nor messages count."""

    def __post_init__(self) -> None:
        """Check the macros."""
        for name, value in self.defines.items():
            if not re.fullmatch(_MACRO, name):
                raise InvalidArgumentError(f"defines: {name!r} is no name of a macro")
            if "\n" in value or "\r" in value:
                raise InvalidArgumentError(f"defines: the value of {name!r} has a line break")

    @property
    def macros(self) -> str:
        """Return `defines` as preprocessor lines."""
        return "".join(f"#define {name} {value}\n" for name, value in self.defines.items())

    @property
    def has_includes(self) -> bool:
        """Whether the compiler may read files, which change: then no image is kept.

        The headers of `hal.dialect` are no such files.
        """
        return (
            any(map(needs_files, (self.source, *self.defines.values())))
            or any(option.startswith(("-i", "--i", "@")) for option in self.options)
            or any(option[:1] == "-" and "include" in option for option in self.options)
        )


class CompiledImage(NamedTuple):
    """The result of a `NativeCompiler`."""

    target: str
    """Its target, in the backend's words: ``"sm_90"``, ``"gfx942"``."""
    image: bytes
    """The bytes that `NativeDevice.load_module` takes."""
    log: str = ""
    """The compiler's messages, though it succeeded."""
    properties: Mapping[str, str] = MappingProxyType({})
    """Other notes of the backend, for itself or for people: the compiler's version, the processor's
    features."""


class KernelInfo(NamedTuple):
    """A kernel of an image, as the image describes it."""

    signature: str | None = None
    """Its parameters as `hal.Signature.parse` takes them, ``any[8]`` for one of which only the size
    is known; None where only loading tells."""
    block: tuple[int, int, int] | None = None
    """The only block in x, y and z that it runs with, if there is one."""
    max_threads: int = 0
    """The most threads of a block, 0 where it does not say."""


class ImageInfo(NamedTuple):
    """An image, as it describes itself."""

    target: str
    """The target that it was made for, as `CompiledImage.target`."""
    kernels: Mapping[str, KernelInfo] | None = None
    """Its kernels by their names in the image; None where it does not list them."""
    properties: Mapping[str, str] = MappingProxyType({})
    """As of `CompiledImage`: what `NativeCompiler.rank` reads."""


class FunctionInfo(NamedTuple):
    """The driver's description of a loaded kernel."""

    max_threads_per_block: int
    """The most threads that a block of this kernel may have."""
    static_shared_memory: int
    """Bytes of shared memory that it declares itself."""
    parameter_sizes: tuple[int, ...] | None
    """Bytes of each parameter in order, or None if the driver does not tell."""


class FillNode(NamedTuple):
    """A fill in a graph; the fields are the arguments of `NativeDevice.fill`."""

    address: int
    pattern: int
    width: int
    times: int


class CopyNode(NamedTuple):
    """A copy on the device in a graph; the fields are the arguments of `NativeDevice.copy`."""

    target: int
    source: int
    size: int


class HostCopyNode(NamedTuple):
    """A copy from host memory in a graph; the fields are those of `NativeDevice.copy_from_host`.

    The core keeps the host memory alive and unchanged as long as the graph.
    """

    target: int
    source: int
    size: int


class PeerCopyNode(NamedTuple):
    """A copy between two devices in a graph; the fields are those of `NativeDevice.copy_peer`.

    The graph's device is one of the two, and reaches the other (`NativeDevice.can_access_peer`).
    """

    target: int
    target_device: object
    source: int
    source_device: object
    size: int


class LaunchNode(NamedTuple):
    """A kernel launch in a graph; the fields are the arguments of `NativeDevice.launch`.

    The parameters are copied by the call that takes the node.
    """

    function: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory: int
    parameters: int


class IndirectLaunchNode(NamedTuple):
    """A launch over a grid read from memory; the fields are those of `launch_indirect`."""

    function: int
    counts: int
    block: tuple[int, int, int]
    shared_memory: int
    parameters: int


class EmptyNode(NamedTuple):
    """A node without work: orders what it depends on before what depends on it."""


Node: TypeAlias = (
    FillNode | CopyNode | HostCopyNode | PeerCopyNode | LaunchNode | IndirectLaunchNode | EmptyNode
)
"""One command of a graph, the same for every backend."""


class LaunchUpdate(NamedTuple):
    """A launch in a graph instance, as `CallTable.update_launch` takes it."""

    node: int
    """The vendor's handle of the node."""
    structure: bytes
    """Bytes of the vendor's structure of a launch's parameters. The core aligns them to 8."""
    grid: int
    """The place in them of the grid, three ``unsigned`` that the core replaces."""


class CallTable(NamedTuple):
    """The addresses of C functions that do what the commonest primitives do.

    The core's C code calls them in the place of `NativeDevice`'s methods where nothing
    unusual is asked for. Each takes the handles that the methods take, and returns an
    ``int`` status, 0 for success. After any other status the core calls the method, which
    repeats the call and raises its error: a call that fails must change nothing.

    Any thread calls them, without `NativeDevice.bind`; for one stream one thread at a time.
    **The interpreter lock is kept meanwhile**: on a stream that `NativeDevice.create_stream`
    has made, with fewer launches in it than `NativeDevice.max_in_flight` and fewer than
    `most_launches` in all streams of the device, none of them may block, need the
    interpreter lock, or wait for a thread that does. The addresses are valid as long as the
    device is open.
    """

    record_event: int
    """``int (void *event, void *stream)``"""
    wait_event: int
    """``int (void *stream, void *event, unsigned flags)``; the flags are 0, and the event may be
    one of another device of the domain."""
    query_event: int
    """``int (void *event)``: 0, or `not_ready`."""
    fill_8: int
    """``int (uintptr_t address, unsigned char value, size_t count, void *stream)``: writes the
    value `count` > 0 times."""
    fill_16: int
    """The same with an ``unsigned short`` value, and an address that is a multiple of 2."""
    fill_32: int
    """The same with an ``unsigned`` value, and an address that is a multiple of 4."""
    launch: int
    """``int (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz, unsigned shared_memory, void *stream, void **parameters, void **extra)``: the
    arguments of `NativeDevice.launch`; `extra` is NULL. Refuses what the method prepares first."""
    launch_graph: int
    """``int (void *instance, void *stream)``; 0 where the device does not declare ``graphs``."""
    current: int
    """``int (void **context)``: writes what is current on the calling thread to 8 bytes that are
    zero before; an ``int`` is also fine. 0: every thread may call."""
    context: int
    """What `current` writes on a thread that may make the calls. On any other the core calls
    `make_current` first, or if that is 0 the methods, after `NativeDevice.bind`."""
    not_ready: int
    """The status of `query_event` for an event that is not complete; not 0."""
    exchange_capture_mode: int = 0
    """``int (int *mode)``: exchanges the calling thread's capture mode and the number. The core
    makes the mode relaxed (2) around `query_event`, which would end another library's capture
    otherwise (`hal.capture_modes`). 0: not needed."""
    most_launches: int = 0
    """How many launches of the core's may be in flight on all streams together: a driver that has
    streams share a channel blocks when that is full. Beyond it, and on a stream that
    `NativeDevice.export_stream` has let others fill, the functions are called without the
    interpreter lock. 0: `NativeDevice.max_in_flight` is enough."""
    allocate_async: int = 0
    """``int (uintptr_t *address, size_t size, void *pool, void *stream)``: does what
    `NativeDevice.allocate_async` does, in the relaxed capture mode as `query_event`. The core calls
    it for memory that the pool has held before and keeps (`NativeDevice.configure_pool`). It must
    not wait for the device; for want of memory it fails. 0: the method is called."""
    free_async: int = 0
    """``int (uintptr_t address, void *stream)``: does what `NativeDevice.free_async` does, in the
    same mode. 0: the method is called."""
    pool: int = 0
    """What `allocate_async` takes as its pool."""
    update_launch: int = 0
    """``int (void *instance, void *node, const void *structure)``: does what
    `NativeDevice.update_graph` does for a launch over a grid without zeros, with what
    `NativeDevice.launch_update` has given. 0: the method is called."""
    write_value: int = 0
    """``int (void *stream, uintptr_t address, uint64_t value, unsigned flags)``: does what
    `NativeDevice.write_value` does; the flags are 0. 0 without ``stream_values``."""
    wait_value: int = 0
    """``int (void *stream, uintptr_t address, uint64_t value, unsigned flags, uint64_t mask)``:
    does what `NativeDevice.wait_value` does; the flags are 0, and the mask has all bits. A function
    that takes no mask will do: C's calling conventions let it ignore the last one. 0 without
    ``stream_values``."""
    copy: int = 0
    """``int (uintptr_t target, uintptr_t source, size_t size, void *stream)``: does what
    `NativeDevice.copy`, `NativeDevice.copy_from_host` and `NativeDevice.copy_to_host` do. With the
    interpreter lock it is called for memory of the device and pinned memory only, and without it,
    in the relaxed capture mode, for any. 0: the methods are called."""
    synchronize_stream: int = 0
    """``int (void *stream)``: does what `NativeDevice.synchronize_stream` does, without the
    interpreter lock and in the relaxed capture mode. 0: the method is called."""
    make_current: int = 0
    """``int (void *context)``: makes `context` current on the calling thread, for good, as
    `NativeDevice.bind` does; it may take an ``int``."""
    query_stream: int = 0
    """``int (void *stream)``: 0 if all work on the stream has completed, or `not_ready`, in the
    same mode as `query_event`. With it the core records fewer events. 0 where an operation can
    fail by itself, which only its event tells: then each operation has one."""
    call: int = 0
    """``int (void *stream, int (*function)(void *, int helps), void *argument)``: has the stream
    call a plain function with 0, which may block for as long as other processes do. A thread that
    waits for the stream may call it with 1 instead, until it returns 1: then it returns soon, and 0
    if it has not ended. One thread at a time is inside. 0 where streams are no threads of the
    process, or do not work on its memory."""
    await_event: int = 0
    """``int (void *event, uint64_t nanoseconds)``: does what `query_event` does, but runs what the
    stream may leave to a thread that waits (`call`), and where the work wants the processor of a
    thread that asks for it, the calling thread sleeps first, until the event is complete or the
    time is up. Called without the interpreter lock, and the event may be destroyed meanwhile.
    0: a thread that asks yields its processor in between."""
