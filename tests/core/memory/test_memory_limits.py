"""What the allocator keeps at the most, and what it does as memory runs out (M1)."""

import contextlib
import threading
from collections import deque

import pytest
from core_harness import LIMIT, Contended, Running, Stall, stalled, wait_until

import hal
from hal._memory.settings import MemorySettings, take_settings
from hal.errors import (
    ClosedError,
    DeviceLostError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
)

KIB, MIB = 1 << 10, 1 << 20


def test_a_free_that_blocks_holds_up_no_callback_m1(open_probe, second_device):
    """M1: a driver may free only when its device is idle; meanwhile all other devices go on."""
    device, probe = open_probe(settings=MemorySettings(cache_limit=0))
    stall, called = Stall(), threading.Event()
    probe.fail_call(1, stall, ("free",))
    device.allocate(MIB).close()
    assert stall.entered.wait(LIMIT)
    done = hal.create_semaphore()
    done.on_reached(1, lambda _: called.set())
    second_device.queue.fill(second_device.allocate(4), 1, signal=done.at(1))
    assert called.wait(LIMIT)
    stall.leave.set()


def test_statistics_wait_for_no_free_m1(open_probe):
    """M1: unused memory is not counted, even if the driver has not freed it yet."""
    device, probe = open_probe(settings=MemorySettings(cache_limit=0))
    stall = Stall()
    probe.fail_call(1, stall, ("free",))
    device.allocate(MIB).close()
    assert stall.entered.wait(LIMIT)
    device.allocate(MIB).close()
    device.allocate(100 * MIB).close()  # is not cached, whatever the limit
    now = device.statistics()
    assert (now.bytes_now, now.allocations) == (0, 0)
    assert now.bytes_held > 100 * MIB
    stall.leave.set()
    device.trim()
    assert device.statistics().bytes_held == 0


def test_an_allocation_waits_for_memory_that_a_thread_gives_back_m1(open_probe):
    """M1: out of memory is raised after everything was given back, by whomever."""
    device, probe = open_probe(settings=MemorySettings(cache_limit=0))
    entered, asked, freed = threading.Event(), threading.Semaphore(0), threading.Event()
    free, allocate = probe.free, probe.allocate

    def slow_free(address, memory):
        entered.set()
        asked.acquire(timeout=LIMIT)
        asked.acquire(timeout=LIMIT)  # the allocation waits for this call, or asks again
        free(address, memory)
        freed.set()

    def scarce(size, memory):
        asked.release()
        if not freed.is_set():
            message = "the other block is not back yet"
            raise OutOfMemoryError(message)
        return allocate(size, memory)

    first = device.allocate(MIB)
    probe.free, probe.allocate = slow_free, scarce
    reaper = device._heap.reaper
    reaper.reaping = Contended(reaper.reaping, asked.release)
    first.close()
    assert entered.wait(LIMIT)
    device.allocate(2 * MIB)


def test_what_exceeds_the_cache_limit_is_freed_by_a_thread_of_ours_m1(open_probe):
    """M1: the dropping thread frees nothing; blocks within the limit stay."""
    device, probe = open_probe(settings=MemorySettings(cache_limit=64 * KIB))
    me = threading.get_ident()
    buffers = [device.allocate(32 * KIB) for _ in range(6)]
    del buffers
    wait_until(lambda: probe.live()["allocation"] == 2)
    assert probe.callers["free", me] == 0
    statistics = device.statistics()
    assert (statistics.bytes_cached, statistics.bytes_held) == (64 * KIB, 64 * KIB)


def test_nothing_is_cached_with_a_limit_of_zero_m1(open_probe):
    device, probe = open_probe(settings=MemorySettings(cache_limit=0))
    for _ in range(3):
        device.allocate(4096).close()
        device._heap.reaper.reap()
    assert device.statistics().bytes_cached == 0
    assert probe.calls["allocate"] >= 1
    assert "allocation" not in probe.live()


def test_what_is_to_be_freed_changes_only_under_the_lock_that_statistics_take_m1(open_probe):
    """M1: they walk through it while a thread of ours frees."""
    device, _ = open_probe(settings=MemorySettings(cache_limit=0))
    heap, changes = device._heap, []

    class Guarded(deque):
        def append(self, what):
            changes.append(heap.books.lock._is_owned())
            super().append(what)

        def popleft(self):
            changes.append(heap.books.lock._is_owned())
            return super().popleft()

    heap.reaper._waste = Guarded()
    device.allocate(4096).close()
    device.trim()
    assert changes == [True] * 2


def test_blocks_above_the_largest_class_are_not_cached_m1(open_probe, monkeypatch):
    """M1: they go straight back, by a thread of ours."""
    for module in ("heap", "blocks"):
        monkeypatch.setattr(f"hal._memory.{module}.LARGE", 64 * KIB)
    device, probe = open_probe()
    buffer = device.allocate(64 * KIB + 1)
    assert probe.alive["allocation"] == {buffer.address: 64 * KIB + 256}
    me = threading.get_ident()
    buffer.close()
    wait_until(lambda: "allocation" not in probe.live())
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
    with pytest.raises(OutOfMemoryError, match="524,288 bytes in 1 allocation "):
        device.allocate(MIB)
    assert device.allocate(512 * KIB).size == 512 * KIB
    assert kept.size == 512 * KIB


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
    """M1: a failed free is ignored, and everything else goes on."""
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
    """Q6: a thread that passed the first check gets no memory either, not even from the cache."""
    device, probe = open_probe()
    if cached:
        device.allocate(4096).close()
        device.trim(1 << 40)
    heap = device._heap
    device.close(LIMIT)
    with pytest.raises(ClosedError):
        heap.allocate(4096, 0)
    assert probe.live() == {}


def test_close_waits_for_a_native_allocation_under_way_q6(open_probe):
    """Q6: memory that another thread is just allocating is given back or refused."""
    device, probe = open_probe()
    stall, allocating = stalled(probe, "allocate", 1, device.allocate, 4096)
    closing = Running(device.close)
    stall.leave.set()
    with contextlib.suppress(ClosedError):
        allocating.result()
    closing.result()
    assert probe.live() == {}


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
@pytest.mark.parametrize("name", ["cache_limit", "memory_limit", "pool_keep"])
def test_parameters_that_are_no_sizes_m1(name, text):
    with pytest.raises(InvalidArgumentError, match=name):
        hal.create_device("cpu", **{name: text})


def test_parameters_reach_the_device_m1():
    with hal.create_device("cpu?memory_limit=1M", cache_limit="64K", pool_keep=65536) as device:
        assert device._heap.books.limit == MIB
        with pytest.raises(OutOfMemoryError, match="memory_limit"):
            device.allocate(2 * MIB)
    with pytest.raises(InvalidArgumentError, match="memory_limit"):
        hal.create_device("cpu", memory_limit="0")
    with pytest.raises(InvalidArgumentError, match="async_allocations"):
        hal.create_device("cpu", async_allocations="perhaps")
    for value in (True, False, "true", "FALSE", 1):
        with hal.create_device("cpu", async_allocations=value):
            pass  # which has no such feature
        settings = take_settings({"async_allocations": str(value)})
        assert settings.async_allocations is (value in {True, "true"})
    assert take_settings({}).async_allocations


def test_free_neighbours_become_one_piece_m3(open_probe):
    """M3: memory of one alloca serves several, and then one again, with no native call."""
    settings = MemorySettings(memory_limit=4 * MIB, async_allocations=False)
    device, probe = open_probe(settings=settings)
    queue, submitted = device.queue, []
    for _ in range(3):
        whole = queue.alloca(3 * MIB)
        submitted += [queue.fill(whole, 1), queue.dealloca(whole)]
        parts = [queue.alloca(MIB // 2) for _ in range(6)]
        submitted += [queue.fill(part, 2) for part in parts]
        submitted += [queue.dealloca(parts[number]) for number in (3, 0, 5, 1, 4, 2)]
    hal.wait_all(submitted, LIMIT)
    assert probe.calls["free"] == 0
