"""Memory is real, aligned and finite; transfers write exactly what they should."""

import numpy as np
import pytest

from hal.errors import InvalidArgumentError, OperationError, OutOfMemoryError
from hal.native import FEATURES, MemoryType


@pytest.mark.parametrize("size", [1 << 45, 1 << 62, (1 << 63) - 1])
def test_absurd_sizes(lab, size):
    with pytest.raises(OutOfMemoryError, match=str(size)) as caught:
        lab.device.allocate(size, MemoryType.DEVICE)
    assert caught.value.native_name == "ENOMEM"


def test_more_than_there_is_in_all(lab):
    total = lab.device.memory_info()[1]
    size = total // 4
    taken = []
    try:
        with pytest.raises(OutOfMemoryError):
            taken.extend(lab.device.allocate(size, MemoryType.DEVICE) for _ in range(6))
    finally:
        for address in taken:
            lab.device.free(address, MemoryType.DEVICE)
    # A refusal leaves nothing behind.
    lab.device.free(lab.device.allocate(1 << 20, MemoryType.DEVICE), MemoryType.DEVICE)


def test_device_information(driver, lab):
    (info,) = driver.devices()
    assert lab.device.info == info
    # The core does the first, and processes share memory of the host without help.
    lacking = {"async_allocations", "memory_sharing", "stream_values"}
    assert lab.device.features == FEATURES - lacking
    assert info.index == 0
    assert info.compute_units >= 1
    assert len(info.uuid) == 36


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"threads": "0"}, "threads='0'"),
        ({"threads": "²"}, "threads='²'"),
        ({"threads": "-1"}, "threads='-1'"),
        ({"threads": "4000"}, "from 1 to 1024"),
    ],
)
def test_parameters(driver, parameters, text):
    with pytest.raises(InvalidArgumentError) as caught:
        driver.open_device(0, parameters)
    assert text in str(caught.value)


def test_several_devices(python):
    program = """
from hal_cpu.driver import CpuDriver
driver = CpuDriver()
infos = driver.devices()
print([info.index for info in infos], len({info.uuid for info in infos}))
print(driver.open_device(2, {}).info.index)
"""
    result = python(program, HAL_CPU_DEVICES="3")
    assert (result.stdout, result.stderr) == ("[0, 1, 2] 3\n2\n", "")
    result = python("from hal_cpu.driver import CpuDriver; CpuDriver()", HAL_CPU_DEVICES="none")
    assert "HAL_CPU_DEVICES='none'" in result.stderr


def test_host_copies_do_not_block(lab):
    stream = lab.stream()
    gate = lab.gate(stream)
    target, back = lab.array(np.zeros(4), "u4"), np.zeros(4, "u4")
    host = np.arange(4, dtype="u4")
    lab.device.copy_from_host(stream, target.ctypes.data, host.ctypes.data, 16)
    lab.device.copy_to_host(stream, back.ctypes.data, target.ctypes.data, 16)
    host += 10  # captured when it runs, not when it is enqueued
    gate.open()
    lab.finish(stream)
    assert back.tolist() == [10, 11, 12, 13]


def test_import_host_is_the_memory_itself(lab, other_lab):
    host = np.arange(1000, dtype="u4")
    at, size = host.ctypes.data, host.nbytes
    assert lab.device.import_host(at, size) == at
    stream = lab.stream()
    lab.device.fill(stream, at, 7, 4, 10)
    lab.finish()
    assert (host == [7] * 10 + list(range(10, 1000))).all()
    with pytest.raises(
        OperationError, match=f"{at:#x} is imported already, {size} bytes"
    ) as caught:
        lab.device.import_host(at, 4)
    assert caught.value.native_name == "EEXIST"
    # Another address, and another device, are other imports.
    assert lab.device.import_host(at + 4, 4) == at + 4
    assert other_lab.device.import_host(at, size) == at
    for device, address in ((lab.device, at), (lab.device, at + 4), (other_lab.device, at)):
        device.release_host(address)
        with pytest.raises(OperationError, match="released before") as caught:
            device.release_host(address)
        assert caught.value.native_name == "ENOENT"
    assert lab.device.import_host(at, size) == at  # and again
    lab.device.release_host(at)
