"""Give the tests of the HIP backend native devices on gpusim's HIP face."""

import pytest
import vendors
from vendors import device, driver, image, native, open_device, shared, simulator, stream

__all__ = ["device", "driver", "image", "native", "open_device", "shared", "simulator", "stream"]

pytest.importorskip("rocm.bindings", reason="pip install hip-python")


@pytest.fixture(scope="session")
def vendor():
    return vendors.load("hip")
