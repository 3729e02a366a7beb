"""The modes of a context's named memory: who may read and write it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from hal.arguments import as_choice, as_dtype, as_int, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError

__all__ = ["Memory", "MemoryMode", "Rights", "refuse", "rights_of"]


class MemoryMode(enum.Enum):
    """The readers and writers of a name, and how long its bytes last."""

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


class Rights(NamedTuple):
    """The uses that a mode allows."""

    kernels_write: bool
    host_writes: bool
    host_reads: bool


_RIGHTS: Final = {
    MemoryMode.CONSTANT: Rights(kernels_write=False, host_writes=False, host_reads=True),
    MemoryMode.HOSTED: Rights(kernels_write=True, host_writes=True, host_reads=True),
    MemoryMode.DEVICE: Rights(kernels_write=True, host_writes=False, host_reads=False),
    MemoryMode.LOCAL: Rights(kernels_write=True, host_writes=False, host_reads=False),
    MemoryMode.VOLATILE: Rights(kernels_write=False, host_writes=True, host_reads=True),
}


def rights_of(mode: MemoryMode) -> Rights:
    """Return the uses that a mode allows."""
    return _RIGHTS[mode]


@dataclass(frozen=True, slots=True, init=False)
class Memory:
    """A declaration of a name's memory: `size` bytes of a `dtype`, used as its mode says.

    Two declarations of a name agree when they are equal. Raises
    `InvalidArgumentError` for an unknown mode, and for a size that is
    not a whole number of elements; `ArgumentTypeError` for anything but an element type,
    and for Python objects, which device memory cannot hold.

    Attributes
    ----------
    size
        Bytes.
    dtype
        The element type.
    mode
        A `MemoryMode`, or its value.
    """

    size: int
    dtype: np.dtype[Any]
    mode: MemoryMode

    def __init__(
        self, size: int, dtype: DTypeLike = np.uint8, mode: str | MemoryMode = MemoryMode.DEVICE
    ) -> None:
        element = as_dtype(dtype)
        if element.hasobject:
            message = f"{element} holds Python objects, which device memory cannot"
            raise ArgumentTypeError(message)
        length = as_int(size, "the size of a memory is a number of bytes")
        if length < 0 or not element.itemsize or length % element.itemsize:
            message = f"{shown(length)} bytes are no number of elements of {element}"
            raise InvalidArgumentError(message)
        found = mode
        if not isinstance(found, MemoryMode):
            found = MemoryMode(as_choice(mode, [each.value for each in MemoryMode], "a mode"))
        object.__setattr__(self, "size", length)
        object.__setattr__(self, "dtype", element)
        object.__setattr__(self, "mode", found)

    def __str__(self) -> str:
        return f"{shown(self.size)} bytes of {self.dtype}, {self.mode.value}"


_WHY: Final = {
    MemoryMode.CONSTANT: "is constant: nobody writes it",
    MemoryMode.DEVICE: "is not hosted: it stays on the device; declare it 'hosted'",
    MemoryMode.LOCAL: "is local to a call: its bytes are gone after it; declare it 'hosted'",
}


def refuse(name: str, mode: MemoryMode, deed: str, where: str) -> NoReturn:
    """Raise that a mode does not allow something."""
    message = f"{where}: cannot {deed} {name!r}, which {_WHY[mode]}"
    raise InvalidArgumentError(message)
