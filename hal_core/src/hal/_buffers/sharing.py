"""Buffers that other processes open (rules M1, M2).

Memory of the host is a region that each process maps (`hal._base.regions`) and pins for its
device; it lives as long as any of them uses it. Device memory belongs to the process that allocated
it, and the others open the driver's handle. No driver says what becomes of them if the owner frees
the memory first, so it keeps the memory until the last has left or died, or the device is closed.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

import numpy as np

from hal import bfloat16
from hal._base import sharing_watch as watching
from hal._base.regions import PAGE, SharedRegion
from hal._buffers.dlpack import HOST_DEVICE
from hal._memory.blocks import Owner
from hal._memory.extent import Extent, shape_of
from hal._memory.usage import MEMORY_TYPES
from hal._memory.views import Adopted
from hal.arguments import shown
from hal.errors import (
    ClosedError,
    ExchangeError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.handlers import own
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._memory.core import DeviceCore
    from hal._memory.storage import Storage
    from hal.tickets import BufferTicket


_FEATURE: Final = "memory_sharing"


class _Shared:
    """The owner of shared memory."""

    __slots__ = ("handle", "inner", "region")

    def __init__(self, region: SharedRegion, inner: Storage | None = None) -> None:
        self.region = region  # the memory, behind its first page; of device memory, its users
        self.inner = inner  # the device memory, where it was allocated
        self.handle = b""  # the driver's, of device memory, once there is a ticket


class _Lent:
    """Device memory that this process uses no more, while others may."""

    __slots__ = ("_shared",)

    def __init__(self, shared: _Shared) -> None:
        self._shared: _Shared | None = shared

    def look(self) -> bool:
        """Give the memory back once all have left."""
        if self._shared is not None and not self._shared.region.members():
            self._shared = None
        return self._shared is not None

    def look_for_dead(self) -> None:
        """Go on without the members that have died."""
        if self._shared is not None:
            self._shared.region.expel_dead()

    def leave(self) -> None:
        """Do nothing: the process ends, and its memory with it."""

    def fail(self, error: Exception) -> bool:  # noqa: ARG002 - as watched
        """Look again: until all have left nothing else gives the memory back."""
        return True


_own: Final[WeakValueDictionary[bytes, Adopted]] = WeakValueDictionary()
"""This process's device memory that others may open, by the secrets of its tickets: no driver opens
a handle of the same process."""


def allocate_shareable(device: DeviceCore, size: int, index: int) -> Storage:
    """Return `size` > 0 bytes that other processes can open; see `Device.allocate`."""
    memory = MEMORY_TYPES[index]
    if memory is MemoryType.HOST or _is_host(device):
        return _map(device, SharedRegion.create("buffer", size), memory)
    if memory is not MemoryType.DEVICE or _FEATURE not in device._native.features:
        raise UnimplementedError(
            f"shareable {memory.value} memory was asked for, and {device._name} cannot share it "
            'with other processes; give memory="host", and copy'
        )
    region = SharedRegion.create("buffer", 0)
    region.join(watching.watch.bell())  # others leave with a ring
    shared = _Shared(region, device._heap.allocate_apart(size))
    assert shared.inner is not None  # noqa: S101 - for the type checker
    assert shared.inner.address is not None  # noqa: S101 - it was published
    owner = Owner(shared, lambda: _lend(shared))
    storage = device._heap.adopt(shared.inner.address, size, memory, None, owner)
    _own[region.secret] = cast("Adopted", storage)
    return storage


def _lend(shared: _Shared) -> None:
    """Keep device memory while other processes use it; nobody else opens it from now on."""
    shared.region.shut()
    lent = _Lent(shared)
    if lent.look():
        watching.watch.add(lent)


def ticket_of(buffer: Extent) -> BufferTicket:
    """Return a ticket for a buffer; see `Buffer.share`."""
    from hal.tickets import BufferTicket  # noqa: PLC0415 - of processes that share

    storage = buffer._live()
    shared = _shared_of(storage)
    if shared is None:
        raise InvalidArgumentError(
            "the buffer's memory is of this process alone; one that others open is made with "
            "device.allocate(size, shareable=True)"
        )
    device, inner = buffer._device, shared.inner
    if inner is not None and not shared.handle:
        assert inner.address is not None  # noqa: S101 - it was published
        device._native.bind()
        shared.handle = device._native.export_memory(inner.address)
    return BufferTicket(
        **shared.region.names(),
        device="" if inner is None else device.info.uuid,
        handle=shared.handle,
        offset=buffer._offset,
        size=buffer._size,
        dtype=(
            bfloat16.NAME
            if bfloat16.is_bfloat16(buffer._dtype)
            else np.lib.format.dtype_to_descr(buffer._dtype)
        ),
        shape=buffer._shape,
        denied=buffer._denied,
    )


def open_shared(device: DeviceCore, ticket: BufferTicket) -> tuple[Storage, np.dtype[Any]]:
    """Return the memory and the element type of a buffer's ticket; see `Device.open`."""
    given, size = ticket.dtype, ticket.size
    try:
        is_named = given == bfloat16.NAME
        dtype = bfloat16.dtype() if is_named else np.lib.format.descr_to_dtype(given)
        is_negative = min(ticket.offset, size, *ticket.shape) < 0
        fits = not is_negative and (math.prod(ticket.shape),) == shape_of(size, dtype, "open")
    except HalError:
        raise
    except own(TypeError, ValueError):
        fits = False
    if not fits:
        raise InvalidArgumentError(
            f"open: the ticket of a buffer says that {shown(size)} bytes from byte "
            f"{shown(ticket.offset)} on are {shown(ticket.shape)} elements of {shown(given)}; pass "
            "it on as share() returned it"
        )
    if ticket.device:
        return _open_device(device, ticket), dtype
    region = SharedRegion.open(ticket, "buffer", ticket.offset + size)
    memory = MemoryType.DEVICE if _is_host(device) else MemoryType.HOST
    return _map(device, region, memory), dtype


def _open_device(device: DeviceCore, ticket: BufferTicket) -> Storage:
    """Return a storage over device memory, of another process as a rule."""
    native, watch = device._native, watching.watch
    if ticket.device != device.info.uuid:
        raise ExchangeError(
            f"the ticket is of memory of the device {ticket.device}, and {device._name} is "
            f"{device.info.uuid}; open it with that device, and copy from there"
        )
    size = ticket.offset + ticket.size
    if ticket.process == os.getpid():
        own = _own.get(ticket.secret)
        if own is None or own.address is None:
            raise ClosedError("the buffer of the ticket was closed; keep it until it was opened")
        return device._heap.adopt(own.address, size, MemoryType.DEVICE, None, own)
    region = SharedRegion.open(ticket, "buffer", 0)

    def leave() -> None:
        region.leave()
        watch.ring(region)

    owner = Owner(_Shared(region), leave)
    try:
        region.join(watch.bell())
        native.bind()
        owner.opened = native.open_memory(ticket.handle)
        return device._heap.adopt(owner.opened, size, MemoryType.DEVICE, None, owner)
    except BaseException:
        leave()
        raise


def _is_host(device: DeviceCore) -> bool:
    """Return whether all memory of a device is the host's."""
    return device._native.dlpack_device(MemoryType.DEVICE) == HOST_DEVICE


def _map(device: DeviceCore, region: SharedRegion, memory: MemoryType) -> Storage:
    """Return a storage over the data of a region, which stays mapped as long."""
    heap, address, shared = device._heap, region.address + PAGE, _Shared(region)
    if _is_host(device):
        return heap.adopt(address, region.size, memory, address, shared)
    if "host_import" not in device._native.features:
        raise UnimplementedError(
            f"{device._name} cannot use host memory that it has not allocated; copy the bytes with "
            "device.upload()"
        )
    return heap.import_host(address, region.size, shared, None, writable=True)


def _shared_of(storage: Storage) -> _Shared | None:
    """Return the owner of a storage's memory if that is shared."""
    lease = storage._lease
    cell = None if lease is None else lease.block.owner
    shared = None if cell is None else cell.owner
    return shared if isinstance(shared, _Shared) else None
