"""Share device memory with other libraries, in the order of their streams (rules M2, Q5).

On export, the consumer names the stream that it will use; that stream waits for all
work submitted before. On import, a stream of ours waits for the producer's stream,
and all our queues wait for ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hal._buffers import buffer, dlpack
from hal._buffers.dlpack import describe_device
from hal._engine.external import (
    CUDA,
    ROCM,
    Captured,
    capture,
    is_external,
    let_stream_wait,
    settle,
)
from hal._engine.submitted import wait_before
from hal._memory.usage import WRITE
from hal.errors import (
    ArgumentTypeError,
    ExchangeError,
    InvalidArgumentError,
    UnimplementedError,
)
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._buffers.buffer import Buffer
    from hal._memory.core import DeviceCore

__all__ = [
    "memory_at",
    "order_consumer",
    "stream_of_producer",
    "take_cuda_array",
    "take_dlpack",
]

_PINNED: Final = frozenset({3, 11})
_MANAGED: Final = 13
_ALIGNMENT: Final = 4
"""The least alignment of addresses: fills write up to four bytes at once."""


# Out


def order_consumer(device: DeviceCore, where: tuple[int, int], stream: int | None) -> None:
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


def stream_of_producer(device: DeviceCore) -> int | None:
    """Return a stream that ends when everything submitted so far has; None if that has ended."""
    if not is_external(device._context):
        wait_before(device._context, None, "__cuda_array_interface__")
        return None
    settle(device._context)
    return device._external.outgoing()


# In


def memory_at(device: DeviceCore, where: tuple[int, int]) -> MemoryType | None:
    """Return the kind of this device's memory at a tensor's place, if it can be shared."""
    if not is_external(device._context):
        return None
    for memory in (MemoryType.DEVICE, MemoryType.MANAGED):
        if where == device._native.dlpack_device(memory) and where[0] in {CUDA, ROCM, _MANAGED}:
            return memory
    return None


def take_dlpack(
    device: DeviceCore,
    memory: MemoryType,
    ask: Callable[[dict[str, object]], object],
    copy: bool | None,  # noqa: FBT001 - three-valued
    what: str,
) -> Buffer:
    """Return a buffer over a tensor in this device's memory; see `Device.from_dlpack`."""
    native = device._native
    native.bind()
    intake = device._external.take()
    taken = dlpack.take_capsule(ask({"stream": native.export_stream(intake.stream)}), what)
    return _take(device, memory, taken, intake.capture(), copy, what)


def take_cuda_array(device: DeviceCore, array: object, copy: bool | None, what: str) -> Buffer:  # noqa: FBT001
    """Return a buffer over a ``__cuda_array_interface__``; see `Device.from_dlpack`."""
    place = device._native.dlpack_device(MemoryType.DEVICE)
    if place is None or place[0] != CUDA or not is_external(device._context):
        message = (
            f"{what}: it offers __cuda_array_interface__ only, which {device._name} cannot "
            "take; convert it to a tensor with __dlpack__, or copy it to the host first"
        )
        raise UnimplementedError(message)
    taken, stream = _read_interface(array, place, what)
    if taken.size:
        device._native.bind()
        where = device._native.locate(taken.address)
        memory = MemoryType.DEVICE if where is None else memory_at(device, where)
        if memory is None:
            assert where is not None  # noqa: S101 - for the type checker
            message = (
                f"{what}: its memory at {taken.address:#x} is in {describe_device(where)}, and "
                f"{device._name} is {describe_device(place)}; copy it there first"
            )
            raise ExchangeError(message)
    else:
        memory = MemoryType.DEVICE
    captured = None if stream is None else capture(device._context, stream)
    return _take(device, memory, taken, captured, copy, what)


def _read_interface(
    array: Any,  # noqa: ANN401 - another library's
    place: tuple[int, int],
    what: str,
) -> tuple[dlpack.Tensor, int | None]:
    """Return a CUDA array as a tensor, and the stream to wait for."""
    interface = array.__cuda_array_interface__
    if not isinstance(interface, Mapping):
        message = f"{what}: its __cuda_array_interface__ is no mapping"
        raise ArgumentTypeError(message)
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
    except (KeyError, TypeError, ValueError) as error:
        message = f"{what}: its __cuda_array_interface__ is not as the protocol says: {error!r}"
        raise ExchangeError(message) from error
    if interface.get("mask") is not None:
        message = f"{what}: it has a mask, which a buffer cannot have; fill it in first"
        raise ExchangeError(message)
    stream = interface.get("stream")
    if stream is not None and (isinstance(stream, bool) or int(stream) < 1):
        message = f"{what}: its stream is {stream!r}; the protocol has None, or 1 and more"
        raise InvalidArgumentError(message)
    tensor = dlpack.Tensor(array, int(address or 0), dtype, shape, strides, place, bool(read_only))
    return tensor, None if stream is None else int(stream)


def _take(
    device: DeviceCore,
    memory: MemoryType,
    taken: dlpack.Tensor,
    captured: Captured | None,
    copy: bool | None,  # noqa: FBT001 - three-valued
    what: str,
) -> Buffer:
    """Return a buffer over a tensor, or over a copy, that is ready on every queue."""
    if not taken.size:
        copied: buffer.Buffer = device.upload(np.empty(taken.shape, taken.dtype))
        return copied
    problem = _obstacle(taken)
    if problem:
        raise (ExchangeError if copy is False else InvalidArgumentError)(f"{what}: {problem}")
    if captured is not None:
        device._external.let_all_wait(captured)
    host_address = taken.address if memory is MemoryType.MANAGED else None
    if device._native.dlpack_device(memory) == (dlpack.CPU, 0):
        host_address = taken.address
    storage = device._heap.adopt(
        taken.address,
        taken.size,
        memory,
        host_address,
        taken.owner,
        writable=not taken.read_only,
    )
    denied = WRITE if taken.read_only else 0
    shared = buffer.Buffer(device, storage, 0, taken.size, taken.dtype, taken.shape, denied)
    if not copy:
        return shared
    target: buffer.Buffer = device.allocate(taken.size, dtype=taken.dtype)
    target._shape = taken.shape
    device.queue.copy(shared, target).wait()
    return target


def _obstacle(tensor: dlpack.Tensor) -> str:
    """Return why a tensor in device memory cannot be a buffer as it is; empty if it can."""
    if not tensor.is_contiguous:
        return (
            f"its strides of {tensor.strides} bytes leave gaps or turn axes round; make it "
            "contiguous first, as tensor.contiguous() and cupy.ascontiguousarray(array) do"
        )
    alignment = max(tensor.dtype.alignment, _ALIGNMENT)
    if tensor.address % alignment:
        return (
            f"it begins at {tensor.address:#x}, which is no multiple of {alignment}; copy it to "
            "memory of its own first, as tensor.clone() does"
        )
    return ""
