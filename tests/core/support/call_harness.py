"""Return things from host calls, and wait until calls have been deferred by them."""

from __future__ import annotations

import pytest
from core_harness import wait_until

import hal
from hal.errors import DeadlineExceededError


def text_of(submission):
    """Return what a time-out says that a submission waits for."""
    with pytest.raises(DeadlineExceededError) as caught:
        submission.wait(0)
    return str(caught.value)


def until_deferred(*submissions):
    """Return once the functions of all have returned; their operations have not ended."""
    wait_until(lambda: all("has returned on the host" in text_of(each) for each in submissions))


def returning(value):
    return lambda: value


WAYS = {
    "timepoint": lambda device, gate: gate.at(1),
    "submission": lambda device, gate: device.queues.upload.barrier(wait=gate.at(1)),
    "fence": lambda device, gate: hal.Fence([gate.at(1)]),
    "list": lambda device, gate: [gate.at(1)],
    "tuple": lambda device, gate: (
        gate.at(1),
        device.queues.upload.barrier(wait=gate.at(1)),
        hal.Fence([gate.at(1), hal.create_semaphore(4).at(3)]),
        gate.at(0),
    ),
}
