"""Read the table of kernels from an image that is not loaded.

Images of all backends are ELF files or PTX, which is text. Both record where
a constant's bytes are, in the same way on every target.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final

from hal import elf
from hal._programs.type_table import KernelEntry, read_type_table
from hal.errors import InvalidArgumentError
from hal.handlers import own

_RESERVED: Final = 0xFF00  # section numbers from here on name no section
_GLOBAL: Final = 1
_MOST_STORED: Final = 1 << 24  # limit for a PTX constant, whose zeros need no text
_ARRAY: Final = rb"\.b8\s+(hal_\w+)\[(\d+)\]\s*=\s*\{([\d,\s]*)\}"


def read_image_table(
    image: bytes, suffixes: Sequence[str] = ("",)
) -> dict[str, KernelEntry] | None:
    """Return what an image's tables say about its kernels; None if it has none.

    `suffixes` are those of `type_table`, in order. Raises
    `InvalidArgumentError` as `read_type_table` does.
    """
    names = [f"hal_{what}{suffix}" for suffix in suffixes for what in ("kernels", "parameters")]
    try:
        found = elf.constants(image, names) if elf.is_readable(image) else _from_ptx(image)
    except own(struct.error, IndexError, ValueError):
        return None
    if any(name not in found for name in names):
        return None
    entries: dict[str, KernelEntry] = {}
    for suffix in suffixes:
        table = read_type_table(found[f"hal_kernels{suffix}"], found[f"hal_parameters{suffix}"])
        for name, entry in table.items():
            if name in entries:
                raise InvalidArgumentError(f"the image has two kernels {name!r}")
            entries[name] = entry
    return entries


def read_definitions(image: bytes) -> set[str]:
    """Return the names that an image defines for everything it is linked with.

    Empty for a file that is not ELF.
    """
    try:
        found = list(elf.symbols(image))
    except own(ValueError):
        return set()
    return {each.name for each in found if each.binding == _GLOBAL and 0 < each.section < _RESERVED}


def _from_ptx(image: bytes) -> dict[str, bytes]:
    """Return the bytes of constants by name; the text leaves out trailing zeros."""
    return {
        name.decode(): bytes(map(int, values.split(b","))).ljust(int(size), b"\0")
        for name, size, values in re.findall(_ARRAY, image)
        if int(size) <= _MOST_STORED
    }
