"""Timelines: values that only rise, their recorded points, and their waiters.

One process-wide lock, `lock`, guards the values, points and waiters of every
timeline and the states of every operation. It is a leaf: only the bookkeeping of this package runs
under it, never a native primitive or user code (I5). The caller of every method here holds it, and
the follow-ups of a change go into a `Work` list (see `hal._engine.progress.drain`).

A lock for each semaphore was rejected. An operation reserves all of its signals at once (S1), a
wait for any of many registers with all of them, and a retirement goes through the rings of several
queues before a value rises (S7): each would take many locks, in an order of their own. One lock
costs nothing where the interpreter lock lets one thread run at a time. Without that, submissions
hold it for a quarter of their time, so all threads together submit 3.6 times as fast as one at
the most (benchmarks/NOTES.md, "Without the interpreter lock").
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, SupportsIndex, TypeAlias

from hal._base import speedups, sync
from hal.arguments import as_int, shown
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal.handlers import own

if TYPE_CHECKING:
    from hal._engine.operation import Operation
    from hal._engine.semaphore import Semaphore


MAX_VALUE: Final = 2**63 - 1
"""The highest value of a semaphore: what Vulkan, CUDA and HIP can all hold signed."""


# A lock of C's own: no Ctrl-C comes between taking and holding it. A loop directly in its `with`
# has no condition and does not end with an `if`: Python 3.12 and 3.13 look for a Ctrl-C at such a
# jump, and leave the lock taken. So some loops are functions of their own, or C's (`filter`).
lock = sync.LeafLock()
"""The timeline lock. Taken inside of steps only, never twice by a thread (`hal._engine.steps`)."""


def replace_lock(other: Any) -> None:  # noqa: ANN401 - what stands for a lock
    """Replace the timeline lock, even while it is held; for a forked child."""
    global lock  # noqa: PLW0603 - one process, one timeline lock
    lock = other
    if speedups.module is not None:
        speedups.module.use_lock(other)


WAKE: Final = 0
"""A doorbell to be rung."""
RELEASE: Final = 1
"""A `Batch` of operations whose wait is to be resolved again."""
ISSUE: Final = 2
"""A queue that may issue what is ready."""
WATCH: Final = 3
"""A queue that the progress thread is to watch."""
CALLBACK: Final = 4
"""The dispatcher has callbacks to run."""
HOST: Final = 5
"""A host operation to be sent to the pool."""
GARBAGE: Final = 6
"""A list of operations that have ended: their resources are dropped."""
RETIRE: Final = 7
"""An issued operation whose event is complete."""
CHANGE: Final = 8
"""A function to be called under the lock, and its first two arguments; the third is the work."""
DROP: Final = 9
"""An object whose last reference may be this one: it is dropped under no lock."""
LATER: Final = 10
"""A call that was put off (`hal._engine.steps.Later`), for the progress thread."""
TELL: Final = 11
"""What tells other processes that a semaphore has risen, and the semaphore."""

Work: TypeAlias = list[tuple[int, Any]]
"""The follow-ups of a change: ``(kind, item)``, kinds as above.

An entry is appended before its work begins, and each can be repeated from
its beginning: the next call or the progress thread repeats an interrupted one.
"""


_numbers = itertools.count(1)


class Watcher(Protocol):
    """A waiter that is told at once when its value comes: a thread, a callback."""

    def _notice(self, index: int, work: Work) -> None:
        """Add the effects of the release of wait `index` to `work`."""


class Batch:
    """Operations that waited for one value, to be released a few at a time.

    A signal may release a hundred thousand operations. Released in one go they would keep every
    other submission waiting for the lock, and the caller's budget (Q1) could not end among them.
    `some` has the operations in hand until all of them are released, so that a call that breaks off
    part-way loses none.
    """

    __slots__ = ("_bucket", "_rest", "some")

    def __init__(self, bucket: dict[Any, int]) -> None:
        self._bucket = bucket
        self._rest: Iterator[tuple[Any, int]] | None = None
        self.some: list[tuple[Any, int]] = []

    def take(self, most: int) -> None:
        """Put the next operations into `some`, up to `most`, unless there are some."""
        if self.some:
            return
        if self._rest is None:
            self._rest = iter(self._bucket.items())
        try:
            # One call of C: no Ctrl-C comes between leaving the iterator and joining the list.
            self.some.extend(itertools.islice(self._rest, most))
        except own(RuntimeError):
            # The bucket has changed: a Ctrl-C had left it registered, and an operation was removed.
            # From its beginning, then: to release an operation twice is harmless.
            self._rest = iter(list(self._bucket.items()))
            self.some.extend(itertools.islice(self._rest, most))


class Waiters:
    """The waiters for each value; every step costs the same for any number of them.

    A bucket per distinct value and kind of waiter, and a heap of their keys: a sorted list of
    waiters would move half of itself for each that comes or leaves. Watchers are told one by one;
    operations are released by the bucket, since there may be a hundred thousand.
    """

    __slots__ = ("_buckets", "_keys")

    def __init__(self) -> None:
        # value * 2 for watchers, and + 1 for operations, to {waiter: index of its wait}
        self._buckets: dict[int, dict[Any, int]] = {}
        self._keys: list[int] = []

    def __len__(self) -> int:
        return len(self._buckets)

    def watch(self, value: int, watcher: Watcher, index: int) -> None:
        """Register a watcher, once per value."""
        self._add(value << 1, watcher, index)

    def hold_back(self, value: int, operation: Operation, index: int) -> None:
        """Register an operation, once per value."""
        self._add(value << 1 | 1, operation, index)

    def has_watcher(self, value: int, watcher: Watcher) -> bool:
        """Return whether a watcher is registered for a value."""
        return watcher in self._buckets.get(value << 1, ())

    def discard(self, value: int, waiter: object) -> bool:
        """Remove a watcher or an operation; return whether it was there."""
        for key in (value << 1, value << 1 | 1):
            bucket = self._buckets.get(key)
            if bucket is None or bucket.pop(waiter, None) is None:
                continue
            if not bucket:
                del self._buckets[key]
                # The key lingers in the heap, which would be searched for it. It is skipped there,
                # and purged with the others once they are the greater part.
                if len(self._keys) > 2 * len(self._buckets) + 16:
                    self._keys = list(self._buckets)
                    heapq.heapify(self._keys)
            return True
        return False

    def any_up_to(self, value: int) -> bool:
        """Return whether any waiter waits for `value` or less."""
        keys = self._keys
        while keys and keys[0] not in self._buckets:
            heapq.heappop(keys)
        return bool(keys) and keys[0] <= value << 1 | 1

    def take(self, value: int, work: Work) -> None:
        """Release all waiters for `value` or less."""
        keys = self._keys
        last = value << 1 | 1
        while keys and keys[0] <= last:
            key = keys[0]
            bucket = self._buckets.get(key, {})
            # Told first and removed after, so that a Ctrl-C between loses none.
            if key & 1:
                work.append((RELEASE, Batch(bucket)))
            else:
                for watcher, index in bucket.items():
                    watcher._notice(index, work)
            self._buckets.pop(key, None)
            heapq.heappop(keys)

    def _add(self, key: int, waiter: object, index: int) -> None:
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = {waiter: index}
            heapq.heappush(self._keys, key)
        else:
            bucket[waiter] = index


class Timeline:
    """A value, the operations that will raise it, and its waiters."""

    __slots__ = (
        "_failure",
        "_name",
        "_owner",
        "_points",
        "_reached",
        "_recorded",
        "_reserved",
        "_value",
    )

    def __init__(self, initial: int, name: str | None) -> None:
        # A number at once: two threads that ask for the name must get the same.
        self._name: str | int = next(_numbers) if name is None else name
        # The operation whose end it stands for, until that has come
        self._owner: Operation | None = None
        self._value = initial
        # The highest value reserved or signalled (S1). The value alone would not do: it rises when
        # work retires, and until then a second operation could promise the same.
        self._reserved = initial
        self._failure: BaseException | None = None
        # (value, operation) in order of value, of issued and unretired operations. No heap: a wait
        # looks for the smallest point that covers its value, which is mostly not the first.
        self._points: list[tuple[int, Operation]] = []
        # Two registers: a recorded point that its stream can wait for releases an operation, but
        # few of the host's waiters. With one, each publication would release all of these, too.
        self._recorded: Waiters | None = None  # until a covering point is recorded, or reached
        self._reached: Waiters | None = None

    @property
    def name(self) -> str:
        """The name given at creation, or a number that is never reused."""
        name = self._name
        return name if isinstance(name, str) else f"semaphore {name}"

    def _advance(self, value: int, work: Work) -> None:
        """Raise the value if `value` is above it."""
        # An operation reserves its signals at its issue. Since then the host may have signalled
        # more, which stands (S1), or failed the semaphore, which drops this signal (S4).
        if value < self._value or self._failure is not None:
            return
        # An equal value goes through again: a Ctrl-C may have cut the first time short.
        self._value = value
        if self._reserved < value:  # noqa: PLR1730 - a call of max costs more than all of this
            self._reserved = value  # a host's signal reserves as it raises
        points = self._points
        if points:
            if points[0][0] > value:
                pass
            elif points[-1][0] <= value:
                points.clear()
            elif points[1][0] > value:
                del points[0]  # a chain, where they retire one by one
            else:
                del points[: bisect_left(points, (value + 1,))]
        if self._recorded is not None and self._recorded._keys:  # `__len__` is a frame more
            self._recorded.take(value, work)
        if self._reached is not None and self._reached._keys:
            self._reached.take(value, work)

    def _fail(self, error: BaseException, work: Work) -> None:
        """Keep the first failure, and release every waiter; a repeat releases them again."""
        if self._failure is None:
            self._failure = error
        self._points.clear()
        for waiters in (self._recorded, self._reached):
            if waiters:
                waiters.take(MAX_VALUE, work)

    def _publish(self, value: int, operation: Operation, work: Work) -> None:
        """Record that `operation`, whose event is recorded, will signal `value`."""
        if value <= self._value or self._failure is not None:
            return
        points = self._points
        if points and points[-1][0] >= value:
            # Two queues reserve in one order and may publish in the other. An equal
            # value is this one's own: its publication was broken off, and is repeated.
            if points[self._position(value)][0] != value:
                insort(points, (value, operation))
        else:
            points.append((value, operation))
        if self._recorded is not None and self._recorded._keys:
            self._recorded.take(value, work)
        if self._reached is not None and self._reached.any_up_to(value):
            # These wait for the value itself, and may be unable to ask for it, as callbacks are:
            # the progress thread does.
            operation._want(work)

    def _covering(self, value: int) -> Operation | None:
        """Return the operation of the smallest recorded point >= `value`."""
        points = self._points
        position = self._position(value)
        return points[position][1] if position < len(points) else None

    def _position(self, value: int) -> int:
        """Return the index of the smallest recorded point >= `value`, or the points' number."""
        points = self._points
        count = len(points)
        if not count or points[-1][0] < value:
            return count
        if count == 1 or points[-2][0] < value:
            return count - 1  # a chain, which waits for the last point
        # A tuple of one sorts before the pair with the same value: with a pair, the operations of
        # equal values would be compared, and they have no order.
        return bisect_left(points, (value,))

    def _until_recorded(self) -> Waiters:
        """Return the register of those that wait until a value is recorded or reached."""
        if self._recorded is None:
            self._recorded = Waiters()
        return self._recorded

    def _until_reached(self) -> Waiters:
        """Return the register of those that wait until a value is reached.

        They learn of it from the retirement of the operation that signals it. If that is recorded
        later, its publication asks for the retirement. If it is recorded already, the caller
        retires it, or uses `_until_told`.
        """
        if self._reached is None:
            self._reached = Waiters()
        return self._reached

    def _until_told(self, value: int, work: Work) -> Waiters:
        """As `_until_reached`; the progress thread retires the operation, if there is one yet."""
        operation = self._covering(value)
        if operation is not None:
            operation._want(work)
        return self._until_reached()

    def _not_above(self, value: int) -> str:
        """Explain why `value` cannot be signalled any more (S1)."""
        higher = self._reserved + 1
        advice = f"signal {higher} or more" if higher <= MAX_VALUE else "no value is left to signal"
        return (
            f"{self.name} cannot be signalled to {value}: its value is {self._value}, and "
            f"{self._reserved} is the highest value signalled or reserved so far; {advice}"
        )

    def _forget(self, value: int, waiter: object) -> bool:
        """Remove a registration; return whether there was one."""
        found = False
        for waiters in (self._recorded, self._reached):
            if waiters is not None and waiters.discard(value, waiter):
                found = True
        return found


class Timepoint:
    """A value of a semaphore: something to wait for, or to signal.

    Made by `Semaphore.at`. Immutable, equal to another of the same semaphore
    and value, and unpacked as a pair. It is always valid, so that its
    users never check it again.
    """

    __slots__ = ("_semaphore", "_value")

    def __init__(self, semaphore: object, value: SupportsIndex) -> None:
        """Check and make; raises `ArgumentTypeError` or `InvalidArgumentError`."""
        if not isinstance(semaphore, Timeline):
            message = f"a timepoint is of a semaphore, not of {type(semaphore).__name__}"
            raise ArgumentTypeError(message)
        self._semaphore = semaphore
        self._value: int = check_value(value)

    @property
    def semaphore(self) -> Semaphore:
        """The semaphore."""
        return self._semaphore  # type: ignore[return-value]  # `cast` is a call

    @property
    def value(self) -> int:
        """The value, 0 to 2**63 - 1."""
        return self._value

    def __iter__(self) -> Iterator[Any]:
        return iter((self._semaphore, self._value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Timepoint):
            return NotImplemented
        return self._semaphore is other._semaphore and self._value == other._value

    def __hash__(self) -> int:
        return hash((self._semaphore, self._value))

    def __repr__(self) -> str:
        return f"{self._semaphore.name}@{self._value}"


def first_failure(entries: Iterable[Timepoint]) -> BaseException | None:
    """Return the first failure among entries, reached ones as well; reads single fields only."""
    for timepoint in entries:
        failure = timepoint._semaphore._failure
        if failure is not None:
            return failure
    return None


def check_value(value: object) -> int:
    """Return a semaphore's value as an int; raise if it is not one."""
    number = value if type(value) is int else as_int(value, "a semaphore's value is an int")
    if not 0 <= number <= MAX_VALUE:
        message = f"a semaphore's value is 0 to 2**63 - 1; {shown(number)} was asked for"
        raise InvalidArgumentError(message)
    return number
