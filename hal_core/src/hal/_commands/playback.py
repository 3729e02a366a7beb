"""Run a recording: replay it on a stream, or launch it as a native graph (rule C4).

A `Playback` never changes once it is made, but for what executions bind: an execution on a stream
or by the host takes a *replica* for that, and a graph an *instance*, which has a replica of its own
(`hal._commands.instances`). Both are the execution's alone as long as its native calls are made,
under the baton of its queue; several queues may run the same recording at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hal._base.failures import fresh, placed
from hal._commands.instances import Instance, InstancePool, Lease, Replica, SlotUses
from hal._commands.rebinding import RebindPlan, calls_of, plan_of
from hal._engine.payload import Checked
from hal._kernels.indirect import run_on_host
from hal._memory.peers import find_owners
from hal._memory.reaper import GRAPH, INSTANCE
from hal._memory.replay import Replay
from hal._memory.storage import Handle, Storage, Transient
from hal.errors import HalError, OperationError
from hal.handlers import own
from hal.native import EmptyNode, FillNode, LaunchNode, MemoryType, Node, PeerCopyNode

if TYPE_CHECKING:
    from hal._commands.bindings import LateTable, SlotRules, Table
    from hal._commands.collectives import Gathering
    from hal._commands.lowering import Lowering
    from hal._commands.nodes import Command
    from hal._engine.stream import StreamQueue
    from hal._memory.core import DeviceCore
    from hal._speedups import Rebinder
    from hal.native_collectives import Participant


_EMPTY: Final = EmptyNode()
_PLAIN: Final = (LaunchNode, FillNode)  # nodes whose calls never block: a copy's may


class StreamReplay(Replay):
    """One execution of a recording on a stream."""

    __slots__ = ("_playback", "replica", "table")

    def __init__(self, playback: Playback, table: Table | LateTable | None, count: int) -> None:
        Replay.__init__(self, count)  # super() would cost twice as much
        self._playback = playback
        self.table = table  # None if it has no slots
        self.replica: Replica | None = None  # bound to the table, once the first calls are made

    def replay(self, stream: int, start: int, end: int) -> None:
        """Make the native calls from `start` to before `end`."""
        self._playback.replay(self, stream, start, end)


class Stage(NamedTuple):
    """A part of a recording: the queue that runs it, None for the executing one, and its work.

    `after` has the indices of the stages that it waits for.
    """

    queue: StreamQueue | None
    work: Playback | Gathering
    after: tuple[int, ...]


class Stages(NamedTuple):
    """An ended recording of several parts; `last` has the stages that no other one waits for.

    `groups` are those whose collectives it has.
    """

    rules: SlotRules
    stages: tuple[Stage, ...]
    last: tuple[int, ...]
    groups: tuple[Participant, ...]


class Playback:
    """An ended recording; immutable except for its replicas and instances.

    Executions hold it until they have retired, and it holds what they use.
    """

    __slots__ = (
        "_describe",
        "_direct",
        "_functions",
        "_host_copies",
        "_lowering",
        "_plain",
        "_plan",
        "_pool",
        "_resources",
        "_rules",
        "_spares",
        "_template",
        "_uses",
        "device",
        "is_host",
        "owners",
    )

    def __init__(
        self,
        device: DeviceCore,
        commands: Sequence[Command],
        rules: SlotRules,
        lowering: Lowering | None,
        describe: Callable[[int], str],
        direct: tuple[Transient, ...],
        host_copies: Sequence[tuple[int, tuple[int, ...]]],
        *,
        is_host: bool,
    ) -> None:
        """Take the commands; with a lowering they run as a native graph.

        `host_copies` are, with their slots, copies that become ones from host to host if pinned
        memory is bound to all of these.
        """
        nodes = [each.node for each in commands]
        resources = self._resources = [each.resources for each in commands]
        uses = SlotUses(rules.count, commands)
        self.device = device
        self._functions = [each.function for each in commands]
        self._rules = rules
        self._uses = uses
        self._lowering = lowering
        self._describe = describe
        self._host_copies = host_copies
        self._direct = direct  # memory of `Queue.alloca`, whose uses are noted
        self.is_host = is_host
        # Contexts of other devices whose memory it uses, directly or by slot
        visits = device._access or any(node.__class__ is PeerCopyNode for node in nodes)
        self.owners = frozenset[Any]()
        if visits:
            bound = {rules.slots[slot].device._context for slot in uses.by_slot}
            self.owners = find_owners(device, resources) | bound - {device._context}
        self._template = Replica(uses, nodes, uses.packed)
        self._spares = [self._template]  # unused replicas
        self._pool = InstancePool()
        self._plan: RebindPlan | None = None  # of a recording whose slots the C extension can bind
        self._plain = self._find_plain()

    def _find_plain(self) -> InstancePool | Rebinder | None:
        """Return what the C extension needs for an execution; None if only Python can submit it.

        That is the instances of a graph; or the launches and fills of a recording on a stream,
        which needs nothing from its execution but plain bindings. With slots the second execution
        makes that: most recordings on a stream are executed once.
        """
        varies = self.temporaries() or self._host_copies or self._direct
        if varies or self.is_host or self.owners or not self._functions:
            return None
        nodes, slots = self._template.nodes, self._uses.count
        if self._lowering is None:
            can = all(isinstance(each, _PLAIN) for each in nodes)
        else:
            calls = self.device._context.calls
            can = calls is not None and bool(calls.update_launch)
        if slots and can:
            self._plan = plan_of(self._rules, self._uses, nodes)
        if self._lowering is not None:
            return self._pool if not slots or self._plan is not None else None
        return calls_of(self._template) if can and not slots else None

    def temporaries(self) -> tuple[int, ...]:
        """Return the bytes of each block that an execution reserves for its temporaries."""
        return self._rules.temporaries() if self._functions else ()

    def of_part(self, table: Table | LateTable, storages: Sequence[Any]) -> Checked:
        """Return the payload of a part's execution, as `payload` does of a whole one.

        `table` and `storages` are what the bindings of all slots were checked to be.
        """
        kept = [storages[slot] for slot in self._uses.by_slot]
        return self._payload(table, storages, (self, self._direct, kept))

    def payload(self, bindings: object, blocks: Sequence[Storage]) -> Checked:
        """Check the bindings of an execution; return its payload.

        `blocks` are the memory of the temporaries. See `Queue.execute`.
        """
        resources: object = (self, self._direct) if self._direct else self
        table: Table | LateTable = ()
        storages: Sequence[Any] = ()
        if self._uses.count or bindings is not None:
            table, storages = self._rules.check(() if bindings is None else bindings, blocks)
            resources = (self, self._direct, storages)
        return self._payload(table, storages, resources)

    def _payload(
        self, table: Table | LateTable, storages: Sequence[Any], resources: object
    ) -> Checked:
        """Return the payload that uses a checked table."""
        if not self._functions:
            return (None, (), resources), False
        moves = self._moves(storages) if self._host_copies else ()
        if self.is_host or moves:
            return (self._run_on_host, (table, moves), resources), True
        if self._lowering is not None:
            lease = Lease()
            return (self._launch, (self._lowering, table, lease), (resources, lease)), False
        bound = table if self._uses.count else None
        return (StreamReplay(self, bound, len(self._functions)), (), resources), False

    def _moves(self, storages: Sequence[Any]) -> frozenset[int]:
        """Return the commands that are copies from host to host with these bindings."""
        return frozenset(
            [
                command
                for command, slots in self._host_copies
                if all(storages[slot].memory is MemoryType.HOST for slot in slots)
            ]
        )

    def replay(self, execution: StreamReplay, stream: int, start: int, end: int) -> None:
        """Make the native calls of the commands from `start` to `end` on a stream."""
        replica = execution.replica
        if replica is None:
            table = execution.table
            replica = execution.replica = self._template if table is None else self._take(table)
        functions, nodes = self._functions, replica.nodes
        direct = self.device._context.direct
        node, position = None, start
        try:
            # C makes the calls that it can, up to one that fails or is not its own; that one is
            # made here, which makes the error, too.
            while True:
                if direct is not None:
                    position = direct.replay(stream, nodes, position, end)
                if position == end:
                    break
                node = nodes[position]
                functions[position](stream, *node)
                position += 1
        except own(HalError) as error:
            raise self._explain(error, nodes, node) from error
        if end == len(functions) and replica is not self._template:
            # The calls have copied the arguments, so another execution may bind it anew. After an
            # error, which may have come in the middle of a call, it is not used again.
            if self._plain is None and self._plan is not None:
                self._plain = self._plan.of_calls(replica)
            else:
                self._spares.append(replica)

    def _run_on_host(self, table: Table | LateTable, moves: Container[int]) -> None:
        """Run all of it from the host, which reads grids in memory and is idle before `moves`."""
        replica = self._take(table)
        node = None

        def calls() -> Iterator[tuple[Callable[..., object], Any]]:
            nonlocal node
            for function, each in zip(self._functions, replica.nodes, strict=True):
                node = each
                yield function, each

        try:
            run_on_host(self.device, calls(), moves)
        except own(HalError) as error:
            raise self._explain(error, replica.nodes, node) from error
        self._spares.append(replica)

    def _launch(
        self, stream: int, lowering: Lowering, table: Table | LateTable, lease: Lease
    ) -> None:
        """Launch a native graph instance, after updating it to a binding table."""
        addresses = self._resolve(table)
        native, plan = self.device._native, self._plan
        instance = self._pool.take(stream, addresses, lease)
        if instance is None:
            instance = self._instantiate(stream, lowering, addresses, lease)
        elif instance.replica.table != addresses:
            try:
                self._update(instance, lowering.positions, addresses)
            except own(OperationError):
                # Other bindings may need other nodes: pinned memory instead of the device's.
                instance = self._instantiate(stream, lowering, addresses, lease)
        if plan is not None:
            self._prepare(instance, lowering.positions, plan)
        native.launch_graph(stream, instance.graph.handle)

    def _instantiate(self, stream: int, lowering: Lowering, table: Table, lease: Lease) -> Instance:
        """Make an instance that is bound to a table, and lease it."""
        native, heap = self.device._native, self.device._heap
        replica = self._take(table) if self._uses.count else self._template
        nodes: list[Node] = [_EMPTY] * len(lowering.dependencies)
        for position, node in zip(lowering.positions, replica.nodes, strict=True):
            nodes[position] = node
        # A graph takes no launch of an empty grid: one of a block stands for it, switched off. To
        # leave it out was rejected: each set of empty grids would need an instance of its own.
        empty = [each for each in self._uses.sized if not all(replica.nodes[each].grid)]
        for command in empty:
            whole = replica.nodes[command]._replace(grid=(1, 1, 1))
            nodes[lowering.positions[command]] = whole
        graph = Handle(heap, GRAPH, native.create_graph(nodes, lowering.dependencies))
        handle = Handle(heap, INSTANCE, native.instantiate_graph(graph.handle))
        graph.close()
        for command in empty:
            place = lowering.positions[command]
            native.update_graph(handle.handle, place, replica.nodes[command])
        instance = lease.instance = Instance(handle, replica, stream, lease)
        self._pool.add(instance)
        pools = self.device._instances
        pools[weakref.ref(self._pool, pools.pop)] = None  # the same key each time: they are equal
        return instance

    def _update(self, instance: Instance, positions: Sequence[int], table: Table) -> None:
        """Update the nodes of an instance that use other buffers now to the new addresses."""
        update, handle = self.device._native.update_graph, instance.graph.handle
        nodes = instance.replica.nodes
        instance.broken = True  # unless all goes well
        node = None
        try:
            for command in instance.replica.bind(table):
                node = nodes[command]
                update(handle, positions[command], node)
        except own(HalError) as error:
            raise self._explain(error, nodes, node) from error
        instance.broken = False

    def _prepare(self, instance: Instance, positions: Sequence[int], plan: RebindPlan) -> None:
        """Let the C extension bind an instance anew, unless one of its launches is switched off."""
        nodes = instance.replica.nodes
        if any(0 in nodes[command].grid for command in self._uses.sized):
            instance.rebinder = None
        elif instance.rebinder is None:
            instance.rebinder = plan.of_instance(self.device._native, instance, positions)

    def _take(self, table: Table | LateTable) -> Replica:
        """Return a replica that is bound to a table and that nobody else uses."""
        addresses = self._resolve(table)
        try:
            replica = self._spares.pop()
        except own(IndexError):
            replica = self._template.copy()
        if replica.table != addresses:
            replica.bind(addresses)
        return replica

    def _resolve(self, table: Table | LateTable) -> Table:
        """Return the addresses of a table, some of which may have been unknown at submission."""
        return self._rules.resolve(table) if isinstance(table, list) else table

    def _explain(self, error: HalError, nodes: Sequence[Node], node: object) -> HalError:
        for command, each in enumerate(nodes):
            if each is node:
                return placed(f"execute: {self._describe(command)}", error)
        return fresh(error)


def go_on(stream: int, playback: Playback, start: int, table: Table | None) -> None:
    """Make the calls from `start` on of a recording that C has begun, with what its slots are."""
    count = len(playback._functions)
    playback.replay(StreamReplay(playback, table, count), stream, start, count)
