"""Fixtures: devices that are short of memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hal
from hal_conformance.bench import Bench
from hal_conformance.suite.memory.scarcity import POOLS, ROOM, MakeHold, of_the_driver
from hal_conformance.suite.support import Hold, OpenDevice


@pytest.fixture(params=POOLS)
def scarce(request: pytest.FixtureRequest, open_device: OpenDevice) -> hal.Device:
    """A device with `ROOM` bytes, for each of `POOLS`."""
    device = open_device(memory_limit=ROOM, **POOLS[request.param])
    if request.param != "own" and "async_allocations" in device.features:
        of_the_driver.add(device)
    return device


@pytest.fixture
def make_hold(bench: Bench, scarce: hal.Device) -> Iterator[MakeHold]:
    """Kernels that hold up a queue of `scarce`; for tests with the feature ``kernels``."""
    program = bench.program(scarce)
    made: list[Hold] = []

    def make(queue: hal.Queue) -> Hold:
        made.append(Hold(scarce, program, queue))
        return made[-1]

    yield make
    for hold in made:
        hold.close()
