"""Decide which recordings run as a graph, and turn their order into its edges (rules C2, C4).

While commands are recorded, `CommandOrder` notes what each comes after: a *join*, which
is everything before the last barrier or before the signal of an event that was
waited for, and with ``hazards="auto"`` the bytes that it touches. `lower` turns
these into edges. A join becomes an empty node only where several commands come
after several, which would take an edge from each to each; elsewhere plain edges say the same.

A join covers every command before it, so of two the later one covers the other,
and one is enough for a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from hal._commands.hazards import Access, Hazards
from hal.native import LaunchNode, NativeDevice, Node, PeerCopyNode


class CommandJoin:
    """All commands up to a place of the recording."""

    __slots__ = ("commands", "earlier", "stop")

    def __init__(self, stop: int, commands: Sequence[int], earlier: CommandJoin | None) -> None:
        self.stop = stop  # the number of the first command after it
        self.commands = commands  # its own, in order; there is at least one
        # Another join that is part of it. A command that is in neither comes before one of its own.
        self.earlier = earlier


class CommandOrder:
    """The order of a recording: what each command comes after."""

    __slots__ = ("_base", "_covered", "_last", "_open", "accesses", "bases")

    def __init__(self) -> None:
        self.bases: list[CommandJoin | None] = []  # of each command, the join that it comes after
        self.accesses: list[Sequence[Access]] = []  # what each touches, where that orders
        self._base: CommandJoin | None = None
        self._covered = False  # a command since then comes after the base
        self._open: list[int] = []  # commands that are part of no join yet
        self._last: CommandJoin | None = None  # the last join since the barrier

    @property
    def stop(self) -> int:
        """The number of the first command that the next one need not come after."""
        return 0 if self._base is None else self._base.stop

    def add(self) -> None:
        """Note the next command."""
        self._open.append(len(self.bases))
        self.bases.append(self._base)
        self._covered = True

    def barrier(self) -> None:
        """Order all commands so far before all that follow."""
        self.wait(self.join())
        self._last = None

    def join(self) -> CommandJoin | None:
        """Return all commands so far as one join; None if there are none."""
        earlier = self._last or self._base
        if self._open:
            # A command of this join comes after the base, so the base needs no edge of its own.
            if self._covered and earlier is self._base:
                earlier = None
            earlier = CommandJoin(len(self.bases), self._open, earlier)
            self._open = []
        self._last = earlier
        return earlier

    def wait(self, join: CommandJoin | None) -> None:
        """Order all commands of a join before all that follow."""
        if join is not None and (self._base is None or self._base.stop < join.stop):
            self._base = join
            self._covered = False


class Lowering(NamedTuple):
    """The places of a recording's commands in a graph."""

    positions: tuple[int, ...]  # of each command, the index of its node; the others are empty
    dependencies: tuple[tuple[int, ...], ...]  # as `hal.native.NativeDevice.create_graph` has them


def runs_as_graph(
    native: NativeDevice, nodes: Sequence[Node], mode: str, *, one_shot: bool
) -> bool:
    """Return whether commands run as a native graph, and not one by one on the stream (C4).

    Copies to what their device does not reach are the stream's. Making a graph costs more than
    a replay saves once.
    """
    if not nodes or mode == "stream" or "graphs" not in native.features:
        return False
    if mode == "auto":
        least = native.graph_commands
        if native.graph_launches and all(isinstance(node, LaunchNode) for node in nodes):
            least = native.graph_launches
        if one_shot or not 0 < least <= len(nodes):
            return False
    peers = [node for node in nodes if isinstance(node, PeerCopyNode)]
    sides = {side for node in peers for side in (node.target_device, node.source_device)}
    others = cast("set[Any]", sides) - {native}
    if others:
        native.bind()
    return all(native.can_access_peer(each) for each in others)


def lower(order: CommandOrder) -> Lowering:
    """Return the graph of a recording that has ended."""
    before: Sequence[Sequence[int]] = ()
    bases = order.bases
    if order.accesses:
        before, bases = _derive(order)
    uses = _count_uses(bases)
    positions: list[int] = []
    dependencies: list[tuple[int, ...]] = []
    nodes: dict[CommandJoin, list[int]] = {}  # what comes after each join depends on them
    for number, base in enumerate(bases):
        after = [positions[command] for command in before[number]] if before else []
        if base is not None:
            if base not in nodes:
                _place(base, before, uses, positions, dependencies, nodes)
            after += nodes[base]
        positions.append(len(dependencies))
        dependencies.append(tuple(after))
    return Lowering(tuple(positions), tuple(dependencies))


def _derive(order: CommandOrder) -> tuple[list[list[int]], list[CommandJoin | None]]:
    """Return each command's predecessors by its bytes, and its join unless one implies that."""
    hazards = Hazards()
    before: list[list[int]] = []
    bases: list[CommandJoin | None] = []
    last: CommandJoin | None = None
    for number, (base, accesses) in enumerate(zip(order.bases, order.accesses, strict=True)):
        # It comes after all commands so far, whose bytes order nothing any more. Behind an event
        # they may: commands between its two halves are beside this one.
        if base is not None and base is not last and base.stop == number:
            hazards.restart()
        last = base
        predecessors = hazards.add(accesses)
        if base is not None:
            predecessors = [each for each in predecessors if each >= base.stop]
        implied = any(order.bases[each] is base for each in predecessors)
        before.append(predecessors)
        bases.append(None if implied else base)
    return before, bases


def _count_uses(bases: Sequence[CommandJoin | None]) -> dict[CommandJoin, int]:
    """Return, for each join in use, how many commands and joins come after it."""
    uses: dict[CommandJoin, int] = {}
    for base in bases:
        if base is not None:
            uses[base] = uses.get(base, 0) + 1
    for join in list(uses):
        earlier = join.earlier
        while earlier is not None:
            uses[earlier] = uses.get(earlier, 0) + 1
            if uses[earlier] > 1:
                break  # already counted, with its inner joins
            earlier = earlier.earlier
    return uses


def _place(
    base: CommandJoin,
    before: Sequence[Sequence[int]],
    uses: dict[CommandJoin, int],
    positions: Sequence[int],
    dependencies: list[tuple[int, ...]],
    nodes: dict[CommandJoin, list[int]],
) -> None:
    """Find the nodes to depend on for a join and its inner joins; add empty nodes where needed."""
    chain = [base]
    while chain[-1].earlier is not None and chain[-1].earlier not in nodes:
        chain.append(chain[-1].earlier)
    for join in reversed(chain):
        earlier = join.earlier
        # A join is part of at most one other, and everything that comes after only it came before.
        after = [] if earlier is None else nodes[earlier]
        if before:
            # Commands that others of the join come after are covered by those.
            inner = {each for command in join.commands for each in before[command]}
            after += [positions[command] for command in join.commands if command not in inner]
        else:
            after += [positions[command] for command in join.commands]
        if len(after) > 1 and uses[join] > 1:
            dependencies.append(tuple(after))
            after = [len(dependencies) - 1]
        nodes[join] = after
