"""The native primitives on the C runtime."""

from __future__ import annotations

import ctypes
import errno
import itertools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hal.errors import OperationError, OutOfMemoryError, WorkFailedError
from hal.handlers import own
from hal.locks import RLock
from hal.native import (
    FEATURES,
    CallTable,
    DeviceInfo,
    FunctionInfo,
    LaunchNode,
    LaunchUpdate,
    MemoryType,
    NativeDevice,
    Node,
)
from hal_cpu import _driver, _graph, _module, _system

if TYPE_CHECKING:
    from hal_cpu.driver import CpuDriver

__all__ = ["CpuDevice"]

_FEATURES: Final = FEATURES - {"async_allocations", "stream_values", "memory_sharing"}
"""Not those that serve a driver's own memory: the core's pool, its events, and shared memory of the
host do as well."""
_SLICE: Final = 50_000_000
"""The nanoseconds that a blocking call stays in C before it checks for signals."""
_LOOK_FROM: Final = 64 << 20
"""The size from which an allocation asks the system first how much is free."""

_pack_one: Final = struct.Struct("=QQ").pack_into
_pack_two: Final = struct.Struct("=QQQ").pack_into
_pack_three: Final = struct.Struct("=QQQQ").pack_into
_pack_four: Final = struct.Struct("=QQQQQ").pack_into
_pack_launch: Final = struct.Struct("=QQQIII4xIIII").pack_into
_pack_indirect: Final = struct.Struct("=QQQQ8xIIII").pack_into

_COUNTER: Final = 0xFFFF
"""The bits of an event that are the index of a stream's counter."""

_TEXT: Final = 512
"""The bytes of a failure's text."""

_handles = itertools.count(1)
"""Handles of modules, of all devices."""

_mailboxes: Final[dict[int, list[int]]] = {}
"""The unused mailboxes of each stream that was adopted, as parts of handles."""


class CpuDevice(NativeDevice):
    """A device with threads for streams, host memory for its own, and machine code for kernels.

    A stream's handle is its slot in the runtime, an event's its place in the
    runtime's table, a function's the address of its ``struct hal_kernel``, a
    graph's or an instance's its own address.
    """

    __slots__ = (
        "_all_events",
        "_allocated",
        "_completed",
        "_enqueue",
        "_events",
        "_fence",
        "_imported",
        "_lock",
        "_mail",
        "_modules",
        "_runtime",
        "_seed",
        "_sizes",
        "_threads",
    )

    # Measured, see docs/command-buffers.md, with the C extension and without.
    graph_commands = 2

    def __init__(self, driver: CpuDriver, info: DeviceInfo, threads: int, seed: int) -> None:
        """Open the device; `threads` work on one operation.

        `seed` > 0 decides the order of a graph's nodes, where it is free.
        """
        self.info = info
        self.features = _FEATURES
        self.domain = driver
        # A stream takes any number of operations; this bounds the memory.
        self.max_in_flight = 65536
        self._runtime = driver.runtime
        self._all_events = driver.events
        self._events = driver.events.words
        self._completed = driver.runtime.progress
        self._mail = driver.runtime.mailboxes
        self._enqueue = driver.runtime.enqueue
        self._fence = driver.runtime.fence
        self._threads = threads
        self._seed = seed
        self._lock = RLock()  # a signal handler may allocate meanwhile
        self._sizes: dict[int, int] = {}
        self._modules: dict[int, _module.Module] = {}
        self._imported: dict[int, int] = {}
        self._allocated = 0

    # Context

    def bind(self) -> None:
        """Do nothing: any thread may use the device."""

    def close(self) -> None:
        """Do nothing: a device owns only its streams, memory and modules."""

    def call_table(self) -> CallTable | None:
        return self._runtime.calls

    # Streams and events

    def create_stream(self) -> int:
        """Create a stream: a thread and a queue of records."""
        stream = self._runtime.create_stream(self._threads)
        if stream < 0:
            message = (
                "cannot create a stream: it needs a thread of its own, and the system gives no more"
            )
            raise OperationError(
                message, native_name=_system.describe_errno(-stream), native_code=-stream
            )
        return stream

    def destroy_stream(self, stream: int) -> None:
        """End the stream's thread; blocks until all its work is done."""
        self._check(self._runtime.destroy_stream(stream))

    def synchronize_stream(self, stream: int) -> None:
        """Block until all that was enqueued so far is done; Ctrl-C ends it."""
        slot = stream % _driver.SLOTS
        enqueued = self._completed[slot * 16 + 8]
        while not self._runtime.synchronize(slot, enqueued, _SLICE):
            pass

    def create_event(self) -> int:
        return self._all_events.create()

    def destroy_event(self, event: int) -> None:
        """End the event; waits that captured it keep their copies."""
        self._all_events.destroy(event)

    def record_event(self, event: int, stream: int) -> None:
        """Let the event stand for the records enqueued so far; takes no record itself."""
        word = stream << 4 & _COUNTER
        self._events[event] = self._completed[word + 8] << 16 | word

    def wait_event(self, stream: int, event: int) -> None:
        found = self._events[event]
        word, count = found & _COUNTER, found >> 16
        if self._completed[word] < count and word != stream << 4 & _COUNTER:
            if found == _driver.ENDED:
                self._check(errno.EINVAL)
            _pack_two(self._mail, stream << 6, _driver.WAIT, word >> 4, count)
            if error := self._enqueue(stream):
                self._check(error)

    def query_event(self, event: int) -> bool:
        """Return whether the event's last record has completed.

        Makes no call, unless a kernel failed: then it raises `WorkFailedError`.
        """
        found = self._events[event]
        if self._completed[found & _COUNTER] < found >> 16:
            if found == _driver.ENDED:
                self._check(errno.EINVAL)
            return False
        fault = self._completed[(found & _COUNTER) + 1]
        if fault <= found >> 16:
            text = ctypes.create_string_buffer(_TEXT)
            self._runtime.fault((found & _COUNTER) >> 4, fault, text, _TEXT)
            if text.value:
                reason = text.value.decode(errors="replace")
                raise WorkFailedError(reason, native_name="FAULT", native_code=fault)
        if self._fence is not None:
            self._fence()
        return True

    def forget_failure(self, stream: int, code: int) -> None:
        """Forget what made records of the stream fail, up to the one of that number."""
        self._runtime.forget_faults(stream % _driver.SLOTS, code)

    def notify(self, stream: int, function: int, argument: int) -> None:
        _pack_two(self._mail, stream << 6, _driver.CALL, function, argument)
        if error := self._enqueue(stream):
            self._check(error)

    def notify_event(self, event: int, function: int, argument: int) -> bool:
        """Have the worker of the event's stream make the call."""
        if error := self._runtime.notify_event(event, function, argument):
            self._check(error)
        return True

    def _check(self, error: int) -> None:
        """Raise the error that a native call returned, if any."""
        if error == errno.ENOMEM:
            message = "no memory for the queue of a stream"
            raise OutOfMemoryError(message, native_name="ENOMEM", native_code=error)
        if error:
            name = _system.describe_errno(error)
            message = f"the cpu runtime failed with {name}"
            raise OperationError(message, native_name=name, native_code=error)

    # Memory

    def allocate(self, size: int, memory: MemoryType) -> int:  # noqa: ARG002 - all one
        """Return the address of `size` bytes; all kinds of memory are the same here.

        Raises `OutOfMemoryError` if the device's allocations would exceed
        the machine's memory, or a large one the memory that is free now.
        """
        total = self.info.total_memory
        with self._lock:
            enough = self._allocated + size <= total
            if enough:
                self._allocated += size
        if enough:
            # The system overcommits memory, and kills processes later.
            free = self.memory_info()[0] if size >= _LOOK_FROM else size
            address = self._runtime.allocate(size) if size <= free else None
            if address:
                self._sizes[address] = size
                return address
            with self._lock:
                self._allocated -= size
        free = self.memory_info()[0]
        message = (
            f"cannot allocate {size} bytes: {free} of {total} bytes are free, "
            f"this device holds {self._allocated}"
        )
        raise OutOfMemoryError(message, native_name="ENOMEM", native_code=errno.ENOMEM)

    def free(self, address: int, memory: MemoryType) -> None:  # noqa: ARG002 - all one
        size = self._sizes.pop(address)
        self._runtime.free(address)
        with self._lock:
            self._allocated -= size

    def host_pointer(self, address: int, memory: MemoryType) -> int | None:  # noqa: ARG002 - all one
        return address

    def dlpack_device(self, memory: MemoryType) -> tuple[int, int] | None:  # noqa: ARG002 - all one
        return (1, 0)

    def memory_info(self) -> tuple[int, int]:
        """Return the memory available without swapping, and the machine's total."""
        total = self.info.total_memory
        free = _system.free_memory()
        return (max(total - self._allocated, 0) if free is None else min(free, total)), total

    # Transfers

    def fill(self, stream: int, address: int, pattern: int, width: int, count: int) -> None:
        _pack_four(self._mail, stream << 6, _driver.FILL, address, pattern, width, count)
        if error := self._enqueue(stream):
            self._check(error)

    def copy(self, stream: int, target: int, source: int, size: int) -> None:
        """Enqueue a copy between any two memories; never blocks."""
        _pack_three(self._mail, stream << 6, _driver.COPY, target, source, size)
        if error := self._enqueue(stream):
            self._check(error)

    copy_from_host = copy_to_host = copy

    # Kernels

    def load_module(self, image: bytes) -> int:
        """Load a shared object, with its own copy of its variables each time.

        Raises `OperationError` for an image that is not for this processor or
        not for this version of the runtime.
        """
        module = _module.Module(image)
        handle = next(_handles)
        self._modules[handle] = module
        return handle

    def unload_module(self, module: int) -> None:
        self._modules.pop(module).close()

    def get_function(self, module: int, name: str) -> int:
        """Return the address of a kernel's description."""
        return self._modules[module].function(name)

    def function_info(self, function: int) -> FunctionInfo:
        return _module.describe(function)

    def get_global(self, module: int, name: str) -> tuple[int, int]:
        return self._modules[module].variable(name)

    def launch(
        self,
        stream: int,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_memory: int,
        parameters: int,
    ) -> None:
        """Enqueue a launch; the arguments are copied now."""
        _pack_launch(
            self._mail,
            stream << 6,
            _driver.LAUNCH,
            function,
            parameters,
            *grid,
            *block,
            shared_memory,
        )
        if error := self._enqueue(stream):
            self._check(error)

    def launch_indirect(
        self,
        stream: int,
        function: int,
        counts: int,
        block: tuple[int, int, int],
        shared_memory: int,
        parameters: int,
    ) -> None:
        """Enqueue a launch whose grid is read when it runs.

        A grid beyond the limits of `launch`, 2**31 - 1 blocks in x and
        65535 in y and z, ends the process, as a fault of a kernel does.
        """
        _pack_indirect(
            self._mail,
            stream << 6,
            _driver.INDIRECT,
            function,
            parameters,
            counts,
            *block,
            shared_memory,
        )
        if error := self._enqueue(stream):
            self._check(error)

    def occupancy(self, function: int, threads: int, shared_memory: int) -> int:  # noqa: ARG002 - all one
        """Return 1: a processor runs one block after the other."""
        return 1

    # Other devices: all memory is the machine's

    def can_access_peer(self, other: NativeDevice) -> bool:  # noqa: ARG002 - all one
        return True

    def enable_peer(self, other: NativeDevice) -> None:
        """Do nothing."""

    def copy_peer(
        self,
        stream: int,
        target: int,
        target_device: NativeDevice,  # noqa: ARG002 - all one
        source: int,
        source_device: NativeDevice,  # noqa: ARG002 - all one
        size: int,
    ) -> None:
        self.copy(stream, target, source, size)

    # Points in time

    def create_timer(self) -> int:
        """Return the address of a time in nanoseconds."""
        timer = self._runtime.allocate(8)
        if not timer:
            message = "no memory for a timer"
            raise OutOfMemoryError(message, native_name="ENOMEM", native_code=errno.ENOMEM)
        return timer

    def destroy_timer(self, timer: int) -> None:
        self._runtime.free(timer)

    def record_timer(self, timer: int, stream: int) -> None:
        """Make the stream record the time when it gets there."""
        self.notify(stream, self._runtime.stamp_function, timer)

    def elapsed(self, first: int, second: int) -> float:
        start, end = (ctypes.c_int64.from_address(timer).value for timer in (first, second))
        return (end - start) / 1e9

    # Foreign streams and events: those of another device of this process

    def export_stream(self, stream: int) -> int:
        """Return the stream's slot in the runtime, which all devices share."""
        return stream % _driver.SLOTS

    def adopt_stream(self, handle: int) -> int:
        """Return a handle with a mailbox of its own, since the stream's owner may use its own now.

        Raises `OperationError` for a number that never was a stream, and for a stream that
        was adopted too often at once.
        """
        if not 0 < handle < len(self._completed) // 16:
            message = f"{handle} is no stream of the cpu runtime"
            raise OperationError(message, native_name="ENOENT", native_code=errno.ENOENT)
        boxes = range(_driver.SLOTS, len(self._mail) // 64, _driver.SLOTS)
        try:
            # One of two threads gets it.
            return handle + _mailboxes.setdefault(handle, list(boxes)).pop()
        except own(IndexError):
            message = f"stream {handle} of the cpu runtime is adopted too often at the same time"
            raise OperationError(message, native_name="EBUSY", native_code=errno.EBUSY) from None

    def release_stream(self, stream: int) -> None:
        """Let another one have the mailbox; the stream is its owner's."""
        slot = stream % _driver.SLOTS
        _mailboxes[slot].append(stream - slot)

    def adopt_event(self, handle: int) -> int:
        """Return the handle itself; raises `OperationError` for a number that is not an event."""
        if not self._all_events.is_event(handle):
            message = f"{handle} is no event of the cpu runtime"
            raise OperationError(message, native_name="ENOENT", native_code=errno.ENOENT)
        return handle

    # Graphs

    def create_graph(self, nodes: Sequence[Node], dependencies: Sequence[Sequence[int]]) -> int:
        """Copy nodes and dependencies, parameters included."""
        error = ctypes.c_int()
        graph = self._runtime.create_graph(
            len(nodes), *_graph.pack_graph(nodes, dependencies), ctypes.byref(error)
        )
        self._check(error.value)
        return graph

    def destroy_graph(self, graph: int) -> None:
        """Free a graph; instances keep what they share with it."""
        self._runtime.destroy_graph(graph)

    def instantiate_graph(self, graph: int) -> int:
        """Make an instance; the parameters are copied when one of them is to change."""
        instance = self._runtime.instantiate_graph(graph, self._seed)
        if not instance:
            self._check(errno.ENOMEM)
        return instance

    def destroy_graph_instance(self, instance: int) -> None:
        self._runtime.destroy_graph_instance(instance)

    def update_graph(self, instance: int, index: int, node: Node) -> None:
        """Replace a node's parameters; launches that were enqueued before keep theirs.

        Raises `OperationError` if there is no such node, if it is of another
        class, or launches another function.
        """
        error = self._runtime.try_update_graph(_graph.pack_update(instance, index, node, 0))
        if error == errno.EBUSY:
            error = self._runtime.update_graph(_graph.pack_update(instance, index, node, 1))
        if error:
            self._check(error)

    def launch_update(self, instance: int, index: int, node: LaunchNode) -> LaunchUpdate:
        """Return a ``struct update`` of graph.h, which may copy all parameters."""
        return LaunchUpdate(0, _graph.pack_update(instance, index, node, 1), _graph.LAUNCH_GRID)

    def launch_graph(self, stream: int, instance: int) -> None:
        """Enqueue a launch of an instance in its current state.

        Nodes that may run at once do so, on as many threads as the device has.
        """
        _pack_one(self._mail, stream << 6, _driver.GRAPH, instance)
        if error := self._enqueue(stream):
            self._check(error)

    # Foreign host memory

    def import_host(self, address: int, size: int) -> int:
        """Return the address itself: all memory is the device's.

        Raises `OperationError` for an address that is imported already, as
        CUDA and HIP do.
        """
        with self._lock:
            known = self._imported.get(address)
            if known is None:
                self._imported[address] = size
        if known is not None:
            message = (
                f"the host memory at {address:#x} is imported already, {known} bytes of it: "
                "release it first, or use what the first import gave"
            )
            raise OperationError(message, native_name="EEXIST", native_code=errno.EEXIST)
        return address

    def release_host(self, address: int) -> None:
        """Forget an import; raises `OperationError` if there is none at the address."""
        with self._lock:
            known = self._imported.pop(address, None)
        if known is None:
            message = f"no host memory at {address:#x} is imported, or it was released before"
            raise OperationError(message, native_name="ENOENT", native_code=errno.ENOENT)
