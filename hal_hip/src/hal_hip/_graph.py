"""Build HIP graphs of neutral nodes, and change the parameters of their instances.

The runtime identifies the node of an instance by the node of its original graph,
so a graph lives as long as its instances. Structures are packed here
in the runtime's ABI, which costs a tenth of filling in the bindings'.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

from hal.native import (
    CopyNode,
    EmptyNode,
    FillNode,
    HostCopyNode,
    LaunchNode,
    LaunchUpdate,
    Node,
    PeerCopyNode,
)
from hal_hip._driver import call, entry_point, fail, hip

REQUIRED: Final = (
    "hipGraphCreate",
    "hipGraphDestroy",
    "hipGraphAddKernelNode",
    "hipGraphAddMemsetNode",
    "hipGraphAddMemcpyNode1D",
    "hipGraphAddEmptyNode",
    "hipGraphInstantiateWithFlags",
    "hipGraphExecKernelNodeSetParams",
    "hipGraphExecMemsetNodeSetParams",
    "hipGraphExecMemcpyNodeSetParams1D",
    "hipGraphNodeSetEnabled",
    "hipGraphExecDestroy",
    "hipGraphLaunch",
)
"""The functions without which a device has no graphs."""

_pack_kernel: Final = struct.Struct("<III4xQQIII4xQI4x").pack
"""``hipKernelNodeParams``: block, extra, function, grid, parameters, shared memory."""
_KERNEL_GRID: Final = 32
_pack_memset: Final = struct.Struct("<QI4xQQI4xQ").pack
"""``hipMemsetParams``: target, element size, height, pitch, value, width."""

_ANY: Final = hip.hipMemcpyKind.hipMemcpyDefault
_FROM_HOST: Final = hip.hipMemcpyKind.hipMemcpyHostToDevice

_P: Final = ctypes.c_void_p
_change_copy: Final = entry_point(
    "hipGraphExecMemcpyNodeSetParams1D", _P, _P, _P, _P, ctypes.c_size_t, ctypes.c_int
)
_change_fill: Final = entry_point("hipGraphExecMemsetNodeSetParams", _P, _P, ctypes.c_char_p)
_change_launch: Final = entry_point("hipGraphExecKernelNodeSetParams", _P, _P, ctypes.c_char_p)


def _launch(node: LaunchNode) -> tuple[Any, ...]:
    function, grid, block, shared_memory, parameters = node
    return (_pack_kernel(*block, 0, function, *grid, parameters, shared_memory),)


def _fill(node: FillNode) -> tuple[Any, ...]:
    address, pattern, width, times = node
    value = pattern & ((1 << 8 * width) - 1)
    return (_pack_memset(address, width, 1, width * times, value, times),)


def _copy(node: CopyNode) -> tuple[Any, ...]:
    return (*node, _ANY)


def _peer_copy(node: PeerCopyNode) -> tuple[Any, ...]:
    return (node.target, node.source, node.size, _ANY)  # the runtime knows whose addresses they are


def _host_copy(node: HostCopyNode) -> tuple[Any, ...]:
    return (*node, _FROM_HOST)


def _empty(_node: EmptyNode) -> tuple[Any, ...]:
    return ()


# For each class of node: its parameters, and the functions that add it to a graph and change it
# in an instance.
_KINDS: Final[dict[type, tuple[Callable[[Any], tuple[Any, ...]], Any, Any]]] = {
    LaunchNode: (_launch, hip.hipGraphAddKernelNode, _change_launch),
    FillNode: (_fill, hip.hipGraphAddMemsetNode, _change_fill),
    CopyNode: (_copy, hip.hipGraphAddMemcpyNode1D, _change_copy),
    HostCopyNode: (_host_copy, hip.hipGraphAddMemcpyNode1D, _change_copy),
    PeerCopyNode: (_peer_copy, hip.hipGraphAddMemcpyNode1D, _change_copy),
    EmptyNode: (_empty, hip.hipGraphAddEmptyNode, None),
}


class Graph:
    """The owner of a native graph, as long as its creator or an instance needs it."""

    __slots__ = ("_native", "_nodes", "_off", "_users")

    def __init__(self, nodes: Sequence[Node], dependencies: Sequence[Sequence[int]]) -> None:
        """Create a graph; the runtime copies all parameters."""
        self._native = call(hip.hipGraphCreate, 0)
        self._nodes: list[int] = []
        self._off: dict[int, set[int]] = {}  # the launches of nothing of each instance
        # The handle is the last to be popped: one user destroys it, whatever other threads and
        # signal handlers do meanwhile.
        self._users = [self._native]
        try:
            for node, before in zip(nodes, dependencies, strict=True):
                parameters, add, _ = _KINDS[type(node)]
                after = array("Q", [self._nodes[index] for index in before]).tobytes() or None
                made = call(add, self._native, after, len(before), *parameters(node))
                self._nodes.append(int(made))
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Drop one use; the last destroys the graph."""
        if (native := self._users.pop()) is not None:
            call(hip.hipGraphDestroy, native)

    def instantiate(self) -> int:
        """Return an executable instance, which is one more use of this graph."""
        self._users.append(None)
        try:
            instance = int(call(hip.hipGraphInstantiateWithFlags, self._native, 0))
        except BaseException:
            self.release()
            raise
        self._off[instance] = set()
        return instance

    def destroy(self, instance: int) -> None:
        """Destroy an instance, which was one use of this graph."""
        del self._off[instance]
        try:
            call(hip.hipGraphExecDestroy, instance)
        finally:
            self.release()

    def update(self, instance: int, index: int, node: Node) -> None:
        """Replace the parameters of a node in an instance."""
        parameters, _, change = _KINDS[type(node)]
        if change is None:
            return
        if isinstance(node, LaunchNode):
            # The runtime takes no empty grid, and orders by a disabled node.
            is_on, off = all(node.grid), self._off[instance]
            if is_on is (index in off):
                call(hip.hipGraphNodeSetEnabled, instance, self._nodes[index], int(is_on))
                (off.discard if is_on else off.add)(index)
            if not is_on:
                return
        if status := change(instance, self._nodes[index], *parameters(node)):
            fail(status, change)

    def launch_update(self, index: int, node: LaunchNode) -> LaunchUpdate:
        """Return the structure of a launch in any instance."""
        (packed,) = _launch(node)
        return LaunchUpdate(self._nodes[index], packed, _KERNEL_GRID)
