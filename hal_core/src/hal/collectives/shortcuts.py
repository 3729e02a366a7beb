"""Have the C extension submit collectives, too.

It takes an operation that is one call of its provider's (`hal.native_collectives.GroupCall`), and
leaves all others to `hal.collectives.group`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from hal._base import speedups
from hal._base.regions import PAGE, SharedRegion
from hal.collectives.group import Group
from hal.collectives.group_watch import watched
from hal.errors import HalError
from hal.handlers import dropped
from hal.native_collectives import Meet
from hal.tickets import Ticket

if TYPE_CHECKING:
    from hal.native import CallTable

_SIZE: Final = 2 * ((512 << 10) + PAGE)
"""Bytes that each rank of a group shows the others, half of them at a time.

Of 256 KiB to 4 MiB in a step this takes the least time: the others' caches hold it.
"""


def install() -> None:
    """Tell the extension of groups, if it is there; `hal.collectives` calls it once."""
    if speedups.module is not None:
        parts = {"settle": Group.settle, "watched": watched}
        speedups.module.install_groups({Group.__name__: Group}, parts)


def meet_on(calls: CallTable | None) -> Meet | None:
    """Return what runs a group's operations on streams with those calls, if anything does."""
    if speedups.module is None or calls is None or not calls.call:
        return None
    return partial(_meet, partial(speedups.module.Meeting, calls.call))


def _meet(
    make: Callable[..., Any], exchange: Callable[[Any], list[Any]], *arguments: object
) -> object:
    """See `hal.native_collectives.Meet`."""
    meeting = None
    mine: SharedRegion | None = None  # its file is open until all have opened it
    with dropped(HalError):
        mine = SharedRegion.create("group", _SIZE)
    every = exchange(None if mine is None else mine.names())
    with dropped(HalError, OSError):
        found = [SharedRegion.open(Ticket(**each), "group", _SIZE) for each in every if each]
        if len(found) == len(every) > 1:
            meeting = make(*arguments, (tuple([each.fd for each in found]), _SIZE, PAGE))
    return meeting if all(exchange(meeting is not None)) else make(*arguments)
