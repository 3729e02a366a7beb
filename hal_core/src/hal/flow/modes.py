"""Memory modes: who may read and write a buffer that has a name."""

from __future__ import annotations

import enum
from typing import Final

from hal.arguments import as_choice
from hal.errors import InvalidArgumentError


class MemoryMode(enum.StrEnum):
    """The readers and writers of a buffer, and how long its bytes last."""

    CONSTANT = "constant"
    """Has its content from the start; never written."""
    HOSTED = "hosted"
    """The host and kernels read and write it."""
    DEVICE = "device"
    """Kernels read and write it, from call to call; the host does not see it."""
    LOCAL = "local"
    """Lasts for one call, in which it is written before it is read."""
    VOLATILE = "volatile"
    """The host, or another owner, changes it between calls; kernels only read it."""


_KERNELS_WRITE: Final = "let kernels write"
_REFUSED: Final = {
    MemoryMode.CONSTANT: (_KERNELS_WRITE, "write", "fill", "copy to"),
    MemoryMode.DEVICE: ("write", "read"),
    MemoryMode.VOLATILE: (_KERNELS_WRITE,),
}
_WHY: Final = {
    MemoryMode.CONSTANT: "constant: nobody writes it",
    MemoryMode.DEVICE: "not hosted: it stays on the device; declare it 'hosted'",
    MemoryMode.VOLATILE: "volatile: kernels only read it",
}


def as_mode(mode: str | MemoryMode) -> MemoryMode:
    """Return a mode that is given by itself or by its value; raise for others."""
    return MemoryMode(as_choice(mode, [each.value for each in MemoryMode], "a mode"))


def is_read_only(mode: MemoryMode | None) -> bool:
    """Return whether kernels only read what has a mode."""
    return mode is not None and _KERNELS_WRITE in _REFUSED.get(mode, ())


def check_mode(what: str, mode: MemoryMode | None, deed: str = _KERNELS_WRITE) -> None:
    """Raise `InvalidArgumentError` unless a mode allows a deed."""
    if mode is not None and deed in _REFUSED.get(mode, ()):
        raise InvalidArgumentError(f"cannot {deed} {what}, which is {_WHY[mode]}")
