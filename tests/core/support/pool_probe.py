"""Allocate in the order of a stream as drivers do, from a pool, and watch that order."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from hal.errors import OutOfMemoryError
from hal.native import MemoryType

__all__ = ["Order", "PoolCalls"]

_ALIGNMENT = 512
_POISONED = 1 << 20
"""Larger blocks are not filled when they are allocated and freed."""


class Order:
    """Know which places of streams come before which, by the records and waits of events.

    A place is a stream and a number. Of events that others have recorded
    nothing is known: a wait for one counts as a wait for everything.
    """

    def __init__(self):
        self._next = itertools.count(1)
        self._behind = defaultdict(dict)  # stream -> stream -> the highest number before its end
        self._records = {}  # event -> what it stands for

    def place(self, stream):
        """Return a new place at the end of a stream."""
        self._behind[stream][stream] = number = next(self._next)
        return stream, number

    def record(self, event, stream):
        self._records[event] = dict(self._behind[stream])

    def wait(self, stream, event):
        behind = self._behind[stream]
        known = self._records.get(event)
        if known is None:
            last = next(self._next)
            known = dict.fromkeys(list(self._behind), last)
        for other, number in known.items():
            behind[other] = max(number, behind.get(other, 0))

    def is_before(self, place, stream):
        """Return whether a place comes before what is enqueued on a stream next."""
        return self._behind[stream].get(place[0], 0) >= place[1]


ORDER = Order()
"""Of all probes: streams wait for each other's events across devices."""


@dataclass
class PoolBlock:
    """Memory of a pool: in use, or freed at a place of a stream."""

    address: int
    size: int
    born: tuple = ()
    freed: tuple = ()
    events: list = field(default_factory=list)  # the probe's own, behind the two places


class PoolCalls:
    """Make a pool over a real device's memory; a part of `native_probe.Probe`.

    A block can be had again at once by the stream that freed it, by others
    where event order allows it, or when its free is complete: blocks are not
    split. Contents are overwritten at both places. With `room` it is all the
    memory that the device has.

    Violations: a free with work that nothing orders before it, and a use of
    memory that is not ordered behind its allocation.
    """

    __slots__ = ()

    def _start_pool(self):
        self.room = None
        self.pool = []
        self.pool_settings = None  # (keep, reuse)

    def configure_pool(self, keep, reuse):
        self._enter("configure_pool")
        if self.pool_settings is not None or self.calls["allocate_async"]:
            self._violate("configure_pool is called late, or twice")
        if keep < 0 or reuse not in {"stream", "ordered", "any"}:
            self._violate(f"configure_pool({keep}, {reuse!r})")
        self.pool_settings = keep, reuse

    def allocate_async(self, stream, size):
        self._enter("allocate_async", stream)
        try:
            with self._lock:
                block = self._find_block(stream, size) or self._grow_pool(size)
                block.born, block.freed = ORDER.place(stream), ()
                self._settle(block, stream, 0xCD)
                return self._born("async allocation", block.address, size)
        finally:
            self._leave(stream)

    def free_async(self, stream, address):
        self._enter("free_async", stream)
        try:
            with self._lock:
                size = self.alive["async allocation"].get(address, 0)
                self._check_unused(address, size, stream)
                self._dies("async allocation", address)
                for block in self.pool:
                    if block.address == address:
                        block.freed = ORDER.place(stream)
                        self._settle(block, stream, 0xDD)
        finally:
            self._leave(stream)

    def pool_statistics(self):
        self._enter("pool_statistics")
        with self._lock:
            used = [block.size for block in self.pool if not block.freed]
            return sum(block.size for block in self.pool), sum(used)

    def trim_pool(self, keep):
        self._enter("trim_pool")
        self._trim(keep)

    # Blocks

    def check_born(self, name, stream, start, length):
        """Look whether work on a stream is ordered behind the allocation of what it uses."""
        for block in self.pool:
            inside = block.address < start + length and start < block.address + block.size
            if inside and not self._is_past(block, block.born, stream):
                self._violate(f"{name} at {start:#x} is not ordered behind its allocate_async")

    def _is_past(self, block, place, stream):
        complete = all(map(self.inner.query_event, block.events))
        return complete or ORDER.is_before(place, stream)

    def _find_block(self, stream, size):
        """Return the smallest block that is free for a stream, or None."""
        found = [
            block
            for block in self.pool
            if block.freed and block.size >= size and self._is_past(block, block.freed, stream)
        ]
        return min(found, key=lambda block: block.size, default=None)

    def _grow_pool(self, size):
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        try:
            self.take_room(size)
        except OutOfMemoryError:
            self._trim(0)  # blocks of other sizes
            self.take_room(size)
        block = PoolBlock(self.inner.allocate(size, MemoryType.DEVICE), size)
        self.pool.append(block)
        return block

    def take_room(self, size):
        """Raise unless so much memory is left."""
        # Copies: other threads allocate meanwhile.
        pooled = [block.size for block in list(self.pool)]
        held = sum(pooled) + sum(list(self.alive["allocation"].values()))
        if self.room is not None and held + size > self.room:
            message = f"{size} bytes were asked for and {self.room - held} are left"
            raise OutOfMemoryError(message, native_name="ACME_NO_MEMORY", native_code=2)

    def _settle(self, block, stream, pattern):
        """Fill a block, and note where that is."""
        if block.size <= _POISONED:
            self.inner.fill(stream, block.address, pattern, 1, block.size)
        event = self.inner.create_event()
        self.inner.record_event(event, stream)
        block.events.append(event)

    def _trim(self, keep):
        with self._lock:
            held = sum(block.size for block in self.pool)
            for block in [each for each in self.pool if each.freed]:
                if held > keep and all(map(self.inner.query_event, block.events)):
                    held -= block.size
                    self._drop_block(block)

    def _drop_block(self, block):
        self.pool.remove(block)
        for event in block.events:
            self.inner.destroy_event(event)
        self.inner.free(block.address, MemoryType.DEVICE)

    def _end_pool(self):
        """Give all blocks back, once the streams are gone."""
        for block in [*self.pool]:
            self._drop_block(block)
