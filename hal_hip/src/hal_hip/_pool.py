"""A memory pool for stream-ordered allocation, if a trial shows that it works.

The runtime's own word is not enough: some runtimes that declare pools fail on
first use. So opening a device includes a short trial, and a failure disables the pool.
"""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Final

from hal.errors import HalError, OutOfMemoryError
from hal_hip import _driver
from hal_hip._driver import NOT_READY, call, entry_point, fail, hip, relaxed_entry_point

__all__ = ["Pool", "open_pool", "wait_for_stream"]

_REQUIRED: Final = (
    "hipMemPoolCreate",
    "hipMemPoolDestroy",
    "hipMemPoolSetAttribute",
    "hipMemPoolGetAttribute",
    "hipMemPoolTrimTo",
    "hipMallocFromPoolAsync",
    "hipFreeAsync",
)
_PINNED: Final = 1
_ON_DEVICE: Final = 1
_READ_WRITE: Final = 3
_OUT_OF_MEMORY: Final = 2
_TRIAL: Final = 4096
_FIRST_PAUSE: Final = 20e-6
_LONGEST_PAUSE: Final = 1e-3

_names: Final = hip.hipMemPoolAttr
_REUSE: Final = {
    "ordered": _names.hipMemPoolReuseFollowEventDependencies,
    "complete": _names.hipMemPoolReuseAllowOpportunistic,
    "waited for": _names.hipMemPoolReuseAllowInternalDependencies,
}
_ALLOWED: Final = {"stream": (), "ordered": ("ordered",), "any": tuple(_REUSE)}
"""The runtime's settings for each mode of `NativeDevice.configure_pool`."""

_P: Final = ctypes.c_void_p
_allocate: Final = relaxed_entry_point("hipMallocFromPoolAsync", _P, ctypes.c_size_t, _P, _P)
_fill: Final = entry_point("hipMemsetD8Async", _P, ctypes.c_ubyte, ctypes.c_size_t, _P)
_free: Final = relaxed_entry_point("hipFreeAsync", _P, _P)
_query: Final = relaxed_entry_point("hipStreamQuery", _P)


def wait_for_stream(stream: int) -> None:
    """Block until a stream is idle, by polling it.

    The runtime's own blocking call may hold a lock of the runtime's meanwhile,
    and then no other thread can enqueue the work that the stream waits for.
    """
    pause = 0.0
    while (status := _query(stream)) == NOT_READY:
        time.sleep(pause)
        pause = min(pause * 2 or _FIRST_PAUSE, _LONGEST_PAUSE)
    if status:
        fail(status, _query)


class Pool:
    """A native pool of one device."""

    __slots__ = ("_native",)

    def __init__(self, device: int) -> None:
        """Create a pool."""
        properties = struct.pack("<4i72x", _PINNED, 0, _ON_DEVICE, device)
        self._native = int(call(hip.hipMemPoolCreate, properties))

    @property
    def handle(self) -> int:
        """The runtime's handle."""
        return self._native

    def close(self) -> None:
        """Destroy the pool; it has no allocations."""
        call(hip.hipMemPoolDestroy, self._native)

    def configure(self, keep: int, reuse: str) -> None:
        """Set what the pool keeps, and which freed memory it gives to other streams."""
        values = {_names.hipMemPoolAttrReleaseThreshold: struct.pack("<Q", keep)}
        for way, name in _REUSE.items():
            values[name] = struct.pack("<i", way in _ALLOWED[reuse])
        for name, value in values.items():
            call(hip.hipMemPoolSetAttribute, self._native, name, value)

    def statistics(self) -> tuple[int, int]:
        """Return the bytes that the pool holds, and those in use."""
        return (
            self._count(_names.hipMemPoolAttrReservedMemCurrent),
            self._count(_names.hipMemPoolAttrUsedMemCurrent),
        )

    def _count(self, name: object) -> int:
        value = ctypes.c_uint64()
        call(hip.hipMemPoolGetAttribute, self._native, name, ctypes.addressof(value))
        return value.value

    def trim(self, keep: int) -> None:
        """Return the pool's free memory to the device, except `keep` bytes."""
        call(hip.hipMemPoolTrimTo, self._native, keep)

    def allow(self, device: int) -> None:
        """Let the kernels of another device use the pool's present and future allocations."""
        access = struct.pack("<3i", _ON_DEVICE, device, _READ_WRITE)
        call(hip.hipMemPoolSetAccess, self._native, access, 1)

    def allocate(self, stream: int, size: int) -> int:
        """Return the address of `size` bytes, in the order of a stream.

        HIP reuses a free block only whole, for about the same size, and does not
        return it to the device by itself: this tries that before it reports a lack of memory.
        """
        address = ctypes.c_void_p()
        arguments = ctypes.addressof(address), size, self._native, stream
        status = _allocate(*arguments)
        if status == _OUT_OF_MEMORY:
            reserved, used = self.statistics()
            if reserved > used:
                self.trim(0)
                status = _allocate(*arguments)
        if status:
            fail(status, _allocate)
        return address.value or 0

    def free(self, stream: int, address: int) -> None:
        """Give an allocation back, in the order of a stream."""
        if status := _free(address, stream):
            fail(status, _free)


def open_pool(device: int) -> Pool | None:
    """Return a pool of the current device, or None if pools do not work."""
    if not _driver.has(*_REQUIRED) or not _driver.device_attribute(device, "MemoryPoolsSupported"):
        return None
    pool = None
    try:
        pool = Pool(device)
        _try(pool)
    except HalError as error:
        if pool is not None:
            pool.close()
        if isinstance(error, OutOfMemoryError):
            raise
        return None
    return pool


def _try(pool: Pool) -> None:
    """Allocate, use and free twice; the second time reuses the first's memory."""
    stream = int(call(hip.hipStreamCreateWithFlags, hip.hipStreamNonBlocking))
    try:
        for _ in range(2):
            address = pool.allocate(stream, _TRIAL)
            try:
                if status := _fill(address, 0, _TRIAL, stream):
                    fail(status, _fill)
            finally:
                pool.free(stream, address)
        wait_for_stream(stream)
    finally:
        call(hip.hipStreamDestroy, stream)
    pool.trim(0)  # it then holds only what is asked for
