"""What an alloca that finds no memory holds up, and what lets it go on (M3)."""

import gc

import numpy as np
import pytest

import hal
from hal.errors import CancelledError, OperationError
from hal_conformance.suite.memory.scarcity import BIG, allocation, cycle, give_back_behind
from hal_conformance.suite.support import LIMIT, broken

kernels = pytest.mark.feature("kernels")

HALF = 3 << 19
"""Bytes of which there is room for two."""


@kernels
def test_it_holds_up_its_queue_until_memory_is_back_m3(scarce, make_queue, make_hold):
    """M3: it stands in its place, what follows it stands behind, and nothing else waits."""
    target = scarce.upload(np.zeros(64, np.uint8))
    other, third = make_queue(device=scarce), make_queue(device=scarce)
    hold = give_back_behind(make_hold, scarce.queue, BIG)
    buffer = other.alloca(BIG)
    filled, behind = other.fill(buffer, 5), other.fill(target, 6)
    hal.wait_all([*cycle(third, 4096), third.fill(target, 4)], LIMIT)
    assert [each.state for each in (allocation(buffer), filled, behind)] == ["pending"] * 3
    assert (target.numpy(wait=(), timeout=LIMIT) == 4).all()
    hold.open()
    assert hold.has_seen()
    behind.wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 5).all()
    assert (target.numpy(timeout=LIMIT) == 6).all()


@kernels
@pytest.mark.parametrize("how", ["close", "drop", "dealloca", "view", "failed dealloca", "cancel"])
def test_what_comes_back_first_is_taken_m3(scarce, make_queue, make_semaphore, make_hold, how):
    """M3: a starved alloca is issued as soon as anybody gives enough back, in whatever way."""
    other, third, gate = make_queue(device=scarce), make_queue(device=scarce), make_semaphore()
    # Of one kind and size: a driver's own free may wait for the kernel.
    memory = "host" if how == "view" else "device"
    hold = give_back_behind(make_hold, scarce.queue, HALF, memory)
    held = [third.alloca(HALF, memory=memory)]
    third.fill(held[0], 1).wait(LIMIT)
    view = held[0].map(wait=()) if how == "view" else None
    if how == "view":
        third.dealloca(held.pop()).wait(LIMIT)
    elif how in {"failed dealloca", "cancel"}:
        ended = third.dealloca(held.pop(), wait=gate.at(1))
    buffer = other.alloca(HALF, memory=memory)
    filled = other.fill(buffer, 5)
    assert allocation(buffer).state == "pending"
    if how == "close":
        held[0].close()
    elif how == "drop":
        held.clear()
    elif how == "dealloca":
        third.dealloca(held.pop())
    elif how == "view":
        del view
    elif how == "failed dealloca":
        gate.fail(broken())
        with pytest.raises(OperationError):
            ended.wait(LIMIT)
    else:
        assert third.close(LIMIT) == ()
        with pytest.raises(CancelledError):
            ended.wait(LIMIT)
    gc.collect()
    filled.wait(LIMIT)
    assert not hold.submission.done
    hold.open()
    assert hold.has_seen()
    assert (buffer.numpy(timeout=LIMIT) == 5).all()


@kernels
def test_a_starved_alloca_in_an_unordered_queue_holds_up_nobody_m3(scarce, make_queue, make_hold):
    """M3: what comes after it there does not wait for it, a smaller alloca neither."""
    unordered = make_queue(device=scarce, ordered=False)
    target = scarce.upload(np.zeros(64, np.uint8))
    hold = give_back_behind(make_hold, scarce.queue, BIG)
    buffer = unordered.alloca(BIG)
    filled = unordered.fill(buffer, 5, wait=allocation(buffer))
    small = unordered.alloca(4096)
    used = unordered.fill(small, 6, wait=allocation(small))
    hal.wait_all([used, unordered.fill(target, 4), unordered.barrier()], LIMIT)
    assert (allocation(buffer).state, filled.state) == ("pending", "pending")
    hold.open()
    filled.wait(LIMIT)
    assert (small.numpy(timeout=LIMIT) == 6).all()
