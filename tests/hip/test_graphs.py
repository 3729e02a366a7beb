"""Graphs: structures as hip-python has them, order, updates, lifetimes."""

from __future__ import annotations

import ctypes

import pytest
from hip_harness import Arguments, words

from hal.errors import OperationError
from hal.native import CopyNode, EmptyNode, FillNode, LaunchNode

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


def test_nodes_run_in_the_order_of_their_edges_c2(device, stream, shared, image):
    module = device.load_module(image)
    function = device.get_function(module, "add")
    one, two = Arguments(shared, 10, N), Arguments(shared + 4 * N, 5, N)
    nodes = [
        FillNode(shared, 1, 4, N),
        LaunchNode(function, (1, 1, 1), (N, 1, 1), 0, one.address),
        EmptyNode(),
        CopyNode(shared + 4 * N, shared, 4 * N),
        LaunchNode(function, (1, 1, 1), (N, 1, 1), 0, two.address),
        FillNode(shared + 8 * N, 0x0102, 2, 2 * N),
    ]
    graph = device.create_graph(nodes, [(), (0,), (1,), (2,), (3,), ()])
    for held in (one, two):  # the call has copied them
        for value in held.values:
            value.value = 0
    run(device, stream, graph, times=2)
    assert words(shared, 3 * N) == [11] * N + [16] * N + [0x01020102] * N
    device.destroy_graph(graph)
    device.unload_module(module)


def test_updates_count_from_the_next_launch_on_c4(device, stream, shared, image):
    module = device.load_module(image)
    function = device.get_function(module, "add")
    first = Arguments(shared, 1, N)
    nodes = [
        FillNode(shared, 0, 4, N),
        LaunchNode(function, (1, 1, 1), (N, 1, 1), 0, first.address),
        CopyNode(shared + 4 * N, shared, 4 * N),
    ]
    graph = device.create_graph(nodes, [(), (0,), (1,)])
    instance = device.instantiate_graph(graph)
    device.destroy_graph(graph)  # the instance lives on
    for round_ in range(1, 4):
        device.update_graph(instance, 0, FillNode(shared, round_, 4, N))
        arguments = Arguments(shared, 100, round_)
        changed = LaunchNode(function, (1, 1, 1), (N, 1, 1), 0, arguments.address)
        device.update_graph(instance, 1, changed)
        device.update_graph(instance, 2, CopyNode(shared + 8 * N, shared, 4 * N))
        device.launch_graph(stream, instance)
        device.synchronize_stream(stream)
        assert words(shared + 8 * N, N) == [100 + round_] * round_ + [round_] * (N - round_)
    device.destroy_graph_instance(instance)
    device.unload_module(module)


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
