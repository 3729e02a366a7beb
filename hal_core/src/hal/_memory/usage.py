"""The permitted uses of buffers, checked with one bit test (rule M1)."""

from __future__ import annotations

import enum
from typing import Final

from hal.arguments import as_choice, as_int, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.native import MemoryType


class BufferUsage(enum.IntFlag):
    """The uses that a buffer allows; combined with ``|``."""

    TRANSFER_SOURCE = 1
    """Copies and reads take bytes from it."""
    TRANSFER_TARGET = 2
    """Fills, updates, copies and writes put bytes into it."""
    DISPATCH = 4
    """Kernels get its address."""
    INDIRECT = 8
    """Dispatches read their grid from it."""
    MAPPING = 16
    """`Buffer.map` maps it for the host."""
    ALL = 31
    """Every use; the default."""


# The same bits as plain ints: an enum's operators are a hundred times as slow. A buffer has those
# that it denies: mostly none, and else `denied & need` names what is missing.
READ: Final = 32
WRITE: Final = 64
TRANSFER_SOURCE: Final = 1 | READ
TRANSFER_TARGET: Final = 2 | WRITE
DISPATCH: Final = 4
INDIRECT: Final = 8 | READ
MAPPING: Final = 16
OUTPUT: Final = 128  # a slot may need it, and only `hal.Output` has it
ALL: Final = 31 | READ | WRITE

_ACCESS: Final = {"all": READ | WRITE, "read": READ, "write": WRITE}
_MAPPINGS: Final = {
    "all": MAPPING | READ | WRITE,
    "read": MAPPING | READ,
    "write": MAPPING | WRITE,
    "discard": MAPPING | WRITE,
}

MEMORY_TYPES: Final = (MemoryType.DEVICE, MemoryType.HOST, MemoryType.MANAGED)
"""The kinds of memory; the core identifies one by its index here."""
_DEVICE: Final = MemoryType.DEVICE  # an attribute of an enum is slow, and so is its hash
_INDEX: Final = {kind.value: index for index, kind in enumerate(MEMORY_TYPES)}


def index_of(memory: MemoryType) -> int:
    """Return the index of a kind of memory."""
    return 0 if memory is _DEVICE else 1 if memory is MemoryType.HOST else 2


def check_memory(memory: object) -> int:
    """Return the index of a kind of memory in `MEMORY_TYPES`; raise if it is unknown."""
    if memory is _DEVICE:
        return 0  # fast path
    if isinstance(memory, MemoryType):
        return _INDEX[memory.value]
    return _INDEX[as_choice(memory, _INDEX, "memory")]


def check_rights(usage: object, access: object) -> int:
    """Return the bits that a usage and an access deny; raise if one is malformed."""
    if usage is BufferUsage.ALL and type(access) is str and access == "all":
        return 0
    if isinstance(usage, bool) or not isinstance(usage, int):
        message = f"usage is hal.BufferUsage, combined with |, not {type(usage).__name__}"
        raise ArgumentTypeError(message)
    if not 0 < usage <= BufferUsage.ALL:
        message = f"usage is at least one of hal.BufferUsage and nothing else, not {shown(usage)}"
        raise InvalidArgumentError(message)
    return ALL & ~(
        as_int(usage, "usage is hal.BufferUsage") | _ACCESS[as_choice(access, _ACCESS, "access")]
    )


def mapping_need(access: object) -> int:
    """Return the bits that `Buffer.map` needs for an access; raise if it is unknown."""
    return _MAPPINGS[as_choice(access, _MAPPINGS, "map: access")]


def explain_refusal(what: str, missing: int) -> str:
    """Explain why an operation that needs the bits `missing` is refused."""
    lacks = [flag.name for flag in BufferUsage if flag & missing and flag is not BufferUsage.ALL]
    if lacks:
        return (
            f"{what}: the buffer was allocated without hal.BufferUsage.{lacks[0]}; "
            "allocate it with that usage"
        )
    verb, right = ("written", "write") if missing & WRITE else ("read", "read")
    return (
        f"{what}: the buffer must not be {verb}: its access is without {right!r}; "
        f"allocate it with access={right!r} or 'all'"
    )


def describe_rights(denied: int) -> str:
    """Return the part of a buffer's ``repr`` about what it denies, or nothing."""
    if not denied:
        return ""
    names = [str(flag.name) for flag in BufferUsage if flag.bit_count() == 1 and not flag & denied]
    access = "write " if denied & READ else "read " if denied & WRITE else ""
    return f" {access}{'|'.join(names)}"
