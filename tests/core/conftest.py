"""Devices for the core's tests: the real CPU backend, plain and behind a probe."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import hal

# The test run imports files one by one, not as a package.
HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)

from core_harness import LIMIT, Latch, Probe, open_native, run_python  # noqa: E402


@pytest.fixture
def device():
    """The CPU backend's device, closed at the end, with nothing left running."""
    opened = hal.create_device("cpu")
    yield opened
    assert opened.close(LIMIT) == ()


@pytest.fixture
def second_device():
    """Another device of the same driver, whose events the first one's streams can wait for."""
    opened = hal.create_device("cpu")
    yield opened
    assert opened.close(LIMIT) == ()


@pytest.fixture
def small_device():
    """A device whose queues hold two operations in flight, so that backlogs form at once."""
    opened = hal.create_device("cpu", max_in_flight=2)
    yield opened
    assert opened.close(LIMIT) == ()


@pytest.fixture
def open_probe():
    """Open devices whose native calls are counted, checked, held up and made to fail.

    Returns ``(device, probe)``. At the end every latch is opened and every
    device closed; no native rule may have been broken, and nothing native may
    be left unless the device was lost (I7).
    """
    opened: list[tuple[hal.Device, Probe]] = []
    driver = open_native()

    def open_one(*, max_in_flight=None, domain=None):
        probe = Probe(driver.open_device(0, {}), domain)
        device = hal.Device("cpu", probe, max_in_flight)
        opened.append((device, probe))
        return device, probe

    yield open_one
    for _, probe in opened:
        probe.heal()
    for device, _ in opened:
        device.close(LIMIT)
    pause = threading.Event()
    for device, probe in opened:
        assert probe.violations == []
        for _ in range(int(LIMIT * 100)):  # what a view held is freed by a thread of ours
            if device.lost or not probe.live():
                break
            pause.wait(0.01)
        assert device.lost or probe.live() == {}


@pytest.fixture
def latch():
    """A latch that holds a native stream up; open at the end, whatever happened."""
    made = Latch()
    yield made
    made.open(1000)


@pytest.fixture
def gate():
    """An event for host functions to wait for, with `LIMIT`; set at the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def run_script(tmp_path):
    """Run a program in a child process and return its result."""
    return lambda source, **options: run_python(tmp_path, source, **options)
