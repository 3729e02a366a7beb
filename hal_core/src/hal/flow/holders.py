"""Know which context has the memory of a name, so that no other takes the name for its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import hal

if TYPE_CHECKING:
    from hal.flow.buffers import TrackedBuffer
    from hal.flow.contexts import Context
    from hal.flow.flow import Flow
    from hal.flow.modes import Memory

__all__ = ["Holders", "Named"]


class Named(NamedTuple):
    """Be the memory behind a name.

    Attributes
    ----------
    memory
        What was declared.
    buffer
        The memory; None where each call has its own.
    owner
        The context that has it.
    is_lent
        Whether the memory stays somebody else's to close.
    """

    memory: Memory
    buffer: TrackedBuffer | None
    owner: Context
    is_lent: bool


class Holders:
    """Remember, for each flow and device, who has a name, while that context lives."""

    __slots__ = ("_lock", "_places")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: weakref.WeakKeyDictionary[
            Flow, dict[tuple[hal.Device, str], weakref.ref[Context]]
        ] = weakref.WeakKeyDictionary()

    def of(self, context: Context, name: str) -> Context | None:
        """Return who has a name in the flow and on the device of a context."""
        with self._lock:
            return self._of(context, name)

    def take(self, context: Context, name: str) -> Context | None:
        """Give a name to a context, or return who else has it."""
        with self._lock:
            other = self._of(context, name)
            if other is None:
                places = self._places.setdefault(context.flow, {})
                places[context.device, name] = weakref.ref(context)
        return other

    def leave(self, context: Context, names: Iterable[str]) -> None:
        """Take from a context the names that it has."""
        for name in names:
            with self._lock:
                is_own = self._of(context, name) is context
                places = self._places[context.flow] if is_own else {}
                places.pop((context.device, name), None)

    def _of(self, context: Context, name: str) -> Context | None:
        reference = self._places.get(context.flow, {}).get((context.device, name))
        return None if reference is None else reference()
