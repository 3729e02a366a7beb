"""Cut a recording into parts, which several queues run (rules C1, C2).

Commands recorded under `CommandBuffer.on` have a *place*, the queue that is named there; the others
are the executing queue's, place 0. The commands of one place run in runs of neighbours, the
parts. One ends behind a command that another place waits for, and one begins before a
command that waits for another place. So a place waits no longer than its commands do, and as
few operations are submitted as that allows. What a group of ranks launches is a part by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from hal._commands.lowering import CommandJoin, CommandOrder, lower


class Part(NamedTuple):
    """Commands of one place that are submitted together, by their numbers in the recording.

    `after` has the indices of the parts, all of them earlier ones, that this one waits for: of its
    own place the one before, and of others those whose last command one of these comes after.
    """

    place: int
    commands: tuple[int, ...]
    after: tuple[int, ...]


def cut(order: CommandOrder, places: Sequence[int], launches: Sequence[object]) -> list[Part]:
    """Return the parts of a recording whose commands have `places`, in an order to submit them.

    Commands with the same one of `launches` are neighbours, and one part, whatever waits for
    them. Those of others have None.
    """
    # The fewest waits that keep the order and delay nothing. Levels of parts were rejected:
    # they are fewer operations, but all copies of a pipeline would be done before its first kernel.
    awaited = _find_waits(order, places)
    ends = {each for waits in awaited.values() for each in waits}
    last: dict[int, int] = {}  # of each place, its last part
    found: list[tuple[list[int], list[int]]] = []
    whose: list[int] = []  # of each command, its part
    for command, place in enumerate(places):
        part, launch = last.get(place), launches[command]
        waits = [whose[each] for each in awaited.get(command, ())]
        before = None if part is None else found[part][0][-1]
        goes_on = before is not None and launches[before] is launch
        if launch is None and (waits or before in ends):
            goes_on = False
        if part is None or not goes_on:
            after = [] if part is None else [part]
            part = last[place] = len(found)
            found.append(([], after))
        found[part][1].extend(waits)
        found[part][0].append(command)
        whose.append(part)
    return [Part(places[commands[0]], tuple(commands), tuple(after)) for commands, after in found]


def _find_waits(order: CommandOrder, places: Sequence[int]) -> dict[int, list[int]]:
    """Return, for each command that its place waits at, the other places' commands to wait for.

    A command that an earlier wait of its place covers is left out. A wait for a command covers all
    before it in its place, and whatever that place had waited for by then.
    """
    lowering = lower(order)
    command_at = {node: command for command, node in enumerate(lowering.positions)}
    nothing = (-1,) * (max(places) + 1)
    # For each node and each place, the last command there that the node comes after, or is
    reached: list[tuple[int, ...]] = []
    # For each place, what it has waited for so far; for each command, what its place had waited for
    # when the command came
    waited = [nothing] * len(nothing)
    known: list[tuple[int, ...]] = []
    found: dict[int, list[int]] = {}
    for node, before in enumerate(lowering.dependencies):
        needs = nothing
        for each in before:
            needs = _latest(needs, reached[each])
        command = command_at.get(node)
        if command is not None:
            place = places[command]
            for other in sorted(range(len(nothing)), key=needs.__getitem__, reverse=True):
                last = needs[other]
                if other != place and last > waited[place][other]:
                    found.setdefault(command, []).append(last)
                    waited[place] = _latest(waited[place], known[last], _only(nothing, other, last))
            known.append(waited[place])
            needs = _latest(needs, _only(nothing, place, command))
        reached.append(needs)
    return found


def _latest(*several: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(max, *several))


def _only(nothing: tuple[int, ...], place: int, command: int) -> tuple[int, ...]:
    return (*nothing[:place], command, *nothing[place + 1 :])


def narrow(order: CommandOrder, commands: Sequence[int]) -> CommandOrder:
    """Return the order of one part's commands among themselves.

    What orders two of them by way of another place has cut the part between the two. So it is
    enough to leave the others out of each join.
    """
    numbers = {command: number for number, command in enumerate(commands)}
    known: dict[CommandJoin | None, CommandJoin | None] = {}
    narrowed = CommandOrder()
    for command in commands:
        base = order.bases[command]
        chain: list[CommandJoin] = []
        join = base
        while join is not None and join not in known and join.stop > commands[0]:
            chain.append(join)
            join = join.earlier
        last = known.get(join)  # None, too, where all commands come after it: none is part of it
        for each in reversed(chain):
            own = [numbers[number] for number in each.commands if number in numbers]
            stop = bisect_left(commands, each.stop)
            last = known[each] = CommandJoin(stop, own, last) if own else last
        narrowed.bases.append(last)
        if order.accesses:
            narrowed.accesses.append(order.accesses[command])
    return narrowed
