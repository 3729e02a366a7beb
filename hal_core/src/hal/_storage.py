"""Own device memory and native handles, and let both go without a lock (invariant I10).

A `Storage` is one use of a block of memory. Its finaliser, as that of a
`Module`, takes no lock: `hal._reaper` says what becomes of what it lets go.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final

from hal._allocator import Ticket
from hal._compiled import mypyc_attr
from hal._reaper import UNLOAD
from hal.native import MemoryType

if TYPE_CHECKING:
    from hal._buffer import Buffer
    from hal._memory import Heap
    from hal._submission import Submission

__all__ = ["Handle", "Module", "Storage"]

_CLOSED: Final = 0
"""The kind of a handle that was let go."""

_MANY_PARTS: Final = 64
"""Parts of one allocation from which the list of them is looked through for dead ones."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Storage:
    """Be one use of a block of memory, which ends some time after the last reference went.

    Attributes
    ----------
    address, host_address
        Where the device and the host see it; None before the issue of the
        alloca that made it, and where the host does not.
    size
        The bytes that were asked for.
    source
        The alloca that gives it its address, if one does.
    parts
        References to the parts of the buffer of an alloca; None before there are any.
    """

    __slots__ = (
        "_heap",
        "_ticket",
        "address",
        "host_address",
        "memory",
        "parts",
        "size",
        "source",
    )

    def __init__(
        self,
        heap: Heap,
        address: int | None,
        size: int,
        memory: MemoryType,
        host_address: int | None,
    ) -> None:
        self._ticket: Ticket | None = None
        self._heap = heap
        self.address = address
        self.size = size
        self.memory = memory
        self.host_address = host_address
        self.source: Submission | None = None
        self.parts: list[weakref.ref[Buffer]] | None = None

    def publish(self) -> None:
        """Make the address of its block known."""
        if self._ticket is not None:
            block = self._ticket.block
            self.host_address = block.host_address
            self.address = block.address

    def add_part(self, part: Buffer) -> None:
        """Note a buffer that is part of an alloca's."""
        with self._heap._lock:
            self._add_part(part)

    def _add_part(self, part: Buffer) -> None:
        parts = self.parts
        if parts is None:
            parts = self.parts = []
        elif len(parts) >= _MANY_PARTS:
            parts[:] = [each for each in parts if each() is not None]
        parts.append(weakref.ref(part))

    def is_pinned(self) -> bool:
        """Return whether the driver knows the host's side of it."""
        if self._ticket is None:
            return False
        owner = self._ticket.block.owner
        return owner is None or owner.imported > 0

    def __del__(self) -> None:
        ticket = getattr(self, "_ticket", None)  # a Ctrl-C may come before there is one
        if ticket is not None:
            self._heap.doom(ticket)


class Handle:
    """Own a native handle; destroyed some time after the last reference went."""

    __slots__ = ("_heap", "_kind", "handle")

    def __init__(self, heap: Heap, kind: int, handle: int) -> None:
        self._heap = heap
        self._kind = kind
        self.handle = handle

    def close(self) -> None:
        """Let it go now. The handle must not be used afterwards."""
        kind, self._kind = self._kind, _CLOSED
        if kind != _CLOSED:
            self._heap.doom((kind, self.handle))

    def __del__(self) -> None:
        self.close()


class Module(Handle):
    """Own one loaded module."""

    __slots__ = ()

    def __init__(self, heap: Heap, handle: int) -> None:
        super().__init__(heap, UNLOAD, handle)
