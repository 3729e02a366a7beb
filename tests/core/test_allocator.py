"""The caching allocator: M1, and what finalisers leave to it (I10)."""

from __future__ import annotations

import dis
import gc
import random
import sys
import threading

import numpy as np
import pytest
from core_harness import LIMIT, Latch, collect_in_threads

import hal
from hal._allocator import LARGE, block_size
from hal._settings import MemorySettings, take_settings
from hal.errors import (
    ArgumentTypeError,
    ClosedError,
    DeviceLostError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
)

KIB, MIB = 1 << 10, 1 << 20


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


@pytest.mark.parametrize("memory", ["device", "host", "shared"])
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
    for memory in ("device", "host", "shared"):
        device.allocate(512, memory=memory).close()
    assert probe.calls["allocate"] == 3
    buffers = [device.allocate(512, memory=memory) for memory in ("shared", "device", "host")]
    assert probe.calls["allocate"] == 3
    assert len({buffer.address for buffer in buffers}) == 3
    for buffer in buffers:
        buffer.close()
    device.trim()
    assert probe.calls["free"] == 3


def test_memory_is_not_used_again_before_its_work_has_retired_q5(open_probe):
    """Q5: a block whose work is pending or running is nobody else's; once it is done, it is."""
    device, probe = open_probe()
    gate, latch = hal.create_semaphore(), Latch()
    pending, running = device.allocate(4096), device.allocate(4096)
    used = {pending.address, running.address}
    device.queues.upload.fill(pending, 1, wait=gate.at(1))
    probe.hold(latch)
    device.queue.fill(running, 1)
    del pending, running
    gc.collect()
    others = [device.allocate(4096) for _ in range(4)]
    assert used.isdisjoint(buffer.address for buffer in others)
    gate.signal(1)
    latch.open()
    device.wait_idle(LIMIT)
    device.statistics()
    again = {device.allocate(4096).address for _ in range(4)}
    assert again <= used


def test_a_viewed_block_stays_out_of_the_cache_m2(device):
    """M2: a numpy view keeps the memory its own, past the buffer."""
    buffer = device.allocate(4096, memory="host")
    address, view = buffer.address, buffer.map()
    view[:] = 7
    del buffer
    gc.collect()
    others = [device.allocate(4096, memory="host") for _ in range(3)]
    assert address not in {other.address for other in others}
    device.queue.fill(others[0], 9).wait(LIMIT)
    assert (view == 7).all()
    del view
    gc.collect()
    assert device.allocate(4096, memory="host").address == address


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


def test_parts_keep_their_block_m2(device):
    buffer = device.allocate(4096)
    address, part = buffer.address, buffer.subspan(100, 10)
    buffer.close()
    assert device.allocate(4096).address != address
    part.close()
    assert address in {device.allocate(4096).address, device.allocate(4096).address}


# Limits


def test_a_free_that_blocks_holds_up_no_callback_m1(open_probe, second_device):
    """M1: a driver may free only when its device is idle; meanwhile all other devices go on."""
    device, probe = open_probe(settings=MemorySettings(cache_limit=0))
    entered, leave, called = threading.Event(), threading.Event(), threading.Event()
    free = probe.free

    def blocking_free(address, memory):
        entered.set()
        assert leave.wait(LIMIT)
        free(address, memory)

    probe.free = blocking_free
    try:
        device.allocate(MIB).close()
        assert entered.wait(LIMIT)
        done = hal.create_semaphore()
        done.on_reached(1, lambda _: called.set())
        second_device.queue.fill(second_device.allocate(4), 1, signal=done.at(1))
        assert called.wait(LIMIT)
    finally:
        leave.set()


def test_what_exceeds_the_cache_limit_is_freed_by_a_thread_of_ours_m1(open_probe):
    """M1: not by whoever drops it; and what fits stays."""
    device, probe = open_probe(settings=MemorySettings(cache_limit=64 * KIB))
    me = threading.get_ident()
    buffers = [device.allocate(32 * KIB) for _ in range(6)]
    del buffers
    pause = threading.Event()
    for _ in range(int(LIMIT * 100)):
        if probe.live()["allocation"] == 2:
            break
        pause.wait(0.01)
    assert probe.live()["allocation"] == 2
    assert probe.callers["free", me] == 0
    statistics = device.statistics()
    assert (statistics.bytes_cached, statistics.bytes_held) == (64 * KIB, 64 * KIB)


def test_nothing_is_cached_with_a_limit_of_zero_m1(open_probe):
    device, probe = open_probe(settings=MemorySettings(cache_limit=0))
    for _ in range(3):
        device.allocate(4096).close()
        device.statistics()
    assert device.statistics().bytes_cached == 0
    assert probe.calls["allocate"] >= 1
    device.statistics()
    assert "allocation" not in probe.live()


def test_blocks_above_the_largest_class_are_not_cached_m1(open_probe, monkeypatch):
    """M1: they go straight back, by a thread of ours."""
    monkeypatch.setattr("hal._allocator.LARGE", 64 * KIB)
    device, probe = open_probe()
    buffer = device.allocate(64 * KIB + 1)
    assert probe.alive["allocation"] == {buffer.address: 64 * KIB + 256}
    me = threading.get_ident()
    buffer.close()
    pause = threading.Event()
    for _ in range(int(LIMIT * 100)):
        if "allocation" not in probe.live():
            break
        pause.wait(0.01)
    assert "allocation" not in probe.live()
    assert probe.callers["free", me] == 0
    assert device.statistics().bytes_held == 0
    device.allocate(64 * KIB).close()
    assert device.statistics().bytes_cached == 64 * KIB


def test_memory_limit_m1(open_probe):
    """M1: hal holds no more than that, gives its cache back first, and says why it refuses."""
    device, probe = open_probe(settings=MemorySettings(memory_limit=MIB))
    kept = device.allocate(512 * KIB)
    device.allocate(256 * KIB).close()
    other = device.allocate(512 * KIB)  # there is room for it only without the cached block
    assert sum(probe.alive["allocation"].values()) == MIB
    with pytest.raises(OutOfMemoryError, match=r"memory_limit is 1,048,576 bytes") as caught:
        device.allocate(1)
    assert "1,048,576 bytes in 2 allocations" in str(caught.value)
    other.close()
    assert device.allocate(512 * KIB).size == 512 * KIB
    assert kept.size == 512 * KIB


def test_trim_m1(open_probe):
    """M1: cached memory goes until `keep` bytes are left; what is in use stays."""
    device, probe = open_probe()
    kept = device.allocate(4096)
    buffers = [device.allocate(size) for size in (4096, 8192, 16384)]
    del buffers
    assert device.trim(1 << 40) == 0
    assert device.statistics().bytes_cached == 28672
    assert device.trim(keep=12288) == 16384
    assert device.statistics().bytes_cached == 12288
    assert device.trim() == 12288
    assert probe.alive["allocation"] == {kept.address: 4096}
    assert device.trim() == 0
    for keep, error in ((-1, InvalidArgumentError), ("1", ArgumentTypeError)):
        with pytest.raises(error, match="keep"):
            device.trim(keep)
    device.close(LIMIT)
    with pytest.raises(ClosedError):
        device.trim()


def test_statistics_add_up_m1(device):
    """M1: bytes asked for, bytes put by, bytes held natively; a peak that can be reset."""
    one, two = device.allocate(3000), device.allocate(100)
    two.close()
    now = device.statistics(reset_peak=True)
    assert (now.bytes_now, now.bytes_peak, now.allocations) == (3000, 3100, 1)
    assert (now.bytes_cached, now.bytes_held) == (256, 256 + block_size(3000))
    assert device.statistics().bytes_peak == 3000
    one.close()
    three = device.allocate(200)
    now = device.statistics(reset_peak=False)
    assert (now.bytes_now, now.bytes_peak, now.bytes_cached) == (200, 3000, block_size(3000))
    three.close()


# Running out of memory


def test_the_cache_is_given_back_before_memory_runs_out_m1(open_probe):
    """M1: a failing native allocation makes cached blocks of other sizes go, then succeeds."""
    device, probe = open_probe()
    for size in (4096, 8192):
        device.allocate(size).close()
    probe.fail_call(1, OutOfMemoryError("native"), ("allocate",))
    buffer = device.allocate(100_000)
    assert buffer.size == 100_000
    assert probe.calls["free"] == 2
    assert device.statistics().bytes_cached == 0


def test_memory_that_finished_work_held_is_found_before_it_runs_out_m1(open_probe):
    """M1: a block of the right size that comes back meanwhile is used, and the cache stays."""
    device, probe = open_probe()
    device.allocate(8192).close()
    buffer = device.allocate(100_000)
    address, running = buffer.address, device.queue.fill(buffer, 1)
    del buffer
    for stream in probe.alive["stream"]:
        probe.inner.synchronize_stream(stream)
    probe.fail_call(1, OutOfMemoryError("native"), ("allocate",))
    assert device.allocate(100_000).address == address
    assert running.state == "done"
    assert probe.calls["free"] == 0


@pytest.mark.parametrize("name", ["bind", "allocate", "host_pointer"])
@pytest.mark.parametrize("error", [OperationError, DeviceLostError])
def test_a_native_call_fails_in_an_allocation_m1(open_probe, name, error):
    """Whichever call fails, its error comes, nothing leaks, and the next allocation works."""
    device, probe = open_probe()
    probe.fail_call(1, error("injected"), (name,))
    with pytest.raises(error, match="injected"):
        device.allocate(4096)
    assert not probe.pending_fault
    assert "allocation" not in probe.live()
    now = device.statistics()
    assert (now.bytes_now, now.bytes_held, now.allocations) == (0, 0, 0)
    assert device.allocate(4096).size == 4096


def test_a_native_free_that_fails_is_forgotten_m1(open_probe):
    """M1: nobody could do anything about it; the rest goes on."""
    device, probe = open_probe()
    for size in (4096, 8192):
        device.allocate(size).close()
    probe.fail_call(1, OperationError("injected"), ("free",))
    device.trim()
    assert probe.live()["allocation"] == 1, "the driver has kept it"
    assert device.statistics().bytes_held == 0
    probe.alive["allocation"].clear()


def test_a_lost_device_frees_nothing_s5(open_probe):
    """S5: its memory went with the context."""
    device, probe = open_probe()
    device.allocate(4096).close()
    buffer = device.allocate(8192)
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    device.queue.fill(buffer, 1)
    assert device.lost
    device.trim()
    del buffer
    device.close(LIMIT)
    assert probe.calls["free"] == 0


@pytest.mark.parametrize("cached", [True, False])
def test_no_allocation_after_close_q6(open_probe, cached):
    """Q6: not even from what was cached, by a thread that had passed the first check."""
    device, probe = open_probe()
    if cached:
        device.allocate(4096).close()
        device.statistics()
    heap = device._heap
    device.close(LIMIT)
    with pytest.raises(ClosedError):
        heap.allocate(4096, 0)
    assert probe.live() == {}


def test_close_waits_for_a_native_allocation_under_way_q6(open_probe):
    """Q6: what a thread is just allocating is given back, or refused."""
    device, probe = open_probe()
    entered, leave = threading.Event(), threading.Event()

    def stall():
        entered.set()
        assert leave.wait(LIMIT)

    probe.fail_call(1, stall, ("allocate",))
    results = []

    def allocate():
        try:
            results.append(device.allocate(4096))
        except ClosedError as error:
            results.append(error)

    threads = [threading.Thread(target=allocate), threading.Thread(target=device.close)]
    threads[0].start()
    assert entered.wait(LIMIT)
    threads[1].start()
    leave.set()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert len(results) == 1
    assert probe.live() == {}


# Random use against a plain model


class Model:
    """Say what is allocated: names with address, size, and the byte that fills it."""

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
            buffer = device.allocate(size, memory=generator.choice(["device", "host", "shared"]))
            byte = step % 256
            model.add(step, buffer.address, size, byte)
            device.queue.fill(buffer, byte).wait(LIMIT)
            buffers[step] = buffer
            del buffer
        peak = max(peak, sum(size for _, size, _ in model.live.values()))
        if generator.random() < 0.02:
            device.trim(generator.randrange(300_000))
        if step % 20 == 0:
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
    assert now.bytes_held == now.bytes_cached == sum(probe.alive["allocation"].values())
    device.trim()
    assert "allocation" not in probe.live()


# Ctrl-C


class Interrupt:
    """Raise KeyboardInterrupt at the n-th place in the core's memory modules where a signal can.

    Python looks for signals when a function begins, after calls, and when a loop
    goes round: not between two other instructions.
    """

    MODULES = (
        *("_allocator.py", "_memory.py", "_reaper.py", "_storage.py", "_host_view.py"),
        *("_extent.py", "_buffer.py", "_device.py"),
    )
    LOOKS = frozenset({"RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"})

    def __init__(self, number):
        self.number = number
        self.count = 0
        self.names = {}
        self.last = {}

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if not code.co_filename.endswith(self.MODULES) or code.co_name == "__del__":
            return None
        if code not in self.names:
            self.names[code] = {each.offset: each.opname for each in dis.get_instructions(code)}
        frame.f_trace_opcodes = True
        return self.step

    def step(self, frame, event, argument):
        if event == "opcode":
            name = self.names[frame.f_code].get(frame.f_lasti)
            before, self.last[frame] = self.last.get(frame), name
            if before in self.LOOKS:
                self.count += 1
                if self.count == self.number:
                    self.last.clear()
                    raise KeyboardInterrupt
        elif event == "return":
            self.last.pop(frame, None)
        return self.step


@pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="does not trace instructions of code that has run before"
)
def test_ctrl_c_anywhere_in_an_allocation_from_the_cache_m1(open_probe):
    """M1: at whichever bytecode it comes, no block is lost for good, doubled or given to two."""
    device, probe = open_probe()
    before = [device.allocate(4096) for _ in range(3)]
    addresses = {buffer.address for buffer in before}
    del before
    device.statistics()
    number = 0
    # Python 3.12 looks at this when tracing begins.
    sys._getframe().f_trace_opcodes = True
    while True:
        number += 1
        held = device.allocate(4096)  # leaves something to work off, and a neighbour in the cache
        held.close()
        interrupt = Interrupt(number)
        buffer = None
        sys.settrace(interrupt)
        try:
            buffer = device.allocate(4096)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if interrupt.count < number:
            break
        del buffer
        gc.collect()
        three = [device.allocate(4096) for _ in range(3)]
        assert {each.address for each in three} == addresses, f"interrupted at step {number}"
        del three
        now = device.statistics()
        assert (now.bytes_now, now.allocations, now.bytes_cached) == (0, 0, 12288)
    assert number > 15
    assert probe.calls["allocate"] == 3


# Parameters


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("65536", 65536), ("512K", 512 * KIB), ("3m", 3 * MIB), ("2G", 2 << 30)],
)
def test_sizes_of_parameters_m1(text, size):
    rest = {"cache_limit": text, "threads": "2"}
    assert take_settings(rest).cache_limit == size
    assert rest == {"threads": "2"}


@pytest.mark.parametrize(
    "text", ["", "K", "-1", "1.5G", "4T", "1 G", "four", "0x10", "٣", "9" * 30]
)
@pytest.mark.parametrize("name", ["cache_limit", "memory_limit", "staging"])
def test_parameters_that_are_no_sizes_m1(name, text):
    with pytest.raises(InvalidArgumentError, match=name):
        hal.create_device("cpu", **{name: text})


def test_parameters_reach_the_device_m1():
    with hal.create_device("cpu?memory_limit=1M", cache_limit="64K", staging=65536) as device:
        assert device._heap.memory_limit == MIB
        with pytest.raises(OutOfMemoryError, match="memory_limit"):
            device.allocate(2 * MIB)
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        hal.create_device("cpu", memory_limit="0")
    with pytest.raises(InvalidArgumentError, match="async_allocations"):
        hal.create_device("cpu", async_allocations="perhaps")
    for value in (True, False, "true", "FALSE", 1):
        with hal.create_device("cpu", async_allocations=value) as device:
            assert device._is_async == (value in {True, "true"})


def test_content_is_undefined_but_the_buffers_own(device):
    """Two live buffers of the same class never share bytes, fresh or used."""
    for _ in range(3):
        one, two = device.allocate(1000), device.allocate(1000)
        device.queue.fill(one, 1)
        device.queue.fill(two, 2)
        device.queue.wait_idle(LIMIT)
        assert np.unique(one.numpy()).tolist() == [1]
        assert np.unique(two.numpy()).tolist() == [2]
