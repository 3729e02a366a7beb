"""CUDA's and HIP's backends on their software drivers, and the fixtures of both."""

import functools
import importlib

import gpusim
import hip_harness
import pytest
from compile_requests import compiled, request

from hal.native import MemoryType

BINDINGS = {"cuda": "cuda.bindings", "hip": "rocm.bindings"}
SYMBOLS = {
    "cuEventDestroy": "cuEventDestroy_v2",
    "cuStreamBeginCapture": "cuStreamBeginCapture_v2",
    "cuStreamDestroy": "cuStreamDestroy_v2",
    "hipEventCreate": "hipEventCreateWithFlags",
    "hipStreamCreate": "hipStreamCreateWithFlags",
}
"""What a library calls a function, where it is not the name."""


class Vendor:
    """One vendor's library in software, in this process, and its backend's driver over it."""

    def __init__(self, name):
        pytest.importorskip(BINDINGS[name], reason=f"no bindings for {name}")
        self.name = name
        self.simulator = gpusim.load() if name == "cuda" else hip_harness.load()
        self.native = importlib.import_module(f"hal_{name}._driver")
        self.native.probe()
        module = importlib.import_module(f"hal_{name}.driver")
        self.driver = (module.CudaDriver if name == "cuda" else module.HipDriver)()

    def name_of(self, function):
        """Return what this vendor calls a function, as in ``name_of("StreamCreate")``."""
        return {"cuda": "cu", "hip": "hip"}[self.name] + function

    def call(self, function, *arguments):
        """Call a function of the library, as another library would, without the bindings."""
        name = self.name_of(function)
        code = getattr(self.simulator._library, SYMBOLS.get(name, name))(*arguments)
        assert not code, (name, code)


load = functools.cache(Vendor)


@pytest.fixture
def simulator(vendor):
    """The software driver, whose faults end with the test."""
    yield vendor.simulator
    vendor.simulator.reset()


@pytest.fixture(scope="session")
def native(vendor):
    """The backend's module `_driver`, which imports the bindings."""
    return vendor.native


@pytest.fixture(scope="session")
def driver(vendor):
    """Our driver over it, with two devices."""
    return vendor.driver


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
    """The image of `hip_harness.KERNELS`, which are in the dialect of both."""
    device = driver.open_device(0, {})
    device.bind()
    found = compiled(device, request(hip_harness.KERNELS))
    device.close()
    return found
