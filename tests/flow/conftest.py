"""Devices and flows for the tests of `hal.flow`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import hal
from hal.flow import Flow

# The test run imports files one by one, not as a package. The harness is the core's.
for folder in (Path(__file__).parent, Path(__file__).parents[1] / "core"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from core_harness import LIMIT, Latch, Probe, open_native  # noqa: E402


@pytest.fixture
def device():
    opened = hal.create_device("cpu")
    yield opened
    assert opened.close(LIMIT) == ()


@pytest.fixture
def second_device():
    """Another device on the same hardware."""
    opened = hal.create_device("cpu")
    yield opened
    assert opened.close(LIMIT) == ()


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


@pytest.fixture
def latch():
    made = Latch()
    yield made
    made.open(1000)


@pytest.fixture
def open_probe():
    """Open devices behind a probe, as the fixture of this name of the core's tests does."""
    opened = []
    driver = open_native()

    def open_one(*, domain=None, without=(), settings=None):
        inner = driver.open_device(0, {})
        probe = Probe(inner, domain, inner.features - set(without))
        device = hal.Device("cpu", probe, None, settings)
        opened.append((device, probe))
        return device, probe

    yield open_one
    for _, probe in opened:
        probe.heal()
    for device, probe in opened:
        device.close(LIMIT)
        assert probe.violations == []
