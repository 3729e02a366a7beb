"""Sequences of calls: replays, and what takes memory and gives it back (Q1, M3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hal._engine.operation import DONE, Operation
from hal._engine.payload import CallSequence
from hal._engine.visits import Visit
from hal._memory.extent import no_address
from hal._memory.storage import Transient
from hal.errors import OperationError


class Replay(CallSequence):
    """Many native calls of one operation: a recording's, or those of a long fill.

    A native stream blocks its caller when too many launches are in flight, so the
    queue issues a long replay in parts (`hal._engine.issuing`).
    """

    __slots__ = ("_done", "visits")

    def __init__(self, count: int) -> None:
        self.left = count  # set here, as a call of super() costs more than all of this
        self.is_starved = False
        self._done = 0
        self.visits: tuple[Visit, ...] = ()  # to memory of other devices, see `hal._memory.peers`

    def replay(self, stream: int, start: int, end: int) -> None:
        """Make the native calls from `start` to before `end`."""
        raise NotImplementedError

    def issue(self, operation: Operation, most: int) -> int:
        """Make the next native calls, at most `most`, and return their number."""
        for visit in self.visits:
            visit.begin()
        count = self.left if self.left < most else most  # noqa: FURB136 - a call costs more
        self.replay(operation._queue._stream, self._done, self._done + count)
        self._done += count
        self.left -= count
        return count


class _OneCall(CallSequence):
    """One call that takes or gives back the memory of all its storages."""

    __slots__ = ("storages",)

    def __init__(self, storages: tuple[Transient, ...]) -> None:
        self.left = 1
        self.is_starved = False
        self.storages = storages


class Take(_OneCall):
    """The operation that reserves the memory of an alloca, or of an execution: all or nothing."""

    __slots__ = ()

    def issue(self, operation: Operation, most: int) -> int:  # noqa: ARG002 - it is one call
        """Reserve it, or report that there is none."""
        storages = self.storages
        self.is_starved = not storages[0]._heap.order.take(operation, storages)
        self.left = 0
        return 1


class Give(_OneCall):
    """The operation that gives the memory of an alloca, or of an execution, back."""

    __slots__ = ()

    def issue(self, operation: Operation, most: int) -> int:  # noqa: ARG002 - it is one call
        """Give it back, if there is any: a failed alloca may be given back, too."""
        for storage in self.storages:
            source = storage.source
            if storage.address is None and source is not None and source._state <= DONE:
                raise no_address(storage, OperationError)
            storage._heap.order.give(storage, operation)
        self.left = 0
        return 1


class Housed(Take):
    """An execution with temporaries, which reserves their memory first and gives it back last."""

    __slots__ = ("arguments", "inner")

    def __init__(
        self,
        storages: tuple[Transient, ...],
        inner: Callable[..., object] | CallSequence,
        arguments: tuple[Any, ...],
    ) -> None:
        super().__init__(storages)
        if isinstance(inner, CallSequence):
            self.left = inner.left
        self.inner = inner
        self.arguments = arguments

    def issue(self, operation: Operation, most: int) -> int:
        """Reserve the memory with the first part, and give it back with the last one."""
        storages, inner = self.storages, self.inner
        order = storages[0]._heap.order
        if storages[-1]._lease is None:  # it takes all or none
            self.is_starved = not order.take(operation, storages)
            if self.is_starved:
                return 0
        if isinstance(inner, CallSequence):
            made = inner.issue(operation, most)
            self.left = inner.left
        else:
            inner(operation._queue._stream, *self.arguments)
            made, self.left = 1, 0
        if not self.left:
            for storage in storages:
                order.give(storage, operation)
        return made
