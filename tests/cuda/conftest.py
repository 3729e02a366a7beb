"""Give the tests of the CUDA backend native devices on the software driver."""

import importlib

import pytest
import vendors
from capture_harness import exchange, other
from native_lab import Lab
from vendors import device, driver, native, open_device, simulator

__all__ = ["device", "driver", "exchange", "native", "open_device", "other", "simulator"]

pytest.importorskip("cuda.bindings", reason="pip install cuda-bindings")


@pytest.fixture(scope="session")
def vendor():
    return vendors.load("cuda")


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


@pytest.fixture
def hide(monkeypatch):
    """Have imports of a module by name fail, as ``hide("cuda.bindings.nvrtc")``."""
    original = importlib.import_module

    def hide_module(hidden):
        def without(name, *rest):
            if name == hidden:
                message = f"No module named {name!r}"
                raise ImportError(message)
            return original(name, *rest)

        monkeypatch.setattr(importlib, "import_module", without)

    return hide_module
