"""Issue many native calls of one operation on a stream, a part at a time (rules C4 and Q1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hal._instances import Replica
    from hal._peers import Visit
    from hal._slots import Late, Table

__all__ = ["Replay", "Replayed"]


class Replayed(Protocol):
    """What makes the native calls: a recording, a long fill."""

    def replay(self, replay: Replay, stream: int, start: int, end: int, /) -> None:
        """Make the calls from `start` to before `end`."""


class Replay:
    """One execution of a recording on a stream; how many launches that takes, and is left.

    A native stream blocks its caller when too many launches are in flight, so the
    queue issues a long recording in parts (`hal._stream`). One thread at a time uses it.
    """

    __slots__ = ("_done", "_program", "left", "replica", "table", "visits")

    def __init__(self, program: Replayed, table: Table | Late | None, count: int) -> None:
        self._program = program
        self.table = table  # None: the recording has no slots
        self.replica: Replica | None = None  # bound to the table, from the first part on
        self._done = 0
        self.left = count
        self.visits: tuple[Visit, ...] = ()  # to memory of other devices, see `hal._peers`

    def issue(self, stream: int, most: int) -> int:
        """Make the next native calls, `most` at most, and return how many those were."""
        if not self._done:
            for visit in self.visits:
                visit.begin()
        count = min(self.left, most)
        self._program.replay(self, stream, self._done, self._done + count)
        self._done += count
        self.left -= count
        return count
