"""Pin host memory of others, once for the whole process.

The driver refuses memory that is pinned already, by another device of ours or
by another library. So all devices share one table of what we have pinned, with
counts, and memory that others have pinned is used as it is.
"""

from __future__ import annotations

import threading
from typing import Final

from hal.errors import HalError, OperationError
from hal_cuda import _driver
from hal_cuda._driver import call, cuda

__all__ = ["forget", "pin", "unpin"]

_PORTABLE: Final = 1  # for all contexts
_MAPPED: Final = 2
_READ_ONLY: Final = 8
_REFUSED: Final = frozenset({1, 800})  # INVALID_VALUE, NOT_PERMITTED: read-only pages, perhaps
_ALREADY: Final = 712


class _Range:
    """Be memory that was pinned in the context of one device, which it keeps alive."""

    __slots__ = ("address", "context", "count", "device", "is_ours", "size")

    def __init__(
        self, address: int, size: int, device: int, context: int, *, is_ours: bool
    ) -> None:
        self.address = address
        self.size = size
        self.device = device
        self.context = context
        self.is_ours = is_ours
        self.count = 0

    def holds(self, address: int, size: int) -> bool:
        return self.address <= address and address + size <= self.address + self.size


_lock: Final = threading.Lock()
_ranges: Final[dict[int, _Range]] = {}
_imports: Final[dict[tuple[int, int], list[_Range]]] = {}
"""For each import of each device, by its token and the address, what it uses."""


def pin(token: int, device: int, context: int, address: int, size: int) -> int:
    """Pin host memory for a device whose context is current; return its address there.

    `token` tells the device from others that are open. Raises `OperationError`
    where the driver refuses.
    """
    with _lock:
        found = next((each for each in _ranges.values() if each.holds(address, size)), None)
        if found is None:
            found = _register(device, context, address, size)
            _ranges[found.address] = found
        found.count += 1
        _imports.setdefault((token, address), []).append(found)
    try:
        return int(call(cuda.cuMemHostGetDevicePointer, address, 0))
    except BaseException:
        unpin(token, address)
        raise


def _register(device: int, context: int, address: int, size: int) -> _Range:
    call(cuda.cuDevicePrimaryCtxRetain, device)
    found = None
    try:
        found = _register_in(device, context, address, size)
        return found
    finally:
        if found is None or not found.is_ours:
            cuda.cuDevicePrimaryCtxRelease(device)


def _register_in(device: int, context: int, address: int, size: int) -> _Range:
    (error,) = cuda.cuMemHostRegister(address, size, _PORTABLE | _MAPPED)
    if error and int(error) in _REFUSED:
        read_only = cuda.cuMemHostRegister(address, size, _PORTABLE | _MAPPED | _READ_ONLY)[0]
        error = read_only and error
    if error and _pinned_by_others(address, size):
        return _Range(address, size, device, context, is_ours=False)
    if error and int(error) == _ALREADY:
        problem = _driver.error_of(error, "cuMemHostRegister")
        message = (
            f"a part of the {size} bytes at {address:#x} is pinned already: release what was "
            f"imported there first, or import all of it at once ({problem})"
        )
        raise OperationError(message, native_name=problem.native_name, native_code=_ALREADY)
    if error:
        _driver.fail(error, cuda.cuMemHostRegister)
    return _Range(address, size, device, context, is_ours=True)


def _pinned_by_others(address: int, size: int) -> bool:
    """Return whether some memory lies in one range that somebody else has pinned."""
    names = cuda.CUpointer_attribute
    first, length = (
        names.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        names.CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    )
    try:
        start = int(call(cuda.cuPointerGetAttribute, first, address))
        end = start + int(call(cuda.cuPointerGetAttribute, length, address))
    except HalError:
        return False
    if not start <= address <= address + size <= end:
        return False
    # A range of ours would hold it, had we pinned that.
    return not any(each.is_ours and each.holds(start, 1) for each in _ranges.values())


def unpin(token: int, address: int) -> None:
    """Undo one `pin` of a device, whose context is current."""
    with _lock:
        held = _imports[token, address]
        found = held.pop()
        if not held:
            del _imports[token, address]
        found.count -= 1
        if found.count:
            return
        del _ranges[found.address]
        # Still under the lock: who pins it meanwhile would take it for pinned by others.
        if found.is_ours:
            current = call(cuda.cuCtxGetCurrent)
            call(cuda.cuCtxSetCurrent, found.context)
            try:
                call(cuda.cuMemHostUnregister, found.address)
            finally:
                call(cuda.cuDevicePrimaryCtxRelease, found.device)
                call(cuda.cuCtxSetCurrent, current)


def forget(token: int) -> None:
    """Forget the imports of a device that is closed; those of a lost one were never undone."""
    with _lock:
        for key in [key for key in _imports if key[0] == token]:
            for found in _imports.pop(key):
                found.count -= 1
                if not found.count:
                    _ranges.pop(found.address, None)
                    if found.is_ours:
                        cuda.cuDevicePrimaryCtxRelease(found.device)
