"""Return things from host calls, and wait until calls have been deferred by them."""

import pytest
from core_harness import wait_until

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
