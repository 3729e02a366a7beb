"""The caching allocator: M1, and what finalisers leave to it (I10)."""

import gc
import itertools
import random

import pytest
from core_harness import LIMIT, collect_in_threads, wait_until
from interrupts import Interrupts

from hal._memory.blocks import LARGE, block_size
from hal._memory.settings import MemorySettings

KIB = 1 << 10


# Size classes


def test_a_block_wastes_an_eighth_at_the_most_m1():
    """M1: at most 12.5 % above 2 KiB, less than 256 bytes below; monotonous, multiples of 256."""
    generator = random.Random(1)
    sizes = [*range(1, 5000), *(generator.randrange(1, LARGE) for _ in range(5000))]
    sizes += [1 << power for power in range(31)]
    sizes += [(1 << power) + offset for power in range(8, 30) for offset in (-1, 1)]
    last = 0
    for size in sorted(sizes):
        block = block_size(size)
        assert block >= size
        assert block % 256 == 0
        assert block >= last
        assert block - size < 256 or (size > 2 * KIB and (block - size) * 8 <= size)
        assert block_size(block) == block, "a class holds its own size"
        last = block


def test_sizes_share_few_classes_m1():
    """M1: eight classes for each power of two, or nothing would be found again."""
    for power in range(12, 30):
        classes = {
            block_size(size) for size in range(1 << power, 2 << power, max(1, 1 << power - 8))
        }
        assert len(classes) <= 9


def test_large_blocks_are_not_rounded_m1():
    assert block_size(LARGE + 1) == LARGE + 256
    assert block_size(3 * LARGE + 256) == 3 * LARGE + 256


# From the cache


@pytest.mark.parametrize("memory", ["device", "host", "managed"])
def test_a_cycle_of_free_and_allocate_makes_no_native_call_m1(open_probe, memory):
    """M1: the first allocation alone is native; the next ones get the same memory."""
    device, probe = open_probe()
    first = device.allocate(3000, memory=memory)
    address = first.address
    del first
    before = dict(probe.calls)
    for _ in range(10):
        buffer = device.allocate(2900, memory=memory)
        assert buffer.address == address
        assert (buffer.size, buffer.memory) == (2900, memory)
        buffer.close()
    assert dict(probe.calls) == before, "not even a bind"


def test_kinds_of_memory_are_kept_apart_m1(open_probe):
    device, probe = open_probe()
    for memory in ("device", "host", "managed"):
        device.allocate(512, memory=memory).close()
    assert probe.calls["allocate"] == 3
    buffers = [device.allocate(512, memory=memory) for memory in ("managed", "device", "host")]
    assert probe.calls["allocate"] == 3
    assert len({buffer.address for buffer in buffers}) == 3
    for buffer in buffers:
        buffer.close()
    device.trim()
    assert probe.calls["free"] == 3


def test_a_new_view_of_old_memory_is_its_own_m2(device):
    """M2: a block's next user gets a view of its own size, not the one before's."""
    buffer = device.allocate(4096)
    assert buffer.map().shape == (4096,)
    address = buffer.address
    del buffer
    again = device.allocate(4000)
    assert again.address == address
    assert again.map().shape == (4000,)


def test_a_use_ends_once_i10(device):
    """I10: a finaliser that runs twice, as around a resurrection, frees nobody else's block."""
    buffer = device.allocate(4096)
    storage, address = buffer._storage, buffer.address
    type(storage).__del__(storage)
    other = device.allocate(4096)
    assert other.address == address, "the first one counts"
    del storage, buffer
    gc.collect()
    assert device.allocate(4096).address != address
    assert device.statistics().allocations == 1


# Random use against a plain model


class Model:
    """The live allocations: names with address, size, and the byte that fills it."""

    def __init__(self):
        self.live = {}

    def add(self, name, address, size, byte):
        for other, (start, length, _) in self.live.items():
            assert address + size <= start or start + length <= address, f"{name} overlaps {other}"
        self.live[name] = (address, size, byte)


@pytest.mark.parametrize("seed", range(4))
def test_random_use_agrees_with_a_model_m1(open_probe, seed):
    """M1: no two live blocks overlap, each keeps its bytes, and the sums are those of the model."""
    generator = random.Random(seed)
    device, probe = open_probe(settings=MemorySettings(cache_limit=256 * KIB))
    model, buffers = Model(), {}
    peak = 0
    for step in range(600):
        if buffers and generator.random() < 0.48:
            name = generator.choice(list(buffers))
            buffer = buffers.pop(name)
            _, _, byte = model.live.pop(name)
            assert (buffer.map() == byte).all()
            if generator.random() < 0.5:
                buffer.close()
            del buffer
        else:
            size = generator.choice([1, 255, 256, 257, 4096, generator.randrange(1, 60_000)])
            buffer = device.allocate(size, memory=generator.choice(["device", "host", "managed"]))
            byte = step % 256
            model.add(step, buffer.address, size, byte)
            device.queue.fill(buffer, byte).wait(LIMIT)
            buffers[step] = buffer
            del buffer
        peak = max(peak, sum(size for _, size, _ in model.live.values()))
        if generator.random() < 0.02:
            device.trim(generator.randrange(300_000))
        if step % 20 == 0:
            device._heap.reaper.reap()
            now = device.statistics()
            assert now.bytes_now == sum(size for _, size, _ in model.live.values())
            assert now.allocations == len(model.live)
            assert now.bytes_held - now.bytes_cached == sum(
                block_size(size) for _, size, _ in model.live.values()
            )
            assert now.bytes_cached <= 256 * KIB
            assert now.bytes_held == sum(probe.alive["allocation"].values())
    assert device.statistics().bytes_peak == peak


def test_threads_share_the_allocator_m1(open_probe):
    """M1: four threads allocate, write, look and drop: nobody sees another's bytes."""
    device, probe = open_probe(settings=MemorySettings(cache_limit=128 * KIB))

    def churn(seed):
        generator = random.Random(seed)
        mine = []
        for step in range(300):
            if len(mine) > 8 or (mine and generator.random() < 0.4):
                buffer, byte = mine.pop(generator.randrange(len(mine)))
                assert (buffer.map() == byte).all()
                del buffer
            else:
                buffer = device.allocate(generator.choice([100, 3000, 20_000]), memory="host")
                byte = (seed * 64 + step) % 256
                buffer.map()[:] = byte
                mine.append((buffer, byte))
                del buffer
            if step % 50 == 0:
                device.trim(generator.randrange(100_000))

    collect_in_threads([lambda seed=seed: churn(seed) for seed in range(4)])
    now = device.statistics()
    assert (now.bytes_now, now.allocations) == (0, 0)

    def is_counted():
        now = device.statistics()
        return now.bytes_held == now.bytes_cached == sum(probe.alive["allocation"].values())

    wait_until(is_counted)  # a thread of ours may be freeing what exceeds the cache
    device.trim()
    assert "allocation" not in probe.live()


# Ctrl-C


def is_interrupted(number, allocate):
    """Return whether an allocation has an n-th place; it is interrupted there, or dropped."""
    with Interrupts(number) as interrupts:
        allocate()
    gc.collect()
    return bool(interrupts.places)


def test_ctrl_c_anywhere_in_an_allocation_from_the_cache_m1(open_probe):
    """M1: an interrupt at any place loses no block and gives none to two owners."""
    device, probe = open_probe()
    before = [device.allocate(4096) for _ in range(3)]
    addresses = {buffer.address for buffer in before}
    del before
    device.trim(1 << 40)
    for number in itertools.count(1):
        held = device.allocate(4096)  # leaves something to work off, and a neighbour in the cache
        held.close()
        if not is_interrupted(number, lambda: device.allocate(4096)):
            break
        three = [device.allocate(4096) for _ in range(3)]
        assert {each.address for each in three} == addresses, f"interrupted at step {number}"
        del three
        now = device.statistics()
        assert (now.bytes_now, now.allocations, now.bytes_cached) == (0, 0, 12288)
    assert number > 15
    assert probe.calls["allocate"] == 3


@pytest.mark.parametrize("memory", ["device", "host"])
def test_ctrl_c_anywhere_around_a_native_allocation_loses_none_i7(open_probe, memory):
    """I7: memory that an interrupt leaves is freed with the storage, or stays in the cache."""
    device, probe = open_probe()
    for number in itertools.count(1):
        if not is_interrupted(number, lambda: device.allocate(4096, memory=memory)):
            break
        found = device.statistics()
        assert (found.bytes_now, found.allocations) == (0, 0), f"interrupted at step {number}"
        assert not device.allocate(4096, memory=memory).address % 256
        device.trim()
        assert not device.statistics().bytes_held, f"interrupted at step {number}"
        assert "allocation" not in probe.live()
    assert number > 30
