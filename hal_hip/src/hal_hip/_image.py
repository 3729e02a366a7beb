"""Identify an image before the runtime loads it, and read its kernels' metadata.

AMD's code objects (HSACO) are ELF files with a note of metadata, which is the only source of
the sizes of a kernel's parameters. Several for different
devices come in a bundle of clang's.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from hal import elf
from hal.errors import OperationError
from hal.handlers import own

_BUNDLE: Final = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED: Final = b"CCOB"
_METADATA: Final = (b"AMDGPU\0", 32)
_MOST_BUNDLED: Final = 1024
_MOST_ELEMENTS: Final = 1 << 16  # kernels of an image, parameters of a kernel
_TRIPLE: Final = re.compile(r"hip(?:v4)?-amdgcn-amd-amdhsa-(?:\w+)?-(.+)")
_DAMAGED: Final = (
    *(struct.error, ValueError, TypeError, AttributeError),
    *(IndexError, KeyError, OverflowError),
)
"""Exceptions of readers for malformed bytes."""
TAKES: Final = "a HIP device takes code objects (HSACO) and bundles of them"


@dataclass(frozen=True, slots=True)
class KernelData:
    """The metadata of one kernel in a code object.

    Attributes
    ----------
    parameter_sizes
        The bytes of each parameter in the source, without those that the compiler
        adds.
    max_threads
        Threads that a block may have, 0 if it does not say.
    shared_memory
        Bytes of shared memory that it declares itself.
    signature
        Its parameters in the form that `hal.Signature.parse` reads.
    block
        The only block that it runs with, if there is one.
    """

    parameter_sizes: tuple[int, ...]
    max_threads: int
    shared_memory: int
    signature: str
    block: tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class Image:
    """The description of an image.

    Attributes
    ----------
    content
        The bytes for the runtime: the code object of a bundle that is for
        the device, or all of it.
    contents
        For people: ``"a code object for gfx90a"``.
    kernels
        What is known of each kernel, by its name in the image.
    functions
        The names of its functions, if the metadata list no kernels.
    target
        What the whole of it is for, as in ``"gfx90a:xnack-"``; empty where it does not say.
    """

    content: bytes
    contents: str
    kernels: Mapping[str, KernelData] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    target: str = ""


def read(image: bytes, target: str) -> Image:
    """Return an image's description for a device with that ``gcnArchName``.

    Raises `OperationError` with a guess if it is for no such device.
    """
    try:
        if image.startswith(_BUNDLE):
            return _read_bundle(image, target)
        if image.startswith(b"\x7fELF"):
            return _read_elf(image)
    except own(*_DAMAGED) as error:
        message = f"{TAKES}, and this image is a damaged one: {error}"
        raise OperationError(message) from error
    if image.startswith(_COMPRESSED):
        return Image(image, "a compressed bundle")
    message = f"{TAKES}, and this image is {elf.guess(image)}"
    raise OperationError(message)


# Bundles


def _read_bundle(image: bytes, target: str) -> Image:
    """Return the code object of a bundle that is for a device, or the whole bundle."""
    found = {}
    (count,) = struct.unpack_from("<Q", image, len(_BUNDLE))
    position = len(_BUNDLE) + 8
    if count > _MOST_BUNDLED:
        message = f"a bundle of {count} parts"
        raise ValueError(message)
    for _ in range(count):
        start, size, length = struct.unpack_from("<QQQ", image, position)
        position += 24
        triple = image[position : position + length].decode()
        position += length
        if start + size > len(image):
            message = f"the part for {triple} ends behind the image's end"
            raise ValueError(message)
        matched = _TRIPLE.fullmatch(triple)
        if matched and size:
            found[matched[1]] = (start, size)
    names = ", ".join(found) or "no GPU"
    for each, (start, size) in found.items():
        if _fits(each, target):
            inner = _read_elf(image[start : start + size])
            contents = f"a bundle for {names}"
            return Image(inner.content, contents, inner.kernels, inner.functions)
    # One of them may be for a family of devices, which the runtime knows.
    return Image(image, f"a bundle for {names}")


def _fits(name: str, target: str) -> bool:
    """Return whether code for one target runs on another: ``gfx90a`` on ``gfx90a:xnack-``."""
    processor, *wanted = name.split(":")
    has, *features = target.split(":")
    return processor == has and set(wanted) <= set(features)


# ELF


def _read_elf(image: bytes) -> Image:
    """Read a code object, or another ELF file, which the runtime may be able to load."""
    if not elf.is_readable(image):
        message = f"{TAKES}, and this image is a 32-bit, big-endian or damaged ELF file"
        raise OperationError(message)
    machine = elf.machine(image)
    if machine != elf.AMD_GPU:
        contents = f"an ELF file for {elf.machine_name(machine)}"
        return Image(image, contents, functions=tuple(_functions(image)))
    metadata = _metadata(image)
    target = str(metadata.get("amdhsa.target", "")).rpartition("--")[2]
    kernels = {
        str(kernel[".name"]): _kernel(kernel) for kernel in metadata.get("amdhsa.kernels", ())
    }
    return Image(image, f"a code object for {target or 'an AMD GPU'}", kernels, target=target)


def _kernel(kernel: Mapping[str, Any]) -> KernelData:
    given = [
        each
        for each in kernel.get(".args", ())
        if not str(each.get(".value_kind", "")).startswith("hidden_")
    ]
    required = [int(each) for each in kernel.get(".reqd_workgroup_size", ())]
    block = (required[0], required[1], required[2]) if required else None
    return KernelData(
        parameter_sizes=tuple(int(each[".size"]) for each in given),
        max_threads=int(kernel.get(".max_flat_workgroup_size", 0)),
        shared_memory=int(kernel.get(".group_segment_fixed_size", 0)),
        signature=", ".join(map(_parameter, given)),
        block=block,
    )


def _parameter(each: Mapping[str, Any]) -> str:
    """Return a parameter as a signature's text has it."""
    name = str(each.get(".name", ""))
    name = f" {name}" if name.isidentifier() and name.isascii() else ""
    if each.get(".value_kind") != "global_buffer":
        return f"any[{int(each['.size'])}]{name}"
    return f"{'const ' * (each.get('.access') == 'read_only')}ptr{name}"


def _metadata(image: bytes) -> Mapping[str, Any]:
    """Return the metadata in the notes of a code object, empty if there are none."""
    for name, kind, content in elf.notes(image):
        if (name, kind) == _METADATA:
            # The head of a list or a map announces its number of elements, which are allocated
            # first.
            most = min(len(content), _MOST_ELEMENTS)
            unpacker = msgpack.Unpacker(
                strict_map_key=False,
                max_buffer_size=len(content) or 1,
                max_array_len=most,
                max_map_len=most,
            )
            unpacker.feed(content)
            try:
                found = unpacker.unpack()
            except own(msgpack.OutOfData) as error:
                message = "its metadata end in the middle of a value"
                raise ValueError(message) from error
            if isinstance(found, dict):
                return found
    return {}


def _functions(image: bytes) -> Iterator[str]:
    """Yield the names of the functions that an ELF file defines."""
    seen = set()
    for each in elf.symbols(image):
        # A compiler's own helpers begin with a sign that no source name has.
        is_named = each.name not in seen and each.name[:1] != "$"
        if each.section and each.kind == elf.FUNCTION and is_named:
            seen.add(each.name)
            yield each.name
