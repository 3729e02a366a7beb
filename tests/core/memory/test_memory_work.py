"""How much work thousands of allocas make: counted, not timed (M3)."""

import threading
from collections import Counter

import pytest
from core_harness import LIMIT, Latch

import hal
from hal._memory.segment_pool import SegmentPool
from hal._memory.settings import MemorySettings
from hal._memory.stream_order import StreamOrder

SIZE = 4096


@pytest.fixture
def tries(monkeypatch):
    """Count how often memory is asked for, and looked for."""
    count = Counter()

    def counted(name):
        original = getattr(StreamOrder, name)

        def method(*arguments):
            count[name] += 1
            return original(*arguments)

        monkeypatch.setattr(StreamOrder, name, method)

    counted("take")
    counted("provide")
    return count


@pytest.mark.parametrize("native", [False, True], ids=["own", "native"])
def test_allocas_that_starve_in_a_queue_are_tried_in_turn_m3(open_probe, tries, native):
    """M3: room for one, which running work holds: those behind the first are not even looked at."""
    device, probe = open_probe(
        settings=MemorySettings(memory_limit=2 * SIZE, async_allocations=native)
    )
    number, latch, other = 500, Latch(), device.create_queue()
    first = device.queue.alloca(SIZE)
    device.queue.fill(first, 0).wait(LIMIT)
    probe.hold(latch)
    device.queue.fill(first, 1)
    device.queue.dealloca(first)
    del first
    before = threading.active_count()
    tries.clear()
    submitted = []
    for value in range(number):
        buffer = other.alloca(SIZE + 256)
        submitted += [buffer.allocation, other.fill(buffer, value % 256), other.dealloca(buffer)]
    del buffer
    assert {each.state for each in submitted} == {"pending"}
    assert tries["take"] < 20
    assert threading.active_count() <= before + 8
    latch.open()
    hal.wait_all(submitted, 5 * LIMIT)
    # A few times each where a driver's pool has to be seen to have memory back.
    assert number <= tries["take"] <= 4 * number + 50
    assert tries["provide"] <= 4 * number + 50
    assert threading.active_count() <= before + 8


def test_segments_that_go_at_once_are_found_in_one_look_m3(open_probe, monkeypatch):
    """M3: when all is trimmed."""
    device, probe = open_probe(settings=MemorySettings(async_allocations=False))
    original, looks = SegmentPool.whole, Counter()

    def whole(pool):
        looks[pool] += 1
        return original(pool)

    monkeypatch.setattr(SegmentPool, "whole", whole)
    queue, number = device.queue, 40
    buffers = [queue.alloca((1 << 20) + 256) for _ in range(number)]
    device.wait_idle(LIMIT)
    for buffer in buffers:
        queue.dealloca(buffer)
    device.wait_idle(LIMIT)
    looks.clear()
    device.trim()
    assert sum(looks.values()) <= 3 * len(device._heap.books.pools)
    assert probe.calls["free"] >= number
