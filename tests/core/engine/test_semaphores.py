"""Timeline semaphores, from the host: S1, S2, S3, S6, S7."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import DeadlineExceededError, InvalidArgumentError, OperationError


@pytest.mark.parametrize("value", [0, 4, 5])
def test_signal_not_above_the_value_changes_nothing_s1(value):
    semaphore = hal.create_semaphore(5, name="render")
    with pytest.raises(InvalidArgumentError) as caught:
        semaphore.signal(value)
    text = str(caught.value)
    assert "render" in text
    assert str(value) in text
    assert "signal 6 or more" in text
    assert semaphore.query() == 5
    semaphore.signal(6)
    assert semaphore.query() == 6


def test_signal_below_a_reserved_value_changes_nothing_s1(open_probe, latch):
    """S1: an issued operation has reserved its value; a host may go above it only."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    running = device.queue.fill(buffer, 1, signal=semaphore.at(5))
    for value in (1, 4, 5):
        with pytest.raises(InvalidArgumentError, match="5 is the highest value"):
            semaphore.signal(value)
    assert semaphore.query() == 0
    assert not running.done
    semaphore.signal(6)  # above: allowed, and reached at once
    assert semaphore.query() == 6
    latch.open()
    running.wait(LIMIT)
    assert semaphore.query() == 6, "retirement only takes the maximum"


def test_an_operation_waits_for_less_than_it_signals_s1(device):
    """S1: waiting for s@a and signalling s@b needs b > a."""
    semaphore = hal.create_semaphore(0, name="self")
    for value in (1, 2):
        with pytest.raises(InvalidArgumentError, match="self@2"):
            device.queue.barrier(wait=semaphore.at(2), signal=semaphore.at(value))
    done = device.queue.barrier(wait=semaphore.at(2), signal=semaphore.at(3))
    semaphore.signal(2)
    done.wait(LIMIT)
    assert semaphore.query() == 3


@pytest.mark.parametrize("first", ["low", "high"])
def test_retirement_takes_the_maximum_s1(open_probe, latch, first):
    """S1: two queues bring 1 and 2 in either order; the value never falls."""
    device, probe = open_probe()
    low, high = device.queues.upload, device.queues.compute
    buffer = device.allocate(16)
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    if first == "high":  # 1 is held up, 2 is done first
        held = low.fill(buffer, 1, size=8, signal=semaphore.at(1))
        free = high.fill(buffer, 1, offset=8, signal=semaphore.at(2))
        free.wait(LIMIT)
        assert semaphore.query() == 2
        semaphore.wait(1, 0)
    else:
        other = hal.create_semaphore()
        free = low.fill(buffer, 1, size=8, signal=other.at(1))  # takes the latch
        held = high.fill(buffer, 1, offset=8, signal=semaphore.at(2))
        held.wait(LIMIT)
        held = free
    latch.open()
    held.wait(LIMIT)
    assert semaphore.query() == 2
    assert held.state == "done", "retirement never fails a signal"


def test_poll_and_query_never_block_s6(open_probe, latch):
    """S6: while the work is held up both return at once, with what is."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    device.queue.fill(buffer, 1, signal=semaphore.at(1))
    assert semaphore.query() == 0
    assert not semaphore.poll(1)
    assert semaphore.poll(0)
    latch.open()
    device.wait_idle(LIMIT)
    assert semaphore.poll(1)


def test_value_seen_means_that_other_queues_work_is_done_s7(open_probe, latch):
    """S7: B waits for A on another queue; B's value is not seen while A is held up."""
    device, probe = open_probe()
    left, right = device.allocate(16), device.allocate(16)
    first, second = hal.create_semaphore(), hal.create_semaphore()
    probe.hold(latch)
    device.queues.upload.fill(left, 1, signal=first.at(1))
    device.queues.compute.fill(right, 1, wait=first.at(1), signal=second.at(1))
    assert second.query() == 0
    assert not second.poll(1)
    with pytest.raises(DeadlineExceededError):
        second.wait(1, 0.01)
    latch.open()
    second.wait(1, LIMIT)
    assert first.query() == 1


def test_value_never_falls_for_concurrent_pollers_s7(device):
    """S1, S7: threads that poll throughout see a value that only rises and no value unsignalled."""
    semaphore = hal.create_semaphore()
    last = 300
    queues = (device.queues.compute, device.queues.upload, device.queues.download)

    def poll():
        seen = [0]
        while seen[-1] < last:
            value = semaphore.query()
            if value != seen[-1]:
                seen.append(value)
        return seen

    def submit():
        for value in range(1, last + 1):
            queues[value % 3].barrier(signal=semaphore.at(value))

    *seen, _ = collect_in_threads([poll, poll, submit])
    for values in seen:
        assert values == sorted(values)


def test_names_and_texts():
    """A name given is kept; others get one that is never used again."""
    assert hal.create_semaphore(name="mine").name == "mine"
    one, two = hal.create_semaphore(), hal.create_semaphore()
    assert one.name != two.name
    assert one.name == one.name
    assert one.name in repr(one)
    assert repr(hal.create_semaphore(3, name="a").at(4)) == "a@4"
    failed = hal.create_semaphore()
    failed.fail(OperationError("broken"))
    assert "broken" in repr(failed)


def test_timepoint_is_a_pair():
    semaphore = hal.create_semaphore()
    timepoint = semaphore.at(np.int64(3))
    assert timepoint == hal.Timepoint(semaphore, 3)
    assert timepoint.semaphore is semaphore
    assert type(timepoint.value) is int


def test_unused_semaphores_are_collected():
    """A semaphore that nobody refers to is gone at once: no registry keeps it."""
    semaphore = hal.create_semaphore()
    semaphore.signal(1)
    reference = weakref.ref(semaphore)
    del semaphore
    assert reference() is None


def test_semaphore_dropped_while_waited_for(device):
    """The last reference goes while an operation signals it and one waits: nothing breaks."""
    gate, dropped = hal.create_semaphore(), hal.create_semaphore()
    device.queues.upload.barrier(wait=gate.at(1), signal=dropped.at(1))
    last = device.queues.compute.barrier(wait=dropped.at(1))
    reference = weakref.ref(dropped)
    del dropped
    gc.collect()
    gate.signal(1)
    last.wait(LIMIT)
    device.wait_idle(LIMIT)
    del last
    gc.collect()
    assert reference() is None
