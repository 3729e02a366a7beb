"""Uses of one device's memory by the operations of another (rules Q5, Q6)."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

from hal._engine import timelines
from hal.errors import CancelledError

if TYPE_CHECKING:
    from hal._engine.context import DeviceContext

__all__ = ["Visit", "closed_before"]

_numbers = itertools.count()


class Visit:
    """One operation's use of the memory of `host`, another device's context."""

    __slots__ = ("__weakref__", "_number", "begun", "guest", "host")

    def __init__(self, host: DeviceContext, guest: DeviceContext) -> None:
        self.host = host
        self.guest = guest
        self.begun = False
        self._number = next(_numbers)
        host.visits[self._number] = weakref.ref(self)

    def begin(self) -> None:
        """Begin the use; raise if the memory is gone. Called by the thread that issues."""
        with timelines.lock:
            if not self.host.refuses_visits:
                self.begun = True
                return
        raise closed_before(self.host)

    def __del__(self) -> None:
        # One bytecode of the dictionary's own, and no lock (I10).
        self.host.visits.pop(self._number, None)


def closed_before(host: DeviceContext) -> CancelledError:
    """Return the failure of an operation that uses memory of a closed device."""
    return CancelledError(
        f"the operation uses memory of {host.name}, which was closed before it was issued"
    )
