"""Copy between two host memories where the device's own copy would block (rules Q1, M1).

From pinned to pinned memory a driver that stages makes its caller wait until the
stream is done, whatever it is asked. So where the device does not declare
``pageable_copies`` the host copies, in a host operation: on a thread of the
pool, once all that it waits for is reached. Managed memory is the device's here:
drivers enqueue copies from and to it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, TypeAlias

from hal._memory.extent import no_address
from hal._memory.storage import Storage
from hal.errors import OperationError
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._devices.device import Device
    from hal._transfers.transfers import Payload

__all__ = ["Place", "is_between_hosts", "move"]

Place: TypeAlias = tuple[int, Storage | None]
"""Bytes from the beginning of a storage, or an address where that is None."""


def is_between_hosts(device: Device, target: Storage, source: Storage) -> bool:
    """Return whether a native copy between two storages would block its caller."""
    return (
        not device._pageable
        and target.memory is MemoryType.HOST
        and source.memory is MemoryType.HOST
    )


def move(target: Place, source: Place, length: int, host: object = None) -> Payload:
    """Return the payload of a host operation that copies; the two may overlap.

    `host` keeps the memory alive that is given by its address.
    """
    return _move, (target, source, length), host


def _move(target: Place, source: Place, length: int) -> None:
    ctypes.memmove(_address_of(target), _address_of(source), length)


def _address_of(place: Place) -> int:
    """Return where the host sees a place, or raise why it has no address even now (M3)."""
    start, storage = place
    if storage is None:
        return start
    if storage.address is None:
        raise no_address(storage, OperationError)
    assert storage.host_address is not None  # noqa: S101 - pinned memory is the host's
    return storage.host_address + start
