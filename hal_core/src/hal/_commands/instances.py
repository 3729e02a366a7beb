"""The state that an execution changes, kept apart so that several may run at once (rule C4).

The commands of a recording are packed once. A *replica* holds what depends on a
binding table: transfers to slots, and the grids and parameter blocks of kernels that use
slots. One thread at a time binds it to a table and issues it. A native
graph instance has a replica of its own, which tells what the instance holds, so
that only nodes that differ are updated.

The rejected alternative is one state under a lock for each recording. It would be held over the
native calls of an execution, so the thread that issues on one queue would wait for another queue's,
which may be full (Q1).
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from hal._base import sync
from hal._commands.slots import DIRECT
from hal._commands.values import GRID, ValueUse
from hal._programs.parameters import ParameterBlock, pack_address

if TYPE_CHECKING:
    from hal._commands.bindings import Table
    from hal._commands.nodes import Command
    from hal._memory.storage import Handle
    from hal._speedups import Rebinder
    from hal.native import Node


class Lease:
    """The hold of an execution, until it has retired, on the instance that it runs."""

    __slots__ = ("__weakref__", "instance")

    def __init__(self) -> None:
        self.instance: Instance | None = None


class SlotUse:
    """The commands that use one slot."""

    __slots__ = ("commands", "fields", "grids", "numbers", "parameters")

    def __init__(self) -> None:
        self.parameters: list[tuple[int, int, int]] = []  # command, parameter, offset
        self.fields: list[tuple[int, int, int]] = []  # command, field, offset
        self.numbers: list[tuple[int, ValueUse]] = []  # the places of its number, by command
        self.grids: list[int] = []  # the commands whose grid it is
        self.commands: dict[int, None] = {}  # all that use it


class SlotUses:
    """The use of each slot; immutable. A part of a recording uses few of its slots."""

    __slots__ = ("by_slot", "count", "packed", "sized")

    def __init__(self, count: int, commands: Iterable[Command]) -> None:
        self.count = count
        self.packed: dict[int, ParameterBlock] = {}  # of the commands whose parameters use slots
        self.by_slot: dict[int, SlotUse] = {}
        for number, command in enumerate(commands):
            for slot, offset, _, argument, *_ in command.operands:
                if slot == DIRECT:
                    continue
                use = self._use(slot, number)
                if argument < 0:
                    use.fields.append((number, -1 - argument, offset))
                else:
                    use.parameters.append((number, argument, offset))
                    self._use_block(number, command)
            for value in command.values:
                use = self._use(value.slot, number)
                if value.argument == GRID:
                    use.grids.append(number)
                else:
                    use.numbers.append((number, value))
                    self._use_block(number, command)
        self.sized = tuple([each for use in self.by_slot.values() for each in use.grids])

    def _use(self, slot: int, command: int) -> SlotUse:
        use = self.by_slot.setdefault(slot, SlotUse())
        use.commands[command] = None
        return use

    def _use_block(self, number: int, command: Command) -> None:
        assert command.parameters is not None  # noqa: S101 - it is a kernel's
        self.packed[number] = command.parameters


class Replica:
    """The nodes of a recording for one binding table; one thread at a time."""

    __slots__ = ("_packed", "_uses", "_writes", "nodes", "table")

    def __init__(
        self, uses: SlotUses, nodes: Sequence[Node], packed: dict[int, ParameterBlock]
    ) -> None:
        self._uses = uses
        self._packed = packed  # the nodes only hold their addresses
        self.nodes: list[Any] = list(nodes)  # of each command, with the addresses of the table
        self.table: Table = (None,) * uses.count  # it is bound to none at first
        # For each slot that is used: where its address is written (a block's memory, the index in
        # it, and the offset to add), and how its number is (the function, the block's memory, the
        # index in it, and which bytes)
        self._writes = [
            (
                slot,
                each,
                [
                    (packed[command]._storage, packed[command].place(argument), offset)
                    for command, argument, offset in each.parameters
                ],
                [
                    (
                        struct.Struct(f"{use.size}s").pack_into,
                        packed[command]._storage,
                        packed[command].place(use.argument),
                        slice(use.start, use.start + use.size),
                    )
                    for command, use in each.numbers
                ],
            )
            for slot, each in uses.by_slot.items()
        ]

    def copy(self) -> Replica:
        """Return another one, with parameter blocks of its own. Any thread may call it."""
        packed = {}
        nodes = list(self.nodes)
        for command, block in self._uses.packed.items():
            packed[command] = block.copy()
            nodes[command] = nodes[command]._replace(parameters=packed[command].address)
        return Replica(self._uses, nodes, packed)

    def place(self, command: int, parameter: int) -> int:
        """Return the address of a parameter's bytes, of a command that uses slots."""
        block = self._packed[command]
        return block.address + block._layout.offsets[parameter]

    def bind(self, table: Table) -> Iterable[int]:
        """Fill in the addresses of a table; return the commands that this changed.

        After an interruption part-way, by Ctrl-C, the replica must not be used again.
        """
        changed: dict[int, None] = {}
        for slot, use, pointers, numbers in self._writes:
            old, address = self.table[slot], table[slot]
            if old == address:
                continue
            changed |= use.commands
            for storage, place, offset in pointers:
                pack_address(storage, place, address + offset)
            for command, field, offset in use.fields:
                node = self.nodes[command]
                self.nodes[command] = node._make(
                    (*node[:field], address + offset, *node[field + 1 :])
                )
            for pack, storage, place, part in numbers:
                pack(storage, place, address[part])
            for command in use.grids:
                self.nodes[command] = self.nodes[command]._replace(grid=address)
        self.table = table
        return changed


class Instance:
    """A native graph instance and the table that it is bound to.

    It runs once at a time, so only two may launch it: the stream that did so
    last, which keeps its own order, and any stream once the last execution has
    retired, which is when its lease is gone.
    """

    __slots__ = ("again", "broken", "graph", "lease", "rebinder", "replica", "stream")

    def __init__(self, graph: Handle, replica: Replica, stream: int, lease: Lease) -> None:
        self.graph = graph
        self.replica = replica
        self.stream = stream
        self.lease = weakref.ref(lease)
        self.broken = False  # its contents are unknown
        # The object by which the C extension binds it anew; its table has only None then.
        self.rebinder: Rebinder | None = None
        # The C extension asks for one more, for bindings that take turns with what it holds.
        self.again = False

    def is_free_for(self, stream: int) -> bool:
        """Return whether a stream may launch it."""
        return not self.broken and (self.stream == stream or self.lease() is None)


class InstancePool:
    """The instances of one recording."""

    __slots__ = ("__weakref__", "_instances", "_lock")

    def __init__(self) -> None:
        self._lock = sync.Lock()  # held only for a look at the list
        self._instances: tuple[Instance, ...] = ()

    def __len__(self) -> int:
        return len(self._instances)

    def take(self, stream: int, table: Table, lease: Lease) -> Instance | None:
        """Return an instance that the stream may launch now, or None if a new one is wanted.

        The lease holds it from now on.
        """
        with self._lock:
            instance = self._choose(stream, table)
            if instance is not None and instance.replica.table != table:
                instance = None if self._is_asked(stream) else instance
            if instance is not None:
                lease.instance = instance
                instance.stream = stream
                instance.lease = weakref.ref(lease)
        return instance

    def add(self, instance: Instance) -> None:
        """Keep a new instance for later executions, and drop broken ones."""
        with self._lock:  # no loop with a condition under it, see `hal._engine.timelines.lock`
            self._instances = (*filter(lambda each: not each.broken, self._instances), instance)

    def trim(self) -> None:
        """Release instances that nothing runs."""
        # Without the lock: a signal handler that comes here would find it taken by its own thread.
        # What is taken or added meanwhile is lost to the pool at the most, for its lease holds it.
        self._instances = tuple([each for each in self._instances if each.lease() is not None])

    def _is_asked(self, stream: int) -> bool:
        """Return whether an instance of a stream asks for one more, and end that."""
        asking = [each for each in self._instances if each.again and each.stream == stream]
        for each in asking:
            each.again = False
        return bool(asking)

    def _choose(self, stream: int, table: Table) -> Instance | None:
        best = None
        for instance in self._instances:
            if not instance.is_free_for(stream):
                continue
            if instance.replica.table == table:
                return instance  # it needs no update
            # The stream's own first: while that runs it serves no other; an idle one serves any.
            if best is None or (instance.stream == stream and best.stream != stream):
                best = instance
        return best
