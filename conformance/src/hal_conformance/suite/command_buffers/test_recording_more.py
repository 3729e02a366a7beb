"""One-shot recordings whose execution is refused late (C1)."""

from __future__ import annotations

import numpy as np
import pytest

import hal
from hal.errors import ClosedError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, MakeQueue, MakeSemaphore


@pytest.mark.parametrize("why", ["a used-up value", "a closed queue"])
def test_a_one_shot_outlives_a_refused_submission_c1(
    device: hal.Device, make_queue: MakeQueue, make_semaphore: MakeSemaphore, why: str
) -> None:
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
