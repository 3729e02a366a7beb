"""Order: a queue is first-in first-out, unless it is unordered; order inherits no failure (Q2)."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

import hal
from hal.errors import OperationError
from hal_conformance.suite.support import LIMIT, assert_fails, broken, in_threads

pytestmark = pytest.mark.ordering


def test_device_work_runs_in_order_q2(device, queue):
    """Q2: 300 fills of one buffer without waits: the last one stands."""
    buffer = device.allocate(1 << 12, dtype=np.uint32)
    for number in range(300):
        queue.fill(buffer, number)
    queue.wait_idle(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 299).all()


def test_calls_run_in_order_q2(queue):
    """Q2: host calls of an ordered queue run one after another, in order."""
    order = []
    running = threading.Lock()

    def call(number):
        assert running.acquire(blocking=False), "two calls of one ordered queue at once"
        order.append(number)
        running.release()

    calls = [queue.call(call, number) for number in range(100)]
    hal.wait_all(calls, LIMIT)
    assert order == list(range(100))


def test_calls_and_device_work_keep_their_order_q2(device, queue):
    """Q2: fill, read, look at it in a host call, and again, 30 times, without any wait."""
    buffer = device.allocate(256)
    out = np.zeros(256, np.uint8)
    seen = []

    def look():
        assert (out == out[0]).all()
        seen.append(int(out[0]))

    for number in range(1, 31):
        queue.fill(buffer, number)
        queue.read(buffer, out)
        queue.call(look)
    queue.wait_idle(LIMIT)
    assert seen == list(range(1, 31))


def test_an_open_wait_holds_up_what_is_behind_q2(queue, gate, operations, kind):
    """Q2: in an ordered queue nothing passes an operation whose wait is open."""
    first = queue.barrier(wait=gate.at(1))
    behind = operations.submit(kind, queue)
    assert (first.state, behind.state) == ("pending", "pending")
    assert operations.nothing_has_run()
    gate.signal(1)
    behind.wait(LIMIT)
    assert first.state == "done"
    assert operations.has_run(kind)


def test_an_unordered_queue_overtakes_q2(unordered, gate, operations, kind):
    """Q2: in an unordered queue an open wait holds up nobody else."""
    first = unordered.barrier(wait=gate.at(1))
    operations.submit(kind, unordered).wait(LIMIT)
    assert operations.has_run(kind)
    assert first.state == "pending"
    gate.signal(1)
    first.wait(LIMIT)


def test_calls_of_different_queues_overlap_q2(queue, second_queue):
    """Q2: a host call of one queue does not hold up another queue's."""
    together = threading.Barrier(2, timeout=LIMIT)
    hal.wait_all([each.call(together.wait) for each in (queue, second_queue)], LIMIT)


def test_waits_order_an_unordered_queue_q2(device, unordered, semaphore):
    """Q2: what is ordered by waits runs in that order, whatever the order of submission."""
    buffer = device.upload(np.zeros(1 << 12, np.uint8))
    for number in range(50, 0, -1):
        unordered.fill(buffer, number, wait=semaphore.at(number), signal=semaphore.at(number + 1))
    semaphore.signal(1)
    semaphore.wait(51, LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 50).all()


@pytest.mark.parametrize("why", ["failed wait", "failed call"])
def test_order_inherits_no_failure_q2(queue, gate, operations, kind, why):
    """Q2: what stands behind a failed operation of its queue, without waiting for it, runs."""

    def fail():
        raise broken()

    if why == "failed wait":
        first = queue.barrier(wait=gate.at(1))
    else:
        first = queue.call(fail, wait=gate.at(1))
    behind = operations.submit(kind, queue)
    if why == "failed wait":
        gate.fail(broken())
    else:
        gate.signal(1)
    behind.wait(LIMIT)
    assert operations.has_run(kind)
    assert_fails(first, broken())


def test_a_failure_in_the_middle_of_a_full_queue_q2(queue, make_semaphore):
    """Q2: of 30 operations in a queue those fail that waited for the failed, and no others."""
    good, bad = make_semaphore(), make_semaphore()
    submissions = [
        queue.barrier(wait=(bad if number % 3 == 0 else good).at(1)) for number in range(30)
    ]
    bad.fail(broken())
    good.signal(1)
    queue.wait_idle(LIMIT)
    states = ["failed" if number % 3 == 0 else "done" for number in range(30)]
    assert [each.state for each in submissions] == states


def test_a_held_queue_holds_up_no_other_q2(device, queue, second_queue, make_latch):
    """Q2: queues are ordered by waits alone; one that is held does not hold another."""
    latch = make_latch(queue)
    latch.wait_running()
    buffer = device.allocate(64)
    second_queue.fill(buffer, 3).wait(LIMIT)
    assert not latch.submission.done
    latch.open()


def test_both_kinds_of_queue_say_what_they_are_q2(queue, unordered):
    """Q2: `ordered` tells what a queue was created as."""
    assert queue.ordered
    assert not unordered.ordered


def test_threads_keep_the_order_of_their_own_calls_q2(queue):
    """Q2: four threads submit host calls to one ordered queue; each one's come in its order."""
    seen: list[tuple[int, int]] = []

    def submit(thread):
        for number in range(25):
            queue.call(seen.append, (thread, number))

    in_threads([partial(submit, thread) for thread in range(4)])
    queue.wait_idle(LIMIT)
    for thread in range(4):
        assert [number for owner, number in seen if owner == thread] == list(range(25))


def test_a_failure_on_issue_lets_the_next_run_q2(queue, semaphore, gate):
    """Q2: an operation whose signal was overtaken fails at its issue, and the next one runs."""
    first = queue.barrier(wait=gate.at(1), signal=semaphore.at(1))
    second = queue.barrier()
    semaphore.signal(5)
    gate.signal(1)
    second.wait(LIMIT)
    assert first.state == "failed"
    assert not isinstance(first.error, OperationError)
