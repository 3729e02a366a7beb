"""Describe a signature to the C extension, which packs the arguments of plain dispatches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from hal._base import speedups
from hal._memory.usage import DISPATCH, READ, WRITE
from hal._programs.parameters import POINTERS, SIZED, Parameter

if TYPE_CHECKING:
    from hal._programs.signature import Signature
    from hal._speedups import Packer


_MOST: Final = 48  # the most parameters that the extension packs


def packer_of(signature: Signature) -> Packer | None:
    """Return what packs arguments for a signature; None if only Python does.

    Python packs structures, parameters of which only the size is known, bfloat16, and the outputs
    of kernels that print.
    """
    parameters = signature.parameters
    if speedups.module is None or signature.output is not None or len(parameters) > _MOST:
        return None
    if not all(map(is_plain, parameters)):
        return None
    described = tuple(_described(signature, each) for each in parameters)
    return cast("Packer", speedups.module.Packer(described))


def is_plain(parameter: Parameter) -> bool:
    """Return whether the extension packs arguments of a parameter."""
    return parameter.kind not in SIZED.values() and parameter.kind != "bfloat"


def _described(signature: Signature, parameter: Parameter) -> tuple[str, object, int, int]:
    """Return a parameter's code, the dtypes that surely fit, its address mask and rights."""
    if parameter.kind not in POINTERS:
        return parameter.code, None, 0, 0
    dtypes, mask = signature._elements.get(parameter.name, (None, 0))
    return "P", dtypes, mask, DISPATCH | (READ if parameter.is_const else WRITE)
