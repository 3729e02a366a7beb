"""Timeline semaphores, from the host: S1, S2, S3, S6, S7."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import CancelledError, DeadlineExceededError, InvalidArgumentError, OperationError

TOP = 2**63 - 1


@pytest.mark.parametrize("initial", [0, 1, 2**31, 2**32, TOP])
def test_initial_value_s1(initial):
    """S1: a fresh value is the one given, and reached for hosts at once."""
    semaphore = hal.create_semaphore(initial)
    assert semaphore.query() == initial
    assert semaphore.poll(initial)
    semaphore.wait(initial, 0)
    semaphore.wait(0, 0)


def test_default_is_zero_s1():
    assert hal.create_semaphore().query() == 0


def test_initial_value_is_reached_for_queues_s1(device):
    """S1, S2: a queue's wait for the initial value does not hold anything up."""
    semaphore = hal.create_semaphore(7)
    device.queue.barrier(wait=semaphore.at(7)).wait(LIMIT)


def test_signals_may_leave_gaps_s1():
    """S1: 2, 3, 40; the query follows, and never runs ahead."""
    semaphore = hal.create_semaphore(0)
    for value in (2, 3, 40, 2**40, TOP):
        semaphore.signal(value)
        assert semaphore.query() == value
        assert semaphore.poll(value)
        if value < TOP:
            assert not semaphore.poll(value + 1)


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


def test_host_signal_overtakes_a_pending_operation_s1(device):
    """S1: a pending operation has reserved nothing; when its value is too low it must not run."""
    gate, semaphore = hal.create_semaphore(), hal.create_semaphore()
    buffer = device.upload(np.zeros(4, np.uint8))
    pending = device.queue.fill(buffer, 9, wait=gate.at(1), signal=semaphore.at(5))
    semaphore.signal(5)
    gate.signal(1)
    with pytest.raises(InvalidArgumentError, match="signal 6 or more"):
        pending.wait(LIMIT)
    assert pending.state == "failed"
    assert buffer.numpy().tolist() == [0, 0, 0, 0], "it failed without running"
    with pytest.raises(InvalidArgumentError):
        semaphore.query()


def test_all_signals_of_an_operation_are_reserved_together_s1(device):
    """S1: if one of an operation's signals cannot be, none is reserved and none is raised."""
    gate, one, two = (hal.create_semaphore() for _ in range(3))
    pending = device.queue.barrier(wait=gate.at(1), signal=[one.at(5), two.at(5)])
    two.signal(8)
    gate.signal(1)
    with pytest.raises(InvalidArgumentError):
        pending.wait(LIMIT)
    for semaphore in (one, two):
        with pytest.raises(InvalidArgumentError):
            semaphore.query()


def test_refused_submission_reserves_nothing_s1(device):
    """S1: what raises at submission has changed neither semaphore."""
    one, two = hal.create_semaphore(0), hal.create_semaphore(3)
    with pytest.raises(InvalidArgumentError):
        device.queue.barrier(signal=[one.at(9), two.at(3)])
    one.signal(1)
    two.signal(4)
    assert (one.query(), two.query()) == (1, 4)


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


def test_overshoot_satisfies_s2(device):
    """S2: waiting for 3 ends when 10 is signalled, for host and queue."""
    semaphore = hal.create_semaphore()
    pending = device.queue.barrier(wait=semaphore.at(3))
    waiter = threading.Thread(target=semaphore.wait, args=(3, LIMIT))
    waiter.start()
    semaphore.signal(10)
    waiter.join(LIMIT)
    assert not waiter.is_alive()
    pending.wait(LIMIT)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_queue_waits_for_a_smaller_value_s2(device, after):
    semaphore = hal.create_semaphore()
    if after:
        semaphore.signal(5)
    pending = device.queue.barrier(wait=semaphore.at(2))
    if not after:
        semaphore.signal(5)
    pending.wait(LIMIT)


def test_four_directions_s2(device):
    """S2: host to host, host to queue, queue to host and queue to queue on one semaphore."""
    semaphore = hal.create_semaphore()
    queue, other = device.queues.compute, device.queues.upload
    queue.barrier(wait=semaphore.at(1), signal=semaphore.at(2))
    other.barrier(wait=semaphore.at(2), signal=semaphore.at(3))
    assert semaphore.query() == 0
    semaphore.signal(1)
    semaphore.wait(3, LIMIT)
    semaphore.signal(4)
    semaphore.wait(4, 0)


def test_semaphore_outlives_its_devices_s3():
    """S3: a value set by a device that is closed stays, and another device waits for it."""
    semaphore = hal.create_semaphore()
    with hal.create_device("cpu") as first:
        first.queue.barrier(signal=semaphore.at(1)).wait(LIMIT)
    assert semaphore.query() == 1
    with hal.create_device("cpu") as second:
        second.queue.barrier(wait=semaphore.at(1), signal=semaphore.at(2)).wait(LIMIT)
    assert semaphore.query() == 2
    semaphore.signal(3)


def test_device_makes_the_same_semaphores_s3(device, second_device):
    """S3: `device.create_semaphore` ties nothing to the device."""
    semaphore = device.create_semaphore(4, name="shared")
    assert type(semaphore) is type(hal.create_semaphore())
    assert (semaphore.name, semaphore.query()) == ("shared", 4)
    second_device.queue.barrier(signal=semaphore.at(5)).wait(LIMIT)


def test_queue_of_a_closed_device_leaves_its_pending_signal_failed_s3(device):
    """S3, Q6: what a closed device had promised fails; the semaphore itself goes on telling why."""
    gate, semaphore = hal.create_semaphore(), hal.create_semaphore()
    with hal.create_device("cpu") as first:
        first.queue.barrier(wait=gate.at(1), signal=semaphore.at(1))
    with pytest.raises(CancelledError):
        semaphore.wait(1, LIMIT)
    follower = device.queue.barrier(wait=semaphore.at(1))
    with pytest.raises(CancelledError):
        follower.wait(LIMIT)


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


def test_query_means_that_the_work_has_retired_s7(device):
    """S7: as soon as a poller sees the value, the memory holds what the work wrote."""
    semaphore = hal.create_semaphore()
    source = device.allocate(1 << 16)
    target = device.allocate(1 << 16, memory="host")
    view = target.map()
    for round_ in range(1, 101):
        device.queue.fill(source, round_ % 251)
        device.queue.copy(source, target, signal=semaphore.at(round_))
        while not semaphore.poll(round_):
            pass
        assert semaphore.query() == round_
        assert view[0] == view[-1] == round_ % 251
        assert (view == round_ % 251).all()


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


def test_ping_pong_between_threads_s2():
    """S2: two threads alternate over two semaphores."""
    ping, pong = hal.create_semaphore(), hal.create_semaphore()
    rounds = 300

    def one():
        for value in range(1, rounds + 1):
            ping.signal(value)
            pong.wait(value, LIMIT)

    def two():
        for value in range(1, rounds + 1):
            ping.wait(value, LIMIT)
            pong.signal(value)

    collect_in_threads([one, two])
    assert (ping.query(), pong.query()) == (rounds, rounds)


def test_only_one_of_many_signallers_wins_s1():
    """S1: 8 threads signal the same values; each value is accepted exactly once."""
    semaphore = hal.create_semaphore()
    values = range(1, 101)
    together = threading.Barrier(8, timeout=LIMIT)

    def signal():
        won = []
        together.wait()
        for value in values:
            try:
                semaphore.signal(value)
                won.append(value)
            except InvalidArgumentError:
                pass
        return won

    won = list(itertools.chain.from_iterable(collect_in_threads([signal] * 8)))
    assert len(won) == len(set(won))
    assert semaphore.query() == 100


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
