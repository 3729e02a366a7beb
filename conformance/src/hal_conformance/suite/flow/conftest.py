"""Give the tests their flows and virtual devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hal
from hal.flow import Flow, VirtualDevice, virtual_devices
from hal_conformance.bench import Bench
from hal_conformance.suite.support import LIMIT


@pytest.fixture
def flow(device: hal.Device) -> Iterator[Flow]:
    """A flow on the device that all tests share."""
    made = Flow(device)
    yield made
    made.close(LIMIT)


@pytest.fixture
def relay(device: hal.Device, second_device: hal.Device) -> Iterator[Flow]:
    """A flow over two devices that sends all through the host, in pieces of 1000 bytes."""
    made = Flow(device, second_device, chunk=1000, peers=False)
    yield made
    made.close(LIMIT)


@pytest.fixture
def virtual(bench: Bench) -> Iterator[tuple[VirtualDevice, ...]]:
    """Two virtual devices on the hardware, the second with 1 MiB of memory."""
    opened = virtual_devices(bench.full_spec, 2, memory_limit=[None, 1 << 20])
    yield opened
    left = [device.close(LIMIT) for device in opened]
    assert not any(left)
