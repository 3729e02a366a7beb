"""Allocation in the order of a queue: M3."""

import pytest
from core_harness import LIMIT

import hal
from hal.errors import DeadlineExceededError, InvalidArgumentError

SIZE = 4096


def test_no_address_before_the_issue_m3(opened):
    """M3: the buffer is there at once, its address is not."""
    device, _ = opened
    gate = hal.create_semaphore()
    buffer = device.queue.alloca(SIZE, wait=gate.at(1))
    part = buffer.subspan(16, 16)
    assert "no address yet" in repr(buffer)
    for use in (lambda: buffer.address, lambda: part.address, lambda: buffer.map(wait=())):
        with pytest.raises(InvalidArgumentError, match=r"buffer\.allocation"):
            use()
    with pytest.raises(DeadlineExceededError):
        buffer.map(timeout=0)
    gate.signal(1)
    buffer.map()[:] = 1
    assert buffer.address > 0
    assert part.address == buffer.address + 16
    assert f"{buffer.address:#x}" in repr(buffer)


# dealloca


def test_a_refused_dealloca_changes_nothing_m3(opened):
    """M3: the buffer and its memory stay; a second one that is right gives it back at once."""
    device, _ = opened
    queue, done = device.queue, hal.create_semaphore(5)
    buffer = queue.alloca(SIZE)
    queue.fill(buffer, 7).wait(LIMIT)
    with pytest.raises(InvalidArgumentError):
        queue.dealloca(buffer, signal=done.at(5))
    other = queue.alloca(SIZE)
    queue.fill(other, 1).wait(LIMIT)
    assert (buffer.numpy() == 7).all()
    assert device.statistics().allocations == 2
    queue.dealloca(buffer).wait(LIMIT)
    assert device.statistics().allocations == 1
