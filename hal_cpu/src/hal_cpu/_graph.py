"""Write the nodes of a graph as the runtime reads them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from hal.native import (
    CopyNode,
    EmptyNode,
    FillNode,
    HostCopyNode,
    IndirectLaunchNode,
    LaunchNode,
    Node,
    PeerCopyNode,
)
from hal_cpu import _driver

_pack_empty: Final = struct.Struct("=Q56x").pack
_pack_three: Final = struct.Struct("=QQQQ32x").pack
_pack_four: Final = struct.Struct("=QQQQQ24x").pack
_pack_launch: Final = struct.Struct("=QQQIII4xIIII8x").pack
LAUNCH_GRID: Final = 24
"""The place of the grid in the order of a launch."""
_pack_indirect: Final = struct.Struct("=QQQQ8xIIII8x").pack
_pack_place: Final = struct.Struct("=QII").pack


def _empty(node: EmptyNode) -> bytes:  # noqa: ARG001 - one signature for all
    return _pack_empty(_driver.EMPTY)


def _fill(node: FillNode) -> bytes:
    return _pack_four(_driver.FILL, *node)


def _copy(node: CopyNode | HostCopyNode) -> bytes:
    return _pack_three(_driver.COPY, *node)


def _peer_copy(node: PeerCopyNode) -> bytes:
    return _pack_three(_driver.COPY, node.target, node.source, node.size)


def _launch(node: LaunchNode) -> bytes:
    function, grid, block, shared_memory, parameters = node
    return _pack_launch(_driver.LAUNCH, function, parameters, *grid, *block, shared_memory)


def _indirect(node: IndirectLaunchNode) -> bytes:
    function, counts, block, shared_memory, parameters = node
    return _pack_indirect(_driver.INDIRECT, function, parameters, counts, *block, shared_memory)


_PACKERS: Final[dict[type, Callable[[Any], bytes]]] = {
    CopyNode: _copy,
    EmptyNode: _empty,
    FillNode: _fill,
    HostCopyNode: _copy,
    IndirectLaunchNode: _indirect,
    LaunchNode: _launch,
    PeerCopyNode: _peer_copy,
}


def pack_update(instance: int, index: int, node: Node, copy: int) -> bytes:
    """Return the ``struct update`` of graph.h."""
    return _PACKERS[type(node)](node) + _pack_place(instance, index, copy)


def pack_graph(
    nodes: Sequence[Node], dependencies: Sequence[Sequence[int]]
) -> tuple[bytes, bytes, bytes]:
    """Return the orders of all nodes, the number of each one's dependencies, and all of those."""
    packers = _PACKERS
    orders = b"".join([packers[type(node)](node) for node in nodes])
    flat = [*itertools.chain.from_iterable(dependencies)]
    degrees = struct.pack(f"={len(dependencies)}I", *map(len, dependencies))
    return orders, degrees, struct.pack(f"={len(flat)}I", *flat)
