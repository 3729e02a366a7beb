"""Reports on a device's memory: its heaps, their abilities, and what is in use (rule M1)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hal._memory.blocks import ALIGNMENT, block_size
from hal._memory.books import MemoryUse
from hal._memory.core import DeviceCore
from hal._memory.usage import ALL, MAPPING, MEMORY_TYPES, READ, WRITE
from hal.arguments import shown
from hal.errors import HalError
from hal.handlers import own
from hal.native import MemoryType


@dataclass(frozen=True, slots=True)
class MemoryStatistics(MemoryUse):
    """Memory that a device has allocated through hal, in total and by kind.

    Attributes
    ----------
    kinds
        The same figures for ``"device"``, ``"host"`` and ``"managed"`` memory.
    events, graph_instances
        Native objects that exist, in use or kept for reuse.
    """

    kinds: Mapping[str, MemoryUse]
    events: int
    graph_instances: int


class MemoryHeap(NamedTuple):
    """One kind of memory of a device.

    Attributes
    ----------
    memory
        ``"device"``, ``"host"`` or ``"managed"``.
    total, free
        Its bytes, and those free now; None if unknown.
    host_visible
        Whether `Buffer.map` can map it.
    coherent
        Whether work submitted afterwards sees the host's writes, and
        the reverse, without a flush. True of every memory that hal maps.
    alignment
        The alignment of every allocation.
    largest_allocation
        The most bytes of one allocation; less may be free.
    """

    memory: str
    total: int | None
    free: int | None
    host_visible: bool
    coherent: bool
    alignment: int
    largest_allocation: int


class MemoryQuery(NamedTuple):
    """The possible uses of memory of one kind, usage and size.

    Attributes
    ----------
    allocatable
        Whether `Device.allocate` may succeed, whatever is free now.
    importable
        Whether `Device.import_array` makes such a buffer of a host array.
    mappable
        Whether `Buffer.map` can map it for the host.
    queues
        The names of the queues that may use it, as in ``device.queues``.
    block_size
        Bytes that an allocation of this size takes.
    reason
        Why it is not allocatable; empty if it is.
    """

    allocatable: bool
    importable: bool
    mappable: bool
    queues: tuple[str, ...]
    block_size: int
    reason: str


def describe_heaps(device: DeviceCore) -> tuple[MemoryHeap, ...]:
    """Return the kinds of memory; see `Device.heaps`."""
    native = device._native
    try:
        native.bind()
        free, total = native.memory_info()
        known: tuple[int | None, int] = free, total
    except own(HalError):
        known = None, native.info.total_memory
    heaps = []
    for index, memory in enumerate(MEMORY_TYPES):
        own_free, own_total = known if memory is not MemoryType.HOST else (None, _host_total())
        heaps.append(
            MemoryHeap(
                memory=memory.value,
                total=own_total,
                free=own_free,
                host_visible=_is_visible(device, index),
                coherent=True,
                alignment=ALIGNMENT,
                largest_allocation=_largest(device, own_total),
            )
        )
    return tuple(heaps)


def query(device: DeviceCore, index: int, denied: int, size: int) -> MemoryQuery:
    """Answer a query that was checked; see `Device.query_memory`."""
    memory = MEMORY_TYPES[index]
    need = block_size(max(size, 1))
    total = _host_total() if memory is MemoryType.HOST else device.info.total_memory
    largest = _largest(device, total)
    reason = ""
    asked = f"{size:,}" if need < 1 << 64 else shown(size)
    if need > largest:
        reason = (
            f"{asked} bytes of {memory.value} memory are more than one allocation can have "
            f"({largest:,})"
        )
    visible = _is_visible(device, index)
    mapping = not denied & MAPPING
    if mapping and not visible and denied & ALL == ALL & ~(MAPPING | READ | WRITE):
        reason = reason or f"{memory.value} memory of {device._name} is not visible to the host"
    return MemoryQuery(
        allocatable=not reason,
        importable="host_import" in device.features and memory is MemoryType.HOST and size > 0,
        mappable=mapping and visible,
        queues=() if reason else ("compute", "upload", "download"),
        block_size=need,
        reason=reason,
    )


def _is_visible(device: DeviceCore, index: int) -> bool:
    return index != 0 or "host_visible_device_memory" in device.features


def _largest(device: DeviceCore, total: int) -> int:
    limit = device._heap.books.limit
    return total if limit is None else min(total, limit)


def _host_total() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
