"""Pin foreign host memory, once for all devices; memory pinned by others is used as it is."""

from __future__ import annotations

from typing import Final

from hal.errors import HalError, OperationError
from hal.handlers import own
from hal.host_pins import HostPins, Undo
from hal_cuda._driver import call, cuda, relaxed

_PORTABLE_MAPPED: Final = 3  # for all contexts
_READ_ONLY: Final = 8
_REFUSED: Final = frozenset({1, 800})  # INVALID_VALUE, NOT_PERMITTED: read-only pages, perhaps
_ALREADY: Final = 712

pins: Final = HostPins(_ALREADY)
"""The pinned memory of all devices."""


def register(device: int, context: int, address: int, size: int) -> Undo | None:
    """Pin host memory in a device's primary context, which is current and lives as long.

    Returns a function that unpins it, or None if others have pinned it. Raises
    `OperationError` if the driver refuses.
    """
    call(cuda.cuDevicePrimaryCtxRetain, device)
    pinned = False
    try:
        pinned = _register(address, size)
    finally:
        if not pinned:
            cuda.cuDevicePrimaryCtxRelease(device)
    return (lambda: _unregister(device, context, address)) if pinned else None


def _register(address: int, size: int) -> bool:
    """Pin memory; return False where others have."""
    try:
        call(cuda.cuMemHostRegister, address, size, _PORTABLE_MAPPED)
    except own(OperationError) as error:
        code = error.native_code
        if code in _REFUSED:
            flags = _PORTABLE_MAPPED | _READ_ONLY
            (again,) = relaxed(cuda.cuMemHostRegister, address, size, flags)
            if not again:
                return True
        if not _is_pinned_by_others(address, size):
            raise
        return False
    return True


def _is_pinned_by_others(address: int, size: int) -> bool:
    """Return whether some memory lies in one range that others have pinned."""
    names = cuda.CUpointer_attribute
    first, length = (
        names.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        names.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    )
    try:
        start = int(call(cuda.cuPointerGetAttribute, first, address))
        end = start + int(call(cuda.cuPointerGetAttribute, length, address))
    except own(HalError):
        return False
    # The table knows our own ranges, except for what the driver has added at their ends.
    return start <= address <= address + size <= end and not pins.is_own(start)


def _unregister(device: int, context: int, address: int) -> None:
    current = call(cuda.cuCtxGetCurrent)
    call(cuda.cuCtxSetCurrent, context)
    try:
        call(cuda.cuMemHostUnregister, address)
    finally:
        call(cuda.cuDevicePrimaryCtxRelease, device)
        call(cuda.cuCtxSetCurrent, current)
