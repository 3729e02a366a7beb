"""A fill's pattern, made from the user's value (rule C1)."""

from __future__ import annotations

import functools
import struct
from typing import Any, Final

import numpy as np

from hal import bfloat16
from hal.arguments import ask, check_elements, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.handlers import own

NATIVE: Final = 4
"""The longest pattern of a native fill, in bytes; fills and copies make longer ones."""

_WIDTHS: Final = frozenset({1, 2, 4, 8, 16})
_word_of: Final = struct.Struct("<I").unpack


def pattern_of(value: object, dtype: np.dtype[Any]) -> tuple[int, int]:
    """Return a fill's pattern as a number, and its width of 1, 2, 4, 8 or 16 bytes."""
    if type(value) is int and dtype == np.uint8 and 0 <= value < 256:  # noqa: PLR2004 - a byte
        return value, 1  # fast path for plain bytes
    if type(value) is bytes and len(value) == NATIVE:  # the commonest; see below
        (word,) = _word_of(value)
        return word, NATIVE
    if isinstance(value, (bytes, bytearray)):
        pattern = bytes(value)
    elif isinstance(value, np.generic) and value.dtype.kind not in "OU":
        check_elements("fill", value.dtype, dtype, "value")
        pattern = value.tobytes()
    elif isinstance(value, (bool, int, float, complex)):
        pattern = ask(functools.partial(_number, dtype), value, "fill takes a number")
    else:
        raise ArgumentTypeError(
            "fill takes 1, 2, 4, 8 or 16 bytes, a numpy scalar or a number, not "
            f"{type(value).__name__}"
        )
    # A longer pattern that repeats itself (zero, say) is a shorter one.
    while len(pattern) > NATIVE and len(pattern) % 2 == 0:
        half = len(pattern) // 2
        if pattern[:half] != pattern[half:]:
            break
        pattern = pattern[:half]
    if len(pattern) not in _WIDTHS:
        raise InvalidArgumentError(
            f"fill: a pattern has 1, 2, 4, 8 or 16 bytes; {shown(value)} has {len(pattern)}; "
            "use update or write for others"
        )
    return int.from_bytes(pattern, "little"), len(pattern)


def _number(dtype: np.dtype[Any], value: Any) -> bytes:  # noqa: ANN401 - checked in here
    """Return the bytes of a Python number as an element of `dtype`."""
    is_less = dtype.kind in "iub" and isinstance(value, float)
    if is_less or (dtype.kind != "c" and isinstance(value, complex)):
        kind = bfloat16.name_of(dtype)
        raise ArgumentTypeError(
            f"fill: {shown(value)} is no {kind}, the buffer's type; convert it, or pass its bytes"
        )
    try:
        if bfloat16.is_bfloat16(dtype):
            return bfloat16.bits_of(value).to_bytes(2, "little")
        with np.errstate(over="raise"):
            return (
                np.array(value).astype(dtype).tobytes()
                if dtype.kind in "fc"
                else (np.array(value, dtype).tobytes())
            )
    except own(OverflowError, FloatingPointError):
        kind = bfloat16.name_of(dtype)
        message = f"fill: {shown(value)} does not fit into {kind}, the buffer's type"
        raise InvalidArgumentError(message) from None
    except own(TypeError, ValueError):
        message = f"fill: {shown(value)} is no {dtype}, the buffer's type; pass 1 to 16 bytes"
        raise ArgumentTypeError(message) from None
