"""Errors: the table, the last error, statuses and functions that are not known."""

import pytest

from hal.errors import (
    DeviceLostError,
    NotFoundError,
    OperationError,
    OutOfMemoryError,
    UnimplementedError,
)
from hal.native import MemoryType


def test_the_last_error_is_taken_back(device, native, image):
    module = device.load_module(image)
    for failing in (
        lambda: device.get_function(module, "missing"),
        lambda: device.get_global(module, "missing"),
        lambda: device.load_module(b"\x7fELF\x02\x01" + bytes(100)),
        lambda: device.allocate(2**50, MemoryType.DEVICE),
    ):
        with pytest.raises((NotFoundError, OperationError, OutOfMemoryError)):
            failing()
        assert not native.hip.hipGetLastError()[0]
    device.unload_module(module)


def test_a_device_that_has_failed_begins_afresh_for_who_opens_it_alone_o2(
    driver, open_device, simulator
):
    device = open_device(1)
    simulator.lose_device(1, 719)
    with pytest.raises(DeviceLostError, match="close the other devices of hal") as caught:
        driver.open_device(1, {})
    assert caught.value.native_code == 719
    device.close()
    device = open_device(1)
    address, stream = device.allocate(64, MemoryType.DEVICE), device.create_stream()
    device.fill(stream, address, 1, 1, 64)
    device.synchronize_stream(stream)
    device.destroy_stream(stream)
    device.free(address, MemoryType.DEVICE)
    simulator.lose_device(1, 719)
    device.close()
    simulator.fail("hipDeviceReset", 1, 801)
    with pytest.raises(DeviceLostError, match="end the process"):
        driver.open_device(1, {})


def test_a_missing_function_is_named_with_the_version(native):
    with pytest.raises(UnimplementedError, match=r"7\.1\.52633.*has no hipMallocPitch") as caught:
        native.call(native.hip.hipMallocPitch, 16, 16)
    assert caught.value.native_name == "hipMallocPitch"
    assert not native.has("hipMalloc", "hipMallocPitch")
    assert native.has("hipMalloc")
