"""Share memory with other libraries: DLPack, numpy, variables of loaded code (rule M2).

Exporting memory that the host sees blocks as `Buffer.map` does; on import, wait
for the writer first. Memory that only a device sees is ordered by
streams: `hal._buffers.imports`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hal._buffers import buffer as _buffer
from hal._buffers import dlpack, imports
from hal._buffers.dlpack import CPU, describe_device
from hal._engine.external import CUDA_KINDS, ROCM
from hal._engine.submitted import wait_before
from hal._memory.storage import Module, Storage
from hal._memory.usage import WRITE
from hal._memory.views import view_of
from hal.arguments import as_dtype, as_int, as_items, ask, shown
from hal.errors import (
    ArgumentTypeError,
    ExchangeError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._buffers.buffer import Buffer
    from hal._engine.fence import Waits
    from hal._memory.core import DeviceCore

__all__ = [
    "as_array",
    "cuda_array",
    "exchange_device",
    "export_buffer",
    "host_view",
    "import_tensor",
    "module_storage",
]

_HOST_DEVICE: Final = (CPU, 0)
_HOST_KINDS: Final = frozenset({CPU, 3, 11, 13})
"""Types of DLPack devices whose addresses the host may read: also pinned and managed memory."""
_ALIGNMENT: Final = 4
"""The least alignment of addresses: fills write up to four bytes at once."""


def module_storage(device: DeviceCore, module: Module, address: int, size: int) -> Storage:
    """Return a storage over a variable of a loaded module, which keeps the module loaded."""
    visible = "host_visible_device_memory" in device.features
    host = address if visible else None
    return device._heap.adopt(address, size, MemoryType.DEVICE, host, module)


# Numpy and the buffer protocol


def host_view(buffer: Buffer) -> NDArray[Any]:
    """Return what `Buffer.map` returns; raise TypeError, as callers that ask for a view expect."""
    try:
        return _mapped(buffer)
    except UnimplementedError as error:
        raise ArgumentTypeError(str(error)) from None


def _mapped(buffer: Buffer, wait: Waits | None = None) -> NDArray[Any]:
    """Return a view with the buffer's access; raise if that denies reading."""
    return buffer.map("read" if buffer.access == "read" else "all", wait=wait)


def as_array(buffer: Buffer, dtype: DTypeLike | None, copy: object) -> NDArray[Any]:
    """Return an array as numpy's ``__array__`` protocol asks."""
    _check_copy(copy)
    view = host_view(buffer)
    kind = view.dtype if dtype is None else as_dtype(dtype)
    if kind != view.dtype:
        if copy is False:
            message = f"the buffer holds {view.dtype}, and {kind} of it would be a copy"
            raise InvalidArgumentError(message)
        return view.astype(kind)
    return view.copy() if copy else view


# DLPack, out


def exchange_device(buffer: Buffer) -> tuple[int, int]:
    """Return a buffer's place as a DLPack device; raises `ExchangeError`."""
    storage = buffer._live()
    device = buffer.device
    where = device._native.dlpack_device(storage.memory)
    if where is None and storage.host_address is not None:
        where = _HOST_DEVICE
    if where is None:
        message = (
            f"{storage.memory.value} memory of {device._name} cannot be handed out by DLPack: its "
            "backend names no DLPack device; copy it with buffer.numpy()"
        )
        raise ExchangeError(message)
    return where


def export_buffer(
    buffer: Buffer,
    stream: object,
    max_version: object,
    dl_device: object,
    copy: object,
) -> object:
    """Return a capsule over a buffer's memory, or over a copy of it; see `Buffer.__dlpack__`."""
    allocation = buffer.allocation
    if allocation is not None and buffer._live().address is None:
        allocation.wait()
    where = exchange_device(buffer)
    _check_stream(stream, where)
    version = _pair(max_version, "max_version")
    wanted = _pair(dl_device, "dl_device") or where
    _check_copy(copy)
    dlpack.check_elements(buffer.dtype)
    if wanted not in {where, _HOST_DEVICE}:
        message = (
            f"the buffer is in {describe_device(where)}, and cannot be handed out in "
            f"{describe_device(wanted)}; upload it there from buffer.numpy()"
        )
        raise ExchangeError(message)
    on_host = where[0] in _HOST_KINDS
    moves = wanted != where and not on_host
    if moves and copy is False:
        message = (
            f"the buffer is in {describe_device(where)}: handing it out in "
            f"{describe_device(wanted)} takes a copy, and copy=False forbids one"
        )
        raise ExchangeError(message)
    by_stream = wanted == where and where[0] != CPU and not copy
    if by_stream:
        imports.order_consumer(buffer.device, where, _number(stream))
    if moves:
        array = buffer.numpy()
    elif on_host:
        array = _mapped(buffer, () if by_stream else None)
        array = array.copy() if copy else array
    else:
        array = _address_view(_copy(buffer) if copy else buffer)
    return dlpack.export_array(array, wanted, version, is_copy=moves or bool(copy))


class _DeviceTensor:
    """The base of a numpy array that stands for device memory, and is never read."""

    __slots__ = ("__array_interface__", "_view")

    def __init__(self, buffer: Buffer) -> None:
        storage = buffer._live()
        self._view = view_of(storage)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (buffer.size,),
            "data": (buffer.address, buffer.access == "read"),
        }


def _address_view(buffer: Buffer) -> NDArray[Any]:
    """Return an array at a device address, used only for its shape and its lifetime."""
    return np.asarray(_DeviceTensor(buffer)).view(buffer.dtype).reshape(buffer.shape)


def _copy(buffer: Buffer) -> Buffer:
    """Return a copy in the device's memory, made after everything submitted so far."""
    device = buffer.device
    wait_before(device._context, None, "__dlpack__()")
    copy = device.allocate(buffer.size, dtype=buffer.dtype)
    device.queue.copy(buffer, copy).wait()
    copy._shape = buffer.shape
    return copy


def _number(stream: object) -> int | None:
    """Return a checked stream as an int, or None."""
    return None if stream is None else as_int(stream, "__dlpack__: stream is None or an int")


def _check_stream(stream: object, where: tuple[int, int]) -> None:
    """Raise unless a consumer's stream is valid for that kind of device, in DLPack's numbers."""
    kind = where[0]
    if stream is None:
        return
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
        return
    raise InvalidArgumentError(message)


# The CUDA Array Interface


class _NoCudaArrayError(ExchangeError, AttributeError):
    """The error for a buffer without such an interface; ``hasattr`` is false then."""


def cuda_array(buffer: Buffer) -> dict[str, object]:
    """Return version 3 of the CUDA Array Interface for a buffer."""
    where = exchange_device(buffer)
    if where[0] not in CUDA_KINDS:
        message = f"the buffer is in {describe_device(where)}, which CUDA's libraries do not see"
        raise _NoCudaArrayError(message)
    return {
        "version": 3,
        "shape": buffer.shape,
        "typestr": buffer.dtype.str,
        "descr": buffer.dtype.descr,
        "strides": None,
        "data": (buffer.address if buffer.size else 0, buffer.access == "read"),
        "stream": imports.stream_of_producer(buffer.device),
    }


# DLPack, in


def import_tensor(device: DeviceCore, tensor: object, copy: bool | None) -> Buffer:  # noqa: FBT001
    """Return a buffer over a tensor's memory, or over a copy of it; see `Device.from_dlpack`."""
    _check_copy(copy)
    what = f"from_dlpack of {type(tensor).__name__}"
    if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
        if hasattr(tensor, "__cuda_array_interface__"):
            return imports.take_cuda_array(device, tensor, copy, what)
        message = (
            f"{what}: it has no __dlpack__ and __dlpack_device__; whatever numpy can read is "
            "copied by device.upload(array)"
        )
        raise ArgumentTypeError(message)
    told = ask(_device_of, tensor, f"{what}: its __dlpack_device__ returns a pair of ints")
    try:
        kind, number = told
        where = (int(kind), int(number))
    except (TypeError, ValueError, OverflowError):
        message = f"{what}: its __dlpack_device__ returned {shown(told)}, and not a pair of ints"
        raise ExchangeError(message) from None
    memory = imports.memory_at(device, where)
    if memory is not None:
        return imports.take_dlpack(device, memory, functools.partial(_ask, tensor), copy, what)
    if where[0] in _HOST_KINDS:
        taken = dlpack.take_capsule(_ask_for_itself(tensor, what), what)
    elif copy is False:
        message = (
            f"{what}: it is in {describe_device(where)}, which is not memory of {device._name}; "
            "let it be copied through the host, with copy=None"
        )
        raise ExchangeError(message)
    else:
        taken = dlpack.take_capsule(_ask_for_host_copy(tensor, where, what), what)
    if not taken.size:
        empty: Buffer = device.upload(np.empty(taken.shape, taken.dtype))
        return empty
    problem = _obstacle(device, taken)
    if problem and copy is False:
        message = f"{what}: {problem}; or let it be copied, with copy=None or copy=True"
        raise ExchangeError(message)
    if problem and copy is None and not taken.is_contiguous:
        message = f"{what}: {problem}; or ask for a copy, with copy=True"
        raise InvalidArgumentError(message)
    if problem or copy:
        copied: Buffer = device.upload(taken.array())
        return copied
    storage = device._heap.adopt(
        taken.address,
        taken.size,
        MemoryType.DEVICE,
        taken.address,
        taken.owner,
        writable=not taken.read_only,
    )
    denied = WRITE if taken.read_only else 0
    return _buffer.Buffer(device, storage, 0, taken.size, taken.dtype, taken.shape, denied)


def _obstacle(device: DeviceCore, tensor: dlpack.Tensor) -> str:
    """Return why the device cannot use a host tensor's memory as it is; empty if it can."""
    if not tensor.is_contiguous:
        return (
            f"its strides of {tensor.strides} bytes leave gaps or turn axes round; make it "
            "contiguous first, as tensor.contiguous() and numpy.ascontiguousarray(array) do"
        )
    if device._native.dlpack_device(MemoryType.DEVICE) != _HOST_DEVICE:
        return f"{device._name} cannot use host memory as its own"
    alignment = max(tensor.dtype.alignment, _ALIGNMENT)
    if tensor.address % alignment:
        return f"it begins at {tensor.address:#x}, which is no multiple of {alignment}"
    return ""


def _ask(tensor: Any, asked: dict[str, object]) -> object:  # noqa: ANN401 - another library's
    """Call a tensor's ``__dlpack__``, with a version if it supports versions."""
    try:
        return tensor.__dlpack__(max_version=dlpack.VERSION, **asked)
    except TypeError as error:
        if "dl_device" in asked or isinstance(error, HalError):
            raise
    return tensor.__dlpack__(**asked)


def _device_of(tensor: Any) -> Any:  # noqa: ANN401 - another library's
    return tensor.__dlpack_device__()


def _ask_for_itself(tensor: object, what: str) -> object:
    try:
        return _ask(tensor, {})
    except HalError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        message = f"{what}: it does not hand itself out: {error}"
        raise ExchangeError(message) from error


def _ask_for_host_copy(tensor: object, where: tuple[int, int], what: str) -> object:
    try:
        return _ask(tensor, {"dl_device": _HOST_DEVICE})
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        message = (
            f"{what}: it is in {describe_device(where)}, and does not copy itself to the host "
            f"({error}); do that first, as tensor.cpu() does"
        )
        raise ExchangeError(message) from error


def _check_copy(copy: object) -> None:
    if copy is not None and not isinstance(copy, (bool, np.bool_)):
        message = f"copy is True, False or None (where it must be), not {type(copy).__name__}"
        raise ArgumentTypeError(message)


def _pair(value: object, what: str) -> tuple[int, int] | None:
    """Return a DLPack version or device as two ints, or None for None."""
    if value is None:
        return None
    rule = f"__dlpack__: {what} is None or a pair of ints"
    numbers = [as_int(each, rule) for each in as_items(value, rule, ordered=True)]
    if len(numbers) != 2:  # noqa: PLR2004 - a pair
        message = f"{rule}, not {shown(value)}"
        raise ArgumentTypeError(message)
    return numbers[0], numbers[1]
