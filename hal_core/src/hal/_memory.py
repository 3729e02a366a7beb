"""Allocate device memory, and give it back without a lock (invariant I10).

A `Storage` is one native allocation. Its finaliser only appends to a deque: the
garbage collector can run it inside any critical section. The progress thread,
or an allocation that fails, works the deque off, since a native free may block
until the device is idle.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hal import _progress, _sync
from hal.errors import HalError, OutOfMemoryError
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._context import Context

__all__ = ["Heap", "MemoryStatistics", "Module", "Storage"]


@dataclass(frozen=True, slots=True)
class MemoryStatistics:
    """Count what a device has allocated through hal.

    Attributes
    ----------
    bytes_now, bytes_peak
        Bytes allocated now, and at the most since the device was opened.
    allocations
        Native allocations that exist now.
    """

    bytes_now: int
    bytes_peak: int
    allocations: int


class HostView:
    """Be the owner behind numpy views of a storage, which lives as long as they do (M2)."""

    __slots__ = ("__array_interface__", "__weakref__", "_storage")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (storage.size,),
            "data": (storage.host_address, False),
        }


class Storage:
    """Own one native allocation; freed some time after the last reference went."""

    __slots__ = ("__weakref__", "_heap", "_view", "address", "host_address", "memory", "size")

    def __init__(
        self, heap: Heap, address: int, size: int, memory: MemoryType, host_address: int | None
    ) -> None:
        self._heap = heap
        self.address = address
        self.size = size
        self.memory = memory
        self.host_address = host_address
        self._view: weakref.ref[HostView] | None = None

    def view(self) -> HostView:
        """Return the owner for a numpy view; the memory is host-visible."""
        view = self._view() if self._view is not None else None
        if view is None:
            view = HostView(self)
            self._view = weakref.ref(view)
        return view

    def is_viewed(self) -> bool:
        """Return whether a numpy view of it is alive."""
        return self._view is not None and self._view() is not None

    def __del__(self) -> None:
        self._heap.doom(FREE, self.address)


class Module:
    """Own one loaded module; unloaded some time after the last reference went."""

    __slots__ = ("_heap", "handle")

    def __init__(self, heap: Heap, handle: int) -> None:
        self._heap = heap
        self.handle = handle

    def __del__(self) -> None:
        self._heap.doom(UNLOAD, self.handle)


FREE: Final = 0
UNLOAD: Final = 1


class Heap:
    """Allocate on one native device, load modules there, and count both."""

    __slots__ = (
        "_asked",
        "_closing",
        "_context",
        "_doomed",
        "_lock",
        "_modules",
        "_now",
        "_peak",
        "_reaping",
        "_storages",
    )

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = _sync.Lock()
        # Held over native frees: who closes the device waits until they are done.
        self._reaping = _sync.Lock()
        # address -> (size, memory, storage)
        self._storages: dict[int, tuple[int, MemoryType, weakref.ref[Storage]]] = {}
        self._modules: set[int] = set()
        self._now = 0
        self._peak = 0
        self._asked = False
        self._closing = False
        self._doomed: deque[tuple[int, int]] = deque()

    def allocate(self, size: int, memory: MemoryType) -> Storage:
        """Return `size` > 0 bytes, aligned to 256.

        When memory has run out, retires finished work, frees what nobody
        holds, and tries once more. Raises `OutOfMemoryError`. May block.
        """
        _progress.start()  # a finaliser cannot
        native = self._context.native
        native.bind()
        try:
            address = native.allocate(size, memory)
        except OutOfMemoryError:
            self._context.harvest()
            self.reap()
            try:
                address = native.allocate(size, memory)
            except OutOfMemoryError as error:
                raise OutOfMemoryError(
                    self._explain(size, memory, error),
                    native_name=error.native_name,
                    native_code=error.native_code,
                ) from error
        storage = Storage(self, address, size, memory, native.host_pointer(address, memory))
        with self._lock:
            self._storages[address] = (size, memory, weakref.ref(storage))
            self._now += size
            self._peak = max(self._peak, self._now)
        return storage

    def load(self, image: bytes) -> Module:
        """Load a module; raises what `NativeDevice.load_module` does."""
        _progress.start()
        self._context.native.bind()
        handle = self._context.native.load_module(image)
        with self._lock:
            self._modules.add(handle)
        return Module(self, handle)

    def doom(self, what: int, handle: int) -> None:
        """Note what a finaliser lets go; takes no lock and makes no native call (I10)."""
        self._doomed.append((what, handle))
        if not self._asked:
            self._asked = True
            _progress.reap_later(self)

    def reap(self) -> None:
        """Free what finalisers have left; blocks as long as the native frees do."""
        self._asked = False
        with self._reaping:
            while self._doomed:
                self._release(*self._doomed.popleft())

    def close(self, *, release_context: bool) -> tuple[str, ...]:
        """Free all but what numpy views still show; the native device closes after the last.

        Returns a line for each of those. Nothing is freed on a lost context,
        which takes its memory along.
        """
        self.reap()
        kept: list[str] = []
        with self._reaping:  # no free may be under way when the native device closes
            with self._lock:
                storages = list(self._storages.items())
                modules = list(self._modules)
            for address, (size, _, reference) in storages:
                storage = reference()
                if storage is not None and storage.is_viewed():
                    kept.append(
                        f"{size:,} bytes at {address:#x} are shown by a numpy view, "
                        "and freed with it"
                    )
                else:
                    self._release(FREE, address)
            for handle in modules:
                self._release(UNLOAD, handle)
            with self._lock:
                self._closing = release_context
                last = release_context and not self._storages
            if last:
                self._context.native.close()
        return tuple(kept)

    def statistics(self) -> MemoryStatistics:
        """Return what is allocated, after freeing what nobody holds."""
        self.reap()
        with self._lock:
            return MemoryStatistics(self._now, self._peak, len(self._storages))

    def _release(self, what: int, handle: int) -> None:
        """Free an allocation or unload a module, once."""
        native = self._context.native
        with self._lock:
            if what == UNLOAD:
                known = handle in self._modules
                self._modules.discard(handle)
                memory = MemoryType.DEVICE
                last = False
            else:
                size, memory, _ = self._storages.pop(handle, (0, MemoryType.DEVICE, None))
                known = size > 0
                self._now -= size
                last = known and self._closing and not self._storages
        if known and self._context.lost is None:
            # A lost context took its memory along; else nobody is left to tell.
            with contextlib.suppress(HalError):
                native.bind()
                if what == UNLOAD:
                    native.unload_module(handle)
                else:
                    native.free(handle, memory)
        if last:
            native.close()

    def _explain(self, size: int, memory: MemoryType, error: OutOfMemoryError) -> str:
        try:
            free, total = self._context.native.memory_info()
            there = f"the device has {free:,} of {total:,} bytes free"
        except HalError:
            there = "the device does not tell how much is free"
        return (
            f"{size:,} bytes of {memory.value} memory were asked for; {there}, and hal holds "
            f"{self._now:,} bytes in {len(self._storages)} allocations; close buffers or ask "
            f"for less ({error})"
        )
