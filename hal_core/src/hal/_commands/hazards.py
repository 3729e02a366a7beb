"""Derive the least order of commands from the bytes that they touch (rule C2).

Two commands conflict if they touch a common byte and one of them writes it.
The least set of edges that orders all such pairs is the transitive reduction
of the conflicts: one edge for each pair that no path through others orders.

Whether a path orders a pair is one look at a bit: each command that may still be a predecessor has
an integer with the bits of all its ancestors. To search for a path instead would walk
the graph for each pair. The integers take a bit for each earlier command, so those of commands
that cannot be predecessors any more are dropped now and then, and a barrier starts anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

END: Final = 1 << 62
"""The end of memory of unknown size."""

_SWEEP: Final = 4096
"""The number of commands whose ancestors are kept before useless ones are dropped."""


class Access(NamedTuple):
    """The bytes from `start` up to `stop` of a memory, which a command touches."""

    memory: int
    start: int
    stop: int
    writes: bool


class _HazardRange:
    """The last writer of a range of bytes, and its readers since."""

    __slots__ = ("readers", "writer")

    def __init__(self, writer: int, readers: list[int]) -> None:
        self.writer = writer  # -1: nobody
        self.readers = readers


class _HazardMap:
    """The segments of one memory, in order; each ends where the next one starts."""

    __slots__ = ("segments", "starts")

    def __init__(self) -> None:
        self.starts = [0]
        self.segments = [_HazardRange(-1, [])]

    def _split(self, place: int) -> int:
        """Have a segment start at a place; return its index."""
        starts, segments = self.starts, self.segments
        index = bisect_left(starts, place)
        if index == len(starts) or starts[index] != place:
            before = segments[index - 1]
            starts.insert(index, place)
            segments.insert(index, _HazardRange(before.writer, before.readers[:]))
        return index

    def read(self, start: int, stop: int, reader: int, covered: int) -> None:
        """Note a reader; `covered` has the bits of its ancestors and its own."""
        first, last = self._split(start), self._split(stop)
        for segment in self.segments[first:last]:
            readers = segment.readers
            if readers and covered >> readers[-1] & 1:
                # Later commands come after this one, and so after the one replaced.
                readers[-1] = reader
            else:
                readers.append(reader)

    def write(self, start: int, stop: int, writer: int) -> None:
        """Note a writer: later users of the bytes need to know no other one."""
        first, last = self._split(start), self._split(stop)
        self.starts[first:last] = [start]
        self.segments[first:last] = [_HazardRange(writer, [])]


class Hazards:
    """The direct predecessors of each command, from commands taken one by one.

    Commands are numbered from 0 in the order in which they come.
    """

    __slots__ = ("_base", "_limit", "_memories", "_next", "_reach")

    def __init__(self) -> None:
        self._memories: dict[int, _HazardMap] = {}
        self._next = 0
        self._base = 0  # subtracted from numbers, so that bit sets stay short
        # Per command that may still be a predecessor: bits for itself and every ancestor
        self._reach: dict[int, int] = {}
        self._limit = _SWEEP

    def add(self, accesses: Sequence[Access]) -> list[int]:
        """Take the next command; return its direct predecessors, the latest first."""
        number = self._next - self._base
        self._next += 1
        found: set[int] = set()
        for memory, start, stop, writes in accesses:
            self._find(memory, start, stop, found, writes=writes)
        # From the latest on: an earlier one that a later one has waited for needs no edge.
        predecessors: list[int] = []
        covered = 0
        for candidate in sorted(found, reverse=True):
            if not covered >> candidate & 1:
                predecessors.append(candidate + self._base)
                covered |= self._reach[candidate]
        covered |= 1 << number
        self._reach[number] = covered
        # Its own writes replace its reads.
        for memory, start, stop, writes in sorted(accesses, key=lambda access: access.writes):
            kept = self._memories.setdefault(memory, _HazardMap())
            if writes:
                kept.write(start, stop, number)
            else:
                kept.read(start, stop, number, covered)
        if len(self._reach) > self._limit:
            self._sweep()
        return predecessors

    def restart(self) -> None:
        """Forget all commands so far: all that follow are ordered behind them."""
        self._memories.clear()
        self._reach.clear()
        self._base = self._next

    def _find(self, memory: int, start: int, stop: int, found: set[int], *, writes: bool) -> None:
        """Add the commands that an access conflicts with, unless others already cover them."""
        kept = self._memories.get(memory)
        if kept is None:
            return
        starts, segments = kept.starts, kept.segments
        index = bisect_right(starts, start) - 1
        while index < len(starts) and starts[index] < stop:
            segment = segments[index]
            # Readers came after the writer, so that to come after them is enough.
            if writes and segment.readers:
                found.update(segment.readers)
            elif segment.writer >= 0:
                found.add(segment.writer)
            index += 1

    def _sweep(self) -> None:
        """Drop the ancestors of commands that cannot be predecessors any more."""
        alive: set[int] = set()
        for memory in self._memories.values():
            for segment in memory.segments:
                alive.update(segment.readers)
                if segment.writer >= 0:
                    alive.add(segment.writer)
        self._reach = {number: self._reach[number] for number in alive}
        self._limit = 2 * len(alive) + _SWEEP


class RangeSet:
    """The bytes of one memory that a recording reads or writes, merged."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in sorted(ranges):
            if self._stops and start <= self._stops[-1]:
                self._stops[-1] = max(self._stops[-1], stop)
            else:
                self._starts.append(start)
                self._stops.append(stop)

    def shifted(self, offset: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges `offset` higher, cut off at `end`."""
        pairs = zip(self._starts, self._stops, strict=True)
        return [(start + offset, min(stop + offset, end)) for start, stop in pairs]

    def meet(self, start: int, stop: int) -> bool:
        """Return whether any byte from `start` up to `stop` is in these ranges."""
        index = bisect_right(self._stops, start)
        return index < len(self._starts) and self._starts[index] < stop and start < stop
