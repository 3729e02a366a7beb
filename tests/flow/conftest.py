"""Devices and flows for the tests of `hal.flow`."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from context_harness import BYTES, NUMBERS, SOURCE

import hal
from hal.flow import Context, Flow

CORE = Path(__file__).parents[1] / "core"


def _of_the_core():
    """Import the fixtures of the core's tests."""
    spec = importlib.util.spec_from_file_location("flow_core_conftest", CORE / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_core = _of_the_core()
device, second_device = _core.device, _core.second_device
open_probe, latch = _core.open_probe, _core.latch


@pytest.fixture
def flow(device):
    with Flow(device) as made:
        yield made


@pytest.fixture(params=[True, False], ids=["peers", "relay"])
def pair(device, second_device, request):
    """A flow over two devices, with pieces of 1000 bytes, or without."""
    with Flow(device, second_device, chunk=1000, peers=request.param) as made:
        yield made


@pytest.fixture
def gate():
    """A semaphore that work can be held up with; signalled at the end."""
    semaphore = hal.create_semaphore(name="gate")
    yield semaphore
    if semaphore.query() < 1:
        semaphore.signal(1)


@pytest.fixture(scope="module")
def program():
    """The kernels that tests of contexts link."""
    return hal.compile(SOURCE, target="cpu")


@pytest.fixture
def root(flow):
    """A context with numbers and with room for as many."""
    with Context(flow, name="root") as made:
        made.from_host("x", NUMBERS)
        made.allocate("y", BYTES, dtype=np.int32, mode="hosted")
        yield made
