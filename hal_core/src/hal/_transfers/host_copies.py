"""Copies between two host memories where the device's own copy would block (rules Q1, M1).

A driver that stages a copy from pinned to pinned memory blocks its caller until the
stream is done, even in an asynchronous call. So where the device does not declare
``pageable_copies`` the host copies, in a host operation: on a thread of the
pool, once all that it waits for is reached. Managed memory counts as the device's:
drivers enqueue copies from and to it.
"""

from __future__ import annotations

import ctypes
from typing import TypeAlias

from hal._engine.payload import Payload
from hal._memory.access import late_address
from hal._memory.core import DeviceCore
from hal._memory.storage import Storage
from hal.native import MemoryType

HostLocation: TypeAlias = tuple[int, Storage | None]
"""Bytes from the beginning of a storage, or an address where the storage is None."""


def is_between_hosts(device: DeviceCore, target: Storage, source: Storage) -> bool:
    """Return whether a native copy between two storages would block its caller."""
    return (
        not device._pageable
        and target.memory is MemoryType.HOST
        and source.memory is MemoryType.HOST
    )


def move(target: HostLocation, source: HostLocation, length: int, host: object = None) -> Payload:
    """Return the payload of a host operation that copies; the two may overlap.

    `host` keeps memory alive that is given by its address.
    """
    return _move, (target, source, length), host


def _move(target: HostLocation, source: HostLocation, length: int) -> None:
    ctypes.memmove(_address_of(target), _address_of(source), length)


def _address_of(place: HostLocation) -> int:
    """Return a place's address on the host; raise if its memory has none even now (M3)."""
    start, storage = place
    if storage is None:
        return start
    late_address(storage)
    assert storage.host_address is not None  # noqa: S101 - pinned memory is the host's
    return storage.host_address + start
