"""The lifetimes of an execution's instance and of a recording's instances (rule C4).

A module of its own, because these are weakly referenced, and compiled classes cannot be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hal._commands.instances import Instance, InstancePool

__all__ = ["InstanceOwner", "Lease"]


class Lease:
    """The hold of an execution, until it has retired, on the instance that it runs."""

    __slots__ = ("__weakref__", "instance")

    def __init__(self) -> None:
        self.instance: Instance | None = None


class InstanceOwner:
    """The hold of a recording on its instances, which `Device.trim` looks for."""

    __slots__ = ("__weakref__", "pool")

    def __init__(self, pool: InstancePool) -> None:
        self.pool = pool
