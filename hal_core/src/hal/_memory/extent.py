"""The range of a storage that a buffer is, and its rights (rule M2).

Every submission looks at it; `hal.Buffer` is the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hal._base.checks import check_index
from hal._base.failures import fresh
from hal._engine.operation import DONE
from hal._engine.submission import Submission
from hal._memory.core import DeviceCore
from hal._memory.storage import GIVEN_BACK, Storage
from hal._memory.usage import check_memory
from hal.arguments import as_dtype, no_data, shown
from hal.errors import ClosedError, HalError, InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


DEALLOCATED: Final = 1 << 16
"""Denied, besides everything else, by a buffer that was given to `Queue.dealloca`."""

_BYTES: Final = np.dtype(np.uint8)


class Extent:
    """The range of a storage behind a `hal.Buffer`."""

    __slots__ = (
        "_allocation",
        "_denied",
        "_device",
        "_dtype",
        "_is_part",
        "_offset",
        "_shape",
        "_size",
        "_storage",
    )

    def __init__(
        self,
        device: DeviceCore,
        storage: Storage,
        offset: int,
        size: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        denied: int = 0,
    ) -> None:
        self._device = device
        self._storage: Storage | None = storage
        self._offset = offset
        self._size = size
        self._dtype = dtype
        self._shape = shape
        self._denied = denied  # bits of `hal._memory.usage`
        self._is_part = False  # of another buffer
        self._allocation: Submission | None = None  # of the alloca

    def _live(self) -> Storage:
        """Return the storage; raise if the buffer is closed."""
        storage = self._storage
        if storage is None:
            if self._denied & DEALLOCATED:
                message = GIVEN_BACK
            else:
                message = "the buffer is closed; allocate another"
            raise ClosedError(message)
        self._device._live()
        return storage

    def _end(self) -> None:
        """Make it unusable: `dealloca` was submitted. Operations that hold it go on."""
        self._denied |= DEALLOCATED  # first: a thread that finds no storage looks here why
        self._storage = None


def address_of(buffer: Extent, storage: Storage) -> int:
    """Return a buffer's address; raise if it has none yet."""
    address = storage.address
    if address is None:
        raise no_address(storage, InvalidArgumentError)
    return address + buffer._offset


def no_address(storage: Storage, kind: type[HalError]) -> HalError:
    """Return why a storage has no address: its alloca's error, or that it was not issued."""
    source = storage.source
    if source is not None and source._state > DONE:
        return fresh(source._error)
    return kind(
        "the buffer has no address before its alloca was issued; wait for buffer.allocation, as "
        "in wait=[buffer.allocation], or record it by slot"
    )


def check_allocation(
    size: object, dtype: DTypeLike, memory: object, what: str
) -> tuple[int, int, np.dtype[Any], tuple[int, ...]]:
    """Return an allocation's size, the index of its kind of memory, its type and shape."""
    if type(size) is int and size >= 0:  # fast path
        length: int = size
    else:
        length = check_index(size, f"{what}: the size")
    index = check_memory(memory)
    if dtype is np.uint8:
        return length, index, _BYTES, (length,)
    element = as_dtype(dtype)
    return length, index, element, shape_of(length, element, what)


def shape_of(size: int, dtype: np.dtype[Any], what: str) -> tuple[int, ...]:
    """Return the flat shape of `size` bytes; raise if the type does not divide them."""
    if dtype.hasobject:
        raise no_data(dtype, what)
    if not dtype.itemsize or size % dtype.itemsize:
        raise InvalidArgumentError(
            f"{what}: {shown(size)} bytes are no whole number of {dtype} "
            f"({dtype.itemsize} bytes each)"
        )
    return (size // dtype.itemsize,)
