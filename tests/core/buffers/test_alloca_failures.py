"""Allocation in the order of a queue as it fails, closes, and meets other threads (M3, Q1)."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, Latch, Running, Stall, collect_in_threads, wait_until

import hal
from hal._buffers import alloca as _alloca
from hal._engine import issuing, progress, steps
from hal._memory import storage
from hal._memory.settings import MemorySettings
from hal._memory.storage import Storage
from hal.errors import ClosedError, DeviceLostError, HalError, OperationError, OutOfMemoryError

SIZE = 4096
ROOM = 1 << 20


def test_running_out_of_memory_m3(opened, async_mode):
    """M3: the alloca fails, what uses it fails with the same, and the queue goes on."""
    device, probe = opened
    name = {"emulated": "allocate", "native": "allocate_async"}[async_mode]
    for number in range(1, 13):  # every retry
        probe.fail_call(number, OutOfMemoryError("native", native_code=2), (name,))
    buffer = device.queue.alloca(SIZE)
    used = device.queue.fill(buffer, 1)
    for submission in (buffer.allocation, used):
        with pytest.raises(OutOfMemoryError, match="4,096 bytes of device memory") as caught:
            submission.wait(LIMIT)
        assert caught.value.native_code == 2
    probe.heal()
    device.queue.dealloca(buffer).wait(LIMIT)
    other = device.queue.alloca(SIZE)
    assert (other.numpy(wait=device.queue.fill(other, 1), timeout=LIMIT) == 1).all()


def test_work_that_ends_at_once_on_two_devices_feeds_both_m3(open_probe):
    """M3: one step retires it all; an alloca that waits for memory of either device gets it."""
    stall, uses, starved = Stall(), [], []
    for _ in range(2):
        device, probe = open_probe(settings=MemorySettings(memory_limit=SIZE))
        buffer, latch = device.queue.alloca(SIZE), Latch()
        buffer.allocation.wait(LIMIT)
        probe.hold(latch)
        use = device.queues.upload.fill(buffer, 1)
        device.queue.dealloca(buffer).wait(LIMIT)
        uses.append((use, latch, probe))
    progress.put_last(lambda *_: stall(), None, None)  # no other thread retires what ends
    assert stall.entered.wait(LIMIT)
    for use, _, _ in uses:
        starved.append(use.queue.device.queue.alloca(SIZE))
        wait_until(lambda use=use: use._sequence in use.queue._wanted)
    for use, latch, probe in uses:
        latch.open()
        wait_until(lambda use=use, probe=probe: probe.inner.query_event(use._event.handle))
    assert hal.Fence([use for use, _, _ in uses]).poll()
    stall.leave.set()
    for each in starved:
        each.allocation.wait(LIMIT)


@pytest.mark.parametrize(("place", "times"), [("storages_of", 1), ("_fail", 1), ("_fail", 2)])
def test_memory_is_looked_for_again_after_a_lack_of_the_hosts_own(
    open_probe, monkeypatch, place, times
):
    """M3, O3: a MemoryError where it is looked for hangs no alloca, then or later."""
    device, _ = open_probe(settings=MemorySettings(memory_limit=SIZE))
    function, left, told = getattr(_alloca, place), [None] * times, []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    def broken(*arguments):
        if left:
            left.pop()
            raise MemoryError
        return function(*arguments)

    held = device.queue.alloca(SIZE)
    held.allocation.wait(LIMIT)
    monkeypatch.setattr(_alloca, place, broken)
    first = device.create_queue().alloca(SIZE)
    wait_until(lambda: not left)
    if times == 2:
        wait_until(lambda: told)  # the thread of the pool is done with it
    second = device.create_queue().alloca(SIZE)
    for each in (first, second):
        with pytest.raises(HalError):
            each.allocation.wait(LIMIT)
    device.queue.dealloca(held).wait(LIMIT)
    device.queue.alloca(SIZE).allocation.wait(LIMIT)


@pytest.mark.parametrize(("ordered", "explicit"), [(True, True), (True, False), (False, True)])
def test_memory_that_comes_back_on_the_way_is_waited_for_m3(open_probe, ordered, explicit):
    """M3: with room for one buffer, an alloca behind the other's dealloca gets its memory."""
    device, _ = open_probe(settings=MemorySettings(memory_limit=SIZE))
    queue, gate = device.create_queue(ordered=ordered), hal.create_semaphore()
    one = queue.alloca(SIZE)
    one.allocation.wait(LIMIT)
    ended = queue.dealloca(one, wait=gate.at(1))
    two = queue.alloca(SIZE, wait=[ended] if explicit else ())
    out = np.zeros(SIZE, np.uint8)
    queue.fill(two, 8, wait=two.allocation)
    read = queue.read(two, out, wait=[two.allocation, queue.fill(two, 9, wait=two.allocation)])
    assert two.allocation.state == "pending", "not before what it comes after was issued"
    gate.signal(1)
    read.wait(LIMIT)
    assert (out == 9).all()


@pytest.mark.parametrize("name", ["allocate_async", "free_async"])
def test_native_calls_that_fail_m3(open_probe, name):
    device, probe = open_probe(settings=MemorySettings(async_allocations=True))
    probe.fail_call(1, OperationError("injected"), (name,))
    buffer = device.queue.alloca(SIZE)
    if name == "allocate_async":
        with pytest.raises(OperationError, match="injected"):
            buffer.allocation.wait(LIMIT)
    ended = device.queue.dealloca(buffer)
    if name == "free_async":
        with pytest.raises(OperationError, match="injected"):
            ended.wait(LIMIT)
        assert probe.live()["async allocation"] == 1, "nobody can do anything about it"
        probe.alive["async allocation"].clear()
    else:
        ended.wait(LIMIT)
    del buffer
    other = device.queue.alloca(SIZE)
    assert (other.numpy(wait=device.queue.fill(other, 1), timeout=LIMIT) == 1).all()


@pytest.mark.parametrize("mode", ["stream", "graph"])
@pytest.mark.parametrize("pool", [False, True], ids=["own", "native"])
def test_a_device_is_lost_while_work_waits_for_memory_s5(open_probe, latch, pool, mode):
    """S5, M3: work with temporaries and work that waits for memory fail; close frees nothing."""
    settings = MemorySettings(async_allocations=pool, memory_limit=ROOM)
    device, probe = open_probe(settings=settings)
    half, signal = ROOM // 2, hal.create_semaphore()
    with device.record(command_buffer=mode) as recording:
        temporary = recording.alloca(half)
        recording.fill(temporary, 1)
    first = device.queue.alloca(half)
    probe.hold(latch)
    probe.fail_event(DeviceLostError("fault"))
    running = [
        device.queue.fill(first, 1),
        device.queue.execute(recording),
        device.queue.dealloca(first),
    ]
    starved = []
    for queue in (device.create_queue(), device.create_queue(ordered=False)):
        buffer = queue.alloca(ROOM - 2 * SIZE)
        used = queue.fill(buffer, 2, wait=buffer.allocation)
        starved += [buffer.allocation, used, queue.dealloca(buffer, wait=used)]
    starved += [device.queues.upload.execute(recording, signal=signal.at(1)), signal.at(1)]
    waits = device.create_queue().alloca(half, wait=starved[0])
    latch.open()
    for each in (*running, *starved, waits.allocation):
        with pytest.raises(DeviceLostError, match="fault"):
            hal.wait_all([each], LIMIT)
    assert device.lost
    assert "memory" not in hal.dump()
    frees = probe.calls["free"] + probe.calls["free_async"]
    device.close(LIMIT)
    assert probe.calls["free"] + probe.calls["free_async"] == frees


@pytest.mark.parametrize("when", ["pending", "issued", "given back", "held by a view"])
def test_close_gives_everything_back_i7(opened, when):
    device, probe = opened
    never = hal.create_semaphore()
    buffer = device.queue.alloca(SIZE, wait=never.at(1) if when == "pending" else ())
    view = None
    if when != "pending":
        device.queue.fill(buffer, 1).wait(LIMIT)
    if when == "given back":
        device.queue.dealloca(buffer)
    if when == "held by a view":
        view = buffer.map()
    told = device.close(LIMIT)
    assert len(told) == (when == "held by a view")
    if view is not None:
        assert (view == 1).all()
        assert not probe.closed
        del view, buffer
        gc.collect()
        wait_until(lambda: probe.closed)
    assert probe.live() == {}
    assert probe.closed


# Nothing blocks


def test_submission_waits_for_no_allocation_q1(open_probe):
    """Q1: a driver that takes its time holds up a thread of ours, and what comes behind."""
    device, probe = open_probe(without={"async_allocations"})
    stall = Stall()
    probe.fail_call(1, stall, ("allocate",))
    me = threading.get_ident()
    buffer = device.queue.alloca(SIZE)
    used = device.queue.fill(buffer, 3)
    ended = device.queue.dealloca(buffer)
    assert stall.entered.wait(LIMIT)
    assert [each.state for each in (buffer.allocation, used, ended)] == ["pending"] * 3
    assert device.queues.upload.barrier().wait(LIMIT) is None
    stall.leave.set()
    ended.wait(LIMIT)
    assert used.state == "done"
    assert probe.callers["allocate", me] == 0


def test_a_dealloca_elsewhere_frees_nothing_before_its_alloca_m3(open_probe, latch):
    """M3: on another queue nothing is freed until that queue is ordered behind the alloca."""
    device, probe = open_probe()
    other, target = device.create_queue(), device.allocate(SIZE)
    probe.hold(latch)
    device.queue.fill(target, 1)
    buffer = device.queue.alloca(SIZE)
    other.dealloca(buffer).wait(LIMIT)
    assert probe.calls["free_async"] == 0
    assert device.statistics().allocations == 2
    latch.open()
    wait_until(lambda: device.statistics().allocations == 1)


@pytest.mark.parametrize("dropped", [False, True])
def test_it_frees_in_the_order_of_the_queue_m3(open_probe, dropped):
    """M3: memory is freed at the dealloca's issue; a dropped buffer's on a stream of hal's."""
    device, probe = open_probe(settings=MemorySettings(async_allocations=True))
    streams = set(probe.alive["stream"])
    freed_on = []
    free = probe.free_async
    probe.free_async = lambda stream, address: (freed_on.append(stream), free(stream, address))
    latch = Latch()
    buffer = device.queue.alloca(SIZE)
    probe.hold(latch)
    device.queue.fill(buffer, 1)
    if not dropped:
        device.queue.dealloca(buffer)
    del buffer
    assert probe.calls["free_async"] == (not dropped)
    latch.open()
    device.wait_idle(LIMIT)
    wait_until(lambda: device.statistics().allocations == 0)
    assert probe.calls["free_async"] == 1
    assert bool(streams.intersection(freed_on)) is not dropped


@pytest.fixture
def searched(open_probe, monkeypatch):
    """An alloca in vain on a full device, whose search stays before it looks at other threads."""
    device, _ = open_probe(settings=MemorySettings(memory_limit=SIZE))
    held = device.queue.alloca(SIZE)
    held.allocation.wait(LIMIT)
    look, search = _alloca._may_come, Stall()
    monkeypatch.setattr(_alloca, "_may_come", lambda *call: (search(), look(*call))[1])
    buffer = device.create_queue().alloca(SIZE)
    assert search.entered.wait(LIMIT)

    def finish():
        search.leave.set()
        wait_until(lambda: not device._context.provider.is_posted)

    yield device, buffer.allocation, finish
    del held


def test_a_search_relies_on_a_call_that_finds_no_memory_either_m3(searched, monkeypatch):
    """M3: it is being issued, and is put back into line then: both allocas fail."""
    device, first, finish_search = searched
    issue, baton = issuing._issue, Stall()

    def issue_slowly(operation, step, more):
        after = issue(operation, step, more)
        if not baton.entered.is_set():
            baton()
        return after

    monkeypatch.setattr(issuing, "_issue", issue_slowly)
    second = Running(device.create_queue().alloca, SIZE)
    assert baton.entered.wait(LIMIT)
    finish_search()
    baton.leave.set()
    for each in (first, second.result().allocation):
        with pytest.raises(OutOfMemoryError):
            each.wait(LIMIT)


def test_a_search_relies_on_a_call_that_has_just_ended_m3(searched):
    """M3: between its last look at who relies on it and its end, another thread may come."""
    _, first, finish_search = searched

    class Awaited(list):
        def __bool__(self):
            step.awaited = []
            finish_search()
            return False

    step = steps.begin()
    step.awaited = Awaited()
    hal.create_semaphore().signal(1)
    with pytest.raises(OutOfMemoryError):
        first.wait(LIMIT)


def test_a_part_made_while_another_thread_gives_back_m3(device):
    """M3: the part either exists before the dealloca and ends with the buffer, or is refused."""
    for _ in range(200):
        buffer = device.queue.alloca(64)
        parts = []

        def cut(buffer=buffer, parts=parts):
            try:
                while True:
                    parts.append(buffer.subspan(0, 8))
            except ClosedError:
                return

        collect_in_threads([cut, lambda buffer=buffer: device.queue.dealloca(buffer)])
        assert all(part.closed for part in parts)


def test_a_part_made_while_the_address_comes_m3(device, monkeypatch):
    """M3: the part has the address, whether it is made before or after the alloca's issue."""
    gate = hal.create_semaphore()
    buffer = device.queue.alloca(64, wait=gate.at(1))
    original = Storage.add_part

    def add_part(storage, part):
        gate.signal(1)
        buffer.allocation.wait(LIMIT)
        original(storage, part)

    monkeypatch.setattr(Storage, "add_part", add_part)
    assert buffer.subspan(8, 8).address == buffer.address + 8


def test_parts_are_not_kept_m3(device):
    buffer = device.queue.alloca(64)
    references = [weakref.ref(buffer.subspan(0, 8)) for _ in range(500)]
    assert not any(reference() for reference in references)
    assert len(buffer._storage.parts) < 100
    kept = buffer.subspan(0, 8)
    device.queue.dealloca(buffer)
    assert kept.closed


def test_a_part_takes_no_longer_for_those_before_it_m3(device, monkeypatch):
    """M3: dead parts are looked for as their number has doubled, not at each new part."""
    looked = []
    monkeypatch.setattr(storage, "_is_there", lambda part: looked.append(part) or part())
    buffer = device.queue.alloca(64)
    kept = [buffer.subspan(0, 8) for _ in range(1000)]
    assert len(looked) < 2 * len(kept)
    device.queue.dealloca(buffer)
    assert all(part.closed for part in kept)
