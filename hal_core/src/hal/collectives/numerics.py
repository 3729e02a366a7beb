"""Reductions on the host: in float32 for the numbers of 16 bits, rounded once at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hal import bfloat16

Bytes: TypeAlias = "NDArray[np.uint8]"
"""Flat bytes on the host."""

_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "sum": np.add,
    "average": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}
_SINGLE: Final = np.dtype(np.float32)


def wide_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that elements are reduced in."""
    is_half = dtype == np.float16 or bfloat16.is_bfloat16(dtype)
    return _SINGLE if is_half else dtype


def widen(raw: Bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return bytes as numbers of the type that they are reduced in; no copy if it is their own."""
    if bfloat16.is_bfloat16(dtype):
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    numbers = raw.view(dtype)
    return numbers.astype(np.float32) if dtype == np.float16 else numbers


def narrow(numbers: NDArray[Any], dtype: np.dtype[Any]) -> Bytes:
    """Return numbers as bytes of elements, each rounded to nearest, ties to even."""
    if bfloat16.is_bfloat16(dtype):
        bits = numbers.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        # A NaN's bits must not be rounded up to infinity, or beyond it.
        return np.where(np.isnan(numbers), 0x7FFF, rounded).astype(np.uint16).view(np.uint8)
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(numbers.astype(dtype, copy=False)).view(np.uint8)


def reduced(parts: Sequence[Bytes], dtype: np.dtype[Any], op: str) -> Bytes:
    """Return the reduction of the ranks' bytes, in the order of the ranks."""
    function = _FUNCTIONS[op]
    with np.errstate(all="ignore"):
        result = widen(parts[0], dtype)
        if len(parts) == 1 or result.base is not None:
            result = result.copy()
        for part in parts[1:]:
            function(result, widen(part, dtype), out=result)
        if op == "average":
            np.divide(result, result.dtype.type(len(parts)), out=result)
    return narrow(result, dtype)
