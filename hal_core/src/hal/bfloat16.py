"""The numbers of 16 bits that numpy does not have: their dtype, and rounding to them.

The dtype is that of ``ml_dtypes`` where that is installed. Elsewhere it is a structure with one
field, ``bfloat16``, of the bits: kernels and other libraries see the same elements either way.
"""

from __future__ import annotations

import functools
import importlib
import math
import struct
from typing import Any, Final

import numpy as np

from hal.handlers import own

__all__ = [
    "LARGEST",
    "NAME",
    "bits_of",
    "dtype",
    "is_bfloat16",
    "is_number",
    "is_scalar",
    "name_of",
]

NAME: Final = "bfloat16"
LARGEST: Final = 3.3895313892515355e38
"""The largest finite number."""

_BITS: Final = np.dtype([(NAME, "<u2")])
_INFINITY: Final = 0x7F80
_NAN: Final = 0x7FFF


@functools.cache
def dtype() -> np.dtype[Any]:
    """Return the dtype of bfloat16 elements."""
    try:
        found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except own(ImportError, AttributeError):
        return _BITS
    return found


def is_bfloat16(kind: np.dtype[Any]) -> bool:
    """Return whether a dtype's elements are bfloat16 numbers."""
    if kind.kind != "V" or kind.itemsize != _BITS.itemsize:
        return False
    return kind == _BITS or kind.name == NAME


def name_of(kind: np.dtype[Any]) -> str:
    """Return a dtype's name for errors."""
    return NAME if is_bfloat16(kind) else str(kind)


def is_scalar(value: object) -> bool:
    """Return whether a value is one bfloat16 number of ``ml_dtypes``."""
    return isinstance(value, np.generic) and value.dtype.names is None and is_bfloat16(value.dtype)


def is_number(value: object) -> bool:
    """Return whether `bits_of` takes a value: Python's and numpy's real numbers, but no bool."""
    if isinstance(value, (int, np.integer)):
        # bool is an int to Python, and timedelta64 an integer to numpy.
        return not isinstance(value, (bool, np.timedelta64))
    return isinstance(value, (float, np.floating)) or is_scalar(value)


def bits_of(value: Any) -> int:  # noqa: ANN401 - a number of any type
    """Return the bits of the nearest bfloat16 number, ties to even, rounded once.

    Raises `OverflowError` for a finite number beyond the largest.
    """
    near = float(value)
    if math.isnan(near):
        return _NAN
    if math.isinf(near):
        if np.isinf(value):
            return _INFINITY | (0x8000 if near < 0 else 0)
        raise OverflowError
    packed = struct.pack("<f", near)  # raises beyond float32's largest number, numpy would warn
    (bits,), (single,) = struct.unpack("<I", packed), struct.unpack("<f", packed)
    # Rounded to fewer bits in steps, the last bit must record whether any was cut off.
    exact = type(value)(single) if isinstance(value, np.longdouble) else single
    if exact != value:
        bits = (bits - (abs(exact) > abs(value))) | 1
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    if rounded & 0x7FFF >= _INFINITY:
        raise OverflowError
    return int(rounded)
