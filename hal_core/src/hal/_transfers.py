"""Check transfers and turn them into payloads for a stream.

A payload is ``(function, arguments, resources)``: what to call with the native
stream and the arguments when the operation is issued, and what to keep alive
until it has retired. Queues submit payloads; command buffers record them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hal._buffer import Buffer, check_range
from hal.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from hal._device import Device

__all__ = ["NOTHING", "Payload", "check_buffer", "copy", "fill", "read", "update", "write"]

Payload: TypeAlias = tuple[Callable[..., object], tuple[Any, ...], object]


def _nothing(stream: int) -> None:
    """Enqueue nothing: zero sizes and barriers still order and signal (C4)."""


NOTHING: Final[Payload] = (_nothing, (), None)


def fill(device: Device, buffer: Buffer, value: object, offset: object, size: object) -> Payload:
    """Check a fill; see `Queue.fill`."""
    check_buffer(device, buffer, "fill")
    start, length, pattern, width = check_fill(buffer, value, offset, size)
    if not length:
        return NOTHING
    arguments = (buffer._address + start, pattern, width, length // width)
    return device._fill, arguments, buffer._storage


def check_fill(
    buffer: Buffer, value: object, offset: object, size: object
) -> tuple[int, int, int, int]:
    """Return a fill's offset, its size in bytes, its pattern, and the pattern's width."""
    pattern, width = _pattern(value, buffer._dtype)
    start, length = check_range(buffer, offset, size, "fill")
    # An allocation is aligned to more than any pattern.
    if width > 1 and (start % width or length % width or buffer._offset % width):
        message = (
            f"fill: a pattern of {width} bytes needs an offset and a size that are multiples of "
            f"{width}; offset {start} and size {length} were given"
        )
        raise InvalidArgumentError(message)
    return start, length, pattern, width


def update(device: Device, buffer: Buffer, data: object, offset: object) -> Payload:
    """Check an update and capture its bytes; see `Queue.update`."""
    check_buffer(device, buffer, "update")
    captured = np.array(_bytes_of(data, "update"), copy=True)
    return _from_host(device, buffer, captured, offset, "update")


def write(device: Device, buffer: Buffer, array: object, offset: object) -> Payload:
    """Check a write; see `Queue.write`."""
    check_buffer(device, buffer, "write")
    return _from_host(device, buffer, _bytes_of(array, "write"), offset, "write")


def read(device: Device, buffer: Buffer, array: object, offset: object) -> Payload:
    """Check a read; see `Queue.read`."""
    check_buffer(device, buffer, "read")
    host = _bytes_of(array, "read")
    if not host.flags.writeable:
        message = "read: the array is read-only; give one that can be written"
        raise InvalidArgumentError(message)
    start, length = check_range(buffer, offset, host.size, "read")
    if not length:
        return NOTHING
    arguments = (host.ctypes.data, buffer._address + start, length)
    return device._copy_to_host, arguments, (buffer._storage, host)


def copy(
    device: Device,
    source: Buffer,
    target: Buffer,
    source_offset: object,
    target_offset: object,
    size: object,
) -> Payload:
    """Check a copy; see `Queue.copy`."""
    check_buffer(device, source, "copy: the source")
    check_buffer(device, target, "copy: the target")
    source_start, length = check_range(source, source_offset, size, "copy: the source")
    target_start, _ = check_range(target, target_offset, length, "copy: the target")
    if not length:
        return NOTHING
    source_address = source._address + source_start
    target_address = target._address + target_start
    if abs(source_address - target_address) < length:
        message = (
            f"copy: {length} bytes from offset {source_start} to offset {target_start} overlap "
            "in the same memory; copy through another buffer"
        )
        raise InvalidArgumentError(message)
    arguments = (target_address, source_address, length)
    return device._copy, arguments, (source._storage, target._storage)


def check_buffer(device: Device, buffer: object, what: str) -> None:
    """Raise unless `buffer` is an open buffer of `device`."""
    if not isinstance(buffer, Buffer):
        message = f"{what} takes a buffer, not {type(buffer).__name__}"
        raise ArgumentTypeError(message)
    if buffer.device is not device:
        message = (
            f"{what}: the buffer belongs to {buffer.device.name}, and this queue to {device.name}; "
            "copy it there through the host first"
        )
        raise InvalidArgumentError(message)
    if buffer._storage is None or device._closed:
        buffer._live()


def _from_host(
    device: Device, buffer: Buffer, host: NDArray[np.uint8], offset: object, what: str
) -> Payload:
    start, length = check_range(buffer, offset, host.size, what)
    if not length:
        return NOTHING
    arguments = (buffer._address + start, host.ctypes.data, length)
    return device._copy_from_host, arguments, (buffer._storage, host)


def _bytes_of(data: object, what: str) -> NDArray[np.uint8]:
    """Return the memory of an array or a bytes-like object as flat bytes, uncopied."""
    if isinstance(data, np.ndarray):
        if data.dtype.hasobject:
            message = f"{what}: the array holds Python objects, which device memory cannot"
            raise ArgumentTypeError(message)
        if not data.flags.c_contiguous:
            message = (
                f"{what}: the array is not C-contiguous (strides {data.strides}); "
                "pass numpy.ascontiguousarray(array)"
            )
            raise InvalidArgumentError(message)
        return data.reshape(-1).view(np.uint8)
    if isinstance(data, Buffer):
        message = f"{what} takes host memory; use copy() between buffers"
        raise ArgumentTypeError(message)
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        message = f"{what} takes a numpy array or a bytes-like object, not {type(data).__name__}"
        raise ArgumentTypeError(message) from None
    if not view.c_contiguous:
        message = f"{what}: the memory is not C-contiguous"
        raise InvalidArgumentError(message)
    return np.frombuffer(view.cast("B"), np.uint8)


def _pattern(value: object, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return a fill's pattern as a number, and its width of 1, 2 or 4 bytes."""
    if value.__class__ is int and dtype == np.uint8 and 0 <= value < 256:  # noqa: PLR2004 - a byte
        return value, 1  # the short way for plain bytes
    if isinstance(value, (bytes, bytearray)):
        pattern = bytes(value)
    elif isinstance(value, np.generic):
        pattern = value.tobytes()
    elif isinstance(value, (bool, int, float)):
        pattern = _number(value, dtype)
    else:
        message = (
            f"fill takes 1, 2 or 4 bytes, a numpy scalar or a number, not {type(value).__name__}"
        )
        raise ArgumentTypeError(message)
    # A longer pattern that repeats itself (zero, say) is a shorter one.
    while len(pattern) > 4 and len(pattern) % 2 == 0:  # noqa: PLR2004 - native fills are 1, 2, 4
        half = len(pattern) // 2
        if pattern[:half] != pattern[half:]:
            break
        pattern = pattern[:half]
    if len(pattern) not in {1, 2, 4}:
        message = (
            f"fill: a pattern has 1, 2 or 4 bytes; {value!r} has {len(pattern)}; "
            "use update or write for longer ones"
        )
        raise InvalidArgumentError(message)
    return int.from_bytes(pattern, "little"), len(pattern)


def _number(value: float, dtype: np.dtype[Any]) -> bytes:
    """Return the bytes of a Python number as an element of `dtype`."""
    if dtype.kind in "iub" and isinstance(value, float):
        message = f"fill: {value!r} is no {dtype}, the buffer's type; pass an int or a numpy scalar"
        raise ArgumentTypeError(message)
    try:
        with np.errstate(over="raise"):
            return (
                np.array(value).astype(dtype).tobytes()
                if dtype.kind in "fc"
                else (np.array(value, dtype).tobytes())
            )
    except (OverflowError, FloatingPointError):
        message = f"fill: {value!r} does not fit into {dtype}, the buffer's type"
        raise InvalidArgumentError(message) from None
    except (TypeError, ValueError):
        message = f"fill: {value!r} is no {dtype}, the buffer's type; pass 1, 2 or 4 bytes"
        raise ArgumentTypeError(message) from None
