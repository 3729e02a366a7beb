"""A cache of native allocations by size (rule M1).

Native allocation is slow and native frees may block until the device is idle,
so an unused block goes to the cache, and the next allocation
of its size class takes it from there without a native call. It may be reused
at once: its storage died, so every operation that used it has retired.

A bucket may contain entries whose block is in use, left by a Ctrl-C; they are skipped.

Memory of `Queue.alloca` is short-lived, and cut from segments of its own
(`hal._memory.segment_pool`): long-lived blocks would leave gaps between its pieces.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from hal._base import sync
from hal._engine import progress
from hal._memory.blocks import (
    ASYNC,
    CACHED,
    DIRECT,
    FOREIGN,
    GONE,
    LARGE,
    Block,
    Ticket,
    block_size,
    check_countable,
)
from hal._memory.segment_pool import SEGMENT, StreamMemory
from hal._memory.usage import MEMORY_TYPES
from hal.errors import ClosedError, HalError, OutOfMemoryError

if TYPE_CHECKING:
    from hal._engine.context import DeviceContext
    from hal._engine.operation import Operation
    from hal._memory.settings import MemorySettings
    from hal._memory.storage import Storage

__all__ = ["Allocator"]


class Allocator:
    """The blocks of one native device: allocated, cached and counted."""

    __slots__ = (
        "_blocks",
        "_buckets",
        "_cache_limit",
        "_cached",
        "_closed",
        "_context",
        "_frees",
        "_growing",
        "_held",
        "_in_hand",
        "_lock",
        "_memory_limit",
        "_now",
        "_peak",
        "_peaks",
        "_pools",
        "_shared",
        "_staged",
        "is_async",
        "is_freeing",
        "is_pooled",
        "trimmed",
    )

    def __init__(self, context: DeviceContext, settings: MemorySettings) -> None:
        self._context = context
        limit = settings.cache_limit
        self._cache_limit = context.native.info.total_memory // 8 if limit is None else limit
        self._memory_limit = settings.memory_limit
        # What `alloca` takes of the driver's stream-ordered pool: segments of device memory
        # at least, or all of that
        has_pool = "async_allocations" in context.native.features
        self.is_pooled = has_pool and settings.async_allocations is not False
        self.is_async = has_pool and settings.async_allocations is True
        if self.is_pooled:
            keep = settings.pool_keep
            if keep is None:  # of segments the core keeps some; what is unused does not count
                is_kept = self.is_async and self._memory_limit is None
                keep = self._cache_limit if is_kept else 0
            context.native.bind()
            context.native.configure_pool(keep, settings.pool_reuse)
        # A leaf: guards blocks, buckets, tickets and counts; no native call is made under it.
        self._lock = sync.OwnedLock()
        # Held during native allocations: closing the device waits until they are done.
        self._growing = sync.OwnedLock()
        # Block size + index of the memory's kind -> blocks, the most recently used last
        self._buckets: dict[int, list[Block]] = {}
        self._blocks: dict[Block, None] = {}  # all that exist
        self._closed = False
        # Bytes of a segment that small pieces share
        self._shared = SEGMENT
        if self._memory_limit is not None:
            self._shared = min(SEGMENT, block_size(self._memory_limit // 16 or 1))
        # The pools of `alloca`: for each kind of memory one for small pieces, then for each one
        # for large ones. A long-lived small piece would keep a large segment from being used whole.
        self._pools = tuple([StreamMemory() for _ in range(2 * len(MEMORY_TYPES))])
        # By a queue's id: the address of a segment that it has made, or frees, in stream order.
        # A Ctrl-C may leave it there, in the books or not.
        self._in_hand: dict[int, int] = {}
        # Sums over the blocks; a Ctrl-C may leave them wrong until `_recount`.
        self._now = [0] * len(MEMORY_TYPES)  # bytes asked for, by kind
        self._peaks = [0] * len(MEMORY_TYPES)
        self._peak = 0  # of all kinds together
        self._cached = 0  # bytes of blocks in the cache
        self._held = 0  # bytes of all blocks of the device
        # Called to free other memory when memory is short
        self.trimmed: list[Callable[[], None]] = []
        self.is_freeing = False  # a thread gives unused memory back, for an alloca
        self._frees = 0  # blocks given back to the driver
        self._staged = 0  # bytes of the staging ring, which are not blocks

    @property
    def memory_limit(self) -> int | None:
        """The most bytes that hal may hold here; None means that only the device limits it."""
        return self._memory_limit

    def _take(self, bucket: list[Block], storage: Storage, size: int) -> None:
        """Give a storage a block of the cache, if there is one; under the lock.

        The order of steps matters: a Ctrl-C between two leaves the block where it was,
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
                self._count(block.index, size)
                return
            bucket.pop()

    def _count(self, index: int, size: int) -> None:
        """Count bytes of a kind as in use; under the lock."""
        now = self._now
        here = now[index] = now[index] + size
        if here > self._peaks[index]:  # noqa: PLR1730 - on the hot path, where a call is dear
            self._peaks[index] = here
        total = now[0] + now[1] + now[2]
        if total > self._peak:  # noqa: PLR1730 - on the hot path, where a call is dear
            self._peak = total

    def _put_back(self, block: Block, size: int) -> None:
        """Put a block whose use has ended into the cache; under the lock."""
        block.bucket.append(block)
        block.ticket = None
        self._cached += block.size
        self._now[block.index] -= size

    def _allocate_block(self, storage: Storage, size: int, index: int) -> None:
        """Make a native allocation for a storage; raises `OutOfMemoryError`. May block."""
        need = block_size(size)
        with self._growing:
            block = self._make_block(need, index, DIRECT if need > LARGE else CACHED)
            self._add(storage, block, size)

    def _allocate_segment(self, size: int, pool: int) -> None:
        """Make a native allocation for a pool of `alloca`, like `_allocate_block`."""
        with self._growing:
            block = self._make_block(size, pool % len(MEMORY_TYPES), DIRECT)
            with self._lock:
                self._add_segment(block, pool, ())

    def _add_segment(self, block: Block, pool: int, points: tuple[Operation, ...]) -> None:
        """Register a segment; its pieces are what is in use. Under the lock."""
        block.ticket = Ticket(block, 0)
        self._pools[pool].add_segment(block, points)
        self._blocks[block] = None
        self._held += block.size

    def _make_block(self, size: int, index: int, way: int) -> Block:
        """Make a native allocation, not yet in any book; with the growing lock."""
        native, memory = self._context.native, MEMORY_TYPES[index]
        check_countable(size)
        self._check_open()
        with self._lock:
            self._check_limit(size)
        progress.start()  # a finaliser cannot
        native.bind()
        address = native.allocate(size, memory)
        try:
            host_address = native.host_pointer(address, memory)
        except BaseException:
            native.free(address, memory)
            raise
        return Block(address, size, memory, host_address, way)

    def _add(self, storage: Storage, block: Block, size: int) -> None:
        """Register a new block, in use by a storage."""
        ticket = Ticket(block, size)
        with self._lock:
            if block.way == CACHED:
                block.bucket = self._buckets.setdefault(block.size + block.index, block.bucket)
            block.ticket = ticket
            self._blocks[block] = None
            storage._ticket = ticket
            if block.way != FOREIGN:
                self._held += block.size
                self._count(block.index, size)

    def _remove(self, ticket: Ticket) -> bool:
        """Remove a block that is about to be given back from the books; under the lock.

        Returns False if that use of it has ended before.
        """
        block, size = ticket.block, ticket.size
        if block.ticket is not ticket or block not in self._blocks:
            return False
        del self._blocks[block]
        block.ticket = GONE
        if block.way != FOREIGN:
            self._now[block.index] -= size
            self._held -= block.size
        return True

    def _evict(self, keep: int) -> Block | None:
        """Remove the oldest of the largest blocks from the cache and the books; under the lock.

        Returns None if no more than `keep` bytes are cached.
        """
        if self._idle() <= keep:
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

    def _give_back(self, keep: int) -> None:
        """Free unused segments, then cached blocks, until at most `keep` bytes are left.

        Blocks as long as the native frees do.
        """
        while True:
            with self._lock:
                block = self._idle_segment(keep) or self._evict(keep)
            if block is None:
                return
            self._free(block)

    def _idle(self) -> int:
        """Return the number of unused bytes; under the lock."""
        return self._cached + sum([pool.idle for pool in self._pools])

    def _idle_segment(self, keep: int) -> Block | None:
        """Remove an unused segment from the books, like `_evict`."""
        if self._idle() > keep:
            for pool in self._pools:
                block = pool.idle_segment()
                if block is not None:
                    self._drop_segment(block)
                    return block
        return None

    def _drop_segment(self, block: Block) -> None:
        """Take a segment out of the books that its pool has given up; under the lock.

        Before it is freed: what a Ctrl-C keeps from being freed is lost until the device
        closes, unless it is in hand, while what is freed and in the books would be used.
        """
        self._held -= block.size
        del self._blocks[block]
        block.ticket = GONE

    def _free(self, block: Block) -> None:
        """Free a block that is out of the books; does nothing on a lost context."""
        self._frees += 1
        if self._context.lost is None:
            native = self._context.native
            with contextlib.suppress(HalError):  # nobody is left to report to
                native.bind()
                native.free(block.address, block.memory)

    def _check_open(self) -> None:
        if self._closed:
            message = f"{self._context.name} is closed; open it again with hal.create_device"
            raise ClosedError(message)

    def _check_limit(self, need: int) -> None:
        """Raise `OutOfMemoryError` if `need` more bytes would exceed the memory limit; the lock."""
        held = self._held + self._staged
        limit = self._memory_limit
        if limit is not None and held + need > limit:
            message = f"memory_limit is {limit:,} bytes, and hal holds {held:,}"
            raise OutOfMemoryError(message)

    def stage(self, size: int, *, is_needed: bool = False) -> None:
        """Count bytes of the staging ring.

        Raises `OutOfMemoryError` beyond the memory limit, unless they are needed.
        """
        with self._lock:
            if size > 0 and not is_needed:
                self._check_limit(size)
            self._staged += size

    def _recount(self) -> list[_Sums]:
        """Correct the sums after any Ctrl-C; return those of each kind.

        Under the lock.
        """
        kinds = [_Sums() for _ in MEMORY_TYPES]
        self._recover_segments()
        for block in self._blocks:
            ticket = block.ticket
            if block.way == FOREIGN:
                continue
            sums = kinds[block.index]
            sums.held += block.size
            if block.way == ASYNC:
                sums.pooled += block.size
            if ticket is None:
                sums.cached += block.size
            elif ticket.size:  # else it is a segment
                sums.now += ticket.size
                sums.count += 1
        self._cached = sum(sums.cached for sums in kinds)
        for number, pool in enumerate(self._pools):
            sums = kinds[number % len(kinds)]
            sums.cached += pool.idle
            for ticket in pool.taken.values():
                sums.now += ticket.size
                sums.count += 1
        self._now = [sums.now for sums in kinds]
        self._held = sum(sums.held for sums in kinds)
        return kinds

    def _recover_segments(self) -> None:
        """Have segments both in a pool and in the books that a Ctrl-C left in one of them."""
        if self._closed:
            return
        known = {segment for pool in self._pools for segment in pool.segments}
        for block in self._blocks.keys() - known:
            ticket = block.ticket
            if block.way in {ASYNC, DIRECT} and ticket is not None and not ticket.size:
                is_large = block.size > self._shared
                self._pools[block.index + is_large * len(MEMORY_TYPES)].recover(block)
        self._blocks.update(dict.fromkeys(known))

    def _lost_in_hand(self) -> dict[int, int]:
        """Return memory in hand that is in no books, like `_in_hand`; under the lock."""
        self._recover_segments()
        known = {block.address for block in self._blocks}
        return {key: each for key, each in self._in_hand.copy().items() if each not in known}


class _Sums:
    """The bytes of one kind of memory, and its number of allocations.

    `pooled` are those held from the driver's stream-ordered allocator.
    """

    __slots__ = ("cached", "count", "held", "now", "pooled")

    def __init__(self) -> None:
        self.cached = self.count = self.held = self.now = self.pooled = 0
