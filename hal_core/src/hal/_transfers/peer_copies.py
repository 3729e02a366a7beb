"""Copies between the devices of one driver (rules Q4, Q5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal._base.checks import check_range
from hal._buffers.buffer import Buffer
from hal._engine.plan import NOTHING, Payload
from hal._memory import peers
from hal._memory.access import check_buffer, late_address
from hal._memory.usage import TRANSFER_SOURCE, TRANSFER_TARGET
from hal._transfers.host_copies import is_between_hosts, move
from hal._transfers.transfers import CHUNK
from hal.errors import InvalidArgumentError

if TYPE_CHECKING:
    from hal._memory.core import DeviceCore
    from hal._memory.storage import Storage
    from hal.native import NativeDevice

__all__ = ["copy", "is_between_devices"]


def is_between_devices(device: DeviceCore, source: object, target: object) -> bool:
    """Return whether a copy on a queue of `device` is from or to another device's memory."""
    return (
        source.__class__ is Buffer
        and target.__class__ is Buffer
        and not (source._device is device and target._device is device)
    )


def copy(
    device: DeviceCore,
    source: Buffer,
    target: Buffer,
    offsets: tuple[object, object],
    size: object,
) -> tuple[Payload, bool]:
    """Check a copy from or to another device; like `hal._transfers.transfers.copy`."""
    owners = (source._device, target._device)
    if device not in owners:
        message = (
            f"copy: the source belongs to {owners[0]._name}, the target to {owners[1]._name}, and "
            f"this queue to {device._name}; submit it to a queue of one of those"
        )
        raise InvalidArgumentError(message)
    other = owners[0] if owners[1] is device else owners[1]
    if not peers.is_peer(device, other):
        # One of the two raises: the one for the other device's buffer.
        check_buffer(device, source, "copy: the source", TRANSFER_SOURCE)
        check_buffer(device, target, "copy: the target", TRANSFER_TARGET)
    source_storage = check_buffer(owners[0], source, "copy: the source", TRANSFER_SOURCE)
    target_storage = check_buffer(owners[1], target, "copy: the target", TRANSFER_TARGET)
    source_start, length = check_range(source._size, offsets[0], size, "copy: the source")
    target_start, _ = check_range(target._size, offsets[1], length, "copy: the target")
    if not length:
        return NOTHING, False
    source_start += source._offset
    target_start += target._offset
    if _is_same(source_storage, source_start, target_storage, target_start, length):
        return NOTHING, False
    if is_between_hosts(device, target_storage, source_storage):
        moved = move((target_start, target_storage), (source_start, source_storage), length)
        return peers.visit(device, moved, (other._context,), is_host=True), True
    arguments = (
        device._native,
        (owners[1]._native, target_storage, target_start),
        (owners[0]._native, source_storage, source_start),
        length,
    )
    resources = (source_storage, target_storage)
    return peers.visit(device, (_copy, arguments, resources), (other._context,)), False


def _is_same(
    source: Storage, source_start: int, target: Storage, target_start: int, length: int
) -> bool:
    """Return whether the ranges are one: two devices may share memory. Raise if they overlap."""
    if source.address is None or target.address is None:
        return False
    distance = source.address + source_start - target.address - target_start
    if distance and abs(distance) < length:
        message = (
            f"copy: {length} bytes overlap in the same memory, which both devices have; copy "
            "through another buffer"
        )
        raise InvalidArgumentError(message)
    return not distance


def _copy(
    stream: int,
    native: NativeDevice,
    target: tuple[NativeDevice, Storage, int],
    source: tuple[NativeDevice, Storage, int],
    size: int,
) -> None:
    """Make the native calls, with addresses that are known by now."""
    target_device, target_storage, target_start = target
    source_device, source_storage, source_start = source
    target_start += late_address(target_storage)
    source_start += late_address(source_storage)
    for start in range(0, size, CHUNK):
        native.copy_peer(
            stream,
            target_start + start,
            target_device,
            source_start + start,
            source_device,
            min(CHUNK, size - start),
        )
