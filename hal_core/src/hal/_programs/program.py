"""Compiled programs: images for one or several targets, with what is known of them.

A program belongs to no device. It is a value: bytes that can be kept, sent
and read again, also by `Device.load`.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self

from hal._backends import registry
from hal._base.whole_files import read_whole, write_whole
from hal._programs.signature import Parameter, Signature
from hal._programs.type_table import KernelEntry
from hal.errors import (
    ArgumentTypeError,
    BackendError,
    InvalidArgumentError,
    NotFoundError,
    OperationError,
    UnimplementedError,
)
from hal.native import CompiledImage, DeviceInfo, NativeCompiler

__all__ = ["MAGIC", "Program", "ProgramImage", "compiler_or_none", "is_device", "target_of"]

MAGIC: Final = b"\x89hal-program\n"
_VERSION: Final = 1
_LENGTH_BYTES: Final = 8
_DIGEST_BYTES: Final = 32


class ProgramImage(NamedTuple):
    """A program's image for one target.

    Attributes
    ----------
    backend
        The backend that compiled it: ``"cuda"``.
    target
        The architecture, in the backend's words: ``"sm_90"``.
    image
        The bytes, which `Device.load` takes as well.
    kernels
        What is known of its kernels, by name; None where only loading tells.
    log
        The compiler's messages.
    properties
        The backend's other notes: the compiler, the processor's features.
    """

    backend: str
    target: str
    image: bytes
    kernels: Mapping[str, KernelEntry] | None
    log: str
    properties: Mapping[str, str]

    @property
    def name(self) -> str:
        """Backend and target, as in ``"cuda:sm_90"``."""
        return f"{self.backend}:{self.target}"

    def __repr__(self) -> str:
        kernels = "unknown kernels" if self.kernels is None else ", ".join(self.kernels)
        return f"<ProgramImage {self.name}, {len(self.image)} bytes: {kernels}>"


class Program:
    """Compiled kernels, for one or several targets; made by `hal.compile`.

    ``device.load(program)`` loads the image that suits the device best, once
    while the program lives. Immutable; any thread may use it, any number of
    devices may load it, and it can be pickled.
    """

    __slots__ = ("__weakref__", "_entry_points", "_images", "_metadata")

    def __init__(
        self,
        images: Sequence[ProgramImage],
        entry_points: Sequence[str],
        metadata: Mapping[str, str],
    ) -> None:
        self._images = tuple(images)
        self._entry_points = tuple(entry_points)
        self._metadata = MappingProxyType(dict(metadata))

    @property
    def images(self) -> tuple[ProgramImage, ...]:
        """The images, one per target, in the order of the targets that were asked for."""
        return self._images

    @property
    def entry_points(self) -> tuple[str, ...]:
        """The names of the kernels that the source defines, in its order."""
        return self._entry_points

    @property
    def metadata(self) -> Mapping[str, str]:
        """The inputs that made it: ``"filenames"``, ``"defines"`` and ``"options"``, as text."""
        return self._metadata

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets, as in ``("cpu:native", "cuda:sm_90")``."""
        return tuple(each.name for each in self.images)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The kernels' parameters by name, from the first image that has them.

        Empty where only loading tells. Sizes of the user's structures may
        differ from target to target: see `ProgramImage.kernels`.
        """
        known = next((each.kernels for each in self.images if each.kernels is not None), {})
        return MappingProxyType({name: entry.signature for name, entry in known.items()})

    @property
    def log(self) -> str:
        """The compilers' messages, each under its target's name; empty if there are none."""
        said = (f"{each.name}:\n{each.log.rstrip()}\n" for each in self.images if each.log.strip())
        return "".join(said)

    def image_for(self, device: OpenDevice) -> ProgramImage:
        """Return the image that suits a device best, without loading it.

        Raises `OperationError` with the program's targets and the device's if
        none suits.
        """
        if not is_device(device):
            message = f"image_for takes a device, not {type(device).__name__}"
            raise ArgumentTypeError(message)
        best = max(self.images, key=lambda each: _rank(each, device), default=None)
        if best is None or not _rank(best, device):
            message = (
                f"the program has images for {', '.join(self.targets) or 'nothing'}, and none of "
                f"them runs on {device._name} ({device.info.name}); compile it with target="
                f"'{target_of(device)}'"
            )
            raise OperationError(message)
        return best

    def to_bytes(self) -> bytes:
        """Return the program as bytes, for `from_bytes` and `Device.load`."""
        contents = b"".join(each.image for each in self.images)
        head = json.dumps(
            {
                "version": _VERSION,
                "entry_points": self.entry_points,
                "metadata": dict(self.metadata),
                "images": [
                    {
                        "backend": each.backend,
                        "target": each.target,
                        "size": len(each.image),
                        "kernels": None if each.kernels is None else _pack(each.kernels),
                        "log": each.log,
                        "properties": dict(each.properties),
                    }
                    for each in self.images
                ],
            }
        ).encode()
        body = len(head).to_bytes(_LENGTH_BYTES, "little") + head + contents
        return MAGIC + _digest(body) + body

    @classmethod
    def from_bytes(cls, content: bytes | bytearray | memoryview) -> Self:
        """Return the program that `to_bytes` serialized.

        Its code will run on your devices: read only what you trust. Raises
        `InvalidArgumentError` for bytes that are not a program, are damaged, or
        come from another version of hal.
        """
        if not isinstance(content, (bytes, bytearray, memoryview)):
            message = f"from_bytes takes bytes, not {type(content).__name__}"
            raise ArgumentTypeError(message)
        data = bytes(content)
        if not data.startswith(MAGIC):
            message = f"these are no bytes of a program; they begin with {data[:16]!r}"
            raise InvalidArgumentError(message)
        digest_at = len(MAGIC)
        body = data[digest_at + _DIGEST_BYTES :]
        if _digest(body) != data[digest_at : len(data) - len(body)]:
            message = "the program is damaged or cut off; compile it again"
            raise InvalidArgumentError(message)
        position = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
        try:
            head = json.loads(body[_LENGTH_BYTES:position])
            version = head["version"]
            if version == _VERSION:
                images = _unpack_images(head["images"], body, position)
                return cls(images, _texts(head["entry_points"]), _unpack_texts(head["metadata"]))
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            message = (
                "the bytes are a program's, but not as hal writes them "
                f"({type(error).__name__}: {error}); compile it again"
            )
            raise InvalidArgumentError(message) from error
        message = (
            f"the program's file is of version {version}, and this hal reads {_VERSION}; compile "
            "it again"
        )
        raise InvalidArgumentError(message)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file that `open` and `Device.load` read, whole or not at all.

        Writes through links, and to devices and pipes, without replacing them. Raises
        `FileError` with the path.
        """
        write_whole(path, self.to_bytes(), "save")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that `save` wrote; raises what `from_bytes` does.

        Raises `FileError` for a file that cannot be read, and
        `InvalidArgumentError` for a device, a pipe and more than 1 GiB.
        """
        return cls.from_bytes(read_whole(path, "open"))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"<Program {', '.join(self.entry_points)} for {', '.join(self.targets)}>"


class OpenDevice(Protocol):
    """An open device, as far as compiling and choosing a program need it."""

    @property
    def _name(self) -> str:
        """What errors call it: its name, and a number if it is open several times."""

    @property
    def backend(self) -> str:
        """The backend's name."""

    @property
    def info(self) -> DeviceInfo:
        """The description of the hardware."""

    @property
    def features(self) -> frozenset[str]:
        """The optional features that work natively there."""


def is_device(value: object) -> bool:
    """Return whether an object is a device, or has all of a device that matters here."""
    return hasattr(value, "info") and isinstance(getattr(value, "backend", None), str)


def compiler_or_none(backend: str) -> NativeCompiler | None:
    """Return a backend's compiler; None if it has none here."""
    try:
        return registry.compiler_of(backend)
    except (BackendError, UnimplementedError, NotFoundError):
        return None


def target_of(device: OpenDevice) -> str:
    """Return the target to compile for to run on a device, as in ``"cuda:sm_90"``.

    Without the backend's compiler it is the device's own architecture.
    """
    info: DeviceInfo = device.info
    target = info.architecture
    compiler = compiler_or_none(device.backend)
    if compiler is not None:
        with contextlib.suppress(UnimplementedError):  # the vendor's library is not here
            target = compiler.target_of(info)
    return f"{device.backend}:{target}"


def _digest(body: bytes) -> bytes:
    import hashlib  # noqa: PLC0415 - loads OpenSSL

    return hashlib.sha256(body).digest()


def _rank(image: ProgramImage, device: OpenDevice) -> int:
    """Return how well an image suits a device; 0 if it does not."""
    if image.backend != device.backend:
        return 0
    compiler = compiler_or_none(image.backend)
    if compiler is None:
        return int(image.target == device.info.architecture)
    compiled = CompiledImage(image.target, image.image, image.log, image.properties)
    return compiler.rank(compiled, device.info)


def _pack(kernels: Mapping[str, KernelEntry]) -> list[Any]:
    """Return what is known of kernels as rows for JSON."""
    return [
        [name, [list(each) for each in _rows(entry.signature)], entry.block, entry.shared_memory]
        for name, entry in kernels.items()
    ]


def _rows(signature: Signature) -> list[tuple[str, str, int, int, bool, str]]:
    return [
        (each.name, each.kind, each.size, each.alignment, each.is_const, each.element)
        for each in signature.parameters
    ]


def _unpack(rows: Sequence[Any]) -> Mapping[str, KernelEntry]:
    """Return the kernels from the rows of `_pack`; raise any exception for malformed rows."""
    kernels: dict[str, KernelEntry] = {}
    for name, parameters, block, shared_memory in rows:
        _texts([name, *(each[0] for each in parameters)])
        x, y, z, _ = map(operator.index, (*(block or (1, 1, 1)), shared_memory))
        signature = Signature([Parameter(*each) for each in parameters])
        kernels[name] = KernelEntry(signature, (x, y, z) if block else None, shared_memory)
    return MappingProxyType(kernels)


def _unpack_images(rows: Sequence[Any], body: bytes, position: int) -> list[ProgramImage]:
    """Return the images, which begin at an offset; raise any exception if they are malformed."""
    images: list[ProgramImage] = []
    for each in rows:
        begin, kernels = position, each["kernels"]
        position += operator.index(each["size"])
        if not begin <= position <= len(body):
            break
        backend, target, log = _texts([each["backend"], each["target"], each["log"]])
        images.append(
            ProgramImage(
                backend,
                target,
                body[begin:position],
                None if kernels is None else _unpack(kernels),
                log,
                MappingProxyType(_unpack_texts(each["properties"])),
            )
        )
    if position != len(body):
        message = f"the images should end at byte {position}, and the bytes at {len(body)}"
        raise ValueError(message)
    return images


def _unpack_texts(values: Mapping[str, str]) -> dict[str, str]:
    return dict(zip(_texts(list(values)), _texts(list(values.values())), strict=True))


def _texts(values: object) -> list[str]:
    """Return the values, a list of strings; raise TypeError if they are something else."""
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        message = f"{values!r} is no list of texts"
        raise TypeError(message)
    return values
