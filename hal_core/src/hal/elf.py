"""Read ELF files that are not loaded, for plugins: their sections, symbols and notes.

An image may be damaged, or made to do harm. The work and the memory are linear in its size,
whatever it says: tables may not overlap, and every `ValueError` says what is wrong. Only
64-bit little-endian files are read, which `is_readable` tells.
"""

import re
import struct
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = [
    "AMD_GPU",
    "ANY_KIND",
    "DYNAMIC",
    "FUNCTION",
    "NVIDIA_GPU",
    "PROCESSORS",
    "STATIC",
    "Section",
    "Symbol",
    "constants",
    "guess",
    "is_readable",
    "machine",
    "machine_name",
    "notes",
    "sections",
    "source_name",
    "symbols",
]

AMD_GPU: Final = 224
NVIDIA_GPU: Final = 190
PROCESSORS: Final = {3: "x86", 40: "ARM", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""Processors by the number of their machine, in the words of `platform.machine`."""
_GPUS: Final = {NVIDIA_GPU: "an NVIDIA GPU (a cubin)", AMD_GPU: "an AMD GPU (a code object)"}

_HEADER_SIZE: Final = 64
_HEAD: Final = b"\x7fELF\x02\x01"
_SECTION: Final = struct.Struct("<4xIQQQQII16x")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SEGMENT: Final = struct.Struct("<I4xQ16xQ16x")
_NOTE: Final = struct.Struct("<III")
_NOTE_SEGMENT: Final = 4
_NOTHING_STORED: Final = 8
_RESERVED: Final = 0xFF00  # section numbers from here on name no section
_MANGLED: Final = r"_Z(?:L)?(\d+)(.+)"
STATIC: Final = 2
"""The kind of section that lists all symbols, for linkers and debuggers."""
DYNAMIC: Final = 11
"""The kind of section that lists the symbols that the loader sees."""
ANY_KIND: Final = range(16)
"""All kinds of symbols."""
_VARIABLE: Final = 1
FUNCTION: Final = 2
"""The kind of symbol that is a function."""
_OTHERS: Final = {
    b"__CLANG_OFFLOAD_": "a bundle of clang's, for AMD GPUs perhaps",
    b"CCOB": "a compressed bundle of clang's, for AMD GPUs perhaps",
    b"BC\xc0\xde": "LLVM bitcode",
    b"\x03\x02\x23\x07": "SPIR-V",
    b"\x50\xed\x55\xba": "a fat binary for NVIDIA GPUs",
    b"\xb1\x43\x62\x46": "the wrapper around a fat binary, which has its address and not its bytes",
}
_PTX: Final = rb"^[ \t]*\.version\b"
_LOOKED_AT: Final = 4096
_SHOWN: Final = 16
_LETTERS_PER_BYTE: Final = 4
"""Names may share their ends: together they may be so much longer than the file."""


class Section(NamedTuple):
    """One section; its kind and flags are as the format numbers them."""

    kind: int
    flags: int
    address: int
    """Where it is loaded, 0 if it is not."""
    start: int
    """Where it stands in the file, in bytes."""
    size: int
    link: int
    """The index of a section that it refers to, where its kind has such; `info` is of another."""
    info: int


class Symbol(NamedTuple):
    """One entry of a symbol table; its binding and kind are as the format numbers them."""

    name: str
    """Mangled where the language does so."""
    table: int
    """The kind of section it is listed in: `DYNAMIC` is seen by the loader."""
    binding: int
    kind: int
    section: int
    """The index of the section it is defined in; 0 for what others define."""
    value: int
    """Its address, or in files that are to be linked its place in the section."""
    size: int
    other: int
    """Its visibility, and the machine's own bits."""


def is_readable(image: bytes) -> bool:
    """Return whether an image begins as a 64-bit little-endian ELF file does."""
    return len(image) >= _HEADER_SIZE and image.startswith(_HEAD)


def machine(image: bytes) -> int:
    """Return the number of the machine that a readable file is for."""
    return int.from_bytes(image[18:20], "little")


def machine_name(number: int) -> str:
    """Return what to call a machine in an error."""
    return PROCESSORS.get(number) or _GPUS.get(number) or f"machine {number}"


def guess(image: bytes) -> str:
    """Describe bytes that a device does not take and that are no ELF file, for an error's text."""
    for head, name in _OTHERS.items():
        if image.startswith(head):
            return f"{name}: compile the source for this device"
    if not image:
        return "empty"
    if b"__global__" in image:
        return "source: compile it with device.compile()"
    if re.search(_PTX, image[:_LOOKED_AT], re.MULTILINE):
        return "PTX for NVIDIA GPUs: compile the source for this device"
    return f"none of these (it begins with {bytes(image[:_SHOWN])!r})"


def sections(image: bytes) -> list[Section]:
    """Return the sections in order; raises `ValueError` for a damaged file."""
    return [Section(*fields) for fields in _sections(image)]


def symbols(
    image: bytes,
    listed: Sequence[tuple[int, ...]] | None = None,
    kinds: Mapping[int, Container[int]] = {STATIC: ANY_KIND, DYNAMIC: ANY_KIND},
) -> Iterator[Symbol]:
    """Yield the symbols of all tables; raises `ValueError` for a damaged file.

    `listed` are the sections, where they have been read already. `kinds` are the kinds of
    symbols to yield, by the kind of table: no others' names are read.
    """
    # Tuples: a file has more sections than are looked at, and names for their fields are dear.
    listed = _sections(image) if listed is None else listed
    left, letters = len(image), _LETTERS_PER_BYTE * len(image)
    for table, _, _, start, bytes_, link, _ in listed:
        if table not in kinds:
            continue
        left -= bytes_
        if left < 0 or start + bytes_ > len(image) or link >= len(listed):
            raise ValueError("its symbol tables overlap, or end behind the file's end")
        names_at, wanted = listed[link][3], kinds[table]
        names_end = names_at + listed[link][4]
        rows = memoryview(image)[start : start + bytes_ - bytes_ % _SYMBOL.size]
        for name_at, info, other, section, value, size in _SYMBOL.iter_unpack(rows):
            kind = info & 15
            if kind not in wanted:
                continue
            first = names_at + name_at
            end = image.find(b"\0", first, names_end)
            letters -= end - first
            if end < 0 or letters < 0:
                raise ValueError("the names of its symbols overlap, or have no end")
            name = image[first:end].decode(errors="replace")
            yield Symbol(name, table, info >> 4, kind, section, value, size, other)


def constants(image: bytes, names: Collection[str]) -> dict[str, bytes]:
    """Return the bytes of variables with these names, as the file has them.

    Reads no further than to the last of them. Raises `ValueError` for a damaged file.
    """
    found: dict[str, bytes] = {}
    listed = _sections(image)
    last = min(_RESERVED, len(listed))
    for symbol in symbols(image, listed, {STATIC: {_VARIABLE}, DYNAMIC: {_VARIABLE}}):
        if symbol.name in names and 0 < symbol.section < last:
            kind, _, address, start, *_ = listed[symbol.section]
            # The symbol's value is an address; in relocatable files, an offset in its section.
            first = start + symbol.value - address
            content = image[first : first + symbol.size]
            if kind != _NOTHING_STORED and len(content) == symbol.size:
                found[symbol.name] = content
                if len(found) == len(names):
                    break
    return found


def source_name(name: str) -> str:
    """Return the name in the C++ source of a function or variable at global scope."""
    found = re.fullmatch(_MANGLED, name)
    if found is None:
        return name
    length = int(found[1])
    return found[2][:length] if length <= len(found[2]) else name


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
            raise ValueError("its notes overlap, or end behind the file's end")
        position = start
        while position + _NOTE.size <= end:
            name_size, content_size, number = _NOTE.unpack_from(image, position)
            name = position + _NOTE.size
            content = name + _aligned(name_size)
            position = content + _aligned(content_size)
            yield image[name : name + name_size], number, image[content : content + content_size]


def _sections(image: bytes) -> list[tuple[int, ...]]:
    return list(_table(image, 40, 58, _SECTION, "sections"))


def _table(
    image: bytes, start_at: int, count_at: int, entry: struct.Struct, what: str
) -> Iterator[tuple[int, ...]]:
    """Return the entries of a table that the header tells the place of."""
    if not is_readable(image):
        raise ValueError("it is no 64-bit little-endian ELF file")
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
