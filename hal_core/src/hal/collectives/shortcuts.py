"""Have the C extension submit collectives, too.

It takes an operation that is one call of its provider's (`hal.native_collectives.GroupCall`), and
leaves all others to `hal.collectives.group`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hal._base import speedups
from hal.collectives.group import Group
from hal.collectives.group_watch import watched

if TYPE_CHECKING:
    from hal.native import CallTable
    from hal.native_collectives import Meet


def install() -> None:
    """Tell the extension of groups, if it is there; `hal.collectives` calls it once."""
    if speedups.module is not None:
        parts = {"settle": Group.settle, "watched": watched}
        speedups.module.install_groups({Group.__name__: Group}, parts)


def meet_on(calls: CallTable | None) -> Meet | None:
    """Return what runs a group's operations on streams with those calls, if anything does."""
    if speedups.module is None or calls is None or not calls.call:
        return None
    return partial(speedups.module.Meeting, calls.call)
