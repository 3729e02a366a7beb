"""Give tests that hold for CUDA and for HIP native devices of both, on the software drivers."""

import pytest
import vendors
from capture_harness import exchange, other
from vendors import device, driver, image, open_device, shared, simulator, stream

__all__ = [
    "device",
    "driver",
    "exchange",
    "image",
    "open_device",
    "other",
    "shared",
    "simulator",
    "stream",
]


@pytest.fixture(scope="session", params=vendors.BINDINGS)
def vendor(request):
    return vendors.load(request.param)


@pytest.fixture(autouse=True)
def nothing_leaks(simulator):
    """Set up first, so it ends last: what a test's devices had is given back."""
    before = simulator.leaks()
    yield
    assert simulator.leaks() == before
