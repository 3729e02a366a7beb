"""Executions whose temporaries take several blocks of memory: all of them or none (M3)."""

import numpy as np
import pytest
from core_harness import LIMIT, wait_until

import hal
from hal import collectives
from hal._commands import temporaries
from hal._memory.settings import MemorySettings
from hal.errors import OutOfMemoryError

PART = 1 << 20
PARTS = 4
NAMES = {"emulated": "allocate", "native": "allocate_async"}


@pytest.fixture
def open_small(open_probe, async_mode, monkeypatch):
    """Open a device on which each temporary of `PART` bytes takes a block of its own."""
    monkeypatch.setattr(temporaries, "_BLOCK", PART)

    def open_one(limit=None):
        is_native = async_mode == "native"
        settings = MemorySettings(memory_limit=limit, async_allocations=is_native)
        return open_probe(settings=settings)

    return open_one


def record(device, out, number=0):
    """Record fills of four temporaries that live together, and copy a byte of each."""
    with device.record() as commands:
        parts = [commands.alloca(PART) for _ in range(PARTS)]
        for value, part in enumerate(parts, number):
            commands.fill(part, value)
        commands.barrier()
        for place, part in enumerate(parts):
            commands.copy(part, out, source_offset=PART - 1, target_offset=place, size=1)
    assert commands._playback.temporaries() == (PART,) * PARTS
    return commands


def test_it_takes_no_block_before_there_are_all_m3(open_small, latch):
    """Two that want all of the memory, each while the other has some, do not stop each other."""
    device, probe = open_small(PARTS * PART + PART // 2)
    out = device.upload(np.zeros(2 * PARTS, np.uint8))
    one, other, third = (device.create_queue() for _ in range(3))
    held = one.alloca(2 * PART)
    held.allocation.wait(LIMIT)
    probe.hold(latch)
    running = one.fill(held, 1)
    first = device.queue.execute(record(device, out.subspan(0, PARTS)))
    second = other.execute(record(device, out.subspan(PARTS, PARTS), 10))
    wait_until(lambda: len(device._context.starved) == 2)
    assert device.statistics().allocations == 2  # `held` and `out`
    small = third.alloca(PART)  # there is room for it as long as they wait
    small.allocation.wait(LIMIT)
    third.dealloca(small)
    one.dealloca(held)
    latch.open()
    hal.wait_all([running, first, second], LIMIT)
    assert out.numpy().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_what_it_had_goes_back_where_the_rest_is_refused_m3(open_small, async_mode):
    """The error names all that it wanted; the next one has the memory."""
    device, probe = open_small()
    out = device.upload(np.zeros(PARTS, np.uint8))
    commands = record(device, out)
    for number in range(1, 25):
        if number % PARTS:  # some before it are made, each time
            error = OutOfMemoryError("native", native_code=2)
            probe.fail_call(number, error, (NAMES[async_mode],))
    failed = device.queue.execute(commands)
    with pytest.raises(OutOfMemoryError, match=f"{PARTS * PART:,} bytes of device memory"):
        failed.wait(LIMIT)
    probe.heal()
    wait_until(lambda: device.statistics().allocations == 1)
    device.queue.execute(commands).wait(LIMIT)
    assert out.numpy().tolist() == [0, 1, 2, 3]
    device.trim()
    assert device.statistics().bytes_cached == 0


def test_more_than_there_can_be_is_refused_m3(open_small):
    """Each block alone would fit."""
    device, _ = open_small(2 * PART)
    commands = record(device, device.allocate(PARTS))
    with pytest.raises(OutOfMemoryError, match="memory_limit"):
        device.queue.execute(commands)


def test_a_collective_finds_its_block_c1(device, second_device, monkeypatch):
    """Each rank sums its second block over both ranks into its fourth one."""
    monkeypatch.setattr(temporaries, "_BLOCK", PART)
    out = second_device.upload(np.zeros(PARTS, np.uint8))
    groups = collectives.join_all([device, second_device], timeout=LIMIT)
    done = []
    for group in groups:
        with group.device.record() as commands:
            parts = [commands.alloca(PART) for _ in range(PARTS)]
            for value, part in enumerate(parts, 1 + group.rank):
                commands.fill(part, value)
            commands.barrier()
            commands.all_reduce(parts[1], parts[3], group=group)
            commands.barrier()
            for place, part in enumerate(parts if group.rank else ()):
                commands.copy(part, out, source_offset=7, target_offset=place, size=1)
        done.append(group.device.queue.execute(commands))
    hal.wait_all(done, LIMIT)
    assert out.numpy().tolist() == [2, 3, 4, 2 + 3]
    for group in groups:
        group.close()
