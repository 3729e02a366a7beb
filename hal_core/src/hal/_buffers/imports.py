"""Take memory of other libraries: DLPack and the CUDA Array Interface (rules M2, Q5).

Nothing orders accesses to a tensor in memory that the host sees: its user waits for the
writer first. For one in device memory, a stream of ours waits for the producer's stream,
and all our queues wait for ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from hal._buffers import dlpack
from hal._buffers.buffer import Buffer
from hal._buffers.dlpack import HOST_DEVICE, HOST_KINDS, check_copy, describe_device
from hal._engine.external import CUDA, ROCM, Captured, capture, is_external
from hal._memory.core import DeviceCore
from hal._memory.usage import WRITE
from hal.arguments import ask, shown
from hal.errors import (
    ArgumentTypeError,
    ExchangeError,
    HalError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.handlers import own
from hal.native import MemoryType

_MANAGED: Final = 13
_REFUSALS: Final = (BufferError, RuntimeError, TypeError, ValueError)
"""Exceptions of a tensor that does not hand out its memory."""
_ALIGNMENT: Final = 4  # the least alignment of addresses: fills write up to four bytes at once


def import_tensor(device: DeviceCore, tensor: object, copy: bool | None) -> Buffer:  # noqa: FBT001
    """Return a buffer over a tensor's memory, or over a copy of it; see `Device.from_dlpack`."""
    check_copy(copy)
    what = f"from_dlpack of {type(tensor).__name__}"
    if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
        if hasattr(tensor, "__cuda_array_interface__"):
            return _take_cuda_array(device, tensor, copy, what)
        raise ArgumentTypeError(
            f"{what}: it has no __dlpack__ and __dlpack_device__; whatever numpy can read is "
            "copied by device.upload(array)"
        )
    rule = f"{what}: its __dlpack_device__ returns a pair of ints"
    told = ask(lambda each: each.__dlpack_device__(), tensor, rule)
    try:
        kind, number = told
        where = (int(kind), int(number))
    except own(TypeError, ValueError, OverflowError):
        message = f"{what}: its __dlpack_device__ returned {shown(told)}, and not a pair of ints"
        raise ExchangeError(message) from None
    memory = _memory_at(device, where)
    if memory is not None:
        return _take_dlpack(device, memory, tensor, copy, what)
    if where[0] in HOST_KINDS:
        taken = dlpack.take_capsule(_ask_for_itself(tensor, {}, what), what)
    elif copy is False:
        raise ExchangeError(
            f"{what}: it is in {describe_device(where)}, which is not memory of {device._name}; "
            "let it be copied through the host, with copy=None"
        )
    else:
        taken = dlpack.take_capsule(_ask_for_host_copy(tensor, where, what), what)
    if not taken.size:
        return _empty(device, taken)
    problem = _obstacle(taken)
    if not problem and device._native.dlpack_device(MemoryType.DEVICE) != HOST_DEVICE:
        problem = f"{device._name} cannot use host memory as its own"
    if problem and copy is False:
        raise ExchangeError(f"{what}: {problem}; or let it be copied, with copy=None or copy=True")
    if problem and copy is None and not taken.is_contiguous:
        raise InvalidArgumentError(f"{what}: {problem}; or ask for a copy, with copy=True")
    if problem or copy:
        copied: Buffer = device.upload(taken.array())
        return copied
    return _share(device, taken, MemoryType.DEVICE, taken.address)


def _empty(device: DeviceCore, tensor: dlpack.ImportedTensor) -> Buffer:
    made: Buffer = device.upload(np.empty(tensor.shape, tensor.dtype))
    return made


def _share(
    device: DeviceCore, tensor: dlpack.ImportedTensor, memory: MemoryType, host_address: int | None
) -> Buffer:
    """Return a buffer over a tensor's memory, which keeps its owner alive."""
    storage = device._heap.adopt(
        tensor.address,
        tensor.size,
        memory,
        host_address,
        tensor.owner,
        writable=not tensor.read_only,
    )
    denied = WRITE if tensor.read_only else 0
    return Buffer(device, storage, 0, tensor.size, tensor.dtype, tensor.shape, denied)


def _ask(tensor: Any, asked: dict[str, object]) -> object:  # noqa: ANN401 - another library's
    """Call a tensor's ``__dlpack__``, with a version if it supports versions."""
    try:
        return tensor.__dlpack__(max_version=dlpack.VERSION, **asked)
    except own(TypeError) as error:
        if "dl_device" in asked or isinstance(error, HalError):
            raise
    return tensor.__dlpack__(**asked)


def _ask_for_itself(tensor: object, asked: dict[str, object], what: str) -> object:
    try:
        return _ask(tensor, asked)
    except HalError:
        raise
    except own(*_REFUSALS) as error:
        raise ExchangeError(f"{what}: it does not hand itself out: {error}") from error


def _ask_for_host_copy(tensor: object, where: tuple[int, int], what: str) -> object:
    try:
        return _ask(tensor, {"dl_device": HOST_DEVICE})
    except own(*_REFUSALS) as error:
        raise ExchangeError(
            f"{what}: it is in {describe_device(where)}, and does not copy itself to the host "
            f"({error}); do that first, as tensor.cpu() does"
        ) from error


# Device memory


def _memory_at(device: DeviceCore, where: tuple[int, int]) -> MemoryType | None:
    """Return the kind of this device's memory at a tensor's place, if it can be shared."""
    if not is_external(device._context):
        return None
    for memory in (MemoryType.DEVICE, MemoryType.MANAGED):
        if where == device._native.dlpack_device(memory) and where[0] in {CUDA, ROCM, _MANAGED}:
            return memory
    return None


def _take_dlpack(
    device: DeviceCore,
    memory: MemoryType,
    tensor: object,
    copy: bool | None,  # noqa: FBT001 - three-valued
    what: str,
) -> Buffer:
    """Return a buffer over a tensor in this device's memory; see `Device.from_dlpack`."""
    native = device._native
    native.bind()
    intake = device._external.take()
    asked: dict[str, object] = {"stream": native.export_stream(intake.stream)}
    taken = dlpack.take_capsule(_ask_for_itself(tensor, asked, what), what)
    return _take(device, memory, taken, intake.capture(), copy, what)


def _take_cuda_array(device: DeviceCore, array: object, copy: bool | None, what: str) -> Buffer:  # noqa: FBT001
    """Return a buffer over a ``__cuda_array_interface__``; see `Device.from_dlpack`."""
    place = device._native.dlpack_device(MemoryType.DEVICE)
    if place is None or place[0] != CUDA or not is_external(device._context):
        raise UnimplementedError(
            f"{what}: it offers __cuda_array_interface__ only, which {device._name} cannot "
            "take; convert it to a tensor with __dlpack__, or copy it to the host first"
        )
    taken, stream = _read_interface(array, place, what)
    if taken.size:
        device._native.bind()
        where = device._native.locate(taken.address)
        memory = MemoryType.DEVICE if where is None else _memory_at(device, where)
        if memory is None:
            assert where is not None  # noqa: S101 - for the type checker
            raise ExchangeError(
                f"{what}: its memory at {taken.address:#x} is in {describe_device(where)}, and "
                f"{device._name} is {describe_device(place)}; copy it there first"
            )
    else:
        memory = MemoryType.DEVICE
    captured = None if stream is None else capture(device._context, stream)
    return _take(device, memory, taken, captured, copy, what)


def _read_interface(
    array: Any,  # noqa: ANN401 - another library's
    place: tuple[int, int],
    what: str,
) -> tuple[dlpack.ImportedTensor, int | None]:
    """Return a CUDA array as a tensor, and the stream to wait for."""
    interface = array.__cuda_array_interface__
    if not isinstance(interface, Mapping):
        raise ArgumentTypeError(f"{what}: its __cuda_array_interface__ is no mapping")
    try:
        shape = tuple(int(each) for each in interface["shape"])
        address, read_only = interface["data"]
        dtype: np.dtype[Any] = np.dtype(interface["typestr"])
        if dtype.kind == "V" and interface.get("descr"):
            dtype = np.dtype(list(interface["descr"]))
        strides = interface.get("strides")
        if strides is None:
            strides = dlpack.packed(shape, dtype)
        strides = tuple(int(each) for each in strides)
    except own(KeyError, TypeError, ValueError) as error:
        message = f"{what}: its __cuda_array_interface__ is not as the protocol says: {error!r}"
        raise ExchangeError(message) from error
    if interface.get("mask") is not None:
        raise ExchangeError(f"{what}: it has a mask, which a buffer cannot have; fill it in first")
    stream = interface.get("stream")
    if stream is not None and (isinstance(stream, bool) or int(stream) < 1):
        message = f"{what}: its stream is {stream!r}; the protocol has None, or 1 and more"
        raise InvalidArgumentError(message)
    tensor = dlpack.ImportedTensor(
        array, int(address or 0), dtype, shape, strides, place, bool(read_only)
    )
    return tensor, None if stream is None else int(stream)


def _take(
    device: DeviceCore,
    memory: MemoryType,
    taken: dlpack.ImportedTensor,
    captured: Captured | None,
    copy: bool | None,  # noqa: FBT001 - three-valued
    what: str,
) -> Buffer:
    """Return a buffer over a tensor, or over a copy, that is ready on every queue."""
    if not taken.size:
        return _empty(device, taken)
    problem = _obstacle(taken)
    if problem:
        raise (ExchangeError if copy is False else InvalidArgumentError)(f"{what}: {problem}")
    if captured is not None:
        device._external.let_all_wait(captured)
    host_address = taken.address if memory is MemoryType.MANAGED else None
    if device._native.dlpack_device(memory) == HOST_DEVICE:
        host_address = taken.address
    shared = _share(device, taken, memory, host_address)
    if not copy:
        return shared
    target: Buffer = device.allocate(taken.size, dtype=taken.dtype)
    target._shape = taken.shape
    device.queue.copy(shared, target).wait()
    return target


def _obstacle(tensor: dlpack.ImportedTensor) -> str:
    """Return why a tensor's memory cannot be a buffer as it is; empty if it can."""
    if not tensor.is_contiguous:
        return (
            f"its strides of {tensor.strides} bytes leave gaps or turn axes round; make it "
            "contiguous first, as tensor.contiguous() and ascontiguousarray(array) do"
        )
    alignment = max(tensor.dtype.alignment, _ALIGNMENT)
    if tensor.address % alignment:
        return (
            f"it begins at {tensor.address:#x}, which is no multiple of {alignment}; copy it to "
            "memory of its own first, as tensor.clone() does"
        )
    return ""
