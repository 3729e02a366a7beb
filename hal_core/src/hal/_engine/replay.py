"""Issue many native calls of one operation on a stream, a part at a time (rules C4 and Q1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hal._commands.instances import Replica
    from hal._commands.slots import Late, Table
    from hal._engine.operation import Operation
    from hal._memory.peers import Visit
    from hal._memory.storage import Transient

__all__ = ["Housed", "Plan", "Replay", "Replayed"]


class Replayed(Protocol):
    """What makes the native calls: a recording, a long fill."""

    def replay(self, replay: Replay, stream: int, start: int, end: int, /) -> None:
        """Make the calls from `start` to before `end`."""


class Plan:
    """How an operation is issued that takes more than one native call.

    One thread at a time uses it, the holder of its queue's baton.

    Attributes
    ----------
    left
        How many native launches are left.
    is_starved
        Whether it found no memory; nothing was enqueued then.
    """

    __slots__ = ("is_starved", "left")

    def __init__(self, count: int) -> None:
        self.left = count
        self.is_starved = False

    def issue(self, operation: Operation, most: int) -> int:
        """Make the next native calls, `most` at most, and return how many those were."""
        raise NotImplementedError


class Replay(Plan):
    """One execution of a recording on a stream; how many launches that takes, and is left.

    A native stream blocks its caller when too many launches are in flight, so the
    queue issues a long recording in parts (`hal._engine.stream`).
    """

    __slots__ = ("_done", "_program", "replica", "table", "visits")

    def __init__(self, program: Replayed, table: Table | Late | None, count: int) -> None:
        super().__init__(count)
        self._program = program
        self.table = table  # None: the recording has no slots
        self.replica: Replica | None = None  # bound to the table, from the first part on
        self._done = 0
        self.visits: tuple[Visit, ...] = ()  # to memory of other devices, see `hal._memory.peers`

    def issue(self, operation: Operation, most: int) -> int:
        """Make the next native calls, `most` at most, and return how many those were."""
        if not self._done:
            for visit in self.visits:
                visit.begin()
        count = min(self.left, most)
        stream = operation._queue._stream
        self._program.replay(self, stream, self._done, self._done + count)
        self._done += count
        self.left -= count
        return count


class Housed(Plan):
    """An execution with temporaries: their memory is reserved before it and given back behind it.

    Attributes
    ----------
    storage
        The memory of the temporaries.
    inner
        What is executed.
    """

    __slots__ = ("arguments", "inner", "storage")

    def __init__(
        self, storage: Transient, inner: Callable[..., object] | Plan, arguments: tuple[Any, ...]
    ) -> None:
        super().__init__(inner.left if isinstance(inner, Plan) else 1)
        self.storage = storage
        self.inner = inner
        self.arguments = arguments

    def issue(self, operation: Operation, most: int) -> int:
        """Reserve the memory with the first part, and give it back with the last one."""
        storage, inner = self.storage, self.inner
        if storage._ticket is None:
            self.is_starved = not storage._heap.take(operation._queue, storage)
            if self.is_starved:
                return 0
        if isinstance(inner, Plan):
            made = inner.issue(operation, most)
            self.left = inner.left
        else:
            inner(operation._queue._stream, *self.arguments)
            made, self.left = 1, 0
        if not self.left:
            storage._heap.give(storage, operation)
        return made
