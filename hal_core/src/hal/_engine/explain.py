"""Describe what a wait still waits for, and who has promised it (rule S9).

The description is made while everything goes on: it holds the timeline lock for a look at
one thing at a time, and stops at the length that a person would read.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from hal._engine import timelines
from hal._engine.operation import DONE, PENDING, WORDS, Operation
from hal._engine.timelines import Timeline, Timepoint

if TYPE_CHECKING:
    from hal._engine.device_context import DeviceContext


contexts: Final[dict[DeviceContext, None]] = {}
"""The contexts of all open devices: their queues may promise something."""

_DEPTH: Final = 4
"""How many promises in a row are followed; longer chains repeat themselves."""

_WIDTH: Final = 8
"""How many unmet waits of one list are described."""

_TOLD: Final = 24
"""How many unmet waits are described in total."""

_LOOKED: Final = 10_000
"""How many operations of a queue are searched for the one that has promised a value."""


_Promise: TypeAlias = "tuple[int, Operation]"
"""A value, and the operation that will signal it."""


def describe_wait(groups: Sequence[Sequence[Timepoint]]) -> str:
    """Return "for ...", with every unmet wait and its promise. No lock held."""
    mode = "for" if len(groups) == 1 else "for any of"
    entries = _unmet(itertools.chain.from_iterable(groups))
    return f"{mode} " + "; ".join(_Account().told(entries, ()))


def describe_operation(operation: Operation) -> str:
    """Return an operation's state and waits; empty if it has ended. No lock held."""
    if operation._state >= DONE or operation._retired:
        return ""
    return _Account().story(operation, ())


def _unmet(entries: Iterable[Timepoint]) -> list[Timepoint]:
    """Return the waits that are not reached, once each."""
    return list(dict.fromkeys(each for each in entries if each._semaphore._value < each._value))


class _Account:
    """The description of one wait."""

    def __init__(self) -> None:
        self._left = _TOLD
        self._known: dict[Timeline, list[_Promise]] = {}
        self._unread = self._read()
        self._limit = ""  # says that the search was cut short

    def told(self, entries: list[Timepoint], path: tuple[Operation, ...]) -> list[str]:
        """Describe unmet waits; `path` led to them."""
        lines: list[str] = []
        for entry in entries[:_WIDTH]:
            if not self._left:
                break
            self._left -= 1
            lines.append(self._entry(entry, path))
        if len(entries) > len(lines):
            lines.append(f"{len(entries) - len(lines)} more")
        return lines

    def _entry(self, timepoint: Timepoint, path: tuple[Operation, ...]) -> str:
        timeline, value = timepoint._semaphore, timepoint._value
        head = f"{timeline.name}@{value} (now {timeline._value}), promised by "
        operation = self._promise(timeline, value)
        if operation is None:
            return f"{head}nobody{self._limit}"
        return head + self.story(operation, path)

    def story(self, operation: Operation, path: tuple[Operation, ...]) -> str:
        """Describe an operation's state, and what it waits for; `path` led to it."""
        text = f"{operation._describe()}, which {WORDS[operation._state][1]}"
        if operation in path:
            return text + ", as said before: they wait for each other"
        if len(path) == _DEPTH or not (operation._state == PENDING or operation._unresolved):
            return text
        path = (*path, operation)
        waits = self.told(_unmet(operation._waits), path)
        if waits:
            return text + " and waits for " + " and ".join(f"[{wait}]" for wait in waits)
        text += " behind others in its queue"
        queue = operation._queue
        with timelines.lock:
            first = next(iter(queue._hosts), None)
            if first is None and queue._backlog and queue._backlog[0]._state == PENDING:
                first = queue._backlog[0]
        if queue._ordered and first is not None and first is not operation:
            text += f" [{self.story(first, path)}]"
        return text

    def _promise(self, timeline: Timeline, value: int) -> Operation | None:
        """Return the operation that will signal `value`."""
        # The search comes last: it goes through all that is pending in the process.
        with timelines.lock:
            covering = timeline._covering(value)
        if covering is not None:
            return covering
        owner = timeline._owner
        if owner is not None:
            return owner
        for promised, operation in self._known.get(timeline, ()):
            if promised >= value:
                return operation
        for other, promise in self._unread:
            self._known.setdefault(other, []).append(promise)
            if other is timeline and promise[0] >= value:
                return promise[1]
        return None

    def _read(self) -> Iterator[tuple[Timeline, _Promise]]:
        """Search the unended operations of all devices' queues, once."""
        # Lazily: mostly the first few tell, and `_promise` remembers what it has passed.
        queues = [queue for context in list(contexts) for queue in context.queues]
        for queue in queues:
            with timelines.lock:
                source: Collection[Operation] = queue._backlog if queue._ordered else queue._pending
                if len(source) > _LOOKED:
                    self._limit = f" of the first {_LOOKED:,} operations of each queue"
                found = [*itertools.islice(source, _LOOKED), *queue._hosts]
                if queue._issuing is not None:
                    found.append(queue._issuing)
            for operation in found:
                for timepoint in operation._signals:
                    if timepoint._semaphore._owner is not None:
                        continue  # it describes itself
                    yield timepoint._semaphore, (timepoint._value, operation)
