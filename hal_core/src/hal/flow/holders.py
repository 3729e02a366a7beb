"""Know which context has the memory of a name, so that no other takes the name for its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import hal

if TYPE_CHECKING:
    from hal.flow.buffers import TrackedBuffer
    from hal.flow.contexts import Context
    from hal.flow.flow import Flow
    from hal.flow.modes import Memory

__all__ = ["Holders", "Named"]


class Named(NamedTuple):
    """The memory behind a name.

    Attributes
    ----------
    memory
        What was declared.
    buffer
        The memory; None where each call has its own.
    owner
        What the context that has it is called.
    is_lent
        Whether the memory stays somebody else's to close.
    """

    memory: Memory
    buffer: TrackedBuffer | None
    owner: str
    is_lent: bool

    def close(self) -> None:
        """Let the memory go, unless it is somebody else's; may be called twice."""
        if self.buffer is not None and not self.is_lent:
            self.buffer.close()


class Holders:
    """Remember, for each flow and device, who has a name, while that context lives.

    Attributes
    ----------
    lock
        Held by whoever calls a method, and while a context's own names change.
    """

    __slots__ = ("_places", "lock")

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self._places: weakref.WeakKeyDictionary[
            Flow, weakref.WeakValueDictionary[tuple[hal.Device, str], Context]
        ] = weakref.WeakKeyDictionary()

    def of(self, context: Context, name: str) -> Context | None:
        """Return who has a name in the flow and on the device of a context."""
        places = self._places.get(context.flow)
        return None if places is None else places.get((context.device, name))

    def take(self, context: Context, name: str) -> None:
        """Give a name that nobody has to a context."""
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
        """Take from a context the names that it has."""
        for name in names:
            if self.of(context, name) is context:
                del self._places[context.flow][context.device, name]
