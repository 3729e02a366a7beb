"""Give the tests of the CUDA backend native devices on the software driver."""

from __future__ import annotations

import gpusim
import pytest
from cuda_harness import Lab

pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")


@pytest.fixture(scope="session")
def loaded():
    """The software driver in this process, under the bindings."""
    return gpusim.load()


@pytest.fixture
def simulator(loaded):
    """The software driver, whose faults end with the test."""
    yield loaded
    loaded.reset()


@pytest.fixture(scope="session")
def driver(loaded):
    """Our driver over it, with two devices."""
    from hal_cuda import _driver  # noqa: PLC0415 - after the library
    from hal_cuda.driver import CudaDriver  # noqa: PLC0415

    _driver.probe()
    return CudaDriver()


@pytest.fixture
def open_lab(driver, simulator):
    """Open devices, as ``open_lab(1)``; they are closed at the end."""
    labs = []
    before = simulator.leaks()

    def function(index=0):
        labs.append(Lab(driver, index))
        return labs[-1]

    yield function
    simulator.reset()
    for lab in labs:
        lab.close()
    assert simulator.leaks() == before


@pytest.fixture
def lab(open_lab):
    return open_lab()
