"""The order of commands: derived from bytes, from barriers and from events (C2, I8).

The oracles look at all pairs and all paths, byte by byte.
"""

import contextlib
import itertools
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hal._commands.hazards import Access, Hazards, RangeSet
from hal._commands.lowering import CommandOrder, lower
from hal._commands.parts import cut, narrow


def conflict(one, two):
    """Whether two commands touch a common byte that one of them writes."""
    return any(
        a.memory == b.memory and (a.writes or b.writes) and range_of(a) & range_of(b)
        for a, b in itertools.product(one, two)
    )


def range_of(access):
    return set(range(access.start, access.stop))


def closure(pairs, count):
    """Return the pairs with a path between them, for pairs that point forward."""
    before = [set() for _ in range(count)]
    for later in range(count):
        for earlier in range(later):
            if (earlier, later) in pairs:
                before[later] |= {earlier} | before[earlier]
    return {(earlier, later) for later in range(count) for earlier in before[later]}


def reduction(closed, count):
    """Return the pairs of a closed relation that no third one lies between."""
    return {
        (earlier, later)
        for earlier, later in closed
        if not any((earlier, each) in closed and (each, later) in closed for each in range(count))
    }


accesses = st.builds(
    lambda memory, start, size, writes: Access(memory, start, start + size, writes),
    st.integers(-1, 1),
    st.integers(0, 11),
    st.integers(1, 6),
    st.booleans(),
)
commands = st.lists(accesses, max_size=3)


@settings(deadline=None, max_examples=400)
@given(st.lists(commands, max_size=14))
def test_the_edges_are_the_least_that_order_all_conflicts_c2(program):
    """C2: exactly the transitive reduction of the conflicts between all pairs."""
    hazards = Hazards()
    found = {
        (earlier, later) for later, each in enumerate(program) for earlier in hazards.add(each)
    }
    count = len(program)
    conflicts = {
        (i, j)
        for i, j in itertools.combinations(range(count), 2)
        if conflict(program[i], program[j])
    }
    assert found == reduction(closure(conflicts, count), count)


@settings(deadline=None, max_examples=100)
@given(st.lists(commands, max_size=8), st.lists(commands, max_size=8))
def test_after_a_restart_nothing_before_is_known_c2(first, second):
    """The edges are those of the second part alone, with the numbers of the whole."""
    hazards, alone = Hazards(), Hazards()
    for each in first:
        hazards.add(each)
    hazards.restart()
    for each in second:
        assert hazards.add(each) == [number + len(first) for number in alone.add(each)]


# Orders of recordings

step = st.one_of(
    commands,
    st.just("barrier"),
    st.tuples(st.just("signal"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.integers(0, 2)),
)


def record(program, *, auto):
    """Play a program; return its `CommandOrder`, its commands, and all pairs that it must order."""
    order = CommandOrder()
    recorded, pairs, base = [], set(), set()
    joins, befores = {}, {}
    for each in program:
        number = len(recorded)
        if each == "barrier":
            order.barrier()
            base = set(range(number))
        elif isinstance(each, tuple) and each[0] == "signal":
            joins[each[1]] = order.join()
            befores[each[1]] = set(range(number))
        elif isinstance(each, tuple):
            if each[1] in joins:
                order.wait(joins[each[1]])
                base |= befores[each[1]]
        else:
            order.add()
            if auto:
                order.accesses.append(each)
                pairs |= {(i, number) for i in range(number) if conflict(recorded[i], each)}
            pairs |= {(earlier, number) for earlier in base}
            recorded.append(each)
    return order, recorded, pairs


def check_graph(lowering, pairs, count):
    """Compare paths between commands with the pairs; return how many edges the graph has."""
    positions, dependencies = lowering
    assert list(positions) == sorted(set(positions))
    assert len(positions) == count
    followers = [0] * len(dependencies)
    for index, before in enumerate(dependencies):
        assert len(set(before)) == len(before)
        assert all(0 <= each < index for each in before)
        for each in before:
            followers[each] += 1
    for index in set(range(len(dependencies))) - set(positions):
        assert len(dependencies[index]) > 1, "an empty node after one"
        assert followers[index] > 1, "an empty node before one"
    edges = {(before, index) for index, each in enumerate(dependencies) for before in each}
    paths = closure(edges, len(dependencies))
    found = {
        (i, j)
        for i, j in itertools.combinations(range(count), 2)
        if (positions[i], positions[j]) in paths
    }
    assert found == closure(pairs, count)
    return len(edges)


@settings(deadline=None, max_examples=400)
@given(st.lists(step, max_size=16), st.booleans())
def test_a_graph_orders_what_was_asked_for_and_nothing_more_i8(program, auto):
    """I8: barriers and events, with and without derived order: the very same pairs."""
    order, recorded, pairs = record(program, auto=auto)
    check_graph(lower(order), pairs, len(recorded))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(commands, st.just("barrier")), max_size=14))
def test_with_barriers_the_edges_are_still_the_least_c2(program):
    """Through a join, m commands before n take m + n edges at most, and never more than m * n."""
    order, recorded, pairs = record(program, auto=True)
    count = len(recorded)
    edges = check_graph(lower(order), pairs, count)
    assert edges <= len(reduction(closure(pairs, count), count))


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 1000])
def test_commands_between_barriers_have_no_path_between_them_c2(count):
    """C2: m commands, a barrier, m more: one join, and an edge in and out for each."""
    order = CommandOrder()
    for _ in range(2):
        order.barrier()
        order.barrier()
        for _ in range(count):
            order.add()
    order.barrier()
    positions, dependencies = lower(order)
    if count == 1:
        assert dependencies == ((), (0,))
        return
    assert len(dependencies) == 2 * count + 1
    assert dependencies[:count] == ((),) * count
    assert dependencies[count] == tuple(range(count))
    assert dependencies[count + 1 :] == ((count,),) * count
    assert positions[count] == count + 1


def test_one_before_many_and_many_before_one_take_no_join_c2():
    order = CommandOrder()
    order.add()
    order.barrier()
    for _ in range(3):
        order.add()
    order.barrier()
    order.add()
    assert lower(order).dependencies == ((), (0,), (0,), (0,), (1, 2, 3))


def touch(memory, start, size, *, writes=True):
    return Access(memory, start, start + size, writes)


SHAPES = {
    # one written before all, read by all, in a chain
    "chain": lambda n: [
        [touch(0, 0, 4, writes=i == 0), touch(1, i % 2, 1), touch(1, (i + 1) % 2, 1, writes=False)]
        for i in range(n)
    ],
    "apart": lambda n: [[touch(0, 4 * i, 4)] for i in range(n)],
    "readers, then a writer": lambda n: [[touch(0, 0, 100, writes=i == n - 1)] for i in range(n)],
    "one writer": lambda n: [[touch(0, 0, 100)] for _ in range(n)],
    "pieces of what was read": lambda n: [
        [touch(0, 0, 10_000, writes=False) if i % 100 else touch(0, i % 9973, 7)] for i in range(n)
    ],
    "scattered": lambda n: [
        [
            touch(i % 3, (i * 7919) % 4096, 64, writes=i % 2 == 0),
            touch(i % 5, (i * 104729) % 4096, 16, writes=i % 3 == 0),
        ]
        for i in range(n)
    ],
}


@contextlib.contextmanager
def lines_run():
    """Count the lines of Python that run; seconds would tell how busy the machine is."""
    count = itertools.count()

    def trace(*_):
        next(count)
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_command_takes_no_longer_for_those_before_it_c2(shape):
    """C2: not quadratic: of 5,000 commands each takes a thousand lines at most."""
    program = SHAPES[shape](5_000)
    hazards = Hazards()
    with lines_run() as lines:
        edges = sum(len(hazards.add(each)) for each in program)
    assert next(lines) < 1000 * len(program)
    if shape == "chain":
        assert edges == 4_999
    if shape == "apart":
        assert edges == 0
    if shape == "readers, then a writer":
        assert edges == 4_999


@pytest.mark.parametrize("kind", ["barriers", "events"])
def test_a_join_takes_no_longer_for_those_before_it_c2(kind):
    """Joins of joins of joins: no recursion, nothing quadratic: a hundred lines for each."""
    order = CommandOrder()
    for _ in range(20_000):
        order.add()
        if kind == "barriers":
            order.barrier()
        else:
            join = order.join()
    if kind == "events":
        order.wait(join)
        order.add()
        order.add()
    with lines_run() as lines:
        lowering = lower(order)
    assert next(lines) < 100 * 20_000
    edges = sum(map(len, lowering.dependencies))
    assert edges == (19_999 if kind == "barriers" else 20_002)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)), max_size=6),
    st.integers(0, 36),
    st.integers(0, 6),
)
def test_extents_know_every_byte(ranges, start, size):
    """Whether a range meets any of others, against sets of bytes."""
    pairs = [(first, first + length) for first, length in ranges]
    everything = {byte for first, stop in pairs for byte in range(first, stop)}
    extents = RangeSet(pairs)
    assert bool(extents.shifted(0, 40)) == bool(everything)
    assert extents.meet(start, start + size) == bool(everything & set(range(start, start + size)))
    moved = {byte for first, stop in extents.shifted(5, 20) for byte in range(first, stop)}
    assert moved == {byte + 5 for byte in everything if byte + 5 < 20}


# Parts


def closed(order):
    """Return the pairs of commands that an order puts one after the other."""
    lowering = lower(order)
    edges = {(each, node) for node, before in enumerate(lowering.dependencies) for each in before}
    found = closure(edges, len(lowering.dependencies))
    number = {node: command for command, node in enumerate(lowering.positions)}
    return {(number[a], number[b]) for a, b in found if a in number and b in number}


steps = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 3), commands), st.sampled_from(["barrier", "signal", "wait"])
    ),
    max_size=24,
)


@settings(deadline=None, max_examples=400)
@given(steps, st.booleans(), st.sets(st.integers(0, 24)))
def test_parts_keep_the_order_c2(program, hazards, groups):
    """C2: by their waits and inside of each; and no part waits for a later one.

    G1: what a group launches, one command or two neighbours of a place, is a part by itself.
    """
    order, places, join = CommandOrder(), [], None
    for step in program:
        if step == "barrier":
            order.barrier()
        elif step == "signal":
            join = order.join()
        elif step == "wait":
            order.wait(join)
        else:
            places.append(step[0])
            if hazards:
                order.accesses.append(step[1])
            order.add()
    if not places:
        return
    launches = [object() if each in groups else None for each in range(len(places))]
    for each in range(1, len(places), 2):
        if launches[each] and launches[each - 1] and places[each] == places[each - 1]:
            launches[each] = launches[each - 1]
    parts = cut(order, places, launches)
    for launch in {*launches} - {None}:
        its = tuple([each for each, other in enumerate(launches) if other is launch])
        assert its in [part.commands for part in parts]
    assert sorted(each for part in parts for each in part.commands) == [*range(len(places))]
    assert all(places[each] == part.place for part in parts for each in part.commands)
    behind = closure({(a, b) for b, part in enumerate(parts) for a in part.after}, len(parts))
    assert all(a < b for b, part in enumerate(parts) for a in part.after)
    whose = {each: index for index, part in enumerate(parts) for each in part.commands}
    inside = [closed(narrow(order, part.commands)) for part in parts]
    for before, after in closed(order):
        if whose[before] == whose[after]:
            place = parts[whose[after]].commands.index
            assert (place(before), place(after)) in inside[whose[after]]
        else:
            assert (whose[before], whose[after]) in behind
    for part in parts:  # and no more: a place waits only at the first of its commands
        for each in part.after:
            last = parts[each]
            alone = launches[last.commands[-1]] is launches[part.commands[0]] is None
            pairs = itertools.product(last.commands, part.commands)
            if alone:
                pairs = [(last.commands[-1], part.commands[0])]
            assert closed(order).intersection(pairs) or last.place == part.place
