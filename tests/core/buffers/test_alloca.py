"""Allocation in the order of a queue: M3."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from core_harness import LIMIT, Latch, wait_until

import hal
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
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


def test_every_operation_may_be_submitted_before_m3(opened):
    """M3: addresses are put in when operations are issued, behind the alloca's issue."""
    device, _ = opened
    gate = hal.create_semaphore()
    queue, other = device.queue, device.upload(np.arange(SIZE, dtype=np.uint8))
    data = np.full(1 << 17, 3, np.uint8)
    one = queue.alloca(1 << 17, wait=gate.at(1))
    two = queue.alloca(1 << 17)
    outs = [np.zeros(size, np.uint8) for size in (1 << 17, 16, 8)]
    queue.write(one, data)
    queue.fill(one, 9, offset=5, size=2)
    queue.update(one, b"abc", offset=10)
    queue.copy(one, two)
    queue.copy(other, two.subspan(100, 50), source_offset=7, size=20, target_offset=3)
    queue.read(two, outs[0])
    queue.read(one.subspan(0, 16), outs[1])
    queue.copy(two, other, source_offset=100, size=8)
    queue.read(other, outs[2])
    queue.dealloca(one)
    last = queue.dealloca(two)
    assert last.state == "pending"
    gate.signal(1)
    last.wait(LIMIT)
    expected = data.copy()
    expected[5:7] = 9
    expected[10:13] = list(b"abc")
    assert (outs[1] == expected[:16]).all()
    expected[103:123] = np.arange(7, 27)
    assert (outs[0] == expected).all()
    assert outs[2].tolist() == [3, 3, 3, 7, 8, 9, 10, 11]


# dealloca


def test_after_dealloca_it_is_unusable_m3(opened):
    """M3: the buffer and its parts are refused at once, even while the dealloca is pending."""
    device, _ = opened
    gate = hal.create_semaphore()
    queue, other = device.queue, device.allocate(SIZE)
    buffer = queue.alloca(SIZE)
    parts = [buffer.subspan(0, 8), buffer.subspan(8, 64).subspan(8, 8)]
    ended = queue.dealloca(buffer, wait=gate.at(1))
    assert ended.kind == "dealloca"
    assert ended.state == "pending"
    for each in (buffer, *parts):
        assert each.closed
        for use in (
            lambda each=each: queue.fill(each, 1),
            lambda each=each: queue.copy(other, each, size=1),
            lambda each=each: queue.write(each, b"1"),
            lambda each=each: queue.dealloca(each),
            lambda each=each: each.address,
            each.numpy,
            each.map,
            lambda each=each: each.subspan(0, 1),
        ):
            with pytest.raises(ClosedError, match="dealloca"):
                use()
    buffer.close()
    gate.signal(1)
    ended.wait(LIMIT)


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


def test_a_view_outlives_dealloca_m2(opened):
    """M2: a numpy view keeps the memory."""
    device, _ = opened
    buffer = device.queue.alloca(SIZE, memory="host")
    device.queue.fill(buffer, 6).wait(LIMIT)
    view = buffer.map()
    device.queue.dealloca(buffer).wait(LIMIT)
    others = [device.allocate(SIZE, memory="host") for _ in range(2)]
    for other in others:
        device.queue.fill(other, 1).wait(LIMIT)
    assert (view == 6).all()
    del view
    gc.collect()
    assert device.statistics().allocations == 2


def test_what_dealloca_refuses_m3(device, second_device):
    buffer = device.queue.alloca(SIZE)
    part = buffer.subspan(0, 8)
    semaphore = hal.create_semaphore(5)
    for use, error, words in (
        (lambda: device.queue.dealloca(device.allocate(8)), InvalidArgumentError, r"close\(\)"),
        (lambda: device.queue.dealloca(part), InvalidArgumentError, "part"),
        (lambda: device.queue.dealloca(None), ArgumentTypeError, "NoneType"),
        (lambda: second_device.queue.dealloca(buffer), InvalidArgumentError, "belongs to"),
        (lambda: device.queue.dealloca(buffer, wait=[5]), ArgumentTypeError, "wait"),
        (lambda: device.queue.dealloca(buffer, signal=semaphore.at(3)), InvalidArgumentError, "5"),
    ):
        with pytest.raises(error, match=words):
            use()
        assert not buffer.closed, "nothing has changed"
    device.queue.dealloca(buffer).wait(LIMIT)


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
