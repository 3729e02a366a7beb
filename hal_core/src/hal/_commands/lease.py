"""How long an execution runs an instance, and a recording has some (rule C4).

Weakly referenced, which a compiled class cannot be: hence a module of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hal._commands.instances import Instance, InstancePool

__all__ = ["InstanceOwner", "Lease"]


class Lease:
    """What an execution holds until it has retired: the instance that it runs."""

    __slots__ = ("__weakref__", "instance")

    def __init__(self) -> None:
        self.instance: Instance | None = None


class InstanceOwner:
    """What a recording holds: its instances, which `Device.trim` looks for."""

    __slots__ = ("__weakref__", "pool")

    def __init__(self, pool: InstancePool) -> None:
        self.pool = pool
