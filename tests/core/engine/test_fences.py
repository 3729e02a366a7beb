"""Fences: several points as one (S6)."""

from __future__ import annotations

import pytest
from core_harness import LIMIT, semaphores

import hal
from hal.errors import DeadlineExceededError, OperationError


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


def test_fence_poll_raises_a_failure_s6():
    """S6: "blocking and polling alike", although another entry is not reached."""
    first, second = semaphores(2)
    fence = hal.Fence([first.at(1), second.at(1)])
    assert not fence.poll()
    second.fail(OperationError("broken"))
    with pytest.raises(OperationError):
        fence.poll()
    with pytest.raises(OperationError):
        fence.wait(LIMIT)


def test_fence_keeps_the_highest_value_of_each_semaphore():
    first, second = semaphores(2)
    fence = hal.Fence([first.at(3), second.at(1), first.at(2)])
    assert len(fence) == 2
    assert set(fence) == {first.at(3), second.at(1)}
    first.signal(2)
    second.signal(1)
    assert not fence.poll()
    first.signal(3)
    assert fence.poll()
    fence.wait(0)


def test_fences_join_and_nest(device):
    first, second, third = semaphores(3)
    fence = hal.Fence([first.at(1)]) | hal.Fence([second.at(1)])
    nested = hal.Fence([fence, third.at(1), device.queue.barrier()])
    assert len(nested) == 4
    pending = device.queue.barrier(wait=nested)
    for semaphore in (first, second):
        semaphore.signal(1)
        assert not nested.poll()
        assert pending.state == "pending"
    third.signal(1)
    nested.wait(LIMIT)
    pending.wait(LIMIT)
    with pytest.raises(TypeError):
        _ = fence | [first.at(1)]


def test_fence_fail_fails_every_semaphore():
    first, second = semaphores(2)
    hal.Fence([first.at(1), second.at(1)]).fail(OperationError("all"))
    for semaphore in (first, second):
        with pytest.raises(OperationError, match="all"):
            semaphore.query()
