"""The oracle of programs short of memory: which allocas may find none.

It knows how each operation ended, and judges whether that may be. An alloca may only
fail when the device rests. What is in use then is what nobody gives back, and what is
given back behind something that cannot go on: another alloca without memory, what the
host does last, or what was not submitted yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Judge", "Operation", "Piece"]


class Operation:
    """An operation.

    Attributes
    ----------
    number
        Its place among all that are submitted.
    previous
        What comes before it in an ordered queue.
    waits
        What it waits for.
    units
        The memory that it needs: of an alloca, or of the temporaries of an execution.
    is_late
        Whether it waits for what the host does last.
    has_failed, inherits
        Whether it has failed, and whether it has as one that it waits for.
    before
        What may hold it up.
    surely
        What has ended when it is issued; of one that inherits, when it ends.
    """

    def __init__(self, number: int, previous: Operation | None, *, units: int = 0) -> None:
        self.number = number
        self.previous = previous
        self.waits: list[Operation] = []
        self.units = units
        self.is_late = False
        self.has_failed = False
        self.before: frozenset[Operation] = frozenset()
        self.surely: frozenset[Operation] = frozenset()

    @property
    def inherits(self) -> bool:
        """Return whether something that it waits for has failed."""
        return any(each.has_failed for each in self.waits)

    def place(self) -> None:
        """Find what comes before it; what does has been placed."""
        others = [*self.waits, *([self.previous] if self.previous else [])]
        self.before = frozenset(others).union(*(each.before for each in others))
        if self.inherits:
            return  # an operation that fails like this waits for nothing else
        found = [*self.waits]
        each = self.previous
        while each is not None:
            found.append(each)
            each = each.previous
        self.surely = frozenset(found).union(*(each.surely for each in found))

    def is_after_the_last(self) -> bool:
        """Return whether it may wait for what the host does last."""
        return self.is_late or any(each.is_late for each in self.before)


class Piece:
    """Memory: its alloca, what uses it, and whether the last of these gives it back."""

    def __init__(self, allocation: Operation) -> None:
        self.allocation = allocation
        self.uses: list[Operation] = []
        self.given = False


class Judge(NamedTuple):
    """Judge how a program ended.

    Attributes
    ----------
    operations
        All of them, in the order in which they were submitted, placed.
    pieces
        All memory.
    room
        How much there is.
    together
        Whether all had been submitted before the first was issued.
    """

    operations: Sequence[Operation]
    pieces: Sequence[Piece]
    room: int
    together: bool

    def too_much(self) -> list[Operation]:
        """Return those that have memory though there surely was not enough."""
        return [
            each
            for each in self.operations
            if each.units and not each.has_failed and self._least(each) > self.room
        ]

    def too_little(self) -> tuple[Operation, ...]:
        """Return those that have found no memory, in no order of which all may have."""
        starved = frozenset(
            each for each in self.operations if each.units and each.has_failed and not each.inherits
        )
        return tuple(self._without_reason(starved, set()))

    def _least(self, operation: Operation) -> int:
        """Return how much memory there is at least in use once an operation has its own."""
        return operation.units + sum(
            piece.allocation.units
            for piece in self.pieces
            if piece.allocation in operation.surely
            and not piece.allocation.has_failed
            and not (piece.given and not any(operation in use.surely for use in piece.uses))
        )

    def _without_reason(
        self, left: frozenset[Operation], seen: set[frozenset[Operation]]
    ) -> frozenset[Operation]:
        """Return the fewest that remain when those fail that may, one after the other."""
        fewest = left
        for each in left:
            rest = left - {each}
            if rest not in seen and self._may_fail(each, left):
                seen.add(rest)
                found = self._without_reason(rest, seen)
                if len(found) < len(fewest):
                    fewest = found
            if not fewest:
                break
        return fewest

    def _may_fail(self, operation: Operation, left: frozenset[Operation]) -> bool:
        """Return whether one may find no memory while none of those that are left has failed."""
        stuck = {
            each
            for each in self.operations
            if each.units and each not in operation.surely and (each in left or not each.has_failed)
        }
        while True:
            # An operation that has its memory blocks no other.
            free = {
                each
                for each in stuck
                if each is not operation
                and not each.before & stuck
                and not each.is_after_the_last()
                and self._most(each, stuck) + each.units <= self.room
            }
            if not free:
                return self._most(operation, stuck) + operation.units > self.room
            stuck -= free

    def _most(self, operation: Operation, stuck: set[Operation]) -> int:
        """Return how much may be in use when an operation finds no memory."""
        return sum(
            piece.allocation.units
            for piece in self.pieces
            if self._may_hold(piece, operation, stuck)
        )

    def _may_hold(self, piece: Piece, operation: Operation, stuck: set[Operation]) -> bool:
        born = piece.allocation
        if born.has_failed or born is operation or operation in born.surely:
            return False
        blocked = stuck - {born} - born.surely
        return not piece.given or any(
            use.is_after_the_last()
            or not blocked.isdisjoint(use.before)
            or (use.number > operation.number and not self.together)
            for use in piece.uses
        )
