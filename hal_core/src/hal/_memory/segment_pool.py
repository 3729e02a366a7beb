"""Memory that queues take and give back in the order of their streams (rule M3).

A native allocation, a *segment*, is cut into *pieces*, which are in use or free. Where the
driver allocates and frees in the order of streams, segments may come from its pool: then
`hal._memory.heap` has one larger segment made in the place of idle ones. A piece
that a dealloca gives back on a queue may be reused at once by what that queue issues
next, because the stream runs it afterwards; by another queue as soon as its stream has waited
past the dealloca; and by anybody once the dealloca has retired: then the piece is
*settled*. So a free piece knows its *points*, the operations that it comes after. Free
neighbours become one piece where their points allow that.

Sizes are found by best fit, in lists by the queue of the point. Size classes, as for
longer-lived memory (`hal._memory.books`), would waste up to an eighth of every
temporary, and temporaries make the peak.

One dictionary holds what is in use, and one store writes to it. A Ctrl-C in the
middle of any other change leaves a mark. The next call then rebuilds all free pieces from
that dictionary.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from hal._engine.operation import is_behind, is_over
from hal._memory.blocks import POOLED, Block, Ticket, aligned

if TYPE_CHECKING:
    from hal._engine.operation import Operation
    from hal._engine.stream import StreamQueue
    from hal._memory.storage import Transient

__all__ = ["SEGMENT", "Piece", "StreamMemory"]

_SETTLED: Final = -1
"""The key of the pieces that anybody may use; that of the others is their queue's id."""
_MIXED: Final = -2
"""The key of the pieces after operations of several queues: nobody takes them yet."""


SEGMENT: Final = 2 << 20
"""Bytes of a small segment; drivers give out device memory in units of this size."""


class Piece(Block):
    """A part of a segment.

    Attributes
    ----------
    segment
        The native allocation that it is part of.
    before, after
        Its neighbours there; None at the ends.
    points
        The operations that it comes after, while it is free.
    is_free
        Whether it is in a list of free pieces.
    """

    __slots__ = ("after", "before", "is_free", "points", "segment")

    def __init__(self, segment: Block, start: int, size: int) -> None:
        host = segment.host_address
        super().__init__(
            segment.address + start,
            size,
            segment.memory,
            None if host is None else host + start,
            POOLED,
        )
        self.segment = segment
        self.before: Piece | None = None
        self.after: Piece | None = None
        self.points: tuple[Operation, ...] = ()
        self.is_free = False


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
        """Return all pieces of at least `size` bytes, smallest first.

        Not a generator: Python drops a Ctrl-C that comes while it closes one.
        """
        sizes = self._sizes[bisect_left(self._sizes, size) :]
        return [piece for each in sizes for piece in self._by_size[each]]


class StreamMemory:
    """The segments of one kind of memory of a device. The heap's lock guards all of it.

    Attributes
    ----------
    idle
        Bytes of its segments that are not in use.
    taken
        The pieces in use, each with the ticket of its use.
    """

    __slots__ = ("_free", "_is_broken", "_last", "_segments", "_unsettled", "idle", "taken")

    def __init__(self) -> None:
        self._segments: dict[Block, None] = {}
        self.taken: dict[Piece, Ticket] = {}
        self.idle = 0
        self._last: dict[int, Operation] = {}  # the last point of each queue, see `_mend`
        self._is_broken = False
        self._begin()

    def _begin(self) -> None:
        """Start without free pieces."""
        self._free: dict[int, _FreePieces] = {_SETTLED: _FreePieces()}
        # For each list the pieces added to it, in the order of their points, with those
        self._unsettled: dict[int, deque[tuple[Piece, tuple[Operation, ...]]]] = {}

    def take(self, queue: StreamQueue, storage: Transient) -> bool:
        """Give a storage a piece that `queue` may use from its next operation on, if there is one.

        The caller has the queue's baton.
        """
        self._mend()
        need = aligned(storage.size)
        piece = self._find(queue, need)
        if piece is None:
            return False
        self._is_broken = True
        self._remove(piece)
        if piece.size > need:
            self._cut(piece, need)
        ticket = Ticket(piece, storage.size)
        storage._ticket = ticket
        piece.ticket = ticket
        self.taken[piece] = ticket
        self.idle -= piece.size
        self._is_broken = False
        return True

    def give(self, ticket: Ticket, points: tuple[Operation, ...]) -> bool:
        """End a use: operations after `points` may have the piece; False if it had ended before."""
        piece = cast("Piece", ticket.block)
        if self.taken.get(piece) is not ticket:
            return False
        self._mend()
        for point in points:
            self._last[point._queue._id] = point
        self._is_broken = True
        del self.taken[piece]
        piece.ticket = None
        self.idle += piece.size
        self._add(piece, points)
        self._is_broken = False
        self._settle(2)  # two per piece added, so that a loop of takes and gives leaves none
        return True

    def has(self, queue: StreamQueue, size: int) -> bool:
        """Return whether `take` would find a piece now. The caller need not have the baton."""
        self._mend()
        return self._find(queue, aligned(size)) is not None

    def add_segment(self, segment: Block, points: tuple[Operation, ...] = ()) -> None:
        """Add a native allocation; all of it is free for what comes after `points`."""
        self._mend()
        for point in points:
            self._last[point._queue._id] = point
        self._is_broken = True
        piece = Piece(segment, 0, segment.size)
        self._segments[segment] = None
        self.idle += segment.size
        self._add(piece, points)
        self._is_broken = False

    def recover(self, segment: Block) -> None:
        """Add a segment again that a Ctrl-C has kept from being freed."""
        self._segments[segment] = None
        self._is_broken = True

    @property
    def segments(self) -> list[Block]:
        """Return all segments."""
        return list(self._segments)

    def unused(self, queue: StreamQueue | None = None) -> int:
        """Return the bytes of segments that nobody uses, or none that `queue` is not behind."""
        return sum(pieces[0].segment.size for pieces in self._whole(queue))

    def idle_segment(self, queue: StreamQueue | None = None) -> Block | None:
        """Give up the largest segment that nobody uses, and return it; None if there is none.

        With a queue also one that only what the queue issues from now on may have; the
        caller has its baton.
        """
        pieces = max(self._whole(queue), key=lambda each: each[0].segment.size, default=None)
        if pieces is None:
            return None
        segment = pieces[0].segment
        self._is_broken = True
        for piece in pieces:
            self._remove(piece)
            self.idle -= piece.size
        del self._segments[segment]  # last: until then all of it is found anew
        self._is_broken = False
        return segment

    def _whole(self, queue: StreamQueue | None) -> list[list[Piece]]:
        """Return the pieces of the segments all of whose bytes are free, for a queue or anybody."""
        self._mend()
        self._settle()
        found: dict[Block, list[Piece]] = {}
        lists = self._free.values() if queue is not None else (self._free[_SETTLED],)
        for pieces in lists:
            for piece in pieces.at_least(1):
                if queue is None or _is_past(piece, queue):
                    found.setdefault(piece.segment, []).append(piece)
        return [
            each for segment, each in found.items() if segment.size == sum(p.size for p in each)
        ]

    def close(self) -> list[tuple[Block, list[Ticket]]]:
        """End all uses except those that a numpy view shows; return each segment with these."""
        uses: dict[Block, list[Ticket]] = {segment: [] for segment in self._segments}
        for piece, ticket in list(self.taken.items()):
            if piece.is_viewed():
                uses[piece.segment].append(ticket)
            else:
                self.give(ticket, ())
        return list(uses.items())

    def abandoned(self, piece: Block) -> Block | None:
        """Remove the segment of a piece that was given back, unless more of it is in use."""
        segment = cast("Piece", piece).segment
        if any(other.segment is segment for other in self.taken):
            return None
        self._segments.pop(segment, None)
        return segment

    # Finding

    def _find(self, queue: StreamQueue, need: int) -> Piece | None:
        own, settled = self._free.get(queue._id), self._free[_SETTLED]
        best = None if own is None else own.find(need)
        other = settled.find(need)
        if best is None or (other is not None and other.size < best.size):
            best = other
        if best is None and self._settle():
            best = settled.find(need)
        if best is None and own is not None:
            best = self._gather(own, queue._id, need)
        return best or self._find_waited(queue, need)

    def _find_waited(self, queue: StreamQueue, need: int) -> Piece | None:
        """Return a piece of another queue whose point the stream has waited past."""
        for key, free in self._free.items():
            seen = queue._seen.get(key, 0)
            if seen:
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
                self._is_broken = True
                points: tuple[Operation, ...] = ()
                for each in run:
                    self._remove(each)
                    points = _later(points, each.points)
                whole = run.popleft()
                for each in run:
                    self._join(whole, each)
                self._put(whole, points)
                self._is_broken = False
                return whole
        return None

    @staticmethod
    def _may_join(piece: Piece, key: int) -> bool:
        return piece.is_free and (not piece.points or _key(piece.points) == key)

    # Free pieces

    def _add(self, piece: Piece, points: tuple[Operation, ...]) -> None:
        """Add a piece to the free ones, joined with neighbours of the same list."""
        key = _key(points)
        if key != _MIXED:
            for other in (piece.before, piece.after):
                if other is not None and other.is_free and _key(other.points) == key:
                    self._remove(other)
                    if other is piece.before:
                        self._join(other, piece)
                        piece = other
                    else:
                        self._join(piece, other)
        self._put(piece, points)  # of one queue these are the later ones

    def _put(self, piece: Piece, points: tuple[Operation, ...]) -> None:
        key = _key(points)
        piece.points = points
        piece.is_free = True
        free = self._free.get(key)
        if free is None:
            free = self._free[key] = _FreePieces()
        free.add(piece)
        if points:
            unsettled = self._unsettled.get(key)
            if unsettled is None:
                unsettled = self._unsettled[key] = deque()
            unsettled.append((piece, points))

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
                if piece.is_free and piece.points is points:
                    if not all(map(is_over, points)):
                        break
                    self._is_broken = True
                    self._remove(piece)
                    self._add(piece, ())
                    self._is_broken = False
                    is_any = True
                unsettled.popleft()
                left -= 1
        return is_any

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

    def _mend(self) -> None:
        """Rebuild the free pieces if a Ctrl-C has cut a change short.

        Each comes after the last dealloca of every queue, since its own point is unknown. The
        operations in flight do not suffice: a dealloca that is being issued is not among them yet.
        """
        if not self._is_broken:
            return
        self._last = {key: last for key, last in self._last.items() if not last._retired}
        points = tuple(self._last.values())
        self._begin()
        used: dict[Block, list[Piece]] = {segment: [] for segment in self._segments}
        for piece in self.taken:
            used[piece.segment].append(piece)
        self.idle = 0
        for segment, pieces in used.items():
            last: Piece | None = None
            start = 0
            pieces.sort(key=lambda piece: piece.address)
            for piece in pieces:
                stop = piece.address - segment.address
                if start < stop:
                    last = self._fill_gap(last, segment, start, stop, points)
                last = _chain(last, piece)
                start = stop + piece.size
            if start < segment.size:
                self._fill_gap(last, segment, start, segment.size, points)
        self._is_broken = False

    def _fill_gap(
        self,
        last: Piece | None,
        segment: Block,
        start: int,
        stop: int,
        points: tuple[Operation, ...],
    ) -> Piece:
        """Append a free piece after the last one of a segment."""
        gap = Piece(segment, start, stop - start)
        self.idle += gap.size
        _chain(last, gap)
        self._put(gap, points)
        return gap


def _chain(last: Piece | None, piece: Piece) -> Piece:
    """Append a piece to another one of its segment."""
    piece.before, piece.after = last, None
    if last is not None:
        last.after = piece
    return piece


def _is_past(piece: Piece, queue: StreamQueue) -> bool:
    """Return whether what a queue issues from now on comes after all points of a piece."""
    for point in piece.points:
        if point._queue is not queue and not is_behind(point, queue):
            return False
    return True


def _key(points: tuple[Operation, ...]) -> int:
    """Return the list that pieces with these points are in."""
    if not points:
        return _SETTLED
    return points[0]._queue._id if len(points) == 1 else _MIXED


def _later(one: tuple[Operation, ...], other: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return the later of the points of two pieces in the same queue's list, or settled ones."""
    if not one or not other or one is other:
        return one or other
    # One without a sequence number is still being issued, so it is the later one.
    first, second = getattr(one[0], "_sequence", 1 << 62), getattr(other[0], "_sequence", 1 << 62)
    return one if first >= second else other
