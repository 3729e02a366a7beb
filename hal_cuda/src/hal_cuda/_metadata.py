"""Read what PTX and cubins say of their kernels, without a driver."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from typing import Final

from hal import elf
from hal.handlers import own
from hal.native import KernelInfo

# Of cubins: one section of attributes for each function, whose `info` is that of its code.
_ATTRIBUTES: Final = 0x70000000
_ENTRY: Final = 0x10  # in a symbol's `other`: the driver may launch it
_SIZED: Final = 4  # the form of an attribute with bytes of its own
_MAX_THREADS, _BLOCK, _PARAMETER, _WIDE_PARAMETER = 5, 0x10, 0x17, 0x45

# Of PTX. No pattern scans ahead without a limit: the text may be made to do harm.
_COMMENT: Final = re.compile(rb"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_KERNEL: Final = re.compile(
    rb"\.entry\s{1,99}+([\w$%]++)\s{0,99}+(?:\(([^()]*+)\))?([^{;()]{0,400}+)[{;]"
)
_TYPE: Final = re.compile(r"\.[bfsu](8|16|32|64|128)")
_ARRAY: Final = re.compile(r"[\w$%]+(?:\[(\d{1,9})\])?")
_LEAST_WORDS: Final = 3
_LIMIT: Final = re.compile(rb"\.(reqntid|maxntid)\s([\d,\s]*)")


def cubin_kernels(image: bytes) -> dict[str, KernelInfo]:
    """Return the kernels of a cubin by name; raises `ValueError` for a damaged one."""
    sections = elf.sections(image)
    attributes = {
        each.info: image[each.start : each.start + each.size]
        for each in sections
        if each.kind == _ATTRIBUTES and each.info
    }
    try:
        return {
            each.name: _cubin_kernel(attributes.get(each.section, b""))
            for each in elf.symbols(image, sections)
            if each.kind == elf.FUNCTION and each.other & _ENTRY and each.section
        }
    except own(struct.error) as error:
        message = "the attributes of a kernel end too early"
        raise ValueError(message) from error


def _cubin_kernel(content: bytes) -> KernelInfo:
    sizes: dict[int, int] = {}
    block, most, is_known = None, 0, bool(content)
    for code, value in _attributes(content):
        if code == _PARAMETER:
            place, size = struct.unpack_from("<4xH2xI", value)
            sizes[place] = size >> 18
        elif code == _WIDE_PARAMETER:
            is_known = False  # it is not documented
        elif code == _BLOCK:
            x, y, z = struct.unpack_from("<3I", value)
            block = (x, y, z)
        elif code == _MAX_THREADS:
            most = math.prod(struct.unpack_from("<3I", value))
    if not is_known or sorted(sizes) != list(range(len(sizes))):
        return KernelInfo(None, block, most)
    return KernelInfo(",".join(f"any[{sizes[i]}]" for i in range(len(sizes))), block, most)


def _attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield code and bytes of each attribute."""
    position = 0
    while position < len(content):
        form, code, size = struct.unpack_from("<BBH", content, position)
        position += 4
        if form == _SIZED:
            yield code, content[position : position + size]
            position += size


def ptx_kernels(image: bytes) -> dict[str, KernelInfo]:
    """Return the kernels of PTX by name."""
    return {
        name.decode(): _ptx_kernel(parameters or b"", limits)
        for name, parameters, limits in _KERNEL.findall(_COMMENT.sub(b" ", image))
    }


def _ptx_kernel(parameters: bytes, limits: bytes) -> KernelInfo:
    parts = parameters.decode(errors="replace").split(",") if parameters.strip() else []
    texts = [_ptx_parameter(each.split()) for each in parts]
    block, most = None, 0
    for word, numbers in _LIMIT.findall(limits):
        x, y, z = ([int(each) for each in numbers.split(b",") if each.strip()] + [1, 1, 1])[:3]
        if word == b"reqntid":
            block = (x, y, z)
        else:
            most = x * y * z
    return KernelInfo(",".join(texts) if all(texts) else None, block, most)


def _ptx_parameter(words: list[str]) -> str:
    """Return ``.param .u64 .ptr .align 4 x`` as a signature has it; empty if it is unknown."""
    if words[:2] == [".param", ".align"]:
        del words[1:3]
    if words[:1] != [".param"] or len(words) < _LEAST_WORDS:
        return ""
    kind, name = _TYPE.fullmatch(words[1]), _ARRAY.fullmatch(words[-1])
    if kind is None or name is None:
        return ""
    return "ptr" if ".ptr" in words else f"any[{int(kind[1]) // 8 * int(name[1] or 1)}]"
