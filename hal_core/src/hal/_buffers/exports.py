"""Show memory to other libraries: DLPack, numpy, the CUDA Array Interface (rules M2, Q5).

Exporting memory that the host sees blocks as `Buffer.map` does. For memory that only a
device sees, the consumer names the stream that it will use; that stream waits for all work
submitted before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hal._buffers import dlpack
from hal._buffers.dlpack import CPU, HOST_DEVICE, HOST_KINDS, check_copy, describe_device
from hal._engine.external import CUDA_KINDS, ROCM, is_external, let_stream_wait, settle
from hal._engine.submitted import wait_before
from hal._memory.views import ArrayBase, view_of
from hal.arguments import as_dtype, as_int, as_items, shown
from hal.errors import ArgumentTypeError, ExchangeError, InvalidArgumentError, UnimplementedError
from hal.handlers import own

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from hal._buffers.buffer import Buffer
    from hal._engine.fence import Waits
    from hal._memory.core import DeviceCore


_PINNED: Final = frozenset({3, 11})
"""Types of DLPack devices in the host's memory, which the driver has pinned."""


# Numpy and the buffer protocol


def host_view(buffer: Buffer) -> NDArray[Any]:
    """Return what `Buffer.map` returns; raise TypeError, as callers that ask for a view expect."""
    try:
        return _mapped(buffer)
    except own(UnimplementedError) as error:
        raise ArgumentTypeError(str(error)) from None


def _mapped(buffer: Buffer, wait: Waits | None = None) -> NDArray[Any]:
    """Return a view with the buffer's access; raise if that denies reading."""
    return buffer.map("read" if buffer.access == "read" else "all", wait=wait)


def as_array(buffer: Buffer, dtype: DTypeLike | None, copy: object) -> NDArray[Any]:
    """Return an array as numpy's ``__array__`` protocol asks."""
    check_copy(copy)
    view = host_view(buffer)
    kind = view.dtype if dtype is None else as_dtype(dtype)
    if kind != view.dtype:
        if copy is False:
            message = f"the buffer holds {view.dtype}, and {kind} of it would be a copy"
            raise InvalidArgumentError(message)
        return view.astype(kind)
    return view.copy() if copy else view


# DLPack


def exchange_device(buffer: Buffer) -> tuple[int, int]:
    """Return a buffer's place as a DLPack device; raises `ExchangeError`."""
    storage = buffer._live()
    device = buffer.device
    where = device._native.dlpack_device(storage.memory)
    if where is None and storage.host_address is not None:
        where = HOST_DEVICE
    if where is None:
        raise ExchangeError(
            f"{storage.memory.value} memory of {device._name} cannot be handed out by DLPack: its "
            "backend names no DLPack device; copy it with buffer.numpy()"
        )
    return where


def export_buffer(
    buffer: Buffer, stream: object, max_version: object, dl_device: object, copy: object
) -> object:
    """Return a capsule over a buffer's memory, or over a copy of it; see `Buffer.__dlpack__`."""
    allocation = buffer.allocation
    if allocation is not None and buffer._live().address is None:
        allocation.wait()
    where = exchange_device(buffer)
    number = _check_stream(stream, where)
    version = _pair(max_version, "max_version")
    wanted = _pair(dl_device, "dl_device") or where
    check_copy(copy)
    dlpack.check_elements(buffer.dtype)
    if wanted not in {where, HOST_DEVICE}:
        raise ExchangeError(
            f"the buffer is in {describe_device(where)}, and cannot be handed out in "
            f"{describe_device(wanted)}; upload it there from buffer.numpy()"
        )
    on_host = where[0] in HOST_KINDS
    moves = wanted != where and not on_host
    if moves and copy is False:
        raise ExchangeError(
            f"the buffer is in {describe_device(where)}: handing it out in "
            f"{describe_device(wanted)} takes a copy, and copy=False forbids one"
        )
    by_stream = wanted == where and where[0] != CPU and not copy
    if by_stream:
        _order_consumer(buffer.device, where, number)
    if moves:
        array = buffer.numpy()
    elif on_host:
        array = _mapped(buffer, () if by_stream else None)
        array = array.copy() if copy else array
    else:
        array = _address_view(_copy(buffer) if copy else buffer)
    return dlpack.export_array(array, wanted, version, is_copy=moves or bool(copy))


def _address_view(buffer: Buffer) -> NDArray[Any]:
    """Return an array at a device address, used only for its shape and its lifetime."""
    owner = view_of(buffer._live())
    place = buffer.address, buffer.access == "read"
    array = np.asarray(ArrayBase(owner, "|u1", (buffer.size,), None, place))
    return array.view(buffer.dtype).reshape(buffer.shape)


def _copy(buffer: Buffer) -> Buffer:
    """Return a copy in the device's memory, made after everything submitted so far."""
    device = buffer.device
    wait_before(device._context, None, "__dlpack__()")
    copy = device.allocate(buffer.size, dtype=buffer.dtype)
    device.queue.copy(buffer, copy).wait()
    copy._shape = buffer.shape
    return copy


def _order_consumer(device: DeviceCore, where: tuple[int, int], stream: int | None) -> None:
    """Make the consumer's stream wait for everything submitted so far.

    `stream` follows DLPack: -1 for no order, and None for the default
    stream of CUDA or ROCm, or for the host where it sees the memory. The host
    waits in that case, and where the device does not know foreign streams.
    """
    if stream == -1:
        return
    if not is_external(device._context) or (stream is None and where[0] in _PINNED):
        wait_before(device._context, None, "__dlpack__()")
        return
    if stream is None:
        stream = 0 if where[0] == ROCM else 1
    let_stream_wait(device._context, stream)


def _check_stream(stream: object, where: tuple[int, int]) -> int | None:
    """Return a consumer's stream, in DLPack's numbers; raise unless it is one of such a device."""
    kind = where[0]
    if stream is None:
        return None
    number = as_int(stream, "__dlpack__: stream is None or an int")
    if kind == CPU:
        message = f"__dlpack__: host memory has no streams; stream is None, not {shown(number)}"
    elif number < -1:
        message = f"__dlpack__: stream is -1 (no order is wanted) or more, not {shown(number)}"
    elif kind == ROCM and number in {1, 2}:
        message = f"__dlpack__: ROCm has no stream {number}; its default stream is 0"
    elif kind != ROCM and number == 0:
        message = "__dlpack__: stream 0 is ambiguous; 1 and 2 are the default streams"
    else:
        return number
    raise InvalidArgumentError(message)


def _pair(value: object, what: str) -> tuple[int, int] | None:
    """Return a DLPack version or device as two ints, or None for None."""
    if value is None:
        return None
    rule = f"__dlpack__: {what} is None or a pair of ints"
    numbers = [as_int(each, rule) for each in as_items(value, rule, ordered=True)]
    if len(numbers) != 2:  # noqa: PLR2004 - a pair
        raise ArgumentTypeError(f"{rule}, not {shown(value)}")
    return numbers[0], numbers[1]


# The CUDA Array Interface


class _NoCudaArrayError(ExchangeError, AttributeError):
    """The error for a buffer without such an interface; ``hasattr`` is false then."""


def cuda_array(buffer: Buffer) -> dict[str, object]:
    """Return version 3 of the CUDA Array Interface for a buffer."""
    where, device = exchange_device(buffer), buffer.device
    if where[0] not in CUDA_KINDS:
        message = f"the buffer is in {describe_device(where)}, which CUDA's libraries do not see"
        raise _NoCudaArrayError(message)
    if is_external(device._context):
        settle(device._context)
        stream = device._external.outgoing()  # ends when everything submitted so far has
    else:
        wait_before(device._context, None, "__cuda_array_interface__")
        stream = None
    return {
        "version": 3,
        "shape": buffer.shape,
        "typestr": buffer.dtype.str,
        "descr": buffer.dtype.descr,
        "strides": None,
        "data": (buffer.address if buffer.size else 0, buffer.access == "read"),
        "stream": stream,
    }
