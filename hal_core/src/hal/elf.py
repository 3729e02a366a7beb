"""Read ELF files that are not loaded, for plugins: their sections, symbols and notes.

An image may be damaged, or made to do harm. The work and the memory are linear in its size,
whatever it says: tables may not overlap, and every `ValueError` says what is wrong. Only
64-bit little-endian files are read, which `is_readable` tells.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["DYNAMIC", "Section", "Symbol", "is_readable", "notes", "sections", "symbols"]

_HEADER_SIZE: Final = 64
_HEAD: Final = b"\x7fELF\x02\x01"
_SECTION: Final = struct.Struct("<4xIQQQQI20x")
_SYMBOL: Final = struct.Struct("<IBxHQQ")
_SEGMENT: Final = struct.Struct("<I4xQ16xQ16x")
_NOTE: Final = struct.Struct("<III")
_NOTE_SEGMENT: Final = 4
_SYMBOL_TABLE: Final = 2
DYNAMIC: Final = 11
"""The kind of section that lists the symbols that the loader sees."""
_LETTERS_PER_BYTE: Final = 4
"""Names may share their ends: together they may be so much longer than the file."""


class Section(NamedTuple):
    """One section.

    Attributes
    ----------
    kind, flags
        As the format numbers them.
    address
        Where it is loaded, 0 if it is not.
    start, size
        Where it stands in the file, in bytes.
    link
        The index of the section that it refers to.
    """

    kind: int
    flags: int
    address: int
    start: int
    size: int
    link: int


class Symbol(NamedTuple):
    """One entry of a symbol table.

    Attributes
    ----------
    name
        Its name, mangled where the language does so.
    table
        The kind of section it is listed in: `DYNAMIC` is seen by the loader.
    binding, kind
        As the format numbers them.
    section
        The index of the section it is defined in; 0 for what others define.
    value, size
        Its address, or in files that are to be linked its place in the section; its bytes.
    """

    name: str
    table: int
    binding: int
    kind: int
    section: int
    value: int
    size: int


def is_readable(image: bytes) -> bool:
    """Return whether an image begins as a 64-bit little-endian ELF file does."""
    return len(image) >= _HEADER_SIZE and image.startswith(_HEAD)


def sections(image: bytes) -> list[Section]:
    """Return the sections in order; raises `ValueError` for a damaged file."""
    return [Section(*fields) for fields in _table(image, 40, 58, _SECTION, "sections")]


def symbols(image: bytes, listed: list[Section] | None = None) -> Iterator[Symbol]:
    """Yield the symbols of all tables; raises `ValueError` for a damaged file.

    `listed` are the sections, where they have been read already.
    """
    listed = sections(image) if listed is None else listed
    left, letters = len(image), _LETTERS_PER_BYTE * len(image)
    for table in listed:
        if table.kind not in {_SYMBOL_TABLE, DYNAMIC}:
            continue
        left -= table.size
        if left < 0 or table.start + table.size > len(image) or table.link >= len(listed):
            message = "its symbol tables overlap, or end behind the file's end"
            raise ValueError(message)
        names = listed[table.link]
        last = table.start + table.size - _SYMBOL.size
        for position in range(table.start, last + 1, _SYMBOL.size):
            name_at, info, section, value, size = _SYMBOL.unpack_from(image, position)
            first = names.start + name_at
            end = image.find(b"\0", first, names.start + names.size)
            letters -= end - first
            if end < 0 or letters < 0:
                message = "the names of its symbols overlap, or have no end"
                raise ValueError(message)
            name = image[first:end].decode(errors="replace")
            yield Symbol(name, table.kind, info >> 4, info & 15, section, value, size)


def notes(image: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield name, type and content of every note of a file that can be loaded.

    Raises `ValueError` for a damaged file.
    """
    left = len(image)
    for kind, start, size in _table(image, 32, 54, _SEGMENT, "segments"):
        if kind != _NOTE_SEGMENT:
            continue
        left -= size
        end = start + size
        if left < 0 or end > len(image):
            message = "its notes overlap, or end behind the file's end"
            raise ValueError(message)
        position = start
        while position + _NOTE.size <= end:
            name_size, content_size, number = _NOTE.unpack_from(image, position)
            name = position + _NOTE.size
            content = name + _aligned(name_size)
            position = content + _aligned(content_size)
            yield image[name : name + name_size], number, image[content : content + content_size]


def _table(
    image: bytes, start_at: int, count_at: int, entry: struct.Struct, what: str
) -> Iterator[tuple[int, ...]]:
    """Return the entries of a table that the header tells the place of."""
    if not is_readable(image):
        message = "it is no 64-bit little-endian ELF file"
        raise ValueError(message)
    (start,) = struct.unpack_from("<Q", image, start_at)
    size, count = struct.unpack_from("<HH", image, count_at)
    if not start or not count:
        return iter(())
    if size != entry.size or start + size * count > len(image):
        message = f"its table of {what} ends behind the file's end, or has entries of {size} bytes"
        raise ValueError(message)
    return entry.iter_unpack(memoryview(image)[start : start + size * count])


def _aligned(size: int) -> int:
    return (size + 3) & ~3
