"""Where temporaries of a recording lie: bytes are shared only where the order allows it (M3)."""

import itertools
import random

import numpy as np
import pytest
from core_harness import LIMIT

from hal._commands.temporaries import Arena
from hal.errors import OutOfMemoryError


def settle(lives):
    """Return the blocks for each (size, after, last), and where each life begins and ends."""
    arena = Arena()
    made = [arena.take(size) for size, _, _ in lives]
    for life, (size, after, last) in zip(made, lives, strict=True):
        arena.use(life.start + size, after)
        arena.use(life.start, after + 1)  # a later command
        life.last = last
    place = arena.settle()
    return arena.blocks, [(place(life.start), place(life.start + life.size - 1)) for life in made]


@pytest.mark.parametrize("most", [20, 28])
@pytest.mark.parametrize("seed", range(12))
def test_lives_at_one_time_are_apart_m3(seed, most):
    """Below 2**`most` bytes each: the larger ones take several blocks together."""
    pick = random.Random(seed)
    count = pick.choice([1, 2, 40, 150])
    lives = []
    for _ in range(count):
        after = pick.randrange(count)
        lives.append(
            (pick.randrange(1, 1 << pick.randrange(1, most)), after, after + pick.randrange(9))
        )
    blocks, found = settle(lives)
    for (one, mine), (two, theirs) in itertools.combinations(zip(lives, found, strict=True), 2):
        if one[2] >= two[1] and two[2] >= one[1]:
            assert mine[1] < theirs[0] or theirs[1] < mine[0]
    alive = [
        sum((bytes_ + 255) & -256 for bytes_, after, last in lives if after <= now <= last)
        for now in range(2 * count + 9)
    ]
    assert max(alive) <= sum(blocks) <= 1.4 * max(alive)
    for ((block, start), (same, end)), (wanted, _, _) in zip(found, lives, strict=True):
        assert block == same
        assert start % 256 == 0
        assert end - start == wanted - 1
        assert end < blocks[block]


def test_blocks_are_as_large_as_those_of_other_recordings_m3():
    """A block is larger where one temporary, or its share of all, is; the last one is smaller."""
    mib = 1 << 20
    for sizes, blocks in (
        ([100] * 4, [128, 128, 128, 100]),
        ([64] * 5, [128, 128, 64]),
        ([127] * 2, [128, 127]),
        ([129] * 2, [256, 129]),
        ([128] * 64, [256] * 32),
    ):
        found, _ = settle([(size * mib, 0, 1) for size in sizes])
        assert found == tuple([size * mib for size in blocks])


def test_what_none_uses_needs_no_bytes_m3():
    arena = Arena()
    arena.take(4096)
    arena.settle()
    assert arena.blocks == ()


def test_more_than_any_memory_m1():
    arena = Arena()
    arena.take(1 << 61)
    with pytest.raises(OutOfMemoryError, match="temporaries of the recording"):
        arena.take(1 << 61)


@pytest.mark.parametrize("hazards", ["manual", "auto"])
def test_many_that_nothing_separates_m3(device, hazards):
    """Manual: 1000 side by side. By their bytes: each may have those of the one before."""
    with device.record(hazards=hazards) as commands:
        for _ in range(1000):
            temporary = commands.alloca(256)
            commands.fill(temporary, 1)
            commands.dealloca(temporary)
    blocks = {"manual": 1000, "auto": 1}
    assert commands._playback.temporaries() == (256 * blocks[hazards],)


def test_an_event_separates_what_it_orders_m3(device):
    """Each two commands are ordered behind all but the one before them."""
    with device.record() as commands:
        for _ in range(10):
            temporary = commands.alloca(1024)
            commands.fill(temporary, 1)
            event = commands.create_event()
            commands.signal_event(event)
            commands.wait_events(event)
            commands.fill(temporary, 2)
            commands.dealloca(temporary)
    assert commands._playback.temporaries() == (2 * 1024,)


def test_a_temporary_begins_with_its_first_command_m3(device):
    """And not where it was asked for; it ends where it was given back, and not with its last."""
    with device.record() as commands:
        pair = [commands.alloca(1024) for _ in range(2)]
        for temporary in pair:
            commands.fill(temporary, 1)
            commands.barrier()
            commands.dealloca(temporary)
    assert commands._playback.temporaries() == (1024,)
    with device.record() as commands:
        first = commands.alloca(1024)
        commands.fill(first, 1)
        commands.barrier()
        second = commands.alloca(1024)
        commands.fill(second, 1)
        commands.dealloca(first)
    assert commands._playback.temporaries() == (2048,)


def test_an_end_that_is_interrupted_is_repeated_o3(device, monkeypatch):
    """Bytes that have got their place are not moved once more."""
    from hal._commands import command_buffer  # noqa: PLC0415 - for the patch

    target = device.upload(np.zeros(512, np.uint8))
    commands = device.record(hazards="auto", command_buffer="stream")
    small, large = commands.alloca(256), commands.alloca(1024)
    commands.fill(large, 3)
    commands.fill(small, 4)
    commands.copy(large, target, size=256)
    commands.copy(small, target, target_offset=256)
    with monkeypatch.context() as patch:

        def interrupt(*_, **__):
            raise KeyboardInterrupt

        patch.setattr(command_buffer, "Playback", interrupt)
        with pytest.raises(KeyboardInterrupt):
            commands.end()
    commands.end()
    device.queue.execute(commands).wait(LIMIT)
    assert target.numpy().tolist() == [3] * 256 + [4] * 256


def test_the_end_of_a_life_that_fills_a_block_is_in_that_block_m3():
    """M3: a part without bytes begins there; the next block may be another's, or none."""
    size = 128 << 20
    arena = Arena()
    life = arena.take(size)
    arena.use(life.start, 0)
    assert arena.settle()(life.start + size) == (0, size)
    assert arena.blocks == (size,)
