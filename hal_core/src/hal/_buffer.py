"""Define buffers: ranges of device memory with a numpy type (rules M1, M2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hal._memory import Storage
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    InvalidArgumentError,
    UnimplementedError,
)

if TYPE_CHECKING:
    from hal._device import Device
    from hal._fence import Waits

__all__ = ["Buffer", "check_dtype", "check_index", "check_range"]


class Buffer:
    """Be a range of a device's memory.

    Made by `Device.allocate`, `Device.upload` and `Buffer.subspan`. The
    memory is given back some time after the last buffer, view and unretired
    operation that uses it is gone, or after `close`. Any thread may use it;
    what the memory holds is ordered by queues and semaphores alone.
    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_device",
        "_dtype",
        "_offset",
        "_shape",
        "_size",
        "_storage",
    )

    def __init__(
        self,
        device: Device,
        storage: Storage,
        offset: int,
        size: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> None:
        self._device = device
        self._storage: Storage | None = storage
        self._offset = offset
        self._size = size
        self._dtype = dtype
        self._shape = shape
        self._address = storage.address + offset

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return self._size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the numpy type of an element."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape in elements of `dtype`."""
        return self._shape

    @property
    def device(self) -> Device:
        """Return the device that owns the memory."""
        return self._device

    @property
    def memory(self) -> str:
        """Return the kind of memory: ``"device"``, ``"host"`` or ``"shared"``."""
        return self._live().memory.value

    @property
    def address(self) -> int:
        """Return the device's address of the first byte; raises `ClosedError` after `close`."""
        self._live()
        return self._address

    @property
    def closed(self) -> bool:
        """Return whether it was closed."""
        return self._storage is None

    def __repr__(self) -> str:
        state = "closed" if self._storage is None else f"at {self._address:#x}"
        return f"<Buffer {self._dtype}{list(self._shape)} {self._size} bytes {state}>"

    def subspan(self, offset: int, size: int, *, dtype: DTypeLike | None = None) -> Buffer:
        """Return a buffer of `size` bytes from `offset` on that shares this one's memory.

        `dtype` is this buffer's unless given; `size` is a multiple of its
        item size. Raises `InvalidArgumentError` for a range outside the buffer.
        """
        storage = self._live()
        offset, size = check_range(self, offset, size, "subspan")
        kind = self._dtype if dtype is None else check_dtype(dtype)
        shape = shape_of(size, kind, "subspan")
        return Buffer(self._device, storage, self._offset + offset, size, kind, shape)

    def map(self) -> NDArray[Any]:
        """Return a numpy view of the memory, without a copy, where the host can see it.

        The memory lives as long as the view. The view shows what the memory
        holds when it is read: wait for the work that writes it first. Raises
        `UnimplementedError` where the memory is not host-visible; use
        `numpy` or a queue's ``read`` there.
        """
        storage = self._live()
        if storage.host_address is None:
            message = (
                f"{storage.memory.value} memory of {self._device.name} is not visible to the host; "
                "copy it with buffer.numpy(), or allocate it with memory='host' or 'shared'"
            )
            raise UnimplementedError(message)
        if not self._size:
            return np.empty(self._shape, self._dtype)
        raw = np.asarray(storage.view())[self._offset : self._offset + self._size]
        return raw.view(self._dtype).reshape(self._shape)

    def numpy(
        self,
        dtype: DTypeLike | None = None,
        *,
        wait: Waits = (),
        timeout: float | None = None,
    ) -> NDArray[Any]:
        """Copy to a new numpy array, after `wait`; blocks until it is there.

        With the dtype and shape of the upload; or with `dtype`, flat. Raises
        what `Submission.wait` raises.
        """
        self._live()
        kind = self._dtype if dtype is None else check_dtype(dtype)
        shape = self._shape if dtype is None else shape_of(self._size, kind, "numpy")
        array = np.empty(shape, kind)
        self._device.queues.download.read(self, array, wait=wait).wait(timeout)
        return array

    def close(self) -> None:
        """Let the memory go, once no unretired operation and no view uses it.

        May be called twice. Using the buffer afterwards raises `ClosedError`.
        """
        self._storage = None

    def _live(self) -> Storage:
        """Return the storage, or raise that the buffer is closed."""
        storage = self._storage
        if storage is None:
            message = "the buffer is closed; allocate another"
            raise ClosedError(message)
        self._device._live()
        return storage


def check_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return a numpy type, or raise that it is none."""
    try:
        return np.dtype(dtype)
    except TypeError:
        message = f"{dtype!r} is no numpy dtype"
        raise ArgumentTypeError(message) from None


def check_index(value: object, what: str) -> int:
    """Return a size or an offset as an int >= 0, or raise what is wrong with it."""
    if value.__class__ is int:
        number: int = value
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        message = f"{what} is a number of bytes as an int, not {type(value).__name__}"
        raise ArgumentTypeError(message)
    else:
        number = int(value.__index__())
    if number < 0:
        message = f"{what} is 0 or more bytes; {number} was given"
        raise InvalidArgumentError(message)
    return number


def check_range(buffer: Buffer, offset: object, size: object, what: str) -> tuple[int, int]:
    """Return an offset and a size inside a buffer; None as size is all that follows."""
    start = check_index(offset, f"{what}: the offset")
    length = buffer._size - start if size is None else check_index(size, f"{what}: the size")
    if start > buffer._size or length > buffer._size - start:
        message = (
            f"{what}: bytes {start} to {start + length} were asked for, and the buffer has "
            f"{buffer._size}"
        )
        raise InvalidArgumentError(message)
    return start, length


def shape_of(size: int, dtype: np.dtype[Any], what: str) -> tuple[int, ...]:
    """Return the flat shape of `size` bytes, or raise that the type does not divide them."""
    if dtype.hasobject:
        message = f"{what}: {dtype} holds Python objects, which device memory cannot"
        raise ArgumentTypeError(message)
    if not dtype.itemsize or size % dtype.itemsize:
        message = (
            f"{what}: {size} bytes are no whole number of {dtype} ({dtype.itemsize} bytes each)"
        )
        raise InvalidArgumentError(message)
    return (size // dtype.itemsize,)
