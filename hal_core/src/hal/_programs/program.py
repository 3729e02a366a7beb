"""Compiled programs: images for one or several targets, with what is known of them.

A program belongs to no device. It is a value: bytes that can be kept, sent
and read again, also by `Device.load`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol, Self, TypeAlias

from hal._backends import registry
from hal._base.whole_files import read_whole, write_whole
from hal._programs.images import as_image, check_distinct, check_kernels, read_image
from hal._programs.program_image import (
    ProgramImage,
    pack_image,
    texts,
    texts_by_name,
    unpack_images,
)
from hal._programs.signature import Signature
from hal.arguments import as_items, as_mapping, shown
from hal.errors import (
    ArgumentTypeError,
    BackendError,
    InvalidArgumentError,
    NotFoundError,
    OperationError,
    UnimplementedError,
)
from hal.handlers import dropped, own
from hal.native import CompiledImage, DeviceInfo, NativeCompiler

_Image: TypeAlias = (
    "Program | ProgramImage | bytes | bytearray | memoryview | str | os.PathLike[str]"
)
Images: TypeAlias = "_Image | Sequence[_Image] | Mapping[str, _Image]"

MAGIC: Final = b"\x89hal-program\n"
_VERSION: Final = 1
_LENGTH_BYTES: Final = 8
_DIGEST_BYTES: Final = 32


class Program:
    """Compiled kernels, for one or several targets; made by `hal.compile` or of your images.

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

    @classmethod
    def from_images(
        cls, images: Images, *, kernels: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Self:
        """Return a program of images that other compilers made: PTX, cubins, code objects, ...

        What an image says of itself is read, and need not be said: which device it is for, its
        kernels, the sizes of their parameters, the block that one needs. Blocks, and needs
        no device, but the backends whose images they are.

        Parameters
        ----------
        images
            An image, as its bytes or the path of its file; or a program or one of its images,
            which are taken over. Several are a list, or a mapping of their targets, as in
            ``{"cuda:sm_90": cubin, "cuda:compute_80": ptx, "cpu": "scale.so"}``. A target may be a
            backend alone, and must be whole where an image does not say its own.
        kernels
            What to add for kernels by name, as in ``{"scale": {"signature": "(ptr x, f32 a)",
            "block": 128, "shared_memory": 4096}}``, each of the three only if needed: `block` and
            the bytes of dynamic `shared_memory` are the defaults of a dispatch. It is for every
            image but those of programs: join programs where it differs by target.

        Raises
        ------
        ArgumentTypeError, FileError
            Something else is given, or a file cannot be read.
        InvalidArgumentError
            No installed backend has such images; an image does not say its target, or contradicts
            the one given; a description contradicts the image; or two images have one target.
        NotFoundError
            A kernel that is described is not in an image.
        BackendNotFoundError, BackendUnavailableError, PluginError
            The backend of a target is not installed, lacks its bindings, or is broken.
        """
        described = check_kernels(kernels)
        entries: list[tuple[Any, Any]] = [("", images)]
        if isinstance(images, Mapping):
            named = as_mapping(images, "from_images: images by target are a mapping")
            entries = list(named.items())
        elif isinstance(images, (list, tuple)) and not isinstance(images, ProgramImage):
            entries = [("", each) for each in as_items(images, "from_images: images are a list")]
        taken: list[ProgramImage] = []
        names: dict[str, None] = {}
        inputs: dict[str, list[str]] = {}
        for target, given in entries:
            made = given
            if not isinstance(given, (Program, ProgramImage)):
                content, where = read_image(given, "from_images")
                if not content.startswith(MAGIC):
                    made = as_image(content, target, described, where)
                else:
                    made = cls.from_bytes(content)
            if target and (made is given or isinstance(made, Program)):
                raise InvalidArgumentError(
                    f"from_images: {shown(target)} is given a program, which has targets of its "
                    "own; put it into a list, without a target"
                )
            if isinstance(made, Program):
                taken += made.images
                names |= dict.fromkeys(made.entry_points)
                for key, text in made.metadata.items():
                    inputs.setdefault(key, []).append(text)
            else:
                taken.append(made)
                names |= dict.fromkeys(made.kernels or ())
        check_distinct(taken)
        return cls(taken, list(names), {key: "\n".join(each) for key, each in inputs.items()})

    @property
    def images(self) -> tuple[ProgramImage, ...]:
        """The images, one per target, in the order of the targets that were asked for."""
        return self._images

    @property
    def entry_points(self) -> tuple[str, ...]:
        """The names of the kernels, in the order of the source or of the images."""
        return self._entry_points

    @property
    def metadata(self) -> Mapping[str, str]:
        """The inputs of `hal.compile` as text: ``"filenames"``, ``"defines"``, ``"options"``."""
        return self._metadata

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets, as in ``("cpu:native", "cuda:sm_90")``."""
        return tuple(each.name for each in self.images)

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The kernels' parameters by name, from the first image that has them.

        Without those that only loading tells. Sizes of the user's structures may
        differ from target to target: see `ProgramImage.kernels`.
        """
        known = next((each.kernels for each in self.images if each.kernels is not None), {})
        given = {name: entry.signature for name, entry in known.items()}
        return MappingProxyType({name: each for name, each in given.items() if each is not None})

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
            raise ArgumentTypeError(f"image_for takes a device, not {type(device).__name__}")
        best = max(self.images, key=lambda each: _rank(each, device), default=None)
        if best is None or not _rank(best, device):
            raise OperationError(
                f"the program has images for {', '.join(self.targets) or 'nothing'}, and none of "
                f"them runs on {device._name} ({device.info.name}); compile it with target="
                f"'{target_of(device)}'"
            )
        return best

    def to_bytes(self) -> bytes:
        """Return the program as bytes, for `from_bytes` and `Device.load`."""
        import json  # noqa: PLC0415 - of programs that are kept

        contents = b"".join(each.image for each in self.images)
        head = json.dumps(
            {
                "version": _VERSION,
                "entry_points": self.entry_points,
                "metadata": dict(self.metadata),
                "images": [pack_image(each) for each in self.images],
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
        import json  # noqa: PLC0415 - as above

        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise ArgumentTypeError(f"from_bytes takes bytes, not {type(content).__name__}")
        data = bytes(content)
        if not data.startswith(MAGIC):
            message = f"these are no bytes of a program; they begin with {data[:16]!r}"
            raise InvalidArgumentError(message)
        digest_at = len(MAGIC)
        body = data[digest_at + _DIGEST_BYTES :]
        if _digest(body) != data[digest_at : len(data) - len(body)]:
            raise InvalidArgumentError("the program is damaged or cut off; compile it again")
        position = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "little")
        try:
            head = json.loads(body[_LENGTH_BYTES:position])
            version = head["version"]
            if version == _VERSION:
                images = unpack_images(head["images"], body, position)
                return cls(images, texts(head["entry_points"]), texts_by_name(head["metadata"]))
        except own(LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise InvalidArgumentError(
                "the bytes are a program's, but not as hal writes them "
                f"({type(error).__name__}: {error}); compile it again"
            ) from error
        raise InvalidArgumentError(
            f"the program's file is of version {version}, and this hal reads {_VERSION}; compile "
            "it again"
        )

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
        """The name in errors, with a number if the device is open several times."""

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
    except own(BackendError, UnimplementedError, NotFoundError):
        return None


def target_of(device: OpenDevice) -> str:
    """Return the target to compile for to run on a device, as in ``"cuda:sm_90"``.

    Without the backend's compiler it is the device's own architecture.
    """
    info: DeviceInfo = device.info
    target = info.architecture
    compiler = compiler_or_none(device.backend)
    if compiler is not None:
        with dropped(UnimplementedError):  # the vendor's library is not here
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
