"""Plans that touch memory: calls issued in parts, executions with temporaries (Q1, M3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hal._engine.operation import Operation
from hal._engine.plan import Plan
from hal._engine.visits import Visit
from hal._memory.storage import Transient


class Replay(Plan):
    """Many native calls of one operation: a recording's, or those of a long fill.

    A native stream blocks its caller when too many launches are in flight, so the
    queue issues a long replay in parts (`hal._engine.issuing`).
    """

    __slots__ = ("_done", "visits")

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._done = 0
        self.visits: tuple[Visit, ...] = ()  # to memory of other devices, see `hal._memory.peers`

    def replay(self, stream: int, start: int, end: int) -> None:
        """Make the native calls from `start` to before `end`."""
        raise NotImplementedError

    def issue(self, operation: Operation, most: int) -> int:
        """Make the next native calls, at most `most`, and return their number."""
        for visit in self.visits:
            visit.begin()
        count = min(self.left, most)
        self.replay(operation._queue._stream, self._done, self._done + count)
        self._done += count
        self.left -= count
        return count


class Housed(Plan):
    """An execution with temporaries, whose memory it reserves before it and gives back behind."""

    __slots__ = ("arguments", "blocks", "inner")

    def __init__(
        self,
        blocks: tuple[Transient, ...],
        inner: Callable[..., object] | Plan,
        arguments: tuple[Any, ...],
    ) -> None:
        super().__init__(inner.left if isinstance(inner, Plan) else 1)
        self.blocks = blocks
        self.inner = inner
        self.arguments = arguments

    def issue(self, operation: Operation, most: int) -> int:
        """Reserve the memory with the first part, and give it back with the last one."""
        blocks, inner = self.blocks, self.inner
        order = blocks[0]._heap.order
        if blocks[-1]._ticket is None:
            self.is_starved = not order.take(operation, blocks)
            if self.is_starved:
                return 0
        if isinstance(inner, Plan):
            made = inner.issue(operation, most)
            self.left = inner.left
        else:
            inner(operation._queue._stream, *self.arguments)
            made, self.left = 1, 0
        if not self.left:
            for block in blocks:
                order.give(block, operation)
        return made
