"""Buffers: ranges of device memory with a numpy type (rules M1, M2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hal import bfloat16
from hal._base.checks import check_range
from hal._buffers import exports
from hal._buffers.sharing import ticket_of
from hal._engine.fence import Waits, wait_all
from hal._engine.submission import Submission
from hal._engine.submitted import wait_before
from hal._memory import blocking
from hal._memory.access import check_buffer
from hal._memory.extent import Extent, address_of, shape_of
from hal._memory.usage import (
    READ,
    TRANSFER_SOURCE,
    WRITE,
    BufferUsage,
    describe_rights,
    explain_refusal,
    mapping_need,
)
from hal._memory.views import host_bytes
from hal.arguments import as_dtype, as_instance, as_int
from hal.errors import InvalidArgumentError, UnimplementedError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from hal._devices.device import Device
    from hal._memory.storage import Storage
    from hal.tickets import BufferTicket


class Buffer(Extent):
    """A range of a device's memory.

    Made by `Device.allocate`, `Device.upload`, `Device.import_array`,
    `Queue.alloca` and `Buffer.subspan`. The memory is given back some time
    after the last buffer, view and unretired operation that uses it is gone,
    or after `close`. Any thread may use it; only queues and semaphores
    order accesses to the memory's contents.
    """

    __slots__ = ("__weakref__",)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of an element."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in elements of `dtype`."""
        return self._shape

    @property
    def device(self) -> Device:
        """The device that owns the memory."""
        return cast("Device", self._device)

    @property
    def memory(self) -> str:
        """The kind of memory: ``"device"``, ``"host"`` or ``"managed"``."""
        return self._live().memory.value

    @property
    def usage(self) -> BufferUsage:
        """The uses that it allows."""
        return BufferUsage(BufferUsage.ALL & ~self._denied)

    @property
    def access(self) -> str:
        """The access that it allows to the bytes: ``"all"``, ``"read"`` or ``"write"``."""
        denied = self._denied
        return "read" if denied & WRITE else "write" if denied & READ else "all"

    @property
    def allocation(self) -> Submission | None:
        """The submission of the `Queue.alloca` that makes its memory, or None."""
        return self._allocation

    @property
    def address(self) -> int:
        """The device's address of the first byte.

        Raises `ClosedError` after `close`. A buffer of `Queue.alloca` has an
        address once its `allocation` was issued: before, this raises
        `InvalidArgumentError`, and the alloca's own error if that has failed.
        """
        return address_of(self, self._live())

    @property
    def closed(self) -> bool:
        """Whether it was closed, or given to `Queue.dealloca`."""
        return self._storage is None

    def __repr__(self) -> str:
        storage = self._storage
        state = "closed"
        if storage is not None:
            address = storage.address
            where = "no address yet" if address is None else f"at {address + self._offset:#x}"
            state = f"{storage.memory.value} memory {where}{describe_rights(self._denied)}"
        elements = f"{bfloat16.name_of(self._dtype)}{list(self._shape)}"
        return f"<Buffer {elements} {self._size} bytes {state}>"

    def subspan(self, offset: int, size: int, *, dtype: DTypeLike | None = None) -> Buffer:
        """Return a buffer of `size` bytes from `offset` on that shares this one's memory.

        It also shares its usage and access. `dtype` is this buffer's unless given; `size`
        is a multiple of its item size. Raises `InvalidArgumentError` for a
        range outside the buffer.
        """
        offset, size = check_range(self._size, offset, size, "subspan")
        kind = self._dtype if dtype is None else as_dtype(dtype)
        return self._part(offset, size, kind, shape_of(size, kind, "subspan"))

    def view(self, dtype: DTypeLike) -> Buffer:
        """Return a buffer over the same memory whose elements are of another type.

        As with `numpy.ndarray.view` bytes are not converted, and the last axis
        grows or shrinks if the elements have another size. Kernels' pointers
        and host arrays are compared with the new type: with ``np.uint8``, untyped
        bytes, they all fit. Raises `InvalidArgumentError` if the last
        axis is not a whole number of the new elements.
        """
        kind, shape = as_dtype(dtype), self._shape
        if kind.itemsize != self._dtype.itemsize or kind.hasobject:
            row = shape[-1] * self._dtype.itemsize if shape else self._size
            shape = (*shape[:-1], *shape_of(row, kind, "view"))
        return self._part(0, self._size, kind, shape)

    def __getitem__(self, rows: slice) -> Buffer:
        """Return the buffer of some rows, ``buffer[a:b]`` of the first axis, in the same memory.

        Bounds as Python's: negative ones count from the end, others are cut off at the ends.
        Raises `ArgumentTypeError` for anything but a slice of ints, and `InvalidArgumentError` for
        a step, and for an array without axes.
        """
        as_instance(rows, slice, "buffer[...] takes a slice of the first axis")
        if rows.step is not None:
            message = "buffer[a:b] has no step: its rows lie one behind the other in memory"
            raise InvalidArgumentError(message)
        if not self._shape:
            message = "buffer[a:b] wants a first axis, and the array is a single element"
            raise InvalidArgumentError(message)
        count = self._shape[0]
        rule = "the bounds of buffer[a:b] are ints"
        start, stop = (
            None if each is None else as_int(each, rule) for each in (rows.start, rows.stop)
        )
        first, last, _ = slice(start, stop).indices(count)
        length, row = max(last - first, 0), self._size // count if count else 0
        # The same first byte for every empty part
        offset = first * row if length else 0
        return self._part(offset, length * row, self._dtype, (length, *self._shape[1:]))

    __iter__ = None  # else Python would ask for `buffer[0]`

    def _part(self, offset: int, size: int, kind: np.dtype[Any], shape: tuple[int, ...]) -> Buffer:
        storage = self._live()
        offset += self._offset
        part = Buffer(self._device, storage, offset, size, kind, shape, self._denied)
        part._allocation = self._allocation
        part._is_part = True
        if storage.source is not None:
            # Register first, check after; `dealloca` does it the other way round.
            storage.add_part(part)
            if self._storage is None:
                part._end()
        return part

    def share(self) -> BufferTicket:
        """Return a ticket with which another process of the same user opens it (`Device.open`).

        Only for memory that was allocated with ``shareable=True``, of which this may be a part;
        raises `InvalidArgumentError` for other memory. The ticket keeps nothing alive: keep the
        buffer until it was opened. After that the memory lives as long as any process uses it.
        """
        return ticket_of(self)

    def map(
        self, access: str = "all", *, wait: Waits | None = None, timeout: float | None = None
    ) -> NDArray[Any]:
        """Return a numpy view of the memory, without a copy, where the host can see it.

        Blocks until everything that was submitted to the device's queues
        before has ended, successfully or not; with `wait`, until that has: ``()``
        waits for nothing. In a host function (`Queue.call`) it waits only for what
        `wait` names.

        The memory lives as long as the view. The view shows what the memory
        holds when it is read: wait for work that is submitted later, too.
        `access` is the purpose of the view: ``"all"``, ``"read"`` (it is
        read-only then), ``"write"``, or ``"discard"`` to overwrite all of it
        and ignore its contents.

        Raises `UnimplementedError` where the memory is not host-visible; use
        `numpy` or a queue's ``read`` there. Raises `InvalidArgumentError` if
        the buffer's usage or access does not allow it, and what `address`
        does if an alloca was not issued by the end of the wait. Raises
        `DeadlineExceededError` after `timeout` seconds, and the failures of `wait`.
        """
        need = mapping_need(access)
        storage = self._live()
        if self._denied & need:
            raise InvalidArgumentError(explain_refusal("map", self._denied & need))
        if storage.address is not None:  # else looked at below: its alloca may be issued by then
            self._check_visible(storage)
        if wait is None:
            wait_before(self._device._context, timeout, "map()")
        else:
            wait_all(wait, timeout)
        address_of(self, storage)
        self._check_visible(storage)
        if self._size:
            raw = host_bytes(storage, self._offset, self._size)
            array = raw.view(self._dtype).reshape(self._shape)
        else:
            array = np.empty(self._shape, self._dtype)
        if access == "read":
            array.flags.writeable = False
        return array

    def _check_visible(self, storage: Storage) -> None:
        """Raise unless the host sees the memory, and it has an address."""
        if storage.host_address is None:
            raise UnimplementedError(
                f"{storage.memory.value} memory of {self._device._name} is not visible to the "
                "host; copy it with buffer.numpy(), or allocate it with memory='host' or 'managed'"
            )

    def numpy(
        self,
        dtype: DTypeLike | None = None,
        *,
        wait: Waits | None = None,
        timeout: float | None = None,
    ) -> NDArray[Any]:
        """Copy to a new numpy array, and block until it is there.

        Waits as `map` does. The array has the dtype and shape of the upload; with `dtype`, it is
        flat.

        It does not raise for failed operations, not even for one that was
        to write this buffer: the array has what the memory holds. Ask their
        submissions, or pass them as `wait`, whose failures are raised. Raises
        what `Submission.wait` raises; `DeadlineExceededError` after `timeout`
        seconds says which operations have not ended, and why. That bounds the
        wait, and not the copy, which the calling thread makes then. Ctrl-C ends both.
        """
        storage = check_buffer(self._device, self, "numpy", TRANSFER_SOURCE)
        kind = self._dtype if dtype is None else as_dtype(dtype)
        shape = self._shape if dtype is None else shape_of(self._size, kind, "numpy")
        array = np.empty(shape, kind)
        if wait is None:
            wait_before(self._device._context, timeout, "numpy()")
        else:
            wait_all(wait, timeout)
        if self._size:
            blocking.read(self._device, storage, self._offset, array)
        return array

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001
        """Return a view like ``map()`` for ``np.asarray(buffer)``; raise TypeError if impossible.

        Waits as ``map()`` does; ``buffer.map(wait=...)`` waits for less.
        """
        return exports.as_array(self, dtype, copy)

    def __buffer__(self, flags: int) -> memoryview:
        """Return a view like ``map()``, after the same wait; from Python 3.12 on."""
        return exports.host_view(self).data

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a DLPack capsule over the memory, which lives as long as its consumer's tensor.

        Host-visible memory: blocks until everything that was submitted to
        the device has ended, as ``map()`` does, and `stream` is None. Memory
        that only a device sees: the consumer's `stream`, numbered as in the
        standard, waits for everything submitted to this device so far, on all its
        queues, except for work that itself waits for something that nobody has
        promised, or stands behind a host function; None is the default stream,
        -1 asks for no order. It blocks while such work is not yet on its
        stream. Where the device does not know foreign streams, and for a copy, it
        blocks until everything has ended.

        `max_version` is the version that the consumer reads, `dl_device` where it wants
        the memory; `copy` is True, False, or None for only if necessary. Raises
        `ExchangeError` (a `BufferError`) if the memory cannot be exported
        as asked.
        """
        return exports.export_buffer(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the place of the memory as a DLPack device; raises `ExchangeError`."""
        return exports.exchange_device(self)

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """The buffer for CUDA libraries; raises AttributeError if the memory is not CUDA's.

        Has the ``stream`` of what was submitted so far, as in `__dlpack__`,
        or None if that has ended.
        """
        return exports.cuda_array(self)

    def close(self) -> None:
        """Release the memory, once no unretired operation and no view uses it.

        May be called twice. Using the buffer afterwards raises `ClosedError`.
        """
        self._storage = None
