"""The element types that a pointer and a buffer may share (rule C5).

They match as `hal.arguments.same_elements` says. A pointer to bytes takes any buffer.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import numpy as np

from hal import bfloat16
from hal.arguments import same_elements

_NUMBERS: Final = {
    **{f"{sign}{8 * size}": np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8)},
    **{f"f{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    "bool": np.dtype(np.bool_),
    "bf16": np.dtype(np.uint16),  # in its size; see `dtype_of`
}
_STRUCTURE: Final = r"bytes\[([1-9][0-9]{0,9})\]"
PLAIN: Final = tuple(dict.fromkeys(_NUMBERS.values()))
"""The dtypes of numbers."""


def is_element(text: str) -> bool:
    """Return whether a text names a type that a pointer may point to."""
    return text in _NUMBERS or re.fullmatch(_STRUCTURE, text) is not None


def dtype_of(element: str) -> np.dtype[Any] | None:
    """Return the numpy type of the number that a pointer points to, if its buffers are compared.

    None for structures, bytes and unknown types.
    """
    if element == "bf16":
        return bfloat16.dtype()
    found = _NUMBERS.get(element)
    return None if found is None or (found.kind in "iu" and found.itemsize == 1) else found


def alignment_of(element: str) -> int:
    """Return the known alignment of the address in a pointer, in bytes."""
    found = _NUMBERS.get(element)
    return 1 if found is None else found.itemsize


@functools.lru_cache(maxsize=1024)
def fits(element: str, dtype: np.dtype[Any]) -> bool:
    """Return whether a buffer of a numpy type may be passed for a pointer to such elements."""
    wanted = dtype_of(element)
    if wanted is not None:
        return same_elements(wanted, dtype)
    match = re.fullmatch(_STRUCTURE, element)
    # Vectors of numbers are structures in C++, so only another structure is surely wrong.
    is_structure = dtype.fields is not None and not bfloat16.is_bfloat16(dtype)
    return match is None or not is_structure or dtype.itemsize == int(match[1])


@functools.lru_cache(maxsize=1024)
def sure_dtypes(element: str) -> tuple[np.dtype[Any], ...] | None:
    """Return dtypes that fit a pointer to such elements; None if every dtype does.

    numpy has one object of each, so a repeated call compares objects. Others are for `fits`.
    """
    wanted = dtype_of(element)
    if wanted is None and re.fullmatch(_STRUCTURE, element) is None:
        return None
    candidates = PLAIN if wanted is None else (wanted, *PLAIN)
    return tuple(dict.fromkeys(dtype for dtype in candidates if fits(element, dtype)))


def refusal(element: str, dtype: np.dtype[Any]) -> str:
    """Describe the buffers that a pointer takes, for one that does not fit."""
    wanted = dtype_of(element)
    if wanted is None:
        return (
            f"takes structures of {element[6:-1]} bytes, and the buffer has {dtype.itemsize} for "
            "each; lay the dtype out as C does, with np.dtype(..., align=True), or pass "
            "buffer.view(np.uint8) if its bytes are meant"
        )
    name = bfloat16.name_of(wanted)
    other = f"'{name}'" if bfloat16.is_bfloat16(wanted) else f"np.{wanted}"
    return (
        f"takes a buffer of {name}, and this one holds {bfloat16.name_of(dtype)}; convert the "
        f"array before it is uploaded, or pass buffer.view({other}) if its bytes are meant"
    )
