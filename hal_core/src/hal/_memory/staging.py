"""Copies from and to pageable host memory through a ring of pinned slots (rule M1).

A native copy between the device and pageable memory blocks its caller. So a
host operation, on a thread of the pool, moves the data in pieces: each takes a
slot, and while the device copies one slot the host copies the next. A slot has a
stream of its own, on which its holder waits for that copy alone.

Operations share the slots evenly. An operation that holds slots never waits for another
operation: it waits for its own oldest copy. One that holds no slot stands in line.
So some operation always makes progress.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from hal._base import sync
from hal._base.failures import fresh
from hal._engine import contexts, progress
from hal._engine.device_context import DeviceContext
from hal._memory.heap import Heap
from hal.errors import ClosedError, DeviceLostError, HalError, OperationError, OutOfMemoryError
from hal.handlers import dropped, is_a_handlers, own
from hal.native import MemoryType

Mover: TypeAlias = Callable[[memoryview, int], None]
"""Copies all of a slot's memory from or to a position on the host's side; may block."""

_SLOTS: Final = 4
"""Two operations at once have two each: the host fills one while the device copies the other."""
_ALIGNMENT: Final = 256
_LOOK_SECONDS: Final = 0.1
"""How often a waiter for a slot checks whether the device was lost."""


class _StagingSlot:
    """A piece of pinned memory and the stream that copies it."""

    __slots__ = ("address", "memory", "native_address", "stream")

    def __init__(self, native_address: int, address: int, size: int, stream: int) -> None:
        self.native_address = native_address
        self.address = address  # the host's
        self.memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        self.stream = stream


class _SlotRequest:
    """An operation that stands in line for a slot."""

    __slots__ = ("gate", "slot")

    def __init__(self) -> None:
        self.gate = sync.Lock()  # free once it is served
        self.gate.acquire()
        self.slot: _StagingSlot | None = None


class Staging:
    """The staging ring of one device; its slots are created lazily."""

    __slots__ = (
        "_active",
        "_closed",
        "_context",
        "_count",
        "_fetching",
        "_free",
        "_heap",
        "_lock",
        "_size",
        "_waiting",
    )

    def __init__(self, context: DeviceContext, heap: Heap, size: int) -> None:
        self._context = context
        self._heap = heap
        self._size = max(size // _SLOTS & -_ALIGNMENT, _ALIGNMENT)
        # A leaf: guards the following fields; no native call is made under it.
        self._lock = sync.Lock()
        self._free: list[_StagingSlot] = []
        self._waiting: deque[_SlotRequest] = deque()
        self._count = 0  # slots that exist or are being made
        self._active = 0  # operations under way
        self._closed = False
        self._fetching = False
        heap.reaper.trimmed.append(self.trim)

    def write(self, address: int, size: int, fill: Mover) -> None:
        """Copy `size` bytes to a device address; `fill` puts them into slots, in order.

        Blocks until they are there. Raises what `fill` and the native calls
        raise, once no copy is under way any more.
        """
        busy: deque[_StagingSlot] = deque()
        native = self._context.native
        with self._operation(busy):
            for done in range(0, size, self._size):
                slot = self._take(busy)
                busy.append(slot)
                count = min(self._size, size - done)
                fill(slot.memory[:count], done)
                native.bind()
                native.copy_from_host(slot.stream, address + done, slot.address, count)

    def read(self, address: int, size: int, drain: Mover) -> None:
        """Copy `size` bytes from a device address; `drain` takes them out of slots, in order.

        Otherwise like `write`.
        """
        busy: deque[_StagingSlot] = deque()
        with self._operation(busy):
            self._read(address, size, drain, busy)

    def _read(self, address: int, size: int, drain: Mover, busy: deque[_StagingSlot]) -> None:
        native = self._context.native
        asked = done = 0
        while done < size:
            # First all copies that there are slots for, then the oldest: the device goes on.
            slot = self._next(busy) if asked < size else None
            if slot is not None:
                busy.append(slot)
                count = min(self._size, size - asked)
                native.bind()
                native.copy_to_host(slot.stream, slot.address, address + asked, count)
                asked += count
                continue
            count = min(self._size, size - done)
            contexts.synchronize(self._context, busy[0].stream)
            drain(busy[0].memory[:count], done)
            self._give(busy.popleft())
            done += count

    def prefetch(self, size: int) -> None:
        """Have the cache get a pinned block of this size; never blocks."""
        if not self._fetching:
            self._fetching = True
            try:
                progress.workers.run(self._fetch, size)
            except BaseException:
                self._fetching = False
                raise

    def close(self) -> None:
        """Free the slots; no operation is under way. Does nothing on a lost context."""
        with self._lock:
            self._closed = True
            slots, self._free = self._free, []
        self._destroy(slots)

    def trim(self) -> None:
        """Free the slots that no operation holds."""
        with self._lock:
            slots, self._free = self._free, []
            self._count -= len(slots)
        self._destroy(slots)

    def _destroy(self, slots: list[_StagingSlot]) -> None:
        native = self._context.native
        self._heap.stage(-self._size * len(slots))
        if self._context.lost is None and slots:
            native.bind()
            for slot in slots:
                with dropped(HalError):  # nobody is left to report to
                    native.destroy_stream(slot.stream)
                with dropped(HalError):
                    native.free(slot.native_address, MemoryType.HOST)

    def _fetch(self, size: int) -> None:
        try:
            self._heap.allocate(size, 1)
        except own(HalError):
            return  # then the ring has to do
        finally:
            self._fetching = False

    @contextlib.contextmanager
    def _operation(self, busy: deque[_StagingSlot]) -> Iterator[None]:
        """Count an operation; at its end wait for its copies, whatever happens."""
        with self._lock:
            self._active += 1
        try:
            try:
                yield
            finally:
                # Copies under way use slots, and memory that is given back after this.
                while busy:
                    self._finish_oldest(busy)
        except own(DeviceLostError) as error:
            contexts.lose(self._context, error)
            raise
        finally:
            with self._lock:
                self._active -= 1
            while busy:  # of a lost device
                self._give(busy.popleft())

    def _take(self, busy: deque[_StagingSlot]) -> _StagingSlot:
        """Return a slot, the operation's own oldest one if need be, once its copy has ended."""
        slot = self._next(busy)
        while slot is None:
            self._finish_oldest(busy)
            slot = self._next(busy)
        return slot

    def _next(self, busy: deque[_StagingSlot]) -> _StagingSlot | None:
        """Return a slot, or None if the operation must give back one of its own first."""
        while True:
            waiter = None
            with self._lock:
                self._check()
                if busy and len(busy) >= _SLOTS // self._active:
                    return None  # it has its share
                if self._free:
                    return self._free.pop()
                grow = self._count < _SLOTS
                if grow:
                    self._count += 1
                elif busy:
                    return None
                else:
                    waiter = _SlotRequest()
                    self._waiting.append(waiter)
            slot = self._make(alone=not busy) if waiter is None else self._stand_in_line(waiter)
            # Without any it tries again; with one the caller waits for its own oldest copy.
            if slot is not None or busy:
                return slot

    def _make(self, *, alone: bool) -> _StagingSlot | None:
        """Return a new slot, already counted; without memory another one's, or None."""
        native, memory = self._context.native, MemoryType.HOST
        try:
            native.bind()
            try:
                address = self._allocate(is_needed=False)
            except own(OutOfMemoryError):
                self._heap.trim(0)
                address = self._allocate(is_needed=alone)
            try:
                host_address = native.host_pointer(address, memory)
                if host_address is None:
                    message = "the driver does not say where the host sees pinned memory"
                    raise OperationError(message)  # noqa: TRY301
                return _StagingSlot(address, host_address, self._size, native.create_stream())
            except BaseException:
                native.free(address, memory)
                self._heap.stage(-self._size)
                raise
        except BaseException as error:
            with self._lock:
                self._count -= 1
                others = self._count
                waiter = self._waiting.popleft() if self._waiting else None
                mine = None
                is_full = isinstance(error, OutOfMemoryError) and not is_a_handlers(error)
                if is_full and others and alone:
                    mine = _SlotRequest()
                    self._waiting.append(mine)
            if waiter is not None:
                waiter.gate.release()  # it may be luckier
            if mine is not None:
                return self._stand_in_line(mine)
            if is_full and others:
                return None
            raise

    def _allocate(self, *, is_needed: bool) -> int:
        """Return the native address of the memory of a new slot, which is counted.

        The first slot may exceed the memory limit: no copy could be made without one.
        """
        self._heap.stage(self._size, is_needed=is_needed and self._count == 1)
        try:
            self._context.native.bind()
            return self._context.native.allocate(self._size, MemoryType.HOST)
        except BaseException:
            self._heap.stage(-self._size)
            raise

    def _stand_in_line(self, waiter: _SlotRequest) -> _StagingSlot | None:
        """Wait for a slot; None if the caller should try to make one."""
        while not waiter.gate.acquire(timeout=_LOOK_SECONDS):
            lost = self._context.lost
            if lost is None:
                continue
            with self._lock:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
            if waiter.slot is not None:  # it was served at the last moment
                self._give(waiter.slot)
            raise fresh(lost)
        return waiter.slot

    def _check(self) -> None:
        """Raise if no slot will become available; under the lock."""
        if self._context.lost is not None:
            raise fresh(self._context.lost)
        if self._closed:
            message = f"{self._context.name} is closed; open it again with hal.create_device"
            raise ClosedError(message)

    def _finish_oldest(self, busy: deque[_StagingSlot]) -> None:
        """Wait for an operation's oldest copy and give its slot back."""
        contexts.synchronize(self._context, busy[0].stream)
        self._give(busy.popleft())

    def _give(self, slot: _StagingSlot) -> None:
        """Give a slot to the longest waiter, or back to the ring."""
        # It is handed over: from the ring an operation that has just come would take it, and those
        # that stand in line might never have one.
        with self._lock:
            waiter = self._waiting.popleft() if self._waiting else None
            if waiter is None:
                self._free.append(slot)
            else:
                waiter.slot = slot
        if waiter is not None:
            waiter.gate.release()
