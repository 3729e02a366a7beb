"""Give out the memory of a device, cached and its own or of others (rule M1)."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from hal import _progress
from hal._allocator import ASYNC, DIRECT, FOREIGN, Block, Owner, Ticket, block_size, check_countable
from hal._host_view import Adopted
from hal._reaper import UNLOAD, Doomed, Reaper
from hal._storage import Handle, Module, Storage
from hal._usage import MEMORY_TYPES
from hal.errors import HalError, OperationError, OutOfMemoryError
from hal.native import MemoryType

__all__ = ["Heap"]


class Heap(Reaper):
    """Give out the memory of one native device, and own its handles."""

    __slots__ = ()

    def allocate(self, size: int, index: int) -> Storage:
        """Return `size` > 0 bytes of a kind of memory, aligned to 256.

        When memory has run out, retires finished work, gives back what nobody
        holds and what is cached, and tries once more. Raises
        `OutOfMemoryError`. May block, unless the cache has a block.
        """
        storage = self.reserve(size, index)
        if storage._ticket is None:
            self.grow(storage, size, index)
        storage.publish()
        return storage

    def reserve(self, size: int, index: int) -> Storage:
        """Return a storage without an address, and with a block if the cache has one; no call."""
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
        """Get a storage a block by a native allocation, or from what is given back; may block."""
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

    def place_async(self, stream: int, storage: Storage, size: int) -> None:
        """Get a storage a block by `allocate_async` on a stream; never blocks."""
        native = self._context.native
        try:
            check_countable(size)
            address = native.allocate_async(stream, size)
        except OutOfMemoryError as error:
            self.absorb()
            try:
                check_countable(size)
                address = native.allocate_async(stream, size)
            except OutOfMemoryError:
                raise self._out_of_memory(size, MemoryType.DEVICE, error) from error
        try:
            host_address = native.host_pointer(address, MemoryType.DEVICE)
        except BaseException:
            native.free_async(stream, address)
            raise
        self._add(storage, Block(address, size, MemoryType.DEVICE, host_address, ASYNC), size, 0)
        storage.publish()

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
        """Return a storage over memory of others, which `owner` keeps alive.

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

        Where the driver refuses, retires finished work, gives back what nobody
        holds, the same memory perhaps, and tries once more.
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
        _progress.start()  # a finaliser cannot
        storage = Adopted(self, None, size, memory, None)
        block = Block(address, size, memory, host_address, FOREIGN)
        block.owner, block.writable = owner, writable
        if owner.imported:
            self._imports[block] = weakref.ref(storage)
        self._add(storage, block, size, 0)
        storage.publish()
        return storage

    @property
    def has_imports(self) -> bool:
        """Return whether host memory is imported."""
        return bool(self._imports)

    def find_import(self, host_address: int, size: int) -> Storage | None:
        """Return the storage of imported host memory that holds a range, or None."""
        for block, reference in list(self._imports.items()):
            start = block.host_address
            if start is not None and start <= host_address <= start + block.size - size:
                return reference()
        return None

    def load(self, image: bytes) -> Module:
        """Load a module; raises what `NativeDevice.load_module` does."""
        self.refuse_reentrance()
        self._context.native.bind()
        handle = self._context.native.load_module(image)
        self._own(UNLOAD, handle)
        return Module(self, handle)

    def own(self, kind: int, handle: int) -> Handle:
        """Return the owner of a native handle, which ends it as its kind says."""
        self._own(kind, handle)
        return Handle(self, kind, handle)

    def _own(self, kind: int, handle: int) -> None:
        _progress.start()  # a finaliser cannot
        with self._lock:
            self._handles.add((kind, handle))

    def doom(self, what: Doomed) -> None:
        """Note what a finaliser lets go; takes no lock and makes no native call (I10)."""
        if self._process.is_ending:
            return  # nobody works anything off any more
        self._doomed.append(what)
        if isinstance(what, Ticket):
            block = what.block
            # About right is enough: no lock may be taken.
            self._loose += block.size
            small = self._loose + self._cached <= self._cache_limit
            if small and block.way < DIRECT and not self._closed:
                return  # the next allocation comes by
        if not self._asked:
            self._asked = True
            _progress.reap_later(self)

    def _out_of_memory(
        self, size: int, memory: MemoryType, error: OutOfMemoryError
    ) -> OutOfMemoryError:
        """Say what was asked for, and what is there."""
        try:
            self._context.native.bind()
            free, total = self._context.native.memory_info()
            there = f"the device has {free:,} of {total:,} bytes free"
        except HalError:
            there = "the device does not tell how much is free"
        with self._lock:
            used = self._recount()
        plural = "" if used == 1 else "s"
        # Python prints no number of thousands of digits.
        asked = f"{size:,}" if size < 1 << 64 else f"2**{size.bit_length() - 1} or more"
        return OutOfMemoryError(
            f"{asked} bytes of {memory.value} memory were asked for; {there}, and hal holds "
            f"{self._now:,} bytes in {used} allocation{plural} and {self._cached:,} in its cache; "
            f"close buffers or ask for less ({error})",
            native_name=error.native_name,
            native_code=error.native_code,
        )
