"""Native devices: places of memory, imports, peers, others' streams and events, graphs that fail.

Alike on CUDA and HIP.
"""

import ctypes

import pytest
from hip_harness import Arguments, words

from hal.errors import OperationError, OutOfMemoryError
from hal.native import EmptyNode, FillNode, MemoryType

N = 256
PLACES = {"cuda": [(2, 1), (3, 0), (13, 0)], "hip": [(10, 1), (11, 0), None]}
"""Where memory of each kind is, on the second device, as DLPack numbers the places."""
HOST = {"cuda": "MemHost", "hip": "Host"}
"""How the names of functions for memory of the host begin."""


@pytest.mark.parametrize("kind", range(3))
def test_each_kind_of_memory_m1(vendor, open_device, kind):
    device = open_device(1)
    memory = (MemoryType.DEVICE, MemoryType.HOST, MemoryType.MANAGED)[kind]
    address = device.allocate(1000, memory)
    assert address % 256 == 0
    assert device.locate(address) == device.dlpack_device(memory) == PLACES[vendor.name][kind]
    host = device.host_pointer(address, memory)
    assert (host is not None) == (memory is not MemoryType.DEVICE)
    if host is not None:
        ctypes.memset(host, 1, 1000)
    device.free(address, memory)
    assert device.locate(ctypes.addressof(ctypes.create_string_buffer(64))) is None


def test_free_memory_is_told(device):
    free, total = device.memory_info()
    assert 0 < free <= total == device.info.total_memory


@pytest.fixture
def page():
    """The address of two pages of the host."""
    memory = ctypes.create_string_buffer(3 * 4096)
    yield (ctypes.addressof(memory) + 4095) & ~4095
    del memory  # not before


@pytest.fixture
def pins(vendor, simulator):
    """Return how often memory was pinned, and unpinned, since the test began."""
    names = [vendor.name_of(HOST[vendor.name] + each) for each in ("Register", "Unregister")]
    before = [simulator.calls(name) for name in names]
    return lambda: tuple(simulator.calls(name) - at for name, at in zip(names, before, strict=True))


def test_host_memory_of_others_is_pinned_once_for_all_devices_m1(open_device, page, pins):
    """And as long as one of them needs it."""
    first, second = open_device(0), open_device(1)
    for device in (first, second, first):
        device.bind()
        address = device.import_host(page, 8192)
        stream = device.create_stream()
        device.fill(stream, address, 3, 4, 2048)
        device.synchronize_stream(stream)
        device.destroy_stream(stream)
        assert words(page, 2048) == [3] * 2048
    first.import_host(page + 4096, 64)  # a part of it
    assert pins() == (1, 0)
    with pytest.raises(OperationError, match=r"a part of the 8192 bytes.*pinned already") as caught:
        second.import_host(page + 4096, 8192)
    assert caught.value.native_code == 712
    for device, place in ((first, page), (second, page), (first, page), (first, page + 4096)):
        assert pins()[1] == 0
        device.release_host(place)
    assert pins()[1] == 1


def test_a_failed_pin_leaves_nothing_m1(vendor, device, simulator, page, pins):
    failing = [HOST[vendor.name] + each for each in ("Register", "GetDevicePointer")]
    for name in failing + ["DevicePrimaryCtxRetain"] * (vendor.name == "cuda"):
        simulator.fail(vendor.name_of(name), 1, 304)
        with pytest.raises(OperationError):
            device.import_host(page, 4096)
    before = pins()
    assert device.import_host(page, 4096) == page
    device.release_host(page)
    assert pins() == (before[0] + 1, before[1] + 1)


def test_a_device_that_is_lost_keeps_no_memory_pinned_m1(driver, open_device, page, pins):
    lost = driver.open_device(1, {})
    lost.bind()
    lost.import_host(page, 4096)
    lost.close()  # without a release: the core makes no other call of a lost device
    device = open_device()
    device.release_host(device.import_host(page, 4096))
    assert pins()[0] == 2


def test_read_only_memory_is_pinned_as_such_m1(vendor, device, simulator, page, pins):
    simulator.fail(vendor.name_of(HOST[vendor.name] + "Register"), 1, 1)
    device.release_host(device.import_host(page, 4096))
    assert pins()[0] == 2


def test_memory_that_ends_gives_the_pools_cache_back_m1(vendor, device, simulator):
    allocate = vendor.name_of({"cuda": "MemAlloc", "hip": "Malloc"}[vendor.name])
    trim = vendor.name_of("MemPoolTrimTo")
    before = simulator.calls(trim)
    simulator.fail(allocate, 1, 2)
    address = device.allocate(256, MemoryType.DEVICE)
    assert simulator.calls(trim) == before + 1
    device.free(address, MemoryType.DEVICE)
    simulator.fail(allocate, 1, 2)
    simulator.fail(allocate, 2, 2)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(256, MemoryType.DEVICE)
    assert caught.value.native_code == 2


def test_a_kernel_uses_the_memory_of_an_enabled_peer_m3(open_device, image):
    """Also what was allocated in its pool before the access was given, and what comes after."""
    first, second = open_device(0), open_device(1)
    second.bind()
    stream = second.create_stream()
    memory = [second.allocate(4 * N, MemoryType.DEVICE), second.allocate_async(stream, 4 * N)]
    first.bind()
    first.enable_peer(second)
    second.bind()
    memory.append(second.allocate_async(stream, 4 * N))
    for address in memory:
        second.fill(stream, address, 5, 4, N)
    second.synchronize_stream(stream)
    first.bind()
    ours, result = first.create_stream(), first.allocate(4 * N, MemoryType.HOST)
    module = first.load_module(image)
    function = first.get_function(module, "add")
    for address in memory:
        arguments = Arguments(address, 7, N)
        first.launch(ours, function, (4, 1, 1), (64, 1, 1), 0, arguments.address)
        first.copy_peer(ours, result, first, address, second, 4 * N)
        first.synchronize_stream(ours)
        assert words(result, N) == [12] * N
    first.unload_module(module)
    first.destroy_stream(ours)
    first.free(result, MemoryType.HOST)
    second.bind()
    second.free(memory[0], MemoryType.DEVICE)
    for address in memory[1:]:
        second.free_async(stream, address)
    second.synchronize_stream(stream)
    second.destroy_stream(stream)


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_the_default_streams_are_adopted(vendor, device, shared, handle):
    stream = device.adopt_stream(handle)
    if vendor.name == "cuda":
        assert stream == max(handle, 1)
    else:
        assert stream > 0
        assert device.export_stream(stream) == (handle if handle == 2 else 0)
    device.fill(stream, shared, 9, 4, 4)
    device.synchronize_stream(stream)
    assert words(shared, 4) == [9] * 4
    device.release_stream(stream)


def test_others_events_are_waited_for_and_recorded(vendor, device, stream):
    theirs = ctypes.c_void_p()
    vendor.call("EventCreate", ctypes.byref(theirs), 2)
    event, other = device.adopt_event(theirs.value), device.create_stream()
    device.record_event(event, stream)
    device.wait_event(other, event)
    device.synchronize_stream(other)
    vendor.call("EventQuery", theirs)
    device.release_event(event)
    device.destroy_stream(other)
    vendor.call("EventDestroy", theirs)


# Graphs


def instantiate(device, nodes):
    """Return an instance of a graph of nodes, each behind the one before it."""
    graph = device.create_graph(nodes, [(), *((index,) for index in range(len(nodes) - 1))])
    try:
        return device.instantiate_graph(graph)
    finally:
        device.destroy_graph(graph)


def run(device, stream, instance):
    device.launch_graph(stream, instance)
    device.synchronize_stream(stream)


def test_instances_of_one_graph_are_independent_c4(device, stream, shared):
    graph = device.create_graph([FillNode(shared, 1, 4, N)], [()])
    first, second = (device.instantiate_graph(graph) for _ in range(2))
    assert first != second
    device.destroy_graph(graph)
    device.update_graph(second, 0, FillNode(shared, 2, 4, N))
    for instance, value in ((first, 1), (second, 2)):
        run(device, stream, instance)
        assert words(shared, N) == [value] * N
    device.destroy_graph_instance(first)
    device.update_graph(second, 0, FillNode(shared, 3, 4, 4))
    run(device, stream, second)
    assert words(shared, N) == [3] * 4 + [2] * (N - 4)
    device.destroy_graph_instance(second)


def test_a_change_that_is_refused_raises_c4(vendor, device, stream, shared, simulator):
    """And the instance stays what it was; the core makes another."""
    instance = instantiate(device, [FillNode(shared, 1, 4, N)])
    simulator.fail(vendor.name_of("GraphExecMemsetNodeSetParams"), 1, 910)
    with pytest.raises(OperationError) as caught:
        device.update_graph(instance, 0, FillNode(shared, 2, 4, N))
    assert caught.value.native_code == 910
    run(device, stream, instance)
    assert words(shared, N) == [1] * N
    device.destroy_graph_instance(instance)


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("GraphCreate", 1),
        ("GraphAddMemsetNode", 1),
        ("GraphAddMemsetNode", 2),
        ("GraphAddEmptyNode", 1),
        ("GraphInstantiateWithFlags", 1),
    ],
)
def test_a_graph_that_fails_leaves_nothing_c4(
    vendor, device, stream, shared, simulator, function, call
):
    nodes = [FillNode(shared, 1, 4, N), FillNode(shared, 1, 4, N), EmptyNode()]
    before = simulator.leaks()
    simulator.fail(vendor.name_of(function), call, 304)
    with pytest.raises(OperationError) as caught:
        instantiate(device, nodes)
    assert caught.value.native_code == 304
    assert simulator.leaks() == before
    instance = instantiate(device, nodes)
    run(device, stream, instance)
    assert words(shared, N) == [1] * N
    device.destroy_graph_instance(instance)
