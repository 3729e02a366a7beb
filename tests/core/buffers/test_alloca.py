"""Allocation in the order of a queue: M3."""

from __future__ import annotations

import pytest
from core_harness import LIMIT, Latch, wait_until

import hal
from hal.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
)

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


@pytest.mark.parametrize("hold", ["wait", "work", "pending work"])
def test_the_memory_returns_when_nobody_holds_it_m3(opened, hold):
    """M3: memory returns only after the dealloca's waits are met and earlier work has retired."""
    device, probe = opened
    gate, latch = hal.create_semaphore(), Latch()
    buffer = device.queue.alloca(SIZE)
    part = buffer.subspan(0, 8)
    buffer.allocation.wait(LIMIT)
    if hold == "work":
        probe.hold(latch)
        device.queues.upload.fill(buffer, 1)
    elif hold == "pending work":
        device.queues.upload.fill(buffer, 1, wait=gate.at(1))
    ended = device.queue.dealloca(buffer, wait=gate.at(1) if hold == "wait" else ())
    if hold != "wait":
        ended.wait(LIMIT)
    assert device.statistics().allocations == 1
    gate.signal(1)
    latch.open()
    device.wait_idle(LIMIT)
    wait_until(lambda: device.statistics().allocations == 0)
    assert part.closed
    assert buffer.closed, "although buffer objects still live"


def test_memory_goes_round_m3(opened, async_mode):
    """M3: the next alloca gets what was given back; a loop makes no more native allocations."""
    device, probe = opened
    queue = device.queue
    for step in range(20):
        buffer = queue.alloca(SIZE)
        queue.fill(buffer, step)
        queue.dealloca(buffer).wait(LIMIT)
        del buffer
        device.trim(1 << 40)
    name = {"emulated": "allocate", "native": "allocate_async"}[async_mode]
    if async_mode == "emulated":
        assert probe.calls[name] == 1
    else:
        assert probe.calls[name] == probe.calls["free_async"] == 20
        assert probe.calls["allocate"] == 0


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
