"""The books of a device's memory: which blocks exist, which are in use, and the sums (rule M1).

Native allocation is slow and native frees may block until the device is idle, so an
unused block goes to the *cache*, and the next allocation of its size class takes it from there
without a native call. It may be reused at once: its storage died, so every operation that used
it has retired.

The cache has a bucket for each size class and cuts nothing. Best fit with pieces, as memory of
`Queue.alloca` has it (`hal._memory.segment_pool`), would waste less of each block, but one
long-lived piece keeps a whole segment. So long-lived memory has blocks and short-lived memory
has segments, and they do not mix.

The limit counts what was allocated natively, not what was asked for: what a size class adds, the
cache and unused parts of segments are taken from everybody else on the device as well. Imported
memory is not counted: hal neither made it nor can free it.

Two facts are primary: the list of the blocks with their leases, and what is taken of each pool.
Each change of these is one store: a block with the lease `GONE` is no longer of the list. Places in
the list, buckets, free pieces and sums are derived, and a mark is set while they change. A Ctrl-C
leaves the mark, and the next call rebuilds them all (`_mend`). The rejected alternative, an
order of steps for every change that an interrupt may cut short anywhere, needs a repair for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from hal._base import sync
from hal._base.numbers import BooksNumbers
from hal._memory.blocks import ASYNC, CACHED, FOREIGN, GONE, POOLED, Block, BlockLease, block_size
from hal._memory.segment_pool import SEGMENT, Piece, Segment, SegmentPool
from hal._memory.usage import MEMORY_TYPES
from hal.errors import OutOfMemoryError

if TYPE_CHECKING:
    import weakref
    from collections.abc import Sequence

    from hal._engine.operation import Operation
    from hal._engine.stream import StreamQueue
    from hal._memory.storage import Storage, Transient


_TOLD: Final = 4
"""The most allocations that an error lists one by one."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory that a device has allocated through hal, of one kind or of all.

    An allocation of `Queue.alloca` counts from its issue to the issue of its
    dealloca. Imported memory is not counted.

    Attributes
    ----------
    bytes_now, bytes_peak
        Bytes asked for by allocations that exist now, and the most since
        the device was opened or the peak was reset.
    bytes_cached
        Unused bytes that are kept for the next allocation: in the
        cache, in segments, in the driver's pool.
    bytes_held
        Bytes allocated natively: the cached ones, those asked for, what size
        classes add to them, and those about to be given back.
    allocations
        Allocations that exist now.
    """

    bytes_now: int
    bytes_peak: int
    bytes_cached: int
    bytes_held: int
    allocations: int


class Books(BooksNumbers):
    """The blocks of one native device, their uses, and the sums over them.

    Its lock is a leaf, and no native call is made under it. The caller of a method holds it.
    """

    __slots__ = (
        "_buckets",
        "_is_broken",
        "blocks",
        "held",
        "imports",
        "limit",
        "lock",
        "now",
        "peak",
        "peaks",
        "pools",
        "unused",
    )

    def __init__(self, limit: int | None) -> None:
        self.lock: Final = sync.LeafLock()
        # The most bytes that hal may hold; None means that only the device limits it
        self.limit = limit
        # Each knows its place: a dictionary cost a pair of alloca and dealloca a twelfth.
        self.blocks: list[Block] = []
        # The storage of each block of pinned host memory that is the user's
        self.imports: dict[Block, weakref.ref[Storage]] = {}
        # Small pieces have segments of their own: one that lives long would keep a large segment
        # from being used whole.
        shared = SEGMENT if limit is None else min(SEGMENT, block_size(limit // 16 or 1))
        large = [SegmentPool(index, 0, None) for index in range(len(MEMORY_TYPES))]
        small = [SegmentPool(each.index, shared, each) for each in large]
        # Those of small pieces for each kind of memory, then those of large ones
        self.pools = tuple(small + large)
        # Derived
        self._is_broken = False
        # Block size + index of the memory's kind -> unused blocks, the most recently used last
        self._buckets: dict[int, list[Block]] = {}
        self.unused = 0  # bytes in the cache and in free pieces
        # Bytes of the driver's pool. The next two leave them out: a pair of alloca and dealloca
        # changes one number, not three.
        self.pooled = 0
        self.held = 0  # bytes of all blocks that are not foreign
        self.now = [0] * len(MEMORY_TYPES)  # bytes asked for by kind
        # The most bytes asked for of each kind so far, and of all kinds together
        self.peaks = [0] * len(MEMORY_TYPES)
        self.peak = 0

    # Blocks

    def has(self, key: int) -> bool:
        """Return whether the cache seems to have a block; needs no lock."""
        return bool(self._buckets.get(key))

    def take(self, key: int, storage: Storage) -> None:
        """Give a storage a block of the cache, if there is one."""
        self._begin()
        bucket = self._buckets.get(key)
        if bucket:
            block = bucket.pop()
            storage._lease = lease = BlockLease(block, storage.size)
            block.lease = lease
            self.unused -= block.size
            self._count(block.index, storage.size)
        self._is_broken = False

    def put_back(self, lease: BlockLease) -> None:
        """Put a block whose use has ended into the cache."""
        block = lease.block
        self._begin()
        block.lease = None
        block.bucket.append(block)
        self.unused += block.size
        self.now[block.index] -= lease.size
        self._is_broken = False

    def add(self, lease: BlockLease) -> None:
        """Register a new block.

        The lease of hal's own memory has 0 bytes, so that it is no allocation before `begin_use`.
        """
        block = lease.block
        self._begin()
        block.lease = lease
        block.place = len(self.blocks)
        self.blocks.append(block)
        if block.way == ASYNC:
            self.pooled += block.size
        elif block.way != FOREIGN:
            self.held += block.size
        self._is_broken = False

    def begin_use(self, lease: BlockLease, size: int, way: int) -> None:
        """Count a registered block as in use."""
        block = lease.block
        self._begin()
        if way == CACHED:
            block.bucket = self._buckets.setdefault(block.size + block.index, [])
        block.way = way
        lease.size = size
        self._count(block.index, 0 if way == ASYNC else size)
        self._is_broken = False

    def withdraw(self, lease: BlockLease) -> None:
        """Take an unused block or segment out of its bucket or pool; the lease has 0 bytes."""
        block = lease.block
        self._begin()
        block.lease = lease
        if isinstance(block, Segment):
            block.pool.drop(block)
        else:
            block.bucket.remove(block)
        self.unused -= block.size
        self._is_broken = False

    def remove(self, lease: BlockLease) -> bool:
        """Remove a block that is about to be freed; False if that use of it has ended before."""
        # Before the free, not after it: a Ctrl-C in between leaks the block, while one that was
        # freed and still is in the books would be used again.
        block = lease.block
        self._begin()
        blocks, place = self.blocks, block.place
        # A slice: a block that an interrupt kept from the list has no place there.
        if block.lease is not lease or blocks[place : place + 1] != [block]:
            self._is_broken = False
            return False
        block.lease = GONE
        blocks[place] = last = blocks[-1]
        last.place = place
        blocks.pop()
        if block.way == FOREIGN:
            self.imports.pop(block, None)
        elif block.way == ASYNC:
            self.pooled -= block.size
        else:
            self.now[block.index] -= lease.size
            self.held -= block.size
        self._is_broken = False
        return True

    def surplus(self, keep: int) -> list[Block]:
        """Return unused blocks to free so that at most `keep` bytes are left."""
        self._begin()
        excess = self.unused - keep
        found: list[Block] = []
        if excess > 0:
            # Whole segments come first, since they are large; then the largest and oldest blocks of
            # the cache.
            unused: list[Block] = []
            for pool in self.pools:
                unused += pool.whole()
            for key in sorted(self._buckets, reverse=True):
                unused += self._buckets[key]
            for block in unused:
                if excess <= 0:
                    break
                found.append(block)
                excess -= block.size
        self._is_broken = False
        return found

    # Pieces of segments

    def pool_of(self, size: int, index: int) -> SegmentPool:
        """Return the pool to search first for `size` bytes of a kind of memory; needs no lock."""
        # More than half of a small segment would have one alone, and waste the rest of it. A large
        # segment is as large as the need.
        pool = self.pools[index]
        return pool if size <= pool.unit // 2 else cast("SegmentPool", pool.larger)

    def enter(self, segment: Segment) -> None:
        """Put a registered segment into its pool."""
        self._begin()
        segment.pool.add(segment)
        self.unused += segment.size
        self._is_broken = False

    def take_pieces(self, queue: StreamQueue, storages: Sequence[Transient]) -> bool:
        """Give storages pieces that `queue` may use from its next operation on: all or nothing.

        The caller has the queue's baton.
        """
        self._begin()
        pieces, missing = self._pick(queue, storages)
        for piece, storage in zip(pieces, storages, strict=False):
            if missing:  # none is kept for later, see `StreamOrder.take`
                piece.segment.pool.leave(piece)
            else:
                piece.segment.pool.take(piece, storage)
                self.unused -= piece.size
                self._count(piece.index, storage.size)
        self._is_broken = False
        return not missing

    def give_piece(self, lease: BlockLease, points: tuple[Operation, ...]) -> None:
        """End the use of a piece, once: operations after `points` may have it."""
        piece = cast("Piece", lease.block)
        size = piece.size
        self._begin()
        if piece.segment.pool.give(lease, points):
            self.unused += size
            self.now[piece.index] -= lease.size
        self._is_broken = False

    def missing(self, queue: StreamQueue, storages: Sequence[Transient]) -> list[Transient]:
        """Return the storages that `take_pieces` finds none for; the baton is not needed."""
        self._begin()
        pieces, missing = self._pick(queue, storages)
        for piece in pieces:
            piece.segment.pool.leave(piece)
        self._is_broken = False
        return missing

    @staticmethod
    def _pick(
        queue: StreamQueue, storages: Sequence[Transient]
    ) -> tuple[list[Piece], list[Transient]]:
        """Pick a piece for each storage; return those, and the storages that there is none for."""
        pieces: list[Piece] = []
        missing: list[Transient] = []
        for storage in storages:
            piece = storage.pool.pick(queue, storage.size)
            if piece is None:
                missing.append(storage)
            else:
                pieces.append(piece)
        return pieces, missing

    # Sums

    def _count(self, index: int, size: int) -> None:
        """Count bytes of a kind as in use; none for what the driver's pool has just given."""
        now, pooled = self.now, self.pooled
        here = now[index] = now[index] + size
        if not index:
            here += pooled
        if here > self.peaks[index]:  # noqa: PLR1730 - on the hot path, where a call is dear
            self.peaks[index] = here
        total = now[0] + now[1] + now[2] + pooled
        if total > self.peak:  # noqa: PLR1730 - on the hot path, where a call is dear
            self.peak = total

    def counted(self) -> int:
        """Return the bytes that the limit counts."""
        return self.held + self.pooled

    def check_limit(self, need: int) -> None:
        """Raise `OutOfMemoryError` if `need` more bytes would exceed the limit."""
        limit = self.limit
        if limit is not None:
            held = self.counted()
            if held + need > limit:
                raise OutOfMemoryError(f"memory_limit is {limit:,} bytes, and hal holds {held:,}")

    def survey(self) -> list[Sums]:
        """Return the sums of each kind."""
        kinds = [Sums() for _ in MEMORY_TYPES]
        for block in self.blocks:
            lease = block.lease
            if block.way == FOREIGN:
                continue
            sums = kinds[block.index]
            sums.held += block.size
            if block.way == ASYNC:
                sums.pooled += block.size
            if lease is None:
                sums.cached += block.size
            elif lease.size:
                sums.now += lease.size
                sums.count += 1
        for pool in self.pools:
            sums = kinds[pool.index]
            for piece, lease in pool.taken.items():
                sums.cached -= piece.size
                sums.now += lease.size
                sums.count += 1
        return kinds

    def uses(self) -> list[BlockLease]:
        """Return all uses of blocks and of pieces."""
        leases = [block.lease for block in self.blocks if block.lease is not None]
        for pool in self.pools:
            leases += pool.taken.values()
        return leases

    # Repair

    def _begin(self) -> None:
        """Begin a change of derived state."""
        if self._is_broken:
            self._mend()
        self._is_broken = True

    def _mend(self) -> None:
        """Rebuild all that is derived: something has broken off the last change."""
        segments: dict[SegmentPool, list[Segment]] = {pool: [] for pool in self.pools}
        for bucket in self._buckets.values():
            bucket.clear()
        # One that `remove` was moving when it was cut short stands there twice.
        self.blocks = [block for block in dict.fromkeys(self.blocks) if block.lease is not GONE]
        for place, block in enumerate(self.blocks):
            block.place = place
            if block.lease is None:
                if isinstance(block, Segment):
                    segments[block.pool].append(block)
                else:
                    block.bucket.append(block)
        for pool in self.pools:
            pool.rebuild(segments[pool])
        kinds = self.survey()
        self.pooled = kinds[0].pooled
        self.held = sum([sums.held for sums in kinds]) - self.pooled
        self.now = [sums.now for sums in kinds]
        self.now[0] -= sum([each.size for each in self.uses() if each.block.way == ASYNC])
        self.unused = sum([sums.cached for sums in kinds])

    def close(self) -> None:
        """Empty the cache's buckets, and let anybody have all free pieces: no queue is left.

        Blocks that are unused or become it are surplus then.
        """
        self._begin()
        for pool in self.pools:
            pool.forget_points()
        self._mend()
        self._is_broken = False


class Sums:
    """The bytes of one kind of memory, and its number of allocations.

    `pooled` are those held from the driver's stream-ordered allocator.
    """

    __slots__ = ("cached", "count", "held", "now", "pooled")

    def __init__(self) -> None:
        self.cached = self.count = self.held = self.now = self.pooled = 0


def tell_holders(books: Books) -> str:
    """Describe what holds the memory, the largest first, and since when."""
    with books.lock:
        kinds = books.survey()
        uses = books.uses()
    uses = [use for use in uses if use.size and use.block.way != FOREIGN]
    uses.sort(key=lambda use: -use.size)
    now = sync.monotonic()
    largest = [
        f"{use.size:,} bytes of {use.block.memory.value} memory by "
        f"{'an alloca' if use.block.way in {ASYNC, POOLED} else 'an allocation'} for "
        f"{max(now - use.since, 0):.3g} s"
        for use in uses[:_TOLD]
    ]
    more = f", and {len(uses) - _TOLD} smaller ones" if len(uses) > _TOLD else ""
    held = f" ({', '.join(largest)}{more})" if largest else ""
    plural = "" if len(uses) == 1 else "s"
    return (
        f"{sum(sums.now for sums in kinds):,} bytes in {len(uses)} allocation{plural}{held} "
        f"and {sum(sums.cached for sums in kinds):,} in its cache"
    )
