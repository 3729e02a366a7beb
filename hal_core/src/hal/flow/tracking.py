"""The last writer of a memory's bytes, and its readers since.

A `History` is as cheap as two attributes while its memory is used as a whole. Once a part is used
it keeps a list of intervals, until the whole is written. That list is bounded: a read on an ordered
queue stands for all earlier ones on that queue, and work that has ended keeps no interval apart.

A writer comes after all readers; if there are any, they came after
the last writer themselves. Nothing here takes a lock: `hal.flow.flow` does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, Final, TypeAlias
from weakref import WeakSet

import hal
from hal.arguments import as_items
from hal.flow.address_map import address_map_of
from hal.protocols import Waits

NOTHING: Final = ()
"""The empty list, distinguished by identity from lists that have to be looked at."""

Readers: TypeAlias = tuple[hal.Submission, ...]
"""The last reader on each queue, in the order of their submission.

A tuple that is replaced, never a dictionary that changes: the C extension finds the waits before it
takes the lock, and need not look at them again under it if writer and readers are the same objects.
With a dictionary an execution took a third more instructions for its tracking.
"""

Wait: TypeAlias = hal.Submission | hal.Timepoint

ByteRange: TypeAlias = tuple[int, int] | None
"""The bytes from one place up to another; None for all of a memory that has some."""

_MANY: Final = 64  # the number of intervals from which useless ones are purged

_FEW: Final = 8  # the number of readers up to which none is checked: readers of closed queues stay


class Lanes:
    """The queues for work on one device's buffers, by its kind."""

    __slots__ = ("addresses", "compute", "device", "download", "upload")

    def __init__(self, device: hal.Device) -> None:
        queues = device.queues
        self.device: Final = device
        self.compute: Final = queues.compute
        self.upload: Final = queues.upload
        self.download: Final = queues.download
        self.addresses: Final = address_map_of(device)

    def track(self, raw: hal.Buffer) -> History:
        """Return a history of memory that was just allocated."""
        history = History(raw, self, ())
        self.addresses.note(history)
        return history


class _Interval:
    """The last writer of a range of bytes, and its readers since."""

    __slots__ = ("readers", "writer")

    def __init__(self, writer: hal.Submission | None, readers: Readers) -> None:
        self.writer = writer
        self.readers = readers


class History:
    """The last writer and the readers since, of `size` bytes."""

    __slots__ = (
        "__weakref__",
        "_claims",
        "_limit",
        "_starts",
        "intervals",
        "is_doubtful",
        "lanes",
        "origin",
        "raw",
        "readers",
        "refusal",
        "size",
        "special",
        "writer",
    )

    def __init__(self, raw: hal.Buffer, lanes: Lanes, origin: tuple[hal.Timepoint, ...]) -> None:
        self.raw: hal.Buffer | None = raw  # the buffer, or None once it is no longer tracked
        self.size: Final = raw.size
        self.lanes: Final = lanes  # the queues of its device
        self.origin = origin  # what every access waits for until it is reached, besides the rest
        # Whether work may have been submitted that is not remembered here, because of a Ctrl-C
        self.is_doubtful = False
        self.refusal: Callable[[], None] | None = None  # what raises for every access, or None
        self._claims: WeakSet[Any] | None = None
        # Whether an access has more to look at than writers and readers: it is no longer tracked,
        # there is an `origin`, or it `is_doubtful`
        self.special = bool(origin)
        # The last writer and the readers of the whole memory, while `intervals` is None
        self.writer: hal.Submission | None = None
        self.readers: Readers = ()
        self.intervals: list[_Interval] | None = None
        self._starts: list[int] = []  # of the intervals; each ends where the next one starts
        self._limit = _MANY

    def spans(self, part: ByteRange) -> Sequence[History | _Interval]:
        """Return the records of these bytes: this one, or the intervals that have some of them."""
        start, stop = (0, self.size) if part is None else part
        if start >= stop:
            return ()
        if self.intervals is None:
            return (self,)
        first = bisect_right(self._starts, start) - 1
        return self.intervals[first : bisect_left(self._starts, stop)]

    def note(self, part: ByteRange, operation: hal.Submission, *, writes: bool) -> None:
        """Remember an access to these bytes."""
        start, stop = (0, self.size) if part is None else part
        if start >= stop:
            return
        if stop - start == self.size:
            if writes:
                self.intervals = None
                self.writer, self.readers = operation, ()
                return
        elif self.intervals is None:
            self._starts, self.intervals = [0], [_Interval(self.writer, self.readers)]
            self.writer, self.readers = None, ()
        intervals = self.intervals
        if intervals is not None:
            first, last = self._split(start, intervals), self._split(stop, intervals)
            if writes:
                self._starts[first:last] = [start]
                intervals[first:last] = [_Interval(operation, ())]
        if not writes:
            for each in self.spans(part):
                each.readers = _with(each.readers, operation)
        if intervals is not None and len(intervals) > self._limit:
            self._sweep(intervals)

    def entries(self, part: ByteRange, *, readers: bool) -> list[Wait]:
        """Return the writers of these bytes, or their writers and readers, and the origin."""
        found: list[Wait | None] = [*self.origin]
        for each in self.spans(part):
            found += (each.writer, *(each.readers if readers else ()))
        return [each for each in dict.fromkeys(found) if each is not None]

    def forget(self, origin: tuple[hal.Timepoint, ...]) -> None:
        """Forget everything except what every access has to wait for."""
        self.writer, self.readers, self.intervals = None, (), None
        self.origin = origin
        self.is_doubtful = False
        self.special = bool(origin) or self.raw is None

    def follow(self, submission: hal.Submission) -> None:
        """Have every access wait for a submission, besides the rest."""
        self.origin = (*self.origin, *hal.Fence(submission))
        self.special = True

    def doubt(self) -> None:
        """Note that work may have been submitted which is not remembered."""
        self.is_doubtful = self.special = True

    def end(self) -> None:
        """Stop tracking."""
        self.special = True
        self.raw = None

    @property
    def claims(self) -> WeakSet[Any]:
        """The buffers of contexts with some of its bytes."""
        if self._claims is None:
            self._claims = WeakSet()
        return self._claims

    def refused(self, refusal: Callable[[], None]) -> History:
        """Return what stands for this memory in an access that is refused, by raising."""
        if self.raw is None:
            return self
        other = History(self.raw, self.lanes, ())
        other.refusal, other.special = refusal, True
        return other

    def renew(self) -> History:
        """Stop, and return another history of the same memory, with everything remembered here.

        So users of this one are refused, and its past uses are waited for.
        """
        other = copy(self)
        self.end()
        return other

    def _split(self, place: int, intervals: list[_Interval]) -> int:
        """Split the interval across `place`; return the index of the first one from there on."""
        starts = self._starts
        index = bisect_left(starts, place)
        if place < self.size and (index == len(starts) or starts[index] != place):
            before = intervals[index - 1]
            intervals.insert(index, _Interval(before.writer, before.readers))
            starts.insert(index, place)
        return index

    def _sweep(self, intervals: list[_Interval]) -> None:
        """Drop successfully ended work, and join neighbours that have become the same."""
        ended: dict[hal.Submission, bool] = {}
        starts: list[int] = []
        kept: list[_Interval] = []
        for start, each in zip(self._starts, intervals, strict=True):
            each.readers = tuple(one for one in each.readers if not _is_over(one, ended))
            if each.writer is not None and _is_over(each.writer, ended):
                each.writer = None
            last = kept[-1] if kept else None
            if last is None or last.writer is not each.writer or last.readers != each.readers:
                starts.append(start)
                kept.append(each)
        self._starts, self.intervals = starts, kept
        self._limit = max(_MANY, 2 * len(kept))
        if len(kept) == 1:
            self.writer, self.readers, self.intervals = kept[0].writer, kept[0].readers, None


TrackedAccess: TypeAlias = tuple[History, ByteRange, bool]
"""A memory, the bytes of it that are used, and whether they are written."""


def part_of(history: History, start: int, stop: int) -> ByteRange:
    """Return the bytes of a memory from `start` up to `stop`."""
    return None if stop - start == history.size > 0 else (start, stop)


def collect(
    accesses: Iterable[TrackedAccess],
    look: Callable[[History, list[Wait]], None],
    wait: Waits = NOTHING,
) -> list[Any]:
    """Return the predecessors of work with these accesses, and the caller's own waits.

    `look` adds what a special history waits for besides writers and readers.
    """
    found: list[Any] = []
    for history, part, writes in accesses:
        if history.special:
            look(history, found)
        for span in history.spans(part):
            writer, readers = span.writer, span.readers
            if writes and readers:  # not for the writer, which the readers have waited for
                found += readers
            elif writer is not None:
                # Much is written once and read often, so all readers but the first check whether
                # they still have to wait. The first one does not, since it mostly has to.
                if readers and writer.state == "done":
                    span.writer = None
                else:
                    found.append(writer)
    if len(found) > 1:
        found = [*dict.fromkeys(found)]
    if wait is not NOTHING:
        found += wait if type(wait) is tuple or type(wait) is list else _entries(wait)
    return found


def note(accesses: Iterable[TrackedAccess], operation: hal.Submission) -> None:
    """Remember accesses."""
    for history, part, writes in accesses:
        history.note(part, operation, writes=writes)


def _entries(wait: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the queue checks it
    if isinstance(wait, (hal.Timepoint, hal.Submission, hal.Fence)):
        return (wait,)
    if wait is None:
        return ()
    return as_items(wait, "a wait list takes timepoints, submissions and fences")


def _with(readers: Readers, operation: hal.Submission) -> Readers:
    """Return readers with another one added, which stands for the one before it on its queue."""
    if not readers:
        return (operation,)
    queue = operation.queue
    others = [each for each in readers if each.queue is not queue]
    if len(others) > _FEW:
        others = [each for each in others if each.state != "done"]
    return (*others, operation)


def _is_over(operation: hal.Submission, known: dict[hal.Submission, bool]) -> bool:
    """Return whether an operation has ended successfully; asks each only once."""
    answer = known.get(operation)
    if answer is None:
        answer = known[operation] = operation.state == "done"
    return answer
