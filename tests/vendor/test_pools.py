"""Pools of memory in the order of streams, and errors of events: alike on CUDA and HIP (M3, O2)."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hal.errors import (
    DeviceLostError,
    HalError,
    OperationError,
    OutOfMemoryError,
    UnimplementedError,
)

FULL = {"cuda": "CUDA_ERROR_OUT_OF_MEMORY", "hip": "hipErrorOutOfMemory"}


def test_a_pool_counts_what_it_holds_and_gives_it_back_m3(device, stream):
    device.configure_pool(1 << 30, "any")
    addresses = [device.allocate_async(stream, 1 << 20) for _ in range(2)]
    reserved, used = device.pool_statistics()
    assert reserved >= used >= 2 << 20
    device.free_async(stream, addresses.pop())
    device.synchronize_stream(stream)
    device.trim_pool(0)
    reserved, used = device.pool_statistics()
    assert reserved >= used >= 1 << 20
    device.free_async(stream, addresses.pop())
    device.synchronize_stream(stream)
    assert device.pool_statistics()[1] == 0
    device.trim_pool(0)
    assert device.pool_statistics() == (0, 0)


@pytest.mark.parametrize(
    ("reuse", "allowed"), [("stream", [0, 0, 0]), ("ordered", [1, 0, 0]), ("any", [1, 1, 1])]
)
def test_a_pool_keeps_and_reuses_what_it_is_told_m3(vendor, device, reuse, allowed):
    device.configure_pool(5 << 20, reuse)
    told = []
    for number in range(1, 5):
        value = ctypes.c_uint64()
        pool = ctypes.c_void_p(int(device.pool))
        vendor.call("MemPoolGetAttribute", pool, number, ctypes.byref(value))
        told.append(value.value)
    assert told == [*allowed, 5 << 20]


def test_a_pool_that_cannot_grow_is_out_of_memory_m3(vendor, device, stream, simulator):
    """With the driver's code; and the pool goes on."""
    device.trim_pool(0)
    function = {"cuda": "MemAllocFromPoolAsync", "hip": "MallocFromPoolAsync"}[vendor.name]
    simulator.fail(vendor.name_of(function), 2, 2)
    first = device.allocate_async(stream, 64)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate_async(stream, 64)
    assert caught.value.native_code == 2
    assert caught.value.native_name == FULL[vendor.name]
    with pytest.raises(OutOfMemoryError):
        device.allocate_async(stream, 1 << 40)
    second = device.allocate_async(stream, 64)
    device.free_async(stream, first)
    device.free_async(stream, second)
    device.synchronize_stream(stream)
    assert device.pool_statistics()[1] == 0


@pytest.mark.parametrize(
    ("function", "use"),
    [
        ("MemPoolSetAttribute", lambda device: device.configure_pool(0, "any")),
        ("MemPoolGetAttribute", lambda device: device.pool_statistics()),
        ("MemPoolTrimTo", lambda device: device.trim_pool(0)),
    ],
)
def test_errors_of_the_pools_functions_have_their_classes(vendor, device, simulator, function, use):
    name = vendor.name_of(function)
    simulator.fail(name, 1, 719)
    with pytest.raises(DeviceLostError, match=name) as caught:
        use(device)
    assert caught.value.native_code == 719
    simulator.fail(name, 1, 801)
    with pytest.raises(UnimplementedError):
        use(device)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, OperationError),
        (2, OutOfMemoryError),
        (214, DeviceLostError),
        (700, DeviceLostError),
        (719, DeviceLostError),
        (801, UnimplementedError),
        (900, OperationError),
        (12345, OperationError),
    ],
)
def test_asking_an_event_raises_an_error_as_any_call_does_o2(vendor, device, simulator, code, kind):
    event = device.create_event()
    simulator.fail(vendor.name_of("EventQuery"), 1, code)
    with pytest.raises(HalError) as caught:
        device.query_event(event)
    assert type(caught.value) is kind
    assert caught.value.native_code == code
    assert device.query_event(event)
    device.destroy_event(event)


def test_threads_that_look_a_kernel_up_at_once_note_it_once(vendor, device, image):
    """Its module can be unloaded therefore."""
    together = threading.Barrier(2)

    class Meeting(dict):
        """Let two threads see that a function is not there before either puts it there."""

        def __contains__(self, function):
            found = super().__contains__(function)
            together.wait(20)
            return found

    def look_up(_):
        device.bind()
        return device.get_function(module, "add")

    device._kernels = Meeting(device._kernels)
    if vendor.name == "cuda":
        device._shared = Meeting(device._shared)
    module = device.load_module(image)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(look_up, range(2)))
    assert len(set(found)) == 1
    noted = device._functions[module] if vendor.name == "cuda" else device._modules[module][1]
    assert noted == found[:1]
    device.unload_module(module)
    assert found[0] not in dict(device._kernels)
