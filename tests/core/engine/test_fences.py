"""Fences: several points as one (S6)."""

from __future__ import annotations

import pytest
from core_harness import semaphores

import hal
from hal.errors import DeadlineExceededError


def test_wait_any_takes_a_fence_as_a_whole_s6():
    first, second, third = semaphores(3)
    fence = hal.Fence([first.at(1), second.at(1)])
    first.signal(1)
    with pytest.raises(DeadlineExceededError):
        hal.wait_any([fence, third.at(1)], 0.01)
    third.signal(1)
    assert hal.wait_any([fence, third.at(1)], 0) == 1
    second.signal(1)
    assert hal.wait_any([fence, third.at(1)], 0) == 0
