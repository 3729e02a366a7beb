"""A memory pool for stream-ordered allocation, if the device supports it."""

from __future__ import annotations

from typing import Any, Final

from hal.errors import OperationError, UnimplementedError
from hal_cuda import _driver
from hal_cuda._driver import call, cuda

__all__ = ["Pool", "open_pool"]

_names: Final = cuda.CUmemPool_attribute
_REUSE: Final = {
    "ordered": _names.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
    "complete": _names.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
    "waited for": _names.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
}
_ALLOWED: Final = {"stream": (), "ordered": ("ordered",), "any": tuple(_REUSE)}
"""The driver's settings for each mode of `NativeDevice.configure_pool`."""


class Pool:
    """A native pool of one device."""

    __slots__ = ("_native",)

    def __init__(self, ordinal: int) -> None:
        """Create a pool; the current context is the device's."""
        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location = _location(ordinal)
        self._native = call(cuda.cuMemPoolCreate, properties)

    @property
    def handle(self) -> int:
        """The driver's handle."""
        return int(self._native)

    def close(self) -> None:
        """Destroy the pool; it has no allocations."""
        call(cuda.cuMemPoolDestroy, self._native)

    def configure(self, keep: int, reuse: str) -> None:
        """Set what the pool keeps, and which freed memory it gives to other streams."""
        threshold = cuda.cuuint64_t(keep)
        call(
            cuda.cuMemPoolSetAttribute,
            self._native,
            _names.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            threshold,
        )
        allowed = _ALLOWED[reuse]
        for way, name in _REUSE.items():
            call(cuda.cuMemPoolSetAttribute, self._native, name, int(way in allowed))

    def allow(self, ordinal: int) -> None:
        """Let the kernels of another device use the pool's present and future allocations."""
        access = cuda.CUmemAccessDesc()
        access.location = _location(ordinal)
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        call(cuda.cuMemPoolSetAccess, self._native, [access], 1)

    def allocate(self, stream: Any, size: int) -> int:  # noqa: ANN401 - the bindings' object
        """Return the address of `size` bytes, in the order of a stream."""
        return int(call(cuda.cuMemAllocFromPoolAsync, size, self._native, stream))

    def free(self, stream: Any, address: int) -> None:  # noqa: ANN401 - the bindings' object
        """Give an allocation back, in the order of a stream."""
        call(cuda.cuMemFreeAsync, address, stream)

    def statistics(self) -> tuple[int, int]:
        """Return the bytes that the pool holds, and those in use."""
        reserved = _names.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        used = _names.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        get = cuda.cuMemPoolGetAttribute
        return int(call(get, self._native, reserved)), int(call(get, self._native, used))

    def trim(self, keep: int) -> None:
        """Return the pool's free memory to the device, except `keep` bytes."""
        call(cuda.cuMemPoolTrimTo, self._native, keep)


def open_pool(ordinal: int) -> Pool | None:
    """Return a pool of a device, whose context is current; None if pools are unsupported."""
    if not _driver.attribute(ordinal, "MEMORY_POOLS_SUPPORTED"):
        return None
    try:
        return Pool(ordinal)
    except (OperationError, UnimplementedError):
        return None


def _location(ordinal: int) -> Any:  # noqa: ANN401 - a structure of the bindings
    """Return the driver's name for the memory of a device."""
    place = cuda.CUmemLocation()
    place.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = ordinal
    return place
