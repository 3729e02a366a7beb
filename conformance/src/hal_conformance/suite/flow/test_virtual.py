"""Virtual devices are isolated from each other."""

import numpy as np
import pytest

from hal.errors import ClosedError, OutOfMemoryError
from hal.flow import Flow, VirtualDevice
from hal_conformance.suite.support import LIMIT, pattern

Pair = tuple[VirtualDevice, VirtualDevice]


def test_held_work_of_one_holds_up_no_other_q3(virtual, make_semaphore):
    """Q3: each virtual device has queues of its own, and knows whether they are idle."""
    first, second = virtual
    gate = make_semaphore()
    buffers = [each.device.allocate(16) for each in virtual]
    first.device.queue.fill(buffers[0], 1, wait=gate.at(1))
    second.device.queue.fill(buffers[1], 1).wait(LIMIT)
    second.wait_idle(LIMIT)
    assert (first.is_idle, second.is_idle) == (False, True)
    gate.signal(1)
    first.wait_idle(LIMIT)
    assert first.is_idle


def test_each_has_a_limit_of_its_own_m1(virtual):
    """M1: a virtual device's memory is counted and limited apart."""
    first, second = virtual
    buffer = first.device.allocate(2 << 20)
    assert second.statistics().bytes_now == 0
    with pytest.raises(OutOfMemoryError):
        second.device.allocate(2 << 20)
    assert first.statistics().bytes_now >= buffer.size


def test_closing_one_leaves_the_other_q6(virtual, make_semaphore):
    """Q6: a closed virtual device takes its own work with it, and no other's."""
    first, second = virtual
    gate = make_semaphore()
    lost = first.device.queue.barrier(wait=gate.at(1))
    buffer = second.device.upload(np.zeros(16, np.uint8))
    kept = second.device.queue.fill(buffer, 3, wait=gate.at(1))
    assert first.close(LIMIT) == ()
    assert (lost.state, kept.state) == ("cancelled", "pending")
    gate.signal(1)
    assert (buffer.numpy(timeout=LIMIT, wait=kept) == 3).all()
    assert (first.closed, second.closed) == (True, False)
    with pytest.raises(ClosedError):
        first.wait_idle(0)


def test_a_flow_runs_over_them_q4(virtual):
    """Q4: tracked buffers move between virtual devices as between others."""
    with Flow(*virtual) as flow:
        here = flow.from_host(pattern(1000))
        there = flow.device_to_device(here, virtual[1])
        assert there.device is virtual[1].device
        assert np.array_equal(there.numpy(timeout=LIMIT), pattern(1000))
