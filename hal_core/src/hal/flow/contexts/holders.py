"""The owner context of each name, so that no other takes the name for its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import hal

if TYPE_CHECKING:
    from hal.flow.buffers import TrackedBuffer
    from hal.flow.contexts.context import Context
    from hal.flow.flow import Flow
    from hal.flow.modes import Memory

__all__ = ["Holders", "Named"]


class Named(NamedTuple):
    """The memory behind a name.

    Attributes
    ----------
    memory
        The declaration.
    buffer
        The memory; None where each call has its own.
    owner
        The name of the context that has it.
    is_lent
        Whether closing the memory stays the caller's task.
    """

    memory: Memory
    buffer: TrackedBuffer | None
    owner: str
    is_lent: bool

    def close(self) -> None:
        """Release the memory, unless it is lent; may be called twice."""
        if self.buffer is not None and not self.is_lent:
            self.buffer.close()


class Holders:
    """The context that has each name, for each flow and device, while that context lives.

    Attributes
    ----------
    lock
        Held by callers of the methods, and while a context's own names change.
    """

    __slots__ = ("_places", "lock")

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self._places: weakref.WeakKeyDictionary[
            Flow, weakref.WeakValueDictionary[tuple[hal.Device, str], Context]
        ] = weakref.WeakKeyDictionary()

    def of(self, context: Context, name: str) -> Context | None:
        """Return the owner of a name in the flow and on the device of a context."""
        places = self._places.get(context.flow)
        return None if places is None else places.get((context.device, name))

    def take(self, context: Context, name: str) -> None:
        """Give an unowned name to a context."""
        places = self._places.setdefault(context.flow, weakref.WeakValueDictionary())
        places[context.device, name] = context

    def sharing(self, context: Context, buffer: TrackedBuffer) -> Iterator[tuple[str, Named]]:
        """Yield the names with memory in which some bytes are those of a buffer."""
        for (_, name), owner in self._places.get(context.flow, {}).items():
            named = owner.own[name]
            known = named.buffer
            if known is None or known.history is not buffer.history:
                continue
            if max(known.start, buffer.start) < min(known.stop, buffer.stop):
                yield name, named

    def leave(self, context: Context, names: Iterable[str]) -> None:
        """Remove the names that a context has."""
        for name in names:
            if self.of(context, name) is context:
                del self._places[context.flow][context.device, name]
