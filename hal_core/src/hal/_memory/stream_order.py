"""Memory that allocas take and deallocas give back, at their issue (rule M3).

Where the driver allocates and frees in the order of streams, each alloca of device memory is
a call to its pool. Elsewhere allocas take pieces of segments (`hal._memory.segment_pool`), which a
thread makes, because a native allocation may block. The thread that takes or gives has the queue's
baton, so nothing of that queue comes between. docs/architecture.md, Memory in the order of streams,
has the rules. `hal._buffers.alloca` has the search for memory for those that found none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

from hal._engine import contexts, progress
from hal._engine.device_context import DeviceContext
from hal._engine.operation import Operation, is_behind
from hal._engine.stream import StreamQueue
from hal._memory.blocks import ASYNC, Block, BlockLease, aligned
from hal._memory.books import Books
from hal._memory.driver_memory import DriverMemory
from hal._memory.reaper import Reaper
from hal._memory.segment_pool import Segment, SegmentPool
from hal._memory.storage import Transient
from hal.errors import HalError, OutOfMemoryError
from hal.handlers import dropped, is_a_handlers, own
from hal.native import MemoryType


class StreamOrder:
    """The memory of allocas of one native device."""

    __slots__ = ("_books", "_context", "_driver", "_leaving", "_reaper", "is_freeing")

    def __init__(
        self, context: DeviceContext, books: Books, driver: DriverMemory, reaper: Reaper
    ) -> None:
        self._context = context
        self._books = books
        self._driver = driver
        self._reaper = reaper
        self.is_freeing = False  # whether a thread gives unused memory back, for an alloca
        # Bytes that the driver's pool has back once an operation has retired; noted with a limit
        self._leaving: deque[tuple[Operation, int]] = deque()

    # At the issue of operations

    def take(self, operation: Operation, storages: Sequence[Transient]) -> bool:
        """Give storages memory that their queue may use from `operation` on: all or nothing.

        They are of one kind of memory, and the operation is being issued. Never blocks.
        """
        # None is kept for later: an operation that had some of it, and waited for the rest, would
        # keep it from another one that does the same.
        books, reaper = self._books, self._reaper
        if books.lock._is_owned():
            return False  # a signal handler has interrupted it: a thread of ours tries again
        if reaper.doomed or reaper.late:
            reaper.absorb()
        if storages[0].is_async:
            return self._allocate(operation, storages)
        with books.lock:
            is_found = books.take_pieces(operation._queue, storages)
        if is_found:
            for storage in storages:
                storage.publish()
        return is_found

    def give(self, storage: Transient, operation: Operation) -> None:
        """Give a storage's memory back behind an operation that is being issued.

        If something may still use it then, it is given back once that has ended.
        """
        lease, books = storage._lease, self._books
        # In a signal handler that has interrupted a holder of the lock: the dealloca's end gives
        # back then, or the finaliser.
        if lease is None or books.lock._is_owned():
            return
        queue = operation._queue
        with books.lock:
            # Issued before the dealloca is not enough: a use on another queue is past only if this
            # queue's stream has waited for it. Else the dealloca's end gives back (`Reaper.leave`).
            if not storage.is_unused(lambda use: use is operation or is_behind(use, queue)):
                return
            if storage.is_async:
                books.remove(lease)
                # The driver has it back when the stream gets there: until then the limit counts
                # it for queues that do not run behind it.
                if books.limit is not None:
                    self._leaving.append((operation, storage.size))
            else:
                books.give_piece(lease, (operation,))
            storage._lease = storage.uses = None
        if storage.is_async and lease.block.address:  # 0: an interrupt came before it was made
            self._context.native.free_async(queue._stream, lease.block.address)

    def _allocate(self, operation: Operation, storages: Sequence[Transient]) -> bool:
        """Have the driver make storages' memory in the order of a stream, as `take` does."""
        # A call for each storage. Segments out of the driver's pool were tried: they saved some of
        # the calls, and held up to a third more memory.
        books, queue, native = self._books, operation._queue, self._context.native
        state = self._state()  # before: memory freed meanwhile is worth another try
        for storage in storages:
            storage.asked = None
        storages[0].asked = state
        try:
            with books.lock:
                if books.limit is not None:  # memory that the driver's pool keeps does not count
                    need = sum([storage.size for storage in storages])
                    books.check_limit(need + self._leaving_streams(queue))
                for storage in storages:
                    # It has it from here on: what an interrupt leaves its finaliser frees.
                    lease = BlockLease(Block(0, storage.size, MemoryType.DEVICE, None, ASYNC), 0)
                    storage._lease = lease
                    books.add(lease)
            for storage in storages:
                storage.asked = state
                block = cast("BlockLease", storage._lease).block
                block.address = native.allocate_async(queue._stream, block.size)
                if self._driver.is_visible:
                    block.host_address = block.address
        except BaseException as error:
            self._unregister(storages, is_made=False)
            if not isinstance(error, OutOfMemoryError) or is_a_handlers(error):
                raise  # the finalisers free what was made
            storages[0].refuse(error)
            for address in self._unregister(storages, is_made=True):
                native.free_async(queue._stream, address)
            return False
        with books.lock:
            for storage in storages:
                books.begin_use(cast("BlockLease", storage._lease), storage.size, ASYNC)
            self._driver.note_in_use(books.pooled)
        for storage in storages:
            storage.publish()
        return True

    def _unregister(self, storages: Sequence[Transient], *, is_made: bool) -> list[int]:
        """Take blocks that the driver has made, or not, from the books; return their addresses."""
        found = []
        for storage in storages:
            lease = storage._lease
            if lease is not None and bool(lease.block.address) == is_made:
                with self._books.lock:
                    self._books.remove(lease)
                    storage._lease = None
                found.append(lease.block.address)
        return found

    def _leaving_streams(self, queue: StreamQueue) -> int:
        """Return the freed bytes that `queue` cannot have yet; under the books' lock."""
        leaving = self._leaving
        while leaving and leaving[0][0]._retired:
            leaving.popleft()
        return sum(size for operation, size in leaving if not is_behind(operation, queue))

    # For operations that starve

    def provide(self, queue: StreamQueue, storages: Sequence[Transient]) -> bool:
        """Look for memory for an operation that found none; return whether it should try again.

        The first storage keeps for all what was tried, and the error.

        Makes native allocations that may block, so it runs on a thread of the pool. Frees,
        which wait until the device is idle, are left to another thread: `is_freeing` says
        that it is at work.
        """
        contexts.harvest(self._context)
        self._reaper.absorb()
        state, first = self._state(), storages[0]
        is_tried = first.tried == state
        if first.is_async and first.asked != state:
            return True  # memory was given back since the driver's pool was asked
        first.tried = state
        missing = self._missing(queue, storages)
        if not missing:
            return True
        if is_tried:
            return False  # none was since all below was done in vain
        if first.is_async:
            # The driver made all but the last one that it was asked for, and took them back.
            made = sum([each.size for each in storages if each.asked is not None][:-1])
        else:
            made = self._allocate_segments(missing)
            missing = self._missing(queue, storages)
            if not missing:
                return True
        self._free_for(sum([aligned(each.size) for each in missing]), made)
        return not self._missing(queue, storages)

    def has_changed(self, storages: Sequence[Transient]) -> bool:
        """Return whether memory was given back since the last failed search."""
        self._reaper.absorb()
        first = storages[0]
        return (first.asked if first.is_async else first.tried) != self._state()

    def _state(self) -> tuple[object, int, object]:
        """Return a value that changes whenever memory has been given back; needs no lock."""
        return self._driver.frees, self._books.unused, self._context.epoch

    def _missing(self, queue: StreamQueue, storages: Sequence[Transient]) -> Sequence[Transient]:
        """Return the storages that `take` finds no piece for; the driver's pool has been asked."""
        if storages[0].is_async:
            return storages
        with self._books.lock:
            return self._books.missing(queue, storages)

    def _allocate_segments(self, missing: Sequence[Transient]) -> int:
        """Make native allocations for the storages up to the first for which there is no memory.

        Returns how many bytes it has made. May block.
        """
        made = 0
        for storage in missing:
            pool, need = storage.pool, aligned(storage.size)
            for size in (need,) if pool.larger is None else (pool.unit, need):
                try:
                    self._allocate_segment(pool, size)
                except own(OutOfMemoryError) as error:
                    missing[0].refuse(error)
                else:
                    made += size
                    break
            else:
                if pool.larger is not None:
                    storage.pool = pool.larger  # a piece of a large segment will do, too
                break
        return made

    def _allocate_segment(self, pool: SegmentPool, size: int) -> None:
        """Make a native allocation for a pool; raises `OutOfMemoryError`. May block."""
        books, driver = self._books, self._driver
        with driver.growing:
            driver.check_open()
            with books.lock:
                books.check_limit(size)
            segment = Segment(pool, size)
            try:
                driver.allocate(segment)
            except BaseException:
                driver.free(segment)  # it is in no books yet: nobody else would
                raise
            with books.lock:
                books.add(BlockLease(segment, 0))
                books.enter(segment)

    def _free_for(self, need: int, made: int) -> None:
        """Have a thread give unused memory back, if that makes room for `need` bytes.

        The bytes that were just made, `made` of them, do not count as unused.
        """
        books = self._books
        # Not while work runs: a native free waits for that work, and other calls wait for the free
        # in the driver. A starved operation tries again when work has ended.
        if self.is_freeing or any(queue._ring for queue in self._context.queues):
            return
        with books.lock:
            unused = sum([block.size for block in books.surplus(0)])
            held = books.counted()
        room = books.limit - held if books.limit is not None else need
        with self._driver.growing:  # keeps the native device open meanwhile
            self._driver.check_open()
            with dropped(HalError):  # the device does not tell
                self._context.native.bind()
                room = min(room, self._context.native.memory_info()[0])
                pool = self._driver.pool_statistics()
                if pool is not None:
                    unused += max(pool[0] - pool[1], 0)
        unused -= made  # else that would be made and given back in turn, for ever
        if unused > 0 and room + unused >= need:
            self.is_freeing = True
            progress.workers.run(self._free_unused)

    def _free_unused(self) -> None:
        try:
            self._reaper.trim(0)
        finally:
            self.is_freeing = False
            contexts.feed(self._context)
