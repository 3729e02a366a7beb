"""Check a device's use of a buffer, and find the buffer's memory (rules M1 to M3)."""

from __future__ import annotations

from hal._memory import peers
from hal._memory.core import DeviceCore
from hal._memory.extent import Extent, no_address
from hal._memory.storage import Storage
from hal._memory.usage import explain_refusal
from hal.arguments import memory_hint
from hal.errors import ArgumentTypeError, InvalidArgumentError, OperationError


def check_buffer(
    device: DeviceCore, buffer: object, what: str, need: int = 0, where: str = "queue"
) -> Storage:
    """Return the storage of an open buffer that `device` may use in this way, or raise.

    `need` has bits of `hal._memory.usage`; `where` names the part of the call that must
    belong to the device. Keep the result alive, not the buffer's own attribute, which
    another thread may clear meanwhile.
    """
    if not isinstance(buffer, Extent):
        message = f"{what} takes a buffer, not {type(buffer).__name__}{memory_hint(buffer)}"
        raise ArgumentTypeError(message)
    if buffer._device is not device:
        return peers.check_guest(device, buffer, what, need, where)
    storage = buffer._storage
    if storage is None or device._closed or buffer._denied & need:
        buffer._live()
        raise InvalidArgumentError(explain_refusal(what, buffer._denied & need))
    return storage


def late_address(storage: Storage) -> int:
    """Return a storage's address when an operation is issued; raise if it has none."""
    address = storage.address
    if address is None:
        raise no_address(storage, OperationError)
    return address
