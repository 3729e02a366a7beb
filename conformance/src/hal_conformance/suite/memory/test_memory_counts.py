"""What a device's memory counts, what limits it, and what trim frees (M1)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import OutOfMemoryError
from hal_conformance.suite.memory.scarcity import (
    BIG,
    BLOCK,
    ROOM,
    allocation,
    cycle,
    held,
    of_the_driver,
    until_issued,
)
from hal_conformance.suite.support import LIMIT, pattern

FIGURES = ("bytes_now", "bytes_peak", "bytes_cached", "bytes_held", "allocations")
KINDS = ("device", "host", "managed")


def figures(statistics: Any) -> dict[str, int]:  # noqa: ANN401 - of a device or of a kind
    """Return the five figures that all statistics have."""
    return {name: getattr(statistics, name) for name in FIGURES}


# The limit


def test_the_limit_counts_what_queues_allocate_m1(scarce):
    """M1: allocas that are not given back fill the room as other allocations do."""
    queue = scarce.queue
    buffers = [queue.alloca(BLOCK) for _ in range(20)]
    failed = 0
    for buffer in buffers:
        try:
            allocation(buffer).wait(LIMIT)
        except OutOfMemoryError:
            failed += 1
    assert 20 - ROOM // BLOCK <= failed <= 21 - ROOM // BLOCK  # the driver may need some itself
    assert held(scarce) <= ROOM
    with pytest.raises(OutOfMemoryError):
        scarce.allocate(BLOCK)
    with pytest.raises(OutOfMemoryError):
        scarce.allocate(BLOCK, memory="host")


@pytest.mark.parametrize("memory", KINDS)
def test_the_limit_counts_every_kind_m1(scarce, memory):
    """M1: the kinds share the room, however it was allocated, until something is let go."""
    held = scarce.allocate(BIG, memory=memory)
    for other in KINDS:
        with pytest.raises(OutOfMemoryError):
            scarce.allocate(2 << 20, memory=other)
        with pytest.raises(OutOfMemoryError):
            allocation(scarce.queue.alloca(2 << 20, memory=other)).wait(LIMIT)
    held.close()
    again = scarce.allocate(2 << 20, memory=memory)
    scarce.queue.fill(again, 1).wait(LIMIT)


def test_what_is_cached_makes_room_m1(scarce):
    """M1: what nobody uses, of either allocation, is given back before anything is refused."""
    queue = scarce.queue
    for _ in range(2):
        hal.wait_all(cycle(queue, BIG), LIMIT)
        scarce.allocate(BIG).close()
        scarce.allocate(BIG + BLOCK, memory="host").close()
        hal.wait_all(cycle(queue, BIG + BLOCK), LIMIT)
    assert held(scarce) <= ROOM


# Statistics


def test_bytes_now_are_those_between_issue_and_issue_m1(scarce, gate):
    """M1: an alloca counts from its issue to the issue of its dealloca."""
    queue = scarce.queue
    before = scarce.statistics(reset_peak=True)
    buffer = queue.alloca(BLOCK, wait=gate.at(1))
    assert figures(scarce.statistics()) == figures(before)
    gate.signal(1)
    allocation(buffer).wait(LIMIT)
    issued = scarce.statistics()
    assert issued.bytes_now == before.bytes_now + BLOCK == issued.bytes_peak
    assert issued.allocations == before.allocations + 1
    ended = queue.dealloca(buffer, wait=gate.at(2))
    assert scarce.statistics().bytes_now == issued.bytes_now
    gate.signal(2)
    ended.wait(LIMIT)
    after = scarce.statistics()
    assert (after.bytes_now, after.bytes_peak) == (before.bytes_now, issued.bytes_peak)
    assert after.allocations == before.allocations


@pytest.mark.feature("kernels")
def test_statistics_wait_for_no_work_m1(scarce, make_hold):
    """M1: they return while a kernel runs; what was given back behind it is not counted."""
    queue = scarce.queue
    buffer = queue.alloca(BLOCK)
    queue.fill(buffer, 1).wait(LIMIT)
    hold = make_hold(queue)
    before = scarce.statistics().bytes_now
    until_issued(queue.dealloca(buffer))
    there = scarce.statistics()
    assert there.bytes_now == before - BLOCK
    assert there.bytes_held >= BLOCK
    hold.open()
    assert hold.has_seen()


def test_the_kinds_have_statistics_of_their_own_m1(scarce):
    """M1: three kinds, whose figures add up to the device's."""
    before = scarce.statistics()
    assert set(before.kinds) == set(KINDS)
    held = {
        memory: [scarce.allocate(size, memory=memory), scarce.queue.alloca(size, memory=memory)]
        for memory, size in zip(KINDS, (256, 512, 1024), strict=True)
    }
    for _, buffer in held.values():
        allocation(buffer).wait(LIMIT)
    there = scarce.statistics()
    for memory, size in zip(KINDS, (256, 512, 1024), strict=True):
        assert there.kinds[memory].bytes_now == before.kinds[memory].bytes_now + 2 * size
        assert there.kinds[memory].allocations == before.kinds[memory].allocations + 2
        assert there.kinds[memory].bytes_peak >= there.kinds[memory].bytes_now
        assert there.kinds[memory].bytes_held >= 2 * size
    for name in ("bytes_now", "bytes_cached", "bytes_held", "allocations"):
        assert getattr(there, name) == sum(getattr(there.kinds[each], name) for each in KINDS)
    held["host"][0].close()
    after = scarce.statistics()
    assert after.kinds["host"].allocations == there.kinds["host"].allocations - 1
    assert after.kinds["device"] == there.kinds["device"]


# What trim frees


def test_trim_frees_all_that_nobody_uses_m1(scarce, make_queue):
    """M1: the cache and pools; after it nothing is held."""
    queue, other = scarce.queue, make_queue(device=scarce)
    buffer = scarce.allocate(BLOCK)
    queue.write(buffer, pattern(BLOCK)).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(BLOCK))
    for memory in KINDS:
        scarce.allocate(BLOCK, memory=memory).close()
        small = queue.alloca(4096, memory=memory)
        queue.fill(small, 1)
        given = queue.dealloca(small)
        hal.wait_all(cycle(other, 4096), LIMIT)
        given.wait(LIMIT)
    buffer.close()
    del small, buffer
    gc.collect()
    scarce.wait_idle(LIMIT)
    scarce.trim()
    there = scarce.statistics()
    assert (there.bytes_now, held(scarce)) == (0, 0)
    assert not there.bytes_cached or scarce in of_the_driver
    assert there.allocations == 0
    again = scarce.upload(pattern(BLOCK))
    assert np.array_equal(again.numpy(timeout=LIMIT), pattern(BLOCK))


def test_trim_frees_the_events_of_a_burst_m1(scarce, gate):
    """M1: events exist as many as are in flight, and none once trim has freed the idle ones."""
    queue, buffer = scarce.queue, scarce.allocate(64)
    queue.fill(buffer, 1).wait(LIMIT)
    scarce.trim()
    before = scarce.statistics().events
    last = [queue.fill(buffer, 1, wait=gate.at(1)) for _ in range(300)]
    gate.signal(1)
    hal.wait_all(last, LIMIT)
    queue.wait_idle(LIMIT)
    there = scarce.statistics().events
    assert there >= before
    scarce.trim()
    assert scarce.statistics().events <= before
    queue.fill(buffer, 1).wait(LIMIT)


@pytest.mark.feature("graphs")
def test_trim_frees_idle_graph_instances_m1(scarce):
    """M1: instances that no execution uses go, and come back with the next execution."""
    queue, buffer = scarce.queue, scarce.upload(np.zeros(64, np.uint8))
    scarce.trim()
    before = scarce.statistics().graph_instances
    with scarce.record(command_buffer="graph") as recording:
        recording.fill(buffer, 7)
    queue.execute(recording).wait(LIMIT)
    assert scarce.statistics().graph_instances > before
    queue.wait_idle(LIMIT)
    scarce.trim()
    assert scarce.statistics().graph_instances == before
    queue.fill(buffer, 1)
    queue.execute(recording).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 7).all()
    del recording
    gc.collect()
    queue.wait_idle(LIMIT)
    scarce.trim()
    assert scarce.statistics().graph_instances == before


@pytest.mark.feature("kernels")
def test_trim_leaves_what_is_in_use_m1(scarce, make_hold):
    """M1: not what was given back behind a kernel that runs, nor its events."""
    queue, target = scarce.queue, scarce.upload(np.zeros(BLOCK, np.uint8))
    buffer = queue.alloca(BLOCK)
    queue.update(buffer, pattern(BLOCK)).wait(LIMIT)
    hold = make_hold(queue)
    copied = queue.copy(buffer, target)
    until_issued(queue.dealloca(buffer))
    hold.open()  # a native free may wait for the device
    scarce.trim()
    assert hold.has_seen()
    assert np.array_equal(target.numpy(wait=copied, timeout=LIMIT), pattern(BLOCK))
