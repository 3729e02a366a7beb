"""Arrays in a line: new buffers of a shape and a type (rule M1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, SupportsIndex, TypeAlias

import numpy as np

from hal._base.checks import check_index
from hal._buffers.buffer import Buffer
from hal._memory import blocking
from hal._memory.extent import shape_of
from hal._transfers.patterns import pattern_of
from hal.arguments import as_dtype, as_items
from hal.errors import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from hal._memory.core import DeviceCore


Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""The length of each axis, or of the only one."""

_CHUNK: Final = 16 << 20
"""Bytes that are copied to the device at once."""


def empty(device: DeviceCore, shape: Shape, dtype: DTypeLike) -> Buffer:
    """Allocate an array; see `Device.empty`."""
    device._live()
    kind = as_dtype(dtype)
    rule = "a shape is an int or a sequence of ints"
    lengths = (shape,) if hasattr(shape, "__index__") else as_items(shape, rule, ordered=True)
    axes = tuple([check_index(each, "the shape") for each in lengths])
    size = math.prod(axes) * kind.itemsize
    shape_of(size, kind, "the array")
    return Buffer(device, device._heap.allocate(size or 1, 0), 0, size, kind, axes)


def full(device: DeviceCore, shape: Shape, value: object, dtype: DTypeLike) -> Buffer:
    """Allocate an array and fill it; see `Device.full`."""
    number, width = pattern_of(value, as_dtype(dtype))
    buffer = empty(device, shape, dtype)
    if buffer.size % width:
        message = f"full: the value has {width} bytes, and the array {buffer.size}, no multiple"
        raise InvalidArgumentError(message)
    pattern = np.frombuffer(number.to_bytes(width, "little"), np.uint8)
    host = np.tile(pattern, min(buffer.size, _CHUNK) // width)
    for offset in range(0, buffer.size, _CHUNK):
        part = host[: buffer.size - offset]
        blocking.write(device, buffer._live(), offset, part)
    return buffer
