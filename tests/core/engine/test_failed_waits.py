"""Operations fail with what they wait for, and their signals with them (S4, S5)."""

from __future__ import annotations

import gc
import weakref

import pytest
from core_harness import LIMIT
from failure_harness import assert_broken

import hal
from hal.errors import OperationError


@pytest.mark.parametrize("position", [0, 1, 49, 99])
@pytest.mark.parametrize("when", ["before submission", "after submission"])
def test_one_failed_wait_of_many_fails_the_operation_s5(device, position, when):
    """S5: whichever it is, although the others are never met; nothing stays registered."""
    many = [hal.create_semaphore() for _ in range(100)]
    original = OperationError("one of many")
    if when == "before submission":
        many[position].fail(original)
    submission = device.queue.barrier(wait=[each.at(1) for each in many])
    if when == "after submission":
        many[position].fail(original)
    assert_broken(submission, original)
    reference = weakref.ref(submission)
    del submission
    device.queue.barrier().wait(LIMIT)
    gc.collect()
    assert reference() is None, "the other 99 semaphores keep it"
