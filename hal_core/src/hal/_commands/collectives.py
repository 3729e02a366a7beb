"""Collectives in recordings: each launch of a group is a part of its own (rules C1, G1).

No native graph holds one, even where the vendor could capture it: the group numbers its operations,
and gives each its turn and its time, when they are submitted, and a launch that stands in a graph
could neither be withdrawn nor aborted alone. So every provider runs the same recordings.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from hal._commands.bindings import LateTable, Table
from hal._commands.hazards import END
from hal._commands.nodes import Command, Operand, check_operand
from hal._commands.slots import DIRECT, Slots
from hal._engine.stream import StreamQueue
from hal._memory.core import DeviceCore
from hal._memory.storage import Storage
from hal._transfers.collective_checks import agree, check, check_group, distance_of
from hal._transfers.collectives import GroupLaunch, GroupRegion
from hal.errors import InvalidArgumentError
from hal.native_collectives import Collective, CollectiveStep, Participant

_TARGET = -1
_SOURCE = -2
"""The arguments of a collective's operands."""


class _OperandSpot(NamedTuple):
    """The bytes of an operand: from `start` on, of a storage or of the buffer bound to a slot."""

    memory: Storage | int
    start: int
    size: int
    dtype: np.dtype[Any]
    operand: Operand


class CollectiveNode(NamedTuple):
    """An operation of a group. The `launch` is the same for the operations of one batch."""

    group: Participant
    launch: object
    step: CollectiveStep
    dtype: np.dtype[Any] | None
    source: _OperandSpot | None
    target: _OperandSpot | None


def collective(
    device: DeviceCore,
    slots: Slots,
    kind: str,
    group: object,
    source: object,
    target: object,
    op: object,
    root: object,
) -> list[Command]:
    """Check an operation of a group; see `Queue.all_reduce` and its siblings."""
    member = check_group(device, group, kind, "this command")

    def find(device: DeviceCore, thing: Any, what: str, rights: int) -> _OperandSpot:  # noqa: ANN401
        _, memory, base, kept = check_operand(device, slots, thing, what, rights)
        start, size = thing._offset, thing._size
        if start + size >= END:
            raise InvalidArgumentError(
                f"{what}: slot {memory} has no size of its own; give it one in "
                "device.record(slots=[(dtype, bytes), ...]), or pass a subspan"
            )
        alignment = thing._dtype.itemsize
        operand = Operand(memory, base, size, _SOURCE, alignment, rights)
        return _OperandSpot(memory if kept is None else kept, start, size, thing._dtype, operand)

    step, dtype, given, taken = check(device, member, kind, source, target, op, root, find)
    batch = member.check(step)
    operands = [] if given is None else [given.operand]
    if taken is not None and taken is not given:
        operands.append(taken.operand._replace(argument=_TARGET))
    kept = [spot.memory for spot in (given, taken) if spot and not isinstance(spot.memory, int)]
    node = CollectiveNode(member, batch or object(), step, dtype, given, taken)
    return [Command(_not_replayed, cast("Any", node), tuple(operands), tuple(kept))]


def _not_replayed(*_: object) -> None:
    raise AssertionError


class Gathering:
    """A part that is one launch of a group: an operation, or the batch of several."""

    __slots__ = ("_device", "_nodes", "group")

    def __init__(self, device: DeviceCore, commands: Sequence[Command]) -> None:
        nodes: list[CollectiveNode] = []
        for command in commands:
            node = cast("CollectiveNode", command.node)
            for each in command.operands:
                if each.memory == DIRECT:
                    continue
                # Temporaries have got their places.
                old: Any = node.source if each.argument == _SOURCE else node.target
                new = old._replace(memory=each.memory, start=each.start)
                node = node._replace(
                    source=new if node.source is old else node.source,
                    target=new if node.target is old else node.target,
                )
            nodes.append(node)
        self._device = device
        self._nodes = tuple(nodes)
        self.group = nodes[0].group

    def launch(
        self, queue: StreamQueue, table: Table | LateTable, storages: Sequence[Any]
    ) -> GroupLaunch:
        """Return a launch on a queue, with the memory that a checked binding table gives.

        Raises `InvalidArgumentError` for a source and a target that overlap with these bindings.
        """
        work: list[Collective] = []
        used: list[Storage] = []
        for group, _, step, dtype, source, target in self._nodes:
            given = None if source is None else self._region(source, table, storages)
            taken = given
            if target is not source:
                taken = None if target is None else self._region(target, table, storages)
            used += [each.memory for each in (given, taken) if each is not None]
            if source and target and source.memory != target.memory:
                distance = distance_of(given, taken)
                rank = step.kind, step.op, step.root, group.rank, group.size
                agree(*rank, source.dtype, source.size, target.dtype, target.size, distance)
            work.append(Collective(step, dtype, given, taken))
        return GroupLaunch(queue, work, tuple(used))

    def _region(
        self, spot: _OperandSpot, table: Table | LateTable, storages: Sequence[Any]
    ) -> GroupRegion:
        memory, start = spot.memory, spot.start
        if not isinstance(memory, int):
            return GroupRegion(self._device, memory, start, spot.size)
        storage = storages[memory]
        base = table[memory][1] if isinstance(table, list) else table[memory] - storage.address
        return GroupRegion(self._device, storage, base + start, spot.size)
