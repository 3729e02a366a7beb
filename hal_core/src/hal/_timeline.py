"""Keep timelines: values that only rise, their recorded points, and who waits.

One process-wide lock, `lock`, guards the values, points and waiters of every
timeline and the states of every operation. It is a leaf: nothing is called
under it but the bookkeeping of this package, never a native primitive, never
user code (invariant I5). Every method here expects it held, and puts what
follows from a change into a `Work` list (see `hal._progress.drain`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from hal import _sync

if TYPE_CHECKING:
    from hal._submission import Submission

__all__ = ["MAX_VALUE", "Timeline", "Waiter", "Waiters", "Work", "lock"]

MAX_VALUE: Final = 2**63 - 1
"""The highest value of a semaphore: what Vulkan, CUDA and HIP can all hold signed."""

lock = _sync.Lock()
"""The timeline lock."""

WAKE: Final = 0
RELEASE: Final = 1
ISSUE: Final = 2
WATCH: Final = 3
CALLBACK: Final = 4
HOST: Final = 5
GARBAGE: Final = 6

Work: TypeAlias = list[tuple[int, Any]]
"""What follows from a change: ``(kind, item)``, kinds as above."""


class Waiter(Protocol):
    """Whoever can be registered for a value."""

    def _notice(self, index: int, work: Work) -> None:
        """Put what the release of wait `index` asks for into `work`."""


class Waiters:
    """Keep who waits for which value; every step costs the same for any number of them.

    A bucket per distinct value, and a heap of the values, in which removed
    ones may linger: they are passed over, and cleared out once they are the
    greater part.
    """

    __slots__ = ("_buckets", "_values")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Waiter, int]] = {}
        self._values: list[int] = []

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, value: int, waiter: Waiter, index: int) -> bool:
        """Register; return False if `waiter` stands at `value` already."""
        bucket = self._buckets.get(value)
        if bucket is None:
            self._buckets[value] = {waiter: index}
            heapq.heappush(self._values, value)
            return True
        if waiter in bucket:
            return False
        bucket[waiter] = index
        return True

    def discard(self, value: int, waiter: Waiter) -> bool:
        """Remove; return whether it was there."""
        bucket = self._buckets.get(value)
        if bucket is None or bucket.pop(waiter, None) is None:
            return False
        if not bucket:
            del self._buckets[value]
            if len(self._values) > 2 * len(self._buckets) + 16:
                self._values = list(self._buckets)
                heapq.heapify(self._values)
        return True

    def any_up_to(self, value: int) -> bool:
        """Return whether someone waits for `value` or less."""
        values = self._values
        while values and values[0] not in self._buckets:
            heapq.heappop(values)
        return bool(values) and values[0] <= value

    def take(self, value: int, work: Work) -> None:
        """Release all who wait for `value` or less."""
        values = self._values
        while values and values[0] <= value:
            bucket = self._buckets.pop(heapq.heappop(values), None)
            if bucket is not None:
                for waiter, index in bucket.items():
                    waiter._notice(index, work)


class Timeline:
    """Hold a value, the operations that will raise it, and who waits for it."""

    __slots__ = ("_failure", "_points", "_reached", "_recorded", "_reserved", "_value")

    def __init__(self, initial: int) -> None:
        self._value = initial
        self._reserved = initial  # the highest value reserved or signalled (S1)
        self._failure: BaseException | None = None
        # (value, operation) in order of value, of issued and unretired operations
        self._points: list[tuple[int, Submission]] = []
        self._recorded: Waiters | None = None  # until a covering point is recorded, or reached
        self._reached: Waiters | None = None

    def _advance(self, value: int, work: Work) -> None:
        """Raise the value if `value` is above it."""
        if value <= self._value or self._failure is not None:
            return
        self._value = value
        points = self._points
        if points:
            if points[0][0] > value:
                pass
            elif points[-1][0] <= value:
                points.clear()
            else:
                del points[: bisect_left(points, (value + 1,))]
        if self._recorded:
            self._recorded.take(value, work)
        if self._reached:
            self._reached.take(value, work)

    def _fail(self, error: BaseException, work: Work) -> None:
        """Fail unless failed, and release every waiter."""
        if self._failure is not None:
            return
        self._failure = error
        self._points.clear()
        for waiters in (self._recorded, self._reached):
            if waiters:
                waiters.take(MAX_VALUE, work)

    def _publish(self, value: int, operation: Submission, work: Work) -> None:
        """Record that `operation`, whose event is recorded, will bring `value`."""
        if value <= self._value or self._failure is not None:
            return
        points = self._points
        if points and points[-1][0] > value:
            # Two queues reserve in one order and may publish in the other.
            insort(points, (value, operation))
        else:
            points.append((value, operation))
        if self._recorded:
            self._recorded.take(value, work)
        if self._reached and self._reached.any_up_to(value):
            operation._queue._want(operation, work)

    def _covering(self, value: int) -> Submission | None:
        """Return the operation of the smallest recorded point >= `value`."""
        points = self._points
        if not points or points[-1][0] < value:
            return None
        return points[bisect_left(points, (value,))][1]

    def _await_recorded(self, value: int, waiter: Waiter, index: int) -> bool:
        """Register until `value` is recorded or reached."""
        if self._recorded is None:
            self._recorded = Waiters()
        return self._recorded.add(value, waiter, index)

    def _await_reached(self, value: int, waiter: Waiter, index: int, work: Work) -> bool:
        """Register until `value` is reached, and have somebody retire it."""
        operation = self._covering(value)
        if operation is not None:
            operation._queue._want(operation, work)
        return self._register_reached(value, waiter, index)

    def _register_reached(self, value: int, waiter: Waiter, index: int) -> bool:
        """Register until `value` is reached."""
        if self._reached is None:
            self._reached = Waiters()
        return self._reached.add(value, waiter, index)

    def _forget(self, value: int, waiter: Waiter) -> bool:
        """Take a registration back; return whether there was one."""
        found = False
        for waiters in (self._recorded, self._reached):
            if waiters is not None and waiters.discard(value, waiter):
                found = True
        return found
