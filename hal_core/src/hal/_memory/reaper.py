"""Give back what finalisers have released (invariant I10).

A finaliser only appends to a deque, because the garbage collector can run it inside any
critical section. The next allocation works the deque off, which puts blocks into
the cache without a native call. Native frees, which may block until the device
is idle, are left to a thread of the pool, or to an allocation that runs out of memory.

The rejected alternative, to free at the next allocation, would stop the user's thread at a place
where nothing says so. A thread of the device's own would sleep most of the time, and be one more
to start and to end with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from hal._base import sync
from hal._engine import contexts, progress
from hal._memory.blocks import ASYNC, CACHED, DIRECT, FOREIGN, POOLED, BlockLease, Owner, Releasable
from hal.errors import HalError
from hal.handlers import dropped, own

if TYPE_CHECKING:
    from hal._engine.device_context import DeviceContext
    from hal._memory.books import Books
    from hal._memory.driver_memory import DriverMemory
    from hal._memory.storage import Transient


# The kinds of native handles
UNLOAD: Final = 1
GRAPH: Final = 2
INSTANCE: Final = 3

Doomed: TypeAlias = BlockLease | tuple[int, int]
"""An entry of a finaliser: a use of a block, or the kind and the number of a native handle."""

_DESTROY: Final = {
    UNLOAD: "unload_module",
    GRAPH: "destroy_graph",
    INSTANCE: "destroy_graph_instance",
}
"""The native call that destroys a handle of each kind."""


class Process:
    """The state of the interpreter: whether it is about to tear modules down.

    A finaliser that runs then finds it through its reaper, because globals are gone.
    """

    __slots__ = ("is_ending",)

    def __init__(self) -> None:
        self.is_ending = False


process: Final = Process()


class Reaper:
    """The release of unused memory and native handles of one native device.

    An entry leaves its deque only after it was processed, so after a Ctrl-C it is processed again.
    That does nothing to a lease whose use has ended.
    """

    __slots__ = (
        "_asked",
        "_books",
        "_context",
        "_driver",
        "_handles",
        "_leaving",
        "_loose",
        "_process",
        "_release_context",
        "_returning",
        "_waste",
        "cache_limit",
        "doomed",
        "late",
        "reaping",
    )

    def __init__(
        self, context: DeviceContext, books: Books, driver: DriverMemory, cache_limit: int
    ) -> None:
        self._context = context
        self._books = books
        self._driver = driver
        self.cache_limit = cache_limit  # the most unused bytes that are kept
        # Held during native frees: closing the device waits until they are done
        self.reaping: Final = sync.OwnedLock()
        self._handles: set[tuple[int, int]] = set()  # kind and handle; guarded by the books' lock
        self.doomed: deque[Doomed] = deque()  # left by finalisers for `absorb`
        # To be given back by native calls; the books' lock guards it
        self._waste: deque[Doomed] = deque()
        self._returning: deque[BlockLease] = deque()  # to be given back by `free_async`
        self._leaving: deque[Owner] = deque()  # of foreign memory that was given back
        # What a dealloca has not given back at its issue: something used it, or it failed
        self.late: list[Transient] = []
        self._loose = 0  # estimated bytes released since the deque was worked off
        self._asked = False  # a thread of the pool is to reap
        self._release_context = False
        self._process = process

    # Native handles

    def own(self, kind: int, handle: int) -> None:
        """Register a native handle."""
        progress.start()  # a finaliser cannot
        with self._books.lock:
            self._handles.add((kind, handle))

    def count(self, kind: int) -> int:
        """Return the number of existing handles of a kind."""
        return sum(1 for each, _ in list(self._handles) if each == kind)  # others change it

    # What finalisers and deallocas leave

    def doom(self, what: Doomed) -> None:
        """Note what a finaliser releases; takes no lock and makes no native call (I10)."""
        if self._process.is_ending:
            return  # closed: the list is not worked off any more
        self.doomed.append(what)
        if isinstance(what, BlockLease):
            block = what.block
            # An estimate is enough: no lock may be taken.
            self._loose += block.size
            # The next allocation works it off, unless none may come: an operation that starves
            # makes none, and nor does a closed device.
            if (
                block.way < DIRECT
                and self._loose + self._books.unused <= self.cache_limit
                and not (self._driver.is_closed or self._context.starved)
            ):
                return
        if not self._asked:
            self._asked = True
            progress.reap_later(self.reap)

    def leave(self, storage: Transient) -> None:
        """Have a storage's memory given back as soon as it is unused: its dealloca has ended."""
        with self._books.lock:
            self.late.append(storage)

    def absorb(self) -> None:
        """Work off what finalisers have left, without native calls that block."""
        with self._books.lock:
            self.work_off()
        if self._returning:
            with self._driver.housekeeping:
                self._return_async()

    def work_off(self) -> bool:
        """Process all that finalisers have left; under the books' lock.

        Returns whether `absorb` would find more.
        """
        books, doomed = self._books, self.doomed
        self._loose = 0
        # These first: what they release joins the others.
        if self.late:
            self.late = [storage for storage in self.late if not self._doom_late(storage)]
        while doomed:
            what = doomed[0]
            if not isinstance(what, BlockLease):
                self._waste.append(what)
            elif what.block.lease is what:  # else that use has ended before
                way = what.block.way
                if way == POOLED:
                    books.give_piece(what, ())
                elif way == ASYNC:
                    self._returning.append(what)
                elif way == CACHED and not self._driver.is_closed:
                    books.put_back(what)
                else:
                    self._waste.append(what)
            doomed.popleft()  # last: an entry that an interrupt cuts short is processed again
        return bool(self._returning)

    def _doom_late(self, storage: Transient) -> bool:
        """Release a storage's memory whose dealloca has ended, if unused; under the books' lock.

        Returns whether the storage can be forgotten. One that others may hold is left to its
        finaliser.
        """
        lease = storage._lease
        if lease is not None and storage.is_unused():
            self.doomed.append(lease)
            storage._lease = storage.uses = None
        return storage.uses is None or storage.lent

    def uses_over(self) -> list[BlockLease]:
        """Return ended uses of hal's memory that are not given back; under the books' lock."""
        leases = dict.fromkeys([what for what in self._waste if isinstance(what, BlockLease)])
        return [
            each
            for each in leases
            if each.block.lease is each and each.block.way != FOREIGN and each.size
        ]

    # Giving back

    def reap(self) -> None:
        """Give back what finalisers have left and what exceeds the cache; for a thread of the pool.

        Blocks as long as the native frees do. The dispatcher drops owners of foreign
        memory, since that runs code that is not ours.
        """
        self._reap(self.cache_limit)
        if self._leaving:
            progress.dispatcher.append(self.drop_owners)
            progress.dispatcher.wake()
        contexts.feed(self._context)

    def trim(self, keep: int) -> None:
        """Free unused memory until `keep` bytes of it are left.

        Blocks for the native frees, also for those that other threads are making: the caller is
        about to ask for that memory.
        """
        self._reap(keep)
        self._driver.trim_pool(keep)  # after the frees: some go to the pool
        self.drop_owners()

    def while_open(self, function: Callable[[], object]) -> None:
        """Call a function that makes native calls, unless a close has begun, which waits for it."""
        with self.reaping:
            if not self._driver.is_closed:
                function()

    def _reap(self, keep: int) -> None:
        """Make the pending native frees; leaves owners to be dropped."""
        # First: what a finaliser leaves behind the look at the deque has a thread asked again.
        self._asked = False
        self.absorb()
        if self._driver.is_closed:
            keep = 0
        if self._waste or self._books.unused > keep or self._driver.is_closed:
            with self.reaping:
                self._free_waste(keep)

    def _free_waste(self, keep: int) -> None:
        """Free all waste, and unused blocks until `keep` bytes are left; with the reaping lock."""
        books, waste = self._books, self._waste
        while True:
            while waste:
                what = waste[0]
                if isinstance(what, BlockLease):
                    self._end_use(what)
                else:
                    self._destroy(what)
                with books.lock:
                    waste.popleft()
            # All at once: a search for each would look at every segment for every segment.
            with books.lock:
                surplus = books.surplus(keep)
                for block in surplus:
                    lease = BlockLease(block, 0)
                    # Noted first: an interrupt between the two leaves an entry that does nothing,
                    # as its block has another lease, and not a block that nobody frees.
                    waste.append(lease)
                    books.withdraw(lease)
            if not surplus:
                break
        if self._release_context and not books.blocks and not self._handles:
            self._driver.close()

    def _end_use(self, lease: BlockLease) -> None:
        """Give back the block of a use that has ended, once."""
        with self._books.lock:
            known = self._books.remove(lease)
        if not known:
            return
        block = lease.block
        owner, block.owner = block.owner, None
        if owner is None:
            self._driver.free(block)
            return
        native = self._context.native
        if (owner.imported or owner.opened) and self._context.lost is None:
            with dropped(HalError):  # nobody is left to report to
                native.bind()
                if owner.imported:
                    native.release_host(owner.imported)
                else:
                    native.close_memory(owner.opened)
        self._leaving.append(owner)

    def _end_unless_viewed(
        self, lease: BlockLease, shown: set[tuple[int, int]], *, release_context: bool
    ) -> tuple[str, ...]:
        """End a use at the close of the device; return a line if a numpy view keeps it."""
        block = lease.block
        if block.is_viewed():
            owner = block.owner
            if owner is not None and owner.handle is not None:
                shown.add(owner.handle)
            line = f"{lease.size:,} bytes at {block.address:#x} are shown by a numpy view, and"
            return (f"{line} freed with it",)
        if block.way == POOLED:
            with self._books.lock:
                self._books.give_piece(lease, ())
        elif block.way != FOREIGN or release_context:
            # Abandoned work may go on in foreign memory.
            self._end_use(lease)
        return ()

    def _return_async(self) -> None:
        """Free unused stream-ordered allocations; with the housekeeping lock."""
        while self._returning:
            lease = self._returning[0]
            with self._books.lock:
                known = self._books.remove(lease)
            if known:
                self._driver.free_async(lease.block)
            self._returning.popleft()

    def _destroy(self, handle: tuple[int, int]) -> None:
        """Destroy a native handle, once."""
        with self._books.lock:
            known = handle in self._handles
            self._handles.discard(handle)
        if known and self._context.lost is None:  # a lost context takes its handles along
            native = self._context.native
            with dropped(HalError):  # nobody is left to report to
                native.bind()
                getattr(native, _DESTROY[handle[0]])(handle[1])

    def drop_owners(self) -> None:
        """Drop pending owners of foreign memory, and have the dispatcher call their callbacks."""
        # Under no lock, because that runs code that is not ours.
        while self._leaving:
            try:
                owner = self._leaving.popleft()
            except own(IndexError):
                return
            callback, owner.callback = owner.callback, None
            held, owner.owner = owner.owner, None
            if isinstance(held, Releasable):
                held.release()
            del held  # before the callback, which says that hal keeps it no more
            if callback is not None:
                progress.dispatcher.append(callback)
                progress.dispatcher.wake()

    def close(self, *, release_context: bool) -> tuple[str, ...]:
        """Give back all memory but that of numpy views; the last view closes the native device.

        Returns a line for each of those views. Frees nothing on a lost context,
        which takes its memory along.
        """
        self.absorb()
        kept: list[str] = []
        with self.reaping:  # no free may be under way when the native device closes
            books = self._books
            shown: set[tuple[int, int]] = set()  # modules whose variables are shown by views
            with books.lock:
                books.close()
                uses = books.uses()
            for lease in uses:
                kept += self._end_unless_viewed(lease, shown, release_context=release_context)
            for handle in list(self._handles - shown):
                self._destroy(handle)
            self._release_context = release_context
            self._free_waste(0)
        self.drop_owners()
        return tuple(kept)
