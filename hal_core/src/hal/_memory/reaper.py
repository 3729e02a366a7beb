"""Give back what finalisers have released (invariant I10).

A finaliser only appends to a deque, because the garbage collector can run it inside any
critical section. The next allocation works the deque off, which puts blocks into
the cache without a native call. Native frees, which may block until the device
is idle, are left to a thread of the pool, or to an allocation that runs out of memory.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from hal._base import sync
from hal._engine import progress
from hal._engine.steps import reentrant
from hal._memory.blocks import ASYNC, CACHED, FOREIGN, POOLED, Block, Owner, Ticket
from hal._memory.books import Allocator
from hal._memory.report import MemoryUse
from hal._memory.settings import MemorySettings
from hal._memory.usage import MEMORY_TYPES
from hal.errors import HalError
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._engine.context import DeviceContext
    from hal._engine.operation import Operation
    from hal._memory.storage import Storage, Transient

__all__ = ["GRAPH", "INSTANCE", "UNLOAD", "Doomed", "Reaper", "process"]

# The kinds of native handles
UNLOAD: Final = 1
GRAPH: Final = 2
INSTANCE: Final = 3

Doomed: TypeAlias = Ticket | tuple[int, int]
"""An entry of a finaliser: a use of a block, or the kind and the number of a native handle."""

_DESTROY: Final = {
    UNLOAD: "unload_module",
    GRAPH: "destroy_graph",
    INSTANCE: "destroy_graph_instance",
}
"""The native call that destroys a handle of each kind."""


class Process:
    """Whether the interpreter is about to tear modules down.

    A finaliser that runs then reaches it through its heap, because globals are gone.
    """

    __slots__ = ("is_ending",)

    def __init__(self) -> None:
        self.is_ending = False


process: Final = Process()


class Reaper(Allocator):
    """The release of unused memory and native handles."""

    __slots__ = (
        "_asked",
        "_doomed",
        "_handles",
        "_housekeeping",
        "_imports",
        "_late",
        "_leaving",
        "_leaving_bytes",
        "_loose",
        "_native_closed",
        "_process",
        "_reaping",
        "_release_context",
        "_returning",
        "_stream",
        "_waste",
    )

    def __init__(self, context: DeviceContext, settings: MemorySettings | None = None) -> None:
        super().__init__(context, settings or MemorySettings())
        # Held during native frees: closing the device waits until they are done.
        self._reaping = sync.OwnedLock()
        # Held during stream-ordered frees, which never block.
        self._housekeeping = sync.OwnedLock()
        self._handles: set[tuple[int, int]] = set()  # kind and handle
        self._doomed: deque[Doomed] = deque()  # released by finalisers
        self._waste: deque[Doomed] = deque()  # to be given back by native calls
        self._returning: deque[Ticket] = deque()  # to be given back by `free_async`
        self._leaving: deque[Owner] = deque()  # of foreign memory that was given back
        self._stream = 0  # the native stream for that
        self._imports: dict[Block, weakref.ref[Storage]] = {}  # pinned host memory
        # What the driver's allocator takes back behind operations that have not retired
        self._leaving_bytes: deque[tuple[Operation, int]] = deque()
        # What a dealloca has not given back at its issue: something used it, or it failed
        self._late: list[Transient] = []
        self._loose = 0  # estimated bytes released since the deque was worked off
        self._asked = False  # a thread of the pool is to reap
        self._release_context = False
        self._native_closed = False
        self._process = process

    def refuse_reentrance(self) -> None:
        """Raise `ReentrantCallError` if the caller has interrupted another call of ours in here."""
        for lock in (self._lock, self._growing, self._reaping, self._housekeeping):
            if lock._is_owned():
                raise reentrant()

    def absorb(self) -> None:
        """Work off what finalisers have left, without native calls that block."""
        with self._lock:
            self._work_off()
        if self._returning:
            with self._housekeeping:
                self._return_async()

    def reap(self) -> None:
        """Give back what finalisers have left and what exceeds the cache; for a thread of the pool.

        Blocks as long as the native frees do. The dispatcher drops owners of foreign
        memory, since that runs code that is not ours.
        """
        self._reap(self._cache_limit)
        if self._leaving:
            progress.dispatcher.append(self._drop_owners)
            progress.dispatcher.wake()
        self._context.feed()

    def trim(self, keep: int) -> int:
        """Free unused memory until `keep` bytes of it are left; return the bytes freed.

        Counts the cache, segments and the driver's pool; not what `trimmed`
        frees. Blocks as long as the native frees do, those of other
        threads included: the caller is about to ask for what they free.
        """
        self.refuse_reentrance()
        before = self._taken()
        for trim in self.trimmed:
            trim()
        self._reap(keep)
        if self.is_pooled:
            with self._growing:
                if not self._closed and self._context.lost is None:
                    self._trim_pool(keep)
        self._drop_owners()
        with self._reaping:
            pass
        return max(before - self._taken(), 0)

    def _taken(self) -> int:
        """Return the bytes held of the device, the driver's pool included."""
        with self._lock:
            pooled = self._recount()[0].pooled
            held = self._held
        if self.is_pooled:
            with self._growing:
                if not self._closed and self._context.lost is None:
                    self._context.native.bind()
                    with contextlib.suppress(HalError):
                        held += max(self._context.native.pool_statistics()[0] - pooled, 0)
        return held

    def _trim_pool(self, keep: int) -> None:
        """Free memory of the driver's pool until `keep` bytes are left.

        The driver gives back only what a synchronisation has shown to be complete, so
        the streams without work are synchronised first, which does not block.
        """
        native = self._context.native
        native.bind()
        with contextlib.suppress(HalError):
            for queue in self._context.queues:
                if not queue._ring and queue._stream:
                    native.synchronize_stream(queue._stream)
            if self._stream:
                native.synchronize_stream(self._stream)
            # Bindings refuse numbers that the driver has no type for.
            native.trim_pool(min(keep, native.info.total_memory))

    def close(self, *, release_context: bool) -> tuple[str, ...]:
        """Give back all but what numpy views show; the last view closes the native device.

        Returns a line for each of those views. Frees nothing on a lost context,
        which takes its memory along.
        """
        self.refuse_reentrance()
        with self._growing:  # a native allocation under way ends first, and no other begins
            with self._lock:
                for address in self._lost_in_hand().values():
                    block = Block(address, 0, MemoryType.DEVICE, None, ASYNC)
                    block.ticket = Ticket(block, 0)
                    self._blocks[block] = None
                self._in_hand.clear()
            self._closed = True
        self.absorb()
        with self._reaping:  # no free may be under way when the native device closes
            kept = self._close_all(release_context=release_context)
        self._drop_owners()
        return tuple(kept)

    def statistics(self, *, reset_peak: bool = False) -> tuple[MemoryUse, dict[str, MemoryUse]]:
        """Return what is allocated, in total and by kind, without what nobody holds.

        Never blocks: memory that only a native call can free counts as held until a
        thread of the pool has made the call.
        """
        self.refuse_reentrance()
        self.absorb()
        with self._lock:
            kinds = self._recount()
            for block, size in dict(filter(None, map(_lies_waste, self._waste.copy()))).items():
                kinds[block.index].now -= size
                kinds[block.index].count -= 1
            peak, peaks = self._peak, self._peaks
            if reset_peak:
                self._peaks = [sums.now for sums in kinds]
                self._peak = sum(self._peaks)
        names = [memory.value for memory in MEMORY_TYPES]
        uses = [
            MemoryUse(sums.now, most, sums.cached, sums.held, sums.count)
            for sums, most in zip(kinds, peaks, strict=True)
        ]
        with self._housekeeping:  # nobody closes the native device meanwhile
            if self.is_pooled and not self._closed and self._context.lost is None:
                self._context.native.bind()
                reserved, used = self._context.native.pool_statistics()
                here = uses[0]
                uses[0] = replace(
                    here,
                    bytes_cached=here.bytes_cached + max(reserved - used, 0),
                    bytes_held=here.bytes_held - kinds[0].pooled + reserved,
                )
        whole = MemoryUse(
            sum(use.bytes_now for use in uses),
            peak,
            sum(use.bytes_cached for use in uses),
            sum(use.bytes_held for use in uses),
            sum(use.allocations for use in uses),
        )
        return whole, dict(zip(names, uses, strict=True))

    def _work_off(self) -> None:
        """Process all that finalisers have left; under the lock.

        An entry leaves the deque after it was processed, so a Ctrl-C repeats it.
        """
        doomed = self._doomed
        self._loose = 0
        if self._late:
            self._late = [storage for storage in self._late if not self._doom_late(storage)]
        while doomed:
            what = doomed[0]
            if isinstance(what, Ticket):
                block = what.block
                if block.ticket is not what:
                    pass  # that use has ended before
                elif block.way == POOLED:
                    self._end_piece(what)
                elif block.way == ASYNC:
                    self._returning.append(what)
                elif block.way == CACHED and not self._closed:
                    self._put_back(block, what.size)
                else:
                    self._waste.append(what)
            else:
                self._waste.append(what)
            doomed.popleft()

    def _doom_late(self, storage: Transient) -> bool:
        """Release a storage's memory whose dealloca has ended, if unused; under the lock.

        Returns whether the storage needs no further look: if others may hold it, its finaliser does
        it.
        """
        ticket = storage._ticket
        if ticket is not None and storage.is_unused():
            self._doomed.append(ticket)
            storage._ticket = storage.uses = None
        return storage.uses is None or storage.lent

    def _end_piece(self, ticket: Ticket) -> None:
        """End a use of `alloca`'s memory that nothing can use any more; under the lock."""
        piece = ticket.block
        for pool in self._pools[piece.index :: len(MEMORY_TYPES)]:
            if pool.give(ticket, ()):
                self._now[piece.index] -= ticket.size
                segment = pool.abandoned(piece) if self._closed else None
                if segment is not None and segment.ticket is not None:
                    self._waste.append(segment.ticket)

    def _return_async(self) -> None:
        """Free unused stream-ordered allocations; with the housekeeping lock."""
        while self._returning:
            try:
                ticket = self._returning.popleft()
            except IndexError:
                return
            with self._lock:
                known = self._remove(ticket)
            if known:
                self._free_async(ticket.block)

    def _free_async(self, block: Block) -> None:
        """Free memory of the driver's pool that nobody uses; with the housekeeping lock."""
        native = self._context.native
        self._frees += 1
        if self._context.lost is None:
            with contextlib.suppress(HalError):
                native.bind()
                if not self._stream:
                    self._stream = native.create_stream()
                native.free_async(self._stream, block.address)

    def _free(self, block: Block) -> None:
        if block.way == ASYNC:
            with self._housekeeping:
                self._free_async(block)
        else:
            super()._free(block)

    def _reap(self, keep: int) -> None:
        """Make the pending native frees; leaves owners to be dropped."""
        self._asked = False
        self.absorb()
        if self._waste or self._idle() > keep or self._closed:
            with self._reaping:
                self._clear_waste()
                if not self._closed:  # else closing has given it all back, pools or not
                    self._give_back(keep)

    def _drop_owners(self) -> None:
        """Drop pending owners of foreign memory; under no lock, because that runs their code."""
        while self._leaving:
            try:
                owner = self._leaving.popleft()
            except IndexError:
                return
            _drop(owner)

    def _clear_waste(self) -> None:
        while self._waste:
            what = self._waste[0]
            if isinstance(what, Ticket):
                self._end_use(what)
            else:
                kind, handle = what
                self._destroy(kind, handle)
            self._waste.popleft()
        self._close_native()

    def _end_use(self, ticket: Ticket) -> None:
        """Give back the block of a use that has ended, once."""
        with self._lock:
            known = self._remove(ticket)
        if not known:
            return
        block = ticket.block
        owner = block.owner
        if owner is None:
            self._free(block)
            return
        block.owner = None
        self._imports.pop(block, None)
        if owner.imported and self._context.lost is None:
            with contextlib.suppress(HalError):  # nobody is left to report to
                self._context.native.bind()
                self._context.native.release_host(owner.imported)
        self._leaving.append(owner)

    def _destroy(self, kind: int, handle: int) -> None:
        """Destroy a native handle, once."""
        with self._lock:
            known = (kind, handle) in self._handles
            self._handles.discard((kind, handle))
        if known and self._context.lost is None:
            native = self._context.native
            with contextlib.suppress(HalError):  # nobody is left to report to
                native.bind()
                getattr(native, _DESTROY[kind])(handle)

    def _close_all(self, *, release_context: bool) -> list[str]:
        """Close as `close` does; with the reaping lock."""
        self._clear_waste()
        kept: list[str] = []
        shown: set[tuple[int, int]] = set()  # modules whose variables are shown by views
        with self._lock:
            blocks = list(self._blocks)
            self._buckets.clear()
        pieces = {segment: uses for pool in self._pools for segment, uses in pool.close()}
        for block in blocks:
            ticket = block.ticket = block.ticket or Ticket(block, 0)
            uses = pieces.get(block)
            if uses:
                kept += map(_tell_view, uses)
            elif block.is_viewed():
                kept.append(_tell_view(ticket))
                owner = block.owner
                if owner is not None and owner.handle is not None:
                    shown.add(owner.handle)
            elif block.way == ASYNC:
                self._returning.append(ticket)
            elif block.way != FOREIGN or release_context:
                # Abandoned work may go on in foreign memory.
                self._end_use(ticket)
        for kind, handle in list(self._handles - shown):
            self._destroy(kind, handle)
        with self._housekeeping:
            self._return_async()
        self._release_context = release_context
        self._close_native()
        return kept

    def _close_native(self) -> None:
        """Close the native device after the last of what had to stay; with the reaping lock."""
        if not self._release_context or self._native_closed or self._blocks or self._handles:
            return
        native = self._context.native
        if self._stream and self._context.lost is None:
            with contextlib.suppress(HalError):
                native.bind()
                native.synchronize_stream(self._stream)
                stream, self._stream = self._stream, 0  # cleared first: never destroyed twice
                native.destroy_stream(stream)
        self._native_closed = True
        native.close()


def _lies_waste(what: Doomed) -> tuple[Block, int] | None:
    """Return the block and the bytes of a use that is over and not given back; under the lock."""
    if not isinstance(what, Ticket) or what.block.ticket is not what or what.block.way == FOREIGN:
        return None
    return what.block, what.size


def _tell_view(ticket: Ticket) -> str:
    return (
        f"{ticket.size:,} bytes at {ticket.block.address:#x} are shown by a numpy view, and freed "
        "with it"
    )


def _drop(owner: Owner) -> None:
    """Drop foreign memory, and have the dispatcher call its callback; no lock held."""
    callback, owner.callback = owner.callback, None
    owner.owner = None
    if callback is not None:
        progress.dispatcher.append(callback)
        progress.dispatcher.wake()
