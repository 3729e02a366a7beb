"""Read MessagePack, the form of the metadata in AMD's code objects."""

from __future__ import annotations

import struct
from typing import Any, Final

__all__ = ["unpack"]

_NUMBERS: Final = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
# What follows is so many bytes of length, and then bytes, text, an array or a map.
_LENGTHS: Final = {
    0xC4: (1, "bytes"),
    0xC5: (2, "bytes"),
    0xC6: (4, "bytes"),
    0xD9: (1, "text"),
    0xDA: (2, "text"),
    0xDB: (4, "text"),
    0xDC: (2, "array"),
    0xDD: (4, "array"),
    0xDE: (2, "map"),
    0xDF: (4, "map"),
}
_DEEPEST: Final = 32


def unpack(data: bytes) -> Any:  # noqa: ANN401 - whatever is in there
    """Return the first value of `data`; raises `ValueError` if it is cut off or damaged."""
    value, _ = _read(data, 0, _DEEPEST)
    return value


def _read(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return the value at a position, and the position behind it."""
    if at >= len(data):
        message = "the metadata ends in the middle of a value"
        raise ValueError(message)
    if not depth:
        message = "the metadata is nested too deeply"
        raise ValueError(message)
    head = data[at]
    at += 1
    if head < 0x80 or head >= 0xE0:  # noqa: PLR2004 - small integers are their own byte
        return (head if head < 0x80 else head - 0x100), at  # noqa: PLR2004
    if head in _CONSTANTS:
        return _CONSTANTS[head], at
    if head in _NUMBERS:
        form = _NUMBERS[head]
        _check(data, at, form.size)
        return form.unpack_from(data, at)[0], at + form.size
    if head in _LENGTHS:
        width, kind = _LENGTHS[head]
        _check(data, at, width)
        length = int.from_bytes(data[at : at + width], "big")
        at += width
    elif head < 0xC0:  # noqa: PLR2004 - short ones have their length in the byte
        kind = "map" if head < 0x90 else "array" if head < 0xA0 else "text"  # noqa: PLR2004
        length = head & (0x1F if kind == "text" else 0x0F)
    else:
        message = f"the metadata has a value of type {head:#x}, which nobody writes there"
        raise ValueError(message)
    return _read_many(data, at, length, kind, depth - 1)


def _read_many(data: bytes, at: int, length: int, kind: str, depth: int) -> tuple[Any, int]:
    if kind in {"bytes", "text"}:
        _check(data, at, length)
        content = data[at : at + length]
        return (content if kind == "bytes" else content.decode()), at + length
    if kind == "array":
        items = []
        for _ in range(length):
            value, at = _read(data, at, depth)
            items.append(value)
        return items, at
    found = {}
    for _ in range(length):
        key, at = _read(data, at, depth)
        value, at = _read(data, at, depth)
        if isinstance(key, (list, dict)):
            message = "the metadata has a list or a map for a key"
            raise ValueError(message)  # noqa: TRY004 - of damaged data, not of an argument
        found[key] = value
    return found, at


def _check(data: bytes, at: int, size: int) -> None:
    if at + size > len(data):
        message = "the metadata ends in the middle of a value"
        raise ValueError(message)
