"""Identify an image, for the driver and for people."""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from hal import elf
from hal.errors import OperationError
from hal.handlers import own

_OLD_ABI: Final = 0x33  # of ELF files that say the architecture in the low byte
_FATBIN: Final = b"\x50\xed\x55\xba"
_LTOIR: Final = b"\xed\x43\x4e\x7f"
_LEAST_PART: Final = 32  # the bytes of its head
_PARTS: Final = {1: "PTX", 2: "cubin", 8: "LTO-IR"}
_SPACE: Final = re.compile(rb"(?:\s+|//[^\n]*\n?|/\*.*?\*/)*", re.DOTALL)
_TARGET: Final = re.compile(rb"^[ \t]*\.target\s+(\w+)", re.MULTILINE)
TAKES: Final = "a CUDA device takes PTX, cubins, fat binaries and LTO-IR"


class Image(NamedTuple):
    """The description of an image.

    Attributes
    ----------
    kind
        ``"ptx"``, ``"elf"``, ``"fatbin"`` or ``"ltoir"``.
    contents
        For people: ``"a cubin for sm_90"``.
    is_lto
        Whether it has to be linked first.
    target
        What it was compiled for, as in ``"sm_90"``; of PTX what it needs at least,
        ``"compute_90"``. Empty where that is not known, or several.
    """

    kind: str
    contents: str
    is_lto: bool = False
    target: str = ""


def sniff(image: bytes) -> Image:
    """Return an image's description; raises `OperationError` with a guess if it is not for CUDA."""
    head = image[:4]
    read = {b"\x7fELF": _read_elf, _FATBIN: _read_fatbin}.get(head)
    if read is not None:
        return read(image)
    if head == _LTOIR:
        return Image("ltoir", "LTO-IR", is_lto=True)
    space = _SPACE.match(image)
    if space is not None and image.startswith(b".version", space.end()):
        target = _TARGET.search(image, space.end())
        name = target[1].decode() if target else ""
        contents = f"PTX for {name or 'an unknown target'}"
        return Image("ptx", contents, target=name.replace("sm_", "compute_"))
    message = f"{TAKES}, and this image is {elf.guess(image)}"
    raise OperationError(message)


def _read_elf(image: bytes) -> Image:
    """Read the header; the driver decides whether the code fits the device."""
    try:
        elf.sections(image)
    except own(ValueError) as error:
        message = f"{TAKES}, and this image is a 32-bit, big-endian or damaged ELF file"
        raise OperationError(message) from error
    machine = elf.machine(image)
    if machine != elf.NVIDIA_GPU:
        return Image("elf", f"code for {elf.machine_name(machine)}")
    (flags,) = struct.unpack_from("<I", image, 48)
    number = flags & 0xFF if image[7] == _OLD_ABI else flags >> 8 & 0xFF
    return Image("elf", f"a cubin for sm_{number}", target=f"sm_{number}")


def _read_fatbin(image: bytes) -> Image:
    """List the parts of a fat binary."""
    kinds: set[int] = set()
    parts: list[str] = []
    try:
        _, _, header, size = struct.unpack_from("<IHHQ", image)
        position, end = header, min(header + size, len(image))
        while position < end:
            kind, _, length, size = struct.unpack_from("<HHIQ", image, position)
            (number,) = struct.unpack_from("<I", image, position + 28)
            kinds.add(kind)
            parts.append(f"{_PARTS.get(kind, f'part {kind}')} for {number}")
            position += max(length, _LEAST_PART) + size
    except own(struct.error) as error:
        message = f"{TAKES}, and this image is a damaged fat binary: {error}"
        raise OperationError(message) from error
    is_lto = bool(kinds) and kinds <= {8}
    return Image("fatbin", f"a fat binary ({', '.join(parts) or 'empty'})", is_lto=is_lto)
