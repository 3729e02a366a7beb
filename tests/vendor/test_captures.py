"""Captures of others: neither broken by our calls nor refusing them (O1).

gpusim forbids during a capture what CUDA's driver does, which is more than AMD's runtime.
"""

import ctypes

import numpy as np
import pytest
from hip_harness import Arguments

from hal.errors import OperationError
from hal.native import EmptyNode, FillNode, MemoryType

MODES = (0, 1, 2)
"""The modes of a thread: global, thread-local, relaxed."""


def use(device, image, host):
    """Call everything that a backend has, but for what needs a second device."""
    stream = device.create_stream()
    event, timers = device.create_event(), [device.create_timer() for _ in range(2)]
    for memory in MemoryType:
        device.free(device.allocate(64, memory), memory)
    address = device.allocate(4096, MemoryType.DEVICE)
    pooled = device.allocate_async(stream, 64)
    module = device.load_module(image)
    function = device.get_function(module, "add")
    device.function_info(function)
    device.get_global(module, "total")
    device.occupancy(function, 32, 256)
    device.memory_info()
    device.locate(address)
    device.import_host(host.ctypes.data, host.nbytes)
    graph = device.create_graph([FillNode(address, 3, 1, 16), EmptyNode()], [(), (0,)])
    instance = device.instantiate_graph(graph)
    device.update_graph(instance, 0, FillNode(address, 4, 1, 16))
    device.record_timer(timers[0], stream)
    device.fill(stream, address, 1, 4, 16)
    device.copy(stream, address + 64, address, 64)
    device.copy_from_host(stream, address, host.ctypes.data, 64)
    device.copy_to_host(stream, host.ctypes.data, address, 64)
    device.copy_and_wait(device.copy_from_host, stream, address, host.ctypes.data, 64)
    device.copy_and_wait(device.copy_to_host, stream, host.ctypes.data, address, 64)
    device.launch_graph(stream, instance)
    device.record_timer(timers[1], stream)
    device.record_event(event, stream)
    device.wait_event(stream, event)
    device.query_event(event)
    device.free_async(stream, pooled)
    device.synchronize_stream(stream)
    assert device.query_event(event)
    device.elapsed(*timers)
    device.release_host(host.ctypes.data)
    device.destroy_graph_instance(instance)
    device.destroy_graph(graph)
    device.unload_module(module)
    device.free(address, MemoryType.DEVICE)
    for timer in timers:
        device.destroy_timer(timer)
    device.destroy_event(event)
    device.destroy_stream(stream)


@pytest.mark.parametrize("mine", MODES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["another thread", "this thread"])
def test_no_call_of_ours_breaks_a_capture_or_is_refused_o1(
    exchange, device, other, image, where, mode, mine
):
    """And the thread's mode is as it was."""
    pages = np.zeros(3 * 4096, np.uint8)
    host = pages[-pages.ctypes.data % 4096 :][:4096]
    address = device.allocate(64, MemoryType.DEVICE)
    run = None if where == "another thread" else lambda function: function()
    before = exchange(mine)
    try:
        other.begin(mode, address, run)
        use(device, image, host)
        assert exchange(mine) == mine
        assert other.end(run) == 1
    finally:
        exchange(before)
    device.free(address, MemoryType.DEVICE)


@pytest.mark.parametrize("mode", MODES)
def test_devices_open_and_close_beside_a_capture_o1(driver, device, other, mode):
    address = device.allocate(64, MemoryType.DEVICE)
    other.begin(mode, address)
    driver.open_device(0, {}).close()
    device.bind()
    assert other.end() == 1
    device.free(address, MemoryType.DEVICE)


def test_enqueueing_costs_no_exchange_and_a_query_two_o1(
    vendor, device, stream, shared, simulator, image
):
    module, event = device.load_module(image), device.create_event()
    function = device.get_function(module, "add")
    arguments = Arguments(shared, ctypes.c_uint(1), ctypes.c_uint(16))
    graph = device.create_graph([FillNode(shared, 3, 4, 16)], [()])
    instance = device.instantiate_graph(graph)
    exchanges = vendor.name_of("ThreadExchangeStreamCaptureMode")
    before = simulator.calls(exchanges)
    device.fill(stream, shared, 0, 4, 16)
    device.copy(stream, shared, shared + 32, 32)
    device.launch(stream, function, (1, 1, 1), (16, 1, 1), 0, arguments.address)
    device.launch_graph(stream, instance)
    device.record_event(event, stream)
    device.wait_event(stream, event)
    assert simulator.calls(exchanges) == before
    device.query_event(event)
    assert simulator.calls(exchanges) == before + 2
    device.synchronize_stream(stream)
    device.destroy_graph_instance(instance)
    device.destroy_graph(graph)
    device.destroy_event(event)
    device.unload_module(module)


def test_an_interrupted_call_leaves_the_threads_mode_as_it_was(vendor, exchange, device):
    def interrupted():
        raise KeyboardInterrupt

    assert device
    with pytest.raises(KeyboardInterrupt):
        (vendor.native.relaxed if vendor.name == "cuda" else vendor.native.call)(interrupted)
    assert exchange(0) == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_of_others_is_refused_while_it_is_captured(vendor, device, other, mode):
    """Otherwise our work became part of their graph, and our streams of the capture."""
    address = device.allocate(64, MemoryType.DEVICE)
    event, handle = device.create_event(), other.stream.value
    stream = device.adopt_stream(handle)
    device.fill(stream, address, 1, 1, 64)
    other.begin(mode, address)
    refused = [lambda: device.adopt_stream(handle)]
    if vendor.name == "cuda":  # HIP's backend looks when it adopts the stream, and then no more
        refused.append(lambda: device.fill(stream, address, 1, 1, 64))
        refused.append(lambda: device.record_event(event, stream))
    for use_of_it in refused:
        with pytest.raises(OperationError, match="is being captured into a graph"):
            use_of_it()
    if vendor.name == "cuda":
        device.synchronize_stream(stream)  # nothing of ours is in it
    assert other.end() == 1
    device.record_event(event, stream)
    device.synchronize_stream(stream)
    device.release_stream(stream)
    device.destroy_event(event)
    device.free(address, MemoryType.DEVICE)
