"""Graphs: built of neutral nodes, changed in place, and destroyed in any order."""

import numpy as np
import pytest

from hal.errors import OperationError
from hal.native import EmptyNode, FillNode


def run(lab, instance, stream=None):
    stream = stream or lab.stream()
    lab.device.bind()
    lab.device.launch_graph(stream, instance)
    lab.device.synchronize_stream(stream)


@pytest.fixture
def end(lab):
    """Destroy what a test adds, instances first."""
    made = []
    yield made
    for graph, instance in made:
        lab.device.destroy_graph_instance(instance)
        lab.device.destroy_graph(graph)


def instantiate(lab, end, nodes, dependencies):
    graph = lab.device.create_graph(nodes, dependencies)
    try:
        instance = lab.device.instantiate_graph(graph)
    except BaseException:
        lab.device.destroy_graph(graph)
        raise
    end.append((graph, instance))
    return instance


def test_instances_of_one_graph_are_independent_c4(lab, end):
    array = lab.array(np.zeros(8, np.uint8))
    graph = lab.device.create_graph([FillNode(array.ctypes.data, 1, 1, 8)], [()])
    first, second = (lab.device.instantiate_graph(graph) for _ in range(2))
    assert first != second
    lab.device.destroy_graph(graph)
    lab.device.update_graph(second, 0, FillNode(array.ctypes.data, 2, 1, 8))
    run(lab, first)
    assert array.tolist() == [1] * 8
    run(lab, second)
    assert array.tolist() == [2] * 8
    lab.device.destroy_graph_instance(first)
    lab.device.update_graph(second, 0, FillNode(array.ctypes.data, 3, 1, 4))
    run(lab, second)
    assert array.tolist() == [3] * 4 + [2] * 4
    lab.device.destroy_graph_instance(second)


@pytest.mark.parametrize(
    "function", ["cuGraphAddMemsetNode", "cuGraphInstantiateWithFlags", "cuGraphAddEmptyNode"]
)
def test_a_graph_that_fails_leaves_nothing_c4(lab, end, simulator, function):
    array = lab.array(np.zeros(8, np.uint8))
    nodes = [FillNode(array.ctypes.data, 1, 1, 8), EmptyNode()]
    simulator.fail(function, 1, 304)
    with pytest.raises(OperationError) as caught:
        instantiate(lab, end, nodes, [(), (0,)])
    assert caught.value.native_code == 304
    run(lab, instantiate(lab, end, nodes, [(), (0,)]))
    assert array.tolist() == [1] * 8


def test_a_change_that_is_refused_raises_c4(lab, end, simulator):
    """And the instance stays what it was; the core makes another."""
    array = lab.array(np.zeros(8, np.uint8))
    instance = instantiate(lab, end, [FillNode(array.ctypes.data, 1, 1, 8)], [()])
    simulator.fail("cuGraphExecMemsetNodeSetParams", 1, 1)
    with pytest.raises(OperationError) as caught:
        lab.device.update_graph(instance, 0, FillNode(array.ctypes.data, 2, 1, 8))
    assert caught.value.native_code == 1
    run(lab, instance)
    assert array.tolist() == [1] * 8


@pytest.mark.parametrize(("width", "value"), [(1, 0x11), (2, 0xDD11), (4, 0xBBCCDD11)])
def test_a_fill_has_no_more_of_the_pattern_than_its_width_c1(driver, width, value):
    from hal_cuda import _graph  # noqa: PLC0415

    parameters, _ = _graph._fill(FillNode(256, 0xAABBCCDD11, width, 8), 0)
    assert (parameters.value, parameters.elementSize, parameters.width) == (value, width, 8)


def test_recordings_of_a_launch_or_two_commands_that_run_again_are_graphs_c4(lab):
    """C4: as measured on an H200 with benchmarks/lowering.py."""
    assert (lab.device.graph_commands, lab.device.graph_launches) == (2, 1)
