"""Host views of a storage, which they keep alive (rule M2)."""

from __future__ import annotations

import weakref

from hal._memory.storage import GIVEN_BACK, Storage, Transient
from hal.errors import ClosedError

__all__ = ["Adopted", "HostView", "view_of"]


class HostView:
    """The owner behind numpy views of a storage, which lives as long as they do (M2)."""

    __slots__ = ("__array_interface__", "__weakref__", "_storage")

    def __init__(self, storage: Storage, *, writable: bool = True) -> None:
        self._storage = storage
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (storage.size,),
            "data": (storage.host_address, not writable),
        }


class Adopted(Storage):
    """A use of foreign memory, which is looked up by its address as long as it lives."""

    __slots__ = ("__weakref__",)


def view_of(storage: Storage) -> HostView:
    """Return the owner for a numpy view of a storage; its memory is host-visible.

    Raises `ClosedError` if a dealloca or a close on another thread has given it back meanwhile.
    """
    heap = storage._heap
    # One owner for all views: the memory is given back when it is gone. A close that has begun
    # may have looked for it already.
    with heap.books.lock:
        heap.driver.check_open()
        ticket = storage._ticket
        if ticket is None and isinstance(storage, Transient):
            raise ClosedError(GIVEN_BACK)
        block = None if ticket is None else ticket.block
        view: HostView | None = block.view() if block is not None and block.view else None
        if view is None:
            view = HostView(storage, writable=block is None or block.writable)
            if block is not None:
                block.view = weakref.ref(view)
    return view
