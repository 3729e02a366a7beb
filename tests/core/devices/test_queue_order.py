"""The queues that a device has, and in which order they run operations (Q2, Q3)."""

from __future__ import annotations

import threading

import pytest
from core_harness import LIMIT

import hal
from hal.errors import DeviceLostError


@pytest.mark.parametrize("held", ["compute", "upload", "download"])
def test_queues_have_streams_of_their_own_q3(open_probe, latch, held):
    """Q3: one queue that is held up holds up no other."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    probe.hold(latch)
    blocked = getattr(device.queues, held).fill(buffer, 1, size=4)
    for name in ("compute", "upload", "download"):
        if name != held:
            getattr(device.queues, name).fill(buffer, 1, offset=4, size=4).wait(LIMIT)
    device.create_queue().fill(buffer, 1, offset=8, size=4).wait(LIMIT)
    assert not blocked.done
    latch.open()
    blocked.wait(LIMIT)


# In which order operations run


def test_callbacks_of_one_queue_come_in_order_q2(device):
    """Q2: 100 submissions end in the order of submission."""
    ended, told = [], threading.Event()
    for index in range(100):
        semaphore = hal.create_semaphore()
        semaphore.on_reached(1, lambda _, index=index: ended.append(index))
        device.queue.barrier(signal=semaphore.at(1))
    semaphore.on_reached(1, lambda _: told.set())
    assert told.wait(LIMIT)
    assert ended == list(range(100))


def test_what_enqueues_nothing_ends_with_what_is_before_it_q2(open_probe, latch):
    """Q2: behind work, a barrier makes no native call; whoever waits for it waits for that work."""
    device, probe = open_probe()
    buffer, done = device.allocate(4), hal.create_semaphore()
    probe.hold(latch)
    device.queue.fill(buffer, 1)
    calls = probe.calls.copy()
    barriers = [device.queue.barrier(signal=done.at(value)) for value in (1, 2)]
    assert probe.calls == calls
    after = device.queues.upload.fill(buffer, 2, wait=done.at(1))
    assert [each.state for each in (*barriers, after)] == ["issued"] * 3
    assert done.query() == 0
    latch.open()
    after.wait(LIMIT)
    assert done.query() == 2
    assert buffer.numpy(timeout=LIMIT).tolist() == [2] * 4
    device.wait_idle(LIMIT)
    assert device._context.events.is_idle()


def test_what_enqueues_nothing_waits_on_its_stream_q2(open_probe, latch):
    """Q2: a barrier that waits for another queue ends after that, not with what is before it."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    device.queue.fill(buffer, 1)
    probe.hold(latch)
    other = device.queues.upload.fill(buffer, 2)
    barrier = device.queue.barrier(wait=other)
    device.queue.fill(buffer, 3)
    assert barrier.state == "issued"
    latch.open()
    barrier.wait(LIMIT)
    assert other.state == "done"
    device.wait_idle(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [3] * 4


@pytest.mark.parametrize("lost", [False, True])
def test_what_enqueues_nothing_fails_with_its_device_s5(open_probe, latch, lost):
    """S5: a lost device fails a barrier behind its work; an operation that failed does not."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    probe.hold(latch)
    device.queue.fill(buffer, 1)
    if lost:
        probe.fail_event(DeviceLostError("gone"))
    else:
        probe.fail_call(1, names={"fill"})
    device.queue.fill(buffer, 2)
    barrier = device.queue.barrier()
    latch.open()
    if lost:
        with pytest.raises(DeviceLostError):
            barrier.wait(LIMIT)
    else:
        barrier.wait(LIMIT)


def test_an_ordered_queue_needs_only_that_the_previous_was_issued_q2(open_probe, latch):
    """Q2: a host that waits for the second of two does not need the first's semaphore."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    probe.hold(latch)
    first = device.queue.fill(buffer, 1)
    second = device.queue.fill(buffer, 2)
    assert (first.state, second.state) == ("issued", "issued")
    latch.open()
    second.wait(LIMIT)
    assert first.state == "done", "in stream order"


def test_an_unordered_queue_with_everything_pending_closes_cleanly(device):
    queue = device.create_queue(ordered=False)
    gate = hal.create_semaphore()
    submissions = [queue.barrier(wait=gate.at(index)) for index in range(1, 20)]
    assert queue.close(LIMIT) == ()
    assert {each.state for each in submissions} == {"cancelled"}
