"""Devices: what is told of them, two in one process, peers, others' streams and events, times."""

import ctypes

import pytest
from core_harness import Running
from hip_harness import Arguments, words

from hal.errors import OperationError
from hal.native import MemoryType

N = 1000


def test_a_device_is_described(driver):
    first, second = driver.devices()
    assert (first.index, second.index) == (0, 1)
    assert first.architecture == "gfx90a"
    assert first.properties["compile_target"] == "gfx90a:sramecc+:xnack-"
    assert first.warp_size == 64
    assert first.max_shared_memory == 65536
    assert first.max_threads_per_block == 1024
    assert first.uuid.startswith("GPU-")
    assert len(first.uuid) == 20
    assert first.uuid != second.uuid
    assert "HIP 7.1.52633, hip-python" in first.driver


def test_every_optional_feature_is_there(device):
    assert device.features == {
        "async_allocations",
        "compile",
        "external_streams",
        "graphs",
        "host_import",
        "memory_sharing",
        "occupancy",
        "peer_access",
        "stream_values",
        "timestamps",
    }


def test_each_thread_is_bound_to_the_device_that_it_asks_for(open_device):
    from hal_hip._driver import call, hip  # noqa: PLC0415

    devices = [open_device(0), open_device(1)]
    seen = []

    def work():
        for device in (*devices, devices[0]):
            device.bind()
            address = device.allocate(256, MemoryType.DEVICE)
            seen.append((call(hip.hipGetDevice), device.locate(address)))
            device.free(address, MemoryType.DEVICE)

    Running(work).result()
    assert seen == [(0, (10, 0)), (1, (10, 1)), (0, (10, 0))]


def test_the_only_device_needs_no_binding(driver, simulator):
    from hal_hip.device import HipDevice  # noqa: PLC0415

    device = HipDevice(driver, driver.devices()[0], only=True)
    before = simulator.calls("hipSetDevice")
    device.bind()
    assert simulator.calls("hipSetDevice") == before
    assert device.call_table().current == 0  # the core's C code asks for none either
    device.close()


def test_a_runtime_that_finds_no_functions_by_name_has_no_call_table(device, monkeypatch):
    """As before ROCm 6.2."""
    from hal_hip import _driver  # noqa: PLC0415

    monkeypatch.setattr(_driver, "has", lambda *names: "hipGetProcAddress" not in names)
    assert device.call_table() is None


def test_memory_is_located_by_kind(device):
    for memory, place in (
        (MemoryType.DEVICE, (10, 0)),
        (MemoryType.HOST, (11, 0)),
        (MemoryType.MANAGED, None),
    ):
        address = device.allocate(4096, memory)
        assert device.locate(address) == place == device.dlpack_device(memory)
        device.free(address, memory)
    assert device.locate(4096) is None


def test_enabling_a_peer_twice_is_no_error(open_device):
    from hal_hip._driver import hip  # noqa: PLC0415

    first, second = open_device(0), open_device(1)
    first.bind()
    for _ in range(2):
        first.enable_peer(second)
        assert not hip.hipGetLastError()[0]
    first.enable_peer(first)


def test_a_kernel_uses_the_memory_of_an_enabled_peer(open_device, image):
    first, second = open_device(0), open_device(1)
    second.bind()
    stream = second.create_stream()
    memory = [second.allocate(4 * N, MemoryType.DEVICE), second.allocate_async(stream, 4 * N)]
    for address in memory:
        second.fill(stream, address, 5, 4, N)
    second.synchronize_stream(stream)
    first.bind()
    first.enable_peer(second)
    ours, result = first.create_stream(), first.allocate(4 * N, MemoryType.HOST)
    module = first.load_module(image)
    function = first.get_function(module, "add")
    for address in memory:
        arguments = Arguments(address, 7, N)
        first.launch(ours, function, (4, 1, 1), (256, 1, 1), 0, arguments.address)
        first.copy_peer(ours, result, first, address, second, 4 * N)
        first.synchronize_stream(ours)
        assert words(result, N) == [12] * N
    first.unload_module(module)
    first.destroy_stream(ours)
    first.free(result, MemoryType.HOST)
    second.bind()
    second.free(memory[0], MemoryType.DEVICE)
    second.free_async(stream, memory[1])
    second.synchronize_stream(stream)
    second.destroy_stream(stream)


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_the_default_streams_are_adopted(device, shared, handle):
    stream = device.adopt_stream(handle)
    assert stream > 0
    assert device.export_stream(stream) == (handle if handle == 2 else 0)
    device.fill(stream, shared, 9, 4, 4)
    device.synchronize_stream(stream)
    assert words(shared, 4) == [9] * 4
    device.release_stream(stream)


def test_what_is_no_stream_is_refused(device, simulator):
    from hal_hip._driver import call, hip  # noqa: PLC0415

    simulator.strict(strict=False)
    theirs = call(hip.hipStreamCreateWithFlags, 0)
    call(hip.hipStreamDestroy, theirs)
    with pytest.raises(OperationError, match="is no stream that"):
        device.adopt_stream(int(theirs))
    assert not hip.hipGetLastError()[0]


def test_others_events_are_waited_for_and_recorded(device, stream):
    from hal_hip._driver import call, hip  # noqa: PLC0415

    theirs = call(hip.hipEventCreateWithFlags, 2)
    event = device.adopt_event(int(theirs))
    device.record_event(event, stream)
    device.wait_event(stream, event)
    device.synchronize_stream(stream)
    assert call(hip.hipEventQuery, theirs) is None
    device.release_event(event)
    call(hip.hipEventDestroy, theirs)


def test_occupancy_is_the_runtimes(device, image):
    module = device.load_module(image)
    function = device.get_function(module, "add")
    assert device.occupancy(function, 64, 0) == 16
    assert device.occupancy(function, 1024, 0) == 2
    assert device.occupancy(function, 64, 65536) == 1
    device.unload_module(module)


def test_host_memory_of_others_is_pinned_once_for_all_devices(open_device, simulator):
    memory = ctypes.create_string_buffer(4 * 4096)
    base = (ctypes.addressof(memory) + 4095) & ~4095
    first, second = open_device(0), open_device(1)
    before = simulator.calls("hipHostRegister")
    for device in (first, second, first):
        device.bind()
        address = device.import_host(base, 8192)
        stream = device.create_stream()
        device.fill(stream, address, 3, 4, 2048)
        device.synchronize_stream(stream)
        device.destroy_stream(stream)
        assert words(base, 2048) == [3] * 2048
    first.import_host(base + 4096, 64)  # a part of it
    assert simulator.calls("hipHostRegister") == before + 1
    with pytest.raises(OperationError, match=r"a part of the 8192 bytes.*pinned already") as caught:
        second.import_host(base + 4096, 8192)
    assert caught.value.native_code == 712
    released = simulator.calls("hipHostUnregister")
    for device, place in ((first, base), (second, base), (first, base), (first, base + 4096)):
        assert simulator.calls("hipHostUnregister") == released
        device.release_host(place)
    assert simulator.calls("hipHostUnregister") == released + 1


def test_a_failed_pin_leaves_nothing(device, simulator):
    memory = ctypes.create_string_buffer(8192)
    base = (ctypes.addressof(memory) + 4095) & ~4095
    for name in ("hipHostRegister", "hipHostGetDevicePointer"):
        simulator.fail(name, 1, 304)
        with pytest.raises(OperationError):
            device.import_host(base, 4096)
    assert device.import_host(base, 4096) == base
    device.release_host(base)
    released = simulator.calls("hipHostUnregister")
    device.release_host(device.import_host(base, 4096))  # nothing holds it
    assert simulator.calls("hipHostUnregister") == released + 1


def test_a_device_that_is_lost_keeps_no_memory_pinned(driver, open_device, simulator):
    memory = ctypes.create_string_buffer(8192)
    base = (ctypes.addressof(memory) + 4095) & ~4095
    lost = driver.open_device(1, {})
    lost.bind()
    before = simulator.calls("hipHostRegister")
    lost.import_host(base, 4096)
    lost.close()  # without a release: the core makes no other call of a lost device
    device = open_device()
    device.release_host(device.import_host(base, 4096))
    assert simulator.calls("hipHostRegister") == before + 2


def test_memory_that_may_only_be_read_is_pinned_so(device, simulator):
    memory = ctypes.create_string_buffer(8192)
    base = (ctypes.addressof(memory) + 4095) & ~4095
    before = simulator.calls("hipHostRegister")
    simulator.fail("hipHostRegister", 1, 1)
    device.release_host(device.import_host(base, 4096))
    assert simulator.calls("hipHostRegister") == before + 2
