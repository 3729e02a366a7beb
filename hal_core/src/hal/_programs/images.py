"""Images that other compilers made: what they are, and what they and the user say of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from hal import elf
from hal._backends import registry
from hal._base.failures import placed
from hal._base.whole_files import read_whole
from hal._programs.image_tables import read_image_table
from hal._programs.parameters import POINTERS
from hal._programs.program_image import ProgramImage
from hal._programs.signature import Signature
from hal._programs.type_table import KernelEntry
from hal.arguments import as_int, as_mapping, as_path, as_text, as_three, shown, shown_path
from hal.errors import (
    ArgumentTypeError,
    HalError,
    InvalidArgumentError,
    NotFoundError,
    OperationError,
    UnimplementedError,
)
from hal.handlers import own
from hal.native import ImageInfo, KernelInfo

_MOST: Final = 2**32 - 1
_KEYS: Final = ("signature", "block", "shared_memory")


def read_image(image: object, what: str) -> tuple[bytes, str]:
    """Return an image's bytes, given as such or by a path, and what errors call it.

    Raises `ArgumentTypeError`, `FileError`, and `InvalidArgumentError` for no bytes at all.
    """
    where = "the image"
    if isinstance(image, (str, os.PathLike)):
        path = as_path(image, what)
        where = f"the file {shown_path(path)}"
        content = read_whole(path, what)
    elif isinstance(image, (bytes, bytearray, memoryview)):
        content = bytes(image)
    else:
        message = f"{what} takes an image's bytes or a path, not {type(image).__name__}"
        raise ArgumentTypeError(message)
    if not content:
        raise InvalidArgumentError(f"{what}: {where} is empty")
    return content, where


def check_signature(name: object, given: object) -> Signature:
    """Return the signature that a user gives to a kernel; raise if it is malformed."""
    title = as_text(name, "the name of a kernel is a str")
    if isinstance(given, Signature):
        return given
    rule = f"the signature of kernel {shown(title)} is text such as '(f32 a, ptr x)'"
    return Signature.parse(as_text(given, rule))


def check_sizes(name: str, signature: Signature, sizes: Sequence[int]) -> None:
    """Raise unless the parameters have the sizes that the image has."""
    if len(signature.parameters) != len(sizes):
        listed = ", ".join(map(str, sizes)) or "no"
        raise InvalidArgumentError(
            f"kernel {name!r} has {len(sizes)} parameters in the image, of {listed} bytes, "
            f"and {len(signature.parameters)} in the signature {signature}"
        )
    for parameter, size in zip(signature.parameters, sizes, strict=True):
        if parameter.size != size:
            raise InvalidArgumentError(
                f"kernel {name!r}: parameter {parameter.name!r} has {size} bytes in the image, and "
                f"{parameter.size} in the signature {signature}"
            )


def check_distinct(images: Sequence[ProgramImage]) -> None:
    """Raise unless there are images, each for a target of its own."""
    names = [each.name for each in images]
    if not names:
        raise InvalidArgumentError("from_images: there is no image; give bytes or a path")
    if len(set(names)) < len(names):
        message = f"two of the targets are the same: {', '.join(names)}; give each once"
        raise InvalidArgumentError(message)


def check_kernels(kernels: object) -> dict[str, KernelEntry]:
    """Return the descriptions of kernels that a user gives; raise if they are malformed."""
    rule = "from_images: kernels is a mapping of names to descriptions"
    checked: dict[str, KernelEntry] = {}
    for key, given in ({} if kernels is None else as_mapping(kernels, rule)).items():
        name = as_text(key, "the name of a kernel is a str")
        what = f"kernel {shown(name)}"
        rule = f"the description of {what} is a mapping such as {{'block': 128}}"
        described = as_mapping(given, rule)
        for other in described.keys() - set(_KEYS):
            message = f"the description of {what} has {', '.join(_KEYS)}, not {shown(other)}"
            raise ArgumentTypeError(message)
        signature, block, shared = map(described.get, _KEYS)
        size = 0
        if shared is not None:
            size = as_int(shared, f"{what}: the shared memory is bytes as an int")
            if not 0 <= size <= _MOST:
                message = f"{what}: the shared memory is 0 to {_MOST} bytes, not {shown(shared)}"
                raise InvalidArgumentError(message)
        checked[name] = KernelEntry(
            None if signature is None else check_signature(name, signature),
            None if block is None else as_three(block, f"{what}: the block", 1),
            size,
        )
    return checked


def as_image(
    content: bytes, target: object, kernels: Mapping[str, KernelEntry], where: str
) -> ProgramImage:
    """Return a program's image of one that another compiler made; raises as `from_images`."""
    name = as_text(target, "a target is text such as 'cuda:sm_90'")
    backend, info = _described(content, name, where)
    place = f"{where} for {backend}:{info.target}"
    try:
        listed = _listed(content, info, kernels)
        if listed is not None:
            for each in kernels.keys() - listed.keys():
                there = ", ".join(listed) or "none"
                raise NotFoundError(f"there is no kernel {shown(each)}; there are: {there}")
        limits = {elf.source_name(each): limit for each, limit in (info.kernels or {}).items()}
        entries = dict(listed or {})
        for each, given in kernels.items():
            known = entries.get(each, KernelEntry(None))
            entries[each] = _merged(each, given, known, limits.get(each, KernelInfo()))
    except own(HalError) as error:
        raise placed(place, error) from error
    found = None if listed is None and not kernels else MappingProxyType(entries)
    properties = MappingProxyType(dict(info.properties))
    return ProgramImage(backend, info.target, content, found, "", properties)


def _described(content: bytes, name: str, where: str) -> tuple[str, ImageInfo]:
    """Return the backend that takes an image, and what it reads in the image."""
    backend, _, target = name.partition(":")
    if backend:
        try:
            return backend, _ask(backend, content, target)
        except own(InvalidArgumentError, OperationError) as error:
            raise InvalidArgumentError(f"{where} is not for {name!r}: {error}") from error
    refused: list[str] = []
    for status in registry.backends():
        try:
            return status.name, _ask(status.name, content, "")
        except own(InvalidArgumentError) as error:
            message = f"{where} is for the {status.name} backend, but {error}"
            raise InvalidArgumentError(message) from error
        except own(HalError) as error:
            refused.append(f"{status.name}: {error}")
    message = f"no installed backend takes {where}; name its target, as in 'cuda:sm_90'"
    raise InvalidArgumentError("\n  ".join([message, *refused]))


def _ask(backend: str, content: bytes, target: str) -> ImageInfo:
    try:
        compiler = registry.compiler_of(backend)
    except own(UnimplementedError):
        if not target:
            raise
        return ImageInfo(target)
    return compiler.image_info(content, target)


def _listed(
    content: bytes, info: ImageInfo, given: Mapping[str, KernelEntry]
) -> dict[str, KernelEntry] | None:
    """Return the kernels that an image lists: in hal's own table, or in the backend's words."""
    try:
        table = read_image_table(content)
    except own(InvalidArgumentError):
        if not given:
            raise
        table = None  # of another version of hal; the user says it instead
    if table is not None or info.kernels is None:
        return table
    plain = [elf.source_name(each) for each in info.kernels]
    return {
        # Templates and overloads share a name; they keep their own in the image.
        (short if plain.count(short) == 1 else name): KernelEntry(
            None if known.signature is None else Signature.parse(known.signature), known.block
        )
        for short, (name, known) in zip(plain, info.kernels.items(), strict=True)
    }


def _merged(name: str, given: KernelEntry, known: KernelEntry, limit: KernelInfo) -> KernelEntry:
    """Return what is known of a kernel; raise where the user contradicts the image."""
    if given.signature and known.signature:
        parameters = known.signature.parameters
        check_sizes(name, given.signature, [each.size for each in parameters])
        for one, other in zip(parameters, given.signature.parameters, strict=True):
            if one.kind == "ptr" and other.kind not in POINTERS:
                raise InvalidArgumentError(
                    f"kernel {name!r}: parameter {other.name!r} is a pointer in the image, and "
                    f"{other.type} in the signature {given.signature}"
                )
    block = given.block or known.block
    if limit.block and block != limit.block:
        message = f"kernel {name!r} runs with a block of {limit.block} alone, not {block}"
        raise InvalidArgumentError(message)
    threads = block[0] * block[1] * block[2] if block else 0
    if limit.max_threads and threads > limit.max_threads:
        raise InvalidArgumentError(
            f"kernel {name!r} takes blocks of {limit.max_threads} threads at most, and "
            f"{block} are {threads}"
        )
    signature = given.signature or known.signature
    return KernelEntry(signature, block, given.shared_memory or known.shared_memory)
