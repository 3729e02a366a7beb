"""Describe a recording to the C extension, which executes it with new bindings (rules C3, C4).

The extension writes what stands for the slots into the launches that use them: into the nodes of a
graph instance, or into the calls that it makes on a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hal._base import speedups
from hal._commands.slots import DIRECT
from hal._commands.values import Scalars
from hal.native import LaunchNode, NativeDevice, Node

if TYPE_CHECKING:
    from hal._commands.bindings import SlotRules
    from hal._commands.instances import Instance, Replica, SlotUses
    from hal._speedups import Rebinder


_MOST_SLOTS: Final = 32
_MOST_FORMS: Final = 4
_MOST_RANGES: Final = 64

_BUFFER: Final = "P"
_GRID: Final = "G"

_SlotEntry = tuple[str, Any, int, int, int]
_Patch = tuple[int, int, int, int, int, int]


@dataclass(slots=True, eq=False)
class RebindPlan:
    """The part of a recording that the C extension uses: slots, and the launches that use them."""

    _slots: tuple[_SlotEntry, ...]
    _uses: SlotUses
    _commands: Sequence[int]
    _ranges: tuple[tuple[int, int], ...] | None

    def of_instance(
        self, native: NativeDevice, instance: Instance, positions: Sequence[int]
    ) -> Rebinder:
        """Return the object that binds an instance anew; the instance is complete."""
        nodes, handle = instance.replica.nodes, instance.graph.handle
        launches = [
            native.launch_update(handle, positions[command], nodes[command])
            for command in self._commands
        ]
        return self._make(None, launches, instance.replica)

    def of_calls(self, replica: Replica) -> Rebinder:
        """Return what makes launches and fills on a stream, bound anew; the replica is its own."""
        launches = [(command, b"", 0) for command in self._commands]
        return self._make(replica.nodes, launches, replica)

    def _make(
        self,
        calls: list[Any] | None,
        launches: Sequence[tuple[int, bytes, int]],
        replica: Replica,
    ) -> Rebinder:
        patches = self._patches(replica)
        found: Rebinder = speedups.module.Rebinder(
            self._slots, calls, tuple(launches), tuple(patches), self._ranges, replica
        )
        return found

    def _patches(self, replica: Replica) -> list[_Patch]:
        """Return (slot, launch, address of its place, what to add, size, form); 0 for a grid."""
        uses, found = self._uses, list[_Patch]()
        launch = {command: index for index, command in enumerate(self._commands)}
        for slot, each in uses.by_slot.items():
            for command, argument, offset in each.parameters:
                found.append(
                    (slot, launch[command], replica.place(command, argument), offset, 8, 0)
                )
            starts = sorted({use.start for _, use in each.numbers})
            for command, use in each.numbers:
                address, form = replica.place(command, use.argument), starts.index(use.start)
                found.append((slot, launch[command], address, 0, use.size, form))
            found += [(slot, launch[command], 0, 0, 0, 0) for command in each.grids]
        return found


def calls_of(replica: Replica) -> Rebinder | None:
    """Return what makes launches and fills without slots on a stream."""
    if speedups.module is None:
        return None
    found: Rebinder = speedups.module.Rebinder((), replica.nodes, (), (), None, replica)
    return found


def plan_of(rules: SlotRules, uses: SlotUses, nodes: Sequence[Node]) -> RebindPlan | None:
    """Return the plan of a recording with slots; None if only Python can bind them.

    That is so for fills, copies and launches over a grid in memory that use slots, for slots of the
    output of kernels, and for numbers that `hal._kernels.packing` leaves to Python.
    """
    if speedups.module is None or not 0 < rules.count <= _MOST_SLOTS:
        return None
    devices = {each.device for each in rules.slots}
    used = uses.by_slot.values()
    if rules.outputs or len(devices) > 1 or any(each.fields for each in used):
        return None
    commands = sorted({command for each in used for command in each.commands})
    if not all(isinstance(nodes[command], LaunchNode) for command in commands):
        return None
    slots = tuple(_described(rules, slot) for slot in range(rules.count))
    ranges = rules.ranges(DIRECT)
    if not all(slot[0] for slot in slots) or (ranges is not None and len(ranges) > _MOST_RANGES):
        return None
    return RebindPlan(slots, uses, commands, ranges)


def _described(rules: SlotRules, slot: int) -> _SlotEntry:
    """Return codes, the dtypes that surely fit, bytes, alignment and rights of a slot."""
    rule = rules.slots[slot]
    numbers = rule.numbers
    if numbers is None:
        return _BUFFER, rules.sure[slot], rule.needed, rule.alignment, rule.rights
    codes = numbers.codes() if isinstance(numbers, Scalars) else _GRID
    return codes if len(codes) <= _MOST_FORMS else "", None, 0, 1, 0
