"""Devices: what is told of them, two in one process, peers, others' streams, occupancy."""

import pytest
from core_harness import Running

from hal.errors import OperationError
from hal.native import MemoryType


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


def test_each_thread_is_bound_to_the_device_that_it_asks_for(native, open_device):
    devices = [open_device(0), open_device(1)]
    seen = []

    def work():
        for device in (*devices, devices[0]):
            device.bind()
            address = device.allocate(256, MemoryType.DEVICE)
            seen.append((native.call(native.hip.hipGetDevice), device.locate(address)))
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


def test_a_runtime_that_finds_no_functions_by_name_has_no_call_table(native, device, monkeypatch):
    """As before ROCm 6.2."""
    monkeypatch.setattr(native, "has", lambda *names: "hipGetProcAddress" not in names)
    assert device.call_table() is None


def test_enabling_a_peer_twice_is_no_error(native, open_device):
    first, second = open_device(0), open_device(1)
    first.bind()
    for _ in range(2):
        first.enable_peer(second)
        assert not native.hip.hipGetLastError()[0]
    first.enable_peer(first)


def test_what_is_no_stream_is_refused(native, device, simulator):
    simulator.strict(strict=False)
    theirs = native.call(native.hip.hipStreamCreateWithFlags, 0)
    native.call(native.hip.hipStreamDestroy, theirs)
    with pytest.raises(OperationError, match="is no stream that"):
        device.adopt_stream(int(theirs))
    assert not native.hip.hipGetLastError()[0]


def test_occupancy_is_the_runtimes(device, image):
    module = device.load_module(image)
    function = device.get_function(module, "add")
    assert device.occupancy(function, 64, 0) == 16
    assert device.occupancy(function, 1024, 0) == 2
    assert device.occupancy(function, 64, 65536) == 1
    device.unload_module(module)
