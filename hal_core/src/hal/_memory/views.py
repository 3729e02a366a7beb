"""Host views of a storage, which they keep alive (rule M2)."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hal._memory.storage import GIVEN_BACK, Storage, Transient
from hal.errors import ClosedError
from hal.handlers import own

if TYPE_CHECKING:
    from numpy.typing import NDArray


_char: Final[Any] = ctypes.c_char


class ArrayBase:
    """The base of a numpy array over memory that `owner` keeps alive.

    `place` is the address, and whether the array is read-only. The memory may be a device's: then
    nobody reads the array.
    """

    __slots__ = ("__array_interface__", "owner")

    def __init__(
        self,
        owner: object,
        kind: str,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
        place: tuple[int, bool],
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": kind,
            "shape": shape,
            "strides": strides,
            "data": place,
        }


class HostView(ArrayBase):
    """The base of all numpy views of a storage, which lives as long as they do (M2)."""

    __slots__ = ("__weakref__",)

    owner: Storage


class Adopted(Storage):
    """A use of foreign memory, which is looked up by its address as long as it lives."""

    __slots__ = ("__weakref__",)


def view_of(storage: Storage) -> HostView:
    """Return the owner for a numpy view of a storage; its memory is host-visible.

    Raises `ClosedError` if a dealloca or a close on another thread has given it back meanwhile.
    """
    heap = storage._heap
    # One owner for all views: the memory is given back when it is gone. A close that has begun
    # may have looked for it already.
    with heap.books.lock:
        heap.driver.check_open()
        lease = storage._lease
        if lease is None and isinstance(storage, Transient):
            raise ClosedError(GIVEN_BACK)
        block = None if lease is None else lease.block
        view: HostView | None = block.view() if block is not None and block.view else None
        if view is None:
            place = storage.host_address or 0, block is not None and not block.writable
            view = HostView(storage, "|u1", (storage.size,), None, place)
            if block is not None:
                block.view = weakref.ref(view)
    return view


def host_bytes(storage: Storage, start: int, size: int) -> NDArray[np.uint8]:
    """Return a range of host-visible memory, kept alive by the array; raises as `view_of`."""
    return np.asarray(view_of(storage))[start : start + size]


def array_address(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array of at least one byte."""
    try:
        return ctypes.addressof(_char.from_buffer(array))
    except own(TypeError, ValueError):  # read-only, or elements that buffers do not know
        return array.ctypes.data  # four times as slow


def put(storage: Storage, array: NDArray[Any]) -> int:
    """Copy an array to pinned memory, which it fits in, and return the address on the host.

    Raises `ClosedError` if the device was closed meanwhile.
    """
    address, heap = storage.host_address, storage._heap
    assert address is not None  # noqa: S101 - pinned memory is the host's
    with heap.books.lock:  # a close frees nothing before it has had it
        heap.driver.check_open()
        ctypes.memmove(address, array_address(array), array.nbytes)
    return address
