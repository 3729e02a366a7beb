"""Submissions: the handle of one operation, and nothing but it."""

import pytest
from core_harness import LIMIT

import hal
from hal.errors import DeadlineExceededError, InvalidArgumentError, SemaphoreFailedError


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_submission_may_stand_in_a_wait_list_more_than_once(device, count):
    """It counts as one wait, also while the waiting operation is in line."""
    gate = hal.create_semaphore()
    first = device.queue.barrier(wait=gate.at(1))
    lists = [[first] * count, [first, *[hal.Fence(first)] * count], [*hal.Fence(first)] * count]
    queue = device.create_queue(ordered=False)
    others = [queue.barrier(wait=each) for each in lists]
    gate.signal(1)
    hal.wait_all(others, LIMIT)
    assert [queue.barrier(wait=each).state for each in lists] == ["done"] * 3


def test_nothing_signals_the_end_of_what_it_waits_for_s1(device):
    """The fence of a submission is on a semaphore that only the submission signals."""
    gate = hal.create_semaphore()
    first = device.queue.barrier(wait=gate.at(1))
    (end,) = hal.Fence(first)
    with pytest.raises(InvalidArgumentError, match="would wait for itself"):
        device.queue.barrier(wait=first, signal=end)
    gate.signal(1)
    first.wait(LIMIT)


def test_done_polls_the_device(device):
    """`done` turns true by itself, with no wait and no other call."""
    buffer = device.allocate(1 << 16)
    for _ in range(50):
        submission = device.queue.fill(buffer, 1)
        while not submission.done:
            pass
        assert submission.state == "done"


def test_a_wait_for_submissions_that_end_soon_makes_no_timepoints(device):
    """`wait_all` asks them, as `wait` does; it names a failure, and what has no end."""
    buffer, gate = device.allocate(256), hal.create_semaphore()
    ended = [device.queue.fill(buffer, 1) for _ in range(3)]
    while not ended[-1].done:  # a wait that takes long makes a timepoint of its own
        pass
    hal.wait_all(ended, 0)
    assert {each.state for each in ended} == {"done"}
    assert {each._private for each in ended} == {None}
    pending = device.create_queue(ordered=False).barrier(wait=gate.at(1))
    with pytest.raises(DeadlineExceededError, match="waited 0 s"):
        hal.wait_all([*ended, pending], 0)
    assert {each._private for each in ended} == {None}
    failed = device.create_queue().barrier(wait=gate.at(2))
    gate.fail(ValueError("planted"))
    with pytest.raises(SemaphoreFailedError, match="planted"):
        hal.wait_all([failed, *ended, pending])
