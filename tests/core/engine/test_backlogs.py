"""A submission returns at once, whatever it waits for (Q1): backlogs, and what moves them."""

from __future__ import annotations

import threading

import pytest
from core_harness import LIMIT, Stall, collect_in_threads

import hal


@pytest.mark.parametrize("limit", [1, 2])
def test_submit_returns_while_the_stream_is_full_q1(open_probe, latch, limit):
    """Q1: N operations at most are in flight; the rest stand in line and start no native call."""
    device, probe = open_probe(max_in_flight=limit)
    buffer = device.allocate(4)
    probe.hold(latch)
    submissions = [device.queue.fill(buffer, index) for index in range(50)]
    assert probe.calls["fill"] == limit
    assert [each.state for each in submissions] == ["issued"] * limit + ["pending"] * (50 - limit)
    latch.open()
    hal.wait_all(submissions, LIMIT)
    assert probe.calls["fill"] == 50
    assert buffer.numpy().tolist() == [49] * 4


def test_never_more_in_flight_than_allowed_q1(open_probe, latch):
    """Q1: also when several threads submit at the same time."""
    device, probe = open_probe(max_in_flight=3)
    buffer = device.allocate(16)
    probe.hold(latch)
    submissions = []

    def submit():
        submissions.extend(device.queue.fill(buffer, 1) for _ in range(100))

    collect_in_threads([submit] * 4)
    assert probe.calls["fill"] == 3
    latch.open()
    hal.wait_all(submissions, LIMIT)
    assert probe.calls["fill"] == 400


@pytest.mark.parametrize("ordered", [True, False])
def test_backlog_moves_without_anyone_polling_q1(open_probe, ordered):
    """Q1: the progress thread issues the rest, if nobody else retires."""
    device, _ = open_probe(max_in_flight=2)
    queue = device.create_queue(ordered=ordered)
    buffer = device.allocate(4)
    semaphore, told = hal.create_semaphore(), threading.Event()
    semaphore.on_reached(300, lambda _: told.set())
    for value in range(1, 301):
        wait = semaphore.at(value - 1) if not ordered else ()
        queue.fill(buffer, value % 256, wait=wait, signal=semaphore.at(value))
    assert told.wait(LIMIT)
    assert buffer.numpy().tolist() == [300 % 256] * 4


def test_signal_issues_64_operations_itself_at_most_q1(open_probe):
    """Q1: a signal that releases 500 hands the rest over, whatever queues they stand in."""
    device, probe = open_probe()
    buffer, gate = device.allocate(4), hal.create_semaphore()
    queues = [device.create_queue(ordered=bool(index % 2)) for index in range(4)]
    fills = [queues[index % 4].fill(buffer, 1, wait=gate.at(1)) for index in range(500)]
    gate.signal(1)
    assert probe.callers["fill", threading.get_ident()] <= 64
    hal.wait_all(fills, LIMIT)
    assert probe.calls["fill"] == 500


def test_signal_from_many_threads_releases_each_once(open_probe):
    """I2: an operation whose two waits are met at the same time is issued once."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    rounds = 150
    lefts = [hal.create_semaphore() for _ in range(rounds)]
    rights = [hal.create_semaphore() for _ in range(rounds)]
    submissions = [
        device.queues.compute.fill(buffer, 1, wait=[left.at(1), right.at(1)])
        for left, right in zip(lefts, rights, strict=True)
    ]
    together = threading.Barrier(2, timeout=LIMIT)

    def signal(semaphores):
        together.wait()
        for semaphore in semaphores:
            semaphore.signal(1)

    collect_in_threads([lambda: signal(lefts), lambda: signal(rights)])
    hal.wait_all(submissions, LIMIT)
    assert probe.calls["fill"] == rounds


@pytest.mark.parametrize("count", [1, 32, 33, 100, 1000])
@pytest.mark.parametrize("last", ["first", "middle", "end"])
def test_many_waits_q1(device, count, last):
    """Any number of waits; the operation runs when the last one is met, once."""
    semaphores = [hal.create_semaphore() for _ in range(count)]
    runs = []
    pending = device.queue.call(runs.append, 1, wait=[each.at(1) for each in semaphores])
    on_stream = device.queues.upload.barrier(wait=[each.at(1) for each in semaphores])
    final = {"first": 0, "middle": count // 2, "end": count - 1}[last]
    for index, semaphore in enumerate(semaphores):
        if index != final:
            semaphore.signal(1)
    assert (pending.state, on_stream.state) == ("pending", "pending")
    semaphores[final].signal(1)
    pending.wait(LIMIT)
    on_stream.wait(LIMIT)
    assert runs == [1]


def test_threads_that_submit_do_not_wait_for_each_other_q1(open_probe):
    """Q1: a thread that is in the middle of a native call blocks no other submitter."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    stall = Stall()
    probe.fail_call(1, stall, names=("fill",))
    slow = threading.Thread(target=lambda: device.queue.fill(buffer, 1))
    slow.start()
    assert stall.entered.wait(LIMIT)
    same = device.queue.fill(buffer, 2)
    other = device.queues.upload.barrier()
    other.wait(LIMIT)
    assert slow.is_alive()
    assert same.state == "pending", "it stands behind the other thread's"
    stall.leave.set()
    slow.join(LIMIT)
    same.wait(LIMIT)
    assert buffer.numpy().tolist() == [2] * 16
