"""Pin foreign host memory, once for all devices."""

from __future__ import annotations

from typing import Final

from hal.errors import HalError
from hal.handlers import own
from hal.host_pins import HostPins, Undo
from hal_hip._driver import call, hip

_PORTABLE_MAPPED: Final = 3  # for every device
_READ_ONLY: Final = 8
_REFUSED: Final = frozenset({1, 801})  # InvalidValue, NotSupported: read-only pages, perhaps
_ALREADY: Final = 712

pins: Final = HostPins(_ALREADY)
"""The pinned memory of all devices."""


def register(address: int, size: int) -> Undo:
    """Pin host memory; return a function that unpins it. Raises `OperationError` if HIP refuses."""
    try:
        call(hip.hipHostRegister, address, size, _PORTABLE_MAPPED)
    except own(HalError) as error:
        if error.native_code not in _REFUSED:
            raise
        try:
            call(hip.hipHostRegister, address, size, _PORTABLE_MAPPED | _READ_ONLY)
        except own(HalError):
            raise error from None
    return lambda: call(hip.hipHostUnregister, address)
