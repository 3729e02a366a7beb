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


@pytest.fixture
def native(vendor):
    from hal_hip import _driver  # noqa: PLC0415 - imports the bindings

    return _driver


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, OperationError),
        (2, OutOfMemoryError),
        (9, OperationError),
        (17, OperationError),
        (101, OperationError),
        (209, OperationError),
        (214, DeviceLostError),
        (400, OperationError),
        (500, OperationError),
        (700, DeviceLostError),
        (701, OperationError),
        (702, DeviceLostError),
        (704, OperationError),
        (709, DeviceLostError),
        (710, DeviceLostError),
        (712, OperationError),
        (719, DeviceLostError),
        (801, UnimplementedError),
        (910, OperationError),
        (53, DeviceLostError),
        (900, OperationError),
        (999, OperationError),
        (1053, OperationError),
    ],
)
def test_the_table_says_what_an_error_means(native, code, kind):
    error = native.error_of(native.hip.hipError_t(code), "hipSomething")
    assert type(error) is kind
    assert error.native_code == code
    assert error.native_name == native.hip.hipError_t(code).name
    assert "hipSomething failed with hipError" in str(error)


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


def test_a_status_that_the_bindings_do_not_know_is_told(device, native, simulator):
    simulator.fail("hipMalloc", 1, 12345)
    with pytest.raises(OperationError, match=r"error 12345.*newer than the bindings") as caught:
        device.allocate(256, MemoryType.DEVICE)
    assert caught.value.native_code == 12345


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
