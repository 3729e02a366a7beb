"""Have the C extension submit collectives, too.

It takes an operation that is one call of its provider's (`hal.native_collectives.GroupCall`), and
leaves all others to `hal.collectives.group`.
"""

from __future__ import annotations

from hal._base import speedups
from hal.collectives.group import Group
from hal.collectives.group_watch import watched


def install() -> None:
    """Tell the extension of groups, if it is there; `hal.collectives` calls it once."""
    if speedups.module is not None:
        parts = {"settle": Group.settle, "watched": watched}
        speedups.module.install_groups({Group.__name__: Group}, parts)
