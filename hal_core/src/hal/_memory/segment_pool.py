"""Segments: native allocations that are cut into pieces, in the order of streams (rule M3).

docs/architecture.md, Memory in the order of streams, says what pieces and points are, and when a
piece is settled or recent. The books' lock guards all of it.

Pieces are found by best fit. Size classes, as the cache has them (`hal._memory.books`), would
waste up to an eighth of every temporary, and temporaries make the peak. First fit looks at fewer
pieces, and leaves large ones cut up for small needs.

Free pieces are in lists by the queue of their point, since a queue may have all of its own list
without a look at any operation. One list would be searched past everything that
other queues have just given back. Free neighbours become one piece only if they are in the same
list, or when nothing else is large enough: a settled piece that is joined with one
that comes after a queue's work would be that queue's alone until then.

What a queue has just given back it mostly takes again, in the same size. So such pieces are recent
ones first, neither joined nor searched. A search that finds no other piece, or one more than half
as large again as the need, puts them among the free ones. If each search did, the allocas after it
would have to be searched for, too; if only one that finds none did, more would be held. The C
extension knows recent pieces only.

Only the pieces in use (`taken`) are the truth, and one store writes to them. The free pieces
are the gaps between; the books rebuild them after a Ctrl-C (`hal._memory.books`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from operator import attrgetter
from typing import Final, cast

from hal._engine.operation import Operation, is_behind, is_over
from hal._engine.stream import StreamQueue
from hal._memory.blocks import DIRECT, POOLED, Block, BlockLease, aligned
from hal._memory.storage import Transient
from hal._memory.usage import MEMORY_TYPES

_SETTLED: Final = -1
"""The key of the pieces that anybody may use; that of the others is their queue's id."""
_MIXED: Final = -2
"""The key of the pieces after operations of several queues: nobody takes them yet."""
_ISSUING: Final = 1 << 62
"""Instead of the sequence number of an operation that is being issued: it is the latest one."""
RECENT: Final = 40
"""The bits of the size in the key of recent pieces, below the queue's id; larger ones are not put
aside."""

_MANY_QUEUES: Final = 8
"""The number of queues from which those are forgotten that have ended: a point keeps its queue."""

SEGMENT: Final = 2 << 20
"""Bytes of a small segment; drivers give out device memory in units of this size."""


class Segment(Block):
    """A native allocation that is cut into pieces."""

    __slots__ = ("first", "pool")

    def __init__(self, pool: SegmentPool, size: int) -> None:
        super().__init__(0, size, MEMORY_TYPES[pool.index], None, DIRECT)
        self.pool = pool  # the pool that it is for
        self.first: Piece | None = None  # the piece at its start, while it is in its pool


class Piece(Block):
    """A part of a segment."""

    __slots__ = ("after", "before", "is_free", "points", "segment")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        host = segment.host_address
        super().__init__(
            segment.address + start,
            size,
            segment.memory,
            None if host is None else host + start,
            POOLED,
        )
        self.segment = segment
        self.before: Piece | None = None  # its neighbours there; None at the ends
        self.after: Piece | None = None
        # The operations that it comes after, while it is free
        self.points: tuple[Operation, ...] = ()
        self.is_free = False  # whether it is in a list of free pieces


class _FreePieces:
    """Free pieces by size, the smallest first; of one size, the last added first."""

    __slots__ = ("_by_size", "_sizes")

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._by_size: dict[int, dict[Piece, None]] = {}

    def add(self, piece: Piece) -> None:
        same = self._by_size.get(piece.size)
        if same is None:
            insort(self._sizes, piece.size)
            same = self._by_size[piece.size] = {}
        same[piece] = None

    def remove(self, piece: Piece) -> None:
        same = self._by_size[piece.size]
        del same[piece]
        if not same:
            del self._by_size[piece.size]
            del self._sizes[bisect_left(self._sizes, piece.size)]

    def find(self, size: int) -> Piece | None:
        """Return the smallest piece of at least `size` bytes, or None."""
        position = bisect_left(self._sizes, size)
        if position == len(self._sizes):
            return None
        return next(reversed(self._by_size[self._sizes[position]]))

    def at_least(self, size: int) -> list[Piece]:
        """Return all pieces of at least `size` bytes, smallest first."""
        # A list, not a generator: Python drops a Ctrl-C that comes while it closes one.
        sizes = self._sizes[bisect_left(self._sizes, size) :]
        return [piece for each in sizes for piece in self._by_size[each]]


class SegmentPool:
    """The small or the large segments of one kind of memory; only the books call its methods."""

    __slots__ = (
        "_free",
        "_last",
        "_segments",
        "_unsettled",
        "index",
        "larger",
        "recent",
        "taken",
        "unit",
    )

    def __init__(self, index: int, unit: int, larger: SegmentPool | None) -> None:
        self.index = index  # the kind of memory
        # Bytes of each segment; 0 in a pool of large ones, which are as large as the need
        self.unit = unit
        self.larger = larger  # the pool of larger segments, whose pieces will do as well
        # The pieces in use, each with the lease of its use
        self.taken: dict[Piece, BlockLease] = {}
        self._last: dict[int, Operation] = {}  # the last point of each queue, see `rebuild`
        self._begin()

    def _begin(self) -> None:
        """Start without segments."""
        # By queue and size: pieces that come after one operation of that queue, the latest last,
        # and are in no list of free pieces
        self.recent: dict[int, list[Piece]] = {}
        self._segments: dict[Segment, None] = {}
        self._free = defaultdict[int, _FreePieces](_FreePieces)
        # For each list, the pieces added to it with their points, in the order of these
        self._unsettled = defaultdict[int, deque[tuple[Piece, tuple[Operation, ...]]]](deque)

    def pick(self, queue: StreamQueue, size: int) -> Piece | None:
        """Return a piece that `queue` may use from its next operation on, or None.

        It is no longer free; `take` or `leave` must follow.
        """
        need = aligned(size)
        recent = self.recent.get(queue._id << RECENT | need) if need >> RECENT == 0 else None
        if recent:
            return recent.pop()
        piece = self._find(queue, need)
        if piece is not None:
            self._remove(piece)
            if piece.size > need:
                self._cut(piece, need)
        return piece

    def leave(self, piece: Piece) -> None:
        """Make a piece that was picked free again, after the operations that it came after."""
        self._add(piece, piece.points)

    def take(self, piece: Piece, storage: Transient) -> None:
        """Give a storage a piece that was picked for it."""
        lease = BlockLease(piece, storage.size)
        storage._lease = lease
        piece.lease = lease
        self.taken[piece] = lease

    def give(self, lease: BlockLease, points: tuple[Operation, ...]) -> bool:
        """End a use: operations after `points` may have the piece; False if it had ended before."""
        piece = cast("Piece", lease.block)
        if self.taken.get(piece) is not lease:
            return False
        # Noted first: a repair after that puts the piece behind it.
        for point in points:
            self._last[point._queue._id] = point
        del self.taken[piece]
        piece.lease = None
        if len(points) == 1 and piece.size >> RECENT == 0:
            piece.points = points
            key = points[0]._queue._id << RECENT | piece.size
            self.recent.setdefault(key, []).append(piece)
        else:
            self._add(piece, points)
        return True

    def forget_points(self) -> None:
        """Note that there is no queue any more: rebuilt pieces come after nothing."""
        self._last.clear()

    def add(self, segment: Segment) -> None:
        """Add a segment; anybody may have all of it."""
        segment.lease = None  # from here on it is unused: before, a repair leaves it out
        self._segments[segment] = None
        segment.first = piece = Piece(segment, 0, segment.size)
        self._add(piece, ())

    def drop(self, segment: Segment) -> None:
        """Remove a segment that is free from end to end."""
        piece, segment.first = segment.first, None
        while piece is not None:
            self._remove(piece)
            piece = piece.after
        del self._segments[segment]

    def whole(self) -> list[Segment]:
        """Return the segments that anybody may have all of, the largest first."""
        self._free_recent()
        self._settle()
        found = [segment for segment in self._segments if _is_whole(segment)]
        found.sort(key=attrgetter("size"), reverse=True)
        return found

    # Finding

    def _find(self, queue: StreamQueue, need: int) -> Piece | None:
        """Return a piece of at least `need` bytes that `queue` may use from now on, or None."""
        best = self._best(queue, need)
        if self.recent and (best is None or best.size > need + need // 2):
            self._free_recent()
            best = self._best(queue, need)
        if best is None and self._settle():
            best = self._free[_SETTLED].find(need)
        own = self._free.get(queue._id)
        if best is None and own is not None:
            best = self._gather(own, queue._id, need)
        return best or self._find_waited(queue, need)

    def _best(self, queue: StreamQueue, need: int) -> Piece | None:
        """Return the smallest free piece of the queue's or of anybody's that is large enough."""
        own, settled = self._free.get(queue._id), self._free[_SETTLED].find(need)
        best = None if own is None else own.find(need)
        if best is None or (settled is not None and settled.size < best.size):
            best = settled
        return best

    def _find_waited(self, queue: StreamQueue, need: int) -> Piece | None:
        """Return a piece of another queue whose point the stream has waited past."""
        for key, free in self._free.items():
            seen = queue._seen.get(key, 0)
            if seen:  # else the stream has waited for nothing of that queue
                for piece in free.at_least(need):
                    if is_behind(piece.points[0], queue):
                        return piece
        return None

    def _gather(self, own: _FreePieces, key: int, need: int) -> Piece | None:
        """Join pieces of a queue with settled neighbours, if that makes one large enough."""
        for piece in own.at_least(1):
            run = deque([piece])
            size = piece.size
            while (before := run[0].before) is not None and self._may_join(before, key):
                run.appendleft(before)
                size += before.size
            while (after := run[-1].after) is not None and self._may_join(after, key):
                run.append(after)
                size += after.size
            if size >= need:
                points: tuple[Operation, ...] = ()
                for each in run:
                    self._remove(each)
                    points = _later(points, each.points)
                whole = run.popleft()
                for each in run:
                    self._join(whole, each)
                self._put(whole, points)
                return whole
        return None

    @staticmethod
    def _may_join(piece: Piece, key: int) -> bool:
        return piece.is_free and (not piece.points or _key(piece.points) == key)

    # Free pieces

    def _free_recent(self) -> None:
        """Put recent pieces among the free ones."""
        if not self.recent:
            return
        pieces = [piece for recent in self.recent.values() for piece in recent]
        self.recent.clear()
        pieces.sort(key=_sequence_of)  # a joined piece takes the points of the later one
        for piece in pieces:
            self._add(piece, piece.points)
        self._settle(2 * len(pieces))  # two per piece added, so that a loop leaves none

    def _add(self, piece: Piece, points: tuple[Operation, ...]) -> None:
        """Add a piece to the free ones, joined with neighbours of the same list."""
        key = _key(points)
        if key != _MIXED:
            for other in (piece.before, piece.after):
                if other is not None and other.is_free and _key(other.points) == key:
                    self._remove(other)
                    points = _later(points, other.points)
                    if other is piece.before:
                        self._join(other, piece)
                        piece = other
                    else:
                        self._join(piece, other)
        self._put(piece, points)

    def _put(self, piece: Piece, points: tuple[Operation, ...]) -> None:
        key = _key(points)
        piece.points = points
        piece.is_free = True
        self._free[key].add(piece)
        if points:
            self._unsettled[key].append((piece, points))

    def _remove(self, piece: Piece) -> None:
        self._free[_key(piece.points)].remove(piece)
        piece.is_free = False

    def _settle(self, most: int = 1 << 30) -> bool:
        """Let anybody use pieces whose points have retired, at most `most` of each queue's.

        Returns whether there were any.
        """
        is_any = False
        for unsettled in self._unsettled.values():
            left = most
            while unsettled and left:
                piece, points = unsettled[0]
                # Else the piece was taken or joined since; nobody looked for its entry then.
                if piece.is_free and piece.points is points:
                    if not all(map(is_over, points)):
                        break
                    self._remove(piece)
                    self._add(piece, ())
                    is_any = True
                unsettled.popleft()
                left -= 1
        if len(self._last) > _MANY_QUEUES:
            self._forget_ended()
        return is_any

    def _forget_ended(self) -> None:
        """Forget points that have retired, and lists that are empty, perhaps of closed queues."""
        self._last = {key: last for key, last in self._last.items() if not last._retired}
        for key in [key for key, unsettled in self._unsettled.items() if not unsettled]:
            del self._unsettled[key]
            self._free.pop(key, None)  # empty, too: each of its pieces would be unsettled

    # Pieces

    def _cut(self, piece: Piece, size: int) -> None:
        """Cut a piece, which is in no list, to `size` bytes; the rest becomes free."""
        start = piece.address - piece.segment.address
        rest = Piece(piece.segment, start + size, piece.size - size)
        rest.before, rest.after = piece, piece.after
        if piece.after is not None:
            piece.after.before = rest
        piece.after = rest
        piece.size = size
        self._put(rest, piece.points)

    def _join(self, piece: Piece, after: Piece) -> None:
        """Merge two neighbours, which are in no list."""
        piece.size += after.size
        piece.after = after.after
        if after.after is not None:
            after.after.before = piece

    def rebuild(self, segments: list[Segment]) -> None:
        """Make all free pieces anew, out of the parts of these segments that are not taken."""
        # Each comes after the last dealloca of every queue, since its own point is unknown. To come
        # after all in flight would not suffice: a dealloca that is being issued is not among them.
        self._forget_ended()
        points = tuple(self._last.values())
        self._begin()
        used: dict[Segment, list[Piece]] = {segment: [] for segment in segments}
        for piece in self.taken:
            used[piece.segment].append(piece)
        for segment, pieces in used.items():
            self._segments[segment] = None
            pieces.sort(key=attrgetter("address"))
            last: Piece | None = None
            start = 0
            for taken in [*pieces, None]:
                stop = segment.size if taken is None else taken.address - segment.address
                if start < stop:
                    last = _chain(last, Piece(segment, start, stop - start))
                    self._put(last, points)
                if taken is not None:
                    last = _chain(last, taken)
                    start = stop + taken.size


def _chain(last: Piece | None, piece: Piece) -> Piece:
    """Append a piece to another one of its segment."""
    piece.before, piece.after = last, None
    if last is not None:
        last.after = piece
    else:
        piece.segment.first = piece
    return piece


def _is_whole(segment: Segment) -> bool:
    """Return whether anybody may have all of a segment."""
    piece = segment.first
    while piece is not None:
        if not piece.is_free or piece.points:
            return False
        piece = piece.after
    return True


def _sequence_of(piece: Piece) -> int:
    return piece.points[0]._sequence or _ISSUING


def _key(points: tuple[Operation, ...]) -> int:
    """Return the list that pieces with these points are in."""
    if not points:
        return _SETTLED
    return points[0]._queue._id if len(points) == 1 else _MIXED


def _later(one: tuple[Operation, ...], other: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return the later of the points of two pieces in the same queue's list, or settled ones."""
    if not one or not other or one is other:
        return one or other
    first, second = (each[0]._sequence or _ISSUING for each in (one, other))
    return one if first >= second else other
