"""The parts of the model: memory, queues, semaphores and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = [
    "CANCELLED",
    "DONE",
    "DOOMED",
    "FAILED",
    "OPEN",
    "STUCK",
    "UNSURE",
    "Access",
    "Line",
    "Memory",
    "Point",
    "Step",
    "Timeline",
    "meet",
]

OPEN: Final = "open"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"

STUCK: Final = "stuck"
"""The fate of a step that cannot end before the host does something."""

DOOMED: Final = "doomed"
"""The fate of a step that can only fail."""

UNSURE: Final = "unsure"
"""The fate of a step that stands behind one that can only fail, and nobody knows when.

Also of what waits for such a step: it may fail before anything else that it waits for comes.
"""


class Memory:
    """Bytes, each with whether anybody has written it.

    Attributes
    ----------
    allocation
        The step that makes it, if one does.
    """

    def __init__(self, size: int, device: int, allocation: Step | None = None) -> None:
        self.content = np.zeros(size, np.uint8)
        self.known = np.zeros(size, np.bool_)
        self.device = device
        self.allocation = allocation

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return len(self.content)

    def put(self, offset: int, content: Any, known: Any = True) -> None:  # noqa: ANN401, FBT002 - bytes or an array
        """Write bytes."""
        data = np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content
        self.content[offset : offset + len(data)] = data
        self.known[offset : offset + len(data)] = known

    def take(self, offset: int, size: int) -> tuple[Any, Any]:
        """Return a copy of bytes, and which are known."""
        part = slice(offset, offset + size)
        return self.content[part].copy(), self.known[part].copy()


class Access(NamedTuple):
    """Bytes that something touches."""

    memory: Memory
    start: int
    stop: int
    writes: bool

    def meets(self, other: Access) -> bool:
        """Return whether both have a byte in common that one of them writes."""
        return (
            self.memory is other.memory
            and self.start < other.stop
            and other.start < self.stop
            and (self.writes or other.writes)
        )


def meet(some: Iterable[Access], others: list[Access]) -> bool:
    """Return whether any access of one list meets one of the other."""
    return any(one.meets(other) for one in some for other in others)


class Line:
    """A queue. What stands on one that may be closed may be cancelled."""

    def __init__(self, number: int, device: int, *, ordered: bool, closable: bool = False) -> None:
        self.number = number
        self.device = device
        self.ordered = ordered
        self.closable = closable
        self.closed = False
        self.last: Step | None = None
        self.real: Any = None


class Timeline:
    """A semaphore.

    Attributes
    ----------
    value
        What is known to be reached.
    promises
        The values that steps bring about, rising, and the steps.
    failure
        Why it has failed; None while it has not.
    hosted
        Whether the host has signalled it.
    """

    def __init__(self, number: int, *, safe: bool, value: int = 0) -> None:
        self.number = number
        self.safe = safe
        self.value = value
        self.hosted = value > 0
        self.overtaken = False
        self.promises: list[tuple[int, Step]] = []
        self.failure: frozenset[str] | None = None
        self.callbacks: list[list[Any]] = []  # [value, outcome]: None, True or a failure
        self.real: Any = None

    @property
    def reserved(self) -> int:
        """Return the highest value that is reached or promised."""
        return max(self.value, self.promises[-1][0] if self.promises else 0)

    def covering(self, value: int) -> Step | None:
        """Return the first step that promises so much."""
        return next((step for promised, step in self.promises if promised >= value), None)

    def advance(self, value: int) -> None:
        """Have a value reached."""
        if self.failure is None and value > self.value:
            self.value = value
            for callback in self.callbacks:
                if callback[1] is None and callback[0] <= value:
                    callback[1] = True

    def fail(self, reasons: frozenset[str]) -> None:
        """Fail, if this is the first failure."""
        if self.failure is None:
            self.failure = reasons
            for callback in self.callbacks:
                if callback[1] is None:
                    callback[1] = reasons


class Point(NamedTuple):
    """A value of a timeline."""

    timeline: Timeline
    value: int


class Step:
    """An operation.

    Attributes
    ----------
    waits
        Points and other steps.
    allocations
        The steps that make the memory that it uses: it fails if they do.
    deferred
        What a call returns, and its end waits for.
    mistake
        Why it fails once it has begun; None if it does not.
    effect
        What it does to the model, when it is known to have run.
    immune
        Whether nothing can make it fail.
    """

    def __init__(self, number: int, line: Line, kind: str) -> None:
        self.number = number
        self.line = line
        self.kind = kind
        self.previous = line.last if line.ordered else None
        self.waits: list[Point | Step] = []
        self.signals: list[Point] = []
        self.accesses: list[Access] = []
        self.allocations: list[Step] = []
        self.deferred: list[Point | Step] = []
        self.mistake: str | None = None
        self.effect: Callable[[], object] | None = None
        self.state = OPEN
        self.reasons: frozenset[str] = frozenset()
        self.immune = False
        self.real: Any = None

    def needs(self) -> Iterator[Point | Step]:
        """Yield everything that its end waits for."""
        yield from self.waits
        yield from self.deferred
        yield from self.allocations
        if self.previous is not None:
            yield self.previous
