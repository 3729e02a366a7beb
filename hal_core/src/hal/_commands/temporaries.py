"""The temporaries of a recording: memory that lives within it (rules C1 and M3).

All temporaries of a recording are parts of one block, which each execution reserves when it
is issued and gives back behind itself. Recording decides where each lies in the block:
the bytes of one that has ended serve a later one, if the commands
that use the two are ordered, by a barrier between them or by their bytes
(``hazards="auto"``). The rejected alternative were allocation nodes of native graphs: an instance
with them can run once at a time, their pool counts nowhere, and streams have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hal._memory.blocks import aligned

if TYPE_CHECKING:
    from hal._commands.slots import Slots

__all__ = ["Arena", "Life"]


class Life:
    """The life of one temporary.

    Attributes
    ----------
    start, size
        Its bytes in the block.
    is_over
        Whether it was given back.
    """

    __slots__ = ("dtype", "is_over", "size", "slots", "start")

    def __init__(self, slots: Slots, start: int, size: int, dtype: np.dtype[Any]) -> None:
        self.slots = slots
        self.start = start
        self.size = size
        self.dtype = dtype
        self.is_over = False


class Arena:
    """The layout of a recording's temporaries in their block; one thread uses it.

    Attributes
    ----------
    size
        The bytes of the block.
    """

    __slots__ = ("_barriers", "_free", "_is_ordered", "size")

    def __init__(self, *, is_ordered: bool) -> None:
        """Begin without temporaries; `is_ordered` if the bytes that commands touch order them."""
        self._is_ordered = is_ordered
        self._barriers = 0
        # Start and end of unused bytes, and the barrier after which they became unused
        self._free: list[tuple[int, int, int]] = []
        self.size = 0

    def barrier(self) -> None:
        """Order all commands so far before all that follow."""
        self._barriers += 1

    def take(self, size: int) -> int:
        """Return the start of `size` > 0 bytes: in the smallest gap that fits, or at the end."""
        need = aligned(size)
        best: tuple[int, int] | None = None
        for start, stop in self._gaps():
            if stop - start >= need and (best is None or stop - start < best[1] - best[0]):
                best = start, stop
        if best is None:
            last = self._gaps()[-1:]
            start = last[0][0] if last and last[0][1] == self.size else self.size
        else:
            start = best[0]
        self._cut(start, start + need)
        self.size = max(self.size, start + need)
        return start

    def give(self, start: int, size: int) -> None:
        """Give bytes to later temporaries, as far as those are ordered after their use."""
        need = aligned(size)
        self._free.append((start, start + need, self._barriers))
        self._free.sort()

    def _gaps(self) -> list[tuple[int, int]]:
        """Return the bytes that can be used now, neighbours joined."""
        gaps: list[tuple[int, int]] = []
        for start, stop, barriers in self._free:
            if barriers == self._barriers and not self._is_ordered:
                continue
            if gaps and gaps[-1][1] == start:
                gaps[-1] = gaps[-1][0], stop
            else:
                gaps.append((start, stop))
        return gaps

    def _cut(self, start: int, stop: int) -> None:
        """Remove bytes from the unused ones."""
        rest = []
        for begin, end, barriers in self._free:
            if end <= start or stop <= begin:
                rest.append((begin, end, barriers))
                continue
            if begin < start:
                rest.append((begin, start, barriers))
            if stop < end:
                rest.append((stop, end, barriers))
        self._free = sorted(rest)
