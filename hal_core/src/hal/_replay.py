"""Issue a recording's native calls on a stream, a part at a time (rules C4 and Q1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hal._instances import Replica
    from hal._peers import Visit
    from hal._program import Program
    from hal._slots import Late, Table

__all__ = ["Replay"]


class Replay:
    """One execution of a recording on a stream; how many launches that takes, and is left.

    A native stream blocks its caller when too many launches are in flight, so the
    queue issues a long recording in parts (`hal._stream`). One thread at a time uses it.
    """

    __slots__ = ("_done", "_program", "left", "replica", "table", "visits")

    def __init__(self, program: Program, table: Table | Late | None, count: int) -> None:
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
