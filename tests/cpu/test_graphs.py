"""Graphs keep their dependencies and no other order; nodes without a path between them overlap."""

import ctypes
import random
import threading

import numpy as np
import pytest

from hal.errors import InvalidArgumentError, OperationError
from hal.native import (
    CopyNode,
    EmptyNode,
    FillNode,
    HostCopyNode,
    IndirectLaunchNode,
    LaunchNode,
)

SOURCE = """
__global__ void mix(unsigned *target, const unsigned *source, unsigned value, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) target[i] = target[i] * 3u + source[i] + value;
}
__global__ void count(unsigned *counter) { atomicAdd(counter, 1u); }
__global__ void meet(unsigned *mine, unsigned *theirs, unsigned *met) {
  atomicExch(mine, 1u);
  long long left = 2000000000;
  while (atomicAdd(theirs, 0u) == 0 && left > 0) left--;
  *met = left > 0;
}
__global__ void where(unsigned long long *seen) {
  // A variable of a thread's own has another address in each thread.
  static thread_local int own;
  seen[blockIdx.x] = (unsigned long long)&own;
  for (volatile int i = 0; i < 20000; i++) {}
}
__global__ void sum(unsigned *target, unsigned value) { *target += value; }
"""


class Graphs:
    """Build graphs on one device, and give them back at the end."""

    def __init__(self, lab):
        self.lab = lab
        self.device = lab.device
        self.stream = lab.stream()
        module = lab.build(SOURCE)
        self.functions = {
            name: lab.device.get_function(module, name)
            for name in ("mix", "count", "meet", "where", "sum")
        }
        self._instances = []

    def node(self, name, grid, *arguments, block=1, counts=None):
        """Return a launch, and what its parameters need to live."""
        values = [
            ctypes.c_void_p(each.ctypes.data)
            if isinstance(each, np.ndarray)
            else ctypes.create_string_buffer(each.tobytes(), each.nbytes)
            for each in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        kept = [values, pointers]
        function, address = self.functions[name], ctypes.addressof(pointers)
        if counts is not None:
            return IndirectLaunchNode(function, counts, (block, 1, 1), 0, address), kept
        return LaunchNode(function, (grid, 1, 1), (block, 1, 1), 0, address), kept

    def instance(self, nodes, dependencies):
        """Return an instance of a graph that is gone; nodes may come with what they need."""
        kept = [node for node in nodes if type(node) is tuple]
        plain = [node[0] if type(node) is tuple else node for node in nodes]
        graph = self.device.create_graph(plain, dependencies)
        instance = self.device.instantiate_graph(graph)
        self.device.destroy_graph(graph)
        self._instances.append(instance)
        for _, (values, pointers) in kept:
            ctypes.memset(ctypes.byref(pointers), 0xEE, ctypes.sizeof(pointers))
            for value in values:
                ctypes.memset(ctypes.byref(value), 0xEE, ctypes.sizeof(value))
        return instance

    def launch(self, instance, times=1):
        for _ in range(times):
            self.device.launch_graph(self.stream, instance)

    def run(self, nodes, dependencies, times=1):
        instance = self.instance(nodes, dependencies)
        self.launch(instance, times)
        self.lab.finish(self.stream)
        return instance

    def close(self):
        self.lab.finish()
        for instance in self._instances:
            self.device.destroy_graph_instance(instance)


@pytest.fixture(params=["1", "2", "3"], ids=lambda threads: f"threads{threads}")
def graphs(request, open_lab):
    """Give graphs on a device that works with one, two or three threads."""
    graphs = Graphs(open_lab(threads=request.param))
    yield graphs
    graphs.close()


@pytest.fixture
def open_graphs(open_lab):
    """Open devices with parameters of the test's choice."""
    opened = []

    def function(**parameters):
        opened.append(Graphs(open_lab(**parameters)))
        return opened[-1]

    yield function
    for each in opened:
        each.close()


def at(array, index=0):
    return array.ctypes.data + index * array.itemsize


# Every kind of node


def test_every_kind_of_node_c4(graphs):
    host = np.arange(8, dtype="u4") + 100
    x, y = graphs.lab.array(np.zeros(8), "u4"), graphs.lab.array(np.zeros(8), "u4")
    counts = graphs.lab.array([2, 1, 1], "u4")
    nodes = [
        HostCopyNode(at(x), host.ctypes.data, host.nbytes),
        FillNode(at(y), 0x1234, 2, 16),
        graphs.node("mix", 2, x, y, np.uint32(5), np.int32(8), block=4),
        EmptyNode(),
        CopyNode(at(y), at(x), 16),
        graphs.node("mix", None, x, y, np.uint32(1), np.int32(8), block=3, counts=at(counts)),
    ]
    graphs.run(nodes, [[], [], [0, 1], [2], [3], [4]])
    first = (np.arange(8, dtype="u4") + 100) * 3 + 0x12341234 + 5
    second = np.where(np.arange(8) < 4, first, 0x12341234)
    third = np.where(np.arange(8) < 6, first * 3 + second + 1, first)
    assert (y == second).all()
    assert (x == third.astype("u4")).all()


def test_an_empty_graph_is_an_operation_c4(graphs):
    instance = graphs.instance([], [])
    graphs.launch(instance)
    event = graphs.lab.event(graphs.stream)
    graphs.lab.finish()
    assert graphs.device.query_event(event)


def test_a_launch_is_in_the_streams_order_c4(graphs):
    x = graphs.lab.array(np.zeros(2), "u4")
    gate = graphs.lab.gate(graphs.stream)
    graphs.device.fill(graphs.stream, at(x), 7, 4, 1)
    instance = graphs.instance([CopyNode(at(x, 1), at(x), 4)], [[]])
    graphs.launch(instance)
    graphs.device.fill(graphs.stream, at(x), 9, 4, 1)
    event = graphs.lab.event(graphs.stream)
    assert not graphs.device.query_event(event)
    gate.open()
    graphs.lab.finish()
    assert x.tolist() == [9, 7]


# Order


def test_chain_c2(graphs):
    """Each step of a chain takes what the one before left, in a way that no other order gives."""
    x, zero = graphs.lab.array([1], "u4"), graphs.lab.array([0], "u4")
    count, expected = 1000, 1
    nodes = [graphs.node("mix", 1, x, zero, np.uint32(i), np.int32(1)) for i in range(count)]
    graphs.run(nodes, [[]] + [[i] for i in range(count - 1)], times=5)
    for _ in range(5):
        for i in range(count):
            expected = (expected * 3 + i) % 2**32
    assert x[0] == expected


def test_diamonds_c2(graphs):
    x = graphs.lab.array(np.zeros(4), "u4")
    nodes, dependencies = [EmptyNode()], [[]]
    for i in range(200):
        join = len(nodes) - 1
        nodes += [
            CopyNode(at(x, 1), at(x), 4),
            CopyNode(at(x, 2), at(x), 4),
            graphs.node("mix", 1, x[1:], x[2:], np.uint32(i), np.int32(1)),
            CopyNode(at(x), at(x, 1), 4),
        ]
        dependencies += [[join], [join], [join + 1, join + 2], [join + 3]]
    graphs.run(nodes, dependencies, times=3)
    expected = 0
    for _ in range(3):
        for i in range(200):
            expected = (expected * 4 + i) % 2**32
    assert x[0] == expected


@pytest.mark.parametrize("width", [2, 33, 10_000])
def test_fan_out_and_in_c2(graphs, width):
    x = graphs.lab.array(np.zeros(width + 1), "u4")
    y = graphs.lab.array(np.zeros(width), "u4")
    nodes = [FillNode(at(x), 5, 4, width)]
    nodes += [graphs.node("count", 1, x[i:]) for i in range(width)]
    nodes += [CopyNode(at(y), at(x), width * 4)]
    graphs.run(nodes, [[], *[[0]] * width, list(range(1, width + 1))], times=3)
    assert (y == 6).all()


def test_thousands_of_nodes_c2(graphs):
    """Every node runs once in each launch, in a graph of many layers."""
    layers, width = 400, 50
    counters = graphs.lab.array(np.zeros(layers * width), "u4")
    chooser = random.Random(3)
    nodes, dependencies = [], []
    for layer in range(layers):
        for i in range(width):
            before = range((layer - 1) * width, layer * width) if layer else []
            dependencies.append(chooser.sample(before, 3) if layer else [])
            nodes.append(graphs.node("count", 1, counters[layer * width + i :]))
    graphs.run(nodes, dependencies, times=4)
    assert (counters == 4).all()


def test_a_dependency_may_come_twice_c2(graphs):
    x = graphs.lab.array(np.zeros(2), "u4")
    graphs.run([FillNode(at(x), 3, 4, 1), CopyNode(at(x, 1), at(x), 4)], [[], [0, 0, 0]], times=3)
    assert x.tolist() == [3, 3]


# Overlap


@pytest.mark.parametrize("threads", ["2", "3"])
def test_nodes_without_a_path_run_at_the_same_time_c2(open_graphs, threads):
    """Two kernels end well only if each sees the other one running."""
    graphs = open_graphs(threads=threads)
    flags, met = graphs.lab.array([0, 0], "u4"), graphs.lab.array([0, 0], "u4")
    both = graphs.lab.array([0, 0], "u4")
    nodes = [
        FillNode(at(flags), 0, 4, 2),
        FillNode(at(met), 0, 4, 2),
        graphs.node("meet", 1, flags, flags[1:], met),
        graphs.node("meet", 1, flags[1:], flags, met[1:]),
        CopyNode(at(both), at(met), 8),
    ]
    instance = graphs.instance(nodes, [[], [], [0, 1], [0, 1], [2, 3]])
    for _ in range(50):
        both[:] = 0
        graphs.launch(instance)
        graphs.lab.finish()
        assert both.tolist() == [1, 1]


def test_a_large_node_is_spread_over_the_threads_c2(open_graphs):
    graphs = open_graphs(threads="2")
    blocks = 2000
    seen = graphs.lab.array(np.zeros(blocks), "u8")
    instance = graphs.instance([graphs.node("where", blocks, seen)], [[]])
    for _ in range(20):  # a helper may come late on a busy machine
        graphs.launch(instance)
        graphs.lab.finish()
        if len(set(seen.tolist())) == 2:
            break
    assert len(set(seen.tolist())) == 2


# An order that nobody asked for


def test_a_missing_edge_shows_c2(open_graphs):
    """On one thread the first launch takes the newest ready node first."""
    graphs = open_graphs(threads="1")
    x = graphs.lab.array(np.zeros(2), "u4")
    graphs.run([FillNode(at(x), 3, 4, 1), CopyNode(at(x, 1), at(x), 4)], [[], []])
    assert x.tolist() == [3, 0]


def _orders(graphs, launches):
    """Return in which order ten nodes ran that depend on nothing, launch by launch."""
    x, zero = graphs.lab.array([0], "u8"), graphs.lab.array([0], "u4")
    low = x.view("u4")
    nodes = [graphs.node("mix", 1, low, zero, np.uint32(2 + i), np.int32(1)) for i in range(10)]
    instance = graphs.instance(nodes, [[]] * 10)
    results = []
    for _ in range(launches):
        x[0] = 0
        graphs.launch(instance)
        graphs.lab.finish()
        results.append(int(x[0]))
    return results


def test_launches_draw_lots_c2(open_graphs):
    """The order changes from launch to launch, and is the same again with the same seed."""
    first = _orders(open_graphs(threads="1", graph_seed="5"), 12)
    assert len(set(first)) > 6
    assert _orders(open_graphs(threads="1", graph_seed="5"), 12) == first
    assert _orders(open_graphs(threads="1", graph_seed="6"), 12) != first
    plain = _orders(open_graphs(threads="1"), 12)
    assert len(set(plain)) > 6
    newest_first = 0
    for i in reversed(range(10)):
        newest_first = newest_first * 3 + 2 + i
    assert plain[0] == newest_first


@pytest.mark.parametrize("value", ["-1", "x", str(2**32), "\u00b2", ""])
def test_a_seed_that_is_none(driver, value):
    with pytest.raises(InvalidArgumentError, match=r"graph_seed=.* from 0 to 4294967295"):
        driver.open_device(0, {"graph_seed": value})


# Random graphs, against a model that runs one node after another

ROWS, WIDE = 7, 13


class Model:
    """Keep the rows as plain integers, and what each node does to them."""

    def __init__(self, chooser):
        self.chooser = chooser
        self.rows = [[0] * WIDE for _ in range(ROWS)]
        self.steps = [self._step() for _ in range(80)]

    def _step(self, kind=None):
        kind = kind or self.chooser.choice(["fill", "copy", "host", "mix", "indirect", "empty"])
        target, source = self.chooser.sample(range(ROWS), 2)
        return [kind, target, source, self.chooser.randrange(1 << 32)]

    def change(self, index):
        """Give a step other parameters, within what its dependencies cover."""
        self.steps[index][3] = self.chooser.randrange(1 << 32)

    def dependencies(self):
        """Return for each step who wrote what it touches, and who reads what it writes."""
        result, writer, readers = [], {}, {row: [] for row in range(ROWS)}
        for index, (kind, target, source, _) in enumerate(self.steps):
            needs = set()
            if kind != "empty":
                reads = [source] if kind in ("copy", "mix", "indirect") else []
                needs |= {writer[row] for row in (*reads, target) if row in writer}
                needs |= set(readers[target])
                for row in reads:
                    readers[row].append(index)
                writer[target], readers[target] = index, []
            result.append(self.chooser.sample(sorted(needs), len(needs)))
        return result

    def run(self):
        for kind, target, source, value in self.steps:
            into, out = self.rows[target], self.rows[source]
            if kind == "fill":
                into[:] = [value] * WIDE
            elif kind == "copy":
                into[:] = out
            elif kind == "host":
                into[:] = [(value + i) % 2**32 for i in range(WIDE)]
            elif kind != "empty":
                into[:] = [(a * 3 + b + value) % 2**32 for a, b in zip(into, out, strict=True)]


@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_with_updates_between_launches_c4(graphs, seed):
    """Launches in flight keep the parameters with which they were enqueued."""
    chooser = random.Random(seed)
    model = Model(chooser)
    rows = graphs.lab.array(np.zeros((ROWS, WIDE)), "u4")
    counts = graphs.lab.array([WIDE, 1, 1], "u4")
    kept = []

    def node(step):
        kind, target, source, value = step
        into, out = rows[target], rows[source]
        if kind == "fill":
            return FillNode(at(into), value, 4, WIDE)
        if kind == "copy":
            return CopyNode(at(into), at(out), 4 * WIDE)
        if kind == "host":
            host = (np.arange(WIDE, dtype="u8") + value).astype("u4")
            kept.append(host)
            return HostCopyNode(at(into), at(host), 4 * WIDE)
        if kind == "empty":
            return EmptyNode()
        numbers = np.uint32(value), np.int32(WIDE)
        where = at(counts) if kind == "indirect" else None
        return graphs.node("mix", WIDE, into, out, *numbers, counts=where)

    instance = graphs.instance([node(step) for step in model.steps], model.dependencies())
    for _ in range(30):
        held = graphs.lab.gate(graphs.stream) if chooser.random() < 0.2 else None
        for _ in range(chooser.randrange(1, 4)):
            graphs.launch(instance)
            model.run()
            for index in chooser.sample(range(80), chooser.randrange(5)):
                model.change(index)
                changed = node(model.steps[index])
                kept.append(changed)
                plain = changed[0] if type(changed) is tuple else changed
                graphs.device.update_graph(instance, index, plain)
        if held:
            held.open()
        if chooser.random() < 0.3:
            graphs.lab.finish()
            assert rows.tolist() == model.rows
    graphs.lab.finish()
    assert rows.tolist() == model.rows


# Updates


def test_an_update_is_for_later_launches_c4(graphs):
    x = graphs.lab.array([0], "u4")
    one, kept = graphs.node("sum", 1, x, np.uint32(1))
    instance = graphs.instance([one], [[]])
    gate = graphs.lab.gate(graphs.stream)
    for value in (10, 100, 1000):
        graphs.launch(instance)
        node, kept = graphs.node("sum", 1, x, np.uint32(value))
        graphs.device.update_graph(instance, 0, node)
        ctypes.memset(ctypes.byref(kept[1]), 0xEE, ctypes.sizeof(kept[1]))
    graphs.launch(instance)
    gate.open()
    graphs.lab.finish()
    assert x[0] == 1111


def test_instances_do_not_share_parameters_c4(graphs):
    x = graphs.lab.array([0, 0], "u4")
    graph = graphs.device.create_graph(
        [FillNode(at(x), 1, 4, 1), FillNode(at(x, 1), 2, 4, 1)], [[], []]
    )
    one, two = (graphs.device.instantiate_graph(graph) for _ in range(2))
    graphs.device.update_graph(one, 0, FillNode(at(x), 9, 4, 1))
    three = graphs.device.instantiate_graph(graph)
    graphs.device.destroy_graph(graph)
    for instance, expected in ((one, [9, 2]), (two, [1, 2]), (three, [1, 2])):
        x[:] = 0
        graphs.launch(instance)
        graphs.lab.finish()
        assert x.tolist() == expected
        graphs.device.destroy_graph_instance(instance)


def test_errors(graphs):
    x = graphs.lab.array([0], "u4")
    launch, kept = graphs.node("count", 1, x)
    other, _ = graphs.node("where", 1, x)
    instance = graphs.instance([FillNode(at(x), 1, 4, 1), (launch, kept)], [[], [0]])
    for index, node in (
        (2, EmptyNode()),
        (0, EmptyNode()),
        (0, CopyNode(at(x), at(x), 4)),
        (1, other),
        (1, IndirectLaunchNode(launch.function, at(x), (1, 1, 1), 0, launch.parameters)),
    ):
        with pytest.raises(OperationError) as caught:
            graphs.device.update_graph(instance, index, node)
        assert caught.value.native_name == "EINVAL"
    with pytest.raises(OperationError):
        graphs.device.create_graph([EmptyNode()], [[0]])
    graphs.launch(instance)
    graphs.lab.finish()
    assert x[0] == 2


def test_threads_run_instances_of_their_own_c4(open_graphs):
    """Four threads build, update and launch at once; their streams share the helpers."""
    graphs = open_graphs(threads="3")
    lab, device = graphs.lab, graphs.device
    streams = [lab.stream() for _ in range(4)]
    x = lab.array(np.zeros((4, 8)), "u4")
    failures = []

    def work(index):
        try:
            row = x[index]
            nodes = [FillNode(at(row, i), i, 4, 1) for i in range(4)]
            nodes += [CopyNode(at(row, 4), at(row), 16)]
            for turn in range(60):
                graph = device.create_graph(nodes, [[], [], [], [], [0, 1, 2, 3]])
                instance = device.instantiate_graph(graph)
                device.destroy_graph(graph)
                for value in range(turn, turn + 10):
                    device.update_graph(instance, 2, FillNode(at(row, 2), value, 4, 1))
                    device.launch_graph(streams[index], instance)
                device.synchronize_stream(streams[index])
                assert row.tolist() == [0, 1, turn + 9, 3] * 2
                device.destroy_graph_instance(instance)
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


# Grids in memory


@pytest.mark.parametrize(
    "counts", [(3, 2, 5), (1, 1, 1), (0, 4, 4), (4, 0, 4), (4, 4, 0), (2**32 - 1, 0, 2**32 - 1)]
)
def test_an_indirect_launch_reads_its_grid_when_it_runs(graphs, counts):
    x, where = graphs.lab.array([0], "u4"), graphs.lab.array([7, 7, 7], "u4")
    gate = graphs.lab.gate(graphs.stream)
    node, kept = graphs.node("count", None, x, counts=at(where))
    arguments = (node.function, node.counts, (2, 1, 1), 0, node.parameters)
    graphs.device.launch_indirect(graphs.stream, *arguments)
    where[:] = counts
    gate.open()
    graphs.lab.finish()
    assert x[0] == 2 * np.prod(counts)
    instance = graphs.instance([(node._replace(block=(5, 1, 1)), kept)], [[]])
    graphs.launch(instance)
    graphs.lab.finish()
    assert x[0] == 7 * np.prod(counts)


PROGRAM = """
import ctypes
from hal._kernel_source import scan
from hal.native import CompileRequest, MemoryType
from hal_cpu.driver import CpuDriver
device = CpuDriver().open_device(0, {})
source = "__global__ void kernel() {}"
request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
function = device.get_function(device.load_module(device.compile(request)), "kernel")
stream = device.create_stream()
counts = device.allocate(12, MemoryType.DEVICE)
(ctypes.c_uint32 * 3).from_address(counts)[:] = GRID
device.launch_indirect(stream, function, counts, (1, 1, 1), 0, 0)
device.synchronize_stream(stream)
import os; os._exit(0)
"""


@pytest.mark.parametrize("grid", [(2**31, 1, 1), (1, 65536, 1), (1, 1, 65536)])
def test_a_grid_that_no_launch_could_have_ends_the_process(python, grid):
    result = python(PROGRAM.replace("GRID", str(grid)))
    assert result.returncode == -6
    text = " x ".join(map(str, grid))
    assert f"an indirect launch of kernel found a grid of {text} blocks" in result.stderr


# The end


@pytest.mark.parametrize("threads", ["1", "2"])
def test_exit_while_a_graph_runs(python, threads):
    program = """
from hal.native import CopyNode, EmptyNode, MemoryType
from hal_cpu.driver import CpuDriver
device = CpuDriver().open_device(0, {"threads": THREADS})
stream = device.create_stream()
address = device.allocate(1 << 20, MemoryType.DEVICE)
nodes = [CopyNode(address, address + (1 << 19), 1 << 19)] * 20000
graph = device.create_graph(nodes, [[]] * len(nodes))
device.launch_graph(stream, device.instantiate_graph(graph))
"""
    result = python(program.replace("THREADS", repr(threads)))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
