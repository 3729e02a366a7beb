"""Allocas that find no memory wait in their queue for what others give back (M3, M1)."""

import threading

import numpy as np
import pytest

import hal
from hal.errors import CancelledError, OutOfMemoryError
from hal_conformance.suite.memory.scarcity import (
    BIG,
    BLOCK,
    ROOM,
    allocation,
    cycle,
    give_back_behind,
)
from hal_conformance.suite.support import LIMIT, in_threads

kernels = pytest.mark.feature("kernels")

HALF = 3 << 19
"""Bytes of which there is room for two."""

MIDDLE = 2 << 20
"""Bytes of which there is room for one beside a `HALF`."""


# What it waits for


@pytest.mark.ordering
def test_it_waits_for_a_host_call_m3(scarce, make_queue, make_latch):
    """M3: what runs may be a host call, behind which the memory is given back."""
    queue, other = scarce.queue, make_queue(device=scarce)
    first = queue.alloca(BIG)
    queue.fill(first, 1).wait(LIMIT)
    latch = make_latch(queue)
    given = queue.dealloca(first)
    latch.wait_running()
    buffer = other.alloca(BIG)
    filled = other.fill(buffer, 2)
    assert (allocation(buffer).state, filled.state) == ("pending", "pending")
    latch.open()
    hal.wait_all([given, filled], LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 2).all()


@kernels
def test_several_starve_and_each_has_its_turn_m3(scarce, make_queue, make_hold):
    """M3: three queues wait for one block, use it one after the other, and none is forgotten."""
    target = scarce.upload(np.zeros(3, np.uint8))
    hold = give_back_behind(make_hold, scarce.queue, BIG)
    submitted = []
    for number in range(3):
        other = make_queue(device=scarce)
        buffer = other.alloca(BIG)
        filled = other.fill(buffer, 10 + number)
        copied = other.copy(buffer, target, source_offset=BIG - 1, target_offset=number, size=1)
        submitted += [allocation(buffer), filled, copied, other.dealloca(buffer)]
        assert allocation(buffer).state == "pending"
    del buffer
    hold.open()
    hal.wait_all(submitted, LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [10, 11, 12]


# The order of a queue


@pytest.mark.ordering
def test_nobody_takes_the_memory_from_before_it_m3(scarce, gate):
    """M3: of two allocas in a queue the first has the memory that comes back, and the second none.

    Whatever the host does meanwhile: the second is submitted when the memory is back.
    """
    queue = scarce.queue
    for number in range(1, 31):
        first = queue.alloca(BIG)
        queue.barrier(wait=gate.at(number))
        given = queue.dealloca(first)
        second = queue.alloca(BIG)
        gate.signal(number)
        given.wait(LIMIT)
        third = queue.alloca(BIG)
        allocation(second).wait(LIMIT)
        with pytest.raises(OutOfMemoryError):
            allocation(third).wait(LIMIT)
        queue.dealloca(second).wait(LIMIT)


@pytest.mark.ordering
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_the_one_that_runs_first_has_the_memory_m3(scarce, make_queue, semaphore, *, ordered):
    """M3: of two uses that a semaphore orders the later is submitted first, and takes nothing."""
    queue, other = scarce.queue, make_queue(device=scarce, ordered=ordered)
    size = ROOM * 40 // 64
    later = queue.alloca(size, wait=semaphore.at(1))
    filled = queue.fill(later, 2)
    first = other.alloca(size)
    used = other.fill(first, 1, wait=allocation(first))
    other.dealloca(first, wait=used, signal=semaphore.at(1))
    hal.wait_all([allocation(first), used, allocation(later), filled], LIMIT)
    assert (later.numpy(timeout=LIMIT) == 2).all()


def test_a_pending_alloca_holds_nothing_m3(scarce, gate):
    """M3, M1: any number of allocas whose waits are open leave the memory to others."""
    queue = scarce.queue
    queue.barrier(wait=gate.at(1))
    before = scarce.statistics().bytes_now
    submitted = [each for number in range(8) for each in cycle(queue, BIG, number)]
    assert scarce.statistics().bytes_now == before
    buffer = scarce.allocate(BIG)
    buffer.close()
    gate.signal(1)
    hal.wait_all(submitted, LIMIT)


# When nothing gives enough back


def test_it_fails_when_nothing_will_give_back_m3(scarce, make_queue):
    """M3: on a device that rests it fails at once, what uses it fails, and the queue goes on."""
    queue = scarce.queue
    held = scarce.allocate(BIG)
    buffer = queue.alloca(MIDDLE)
    used, other = queue.fill(buffer, 1), queue.alloca(BLOCK)
    for each in (allocation(buffer), used):
        with pytest.raises(OutOfMemoryError):
            each.wait(LIMIT)
    queue.fill(other, 1).wait(LIMIT)
    queue.dealloca(buffer).wait(LIMIT)
    held.close()
    hal.wait_all(cycle(queue, MIDDLE), LIMIT)
    hal.wait_all(cycle(make_queue(device=scarce), MIDDLE), LIMIT)


@pytest.mark.ordering
def test_it_fails_once_what_ran_gave_too_little_m3(scarce, make_queue, make_latch):
    """M3: it waits while something runs, and fails when that has ended without giving enough."""
    queue, other = scarce.queue, make_queue(device=scarce)
    held, small = scarce.allocate(HALF), queue.alloca(HALF)
    queue.fill(small, 1).wait(LIMIT)
    latch = make_latch(queue)
    queue.dealloca(small)
    latch.wait_running()
    buffer = other.alloca(BIG)
    latch.open()
    with pytest.raises(OutOfMemoryError):
        allocation(buffer).wait(LIMIT)
    assert held.size == HALF
    hal.wait_all(cycle(other, MIDDLE), LIMIT)


@pytest.mark.ordering
def test_two_that_wait_for_each_other_m3(scarce, make_queue):
    """M3: of two queues that hold what the other needs one fails, and the other goes on."""
    queues = [scarce.queue, make_queue(device=scarce)]
    held = [queue.alloca(HALF) for queue in queues]
    hal.wait_all([queue.fill(each, 1) for queue, each in zip(queues, held, strict=True)], LIMIT)
    # Behind a barrier, so that both stand before either is asked for
    gate = hal.create_semaphore()
    asked = []
    for queue in queues:
        queue.barrier(wait=gate.at(1))
        asked.append(queue.alloca(MIDDLE))
    last = [queue.dealloca(each) for queue, each in zip(queues, held, strict=True)]
    gate.signal(1)
    hal.wait_all(last, LIMIT)
    failed = []
    for buffer in asked:
        try:
            allocation(buffer).wait(LIMIT)
        except OutOfMemoryError:
            failed.append(buffer)
    assert len(failed) == 1


def test_the_error_names_what_holds_the_memory_m3(scarce):
    """M3: it says what was asked for, what is there, and which allocations are the largest."""
    queue = scarce.queue
    held = scarce.allocate(BIG)
    other = queue.alloca(BLOCK)
    queue.fill(other, 1).wait(LIMIT)
    buffer = queue.alloca(MIDDLE)
    with pytest.raises(OutOfMemoryError) as caught:
        allocation(buffer).wait(LIMIT)
    message = str(caught.value)
    for size in (MIDDLE, ROOM, BIG, BLOCK):
        assert f"{size:,}" in message
    assert "device memory" in message
    assert "alloca" in message
    assert held.size == BIG


# Ends of queues and devices


@kernels
def test_a_starved_alloca_is_cancelled_with_its_queue_m3(scarce, make_queue, make_hold):
    """M3, Q6: it was not issued; another one that starves has the memory in its place."""
    closing, other = make_queue(device=scarce), make_queue(device=scarce)
    hold = give_back_behind(make_hold, scarce.queue, BIG)
    cancelled, kept = closing.alloca(BIG), other.alloca(BIG)
    behind = closing.fill(cancelled, 1)
    assert closing.close(LIMIT) == ()
    for each in (allocation(cancelled), behind):
        with pytest.raises(CancelledError):
            each.wait(LIMIT)
    assert allocation(kept).state == "pending"
    hold.open()
    other.fill(kept, 1).wait(LIMIT)


@pytest.mark.ordering
def test_the_device_is_closed_while_one_starves_m3(scarce, make_queue, make_latch):
    """M3, Q6: it is cancelled, or has its memory first; nothing is left behind."""
    other = make_queue(device=scarce)
    first = scarce.queue.alloca(BIG)
    scarce.queue.fill(first, 1).wait(LIMIT)
    latch = make_latch(scarce.queue)
    scarce.queue.dealloca(first)
    latch.wait_running()
    buffer = other.alloca(BIG)
    filled = other.fill(buffer, 1)
    left, _ = in_threads([lambda: scarce.close(LIMIT), latch.open])
    assert left == ()
    states = allocation(buffer).state, filled.state
    assert states in {("done", "done"), ("done", "cancelled"), ("cancelled", "cancelled")}


@pytest.mark.ordering
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_thousands_of_allocas_start_no_threads_m3(scarce, make_queue, gate, *, ordered):
    """M3: allocas that wait for their turn, or for memory, are entries in a list and no threads."""
    queue = make_queue(device=scarce, ordered=ordered)
    before = threading.active_count()
    given = queue.barrier(wait=gate.at(1))
    submitted = []
    for number in range(1000):
        buffer = queue.alloca(BIG, wait=given)
        filled = queue.fill(buffer, number % 256, size=64, wait=allocation(buffer))
        given = queue.dealloca(buffer, wait=filled)
        submitted += [allocation(buffer), given]
    assert threading.active_count() <= before + 8
    gate.signal(1)
    for each in submitted:
        each.wait(LIMIT)
        assert threading.active_count() <= before + 8


def test_work_for_starved_queues_is_done_by_no_threads_m3(scarce, make_queue, make_latch):
    """M3: many queues starve at once, and one thread of ours serves them all."""
    first = scarce.queue.alloca(BIG)
    scarce.queue.fill(first, 1).wait(LIMIT)
    latch = make_latch(scarce.queue)
    scarce.queue.dealloca(first)
    latch.wait_running()
    queues = [make_queue(device=scarce) for _ in range(24)]
    before = threading.active_count()  # a backend may have a thread for each stream
    submitted = [each for queue in queues for each in cycle(queue, BIG)]
    assert {each.state for each in submitted} == {"pending"}
    assert threading.active_count() <= before + 4
    latch.open()
    hal.wait_all(submitted, LIMIT)
