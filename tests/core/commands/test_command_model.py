"""Random command buffers against plain bytes (`byte_model`): C1 to C4.

Each trial is a random program over buffers and slots, recorded once and
executed several times with different tables on different queues. It must come
to what the model says, however it is lowered. Graphs run in the orders that
their edges leave: as the device likes, shuffled, and *latest first*, where a
proxy of the native device runs each node as early as its edges let it.
"""

import random
import time
from contextlib import ExitStack

import byte_model
import numpy as np
import pytest
from command_author import Author
from command_world import DIRECT, KINDS, Latest, World, contents
from core_harness import LIMIT

import hal
from hal._commands import command_buffer as _commands
from hal.native import EmptyNode


def touched(program, table):
    return [each for command in program for each in byte_model.accesses(command, DIRECT, table)]


def check(world, author, program, seed, *, mode, executions=4, parts=False):
    """Execute a program a few times and compare all memory with the model's."""
    pick = random.Random(seed)
    memory = contents(seed)
    world.start(memory)
    pick_queue = random.Random(seed) if parts else None
    commands = world.record(program, hazards=author.hazards, mode=mode, pick=pick_queue)
    before = []  # (queue, submission, what it touched)
    for _ in range(executions):
        table, queue = pick.choice(author.tables), pick.choice(world.queues)
        mine = touched(program, table)
        waits = [
            submission
            for other, submission, theirs in before
            if (other is not queue or not queue.ordered) and byte_model.meet(theirs, mine)
        ]
        if pick.random() < 0.3:
            queue.call(time.sleep, pick.choice([0, 0.0002, 0.002]))
        submission = queue.execute(commands, bindings=world.bindings(table), wait=waits)
        before.append((queue, submission, mine))
        byte_model.run(program, memory, DIRECT, table)
    hal.wait_all([submission for _, submission, _ in before], LIMIT)
    return memory, world.result()


def assert_equal(expected, got, program, seed):
    for index, (one, other) in enumerate(zip(expected, got, strict=True)):
        if one != other:
            at = next(
                place
                for place, pair in enumerate(zip(one, other, strict=True))
                if pair[0] != pair[1]
            )
            message = f"seed {seed}: memory {index} differs from byte {at} on\n"
            pytest.fail(message + byte_model.describe(program), pytrace=False)


@pytest.fixture(scope="module")
def worlds():
    """Devices of every kind, opened on first use."""
    with ExitStack() as stack:
        opened = {}

        def world(kind):
            if kind not in opened:
                device = stack.enter_context(hal.Device("cpu", KINDS[kind](), None))
                opened[kind] = World(device)
            return opened[kind]

        yield world


WAYS = {
    "stream": ("plain", "stream"),
    "graph": ("plain", "graph"),
    "seeded": ("seeded", "graph"),
    "latest": ("latest", "graph"),
    "host": ("not indirect", "auto"),
}


@pytest.mark.parametrize("hazards", ["manual", "auto"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", range(4))
def test_random_programs_c4(worlds, way, hazards, batch):
    """C2, C3, C4: whatever the lowering, the order that edges leave, the tables and the queues."""
    kind, mode = WAYS[way]
    for number in range(40):
        seed = 1000 * batch + number
        author = Author(seed, hazards=hazards, direct=number % 3 != 0)
        program = author.write(author.random.choice([1, 3, 8, 20, 40]))
        expected, got = check(worlds(kind), author, program, seed, mode=mode)
        assert_equal(expected, got, program, seed)


@pytest.mark.parametrize("hazards", ["manual", "auto"])
@pytest.mark.parametrize("way", ["stream", "latest", "host"])
def test_random_programs_in_parts_c2(worlds, way, hazards):
    """C2, C4: whichever queue runs each command, several executions at once."""
    kind, mode = WAYS[way]
    for number in range(40):
        seed = 50_000 + number
        author = Author(seed, hazards=hazards, direct=number % 3 != 0)
        program = author.write(author.random.choice([3, 8, 20, 40]))
        expected, got = check(worlds(kind), author, program, seed, mode=mode, parts=True)
        assert_equal(expected, got, program, seed)


def reachable(dependencies):
    """Return, for each node, a bit for every node that some path makes it wait for."""
    found = []
    for before in dependencies:
        bits = 0
        for each in before:
            bits |= 1 << each | found[each]
        found.append(bits)
    return found


def is_recorded(command):
    """Return whether a command becomes a node: it moves bytes or launches blocks."""
    kind, *given = command
    if kind in {"fill", "copy"}:
        return given[-1] > 0
    if kind == "update":
        return len(given[-1]) > 0
    return kind == "indirect" or (kind == "launch" and 0 not in given[1])


@pytest.mark.parametrize("hazards", ["manual", "auto"])
@pytest.mark.parametrize("batch", range(4))
def test_edges_say_what_the_model_says_c2(worlds, monkeypatch, hazards, batch):
    """C2, I8: paths lead from everything before a barrier or a signal to everything after it or
    its wait, with hazards from all commands that touch the same bytes; no other pair is ordered."""
    world, graphs = worlds("latest"), []
    create = Latest.create_graph

    def note(self, nodes, dependencies):
        graphs.append((nodes, dependencies))
        return create(self, nodes, dependencies)

    monkeypatch.setattr(Latest, "create_graph", note)
    for number in range(60):
        seed = 10_000 + 1000 * batch + number
        author = Author(seed, hazards=hazards)
        program = author.write(author.random.choice([2, 5, 12, 30, 60]))
        table = author.tables[0]
        kept = [index for index, command in enumerate(program) if is_recorded(command)]
        if not kept:
            continue
        commands = world.record(program, hazards=hazards, mode="graph")
        world.device.queue.execute(commands, bindings=world.bindings(table)).wait(LIMIT)
        nodes, dependencies = graphs.pop()
        assert all(each < index for index, before in enumerate(dependencies) for each in before)
        places = [index for index, node in enumerate(nodes) if not isinstance(node, EmptyNode)]
        assert len(places) == len(kept) == len(commands)
        found = reachable(dependencies)
        limits = byte_model.horizons(program)
        uses = [byte_model.accesses(program[index], DIRECT, table) for index in kept]
        wanted = []
        for later, index in enumerate(kept):
            bits = 0
            for earlier in range(later):
                if (
                    kept[earlier] < limits[index]
                    if hazards == "manual"
                    else byte_model.meet(uses[earlier], uses[later])
                ):
                    bits |= 1 << earlier | wanted[earlier]
            wanted.append(bits)
        for later, place in enumerate(places):
            got = sum(
                1 << earlier for earlier in range(later) if found[place] >> places[earlier] & 1
            )
            assert got == wanted[later], f"seed {seed}: {kept[later]}\n" + byte_model.describe(
                program
            )


def without_edge(lowering, edge):
    """Return a lowering in which a node forgets one that it depends on."""
    before, after = edge
    dependencies = [
        tuple(each for each in found if (each, index) != (before, after))
        for index, found in enumerate(lowering.dependencies)
    ]
    return lowering._replace(dependencies=tuple(dependencies))


@pytest.mark.parametrize("hazards", ["manual", "auto"])
def test_a_missing_edge_is_found(worlds, monkeypatch, hazards):
    """The trials can fail: of the edges that keep two conflicting commands apart and have no
    detour, taking one out changes the result of most programs."""
    world, generator = worlds("latest"), random.Random(5)
    lower = _commands.lower
    harmful = seen = 0
    for seed in range(60):
        author = Author(seed, hazards=hazards)
        program = author.write(10)
        kept = [index for index, command in enumerate(program) if is_recorded(command)]
        uses = [byte_model.accesses(program[index], DIRECT, author.tables[0]) for index in kept]
        broken = []

        def mutate(order, broken=broken, uses=uses):
            lowering = lower(order)
            edges = [
                (each, index) for index, found in enumerate(lowering.dependencies) for each in found
            ]
            for edge in generator.sample(edges, len(edges)):
                candidate = without_edge(lowering, edge)
                found, places = reachable(candidate.dependencies), lowering.positions
                loose = [
                    (earlier, later)
                    for later, place in enumerate(places)
                    for earlier in range(later)
                    if not found[place] >> places[earlier] & 1
                    and byte_model.meet(uses[earlier], uses[later])
                ]
                if loose:
                    broken.append(loose)
                    return candidate
            return lowering

        with monkeypatch.context() as patch:
            patch.setattr(_commands, "lower", mutate)
            author.tables = author.tables[:1]
            expected, got = check(world, author, program, seed, mode="graph", executions=1)
        harmful += bool(broken)
        seen += expected != got
        if not broken:
            assert expected == got
    assert harmful > 20
    assert seen > harmful / 2, (seen, harmful)


# Nothing to do, one thing, and very many


@pytest.mark.parametrize("mode", ["stream", "graph"])
def test_twenty_thousand_side_by_side_c2(worlds, mode):
    """C2: no order at all between 20,000 fills, then a barrier, then as many copies of them."""
    device, count = worlds("plain").device, 20_000
    source, target = device.allocate(4 * count), device.allocate(4 * count)
    with device.record(command_buffer=mode) as commands:
        for index in range(count):
            commands.fill(source, index.to_bytes(4, "little"), offset=4 * index, size=4)
        commands.barrier()
        for index in range(count):
            other = count - 1 - index
            commands.copy(source, target, source_offset=4 * index, target_offset=4 * other, size=4)
    done = device.queue.execute(commands)
    got = target.numpy(np.uint32, wait=done, timeout=3 * LIMIT)
    assert np.array_equal(got, np.arange(count, dtype=np.uint32)[::-1])
