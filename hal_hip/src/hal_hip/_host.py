"""Pin host memory of others, once for all devices.

The runtime refuses memory that is pinned already, whichever device did it. What
is pinned here is so for every device, hence one table with counts does.
"""

from __future__ import annotations

import threading
from typing import Final

from hal.errors import HalError, OperationError
from hal_hip._driver import call, hip

__all__ = ["HostMemory"]

_PORTABLE_MAPPED: Final = 3
_READ_ONLY: Final = 8
_REFUSED: Final = frozenset({1, 801})  # InvalidValue, NotSupported: read-only pages, perhaps
_ALREADY: Final = 712


class HostMemory:
    """Know what is pinned, and how often."""

    __slots__ = ("_imports", "_lock", "_ranges")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges: dict[int, tuple[int, int]] = {}  # size and count, by address
        self._imports: dict[int, list[int]] = {}  # for each import's address: of which ranges

    def pin(self, address: int, size: int) -> int:
        """Pin memory; return the current device's address of it.

        Raises `OperationError` where the runtime refuses.
        """
        with self._lock:
            start = self._find(address, size)
            if start is None:
                _register(address, size)
                start = address
                self._ranges[start] = (size, 0)
            length, count = self._ranges[start]
            self._ranges[start] = (length, count + 1)
            self._imports.setdefault(address, []).append(start)
        try:
            return int(call(hip.hipHostGetDevicePointer, address, 0))
        except BaseException:
            self.unpin(address)
            raise

    def _find(self, address: int, size: int) -> int | None:
        """Return where a range begins that is pinned and holds all of another."""
        for start, (length, _) in self._ranges.items():
            if start <= address and address + size <= start + length:
                return start
        return None

    def unpin(self, address: int) -> None:
        """Undo one `pin` of that address."""
        with self._lock:
            starts = self._imports[address]
            start = starts.pop()
            if not starts:
                del self._imports[address]
            length, count = self._ranges[start]
            if count > 1:
                self._ranges[start] = (length, count - 1)
                return
            del self._ranges[start]
            call(hip.hipHostUnregister, start)


def _register(address: int, size: int) -> None:
    try:
        call(hip.hipHostRegister, address, size, _PORTABLE_MAPPED)
    except HalError as error:
        if error.native_code == _ALREADY:
            message = (
                f"a part of the {size} bytes at {address:#x} is pinned already: release what was "
                f"imported there first, or import all of it at once ({error})"
            )
            raise OperationError(
                message, native_name=error.native_name, native_code=_ALREADY
            ) from error
        if error.native_code not in _REFUSED:
            raise
        try:
            call(hip.hipHostRegister, address, size, _PORTABLE_MAPPED | _READ_ONLY)
        except HalError:
            raise error from None
