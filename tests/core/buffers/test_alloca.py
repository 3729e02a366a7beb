"""Allocation in the order of a queue: M3."""

import gc
import weakref

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


def test_what_has_ended_is_not_kept_by_memory_m3(opened):
    """M3, Q6: memory that goes on keeps no closed queue, and counts no recording that is gone."""
    device, _ = opened
    queues = []
    for _ in range(40):
        with device.create_queue() as queue:
            device.queue.barrier(wait=[queue.dealloca(queue.alloca(SIZE))]).wait(LIMIT)
        queues.append(weakref.ref(queue))
    buffer = device.queue.alloca(SIZE)
    buffer.allocation.wait(LIMIT)
    for _ in range(20):
        with device.record() as commands:
            commands.fill(buffer, 1)
    with pytest.raises(InvalidArgumentError, match="a recording that uses the buffer directly"):
        device.queue.dealloca(buffer)
    del queue
    gc.collect()
    assert len(buffer._storage.recordings) <= 2
    assert sum(each() is not None for each in queues) <= 12
    assert len(device.queue._seen) <= 2
    del commands
    gc.collect()
    device.queue.dealloca(buffer).wait(LIMIT)
