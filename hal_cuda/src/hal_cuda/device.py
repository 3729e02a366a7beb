"""The native primitives on the CUDA driver API."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hal.errors import OperationError, OutOfMemoryError, UnimplementedError
from hal.handlers import dropped, own
from hal.locks import RLock
from hal.native import (
    DeviceInfo,
    FunctionInfo,
    LaunchNode,
    LaunchUpdate,
    MemoryType,
    Node,
)
from hal_cuda import _driver, _graph, _host, _module
from hal_cuda._context import ContextDevice, streams
from hal_cuda._driver import call, cuda

if TYPE_CHECKING:
    from hal_cuda.driver import CudaDriver

__all__ = ["CudaDevice"]

_ATTACH_GLOBAL: Final = 1  # CU_MEM_ATTACH_GLOBAL
_PORTABLE_MAPPED: Final = 3  # CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
_LAZY_PEER_ACCESS: Final = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
_IPC_BYTES: Final = 64
_DLPACK_HOST: Final = (3, 0)
_DLPACK_MANAGED: Final = (13, 0)

# Called by every submission, so looked up once.
_copy: Final = cuda.cuMemcpyAsync
_synchronize: Final = cuda.cuStreamSynchronize
_fills: Final = {1: cuda.cuMemsetD8Async, 2: cuda.cuMemsetD16Async, 4: cuda.cuMemsetD32Async}
_masks: Final = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFFFFFF}
_launch: Final = cuda.cuLaunchKernel
_launch_graph: Final = cuda.cuGraphLaunch


class CudaDevice(ContextDevice):
    """The driver calls in the primary context of one device.

    Handles of streams, events, modules, functions and graph instances are the
    driver's own. Another library may make its own context current on a thread
    of ours: calls that depend on it, which create things, make ours current each
    time, and a call that fails because of it is repeated.
    """

    __slots__ = (
        "_functions",
        "_graphs",
        "_instances",
        "_kernels",
        "_lock",
        "_own_host_addresses",
        "_shared",
    )

    # Measured on an H200, see docs/command-buffers.md: a launch of a graph is one call less, and
    # costs the driver less than one of a kernel.
    graph_commands = 2
    graph_launches = 1

    def __init__(self, driver: CudaDriver, info: DeviceInfo) -> None:
        """Retain the primary context of a device and query its abilities."""
        super().__init__(info.index)
        self.info = info
        self.domain = driver
        # About a thousand operations fit in a stream before a launch blocks.
        self.max_in_flight = 512
        self._lock = RLock()  # held while the driver is told of shared memory
        self._graphs: dict[int, _graph.Graph] = {}
        self._instances: dict[int, _graph.Instance] = {}
        self._kernels: dict[int, Any] = {}  # the bindings' objects of functions
        self._shared: dict[int, int] = {}  # the dynamic shared memory that each function may have
        self._functions: dict[int, list[int]] = {}  # of each module
        self._own_host_addresses: dict[int, int] = {}  # where they differ from the device's
        try:
            self._open_pool()
            self.features = self._find_features()
        except BaseException:
            super().close()
            raise

    def _find_features(self) -> frozenset[str]:
        features = {"external_streams", "graphs", "host_import", "occupancy", "peer_access"}
        features |= {"memory_sharing", "timestamps"}
        if _driver.attribute(self.ordinal, "CAN_USE_64_BIT_STREAM_MEM_OPS"):
            features.add("stream_values")
        if self.pool is not None:
            features.add("async_allocations")
        with dropped(UnimplementedError):
            _driver.compiler()
            features.add("compile")
        return frozenset(features)

    # Context

    def close(self) -> None:
        """Unpin what was imported, and release the context."""
        _host.pins.forget(self.token)
        super().close()

    # Memory

    def allocate(self, size: int, memory: MemoryType) -> int:
        """Allocate memory; the unused memory of the pool is freed first."""
        self._enter()
        try:
            return self._allocate(size, memory)
        except own(OutOfMemoryError):
            if self.pool is None or memory is MemoryType.HOST:
                raise
            self.trim_pool(0)
            return self._allocate(size, memory)

    def _allocate(self, size: int, memory: MemoryType) -> int:
        if memory is MemoryType.DEVICE:
            return int(call(cuda.cuMemAlloc, size))
        if memory is MemoryType.MANAGED:
            return int(call(cuda.cuMemAllocManaged, size, _ATTACH_GLOBAL))
        host = int(call(cuda.cuMemHostAlloc, size, _PORTABLE_MAPPED))
        try:
            address = int(call(cuda.cuMemHostGetDevicePointer, host, 0))
        except BaseException:
            _driver.relaxed(cuda.cuMemFreeHost, host)
            raise
        if address != host:  # never so where host and device have one address space
            self._own_host_addresses[address] = host
        return address

    def free(self, address: int, memory: MemoryType) -> None:
        """Give memory back; blocks until the device is idle."""
        if memory is MemoryType.HOST:
            call(cuda.cuMemFreeHost, self._own_host_addresses.pop(address, address))
        else:
            call(cuda.cuMemFree, address)

    def host_pointer(self, address: int, memory: MemoryType) -> int | None:
        """Return where the host sees pinned and managed memory; None for device memory."""
        if memory is MemoryType.DEVICE:
            return None
        return self._own_host_addresses.get(address, address)

    def memory_info(self) -> tuple[int, int]:
        self._enter()
        free, total = call(cuda.cuMemGetInfo)
        return int(free), int(total)

    def dlpack_device(self, memory: MemoryType) -> tuple[int, int] | None:
        """Return the number of the device, or of pinned or managed memory."""
        if memory is MemoryType.DEVICE:
            return (2, self.info.index)
        return _DLPACK_HOST if memory is MemoryType.HOST else _DLPACK_MANAGED

    def locate(self, address: int) -> tuple[int, int] | None:
        names = cuda.CUpointer_attribute
        ask = cuda.cuPointerGetAttribute
        try:
            kind = int(call(ask, names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address))
            if call(ask, names.CU_POINTER_ATTRIBUTE_IS_MANAGED, address):
                return _DLPACK_MANAGED
            if kind == int(cuda.CUmemorytype.CU_MEMORYTYPE_HOST):
                return _DLPACK_HOST
            return (2, int(call(ask, names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)))
        except own(OperationError, UnimplementedError):
            return None

    def import_host(self, address: int, size: int) -> int:
        self._enter()
        return _host.pins.pin(
            self.token,
            address,
            size,
            lambda: _host.register(self.ordinal, self.context, address, size),
            lambda: int(call(cuda.cuMemHostGetDevicePointer, address, 0)),
        )

    def release_host(self, address: int) -> None:
        _host.pins.unpin(self.token, address)

    # Memory of other processes

    def export_memory(self, address: int) -> bytes:
        self._enter()
        return ctypes.string_at(call(cuda.cuIpcGetMemHandle, address).getPtr(), _IPC_BYTES)

    def open_memory(self, handle: bytes) -> int:
        self._enter()
        given = cuda.CUipcMemHandle()
        ctypes.memmove(given.getPtr(), handle, _IPC_BYTES)
        return int(call(cuda.cuIpcOpenMemHandle, given, _LAZY_PEER_ACCESS))

    def close_memory(self, address: int) -> None:
        """Close it; CUDA waits for the device."""
        self._enter()
        call(cuda.cuIpcCloseMemHandle, address)

    # Transfers

    def fill(self, stream: int, address: int, pattern: int, width: int, count: int) -> None:
        function = _fills[width]
        pattern &= _masks[width]
        try:
            error = function(address, pattern, count, streams[stream])[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, function) from problem
        if error:
            self._again(error, function, address, pattern, count, stream)

    def copy(self, stream: int, target: int, source: int, size: int) -> None:
        """Enqueue a copy; the driver detects the kinds of memory by their addresses.

        Blocks if the host's memory is not pinned.
        """
        try:
            error = _copy(target, source, size, streams[stream])[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, _copy) from problem
        if error:
            self._again(error, _copy, target, source, size, stream)

    copy_from_host = copy_to_host = copy

    def copy_and_wait(
        self,
        copy: Callable[[int, int, int, int], object],  # noqa: ARG002 - both are one
        stream: int,
        target: int,
        source: int,
        size: int,
    ) -> None:
        """Copy and wait; a capture of another library may forbid both (O1)."""
        _driver.relaxed(self._copy_and_wait, stream, target, source, size)

    def _copy_and_wait(self, stream: int, target: int, source: int, size: int) -> None:
        self.copy(stream, target, source, size)
        try:
            error = _synchronize(streams[stream])[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, _synchronize) from problem
        if error:
            _driver.fail(error, _synchronize)

    # Kernels

    def load_module(self, image: bytes) -> int:
        """Load PTX, a cubin, a fat binary or LTO-IR."""
        self._enter()
        module = _module.load(image, self.info.architecture)
        self._functions[module] = []
        return module

    def unload_module(self, module: int) -> None:
        for function in self._functions.pop(module, ()):
            del self._kernels[function], self._shared[function]
        call(cuda.cuModuleUnload, module)

    def get_function(self, module: int, name: str) -> int:
        function = _module.find_function(module, name)
        if function not in self._kernels:
            # By default the driver loads code at the first launch, which may wait for running work.
            with dropped(UnimplementedError):
                call(cuda.cuFuncLoad, function)
            self._shared.setdefault(function, _module.plain_shared_memory(function))
            # Once for each function, whichever thread is first.
            kernel = cuda.CUfunction(function)
            if self._kernels.setdefault(function, kernel) is kernel:
                self._functions[module].append(function)
        return function

    def function_info(self, function: int) -> FunctionInfo:
        return _module.describe(function)

    def get_global(self, module: int, name: str) -> tuple[int, int]:
        return _module.find_global(module, name)

    def launch(
        self,
        stream: int,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_memory: int,
        parameters: int,
    ) -> None:
        # Unpacked by hand: a call with a star is twice as slow.
        x, y, z = grid
        i, j, k = block
        kernel, target = self._kernels[function], streams[stream]
        try:
            error = _launch(kernel, x, y, z, i, j, k, shared_memory, target, parameters, 0)[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, _launch) from problem
        if error:
            self._again(
                error, _launch, function, x, y, z, i, j, k, shared_memory, stream, parameters, 0
            )

    def allow_shared_memory(self, function: int, size: int) -> None:
        """Ask for more than the driver allows by default; the largest request is the last."""
        self._enter()
        with self._lock:
            if size > self._shared[function]:
                _module.allow_shared_memory(function, size)
                self._shared[function] = size

    def occupancy(self, function: int, threads: int, shared_memory: int) -> int:
        self._enter()
        return int(
            call(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor, function, threads, shared_memory)
        )

    # Graphs

    def create_graph(self, nodes: Sequence[Node], dependencies: Sequence[Sequence[int]]) -> int:
        """Build a graph of native nodes; the driver copies all parameters."""
        self._enter()
        graph = _graph.Graph.build(self.context, nodes, dependencies)
        handle = int(graph.native)
        self._graphs[handle] = graph
        return handle

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph, once it has no instances."""
        self._graphs.pop(graph).release()

    def instantiate_graph(self, graph: int) -> int:
        self._enter()
        instance = _graph.Instance(self._graphs[graph])
        handle = int(instance.executable)
        self._instances[handle] = instance
        return handle

    def destroy_graph_instance(self, instance: int) -> None:
        self._instances.pop(instance).destroy()

    def update_graph(self, instance: int, index: int, node: Node) -> None:
        self._instances[instance].update(index, node)

    def launch_update(self, instance: int, index: int, node: LaunchNode) -> LaunchUpdate:
        return self._instances[instance].launch_update(index, node)

    def launch_graph(self, stream: int, instance: int) -> None:
        executable = self._instances[instance].executable
        try:
            error = _launch_graph(executable, streams[stream])[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, _launch_graph) from problem
        if error:
            self._again(error, _launch_graph, executable, stream)
