"""Submissions: the handle of one operation, and nothing but it."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OperationError,
)


def test_states_of_an_operation_that_ends_well(open_probe, latch):
    """pending, issued, done; each seen without blocking."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    gate = hal.create_semaphore()
    probe.hold(latch)
    submission = device.queue.fill(buffer, 1, wait=gate.at(1))
    assert (submission.state, submission.done, submission.error) == ("pending", False, None)
    gate.signal(1)
    assert (submission.state, submission.done, submission.error) == ("issued", False, None)
    with pytest.raises(DeadlineExceededError):
        submission.wait(0)
    latch.open()
    submission.wait(LIMIT)
    assert (submission.state, submission.done, submission.error) == ("done", True, None)
    submission.wait(0)
    submission.wait()


def test_states_of_a_cancelled_operation(device):
    gate = hal.create_semaphore()
    queue = device.create_queue(name="short")
    submission = queue.barrier(wait=gate.at(1))
    queue.close(LIMIT)
    assert (submission.state, submission.done) == ("cancelled", True)
    assert isinstance(submission.error, CancelledError)
    assert "short" in str(submission.error)
    with pytest.raises(CancelledError):
        submission.wait(LIMIT)
    gate.signal(1)
    assert submission.state == "cancelled", "it ends once (I2)"


@pytest.mark.parametrize("when", ["pending", "issued", "failed", "done"])
def test_a_wait_begun_in_any_state_ends(open_probe, latch, when):
    """The handle's own timeline may be asked for before, in the middle and after."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    gate = hal.create_semaphore()
    probe.hold(latch)
    submission = device.queue.fill(buffer, 1, wait=gate.at(1))
    if when == "failed":
        gate.fail(OperationError("no"))
    elif when != "pending":
        gate.signal(1)
    if when == "done":
        latch.open()
        device.wait_idle(LIMIT)
    follower = device.queues.upload.barrier(wait=submission)
    if when == "pending":
        gate.signal(1)
    latch.open()
    if when == "failed":
        for each in (submission, follower):
            with pytest.raises(OperationError, match="no"):
                each.wait(LIMIT)
    else:
        follower.wait(LIMIT)
        submission.wait(LIMIT)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_submission_may_stand_in_a_wait_list_more_than_once(device, count):
    """It is waited for once, by whatever name; also where it has to stand in line."""
    gate = hal.create_semaphore()
    first = device.queue.barrier(wait=gate.at(1))
    lists = [[first] * count, [first, *[hal.Fence(first)] * count], [*hal.Fence(first)] * count]
    queue = device.create_queue(ordered=False)
    others = [queue.barrier(wait=each) for each in lists]
    gate.signal(1)
    hal.wait_all(others, LIMIT)
    assert [queue.barrier(wait=each).state for each in lists] == ["done"] * 3


def test_nothing_signals_the_end_of_what_it_waits_for_s1(device):
    """A fence of a submission is of a semaphore that the submission alone signals."""
    gate = hal.create_semaphore()
    first = device.queue.barrier(wait=gate.at(1))
    (end,) = hal.Fence(first)
    with pytest.raises(InvalidArgumentError, match="would wait for itself"):
        device.queue.barrier(wait=first, signal=end)
    gate.signal(1)
    first.wait(LIMIT)


def test_dropping_the_handle_changes_nothing(device):
    """The operation runs on, and its end is seen through its signals."""
    buffer = device.upload(np.zeros(4, np.uint8))
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    reference = weakref.ref(device.queue.fill(buffer, 5, wait=gate.at(1), signal=done.at(1)))
    gc.collect()
    gate.signal(1)
    done.wait(1, LIMIT)
    assert buffer.numpy().tolist() == [5, 5, 5, 5]
    device.wait_idle(LIMIT)
    gc.collect()
    assert reference() is None, "nothing keeps an operation that has ended"


def test_many_threads_wait_for_one_submission(open_probe, latch):
    device, probe = open_probe()
    buffer = device.allocate(16)
    probe.hold(latch)
    submission = device.queue.fill(buffer, 1)
    ready = threading.Barrier(9, timeout=LIMIT)

    def wait():
        ready.wait()
        submission.wait(LIMIT)
        return submission.state

    def release():
        ready.wait()
        latch.open()

    assert collect_in_threads([wait] * 8 + [release])[:8] == ["done"] * 8


def test_kind_queue_and_text(device):
    submission = device.queues.upload.barrier()
    assert submission.kind == "barrier"
    assert submission.queue is device.queues.upload
    submission.wait(LIMIT)
    assert "barrier" in repr(submission)
    assert device.queues.upload.name in repr(submission)
    assert "done" in repr(submission)


def test_done_polls_the_device(device):
    """`done` turns true by itself, with no wait and no other call."""
    buffer = device.allocate(1 << 16)
    for _ in range(50):
        submission = device.queue.fill(buffer, 1)
        while not submission.done:
            pass
        assert submission.state == "done"


def test_result_of_a_call_is_not_kept(device):
    """What a host function returns is dropped, and so are its arguments."""

    class Big:
        pass

    given = Big()
    references = [weakref.ref(given)]

    def call(_):
        made = Big()
        references.append(weakref.ref(made))
        return made

    submission = device.queue.call(call, given)
    del given
    submission.wait(LIMIT)
    device.wait_idle(LIMIT)
    device.queue.call(list).wait(LIMIT)
    gc.collect()
    assert [reference() for reference in references] == [None, None]
