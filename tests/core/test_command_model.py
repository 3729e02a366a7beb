"""Random command buffers against plain bytes (`byte_model`): C1 to C4.

Each trial is a random program over buffers and slots, recorded once and
executed several times with different tables on different queues. It must come
to what the model says, however it is lowered. Graphs run in the orders that
their edges leave: as the device likes, shuffled, and *latest first*, where a
proxy of the native device runs each node as early as its edges let it.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack

import byte_model
import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads, open_native

import hal
from hal import _commands
from hal.native import EmptyNode

SOURCE = """
__device__ static void delay(int turns) {
  if (threadIdx.x == 0) for (volatile int turn = 0; turn < turns; ++turn) {}
}

__device__ static int first() {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  return block * blockDim.x * blockDim.y * blockDim.z + thread;
}

__device__ static int step() {
  return gridDim.x * gridDim.y * gridDim.z * blockDim.x * blockDim.y * blockDim.z;
}

__global__ void mix(unsigned char *x, const unsigned char *y, int n, unsigned key, int turns) {
  delay(turns);
  for (int i = first(); i < n; i += step()) x[i] = 3 * x[i] + y[i] + key + i;
}

__global__ void scramble(unsigned *x, int n, unsigned key, int turns) {
  delay(turns);
  for (int i = first(); i < n; i += step())
    x[i] = (x[i] << 7 | x[i] >> 25) ^ (key + 2654435761u * i);
}

__global__ void reverse(const unsigned char *source, unsigned char *target, int n, int turns) {
  delay(turns);
  for (int i = first(); i < n; i += step()) target[i] = source[n - 1 - i];
}

__global__ void set_grid(unsigned *counts, unsigned x, unsigned y, unsigned z, int turns) {
  delay(turns);
  if (first() == 0) { counts[0] = x; counts[1] = y; counts[2] = z; }
}

__global__ void mark(unsigned char *out, int n, unsigned key, int turns) {
  delay(turns);
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0 && block < n) out[block] = key + 7 * block;
}
"""

# Memory: four allocations that programs use directly, one of them by two buffers that overlap
# and one for grids; and a pool for the binding tables, the last of it for grids.
SIZES = [128, 128, 192, 48] + [160] * 5 + [96] * 2
DIRECT = [(0, 0, 128), (1, 0, 128), (2, 0, 128), (2, 64, 128), (3, 0, 48)]
GRIDS = 4  # the direct buffer that only holds grids
POOL, GRID_POOL = range(4, 9), range(9, 11)
SLOT_SIZE, SLOTS = 96, 3
GRID_SLOT, GRID_SLOT_SIZE = -1 - SLOTS, 48

SHAPES = [1, 2, 5, (2, 2), (1, 2, 2), (3, 1, 2)]
BLOCKS = [1, 4, 32, (4, 2), (2, 2, 2)]


class Latest:
    """Be a native device whose graphs run one node after another, each as early as allowed."""

    def __init__(self, native):
        self._native = native
        self._places = {}  # graph, then instance -> place of each node

    def __getattr__(self, name):
        return getattr(self._native, name)

    def create_graph(self, nodes, dependencies):
        """Put the last node whose dependencies have run next, and let it depend on the one before.

        A node is wanted as soon as the lowest one that it can overtake: so the nodes are placed
        from the last on, each with what it depends on before it.
        """
        places, order = {}, []
        for last in reversed(range(len(nodes))):
            stack = [last]
            while stack:
                number = stack[-1]
                missing = [each for each in dependencies[number] if each not in places]
                if number in places or not missing:
                    stack.pop()
                    if number not in places:
                        places[number] = len(order)
                        order.append(number)
                else:
                    stack.extend(missing)
        chain = [[index - 1] if index else [] for index in range(len(order))]
        graph = self._native.create_graph([nodes[number] for number in order], chain)
        self._places["graph", graph] = places
        return graph

    def instantiate_graph(self, graph):
        instance = self._native.instantiate_graph(graph)
        self._places["instance", instance] = self._places["graph", graph]
        return instance

    def update_graph(self, instance, index, node):
        self._native.update_graph(instance, self._places["instance", instance][index], node)


class World:
    """Hold a device, its kernels, and the memory that programs work on."""

    def __init__(self, device):
        self.device = device
        program = device.compile(SOURCE, filename="model.cpp")
        self.kernels = {name: program[name] for name in byte_model.KERNELS}
        self.memory = [device.allocate(size) for size in SIZES]
        self.direct = [self.memory[each].subspan(base, size) for each, base, size in DIRECT]
        self.queues = [
            device.queues.compute,
            device.queues.upload,
            device.create_queue(),
            device.create_queue(ordered=False),
        ]

    def start(self, contents):
        for buffer, content in zip(self.memory, contents, strict=True):
            self.device.queue.update(buffer, content)
        self.device.queue.barrier().wait(LIMIT)

    def result(self):
        self.device.wait_idle(LIMIT)
        return [bytearray(buffer.numpy(timeout=LIMIT).tobytes()) for buffer in self.memory]

    def bindings(self, table):
        return [self.memory[each].subspan(base, size) for each, base, size in table]

    def record(self, program, *, hazards="manual", mode="auto"):
        """Record a program of the model's."""
        slots = [("u1", SLOT_SIZE)] * SLOTS + [("u1", GRID_SLOT_SIZE)]
        commands = self.device.record(slots=slots, hazards=hazards, command_buffer=mode)
        places = dict(enumerate(self.direct)) | {
            -1 - index: slot for index, slot in enumerate(commands.slots)
        }
        events = {}
        with commands:
            for kind, *given in program:
                if kind == "fill":
                    place, offset, pattern, count = given
                    size = len(pattern) * count
                    commands.fill(places[place], pattern, offset=offset, size=size)
                elif kind == "update":
                    commands.update(places[given[0]], given[2], offset=given[1])
                elif kind == "copy":
                    source, source_offset, target, offset, size = given
                    commands.copy(
                        places[source],
                        places[target],
                        source_offset=source_offset,
                        target_offset=offset,
                        size=size,
                    )
                elif kind == "barrier":
                    commands.barrier()
                elif kind == "signal":
                    events[given[0]] = commands.create_event()
                    commands.signal_event(events[given[0]])
                elif kind == "wait":
                    commands.wait_events(events[given[0]])
                else:
                    self._launch(commands, places, kind, *given)
        return commands

    def _launch(self, commands, places, kind, name, grid, block, arguments, turns):
        values = [
            places[each[0]].subspan(each[1], each[2]) if isinstance(each, tuple) else each
            for each in arguments
        ]
        if kind == "indirect":
            grid = places[grid[0]].subspan(grid[1], 12)
        commands.dispatch(self.kernels[name], grid=grid, block=block, args=[*values, turns])


class Author:
    """Write random programs in which, with their tables, no two commands race."""

    def __init__(self, seed, *, hazards, direct=True):
        self.random = random.Random(seed)
        self.hazards = hazards
        self.data = [0, 1, 2, 3] * direct + [-1 - index for index in range(SLOTS)] * 2
        self.tables = [self.table() for _ in range(self.random.randint(1, 3))]
        self.program = []
        self.events = 0

    def table(self):
        """Return bindings; where bytes order the commands, of memories of their own."""
        pick = self.random
        pool = list(POOL) if self.hazards == "auto" else [*POOL, *POOL, 0, 1, 2]
        table = []
        for each in pick.sample(pool, SLOTS):
            base = 4 * pick.randint(0, (SIZES[each] - SLOT_SIZE) // 4)
            table.append((each, base, SLOT_SIZE))
        each = pick.choice(GRID_POOL)
        base = 4 * pick.randint(0, (SIZES[each] - GRID_SLOT_SIZE) // 4)
        return [*table, (each, base, GRID_SLOT_SIZE)]

    def write(self, length):
        """Return a program with so many commands, barriers and the like not counted."""
        count = 0
        while count < length:
            command = self.command()
            if any(byte_model.meets_itself(command, DIRECT, table) for table in self.tables):
                continue
            if self.hazards == "auto" or self.make_room(command):
                self.program.append(command)
                count += 1
            if self.hazards == "manual" and self.random.random() < 0.1:
                self.program.append(("signal", self.events))
                self.events += 1
        return self.program

    def make_room(self, command):
        """Order a command behind those that it would race with, or return False."""
        if not self.has_races(self.program, command):
            return self.random.random() < 0.95 or not self.program.append(("barrier",))
        way = self.random.choice(["barrier", "event", "event", "event", "skip"])
        if way == "event":
            for number in range(self.events):
                wait = ("wait", number)
                if not self.has_races([*self.program, wait], command):
                    self.program.append(wait)
                    return True
        if way == "barrier":
            self.program.append(("barrier",))
            return True
        return False

    def has_races(self, program, command):
        return any(
            byte_model.races([*program, command], DIRECT, table, first=len(program))
            for table in self.tables
        )

    def command(self):
        """Return a random command, which may touch itself or race."""
        pick = self.random
        kind = pick.choice(
            [
                *("fill", "fill", "update", "copy", "copy", "copy", "grid", "indirect", "indirect"),
                *("mix", "mix", "mix", "scramble", "scramble", "reverse", "reverse", "mark"),
            ]
        )
        if kind == "fill":
            width = pick.choice([1, 2, 4])
            place, offset, size = self.region(width)
            return kind, place, offset, pick.randbytes(width), size // width
        if kind == "update":
            place, offset, size = self.region()
            return kind, place, offset, pick.randbytes(size)
        if kind == "copy":
            place, offset, size = self.region()
            source, start, length = self.region()
            return kind, source, start, place, offset, min(size, length)
        if kind == "grid":
            return self.grid()
        shape = pick.choice(SHAPES) if pick.random() < 0.93 else pick.choice([0, (2, 0), (1, 1, 0)])
        grid = shape if isinstance(shape, tuple) else (shape,)
        if kind == "indirect":
            grid = self.grid_place()
            name = pick.choice(["mark", "mark", "mark", "mix", "scramble", "reverse"])
        else:
            kind, name = "launch", kind
        turns = pick.choice([0, 0, 0, 300, 3000, 30000])
        return kind, name, grid, pick.choice(BLOCKS), self.arguments(name), turns

    def arguments(self, name):
        pick = self.random
        key = pick.randrange(2**32)
        if name == "mix":
            x, y = self.region(), self.region()
            count = min(x[2], y[2])
            return ((*x[:2], count), (*y[:2], count), count, key)
        if name == "scramble":
            x = self.region(4)
            return (x, x[2] // 4, key)
        if name == "reverse":
            source, target = self.region(), self.region()
            count = min(source[2], target[2])
            return ((*source[:2], count), (*target[:2], count), count)
        place = self.region()
        return (place, place[2], key)

    def region(self, alignment=1):
        """Return a place, an offset and a size in it; often small, now and then all of it."""
        pick = self.random
        place = pick.choice(self.data)
        limit = SLOT_SIZE if place < 0 else DIRECT[place][2]
        offset = alignment * pick.randint(0, limit // alignment - 1)
        size = pick.choice([pick.randint(0, 16), pick.randint(0, 16), pick.randint(0, 64), limit])
        size = min(size, limit - offset)
        return place, offset, size - size % alignment

    def grid_place(self):
        return self.random.choice([GRIDS, GRID_SLOT]), 16 * self.random.randrange(3)

    def grid(self):
        """Return a command that makes a small grid, in memory where nothing else is."""
        pick = self.random
        place, offset = self.grid_place()
        shape = [pick.choice([0, 1, 1, 2, 3]) for _ in range(3)]
        way = pick.choice(["kernel", "update", "copy"])
        if way == "update":
            return "update", place, offset, b"".join(each.to_bytes(4, "little") for each in shape)
        if way == "copy":
            return "copy", *self.grid_place(), place, offset, 12
        turns = pick.choice([0, 3000, 30000])
        return "launch", "set_grid", (1,), 1, ((place, offset, 12), *shape), turns


def contents(seed):
    """Return what the memory holds at first: random bytes, and small grids."""
    source = random.Random(seed)
    found = []
    for index, size in enumerate(SIZES):
        content = bytearray(source.randbytes(size))
        if index == 3 or index in GRID_POOL:
            content = bytearray(
                b"".join(source.choice([0, 1, 2]).to_bytes(4, "little") for _ in range(size // 4))
            )
        found.append(content)
    return found


def touched(program, table):
    return [each for command in program for each in byte_model.accesses(command, DIRECT, table)]


def check(world, author, program, seed, *, mode, executions=4):
    """Execute a program a few times and compare all memory with the model's."""
    pick = random.Random(seed)
    memory = contents(seed)
    world.start(memory)
    commands = world.record(program, hazards=author.hazards, mode=mode)
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


class NotIndirect:
    """Be a native device that cannot read a grid from memory: the core's host operation does."""

    def __init__(self, native):
        self._native = native
        self.features = native.features - {"indirect_dispatch"}

    def __getattr__(self, name):
        return getattr(self._native, name)


KINDS = {
    "plain": lambda: open_native().open_device(0, {"threads": "4"}),
    "seeded": lambda: open_native().open_device(0, {"threads": "1", "graph_seed": "7"}),
    "latest": lambda: Latest(open_native().open_device(0, {})),
    "not indirect": lambda: NotIndirect(open_native().open_device(0, {})),
}


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
    its wait, with hazards from whoever touches the same bytes; and no other pair is ordered."""
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


def test_the_smallest_missing_edge_is_found(worlds, monkeypatch):
    """Two commands with one edge between them: without it they come the wrong way round."""
    world = worlds("latest")
    author = Author(1, hazards="manual")
    program = [("fill", 0, 0, b"\x11", 64), ("barrier",), ("copy", 0, 0, 1, 0, 64)]
    lower = _commands.lower
    expected, got = check(world, author, program, 1, mode="graph", executions=1)
    assert expected == got
    monkeypatch.setattr(_commands, "lower", lambda order: without_edge(lower(order), (0, 1)))
    expected, got = check(world, author, program, 1, mode="graph", executions=1)
    assert expected != got


# Nothing to do, one thing, and very many


NOTHINGS = {
    "fill": ("fill", 0, 4, b"\x01\x02\x03\x04", 0),
    "fill a slot": ("fill", -1, SLOT_SIZE, b"\x01", 0),
    "update": ("update", 0, 128, b""),
    "copy": ("copy", 0, 128, -2, 5, 0),
    "launch 0": ("launch", "mark", (0,), 32, ((0, 0, 8), 8, 1), 0),
    "launch 0, 2": ("launch", "mark", (0, 2), 32, ((-1, 0, 8), 8, 1), 0),
    "launch 2, 2, 0": ("launch", "mark", (2, 2, 0), 32, ((0, 0, 8), 8, 1), 0),
    "launch over no bytes": ("launch", "mark", (4,), 32, ((0, 128, 0), 0, 1), 0),
    "indirect 0": ("indirect", "mark", (GRIDS, 0), 32, ((0, 0, 8), 8, 1), 0),
    "barrier": ("barrier",),
}


@pytest.mark.parametrize("hazards", ["manual", "auto"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("nothing", [None, *NOTHINGS])
def test_no_ops_order_and_signal_c4(worlds, way, hazards, nothing):
    """C4: alone, several, and between commands; the execution waits, signals and changes nothing
    more than the others do."""
    kind, mode = WAYS[way]
    world = worlds(kind)
    table = Author(0, hazards="auto").tables[0]
    nothings = [] if nothing is None else [NOTHINGS[nothing]]
    empty_grid = ("update", GRIDS, 0, bytes(12))
    real = ("fill", 2, 0, b"\x77", 30), ("barrier",), ("copy", 2, 0, 1, 3, 30)
    first = [empty_grid, ("barrier",)] if nothing == "indirect 0" else []
    for rest in (nothings, nothings * 3, [real[0], *nothings, *real[1:], *nothings]):
        program = [*first, *rest]
        memory = contents(1)
        world.start(memory)
        commands = world.record(program, hazards=hazards, mode=mode)
        gate, done = hal.create_semaphore(), hal.create_semaphore()
        for count in (1, 2):
            execution = world.device.queue.execute(
                commands,
                bindings=world.bindings(table),
                wait=gate.at(count),
                signal=done.at(count),
            )
            assert execution.state == "pending"
            gate.signal(count)
            done.wait(count, LIMIT)
            byte_model.run(program, memory, DIRECT, table)
        assert_equal(memory, world.result(), program, nothing)


@pytest.mark.parametrize("hazards", ["manual", "auto"])
@pytest.mark.parametrize("mode", ["stream", "graph"])
@pytest.mark.parametrize("count", [1, 2, 3, 64, 1000, 20_000])
def test_one_to_twenty_thousand_commands_c4(worlds, mode, hazards, count):
    """C4: in chains, side by side and through slots; executed twice, with two tables."""
    world, generator = worlds("plain"), random.Random(count)
    size = 160
    program = []
    for index in range(count):
        kind = index % 4
        place = generator.choice([0, 1, -1])
        offset = 4 * generator.randrange(20)
        if hazards == "manual" and index:
            program.append(("barrier",))
        if kind < 2:
            program.append(("fill", place, offset, generator.randbytes(4), 3))
        elif kind == 2:
            other = generator.choice([each for each in (0, 1, -1, -2) if each != place])
            program.append(("copy", place, offset, other, generator.randrange(80), 9))
        else:
            program.append(("update", place, offset, generator.randbytes(5)))
    tables = [
        [(4, 0, SLOT_SIZE), (5, 64, SLOT_SIZE), (6, 8, SLOT_SIZE), (9, 0, GRID_SLOT_SIZE)],
        [(7, 64, SLOT_SIZE), (8, 4, SLOT_SIZE), (4, 0, SLOT_SIZE), (10, 0, GRID_SLOT_SIZE)],
    ]
    assert all(base + SLOT_SIZE <= size for table in tables for _, base, _ in table[:3])
    memory = contents(count)
    world.start(memory)
    commands = world.record(program, hazards=hazards, mode=mode)
    assert len(commands) == count
    for table in tables:
        last = world.device.queue.execute(commands, bindings=world.bindings(table))
        byte_model.run(program, memory, DIRECT, table)
    last.wait(3 * LIMIT)
    assert world.result() == memory


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


# Several threads


@pytest.mark.parametrize("way", ["stream", "graph", "latest", "host"])
def test_threads_share_a_recording_c4(worlds, way):
    """C1, C4: four threads execute one recording at once, each with tables of its own, on queues
    of their own; what is replayed or updated for one is not seen by the others."""
    kind, mode = WAYS[way]
    world = worlds(kind)
    author = Author(77, hazards="auto", direct=False)
    grids = {GRIDS: GRID_SLOT}
    program = [
        tuple(grids.get(each, each) if isinstance(each, int) else each for each in command)
        for command in author.write(25)
        if command[0] != "indirect" and "set_grid" not in command
    ]
    program = [command for command in program if GRIDS not in command]
    commands = world.record(program, hazards="auto", mode=mode)

    def work(number):
        queue = world.device.create_queue(ordered=bool(number % 2))
        generator = random.Random(number)
        memory = [bytearray(generator.randbytes(160)) for _ in range(5)]
        buffers = [world.device.upload(np.frombuffer(each, np.uint8)) for each in memory]
        last = ()
        for _ in range(30):
            table = [
                (each, 4 * generator.randint(0, (160 - size) // 4), size)
                for each, size in zip(
                    generator.sample(range(5), SLOTS + 1),
                    [SLOT_SIZE] * SLOTS + [GRID_SLOT_SIZE],
                    strict=True,
                )
            ]
            bindings = [buffers[each].subspan(base, size) for each, base, size in table]
            last = queue.execute(commands, bindings=bindings, wait=last)
            byte_model.run(program, memory, DIRECT, table)
        got = [bytearray(each.numpy(wait=last, timeout=LIMIT).tobytes()) for each in buffers]
        queue.close(LIMIT)
        return got == memory

    assert (
        collect_in_threads([lambda number=number: work(number) for number in range(4)])
        == [True] * 4
    )
