"""Give the tests of the HIP backend native devices on gpusim's HIP face."""

from __future__ import annotations

import hip_harness
import pytest
from compile_requests import compiled, request

from hal.native import MemoryType

pytest.importorskip("rocm.bindings", reason="pip install hip-python")


@pytest.fixture(scope="session")
def loaded():
    """gpusim in this process."""
    return hip_harness.load()


@pytest.fixture
def simulator(loaded):
    """gpusim, whose faults end with the test."""
    yield loaded
    loaded.reset()


@pytest.fixture(scope="session")
def driver(loaded):
    """Our driver over it, with two devices."""
    from hal_hip import _driver  # noqa: PLC0415 - after the library
    from hal_hip.driver import HipDriver  # noqa: PLC0415

    _driver.probe()
    return HipDriver()


@pytest.fixture
def open_device(driver, simulator):
    """Open devices, as ``open_device(1)``; they are closed at the end."""
    devices = []

    def function(index=0):
        devices.append(driver.open_device(index, {}))
        devices[-1].bind()
        return devices[-1]

    yield function
    simulator.reset()
    for device in devices:
        device.bind()
        device.close()


@pytest.fixture
def device(open_device):
    return open_device()


@pytest.fixture
def stream(device):
    handle = device.create_stream()
    yield handle
    device.bind()
    device.synchronize_stream(handle)
    device.destroy_stream(handle)


@pytest.fixture
def shared(device):
    """Memory of a page that device and host see."""
    address = device.allocate(4096, MemoryType.MANAGED)
    yield address
    device.free(address, MemoryType.MANAGED)


@pytest.fixture(scope="session")
def image(driver):
    """The code object of `hip_harness.KERNELS`."""
    device = driver.open_device(0, {})
    device.bind()
    found = compiled(device, request(hip_harness.KERNELS))
    device.close()
    return found
