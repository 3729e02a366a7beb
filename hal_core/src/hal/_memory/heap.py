"""The memory of a device: cached, in the order of queues, or foreign (rules M1, M3)."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hal._base import sync
from hal._engine import progress
from hal._engine.operation import is_behind
from hal._memory.blocks import (
    ASYNC,
    DIRECT,
    FOREIGN,
    POOLED,
    Block,
    Owner,
    Ticket,
    aligned,
    block_size,
)
from hal._memory.reaper import INSTANCE, UNLOAD, Doomed, Reaper
from hal._memory.storage import Handle, Module, Storage, Transient
from hal._memory.usage import MEMORY_TYPES
from hal._memory.views import Adopted
from hal.errors import HalError, OperationError, OutOfMemoryError
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._engine.operation import Operation
    from hal._engine.stream import StreamQueue
    from hal._memory.segment_pool import StreamMemory

__all__ = ["Heap"]


_MANY: Final = 4
"""The most allocations that an error lists one by one."""


class Heap(Reaper):
    """The memory and the native handles of one native device."""

    __slots__ = ()

    def allocate(self, size: int, index: int) -> Storage:
        """Return `size` > 0 bytes of a kind of memory, aligned to 256.

        When memory has run out, retires finished work, gives back unused
        and cached memory, and tries once more. Raises
        `OutOfMemoryError`. May block, unless the cache has a block.
        """
        storage = self.reserve(size, index)
        if storage._ticket is None:
            self.grow(storage, size, index)
        storage.publish()
        return storage

    def reserve(self, size: int, index: int) -> Storage:
        """Return a storage without an address, with a cached block if any; no native call."""
        self.refuse_reentrance()
        storage = Storage(self, None, size, MEMORY_TYPES[index], None)
        key = block_size(size) + index
        if self._doomed or self._buckets.get(key):
            with self._lock:
                if self._doomed:
                    self._work_off()
                bucket = self._buckets.get(key)
                if bucket:
                    self._take(bucket, storage, size)
            if self._returning:
                self.absorb()
        return storage

    def grow(self, storage: Storage, size: int, index: int) -> None:
        """Get a block for a storage by a native allocation or from freed memory; may block."""
        try:
            self._allocate_block(storage, size, index)
        except OutOfMemoryError:
            self._context.harvest()
            self.absorb()
            need = block_size(size)
            bucket = self._buckets.get(need + index, [])
            with self._lock:
                self._take(bucket, storage, size)
            if storage._ticket is None:
                self.trim(0)
                try:
                    self._allocate_block(storage, size, index)
                except OutOfMemoryError as error:
                    raise self._out_of_memory(size, MEMORY_TYPES[index], error) from error

    # Memory in the order of queues (M3)

    def take(self, operation: Operation, storage: Transient) -> bool:
        """Give a storage memory that its queue may use from `operation` on; False if there is none.

        Never blocks. The operation is being issued.
        """
        if self._lock._is_owned():
            return False  # a signal handler has interrupted it: a thread of ours tries again
        if self._doomed or self._late:
            self.absorb()
        queue = operation._queue
        if storage.is_async:
            return self._take_async(queue, storage)
        if self._in_hand:
            self._settle_in_hand(queue)
        with self._lock:
            is_found = self._pools[storage.pool].take(queue, storage)
            if is_found:
                self._count(storage.index, storage.size)
        if is_found:
            storage.publish()
            return True
        return storage.grows_async and self._grow_async(operation, storage)

    def _grow_async(self, operation: Operation, storage: Transient) -> bool:
        """Make a segment in the order of the stream, and take from it.

        It replaces segments that are idle there, the largest first, until these are as
        large as the need, and has at least their size. So each time there is more memory
        or there are fewer segments, and a loop of allocas ends up making none.
        """
        queue, native = operation._queue, self._context.native
        number = storage.pool
        pool = self._pools[number]
        size = aligned(storage.size) if number >= len(MEMORY_TYPES) else self._shared
        storage.asked = self._state()  # before: what comes back meanwhile is worth another try
        try:
            if self._memory_limit is not None:
                with self._lock:
                    self._check_limit(max(size - pool.unused(queue), 0))
            operation._stand_alone()
            native.bind()
            size = max(size, self._part_with(queue, pool, size))
            try:
                self._in_hand[queue._id] = native.allocate_async(queue._stream, size)
                self._enter_segment(operation, size, number)
            finally:
                self._settle_in_hand(queue)
        except OutOfMemoryError as error:
            storage.refuse(error)
            if number >= len(MEMORY_TYPES):
                return False
            storage.pool += len(MEMORY_TYPES)  # a piece of a large segment will do, too
        return self.take(operation, storage)

    def _part_with(self, queue: StreamQueue, pool: StreamMemory, size: int) -> int:
        """Free idle segments of a pool in the order of a stream; return how many bytes."""
        freed = 0
        while freed < size:
            with self._lock:
                block = pool.idle_segment(queue)
                if block is not None:
                    self._in_hand[queue._id] = block.address
                    self._drop_segment(block)
            if block is None:
                break
            self._frees += 1
            freed += block.size
            del self._in_hand[queue._id]
            self._context.native.free_async(queue._stream, block.address)
        return freed

    def _enter_segment(self, operation: Operation, size: int, number: int) -> None:
        """Register the segment that was made in the order of a stream."""
        key = operation._queue._id
        address = self._in_hand[key]
        host_address = self._context.native.host_pointer(address, MemoryType.DEVICE)
        with self._lock:
            self._check_limit(size)  # other queues grow, too
            block = Block(address, size, MemoryType.DEVICE, host_address, ASYNC)
            self._add_segment(block, number, (operation,))
            del self._in_hand[key]

    def _settle_in_hand(self, queue: StreamQueue) -> None:
        """Free the segment that a queue was to register or to free, if it is in no books.

        What a Ctrl-C keeps this from the queue's next alloca does, or closing the device.
        """
        if queue._id in self._in_hand:
            with self._lock:
                address = self._lost_in_hand().get(queue._id)
            native = self._context.native
            native.bind()
            del self._in_hand[queue._id]
            if address is not None:
                native.free_async(queue._stream, address)

    def _take_async(self, queue: StreamQueue, storage: Transient) -> bool:
        """Take memory from the driver's own allocator, as `take` does."""
        native, size = self._context.native, storage.size
        storage.asked = self._state()  # before: memory freed meanwhile is worth another try
        try:
            native.bind()
            if self._memory_limit is not None:
                # Memory that its pool keeps does not count: the pool has units of its own.
                with self._lock:
                    self._check_limit(size + self._leaving_streams(queue))
            address = native.allocate_async(queue._stream, size)
        except OutOfMemoryError as error:
            storage.refuse(error)
            return False
        try:
            host_address = native.host_pointer(address, MemoryType.DEVICE)
        except BaseException:
            native.free_async(queue._stream, address)
            raise
        self._add(storage, Block(address, size, MemoryType.DEVICE, host_address, ASYNC), size)
        storage.publish()
        return True

    def give(self, storage: Transient, operation: Operation) -> None:
        """Give a storage's memory back behind an operation that is being issued.

        If something may still use it then, it is given back once that has ended.
        """
        ticket = storage._ticket
        if ticket is None or self._lock._is_owned():
            return
        queue = operation._queue
        with self._lock:
            if not storage.is_over(operation):
                return
            if storage.is_async:
                self._remove(ticket)
                if self._memory_limit is not None:
                    self._leaving_bytes.append((operation, storage.size))
            else:
                self._pools[storage.pool].give(ticket, (operation,))
                self._now[storage.index] -= ticket.size
            storage._ticket = storage.uses = None
        if storage.is_async:
            self._context.native.free_async(queue._stream, ticket.block.address)

    def leave(self, storage: Transient) -> None:
        """Have a storage's memory given back as soon as it is unused: its dealloca has ended."""
        if storage._ticket is not None:
            with self._lock:
                self._late.append(storage)

    def _leaving_streams(self, queue: StreamQueue) -> int:
        """Return the freed bytes that `queue` cannot have yet; under the lock."""
        leaving = self._leaving_bytes
        while leaving and leaving[0][0]._retired:
            leaving.popleft()
        return sum(size for operation, size in leaving if not is_behind(operation, queue))

    def provide(self, queue: StreamQueue, storage: Transient) -> bool:
        """Look for memory for an alloca that found none; return whether it should try again.

        Makes native allocations that may block, so it runs on a thread of the pool. Frees,
        which wait until the device is idle, are left to another thread: `is_freeing` says
        that it is at work.
        """
        self._context.harvest()
        self.absorb()
        state = self._state()
        is_tried = storage.tried == state
        if storage.grows_async and storage.asked != state:
            return True
        storage.tried = state
        need = aligned(storage.size)
        if self._has(queue, storage):
            return True
        if storage.grows_async:
            if not is_tried:
                self._free_for(need)
        elif not is_tried:
            sizes = (need,) if storage.pool >= len(MEMORY_TYPES) else (self._shared, need)
            for size in sizes:
                try:
                    self._allocate_segment(size, storage.pool)
                except OutOfMemoryError as error:
                    storage.refuse(error)
                else:
                    return True
            if storage.pool < len(MEMORY_TYPES):
                storage.pool += len(MEMORY_TYPES)  # a piece of a large segment will do, too
                if self._has(queue, storage):
                    return True
            self._free_for(need)
        return self._has(queue, storage)

    def _free_for(self, need: int) -> None:
        """Have a thread give unused memory back, if that makes room for `need` bytes.

        Not while work runs: a native free waits for that work, and other calls wait for the
        free in the driver. A starved operation tries again when work has ended.
        """
        if self.is_freeing or any(queue._ring for queue in self._context.queues):
            return
        with self._lock:
            unused = self._cached + self._staged + sum(pool.unused() for pool in self._pools)
            held = self._held + self._staged
        limit = self._memory_limit
        room = limit - held if limit is not None else need
        with self._growing:  # keeps the native device open meanwhile
            self._check_open()
            with contextlib.suppress(HalError):  # the device does not tell
                self._context.native.bind()
                room = min(room, self._context.native.memory_info()[0])
                if self.is_pooled:
                    reserved, used = self._context.native.pool_statistics()
                    unused += max(reserved - used, 0)
        if unused and room + unused >= need:
            self.is_freeing = True
            progress.workers.run(self._free_unused)

    def _free_unused(self) -> None:
        try:
            self.trim(0)
        finally:
            self.is_freeing = False
            self._context.feed()

    def pool_of(self, size: int, index: int) -> int:
        """Return the pool to search first for `size` bytes of a kind of memory."""
        return index if size <= self._shared // 2 else index + len(MEMORY_TYPES)

    def _has(self, queue: StreamQueue, storage: Transient) -> bool:
        """Return whether `take` would find memory; the driver's allocator has been asked."""
        if storage.is_async:
            return False
        with self._lock:
            return self._pools[storage.pool].has(queue, storage.size)

    def _state(self) -> tuple[int, int, int]:
        """Return a value that changes whenever memory has been given back."""
        with self._lock:
            return self._frees, self._idle(), self._context.epoch

    def has_changed(self, storage: Transient) -> bool:
        """Return whether memory was given back since the last failed search."""
        self.absorb()
        return (storage.asked if storage.grows_async else storage.tried) != self._state()

    def out_of_memory(self, storage: Transient) -> OutOfMemoryError:
        """Return the failure of an alloca that found no memory; may block."""
        error = storage.error or OutOfMemoryError("the memory is in use")
        return self._out_of_memory(storage.size, storage.memory, error)

    def check_possible(self, size: int, index: int) -> None:
        """Raise `OutOfMemoryError` for an alloca that would fail even if all memory were free."""
        total = self._context.native.info.total_memory
        limit = self._memory_limit
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
        cell = Owner(owner)
        if isinstance(owner, Handle):
            cell.handle = (owner._kind, owner.handle)  # it lives as long as a view
        return self._adopt(address, size, memory, host_address, cell, writable=writable)

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
        native = self._context.native
        for is_last in (False, True):
            try:
                with self._growing:
                    self._check_open()
                    native.bind()
                    address = native.import_host(host_address, size)
                    cell = Owner(owner, host_address, callback)
                    return self._adopt(
                        address, size, MemoryType.HOST, host_address, cell, writable=writable
                    )
            except OperationError:
                if is_last:
                    raise
            self._context.harvest()
            self.trim(self._cache_limit)
        raise AssertionError  # the second attempt has returned or raised

    def _adopt(
        self,
        address: int,
        size: int,
        memory: MemoryType,
        host_address: int | None,
        owner: Owner,
        *,
        writable: bool,
    ) -> Storage:
        progress.start()  # a finaliser cannot
        storage = Adopted(self, None, size, memory, None)
        block = Block(address, size, memory, host_address, FOREIGN)
        block.owner, block.writable = owner, writable
        if owner.imported:
            self._imports[block] = weakref.ref(storage)
        self._add(storage, block, size)
        storage.publish()
        return storage

    @property
    def has_imports(self) -> bool:
        """Whether host memory is imported."""
        return bool(self._imports)

    def find_import(self, host_address: int, size: int) -> Storage | None:
        """Return the storage of imported host memory that holds a range, or None."""
        for block, reference in list(self._imports.items()):
            start = block.host_address
            if start is not None and start <= host_address <= start + block.size - size:
                return reference()
        return None

    @property
    def staged(self) -> int:
        """The bytes of the staging ring."""
        return self._staged

    @property
    def graph_instances(self) -> int:
        """The number of existing native graph instances."""
        return sum(1 for kind, _ in list(self._handles) if kind == INSTANCE)

    def load(self, image: bytes) -> Module:
        """Load a module; raises what `NativeDevice.load_module` does."""
        self.refuse_reentrance()
        self._context.native.bind()
        handle = self._context.native.load_module(image)
        self._own(UNLOAD, handle)
        return Module(self, handle)

    def own(self, kind: int, handle: int) -> Handle:
        """Return the owner of a native handle, which destroys it as its kind requires."""
        self._own(kind, handle)
        return Handle(self, kind, handle)

    def _own(self, kind: int, handle: int) -> None:
        progress.start()  # a finaliser cannot
        with self._lock:
            self._handles.add((kind, handle))

    def doom(self, what: Doomed) -> None:
        """Note what a finaliser releases; takes no lock and makes no native call (I10)."""
        if self._process.is_ending:
            return  # closed: the list is not worked off any more
        self._doomed.append(what)
        if isinstance(what, Ticket):
            block = what.block
            # An estimate is enough: no lock may be taken.
            self._loose += block.size
            small = self._loose + self._idle() <= self._cache_limit
            is_calm = not (self._closed or self._context.starved)
            if small and block.way < DIRECT and is_calm:
                return  # the next allocation works it off
        if not self._asked:
            self._asked = True
            progress.reap_later(self)

    def _out_of_memory(
        self, size: int, memory: MemoryType, error: OutOfMemoryError
    ) -> OutOfMemoryError:
        """Return an error that says what was asked for, and what is there."""
        there = "the device does not tell how much is free"
        with self._growing, contextlib.suppress(HalError):
            self._check_open()
            self._context.native.bind()
            free, total = self._context.native.memory_info()
            there = f"the device has {free:,} of {total:,} bytes free"
        return OutOfMemoryError(
            f"{_digits(size)} bytes of {memory.value} memory were asked for; {there}, and hal "
            f"holds {self._tell_holders()}; close buffers or ask for less ({error})",
            native_name=error.native_name,
            native_code=error.native_code,
        )

    def _tell_holders(self) -> str:
        """Describe what holds the memory, the largest first, and since when."""
        with self._lock:
            kinds = self._recount()
            tickets = [block.ticket for block in self._blocks if block.way != FOREIGN]
            for pool in self._pools:
                tickets += pool.taken.values()
        uses = sorted(
            [ticket for ticket in tickets if ticket is not None and ticket.size],
            key=lambda ticket: -ticket.size,
        )
        now = sync.monotonic()
        largest = [
            f"{ticket.size:,} bytes of {ticket.block.memory.value} memory by "
            f"{'an alloca' if ticket.block.way in {ASYNC, POOLED} else 'an allocation'} for "
            f"{max(now - ticket.since, 0):.3g} s"
            for ticket in uses[:_MANY]
        ]
        more = f", and {len(uses) - _MANY} smaller ones" if len(uses) > _MANY else ""
        held = f" ({', '.join(largest)}{more})" if largest else ""
        plural = "" if len(uses) == 1 else "s"
        cached = sum(sums.cached for sums in kinds)
        return (
            f"{sum(self._now):,} bytes in {len(uses)} allocation{plural}{held}, {cached:,} in its "
            f"cache and {self._staged:,} in its staging ring"
        )


def _digits(size: int) -> str:
    """Return a size in words: Python refuses to print a number of thousands of digits."""
    return f"{size:,}" if size < 1 << 64 else f"2**{size.bit_length() - 1} or more"
