"""Copies between the devices of one driver (rules C1, Q4, Q5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hal._buffers.buffer import Buffer
from hal._engine.payload import NOTHING, Checked
from hal._memory import peers
from hal._memory.access import late_address
from hal._transfers.host_copies import is_between_hosts, move
from hal._transfers.transfers import CHUNK, check_ends
from hal.errors import InvalidArgumentError

if TYPE_CHECKING:
    from hal._memory.core import DeviceCore
    from hal._memory.storage import Storage
    from hal.native import NativeDevice


def is_between_devices(device: DeviceCore, source: object, target: object) -> bool:
    """Return whether a copy on a queue of `device` is from or to another device's memory."""
    return (
        source.__class__ is Buffer
        and target.__class__ is Buffer
        and not (source._device is device and target._device is device)
    )


def owner(device: DeviceCore, thing: object) -> DeviceCore:
    """Return the device that has a memory, if a copy of `device` reaches that, else `device`."""
    if not isinstance(thing, Buffer):
        return device
    other = thing._device
    return other if other is device or peers.is_peer(device, other) else device


def on_neither_side(source: DeviceCore, target: DeviceCore, where: str) -> InvalidArgumentError:
    """Return the error of a copy by a third device."""
    return InvalidArgumentError(
        f"copy: the source belongs to {source._name}, the target to {target._name}, and {where} "
        "one of those"
    )


def copy(
    device: DeviceCore, source: Buffer, target: Buffer, offsets: tuple[object, object], size: object
) -> Checked:
    """Check a copy from or to another device; like `hal._transfers.transfers.copy`."""
    owners = owner(device, source), owner(device, target)
    if device not in owners:
        raise on_neither_side(*owners, f"this queue to {device._name}; submit it to a queue of")
    other = owners[0] if owners[1] is device else owners[1]
    written, read, length = check_ends(owners, source, target, offsets, size)
    if not length:
        return NOTHING, False
    if is_between_hosts(device, written[1], read[1]):
        moved = move(written, read, length)
        return peers.visit(device, moved, (other._context,)), True
    arguments = (device._native, (owners[1]._native, *written), (owners[0]._native, *read), length)
    resources = (read[1], written[1])
    return peers.visit(device, (_copy, arguments, resources), (other._context,)), False


def _copy(
    stream: int,
    native: NativeDevice,
    target: tuple[NativeDevice, int, Storage],
    source: tuple[NativeDevice, int, Storage],
    size: int,
) -> None:
    """Make the native calls, with addresses that are known by now."""
    target_device, target_start, target_storage = target
    source_device, source_start, source_storage = source
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
