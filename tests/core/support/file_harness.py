"""Help tests of files: bytes to move, and how operations have failed."""

import random

import pytest
from core_harness import LIMIT

from hal.errors import OperationError


def random_bytes(count, seed=0):
    return random.Random(seed).randbytes(count)


def failure_of(submission, signal=None):
    """Return what a submission fails with; its signal must fail the same way."""
    with pytest.raises(OperationError) as caught:
        submission.wait(LIMIT)
    if signal is not None:
        with pytest.raises(OperationError):
            signal.semaphore.wait(signal.value, LIMIT)
    return caught.value


def cause_of(error):
    """Return the operating system's own error behind one of ours."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error
