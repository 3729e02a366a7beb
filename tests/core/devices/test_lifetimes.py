"""Lifetimes: Q5 and I4 (what is used is kept), M2 (views never dangle), I7 (nothing is left)."""

import gc
import threading
import tracemalloc
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, Latch, wait_until

import hal
from hal._engine import closing, contexts, progress
from hal.errors import OperationError

SIZE = 1 << 17  # more than a write takes during the call


# Q5: what a submission uses is kept until it has retired


def test_buffers_of_failed_work_are_kept_until_it_retires_q5(open_probe, latch):
    """Q5: an operation that failed during its issue keeps its memory until it retires."""
    device, probe = open_probe()
    buffer = device.allocate(SIZE)
    probe.hold(latch)
    probe.fail_call(1, OperationError("injected"), ("record_event",))
    failed = device.queue.fill(buffer, 1)
    assert failed.state == "failed"
    del buffer
    gc.collect()
    assert device.statistics().allocations == 1
    latch.open()
    device.wait_idle(LIMIT)
    device.queue.barrier().wait(LIMIT)
    assert device.statistics().allocations == 0


def test_an_operation_that_failed_at_its_wait_lets_go_q5(open_probe):
    """Q5: it releases its buffers although it is still in line behind a pending operation."""
    device, _ = open_probe()
    buffer = device.allocate(SIZE)
    gate, broken = hal.create_semaphore(), hal.create_semaphore()
    device.queue.barrier(wait=gate.at(1))
    failed = device.queue.fill(buffer, 1, wait=broken.at(1))
    broken.fail(OperationError("no"))
    del buffer
    gc.collect()
    assert failed.state == "failed"
    assert device.statistics().allocations == 0


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
def test_operations_that_ended_are_not_kept(device, ordered, end):
    """Neither the queue keeps them nor a semaphore of theirs, however they ended."""
    queue = device.create_queue(ordered=ordered)
    waited, signalled, other = (hal.create_semaphore() for _ in range(3))
    others = [] if end == "done" else [other.at(1)]  # which is never reached, and stays
    references = [
        weakref.ref(queue.barrier(wait=[waited.at(value), *others], signal=signalled.at(value)))
        for value in range(1, 21)
    ]
    if end == "done":
        waited.signal(20)
    elif end == "failed":
        waited.fail(OperationError("no"))
    if end == "cancelled":
        queue.close(LIMIT)
    else:
        queue.wait_idle(LIMIT)
        queue.barrier().wait(LIMIT)
    gc.collect()
    assert [reference() for reference in references] == [None] * 20


# What numpy views show


def test_close_with_live_views_m2(open_probe):
    """M2: the device closes, tells what memory it had to keep, and frees it with the last view."""
    device, probe = open_probe()
    buffer = device.upload(np.arange(1 << 16, dtype=np.int32))
    other = device.upload(np.zeros(16, np.uint8))
    view = buffer.map()
    told = device.close(LIMIT)
    assert len(told) == 1
    assert f"{1 << 18:,} bytes" in told[0]
    assert "view" in told[0]
    assert probe.live() == {"allocation": 1}
    assert view[-1] == (1 << 16) - 1
    view[0] = 77
    assert view[0] == 77
    assert not probe.closed, "the context lives as long as its memory is seen"
    del buffer, other
    part = view[:2]
    del view
    gc.collect()
    assert part.tolist() == [77, 1]
    del part
    gc.collect()
    wait_until(lambda: not probe.live() and probe.closed)


def test_close_of_a_lost_device_with_live_views_m2(open_probe):
    """M2: also when the device is lost the memory under a view stays."""
    device, probe = open_probe()
    view = device.upload(np.arange(16, dtype=np.uint8)).map()
    probe.fail_call(1, hal.errors.DeviceLostError("gone"), ("fill",))
    device.queue.fill(device.allocate(4), 1)
    device.close(LIMIT)
    assert not probe.closed, "the context took the memory along"
    assert view.tolist() == list(range(16))
    del view
    gc.collect()
    wait_until(lambda: probe.closed)


def test_views_of_zero_size_m2(device):
    assert device.allocate(0).map().shape == (0,)
    assert device.allocate(8).subspan(8, 0).map().shape == (0,)


# I7, I10: nothing is left


@pytest.mark.parametrize("leave", ["nothing", "pending", "running", "failed", "many queues"])
def test_no_native_object_is_left_after_close_i7(open_probe, leave):
    """I7: streams, events, allocations and modules are all given back, whatever was going on."""
    device, probe = open_probe()
    buffer = device.allocate(SIZE)
    gate = hal.create_semaphore()
    latch = Latch()
    if leave == "pending":
        for _ in range(20):
            device.queue.fill(buffer, 1, wait=gate.at(1))
    elif leave == "running":
        probe.hold(latch)
        for _ in range(20):
            device.queue.fill(buffer, 1)
        threading.Thread(target=latch.open).start()
    elif leave == "failed":
        probe.fail_call(2, OperationError("injected"), ("fill",))
        for _ in range(4):
            device.queue.fill(buffer, 1)
        gate.fail(OperationError("no"))
        device.queue.fill(buffer, 1, wait=gate.at(1))
    elif leave == "many queues":
        for index in range(20):
            queue = device.create_queue(ordered=bool(index % 2))
            semaphore = hal.create_semaphore()
            semaphore.on_reached(1, lambda _: None)
            queue.fill(buffer, 1, signal=semaphore.at(1))
    assert device.close(LIMIT) == ()
    assert probe.live() == {}
    assert probe.closed


def test_closing_a_queue_gives_its_stream_back_i7(open_probe):
    device, probe = open_probe()
    before = probe.live()["stream"]
    for _ in range(30):
        with device.create_queue() as queue:
            queue.barrier().wait(LIMIT)
    assert probe.live()["stream"] == before


def test_finalisers_take_no_lock_i10(open_probe):
    """I10: buffers that die under the collector, on any thread, in the middle of anything."""
    device, probe = open_probe()
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for index in range(150):
            ring = [device.allocate(64)]
            ring.append(ring)  # only the collector frees it
            done = hal.create_semaphore()
            device.queue.fill(ring[0], index % 256, signal=done.at(1))
            done.wait(1, LIMIT)
    finally:
        gc.set_threshold(*threshold)
    ring = None
    gc.collect()
    assert device.statistics().allocations == 0
    device.trim()
    assert "allocation" not in probe.live()


def test_twenty_thousand_operations_leave_nothing(open_probe):
    """Memory is flat: no object, no byte and no native handle per operation remains."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    semaphore = hal.create_semaphore()
    value = 0

    def work(count):
        nonlocal value
        for _ in range(count):
            value += 1
            queue = (device.queues.compute, device.queues.upload)[value % 2]
            queue.fill(buffer, 1, wait=semaphore.at(value - 1), signal=semaphore.at(value))
            if value % 100 == 0:
                semaphore.wait(value, LIMIT)
        device.wait_idle(LIMIT)

    work(2000)
    gc.collect()
    objects, native = len(gc.get_objects()), dict(probe.live())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work(2000)

        def is_flat():
            gc.collect()
            return tracemalloc.get_traced_memory()[0] - before < 100_000

        wait_until(is_flat)  # without the interpreter lock another thread may have to drop some
    finally:
        tracemalloc.stop()
    work(16_000)
    gc.collect()
    assert len(gc.get_objects()) - objects < 500
    assert probe.live()["event"] <= native["event"] + 100


def test_a_closed_device_is_collected(open_probe):
    """After close nothing of ours keeps the device."""
    device = hal.create_device("cpu")
    semaphore = hal.create_semaphore()
    semaphore.on_reached(1, lambda _: None)
    device.queue.barrier(signal=semaphore.at(1)).wait(LIMIT)
    device.close(LIMIT)
    reference = weakref.ref(device)
    del device

    def collected():
        gc.collect()
        return reference() is None

    wait_until(collected)


def test_a_trim_that_is_interrupted_keeps_the_events_for_reuse_o3(device, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    hal.wait_all([device.queue.barrier() for _ in range(5)], LIMIT)
    with monkeypatch.context() as during:
        during.setattr(closing, "wait_for_calls", interrupted)
        with pytest.raises(KeyboardInterrupt):
            device.trim()
    assert device._context.events.is_idle()


def test_a_queue_may_come_or_go_as_another_one_looks_after_it_q1(device):
    """Q1: `DeviceContext.queues` is replaced by other threads, in between two looks at it."""
    listed = [device.queues.compute, device.queues.upload]

    class Changing:
        """A context whose queues are two at first, and gone at the next look."""

        _rotation = 0

        @property
        def queues(self):
            return [listed.pop()] * len(listed) if listed else []

    class Submitted:
        _context, _ring = Changing(), ()

    progress.act(contexts.harvest_some, Submitted(), None)
