"""Native graphs: nodes of every kind, updates, grids in memory, and random ones against a model."""

import functools
import random

import numpy as np
import pytest
from core_harness import collect_in_threads
from native_graphs import at

from hal.errors import OperationError
from hal.native import CopyNode, EmptyNode, FillNode, HostCopyNode, IndirectLaunchNode

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

    def work(index):
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

    collect_in_threads([functools.partial(work, index) for index in range(4)])


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
from hal._programs.scanner import scan
from hal.native import CompileRequest, MemoryType
from hal_cpu.compiler import CpuCompiler
from hal_cpu.driver import CpuDriver
device = CpuDriver().open_device(0, {})
source = "__global__ void kernel() {}"
request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
module = device.load_module(CpuCompiler().compile(request, "").image)
function = device.get_function(module, "kernel")
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
