"""Memory that allocas take and deallocas give back, at their issue (rule M3).

Where the driver allocates and frees in the order of streams, device memory comes from its
pool, in segments: a native call for each alloca costs more than twice a piece of one. When
no piece is large enough a larger segment is made in the place of idle ones, so each time there
is more memory or there are fewer segments, and a loop of allocas ends up making none.
Elsewhere a thread makes segments, because a native allocation may block.

`hal._buffers.alloca` has the search for memory for those that found none.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from hal._engine import progress
from hal._engine.operation import is_behind
from hal._memory.blocks import ASYNC, DIRECT, Block, Ticket, aligned
from hal._memory.segment_pool import Segment
from hal.errors import HalError, OutOfMemoryError
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._engine.context import DeviceContext
    from hal._engine.operation import Operation
    from hal._engine.stream import StreamQueue
    from hal._memory.books import Books
    from hal._memory.driver_memory import DriverMemory
    from hal._memory.reaper import Reaper
    from hal._memory.segment_pool import SegmentPool
    from hal._memory.storage import Transient

__all__ = ["StreamOrder"]


class StreamOrder:
    """The memory of allocas of one native device.

    Attributes
    ----------
    is_freeing
        Whether a thread gives unused memory back, for an alloca.
    """

    __slots__ = ("_books", "_context", "_driver", "_in_hand", "_leaving", "_reaper", "is_freeing")

    def __init__(
        self, context: DeviceContext, books: Books, driver: DriverMemory, reaper: Reaper
    ) -> None:
        self._context = context
        self._books = books
        self._driver = driver
        self._reaper = reaper
        self.is_freeing = False
        # By a queue's id: what it is about to make or to free in stream order. It is in the books
        # and in no pool. What a Ctrl-C leaves there the queue's next alloca frees, or closing.
        self._in_hand: dict[int, list[Ticket]] = {}
        # What the driver's allocator takes back behind operations that have not retired
        self._leaving: deque[tuple[Operation, int]] = deque()

    # At the issue of operations

    def take(self, operation: Operation, storage: Transient) -> bool:
        """Give a storage memory that its queue may use from `operation` on; False if there is none.

        Never blocks. The operation is being issued.
        """
        books, reaper = self._books, self._reaper
        if books.lock._is_owned():
            return False  # a signal handler has interrupted it: a thread of ours tries again
        if reaper.doomed or reaper.late:
            reaper.absorb()
        queue = operation._queue
        if self._in_hand:
            self._settle(queue)
        if storage.is_async:
            return self._grow(operation, storage)
        with books.lock:
            is_found = books.take_piece(queue, storage)
        if is_found:
            storage.publish()
            return True
        return storage.grows_async and self._grow(operation, storage)

    def give(self, storage: Transient, operation: Operation) -> None:
        """Give a storage's memory back behind an operation that is being issued.

        If something may still use it then, it is given back once that has ended.
        """
        ticket, books = storage._ticket, self._books
        if ticket is None or books.lock._is_owned():
            return
        with books.lock:
            if not storage.is_over(operation):
                return
            if storage.is_async:
                books.remove(ticket)
                if books.limit is not None:
                    self._leaving.append((operation, storage.size))
            else:
                books.give_piece(ticket, (operation,))
            storage._ticket = storage.uses = None
        if storage.is_async:
            self._context.native.free_async(operation._queue._stream, ticket.block.address)

    def _grow(self, operation: Operation, storage: Transient) -> bool:
        """Have the driver make a storage's memory, or a segment to take it from, as `take` does."""
        pool, block = storage.pool, Block(0, storage.size, MemoryType.DEVICE, None, ASYNC)
        storage.asked = self._state()  # before: memory freed meanwhile is worth another try
        try:
            if not storage.is_async:
                size = self._part_with(operation, pool, pool.unit or aligned(storage.size))
                block = Segment(pool, size, 0, None, ASYNC)
            self._make(operation, storage, block)
        except OutOfMemoryError as error:
            storage.refuse(error)
            if storage.is_async or pool.larger is None:
                return False
            storage.pool = pool.larger  # a piece of a large segment will do, too
        finally:
            self._settle(operation._queue)
        if storage.is_async:
            storage.publish()
            return True
        return self.take(operation, storage)

    def _part_with(self, operation: Operation, pool: SegmentPool, size: int) -> int:
        """Free idle segments in the order of a stream; return their bytes, `size` at least.

        The largest go first, until they are as large as the need.
        """
        books, queue = self._books, operation._queue
        hand = self._in_hand.setdefault(queue._id, [])
        freed = 0
        with books.lock:
            idle = books.idle_segments(pool, queue)
            books.check_limit(max(size - sum([segment.size for segment in idle]), 0))
            for segment in idle:
                if freed >= size:
                    break
                ticket = Ticket(segment, 0)
                hand.append(ticket)
                books.withdraw(ticket)
                freed += segment.size
        operation._stand_alone()
        self._settle(queue)
        return max(size, freed)

    def _make(self, operation: Operation, storage: Transient, block: Block) -> None:
        """Allocate a block in the order of a stream: a segment, or the memory of a storage."""
        books, queue, native = self._books, operation._queue, self._context.native
        hand = self._in_hand.setdefault(queue._id, [])
        ticket = Ticket(block, 0)
        with books.lock:
            if books.limit is not None:  # memory that the driver's pool keeps does not count
                books.check_limit(block.size + self._leaving_streams(queue))
            hand.append(ticket)
            books.add(ticket)
        native.bind()
        block.address = native.allocate_async(queue._stream, block.size)
        block.host_address = native.host_pointer(block.address, MemoryType.DEVICE)
        with books.lock:
            if isinstance(block, Segment):
                books.enter(block, (operation,))
            else:
                books.begin_use(ticket, storage)
            del hand[0]

    def _settle(self, queue: StreamQueue) -> None:
        """Free what a queue has in hand, in the order of its stream."""
        hand = self._in_hand.get(queue._id)
        if hand is None:
            return
        while hand:
            ticket = hand[0]
            with self._books.lock:
                is_known = self._books.remove(ticket)
            address = ticket.block.address
            if is_known and address:
                self._driver.frees += 1
                self._context.native.bind()
                self._context.native.free_async(queue._stream, address)
            del hand[0]
        del self._in_hand[queue._id]

    def _leaving_streams(self, queue: StreamQueue) -> int:
        """Return the freed bytes that `queue` cannot have yet; under the lock."""
        leaving = self._leaving
        while leaving and leaving[0][0]._retired:
            leaving.popleft()
        return sum(size for operation, size in leaving if not is_behind(operation, queue))

    # For what starves

    def provide(self, queue: StreamQueue, storage: Transient) -> bool:
        """Look for memory for an alloca that found none; return whether it should try again.

        Makes native allocations that may block, so it runs on a thread of the pool. Frees,
        which wait until the device is idle, are left to another thread: `is_freeing` says
        that it is at work.
        """
        self._context.harvest()
        self._reaper.absorb()
        state = self._state()
        is_tried = storage.tried == state
        if storage.grows_async and storage.asked != state:
            return True
        storage.tried = state
        if self._has(queue, storage):
            return True
        need = aligned(storage.size)
        if is_tried:
            return False
        if not storage.grows_async:
            pool = storage.pool
            for size in (need,) if pool.larger is None else (pool.unit, need):
                try:
                    self._allocate_segment(pool, size)
                except OutOfMemoryError as error:
                    storage.refuse(error)
                else:
                    return True
            if pool.larger is not None:
                storage.pool = pool.larger  # a piece of a large segment will do, too
                if self._has(queue, storage):
                    return True
        self._free_for(need)
        return self._has(queue, storage)

    def has_changed(self, storage: Transient) -> bool:
        """Return whether memory was given back since the last failed search."""
        self._reaper.absorb()
        return (storage.asked if storage.grows_async else storage.tried) != self._state()

    def _state(self) -> tuple[int, int, int]:
        """Return a value that changes whenever memory has been given back."""
        with self._books.lock:
            return self._driver.frees, self._books.unused, self._context.epoch

    def _has(self, queue: StreamQueue, storage: Transient) -> bool:
        """Return whether `take` would find memory; the driver's allocator has been asked."""
        if storage.is_async:
            return False
        with self._books.lock:
            return self._books.has_piece(queue, storage)

    def _allocate_segment(self, pool: SegmentPool, size: int) -> None:
        """Make a native allocation for a pool; raises `OutOfMemoryError`. May block."""
        books, driver = self._books, self._driver
        with driver.growing:
            driver.check_open()
            with books.lock:
                books.check_limit(size)
            address, host_address = driver.allocate(size, pool.index)
            segment = Segment(pool, size, address, host_address, DIRECT)
            with books.lock:
                books.add(Ticket(segment, 0))
                books.enter(segment, ())

    def _free_for(self, need: int) -> None:
        """Have a thread give unused memory back, if that makes room for `need` bytes.

        Not while work runs: a native free waits for that work, and other calls wait for the
        free in the driver. A starved operation tries again when work has ended.
        """
        books = self._books
        if self.is_freeing or any(queue._ring for queue in self._context.queues):
            return
        with books.lock:
            unused = sum([block.size for block in books.surplus(0)]) + books.staged
            held = books.held + books.staged
        room = books.limit - held if books.limit is not None else need
        with self._driver.growing:  # keeps the native device open meanwhile
            self._driver.check_open()
            with contextlib.suppress(HalError):  # the device does not tell
                self._context.native.bind()
                room = min(room, self._context.native.memory_info()[0])
                pool = self._driver.pool_statistics()
                if pool is not None:
                    unused += max(pool[0] - pool[1], 0)
        if unused and room + unused >= need:
            self.is_freeing = True
            progress.workers.run(self._free_unused)

    def _free_unused(self) -> None:
        try:
            self._reaper.trim(0)
        finally:
            self.is_freeing = False
            self._context.feed()
