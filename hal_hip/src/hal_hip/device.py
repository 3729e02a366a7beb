"""The native primitives on HIP."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hal.errors import HalError, OutOfMemoryError
from hal.handlers import own
from hal.native import (
    DeviceInfo,
    FunctionInfo,
    LaunchNode,
    LaunchUpdate,
    MemoryType,
    Node,
)
from hal_hip import _driver, _graph, _host, _module
from hal_hip._context import ContextDevice
from hal_hip._driver import call, entry_point, fail, hip

if TYPE_CHECKING:
    from hal_hip.driver import HipDriver

__all__ = ["HipDevice"]

_MAX_IN_FLIGHT: Final = 512
_PORTABLE_MAPPED: Final = 3  # pinned for every device, and mapped
_LAZY_PEER_ACCESS: Final = 1
_IPC_BYTES: Final = 64
_DLPACK_ROCM: Final = 10
_DLPACK_ROCM_HOST: Final = 11

# Called by every submission.
_P: Final = ctypes.c_void_p
_S: Final = ctypes.c_size_t
_I: Final = ctypes.c_int
_fills: Final = {
    1: entry_point("hipMemsetD8Async", _P, ctypes.c_ubyte, _S, _P),
    2: entry_point("hipMemsetD16Async", _P, ctypes.c_ushort, _S, _P),
    4: entry_point("hipMemsetD32Async", _P, _I, _S, _P),
}
_copy: Final = entry_point("hipMemcpyAsync", _P, _P, _S, _I, _P)
_launch: Final = entry_point("hipModuleLaunchKernel")
"""Takes pointers and numbers of 32 bits unchecked: without checks of eleven arguments it
takes half the time.
"""
_launch_graph: Final = entry_point("hipGraphLaunch", _P, _P)
_TO_DEVICE: Final = 1
_TO_HOST: Final = 2
_ANYWHERE: Final = 4

_handles = itertools.count(1)
"""Handles of modules and graphs, of all devices, which have tables here."""


class HipDevice(ContextDevice):
    """The native calls on one device.

    Functions and instances of graphs have HIP's own handles, too.
    """

    __slots__ = (
        "_graphs",
        "_instances",
        "_kernels",
        "_modules",
        "_target",
    )

    # Not measured on an AMD GPU: no graph where a replay can hardly cost more.
    graph_commands = 4

    def __init__(self, driver: HipDriver, info: DeviceInfo, *, only: bool) -> None:
        """Open the device; `only` means that there is no other."""
        super().__init__(info, only=only)
        self.domain = driver
        self.max_in_flight = _MAX_IN_FLIGHT
        self._target = str(info.properties["compile_target"])
        self._modules: dict[int, tuple[_module.Module, list[int]]] = {}
        self._kernels: dict[int, _module.Kernel] = {}
        self._graphs: dict[int, _graph.Graph] = {}
        self._instances: dict[int, _graph.Graph] = {}
        self._open_pool()
        self.features = self._find_features()

    def _find_features(self) -> frozenset[str]:
        """Return the optional features that this runtime has the functions for."""
        has = _driver.has
        wanted = {
            "async_allocations": bool(self.pool),
            "compile": _driver.has_compiler(),
            "external_streams": True,
            "graphs": has(*_graph.REQUIRED),
            "host_import": has("hipHostRegister", "hipHostGetDevicePointer", "hipHostUnregister"),
            "memory_sharing": has("hipIpcGetMemHandle", "hipIpcOpenMemHandle"),
            "occupancy": has("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"),
            "peer_access": has("hipDeviceEnablePeerAccess", "hipMemcpyPeerAsync"),
            "stream_values": _driver.has_stream_values(self.info.index),
            "timestamps": has("hipEventElapsedTime"),
        }
        return frozenset(name for name, present in wanted.items() if present)

    # Context

    def close(self) -> None:
        """Unpin what was imported, and destroy the pool."""
        _host.pins.forget(self)
        super().close()

    # Memory

    def allocate(self, size: int, memory: MemoryType) -> int:
        """Return the address of `size` bytes; frees the pool's unused memory for them."""
        try:
            return self._allocate(size, memory)
        except own(OutOfMemoryError):
            if not self.pool:
                raise
            self.trim_pool(0)
        return self._allocate(size, memory)

    def _allocate(self, size: int, memory: MemoryType) -> int:
        if memory is MemoryType.DEVICE:
            found = call(hip.hipMalloc, size)
        elif memory is MemoryType.HOST:
            found = call(hip.hipHostMalloc, size, _PORTABLE_MAPPED)
        else:
            found = call(hip.hipMallocManaged, size, hip.hipMemAttachGlobal)
        return int(found)

    def free(self, address: int, memory: MemoryType) -> None:
        call(hip.hipHostFree if memory is MemoryType.HOST else hip.hipFree, address)

    def host_pointer(self, address: int, memory: MemoryType) -> int | None:
        """Return the address itself, except for device memory: addresses are unified."""
        return None if memory is MemoryType.DEVICE else address

    def memory_info(self) -> tuple[int, int]:
        free, total = call(hip.hipMemGetInfo)
        return int(free), int(total)

    def dlpack_device(self, memory: MemoryType) -> tuple[int, int] | None:
        """Return ROCm's numbers; DLPack has none for its managed memory."""
        if memory is MemoryType.DEVICE:
            return _DLPACK_ROCM, self.info.index
        return (_DLPACK_ROCM_HOST, 0) if memory is MemoryType.HOST else None

    def locate(self, address: int) -> tuple[int, int] | None:
        try:
            found = call(hip.hipPointerGetAttributes, address)
            kind, device = int(found.type), int(found.device)
        except own(HalError, ValueError):
            _driver.clear()
            return None
        kinds = hip.hipMemoryType
        if kind == kinds.hipMemoryTypeDevice:
            return _DLPACK_ROCM, device
        return (_DLPACK_ROCM_HOST, 0) if kind == kinds.hipMemoryTypeHost else None

    # Transfers

    def fill(self, stream: int, address: int, pattern: int, width: int, count: int) -> None:
        if status := _fills[width](address, pattern, count, stream):
            fail(status, _fills[width])

    def copy(self, stream: int, target: int, source: int, size: int) -> None:
        """Enqueue a copy; HIP detects the kinds of memory."""
        if status := _copy(target, source, size, _ANYWHERE, stream):
            fail(status, _copy)

    def copy_from_host(self, stream: int, target: int, source: int, size: int) -> None:
        if status := _copy(target, source, size, _TO_DEVICE, stream):
            fail(status, _copy)

    def copy_to_host(self, stream: int, target: int, source: int, size: int) -> None:
        if status := _copy(target, source, size, _TO_HOST, stream):
            fail(status, _copy)

    def copy_and_wait(self, *copy: Any) -> None:  # noqa: ANN401 - as they are
        """Copy and wait; both may be what another library's capture forbids (O1)."""
        _driver.relaxed(super().copy_and_wait, *copy)

    # Kernels

    def load_module(self, image: bytes) -> int:
        """Load a code object, or the one of a bundle that is for this device."""
        handle = next(_handles)
        self._modules[handle] = (_module.Module(image, self._target), [])
        return handle

    def unload_module(self, module: int) -> None:
        loaded, functions = self._modules.pop(module)
        for function in functions:
            del self._kernels[function]
        loaded.unload()

    def get_function(self, module: int, name: str) -> int:
        loaded, functions = self._modules[module]
        kernel = loaded.function(name)
        # Once for each function, whichever thread is first.
        if self._kernels.setdefault(kernel.native, kernel) is kernel:
            functions.append(kernel.native)
        return kernel.native

    def function_info(self, function: int) -> FunctionInfo:
        return self._kernels[function].info

    def get_global(self, module: int, name: str) -> tuple[int, int]:
        return self._modules[module][0].variable(name)

    def launch(
        self,
        stream: int,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_memory: int,
        parameters: int,
    ) -> None:
        # Unpacked by hand: a call with a star is slower.
        x, y, z = grid
        i, j, k = block
        kernel, queue, arguments = _P(function), _P(stream), _P(parameters)
        if status := _launch(kernel, x, y, z, i, j, k, shared_memory, queue, arguments, None):
            fail(status, _launch)

    def occupancy(self, function: int, threads: int, shared_memory: int) -> int:
        ask = hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor
        return int(call(ask, function, threads, shared_memory))

    # Graphs

    def create_graph(self, nodes: Sequence[Node], dependencies: Sequence[Sequence[int]]) -> int:
        handle = next(_handles)
        self._graphs[handle] = _graph.Graph(nodes, dependencies)
        return handle

    def destroy_graph(self, graph: int) -> None:
        """Release a graph; its instances keep what they need of it."""
        self._graphs.pop(graph).release()

    def instantiate_graph(self, graph: int) -> int:
        source = self._graphs[graph]
        instance = source.instantiate()
        self._instances[instance] = source
        return instance

    def destroy_graph_instance(self, instance: int) -> None:
        self._instances.pop(instance).destroy(instance)

    def update_graph(self, instance: int, index: int, node: Node) -> None:
        self._instances[instance].update(instance, index, node)

    def launch_update(self, instance: int, index: int, node: LaunchNode) -> LaunchUpdate:
        return self._instances[instance].launch_update(index, node)

    def launch_graph(self, stream: int, instance: int) -> None:
        if status := _launch_graph(instance, stream):
            fail(status, _launch_graph)

    # Foreign host memory

    def import_host(self, address: int, size: int) -> int:
        return _host.pins.pin(
            self,
            address,
            size,
            lambda: _host.register(address, size),
            lambda: int(call(hip.hipHostGetDevicePointer, address, 0)),
        )

    def release_host(self, address: int) -> None:
        """Unpin host memory, unless another import needs it."""
        _host.pins.unpin(self, address)

    # Memory of other processes

    def export_memory(self, address: int) -> bytes:
        handle = call(hip.hipIpcGetMemHandle, address)
        return ctypes.string_at(int(handle.as_c_void_p().value), _IPC_BYTES)

    def open_memory(self, handle: bytes) -> int:
        given = hip.hipIpcMemHandle_st()
        ctypes.memmove(given.as_c_void_p(), handle, _IPC_BYTES)
        return int(call(hip.hipIpcOpenMemHandle, given, _LAZY_PEER_ACCESS))

    def close_memory(self, address: int) -> None:
        call(hip.hipIpcCloseMemHandle, address)
