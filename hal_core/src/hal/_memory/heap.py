"""The memory of a device: cached, in the order of queues, or foreign (rules M1, M3).

`Heap` has what the rest of the core asks for, and keeps nothing itself: the four parts that do, and
the lock of each, are in docs/architecture.md, Memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Final, cast

from hal._engine import contexts, progress
from hal._engine.device_context import DeviceContext
from hal._engine.steps import reentrant
from hal._memory.blocks import CACHED, DIRECT, FOREIGN, LARGE, Block, BlockLease, Owner, block_size
from hal._memory.books import Books, MemoryUse, tell_holders
from hal._memory.driver_memory import DriverMemory
from hal._memory.reaper import UNLOAD, Reaper
from hal._memory.settings import MemorySettings
from hal._memory.storage import Handle, Storage
from hal._memory.stream_order import StreamOrder
from hal._memory.usage import MEMORY_TYPES, index_of
from hal._memory.views import Adopted
from hal.errors import HalError, OperationError, OutOfMemoryError
from hal.handlers import dropped, own
from hal.native import MemoryType


class Heap:
    """The memory and the native handles of one native device."""

    __slots__ = ("_context", "_is_fetching", "_locks", "books", "driver", "order", "reaper")

    def __init__(self, context: DeviceContext, settings: MemorySettings | None = None) -> None:
        settings = settings or MemorySettings()
        keep = settings.cache_limit
        if keep is None:
            keep = context.native.info.total_memory // 8
        self._context = context
        self._is_fetching = False
        # Which memory exists and what is in use; under their lock no other is taken
        self.books: Final = Books(settings.memory_limit)
        self.driver: Final = DriverMemory(context, settings, keep)
        self.reaper: Final = Reaper(context, self.books, self.driver, keep)
        # What allocas and deallocas do at their issue
        self.order: Final = StreamOrder(context, self.books, self.driver, self.reaper)
        self._locks = (
            self.books.lock,
            self.driver.growing,
            self.reaper.reaping,
            self.driver.housekeeping,
        )

    def refuse_reentrance(self) -> None:
        """Raise `ReentrantCallError` if the caller has interrupted another call of ours in here."""
        for lock in self._locks:
            if lock._is_owned():
                raise reentrant()

    def allocate(self, size: int, index: int) -> Storage:
        """Return `size` > 0 bytes of a kind of memory, aligned to 256.

        When memory has run out, retires finished work, gives back unused
        and cached memory, and tries once more. Raises
        `OutOfMemoryError`. May block, unless the cache has a block.
        """
        storage = self.reserve(size, index)
        if storage._lease is None:
            self._grow(storage)
        storage.publish()
        return storage

    def allocate_apart(self, size: int) -> Storage:
        """Return device memory that is a native allocation of its own, as `allocate` does."""
        self.refuse_reentrance()
        storage = Storage(self, size, MEMORY_TYPES[0])
        self._grow(storage, DIRECT)
        storage.publish()
        return storage

    def reserve(self, size: int, index: int) -> Storage:
        """Return a storage without an address, with a cached block if any; no native call."""
        self.refuse_reentrance()
        storage = Storage(self, size, MEMORY_TYPES[index])
        books, reaper = self.books, self.reaper
        key = block_size(size) + index
        if reaper.doomed or books.has(key):
            with books.lock:
                is_more = reaper.work_off() if reaper.doomed else False
                books.take(key, storage)
            if is_more:  # without the lock: it makes native calls, for the driver's pool
                reaper.absorb()
        return storage

    def prefetch(self, size: int) -> None:
        """Have a thread put a pinned block of this size into the cache; never blocks."""
        if not self._is_fetching:
            self._is_fetching = True
            try:
                progress.workers.run(self._fetch, size)
            except BaseException:
                self._is_fetching = False
                raise

    def _fetch(self, size: int) -> None:
        try:
            self.allocate(size, index_of(MemoryType.HOST))
        except own(HalError):
            return  # then a host operation has to do
        finally:
            self._is_fetching = False

    def _grow(self, storage: Storage, way: int = CACHED) -> None:
        """Get a block for a storage by a native allocation or from freed memory; may block."""
        try:
            self._allocate_block(storage, way)
        except own(OutOfMemoryError):
            # What costs least comes first: a block that work has just released needs no native
            # call, and a trim waits for native frees and empties the cache for everybody.
            contexts.harvest(self._context)
            if way == CACHED:
                self.reaper.absorb()
                key = block_size(storage.size) + index_of(storage.memory)
                with self.books.lock:
                    self.books.take(key, storage)
            if storage._lease is None:
                self.trim(0)
                try:
                    self._allocate_block(storage, way)
                except own(OutOfMemoryError) as error:
                    raise self.out_of_memory(storage.size, storage.memory, error) from error

    def _allocate_block(self, storage: Storage, way: int) -> None:
        """Make a native allocation for a storage; raises `OutOfMemoryError`. May block."""
        size = storage.size
        need = block_size(size)
        if need > LARGE:
            way = DIRECT
        books = self.books
        # DIRECT until its memory is there: what an interrupt leaves must not get into the cache
        lease = BlockLease(Block(0, need, storage.memory, None, DIRECT), 0)
        with self.driver.growing:
            self.driver.check_open()
            with books.lock:
                books.check_limit(need)
                # The storage has it from here on: what an interrupt leaves its finaliser frees.
                storage._lease = lease
                books.add(lease)
            try:
                self.driver.allocate(lease.block)
            except own(HalError):
                with books.lock:
                    books.remove(lease)
                    storage._lease = None
                self.driver.free(lease.block)
                raise
            with books.lock:
                books.begin_use(lease, size, way)

    def check_possible(self, size: int, index: int) -> None:
        """Raise `OutOfMemoryError` for an alloca that would fail even if all memory were free."""
        total = self._context.native.info.total_memory
        limit = self.books.limit
        if limit is not None and size > limit:
            message = f"memory_limit is {limit:,} bytes"
        elif not index and size > total:
            message = f"the device has {total:,} bytes"
        else:
            return
        raise OutOfMemoryError(
            f"{_digits(size)} bytes of {MEMORY_TYPES[index].value} memory were asked for, and "
            f"{message}; ask for less, or in parts"
        )

    # Foreign memory

    def adopt(
        self,
        address: int,
        size: int,
        memory: MemoryType,
        host_address: int | None,
        owner: object,
        *,
        writable: bool = True,
    ) -> Storage:
        """Return a storage over foreign memory, which `owner` keeps alive.

        The last reference to `owner` is dropped after the storage and all
        views of it are gone, at `close` at the latest, under no lock: by the
        caller of a method that gives memory back, or by the dispatcher.
        """
        cell = owner if isinstance(owner, Owner) else Owner(owner)
        if isinstance(owner, Handle):
            cell.handle = (owner.kind, owner.handle)  # it lives as long as a view
        progress.start()  # a finaliser cannot
        storage = Adopted(self, size, memory)
        block = Block(address, size, memory, host_address, FOREIGN)
        block.owner, block.writable = cell, writable
        lease = BlockLease(block, size)
        with self.books.lock:
            self.books.add(lease)
            storage._lease = lease
        storage.publish()
        return storage

    def import_host(
        self,
        host_address: int,
        size: int,
        owner: object,
        callback: Callable[[], object] | None,
        *,
        writable: bool,
    ) -> Storage:
        """Pin host memory and return a storage over it; undone once the storage is gone.

        If the driver refuses, retires finished work, gives back unused memory, which may be
        the same memory, and tries once more.
        """
        self.refuse_reentrance()
        native, memory = self._context.native, MemoryType.HOST

        def pin() -> Storage:
            with self.driver.growing:
                self.driver.check_open()
                # The books have it from here on: what an interrupt leaves its finaliser releases.
                cell = Owner(None)
                storage = self.adopt(0, size, memory, host_address, cell, writable=writable)
                block = cast("BlockLease", storage._lease).block
                native.bind()
                block.address = native.import_host(host_address, size)
                cell.imported, cell.owner, cell.callback = host_address, owner, callback
                self.books.imports[block] = weakref.ref(storage)
                storage.publish()
                return storage

        try:
            return pin()
        except own(OperationError):
            contexts.harvest(self._context)
            self.trim(self.reaper.cache_limit)
        return pin()

    def find_import(self, host_address: int, size: int) -> Storage | None:
        """Return the storage of imported host memory that holds a range, or None."""
        for block, reference in list(self.books.imports.items()):  # others change it
            start = block.host_address
            if start is not None and start <= host_address <= start + block.size - size:
                return reference()
        return None

    def load(self, image: bytes) -> Handle:
        """Load a module; raises what `NativeDevice.load_module` does."""
        self.refuse_reentrance()
        self._context.native.bind()
        return Handle(self, UNLOAD, self._context.native.load_module(image))

    # The whole of it

    def trim(self, keep: int) -> int:
        """Free unused memory until `keep` bytes of it are left; return the bytes freed.

        Counts the cache, segments and the driver's pool. Blocks as `Reaper.trim` does.
        """
        self.refuse_reentrance()
        before = self._taken()
        self.reaper.trim(keep)
        return max(before - self._taken(), 0)

    def _taken(self) -> int:
        """Return the bytes held of the device, the driver's pool included."""
        with self.books.lock:
            kinds = self.books.survey()
        held = sum([sums.held for sums in kinds])
        if self.driver.is_async:
            with self.driver.growing, dropped(HalError):
                pool = self.driver.pool_statistics()
                if pool is not None:
                    held += max(pool[0] - kinds[0].pooled, 0)
        return held

    def close(self, *, release_context: bool) -> tuple[str, ...]:
        """Give back all memory but that of numpy views, as `Reaper.close` does."""
        self.refuse_reentrance()
        with self.driver.growing:  # a native allocation under way ends first, and no other begins
            self.driver.is_closed = True
        return self.reaper.close(release_context=release_context)

    def statistics(self, *, reset_peak: bool = False) -> tuple[MemoryUse, dict[str, MemoryUse]]:
        """Return the use of memory, in total and by kind, without allocations that nobody holds.

        Never blocks: memory that only a native call can free counts as held until a
        thread of the pool has made the call.
        """
        self.refuse_reentrance()
        self.reaper.absorb()
        with self.books.lock:
            kinds = self.books.survey()
            for lease in self.reaper.uses_over():
                sums = kinds[lease.block.index]
                sums.now -= lease.size
                sums.count -= 1
            peak, peaks = self.books.peak, self.books.peaks
            if reset_peak:
                self.books.peaks = [sums.now for sums in kinds]
                self.books.peak = sum(self.books.peaks)
        with self.driver.housekeeping:  # not `growing`: a native allocation may block for long
            pool = self.driver.pool_statistics()
        if pool is not None:
            reserved, used = pool
            kinds[0].cached += max(reserved - used, 0)
            kinds[0].held += reserved - kinds[0].pooled
        uses = [
            MemoryUse(sums.now, most, sums.cached, sums.held, sums.count)
            for sums, most in zip(kinds, peaks, strict=True)
        ]
        whole = MemoryUse(
            sum(use.bytes_now for use in uses),
            peak,
            sum(use.bytes_cached for use in uses),
            sum(use.bytes_held for use in uses),
            sum(use.allocations for use in uses),
        )
        names = [memory.value for memory in MEMORY_TYPES]
        return whole, dict(zip(names, uses, strict=True))

    def out_of_memory(
        self, size: int, memory: MemoryType, error: OutOfMemoryError | None
    ) -> OutOfMemoryError:
        """Return an error that names the request and the memory that there is; may block."""
        error = error or OutOfMemoryError("the memory is in use")
        there = "the device does not tell how much is free"
        with self.driver.growing, dropped(HalError):
            self.driver.check_open()
            self._context.native.bind()
            free, total = self._context.native.memory_info()
            there = f"the device has {free:,} of {total:,} bytes free"
        return OutOfMemoryError(
            f"{_digits(size)} bytes of {memory.value} memory were asked for; "
            f"{there}, and hal holds {tell_holders(self.books)}; close buffers or ask for less "
            f"({error})",
            native_name=error.native_name,
            native_code=error.native_code,
        )


def _digits(size: int) -> str:
    """Return a size in words: Python refuses to print a number of thousands of digits."""
    return f"{size:,}" if size < 1 << 64 else f"2**{size.bit_length() - 1} or more"
