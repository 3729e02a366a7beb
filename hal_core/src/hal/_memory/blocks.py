"""Blocks of native memory, and their uses (rule M1).

A block is in the use whose *lease* it carries. A lease is made for one use, so
ending a use twice, or ending one that a Ctrl-C cut short, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from hal._base import sync
from hal._memory.usage import index_of
from hal.errors import OutOfMemoryError
from hal.native import MemoryType

if TYPE_CHECKING:
    import weakref


_ADDRESS_BITS: Final = 64
ALIGNMENT: Final = 256
"""The alignment of every allocation, in bytes."""

LARGE: Final = 1 << 30
"""Larger blocks have exactly the size asked for, and are never cached."""

_FINE: Final = 2048
"""Up to here the size classes are the multiples of `ALIGNMENT`."""

# How a block is given back, in this order: to the cache; to the driver's stream-ordered
# allocator; to its segment (`hal._memory.segment_pool`); by a native free; to its foreign owner.
# The first three never block.
CACHED: Final = 0
ASYNC: Final = 1
POOLED: Final = 2
DIRECT: Final = 3
FOREIGN: Final = 4


class Releasable:
    """An owner of foreign memory that gives it back when told, not with its last reference.

    Without the interpreter lock, a reference that another thread drops may end as late as in the
    next call of the thread that made it, inside hal, where the other library's code must not run.
    """

    __slots__ = ()

    def release(self) -> None:
        """Give the memory back, once; under no lock. Never raises."""
        raise NotImplementedError


class Owner:
    """The owner of foreign memory, and what to do when hal no longer uses it."""

    __slots__ = ("callback", "handle", "imported", "opened", "owner")

    def __init__(self, owner: object, callback: Callable[[], object] | None = None) -> None:
        self.owner = owner  # what keeps the memory alive
        self.imported = 0  # the argument of `release_host`; 0 for none
        self.callback = callback
        # The kind and the number of the native handle that the memory is part of, if it is
        self.handle: tuple[int, int] | None = None
        self.opened = 0  # the argument of `close_memory`; 0 for none


class Block:
    """A native allocation, or foreign memory."""

    __slots__ = (
        "address",
        "bucket",
        "host_address",
        "index",
        "lease",
        "memory",
        "owner",
        "place",
        "size",
        "view",
        "way",
        "writable",
    )

    def __init__(
        self, address: int, size: int, memory: MemoryType, host_address: int | None, way: int
    ) -> None:
        self.address = address
        self.size = size
        self.memory = memory
        self.index: Final = index_of(memory)
        self.host_address = host_address
        self.way = way
        self.bucket = NO_BUCKET  # the list of the cache that it goes back to, if it does
        self.owner: Owner | None = None  # what keeps it alive, if it is foreign
        # The use that it is in; None if it is in the cache or its pool, `GONE` once it was given
        # back
        self.lease: BlockLease | None = None
        self.place = 0  # in the list of the books, if it is there
        # A reference to the owner of the numpy views of it
        self.view: weakref.ref[Any] | None = None
        self.writable = True  # whether the host may write to it

    def is_viewed(self) -> bool:
        """Return whether a numpy view of it is alive."""
        return self.view is not None and self.view() is not None


class BlockLease:
    """One use of a block."""

    __slots__ = ("block", "since", "size")

    def __init__(self, block: Block, size: int) -> None:
        self.block = block
        self.size = size  # the bytes that were asked for
        self.since = sync.monotonic()  # when it began, in seconds of the clock


NO_BUCKET: Final[list[Block]] = []
"""The bucket of blocks that are never cached; one for all, as every piece of a segment has it."""

GONE: Final = BlockLease(Block(0, 0, MemoryType.DEVICE, None, DIRECT), 0)
"""The lease of every block that was given back."""


def aligned(size: int) -> int:
    """Return `size` rounded up to a multiple of `ALIGNMENT`."""
    return (size + ALIGNMENT - 1) & -ALIGNMENT


def block_size(size: int) -> int:
    """Return the size of the block for `size` > 0 bytes: at most an eighth more, above 2 KiB.

    Eight classes for each power of two; up to 2 KiB the multiples of 256.
    """
    if size <= _FINE or size > LARGE:
        return aligned(size)
    step = 1 << (size - 1).bit_length() - 4
    return (size + step - 1) & -step


def check_countable(size: int) -> None:
    """Raise `OutOfMemoryError` for more bytes than a driver can count."""
    if size >> _ADDRESS_BITS:
        raise OutOfMemoryError(f"no address has more than {_ADDRESS_BITS} bits")
