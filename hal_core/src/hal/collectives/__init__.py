"""Collectives over ranks, as operations of queues: all-reduce, broadcast, send and the others.

``group = hal.collectives.join(device)``, then ``queue.all_reduce(buffer, group=group)``;
docs/collectives.md describes all of it.
"""

from __future__ import annotations

from hal.collectives.group import Group
from hal.collectives.joining import join, join_all
from hal.collectives.launchers import find_place
from hal.collectives.plugins import providers
from hal.collectives.shortcuts import install as _install_shortcuts
from hal.native_collectives import Place

__all__ = ["Group", "Place", "find_place", "join", "join_all", "providers"]

_install_shortcuts()
