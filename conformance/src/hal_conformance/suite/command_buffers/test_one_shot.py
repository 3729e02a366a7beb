"""One-shot recordings: executed once, and not used up by an execution that is refused (C1)."""

import numpy as np
import pytest

from hal.errors import ClosedError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, in_threads


def test_one_shot_runs_once_c1(device, queue):
    """C1: a second execution raises `ClosedError`, and does nothing."""
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record(one_shot=True) as recording:
        recording.fill(buffer, 5)
    queue.execute(recording).wait(LIMIT)
    queue.fill(buffer, 0).wait(LIMIT)
    with pytest.raises(ClosedError):
        queue.execute(recording)
    assert not buffer.numpy(timeout=LIMIT).any()


def test_a_refused_execution_does_not_use_up_a_one_shot_c1(device, queue, semaphore):
    """C1: an execution that raised leaves the recording to be executed."""
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record(one_shot=True, slots=1) as recording:
        recording.fill(recording.slots[0], 5, size=64)
    with pytest.raises(InvalidArgumentError):
        queue.execute(recording)
    with pytest.raises(InvalidArgumentError):
        # S1: it would wait for what only it brings about
        queue.execute(recording, bindings=[buffer], wait=semaphore.at(2), signal=semaphore.at(1))
    queue.execute(recording, bindings=[buffer]).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 5).all()


@pytest.mark.parametrize("why", ["a used-up value", "a closed queue"])
def test_a_one_shot_outlives_a_refused_submission_c1(device, make_queue, make_semaphore, why):
    """C1: a signal that cannot be promised, or a closed queue, leaves a one-shot to be executed."""
    buffer, semaphore = device.upload(np.zeros(64, np.uint8)), make_semaphore(5)
    queue, other = make_queue(), make_queue()
    with device.record(one_shot=True) as recording:
        recording.fill(buffer, 5)
    if why == "a closed queue":
        other.close(LIMIT)
        with pytest.raises(ClosedError):
            other.execute(recording)
    else:
        with pytest.raises(InvalidArgumentError):
            other.execute(recording, signal=semaphore.at(5))
    queue.execute(recording).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 5).all()
    with pytest.raises(ClosedError):
        queue.execute(recording)


def test_one_of_many_threads_gets_a_one_shot_c1(device, make_queue):
    """C1: of eight threads that execute it at once, exactly one does."""
    buffer = device.upload(np.zeros(64, np.uint8))
    queues = [make_queue() for _ in range(2)]
    for _ in range(10):
        with device.record(one_shot=True) as recording:
            recording.fill(buffer, 5)

        def execute(number, recording=recording):
            try:
                queues[number % 2].execute(recording).wait(LIMIT)
            except ClosedError:
                return False
            return True

        won = in_threads([lambda number=number: execute(number) for number in range(8)])  # type: ignore[misc]
        assert sum(won) == 1
