"""Read the table of kernels out of an image that is not loaded.

Images of all backends are ELF files, or PTX, which is text. Where a constant's
bytes are both say alike, whatever the processor.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from hal._type_table import KernelEntry, read_type_table
from hal.errors import InvalidArgumentError

__all__ = ["read_definitions", "read_image_table"]

_ELF: Final = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SYMBOL_TABLES: Final = {2, 11}
_NOTHING_STORED: Final = 8
_RESERVED: Final = 0xFF00  # section numbers that are no sections
_GLOBAL: Final = 1
_ARRAY: Final = re.compile(rb"\.b8\s+(hal_\w+)\[(\d+)\]\s*=\s*\{([\d,\s]*)\}")


def read_image_table(
    image: bytes, suffixes: Sequence[str] = ("",)
) -> dict[str, KernelEntry] | None:
    """Return what an image's tables say of its kernels, or None where they are not found.

    `suffixes` are those of `type_table`, in order. Raises
    `InvalidArgumentError` as `read_type_table` does.
    """
    names = [f"hal_{what}{suffix}" for suffix in suffixes for what in ("kernels", "parameters")]
    try:
        found = _from_elf(image, names) if image.startswith(_ELF) else _from_ptx(image)
    except (struct.error, IndexError, ValueError):
        return None
    if any(name not in found for name in names):
        return None
    entries: dict[str, KernelEntry] = {}
    for suffix in suffixes:
        table = read_type_table(found[f"hal_kernels{suffix}"], found[f"hal_parameters{suffix}"])
        for name, entry in table.items():
            if name in entries:
                message = f"the image has two kernels {name!r}"
                raise InvalidArgumentError(message)
            entries[name] = entry
    return entries


def _from_elf(image: bytes, names: Sequence[str]) -> dict[str, bytes]:
    """Return the bytes of constants by name."""
    found: dict[str, bytes] = {}
    for name, _, section, value, size in _symbols(image):
        if name in names and section[1] != _NOTHING_STORED:
            # An address, or in files that are to be linked, where it stands in its section.
            first = section[4] + value - section[3]
            content = image[first : first + size]
            if len(content) == size:
                found[name] = content
    return found


def read_definitions(image: bytes) -> set[str]:
    """Return the names that an image defines for all that it is linked with.

    None for what is no ELF file.
    """
    if not image.startswith(_ELF):
        return set()
    try:
        return {name for name, binding, *_ in _symbols(image) if binding == _GLOBAL}
    except (struct.error, IndexError, ValueError):
        return set()


def _symbols(image: bytes) -> Iterator[tuple[str, int, tuple[int, ...], int, int]]:
    """Yield name, binding, section, value and size of all that an ELF file defines."""
    (offset,) = struct.unpack_from("<Q", image, 40)
    entry, count = struct.unpack_from("<HH", image, 58)
    sections = [
        _SECTION.unpack_from(image, offset + index * entry)
        for index in range(count if offset else 0)
    ]
    for section in sections:
        kind, start, length, link = section[1], section[4], section[5], section[6]
        if kind not in _SYMBOL_TABLES:
            continue
        names = sections[link][4]
        for position in range(start, start + length - _SYMBOL.size + 1, _SYMBOL.size):
            name_at, info, _, place, value, size = _SYMBOL.unpack_from(image, position)
            if 0 < place < _RESERVED:
                end = image.index(b"\0", names + name_at)
                name = image[names + name_at : end].decode(errors="replace")
                yield name, info >> 4, sections[place], value, size


def _from_ptx(image: bytes) -> dict[str, bytes]:
    """Return the bytes of constants by name; zeros at the end are left out in the text."""
    return {
        name.decode(): bytes(map(int, values.split(b","))).ljust(int(size), b"\0")
        for name, size, values in _ARRAY.findall(image)
    }
