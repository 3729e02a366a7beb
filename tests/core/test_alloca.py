"""Allocation in the order of a queue: M3."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, Latch, collect_in_threads

import hal
from hal._settings import MemorySettings
from hal._storage import Storage
from hal.errors import (
    ArgumentTypeError,
    CancelledError,
    ClosedError,
    DeviceLostError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
)

SIZE = 4096
MODES = ["emulated", "native"]


@pytest.fixture(params=MODES)
def mode(request):
    return request.param


@pytest.fixture
def opened(open_probe, mode):
    """Open a device in either mode; native calls may be made to fail."""
    settings = MemorySettings(async_allocations=mode == "native")
    return open_probe(settings=settings)


def wait_until(condition):
    pause = threading.Event()
    for _ in range(int(LIMIT * 100)):
        if condition():
            return
        pause.wait(0.01)
    pytest.fail("it did not come about in time")


def test_a_whole_life_m3(opened):
    """M3: allocate, use, give back, all submitted at once, in one queue."""
    device, _ = opened
    queue, out = device.queue, np.zeros(1024, np.float32)
    buffer = queue.alloca(SIZE, dtype=np.float32)
    assert (buffer.size, buffer.shape, buffer.dtype) == (SIZE, (1024,), np.float32)
    assert (buffer.memory, buffer.device) == ("device", device)
    queue.fill(buffer, 1.5)
    queue.read(buffer, out)
    ended = queue.dealloca(buffer)
    ended.wait(LIMIT)
    assert (out == 1.5).all()
    assert buffer.allocation.state == "done"
    assert buffer.allocation.kind == "alloca"
    assert device.statistics().allocations == 0


@pytest.mark.parametrize("memory", ["device", "host", "shared"])
@pytest.mark.parametrize("size", [0, 1, SIZE])
def test_kinds_and_sizes_m3(opened, memory, size):
    device, _ = opened
    buffer = device.queue.alloca(size, memory=memory)
    filled = device.queue.fill(buffer, 7, wait=buffer.allocation)
    assert buffer.numpy(wait=filled, timeout=LIMIT).tolist() == [7] * size
    assert buffer.memory == memory
    assert buffer.address % 256 == 0
    assert buffer.map().tolist() == [7] * size
    device.queue.dealloca(buffer).wait(LIMIT)


def test_no_address_before_the_issue_m3(opened):
    """M3: the buffer is there at once, its address is not."""
    device, _ = opened
    gate = hal.create_semaphore()
    buffer = device.queue.alloca(SIZE, wait=gate.at(1))
    part = buffer.subspan(16, 16)
    assert "no address yet" in repr(buffer)
    for use in (lambda: buffer.address, lambda: part.address, buffer.map):
        with pytest.raises(InvalidArgumentError, match=r"buffer\.allocation"):
            use()
    gate.signal(1)
    buffer.allocation.wait(LIMIT)
    assert buffer.address > 0
    assert part.address == buffer.address + 16
    assert f"{buffer.address:#x}" in repr(buffer)


def test_every_operation_may_be_submitted_before_m3(opened):
    """M3: addresses are put in when operations are issued, behind the alloca's issue."""
    device, _ = opened
    gate = hal.create_semaphore()
    queue, other = device.queue, device.upload(np.arange(SIZE, dtype=np.uint8))
    data = np.full(1 << 17, 3, np.uint8)
    one = queue.alloca(1 << 17, wait=gate.at(1))
    two = queue.alloca(1 << 17)
    outs = [np.zeros(size, np.uint8) for size in (1 << 17, 16, 8)]
    queue.write(one, data)
    queue.fill(one, 9, offset=5, size=2)
    queue.update(one, b"abc", offset=10)
    queue.copy(one, two)
    queue.copy(other, two.subspan(100, 50), source_offset=7, size=20, target_offset=3)
    queue.read(two, outs[0])
    queue.read(one.subspan(0, 16), outs[1])
    queue.copy(two, other, source_offset=100, size=8)
    queue.read(other, outs[2])
    queue.dealloca(one)
    last = queue.dealloca(two)
    assert last.state == "pending"
    gate.signal(1)
    last.wait(LIMIT)
    expected = data.copy()
    expected[5:7] = 9
    expected[10:13] = list(b"abc")
    assert (outs[1] == expected[:16]).all()
    expected[103:123] = np.arange(7, 27)
    assert (outs[0] == expected).all()
    assert outs[2].tolist() == [3, 3, 3, 7, 8, 9, 10, 11]


def test_kernels_take_buffers_without_an_address_yet_m3(opened):
    device, _ = opened
    source = "__global__ void add(int *x, int n) { int i = blockIdx.x; if (i < n) x[i] += i; }"
    kernel = device.compile(source)["add"]
    gate = hal.create_semaphore()
    queue, out = device.queue, np.zeros(16, np.int32)
    buffer = queue.alloca(64, dtype=np.int32, wait=gate.at(1))
    queue.fill(buffer, 5)
    queue.dispatch(kernel, grid=16, block=1, args=(buffer, 16))
    queue.read(buffer, out)
    done = queue.dealloca(buffer)
    gate.signal(1)
    done.wait(LIMIT)
    assert out.tolist() == list(range(5, 21))


def test_a_use_that_is_issued_before_fails_alone_m3(opened):
    """M3: on another queue, without a wait; the alloca and what waits for it go on."""
    device, _ = opened
    gate = hal.create_semaphore()
    buffer = device.queue.alloca(SIZE, wait=gate.at(1))
    early = device.queues.upload.fill(buffer, 1)
    with pytest.raises(OperationError, match="alloca was issued"):
        early.wait(LIMIT)
    later = device.queues.upload.fill(buffer, 2, wait=buffer.allocation)
    gate.signal(1)
    assert (buffer.numpy(wait=later, timeout=LIMIT) == 2).all()


def test_recording_it_before_is_refused_m3(opened):
    """M3: a recording takes addresses, so it takes such a buffer by slot or afterwards."""
    device, _ = opened
    gate = hal.create_semaphore()
    buffer = device.queue.alloca(SIZE, wait=gate.at(1))
    with device.record() as commands, pytest.raises(InvalidArgumentError, match="slot"):
        commands.fill(buffer, 1)
    gate.signal(1)
    buffer.allocation.wait(LIMIT)
    with device.record() as commands:
        commands.fill(buffer, 1)
    assert (buffer.numpy(wait=device.queue.execute(commands)) == 1).all()


def test_slots_take_it_before_m3(opened):
    device, _ = opened
    gate, out = hal.create_semaphore(), np.zeros(SIZE, np.uint8)
    with device.record(slots=1) as commands:
        commands.fill(commands.slots[0], 4, size=SIZE)
    buffer = device.queue.alloca(SIZE, wait=gate.at(1))
    device.queue.execute(commands, bindings=[buffer])
    read = device.queue.read(buffer, out)
    device.queue.dealloca(buffer)
    gate.signal(1)
    read.wait(LIMIT)
    assert (out == 4).all()


# dealloca


def test_after_dealloca_it_is_unusable_m3(opened):
    """M3: at once, though the dealloca is pending; also its parts, and those made of them."""
    device, _ = opened
    gate = hal.create_semaphore()
    queue, other = device.queue, device.allocate(SIZE)
    buffer = queue.alloca(SIZE)
    parts = [buffer.subspan(0, 8), buffer.subspan(8, 64).subspan(8, 8)]
    ended = queue.dealloca(buffer, wait=gate.at(1))
    assert ended.kind == "dealloca"
    assert ended.state == "pending"
    for each in (buffer, *parts):
        assert each.closed
        for use in (
            lambda each=each: queue.fill(each, 1),
            lambda each=each: queue.copy(other, each, size=1),
            lambda each=each: queue.write(each, b"1"),
            lambda each=each: queue.dealloca(each),
            lambda each=each: each.address,
            each.numpy,
            each.map,
            lambda each=each: each.subspan(0, 1),
        ):
            with pytest.raises(ClosedError, match="dealloca"):
                use()
    buffer.close()
    gate.signal(1)
    ended.wait(LIMIT)


@pytest.mark.parametrize("hold", ["wait", "work", "pending work"])
def test_the_memory_returns_when_nobody_holds_it_m3(opened, hold):
    """M3: not before the dealloca's waits are met, nor before submitted work has retired."""
    device, probe = opened
    gate, latch = hal.create_semaphore(), Latch()
    buffer = device.queue.alloca(SIZE)
    part = buffer.subspan(0, 8)
    buffer.allocation.wait(LIMIT)
    if hold == "work":
        probe.hold(latch)
        device.queues.upload.fill(buffer, 1)
    elif hold == "pending work":
        device.queues.upload.fill(buffer, 1, wait=gate.at(1))
    ended = device.queue.dealloca(buffer, wait=gate.at(1) if hold == "wait" else ())
    if hold != "wait":
        ended.wait(LIMIT)
    assert device.statistics().allocations == 1
    gate.signal(1)
    latch.open()
    device.wait_idle(LIMIT)
    wait_until(lambda: device.statistics().allocations == 0)
    assert part.closed
    assert buffer.closed, "although buffer objects still live"


def test_memory_goes_round_m3(opened, mode):
    """M3: the next alloca gets what was given back; a loop makes no more native allocations."""
    device, probe = opened
    queue = device.queue
    for step in range(20):
        buffer = queue.alloca(SIZE)
        queue.fill(buffer, step)
        queue.dealloca(buffer).wait(LIMIT)
        del buffer
        device.statistics()
    name = {"emulated": "allocate", "native": "allocate_async"}[mode]
    if mode == "emulated":
        assert probe.calls[name] == 1
    else:
        assert probe.calls[name] == probe.calls["free_async"] == 20
        assert probe.calls["allocate"] == 0


def test_a_buffer_that_is_dropped_gives_its_memory_back_m3(opened):
    device, _ = opened
    gate = hal.create_semaphore()
    buffer = device.queue.alloca(SIZE, wait=gate.at(1))
    submission = buffer.allocation
    device.queue.fill(buffer, 1)
    del buffer
    gate.signal(1)
    submission.wait(LIMIT)
    device.wait_idle(LIMIT)
    wait_until(lambda: device.statistics().allocations == 0)


def test_a_view_outlives_dealloca_m2(opened):
    """M2: a numpy view keeps the memory."""
    device, _ = opened
    buffer = device.queue.alloca(SIZE, memory="host")
    device.queue.fill(buffer, 6).wait(LIMIT)
    view = buffer.map()
    device.queue.dealloca(buffer).wait(LIMIT)
    others = [device.allocate(SIZE, memory="host") for _ in range(2)]
    for other in others:
        device.queue.fill(other, 1).wait(LIMIT)
    assert (view == 6).all()
    del view
    gc.collect()
    assert device.statistics().allocations == 2


def test_what_dealloca_refuses_m3(device, second_device):
    buffer = device.queue.alloca(SIZE)
    part = buffer.subspan(0, 8)
    semaphore = hal.create_semaphore(5)
    for use, error, words in (
        (lambda: device.queue.dealloca(device.allocate(8)), InvalidArgumentError, r"close\(\)"),
        (lambda: device.queue.dealloca(part), InvalidArgumentError, "part"),
        (lambda: device.queue.dealloca(None), ArgumentTypeError, "NoneType"),
        (lambda: second_device.queue.dealloca(buffer), InvalidArgumentError, "belongs to"),
        (lambda: device.queue.dealloca(buffer, wait=[5]), ArgumentTypeError, "wait"),
        (lambda: device.queue.dealloca(buffer, signal=semaphore.at(3)), InvalidArgumentError, "5"),
    ):
        with pytest.raises(error, match=words):
            use()
        assert not buffer.closed, "nothing has changed"
    device.queue.dealloca(buffer).wait(LIMIT)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((-1,), {}, InvalidArgumentError),
        (("4",), {}, ArgumentTypeError),
        ((5,), {"dtype": "f4"}, InvalidArgumentError),
        ((8,), {"memory": "vram"}, InvalidArgumentError),
        ((8,), {"wait": [3]}, ArgumentTypeError),
        ((8,), {"signal": [3]}, ArgumentTypeError),
    ],
)
def test_what_alloca_refuses_m3(device, arguments, options, error):
    with pytest.raises(error):
        device.queue.alloca(*arguments, **options)
    assert device.statistics().allocations == 0


# Failure


def test_a_failed_wait_fails_what_uses_the_buffer_m3(opened):
    """M3: with the alloca's own error, whether or not they wait for it; dealloca goes well."""
    device, _ = opened
    gate = hal.create_semaphore()
    queue = device.queue
    buffer = queue.alloca(SIZE, wait=gate.at(1))
    behind = queue.fill(buffer, 1)
    copied = queue.copy(buffer.subspan(0, 8), device.allocate(8))
    waits = device.queues.upload.fill(buffer, 1, wait=buffer.allocation)
    gate.fail(OperationError("the cause"))
    for submission in (buffer.allocation, behind, copied, waits):
        with pytest.raises(OperationError, match="the cause"):
            submission.wait(LIMIT)
    with pytest.raises(OperationError, match="the cause"):
        queue.fill(buffer, 1).wait(LIMIT)
    with pytest.raises(OperationError, match="the cause"):
        _ = buffer.address
    queue.dealloca(buffer).wait(LIMIT)
    wait_until(lambda: device.statistics().allocations == 0)


def test_a_cancelled_one_m3(opened):
    device, _ = opened
    never = hal.create_semaphore()
    queue = device.create_queue()
    buffer = queue.alloca(SIZE, wait=never.at(1))
    queue.close(LIMIT)
    assert buffer.allocation.state == "cancelled"
    with pytest.raises(CancelledError):
        device.queue.fill(buffer, 1).wait(LIMIT)
    device.queue.dealloca(buffer).wait(LIMIT)
    del buffer
    wait_until(lambda: device.statistics().allocations == 0)


def test_running_out_of_memory_m3(opened, mode):
    """M3: the alloca fails, what uses it fails with the same, and the queue goes on."""
    device, probe = opened
    name = {"emulated": "allocate", "native": "allocate_async"}[mode]
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


@pytest.mark.parametrize(("ordered", "explicit"), [(True, True), (True, False), (False, True)])
def test_memory_that_comes_back_on_the_way_is_waited_for_m3(
    open_probe, monkeypatch, ordered, explicit
):
    """M3: with room for one, an alloca behind the other's dealloca gets its memory."""
    tried, original = threading.Event(), hal._alloca._grow_late

    def grow_late(*arguments):
        tried.set()
        original(*arguments)

    monkeypatch.setattr("hal._alloca._grow_late", grow_late)
    device, _ = open_probe(settings=MemorySettings(memory_limit=SIZE))
    queue, gate = device.create_queue(ordered=ordered), hal.create_semaphore()
    one = queue.alloca(SIZE)
    one.allocation.wait(LIMIT)
    ended = queue.dealloca(one, wait=gate.at(1))
    two = queue.alloca(SIZE, wait=[ended] if explicit else ())
    out = np.zeros(SIZE, np.uint8)
    queue.fill(two, 8, wait=two.allocation)
    read = queue.read(two, out, wait=[two.allocation, queue.fill(two, 9, wait=two.allocation)])
    assert not tried.wait(0.1), "not before what it comes after has ended"
    assert two.allocation.state == "pending"
    gate.signal(1)
    read.wait(LIMIT)
    assert (out == 9).all()
    assert tried.is_set()


@pytest.mark.parametrize("name", ["allocate_async", "host_pointer", "free_async", "create_stream"])
def test_native_calls_that_fail_m3(open_probe, name):
    device, probe = open_probe(settings=MemorySettings(async_allocations=True))
    probe.fail_call(1, OperationError("injected"), (name,))
    buffer = device.queue.alloca(SIZE)
    if name in {"allocate_async", "host_pointer"}:
        with pytest.raises(OperationError, match="injected"):
            buffer.allocation.wait(LIMIT)
    device.queue.dealloca(buffer).wait(LIMIT)
    del buffer
    device.statistics()
    if name in {"free_async", "create_stream"}:
        assert probe.live()["async allocation"] == 1, "nobody could do anything about it"
        probe.alive["async allocation"].clear()
    other = device.queue.alloca(SIZE)
    assert (other.numpy(wait=device.queue.fill(other, 1), timeout=LIMIT) == 1).all()


def test_a_lost_device_m3(opened):
    device, probe = opened
    gate = hal.create_semaphore()
    buffer = device.queue.alloca(SIZE, wait=gate.at(1))
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    device.queues.upload.fill(device.allocate(8), 1)
    with pytest.raises(DeviceLostError):
        buffer.allocation.wait(LIMIT)


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
    device, probe = open_probe()
    entered, leave = threading.Event(), threading.Event()

    def stall():
        entered.set()
        assert leave.wait(LIMIT)

    probe.fail_call(1, stall, ("allocate",))
    me = threading.get_ident()
    buffer = device.queue.alloca(SIZE)
    used = device.queue.fill(buffer, 3)
    ended = device.queue.dealloca(buffer)
    assert entered.wait(LIMIT)
    assert [each.state for each in (buffer.allocation, used, ended)] == ["pending"] * 3
    assert device.queues.upload.barrier().wait(LIMIT) is None
    leave.set()
    ended.wait(LIMIT)
    assert used.state == "done"
    assert probe.callers["allocate", me] == 0


def test_it_frees_on_a_stream_of_its_own_m3(open_probe):
    """M3: native frees go to a housekeeping stream, when no operation holds the memory."""
    device, probe = open_probe(settings=MemorySettings(async_allocations=True))
    streams = set(probe.alive["stream"])
    freed_on = []
    free = probe.free_async
    probe.free_async = lambda stream, address: (freed_on.append(stream), free(stream, address))
    latch = Latch()
    buffer = device.queue.alloca(SIZE)
    probe.hold(latch)
    device.queue.fill(buffer, 1)
    device.queue.dealloca(buffer)
    device.statistics()
    assert probe.calls["free_async"] == 0
    latch.open()
    device.wait_idle(LIMIT)
    wait_until(lambda: device.statistics().allocations == 0)
    assert probe.calls["free_async"] == 1
    assert not streams.intersection(freed_on)


def test_threads_m3(opened):
    """Four threads allocate, use and give back on queues of their own."""
    device, _ = opened

    def work(seed):
        queue = device.create_queue()
        for step in range(60):
            size = 1000 + 97 * ((seed + step) % 5)
            buffer = queue.alloca(size)
            queue.fill(buffer, (seed * 60 + step) % 256)
            out = np.zeros(size, np.uint8)
            read = queue.read(buffer, out)
            queue.dealloca(buffer)
            read.wait(LIMIT)
            assert (out == (seed * 60 + step) % 256).all()

    collect_in_threads([lambda seed=seed: work(seed) for seed in range(4)])
    device.wait_idle(LIMIT)
    wait_until(lambda: device.statistics().allocations == 0)


def test_a_part_made_while_another_thread_gives_back_m3(device):
    """M3: either it comes first and ends with the whole, or it is refused."""
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
    """M3: it has the address, whichever comes first."""
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
