"""Memory: its kinds, what the driver knows of it, imports, and transfers."""

import ctypes

import numpy as np
import pytest

from hal.errors import OperationError
from hal.native import MemoryType


@pytest.mark.parametrize(
    ("memory", "located", "visible"),
    [
        (MemoryType.DEVICE, (2, 1), False),
        (MemoryType.HOST, (3, 0), True),
        (MemoryType.MANAGED, (13, 0), True),
    ],
)
def test_each_kind_of_memory_m1(open_lab, memory, located, visible):
    device = open_lab(1).device
    address = device.allocate(1000, memory)
    assert address % 256 == 0
    assert device.locate(address) == device.dlpack_device(memory) == located
    host = device.host_pointer(address, memory)
    assert (host is not None) == visible
    if host is not None:
        ctypes.memset(host, 1, 1000)
    device.free(address, memory)


def test_memory_of_nobody_is_not_located(lab):
    lab.device.bind()
    assert lab.device.locate(np.zeros(16).ctypes.data) is None


def test_free_memory_is_told(lab):
    free, total = lab.device.memory_info()
    assert 0 < free <= total == lab.device.info.total_memory


def test_two_devices_import_one_array_m1(open_lab, simulator):
    """It is pinned once, and as long as one of them needs it."""
    array = np.zeros(8192, np.uint8)
    first, second = open_lab(0), open_lab(1)
    pinned, unpinned = (simulator.calls(f"cuMemHost{name}") for name in ("Register", "Unregister"))
    for lab in (first, second):
        lab.device.import_host(array.ctypes.data, array.nbytes)
    part = second.device.import_host(array.ctypes.data + 4096, 16)
    assert simulator.calls("cuMemHostRegister") == pinned + 1
    first.device.release_host(array.ctypes.data)
    second.device.bind()
    stream = second.stream()
    second.device.fill(stream, part, 3, 1, 16)
    second.finish()
    assert (array[4096:4112] == 3).all()
    second.device.release_host(array.ctypes.data)
    assert simulator.calls("cuMemHostUnregister") == unpinned
    second.device.release_host(array.ctypes.data + 4096)
    assert simulator.calls("cuMemHostUnregister") == unpinned + 1


def test_memory_that_overlaps_an_import_is_refused_m1(lab):
    array = np.zeros(16384, np.uint8)
    start = -array.ctypes.data % 4096 + array.ctypes.data
    lab.device.import_host(start, 4096)
    with pytest.raises(OperationError, match="pinned already") as caught:
        lab.device.import_host(start, 8192)
    assert caught.value.native_code == 712
    lab.device.release_host(start)
    lab.device.import_host(start, 8192)
    lab.device.release_host(start)


def test_read_only_memory_is_pinned_as_such_m1(lab, simulator):
    array = np.zeros(4096, np.uint8)
    before = simulator.calls("cuMemHostRegister")
    simulator.fail("cuMemHostRegister", 1, 1)
    lab.device.import_host(array.ctypes.data, array.nbytes)
    assert simulator.calls("cuMemHostRegister") == before + 2
    lab.device.release_host(array.ctypes.data)


def test_an_import_that_fails_leaves_nothing_m1(lab, simulator):
    array = np.zeros(4096, np.uint8)
    for name in ("cuMemHostGetDevicePointer", "cuDevicePrimaryCtxRetain"):
        simulator.fail(name, 1, 304)
        with pytest.raises(OperationError):
            lab.device.import_host(array.ctypes.data, array.nbytes)
    lab.device.import_host(array.ctypes.data, array.nbytes)
    lab.device.release_host(array.ctypes.data)
