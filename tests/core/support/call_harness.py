"""Return things from host calls, and wait until calls have been deferred by them."""

from __future__ import annotations

import threading
import time

import pytest
from core_harness import LIMIT

import hal
from hal.errors import DeadlineExceededError


def text_of(submission):
    """Return what a time-out says that a submission waits for."""
    with pytest.raises(DeadlineExceededError) as caught:
        submission.wait(0)
    return str(caught.value)


def until_deferred(*submissions):
    """Return once the functions of all have returned; their operations have not ended."""
    deadline = time.monotonic() + LIMIT
    pause = threading.Event()
    for submission in submissions:
        while "has returned on the host" not in text_of(submission):
            assert time.monotonic() < deadline, text_of(submission)
            pause.wait(0.001)


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
