"""Graphs: structures as hip-python has them, order, updates, lifetimes."""

import ctypes

import pytest
from hip_harness import words

from hal.errors import OperationError
from hal.native import FillNode, LaunchNode

N = 256


@pytest.fixture
def graphs(vendor):
    from hal_hip import _graph  # noqa: PLC0415 - imports the bindings

    return _graph


def test_structures_are_those_of_the_bindings(graphs):
    from hal_hip._driver import hip  # noqa: PLC0415

    node = LaunchNode(0x1111, (1, 2, 3), (4, 5, 6), 7, 0x2222)
    theirs = hip.hipKernelNodeParams()
    theirs.func, theirs.kernelParams, theirs.sharedMemBytes = node.function, node.parameters, 7
    for extent, values in ((theirs.gridDim, node.grid), (theirs.blockDim, node.block)):
        extent.x, extent.y, extent.z = values
    assert graphs._launch(node) == (ctypes.string_at(int(theirs), theirs.c_sizeof()),)

    theirs = hip.hipMemsetParams()
    theirs.dst, theirs.value, theirs.elementSize = 0x1000, 0xABCD, 2
    theirs.width, theirs.height, theirs.pitch = 33, 1, 66
    assert graphs._fill(FillNode(0x1000, 0x1ABCD, 2, 33)) == (
        ctypes.string_at(int(theirs), theirs.c_sizeof()),
    )


def run(device, stream, graph, times=1):
    instance = device.instantiate_graph(graph)
    for _ in range(times):
        device.launch_graph(stream, instance)
    device.synchronize_stream(stream)
    device.destroy_graph_instance(instance)


def test_a_refused_update_raises_and_changes_nothing_c4(device, stream, shared, simulator):
    graph = device.create_graph([FillNode(shared, 1, 4, N)], [()])
    instance = device.instantiate_graph(graph)
    simulator.fail("hipGraphExecMemsetNodeSetParams", 1, 910)
    with pytest.raises(OperationError) as caught:
        device.update_graph(instance, 0, FillNode(shared, 2, 4, N))
    assert caught.value.native_name == "hipErrorGraphExecUpdateFailure"
    device.launch_graph(stream, instance)
    device.synchronize_stream(stream)
    assert words(shared, N) == [1] * N
    device.destroy_graph_instance(instance)
    device.destroy_graph(graph)


def test_a_graph_that_cannot_be_built_leaves_nothing(device, shared, simulator):
    before = simulator.leaks(0)
    nodes = [FillNode(shared, 1, 4, N)] * 3
    for name in ("hipGraphCreate", "hipGraphAddMemsetNode", "hipGraphInstantiateWithFlags"):
        simulator.fail(name, 2 if "Add" in name else 1, 1)
        with pytest.raises(OperationError):
            device.destroy_graph(device.instantiate_graph(device.create_graph(nodes, [(), (), ()])))
        simulator.reset()
        for handle in list(device._graphs):
            device.destroy_graph(handle)
    assert simulator.leaks(0) == before
