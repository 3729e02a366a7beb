"""Owners of device memory and of native handles; they release without a lock (invariant I10).

A `Storage` is one use of a block of memory; a `Transient` is one that an alloca begins
and a dealloca ends. Their finalisers, like that of a `Handle`, take no lock: `hal._memory.reaper`
gives back what they release.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from hal._base.failures import keep
from hal._engine.operation import Operation, is_over
from hal._memory.blocks import BlockLease
from hal._memory.usage import MEMORY_TYPES
from hal.errors import ClosedError, OutOfMemoryError
from hal.handlers import own
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._engine.submission import Submission
    from hal._memory.heap import Heap


GIVEN_BACK: Final = "the buffer's memory was given back with dealloca; allocate another"

MANY_USES: Final = 16
"""The number of an allocation's uses from which the list is purged of ended ones."""

_MANY_PARTS: Final = 64
"""The number of an allocation's parts from which the list is purged of dead ones, at first."""


class AllocaPart(Protocol):
    """A buffer, a `hal._memory.extent.Extent`, that is a part of an alloca's."""

    def _end(self) -> None:
        """Make it unusable: the memory was given to dealloca."""


class _Parts(list["weakref.ref[AllocaPart]"]):
    """References to the parts of the buffer of an alloca."""

    __slots__ = ("most",)

    def __init__(self) -> None:
        super().__init__()
        # Doubled over the living after each purge: else each part would take a look at all of them
        self.most = _MANY_PARTS


class Storage:
    """One use of a block of memory; it ends some time after the last reference has gone."""

    __slots__ = ("_heap", "_lease", "address", "host_address", "memory", "parts", "size", "source")

    def __init__(self, heap: Heap, size: int, memory: MemoryType) -> None:
        self._lease: BlockLease | None = None
        self._heap = heap
        # Its addresses on the device and on the host; None before the issue of the alloca that
        # makes it, and where the host does not see it
        self.address: int | None = None
        self.host_address: int | None = None
        self.size = size  # the bytes that were asked for
        self.memory = memory
        self.source: Submission | None = None  # the alloca that gives it its address, if any
        self.parts: _Parts | None = None  # None before there are any

    def publish(self) -> None:
        """Publish the address of its block."""
        if self._lease is not None:
            block = self._lease.block
            self.host_address = block.host_address
            self.address = block.address

    def add_part(self, part: AllocaPart) -> None:
        """Note a buffer that is part of an alloca's."""
        with self._heap.books.lock:
            parts = self.parts
            if parts is None:
                parts = self.parts = _Parts()
            elif len(parts) >= parts.most:
                parts[:] = filter(_is_there, parts)
                parts.most = max(_MANY_PARTS, 2 * len(parts))
            parts.append(weakref.ref(part))

    def is_pinned(self) -> bool:
        """Return whether the driver knows its memory on the host."""
        if self._lease is None:
            return False
        owner = self._lease.block.owner
        return owner is None or owner.imported > 0

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)  # a Ctrl-C may come before there is one
        if lease is not None:
            self._heap.reaper.doom(lease)


class Transient(Storage):
    """A use of memory that an alloca begins, and a dealloca ends in the order of its queue (M3).

    The dealloca may give the memory back only if nothing uses it any more when the queue
    gets there. So the operations that use it are noted. Work of another device makes it
    `lent`: then the finaliser gives it back. Its block knows of views, and of tensors of
    other libraries.
    """

    __slots__ = (
        "_most",
        "asked",
        "error",
        "index",
        "is_async",
        "lent",
        "pool",
        "recordings",
        "tried",
        "uses",
    )

    def __init__(self, heap: Heap, size: int, index: int) -> None:
        super().__init__(heap, size, MEMORY_TYPES[index])
        self.index = index  # the kind of memory, in `hal._memory.usage.MEMORY_TYPES`
        self.pool = heap.books.pool_of(size, index)  # the pool of the heap to search for it
        # Whether the memory is the driver's stream-ordered pool's
        self.is_async = heap.driver.is_async and not index
        # The recordings that use it directly; None before there are any
        self.recordings: weakref.WeakSet[Any] | None = None
        # What had been freed, was idle and had ended when the driver's pool was asked last
        self.asked: tuple[object, int, object] | None = None
        # `StreamOrder._state` at the last failed search: what had been freed by then
        self.tried: tuple[object, int, object] | None = None
        # Operations that use it, its alloca and its dealloca aside; None once it was given back
        self.uses: list[Operation] | None = []
        self.lent = False  # whether operations of other devices may use it
        self.error: OutOfMemoryError | None = None  # why the last search found no memory for it
        self._most = MANY_USES

    def note(self, operation: Operation) -> None:
        """Note an operation that is going to use it; raises `ClosedError` if it was given back."""
        with self._heap.books.lock:
            uses = self.uses
            if uses is None:
                raise ClosedError(GIVEN_BACK)
            if len(uses) >= self._most:
                uses[:] = itertools.filterfalse(_is_retired, uses)
                self._most = max(MANY_USES, 2 * len(uses))  # else each note would look at all
            uses.append(operation)

    def record(self, recording: object) -> None:
        """Note a recording that uses it directly."""
        with self._heap.books.lock:
            if self.recordings is None:
                self.recordings = weakref.WeakSet()
            self.recordings.add(recording)

    def lend(self) -> None:
        """Note that others use it, who are not noted; raises `ClosedError` as `note` does."""
        with self._heap.books.lock:
            if self.uses is None:
                raise ClosedError(GIVEN_BACK)
            self.lent = True

    def refuse(self, error: OutOfMemoryError) -> None:
        """Note why there was no memory for it; the frames of a traceback would hold the storage."""
        self.error = error
        keep(error)

    def is_unused(self, is_past: Callable[[Operation], bool] = is_over) -> bool:
        """Return whether all its uses, its alloca included, are past; under the books' lock."""
        lease = self._lease
        if self.lent or lease is None or lease.block.is_viewed():
            return False
        source = self.source
        return (source is None or is_past(source)) and all(map(is_past, self.uses or ()))


def _is_there(reference: weakref.ref[Any]) -> bool:
    return reference() is not None


_is_retired: Final = operator.attrgetter("_retired")


def note_uses(operation: Operation, used: object) -> None:
    """Note an operation as a user of the transient storages among its resources."""
    kind = used.__class__
    if kind is Transient:
        cast("Transient", used).note(operation)
    elif kind is tuple or kind is list:
        for each in cast("Sequence[object]", used):
            note_uses(operation, each)


def lend(used: object) -> None:
    """Mark the transient storages among the resources of a user that notes no operations."""
    kind = used.__class__
    if kind is Transient:
        cast("Transient", used).lend()
    elif kind is tuple or kind is list:
        for each in cast("Sequence[object]", used):
            lend(each)


class Handle:
    """The owner of a native handle, which is destroyed some time after the last reference went."""

    __slots__ = ("_heap", "_open", "handle", "kind")

    def __init__(self, heap: Heap, kind: int, handle: int) -> None:
        self._heap = heap
        self.kind = kind
        self.handle = handle
        self._open = [handle]  # until it is closed; of two that close it one finds it
        heap.reaper.own(kind, handle)

    def close(self) -> None:
        """Release it now. The handle must not be used afterwards."""
        try:
            handle = self._open.pop()
        except own(IndexError):
            return
        self._heap.reaper.doom((self.kind, handle))

    def __del__(self) -> None:
        if hasattr(self, "_open"):  # an interrupt may have ended `__init__` at its beginning
            self.close()
