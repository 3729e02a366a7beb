"""Build CUDA graphs of neutral nodes, and change the parameters of their instances.

The driver identifies the node of an instance by the node of its original graph,
so a graph lives as long as its instances.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from hal.handlers import own
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
from hal_cuda import _driver
from hal_cuda._driver import call, cuda

_HOST: Final = cuda.CUmemorytype.CU_MEMORYTYPE_HOST
_ANY: Final = cuda.CUmemorytype.CU_MEMORYTYPE_UNIFIED


_pack_kernel: Final = struct.Struct("<QIIIIIII4xQQQQ").pack
"""``CUDA_KERNEL_NODE_PARAMS``: function, grid, block, shared memory, parameters, and nothing."""
_KERNEL_GRID: Final = 8


# Parameters: one structure for each class of node


def _launch(node: LaunchNode, _context: object) -> tuple[Any, ...]:
    parameters = cuda.CUDA_KERNEL_NODE_PARAMS()
    parameters.func = cuda.CUfunction(node.function)
    _fill_in(parameters, node)
    return (parameters,)


def _fill_in(parameters: Any, node: LaunchNode) -> None:  # noqa: ANN401 - a structure of the bindings
    """Write a launch into the parameters of its function."""
    _, grid, block, shared_memory, arguments = node
    parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = grid
    parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = block
    parameters.sharedMemBytes = shared_memory
    parameters.kernelParams = arguments


def _fill(node: FillNode, context: object) -> tuple[Any, ...]:
    parameters = cuda.CUDA_MEMSET_NODE_PARAMS()
    address, pattern, width, times = node
    parameters.dst = cuda.CUdeviceptr(address)
    parameters.value = pattern & ((1 << 8 * width) - 1)
    parameters.elementSize = width
    parameters.width = times
    parameters.height = 1
    parameters.pitch = 0  # of no meaning for one row
    return (parameters, context)


def _transfer(target: int, size: int) -> Any:  # noqa: ANN401 - a structure of the bindings
    """Return a copy of one row, still without its source."""
    parameters = cuda.CUDA_MEMCPY3D()
    parameters.dstMemoryType = _ANY
    parameters.dstDevice = cuda.CUdeviceptr(target)
    parameters.dstPitch = parameters.srcPitch = parameters.WidthInBytes = size
    parameters.dstHeight = parameters.srcHeight = parameters.Height = 1
    parameters.Depth = 1
    return parameters


def _copy(node: CopyNode, context: object) -> tuple[Any, ...]:
    target, source, size = node
    parameters = _transfer(target, size)
    parameters.srcMemoryType = _ANY
    parameters.srcDevice = cuda.CUdeviceptr(source)
    return (parameters, context)


def _peer_copy(node: PeerCopyNode, context: object) -> tuple[Any, ...]:
    # Unified addresses tell the driver whose memory it is.
    return _copy(CopyNode(node.target, node.source, node.size), context)


def _host_copy(node: HostCopyNode, context: object) -> tuple[Any, ...]:
    target, source, size = node
    parameters = _transfer(target, size)
    parameters.srcMemoryType = _HOST
    parameters.srcHost = source
    return (parameters, context)


def _empty(_node: EmptyNode, _context: object) -> tuple[Any, ...]:
    return ()


# For each class of node: its parameters, and the functions that add it to a graph and change it
# in an instance.
_KINDS: Final[dict[type, tuple[Callable[..., tuple[Any, ...]], Any, Any]]] = {
    LaunchNode: (_launch, cuda.cuGraphAddKernelNode, cuda.cuGraphExecKernelNodeSetParams),
    FillNode: (_fill, cuda.cuGraphAddMemsetNode, cuda.cuGraphExecMemsetNodeSetParams),
    CopyNode: (_copy, cuda.cuGraphAddMemcpyNode, cuda.cuGraphExecMemcpyNodeSetParams),
    HostCopyNode: (_host_copy, cuda.cuGraphAddMemcpyNode, cuda.cuGraphExecMemcpyNodeSetParams),
    PeerCopyNode: (_peer_copy, cuda.cuGraphAddMemcpyNode, cuda.cuGraphExecMemcpyNodeSetParams),
    EmptyNode: (_empty, cuda.cuGraphAddEmptyNode, None),
}


class Graph:
    """The owner of a native graph, shared by its creator and its instances."""

    __slots__ = ("context", "native", "nodes", "users")

    def __init__(self, native: Any, context: object) -> None:  # noqa: ANN401 - the bindings'
        self.native = native
        self.context = context
        self.nodes: list[Any] = []  # the native ones, in the order of the neutral ones
        # The handle is the last to be popped: one user destroys it, whatever other threads and
        # signal handlers do meanwhile.
        self.users: list[Any] = [native]

    @classmethod
    def build(
        cls, context: object, nodes: Sequence[Node], dependencies: Sequence[Sequence[int]]
    ) -> Graph:
        """Create a graph; the driver copies all parameters."""
        graph = cls(call(cuda.cuGraphCreate, 0), context)
        try:
            made = graph.nodes
            for node, before in zip(nodes, dependencies, strict=True):
                fill_in, add, _ = _KINDS[type(node)]
                after = [made[index] for index in before] or None
                parameters = fill_in(node, context)
                made.append(call(add, graph.native, after, len(before), *parameters))
        except BaseException:
            graph.release()
            raise
        return graph

    def release(self) -> None:
        """Drop one use; the last destroys the graph."""
        if (native := self.users.pop()) is not None:
            call(cuda.cuGraphDestroy, native)


class Instance:
    """The owner of an executable graph."""

    __slots__ = ("_graph", "_off", "_parameters", "executable")

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        graph.users.append(None)
        try:
            self.executable = call(cuda.cuGraphInstantiate, graph.native, 0)
        except BaseException:
            graph.release()
            raise
        # Launches as they are, with their parameters, to be filled in again
        self._parameters: dict[int, tuple[LaunchNode, Any]] = {}
        self._off: set[int] = set()  # launches of nothing

    def destroy(self) -> None:
        """Destroy the executable, which no stream runs."""
        graph = self._graph
        try:
            call(cuda.cuGraphExecDestroy, self.executable)
        finally:
            graph.release()

    def update(self, index: int, node: Node) -> None:
        """Replace a node's parameters for launches from now on."""
        fill_in, _, change = _KINDS[type(node)]
        graph = self._graph
        if isinstance(node, LaunchNode):
            known = self._parameters.get(index)
            if known is None or known[0] is not node:  # else only the arguments' bytes are others
                if not all(node.grid):
                    self._switch(index, on=False)
                    return
                if index in self._off:
                    self._switch(index, on=True)
                    known = None
                if known is None:
                    known = node, *fill_in(node, graph.context)
                else:
                    _fill_in(known[1], node)
                    known = node, known[1]
                self._parameters[index] = known
            parameters = (known[1],)
        elif change is None:
            return
        else:
            parameters = fill_in(node, graph.context)
        try:
            error = change(self.executable, graph.nodes[index], *parameters)[0]
        except own(ValueError) as problem:
            raise _driver.unknown(problem, change) from problem
        if error:
            _driver.fail(error, change)

    def launch_update(self, index: int, node: LaunchNode) -> LaunchUpdate:
        """Return ``CUDA_KERNEL_NODE_PARAMS`` of a launch; the function's context is the graph's."""
        function, grid, block, shared_memory, arguments = node
        packed = _pack_kernel(function, *grid, *block, shared_memory, arguments, 0, 0, 0)
        return LaunchUpdate(int(self._graph.nodes[index]), packed, _KERNEL_GRID)

    def _switch(self, index: int, *, on: bool) -> None:
        """Have a node run or not: the driver takes no empty grid, and orders by a disabled node."""
        self._parameters.pop(index, None)
        call(cuda.cuGraphNodeSetEnabled, self.executable, self._graph.nodes[index], int(on))
        (self._off.discard if on else self._off.add)(index)
