"""The tracked memory of each device, across all flows, so that none is tracked twice.

A flow's own allocation is only noted, which costs next to nothing: nobody else
has it yet. It gets its place among the others once memory is adopted.
Nothing is kept alive, and dead entries are dropped.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from operator import itemgetter
from typing import Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import hal
from hal.errors import ClosedError, HalError, InvalidArgumentError
from hal.flow.locks import make_lock, refuse_reentrance
from hal.handlers import own

_MANY: Final = 64  # the number of memories from which untracked ones are purged


class Tracked(Protocol):
    """An object that tracks a memory, such as a `hal.flow.tracking.History`."""

    raw: hal.Buffer | None


_TrackedRange: TypeAlias = tuple[int, int, weakref.ref[Tracked]]
"""An address, the one behind the last byte, and what tracks the bytes between."""

_lock: Final = make_lock()


class AddressMap:
    """The tracked memory of one device. Any thread may use it.

    Memory without an address yet, from `Queue.alloca`, is identified by its buffer
    until it has one; parts of it are not recognised.
    """

    __slots__ = ("_limit", "_lock", "_noted", "_ranges")

    def __init__(self) -> None:
        self._lock = make_lock()
        self._noted: list[weakref.ref[Tracked]] = []
        self._ranges: list[_TrackedRange] = []  # sorted, and disjoint
        self._limit = _MANY

    def __len__(self) -> int:
        return len(self._noted) + len(self._ranges)

    def note(self, history: Tracked) -> None:
        """Note memory that nobody else can have tracked."""
        refuse_reentrance(self._lock)
        with self._lock:
            self._noted.append(weakref.ref(history))
            if len(self._noted) > self._limit:
                self._prune()

    def adopt(self, history: Tracked) -> None:
        """Note anybody's memory; raise `InvalidArgumentError` if some is tracked already."""
        raw = history.raw
        assert raw is not None  # noqa: S101 - it was just made
        refuse_reentrance(self._lock)
        with self._lock:
            self._settle()
            try:
                start = raw.address
            except ClosedError:
                raise
            except own(HalError):
                if any(_tracked(each) is raw for each in self._noted):
                    message = f"adopt: {raw!r} is tracked already; use that tracked buffer"
                    raise InvalidArgumentError(message) from None
                self._noted.append(weakref.ref(history))
            else:
                self._check(start, start + raw.size, raw.device)
                self._put((start, start + raw.size, weakref.ref(history)))
            if len(self) > self._limit:
                self._prune()

    def _settle(self) -> None:
        """Sort in the noted memory that has an address."""
        left, found = [], []
        for reference in self._noted:
            raw = _tracked(reference)
            if raw is None:
                continue
            try:
                start = raw.address
            except own(HalError):
                left.append(reference)
            else:
                found.append((start, start + raw.size, reference))
        if len(found) > _MANY:  # one by one each would move all behind it
            self._prune()
            self._ranges = sorted((*self._ranges, *filter(_has_bytes, found)), key=itemgetter(0))
        else:
            for each in found:
                self._put(each)
        self._noted = left

    def _put(self, added: _TrackedRange) -> None:
        """Insert a range instead of those that it overlaps, which are not tracked any more."""
        if _has_bytes(added):
            start, stop, _ = added
            near = self._find(start, stop)
            apart = [each for each in self._ranges[near] if each[1] <= start]
            self._ranges[near] = [*apart, added]

    def _find(self, start: int, stop: int) -> slice:
        """Return the ranges that these bytes overlap, and perhaps the one before them."""
        ranges = self._ranges
        first = last = max(bisect_left(ranges, (start,)) - 1, 0)
        while last < len(ranges) and ranges[last][0] < stop:
            last += 1
        return slice(first, last)

    def _check(self, start: int, stop: int, device: hal.Device) -> None:
        for low, high, reference in self._ranges[self._find(start, stop)]:
            if start < high and start < stop and _tracked(reference) is not None:
                raise InvalidArgumentError(
                    f"adopt: the bytes from {max(low, start):#x} to {min(high, stop):#x} of "
                    f"{device.name} are tracked already; use that tracked buffer, or release it "
                    "first"
                )

    def _prune(self) -> None:
        self._noted = [each for each in self._noted if _tracked(each) is not None]
        self._ranges = [each for each in self._ranges if _tracked(each[2]) is not None]
        self._limit = max(_MANY, 2 * len(self))


def _has_bytes(tracked: _TrackedRange) -> bool:
    return tracked[0] < tracked[1]


def _tracked(reference: weakref.ref[Tracked]) -> hal.Buffer | None:
    """Return the memory of a history, or None if it tracks none any more."""
    history = reference()
    raw = None if history is None else history.raw
    return None if raw is None or raw.closed else raw


_of: Final[WeakKeyDictionary[hal.Device, AddressMap]] = WeakKeyDictionary()


def address_map_of(device: hal.Device) -> AddressMap:
    """Return the tracked memory of a device, the same for all flows."""
    refuse_reentrance(_lock)
    with _lock:
        found = _of.get(device)
        if found is None:
            found = _of[device] = AddressMap()
        return found
