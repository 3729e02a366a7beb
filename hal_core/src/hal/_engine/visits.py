"""Uses of one device's memory by the operations of another (rules Q5, Q6)."""

from __future__ import annotations

from hal._engine import timelines
from hal._engine.device_context import DeviceContext
from hal.errors import CancelledError


class Visit:
    """One operation's use of the memory of `owner`, another device's context."""

    __slots__ = ("guest", "owner")

    def __init__(self, owner: DeviceContext, guest: DeviceContext) -> None:
        self.owner = owner
        self.guest = guest
        # A device, not the operation: a close reads off what a guest's operations keep alive which
        # of them visit it, and so none has to be removed here.
        owner.guests[guest] = None

    def begin(self) -> None:
        """Begin the use, or a part of it; raise if the memory is gone. By the thread that issues.

        From here on the operation is being issued, in the ring, or run by the host.
        """
        with timelines.lock:
            if not self.owner.refuses_visits:
                return
        raise closed_before(self.owner)


class Visited:
    """The resources of an operation that visits other devices, and its visits."""

    __slots__ = ("resources", "visits")

    def __init__(self, resources: object, visits: tuple[Visit, ...]) -> None:
        self.resources = resources
        self.visits = visits


def visits_of(resources: object) -> tuple[Visit, ...]:
    """Return the visits of an operation that keeps `resources` alive."""
    return resources.visits if isinstance(resources, Visited) else ()


def closed_before(owner: DeviceContext) -> CancelledError:
    """Return the failure of an operation that uses memory of a closed device."""
    return CancelledError(
        f"the operation uses memory of {owner.name}, which was closed before it was issued"
    )
