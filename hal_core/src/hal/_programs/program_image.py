"""One image of a program, and how a program's bytes hold several."""

import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from hal._programs.parameters import Parameter
from hal._programs.signature import Signature
from hal._programs.type_table import KernelEntry


class ProgramImage(NamedTuple):
    """A program's image for one target."""

    backend: str
    """The backend that compiled it: ``"cuda"``."""
    target: str
    """The architecture, in the backend's words: ``"sm_90"``."""
    image: bytes
    """The bytes, which `Device.load` takes as well."""
    kernels: Mapping[str, KernelEntry] | None
    """What is known of its kernels, by name; None where only loading tells."""
    log: str
    """The compiler's messages."""
    properties: Mapping[str, str]
    """The backend's other notes: the compiler, the processor's features."""

    @property
    def name(self) -> str:
        """Backend and target, as in ``"cuda:sm_90"``."""
        return f"{self.backend}:{self.target}"

    def __repr__(self) -> str:
        kernels = "unknown kernels" if self.kernels is None else ", ".join(self.kernels)
        return f"<ProgramImage {self.name}, {len(self.image)} bytes: {kernels}>"


def pack_image(image: ProgramImage) -> dict[str, Any]:
    """Return what is known of an image, without its bytes, for JSON."""
    kernels = None
    if image.kernels is not None:
        kernels = [[name, _rows(each[0]), *each[1:]] for name, each in image.kernels.items()]
    return {
        "backend": image.backend,
        "target": image.target,
        "size": len(image.image),
        "kernels": kernels,
        "log": image.log,
        "properties": dict(image.properties),
    }


def _rows(signature: Signature | None) -> list[list[Any]] | None:
    if signature is None:
        return None
    return [
        [each.name, each.kind, each.size, each.alignment, each.is_const, each.element]
        for each in signature.parameters
    ]


def _unpack(rows: Sequence[Any]) -> Mapping[str, KernelEntry]:
    """Return the kernels from the rows of `pack_image`; raise any exception for malformed rows."""
    kernels: dict[str, KernelEntry] = {}
    for name, parameters, block, shared_memory in rows:
        texts([name, *(each[0] for each in parameters or ())])
        x, y, z, _ = map(operator.index, (*(block or (1, 1, 1)), shared_memory))
        signature = None
        if parameters is not None:
            signature = Signature([Parameter(*each) for each in parameters])
        kernels[name] = KernelEntry(signature, (x, y, z) if block else None, shared_memory)
    return MappingProxyType(kernels)


def unpack_images(rows: Sequence[Any], body: bytes, position: int) -> list[ProgramImage]:
    """Return the images, which begin at an offset; raise any exception if they are malformed."""
    images: list[ProgramImage] = []
    for each in rows:
        begin, kernels = position, each["kernels"]
        position += operator.index(each["size"])
        if not begin <= position <= len(body):
            break
        backend, target, log = texts([each["backend"], each["target"], each["log"]])
        images.append(
            ProgramImage(
                backend,
                target,
                body[begin:position],
                None if kernels is None else _unpack(kernels),
                log,
                MappingProxyType(texts_by_name(each["properties"])),
            )
        )
    if position != len(body):
        raise ValueError(f"the images should end at byte {position}, and the bytes at {len(body)}")
    return images


def texts_by_name(values: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping of strings to strings; raise TypeError if it is something else."""
    return dict(zip(texts(list(values)), texts(list(values.values())), strict=True))


def texts(values: object) -> list[str]:
    """Return the values, a list of strings; raise TypeError if they are something else."""
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise TypeError(f"{values!r} is no list of texts")
    return values
