"""Cache native allocations by size (rule M1).

Native allocation is slow and native frees may block until the device is idle,
so a block that nobody uses any more goes to the cache, and the next allocation
of its size class takes it from there without a native call. It may be used
again at once: its storage died, so every operation that used it has retired.

A block is in the use whose *ticket* it carries. A ticket is made for one use, so
one that comes back twice, or whose use a Ctrl-C cut short, changes nothing.
Entries of a bucket whose block is taken are passed over, for the same reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from hal import _progress, _sync
from hal._usage import MEMORY_TYPES
from hal.errors import ClosedError, HalError, OutOfMemoryError
from hal.native import MemoryType

if TYPE_CHECKING:
    import weakref

    from hal._context import Context
    from hal._settings import MemorySettings
    from hal._storage import Storage

__all__ = [
    "ALIGNMENT",
    "LARGE",
    "Allocator",
    "Block",
    "Owner",
    "Ticket",
    "block_size",
    "check_countable",
]

_ADDRESS_BITS: Final = 64
ALIGNMENT: Final = 256
"""Bytes that the address of every allocation is a multiple of."""

LARGE: Final = 1 << 30
"""Bytes above which a block is as large as was asked for, and never cached."""

_FINE: Final = 2048
"""Bytes up to which the size classes are the multiples of `ALIGNMENT`."""

# How a block is given back: to the cache, to the stream-ordered allocator, by a
# native free, to whom it belongs. The first two need no wait and nobody's wake-up.
CACHED: Final = 0
ASYNC: Final = 1
DIRECT: Final = 2
FOREIGN: Final = 3


class Owner:
    """Keep foreign memory alive, and know what to do when hal has done with it.

    Attributes
    ----------
    owner
        What keeps the memory alive.
    imported
        What `release_host` takes; 0 for nothing.
    callback
        What is called then.
    handle
        The kind and the number of the native handle that the memory is part
        of, if it is.
    """

    __slots__ = ("callback", "handle", "imported", "owner")

    def __init__(
        self, owner: object, imported: int = 0, callback: Callable[[], object] | None = None
    ) -> None:
        self.owner = owner
        self.imported = imported
        self.callback = callback
        self.handle: tuple[int, int] | None = None


class Block:
    """Be one native allocation, or memory of others.

    Attributes
    ----------
    ticket
        The use that it is in; None in the cache, `GONE` once it was given back.
    view
        A reference to the owner of the numpy views of it.
    owner
        What keeps it alive, where it is foreign.
    writable
        Whether the host may write to it.
    """

    __slots__ = (
        "address",
        "bucket",
        "host_address",
        "memory",
        "owner",
        "size",
        "ticket",
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
        self.host_address = host_address
        self.way = way
        self.bucket: list[Block] = []
        self.owner: Owner | None = None
        self.ticket: Ticket | None = None
        self.view: weakref.ref[Any] | None = None
        self.writable = True

    def is_viewed(self) -> bool:
        """Return whether a numpy view of it is alive."""
        return self.view is not None and self.view() is not None


class Ticket:
    """Be one use of a block.

    Attributes
    ----------
    block
        The block.
    size
        The bytes that were asked for.
    """

    __slots__ = ("block", "size")

    def __init__(self, block: Block, size: int) -> None:
        self.block = block
        self.size = size


GONE: Final = Ticket(Block(0, 0, MemoryType.DEVICE, None, DIRECT), 0)
"""The ticket of every block that was given back."""


def block_size(size: int) -> int:
    """Return the size of the block for `size` > 0 bytes: at most an eighth more, above 2 KiB.

    Eight classes for each power of two; up to 2 KiB the multiples of 256.
    """
    if size <= _FINE or size > LARGE:
        return (size + ALIGNMENT - 1) & -ALIGNMENT
    step = 1 << (size - 1).bit_length() - 4
    return (size + step - 1) & -step


def check_countable(size: int) -> None:
    """Raise `OutOfMemoryError` for more bytes than drivers have numbers for."""
    if size >> _ADDRESS_BITS:
        message = f"no address has more than {_ADDRESS_BITS} bits"
        raise OutOfMemoryError(message)


class Allocator:
    """Allocate blocks on one native device, cache and count them."""

    __slots__ = (
        "_blocks",
        "_buckets",
        "_cache_limit",
        "_cached",
        "_closed",
        "_context",
        "_growing",
        "_held",
        "_lock",
        "_memory_limit",
        "_now",
        "_peak",
    )

    def __init__(self, context: Context, settings: MemorySettings) -> None:
        self._context = context
        limit = settings.cache_limit
        self._cache_limit = context.native.info.total_memory // 8 if limit is None else limit
        self._memory_limit = settings.memory_limit
        # A leaf: guards blocks, buckets, tickets and counts, and no native call is made under it.
        self._lock = _sync.OwnedLock()
        # Held over native allocations: who closes the device waits until they are done.
        self._growing = _sync.OwnedLock()
        # Block size + index of the memory's kind -> blocks, the last used last
        self._buckets: dict[int, list[Block]] = {}
        self._blocks: dict[Block, None] = {}  # all there are
        self._closed = False
        # Sums over the blocks; a Ctrl-C may leave them wrong until `_recount`.
        self._now = 0  # bytes asked for
        self._peak = 0
        self._cached = 0  # bytes of blocks in the cache
        self._held = 0  # bytes of all blocks of the device's

    @property
    def memory_limit(self) -> int | None:
        """Return how many bytes hal may hold here; None is no limit but the device's."""
        return self._memory_limit

    def _take(self, bucket: list[Block], storage: Storage, size: int) -> None:
        """Give a storage a block of the cache, if there is one; under the lock.

        In this order: what a Ctrl-C cuts short leaves the block where it was,
        or in a use that ends with the storage.
        """
        while bucket:
            block = bucket[-1]
            if block.ticket is None:
                ticket = Ticket(block, size)
                storage._ticket = ticket
                block.ticket = ticket
                bucket.pop()
                self._cached -= block.size
                now = self._now = self._now + size
                if now > self._peak:  # noqa: PLR1730 - on the hot path, where a call is dear
                    self._peak = now
                return
            bucket.pop()

    def _put_back(self, block: Block, size: int) -> None:
        """Put a block whose use has ended into the cache; under the lock."""
        block.bucket.append(block)
        block.ticket = None
        self._cached += block.size
        self._now -= size

    def _allocate_block(self, storage: Storage, size: int, index: int) -> None:
        """Make a native allocation for a storage; raises `OutOfMemoryError`. May block."""
        native, memory = self._context.native, MEMORY_TYPES[index]
        need = block_size(size)
        check_countable(need)
        with self._growing:
            self._check_open()
            if self._memory_limit is not None:
                self._check_limit(need)
            _progress.start()  # a finaliser cannot
            native.bind()
            address = native.allocate(need, memory)
            try:
                host_address = native.host_pointer(address, memory)
            except BaseException:
                native.free(address, memory)
                raise
            way = DIRECT if need > LARGE else CACHED
            self._add(storage, Block(address, need, memory, host_address, way), size, index)

    def _add(self, storage: Storage, block: Block, size: int, index: int) -> None:
        """Register a new block, in use by a storage."""
        ticket = Ticket(block, size)
        with self._lock:
            if block.way == CACHED:
                block.bucket = self._buckets.setdefault(block.size + index, block.bucket)
            block.ticket = ticket
            self._blocks[block] = None
            storage._ticket = ticket
            if block.way != FOREIGN:
                self._held += block.size
                self._now += size
                self._peak = max(self._peak, self._now)

    def _remove(self, ticket: Ticket) -> bool:
        """Take a block out of the books that is about to be given back; under the lock.

        Returns False if that use of it has ended before.
        """
        block, size = ticket.block, ticket.size
        if block.ticket is not ticket or block not in self._blocks:
            return False
        del self._blocks[block]
        block.ticket = GONE
        if block.way != FOREIGN:
            self._now -= size
            self._held -= block.size
        return True

    def _evict(self, keep: int) -> Block | None:
        """Take the oldest of the largest blocks out of the cache and the books; under the lock.

        Returns None if no more than `keep` bytes are cached.
        """
        if self._cached <= keep:
            return None
        for key in sorted(self._buckets, reverse=True):
            bucket = self._buckets[key]
            while bucket:
                block = bucket[0]
                if block.ticket is None:
                    block.ticket = GONE
                    bucket.pop(0)
                    self._blocks.pop(block)
                    self._cached -= block.size
                    self._held -= block.size
                    return block
                bucket.pop(0)
        return None

    def _give_back(self, keep: int) -> int:
        """Free cached blocks until no more than `keep` bytes are left; return how many went.

        Blocks as long as the native frees do.
        """
        freed = 0
        while True:
            with self._lock:
                block = self._evict(keep)
            if block is None:
                return freed
            self._free(block)
            freed += block.size

    def _free(self, block: Block) -> None:
        """Free a block that is out of the books; on a lost context that is nothing."""
        if self._context.lost is None:
            native = self._context.native
            with contextlib.suppress(HalError):  # nobody is left to tell
                native.bind()
                native.free(block.address, block.memory)

    def _check_open(self) -> None:
        if self._closed:
            message = f"{self._context.name} is closed; open it again with hal.create_device"
            raise ClosedError(message)

    def _check_limit(self, need: int) -> None:
        """Raise `OutOfMemoryError` if `need` more bytes would exceed the memory limit."""
        with self._lock:
            self._recount()
        limit = self._memory_limit
        if limit is not None and self._held + need > limit:
            message = f"memory_limit is {limit:,} bytes, and hal holds {self._held:,}"
            raise OutOfMemoryError(message)

    def _recount(self) -> int:
        """Make the sums right, whatever a Ctrl-C did to them; return the blocks in use.

        Under the lock.
        """
        now = cached = held = used = 0
        for block in self._blocks:
            ticket = block.ticket
            if block.way == FOREIGN:
                continue
            held += block.size
            if ticket is None:
                cached += block.size
            else:
                now += ticket.size
                used += 1
        self._now, self._cached, self._held = now, cached, held
        return used
