"""The commands that several ranks take part in (docs/collectives.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

from hal._commands.collectives import collective
from hal._commands.recorder import Recorder
from hal.native_collectives import Participant

if TYPE_CHECKING:
    from hal._buffers.buffer import Buffer
    from hal._commands.slots import Slot


_Memory: TypeAlias = "Buffer | Slot"


class GroupCommands(Recorder):
    """Collectives and messages, for `hal.CommandBuffer`.

    What `Queue` says of each holds here, for every execution: it submits these operations in the
    order of the group, in which they were recorded, and every rank executes recordings with the
    same ones. Each is a part of the recording by itself (see `CommandBuffer.on`), those of one
    ``with group.batch()`` together, which stand next to each other. Slots have sizes and, for what
    is reduced, the dtype of the numbers; temporaries are taken, too.

    Errors besides those of every command: `UnimplementedError` for what the provider cannot do,
    `ClosedError` for a closed group, now or when it is executed, and, when it is executed,
    `InvalidArgumentError` for slots that are bound to bytes that overlap.
    """

    __slots__ = ()

    def all_reduce(
        self,
        buffer: _Memory,
        target: _Memory | None = None,
        *,
        group: Participant,
        op: str = "sum",
        name: str | None = None,
    ) -> None:
        """Record a `Queue.all_reduce`."""
        self._gather("all_reduce", name, group, buffer, target, op)

    def reduce(
        self,
        buffer: _Memory,
        target: _Memory | None = None,
        *,
        group: Participant,
        root: SupportsIndex = 0,
        op: str = "sum",
        name: str | None = None,
    ) -> None:
        """Record a `Queue.reduce`."""
        self._gather("reduce", name, group, buffer, target, op, root)

    def broadcast(
        self,
        buffer: _Memory,
        target: _Memory | None = None,
        *,
        group: Participant,
        root: SupportsIndex = 0,
        name: str | None = None,
    ) -> None:
        """Record a `Queue.broadcast`."""
        self._gather("broadcast", name, group, buffer, target, None, root)

    def all_gather(
        self, buffer: _Memory, target: _Memory, *, group: Participant, name: str | None = None
    ) -> None:
        """Record a `Queue.all_gather`."""
        self._gather("all_gather", name, group, buffer, target)

    def reduce_scatter(
        self,
        buffer: _Memory,
        target: _Memory,
        *,
        group: Participant,
        op: str = "sum",
        name: str | None = None,
    ) -> None:
        """Record a `Queue.reduce_scatter`."""
        self._gather("reduce_scatter", name, group, buffer, target, op)

    def all_to_all(
        self, buffer: _Memory, target: _Memory, *, group: Participant, name: str | None = None
    ) -> None:
        """Record a `Queue.all_to_all`."""
        self._gather("all_to_all", name, group, buffer, target)

    def send(
        self, buffer: _Memory, *, group: Participant, peer: SupportsIndex, name: str | None = None
    ) -> None:
        """Record a `Queue.send`."""
        self._gather("send", name, group, buffer, None, None, peer)

    def receive(
        self, buffer: _Memory, *, group: Participant, peer: SupportsIndex, name: str | None = None
    ) -> None:
        """Record a `Queue.receive`."""
        self._gather("receive", name, group, None, buffer, None, peer)

    def group_barrier(self, *, group: Participant, name: str | None = None) -> None:
        """Record a `Queue.group_barrier`.

        It touches no bytes: with ``hazards="auto"`` a `CommandBuffer.barrier` before or after it
        orders it with other commands.
        """
        self._gather("barrier", name, group)

    def _gather(
        self,
        kind: str,
        name: str | None,
        group: object,
        source: object = None,
        target: object = None,
        op: object = None,
        root: object = None,
    ) -> None:
        verb = "group_barrier" if kind == "barrier" else kind
        self._add("collective", verb, name, collective, group, kind, source, target, op, root)
