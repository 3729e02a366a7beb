"""Q6: close of devices and queues: what it waits for, cancels, gives up and leaves behind."""

import gc
import itertools
import re
import sys
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, Running, collect_in_threads, open_native, stalled, wait_until
from interrupts import Interrupts
from native_probe import Probe

import hal
from hal._base import sync
from hal._devices import lifecycle
from hal._engine import closing, steps
from hal.errors import CancelledError, ClosedError, DeviceLostError, OperationError


@pytest.mark.parametrize("ends", [True, False])
def test_work_of_another_device_behind_abandoned_work_s5_q6(open_probe, latch, ends):
    """S5, Q6: such work fails when the abandoned work ends, or at its own device's deadline."""
    first, probe = open_probe()
    second, _ = open_probe()
    source, target = first.allocate(4), second.allocate(4)
    probe.hold(latch)
    abandoned = first.queue.fill(source, 1)
    behind = second.queue.fill(target, 1, wait=abandoned)
    last = second.queue.fill(target, 2)
    assert behind.state == "issued"
    assert len(first.close(0.01)) == 1
    with pytest.raises(DeviceLostError):
        abandoned.wait(LIMIT)
    assert not behind.done, "its stream still waits"
    if ends:
        latch.open()
        last.wait(LIMIT)
        told = ()
    else:
        told = second.close(0.01)
        latch.open()
        assert len(told) == 2
    with pytest.raises(DeviceLostError, match=re.escape(first.name if ends else second.name)):
        behind.wait(LIMIT)
    assert second.lost == (not ends)


@pytest.mark.parametrize("what", ["queue", "device"])
def test_a_notification_that_is_being_armed_keeps_its_stream_q6(open_probe, latch, what):
    """Q6: a close without time left destroys no stream that another thread's call is about."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    probe.hold(latch)
    filled = device.queue.fill(buffer, 1)
    stall, waiter = stalled(probe, "notify", 1, filled.wait)
    latch.open()
    wait_until(lambda: filled.done)
    told = (device if what == "device" else device.queue).close(0)
    stall.leave.set()
    waiter.result()
    assert probe.violations == []
    assert told == (f"a call of the driver's for {device.queue.name} on another thread",)
    assert device.lost


@pytest.mark.parametrize("ends", [True, False])
def test_a_stream_that_a_trim_synchronises_is_kept_meanwhile_q6(open_probe, monkeypatch, *, ends):
    """Q6: the close of a queue without work waits for another thread's call, also without time."""
    device, probe = open_probe()
    stall, trimming = stalled(probe, "synchronize_stream", 1, device.trim)
    nap = sync.nap

    def let_go(pause):
        if ends:
            stall.leave.set()
        nap(pause)

    monkeypatch.setattr(sync, "nap", let_go)
    told = device.queue.close(0)
    stall.leave.set()
    trimming.result()
    assert probe.violations == []
    kept = f"a call of the driver's for {device.queue.name} on another thread"
    assert told == (() if ends else (kept,))
    assert device.lost is not ends


def test_abandoned_work_keeps_its_host_arrays_q5(open_probe, latch):
    """Q5: work goes on after the time-out, so its host arrays are never released."""
    device, probe = open_probe()
    buffer = device.upload(np.full(1 << 16, 3, np.uint8))

    class Tracked(np.ndarray):
        pass

    array = Tracked(1 << 16, np.uint8)  # the owner of its memory
    reference = weakref.ref(array)
    probe.hold(latch)
    device.queue.read(buffer, array)
    assert device.close(0.05) != ()
    assert device.lost
    del array, buffer
    gc.collect()
    assert reference() is not None
    latch.open()


def test_close_waits_for_the_close_of_another_thread_q6(open_probe, gate):
    """Q6: the second close returns when the first does, and reports nothing running as clean."""
    device, _ = open_probe()
    started = threading.Event()

    def call():
        started.set()
        assert gate.wait(LIMIT)

    running = device.queue.call(call)
    assert started.wait(LIMIT)
    cancelled = device.queue.barrier(wait=hal.create_semaphore().at(1))

    def first():
        return device.close(LIMIT)

    def second():
        with pytest.raises(CancelledError):
            cancelled.wait(LIMIT)  # by the first, which is under way then
        assert running.state == "issued"
        (line,) = device.close(0.01)
        assert device.name in line
        assert "another thread is still closing" in line
        gate.set()
        assert device.close(LIMIT) == ()
        return running.state

    assert collect_in_threads([first, second]) == [(), "done"]


def held_queue(open_probe, latch):
    """Hold a fill up, before a barrier that waits for ever; return all of it."""
    device, probe = open_probe()
    queue = device.queues.upload
    buffer = device.allocate(4)
    probe.hold(latch)
    running = queue.fill(buffer, 1)
    behind = queue.barrier(wait=hal.create_semaphore().at(1))
    return device, probe, queue, running, behind


def while_it_closes(queue, behind, function):
    """Close a queue, and call a function on another thread meanwhile; return both results."""

    def call():
        with pytest.raises(CancelledError):
            behind.wait(LIMIT)
        return function()

    return collect_in_threads([lambda: queue.close(LIMIT), call])


def test_close_of_a_queue_that_another_thread_closes_q6(open_probe, latch):
    """Q6: the second close reports nothing running as clean, and loses no device."""
    device, _, queue, running, behind = held_queue(open_probe, latch)

    def second():
        (line,) = queue.close(0.01)
        assert queue.name in line
        assert "another thread is still closing" in line
        assert not device.lost
        latch.open()
        return queue.close(LIMIT)

    assert while_it_closes(queue, behind, second) == [(), ()]
    assert running.state == "done"


def test_close_of_a_device_whose_queue_another_thread_closes_q6(open_probe, latch):
    """Q6: close reports what still runs there, and does not release the context under it."""
    device, probe, queue, running, behind = held_queue(open_probe, latch)

    def second():
        told = device.close(0.1)
        assert device.lost
        assert running.state == "failed"
        return told

    ended, told = while_it_closes(queue, behind, second)
    assert [queue.name in line for line in told] == [True]
    assert not probe.closed
    assert ended in {(), told}
    latch.open()


def test_close_from_a_finaliser_in_the_middle_of_a_close_q6(open_probe, monkeypatch):
    """Q6: a thread that closes a device does not wait for itself."""
    device, probe = open_probe()
    told = []
    close = probe.close
    monkeypatch.setattr(probe, "close", lambda: (told.append(device.close(1e6)), close()))
    assert device.close(LIMIT) == ()
    assert told == [()]


def test_close_goes_on_where_one_in_another_thread_was_interrupted_q6(
    open_probe, gate, monkeypatch
):
    """Q6: a thread that waits for a close continues it if Ctrl-C ends the other thread's."""
    device, probe = open_probe()
    inside = threading.Event()

    def interrupted():
        monkeypatch.undo()
        inside.set()
        assert gate.wait(LIMIT)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(device._timers), "close", lambda _: interrupted())

    def first():
        with pytest.raises(KeyboardInterrupt):
            device.close(LIMIT)

    def second():
        assert inside.wait(LIMIT)
        assert device.close(0) != ()
        gate.set()
        return device.close(LIMIT)

    assert collect_in_threads([first, second]) == [None, ()]
    assert probe.closed


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_device_that_cannot_be_opened_leaves_no_stream_i7(number):
    inner = open_native().open_device(0, {})
    probe = Probe(inner, None, inner.features)
    probe.fail_call(number, OperationError("injected"), ("create_stream",))
    with pytest.raises(OperationError, match="injected"):
        hal.Device("cpu", probe, None)
    assert probe.live() == {}
    inner.close()


def test_close_waits_for_another_devices_stream_that_is_told_to_wait_for_its_event_q6(
    open_probe, latch, monkeypatch
):
    """Q6, I1: the event may be destroyed only once the other stream's wait is enqueued."""
    (device, probe), (other, far) = open_probe(), open_probe()
    probe.hold(latch)
    first = device.queue.barrier()
    asked, users = threading.Event(), []
    context = device._context
    wait_for_calls, wait_event = closing.wait_for_calls, far.wait_event

    def look(its, deadline):
        if its is context:
            users.append(steps.users(its))
            asked.set()
        return wait_for_calls(its, deadline)

    closer = threading.Thread(target=device.close, args=(LIMIT,))

    def begin_to_close(stream, event):
        far.wait_event = wait_event  # once: the close asks for more notices
        latch.open()
        closer.start()
        assert asked.wait(LIMIT)
        wait_event(stream, event)

    monkeypatch.setattr(closing, "wait_for_calls", look)
    far.wait_event = begin_to_close
    second = other.queue.barrier(wait=[first])
    closer.join(LIMIT)
    second.wait(LIMIT)
    assert users == [1]
    assert device.closed


def test_a_queue_that_is_created_beside_the_close_of_its_device_is_closed_q6(open_probe):
    """Q6: the close waits for the native call, and the queue is refused; nothing native is left."""
    device, probe = open_probe()
    create = probe.create_stream
    closer = threading.Thread(target=device.close, args=(LIMIT,))

    def begin_to_close():
        probe.create_stream = create
        closer.start()
        wait_until(lambda: device.closed)
        return create()

    probe.create_stream = begin_to_close
    with pytest.raises(ClosedError):
        device.create_queue()
    closer.join(LIMIT)
    assert probe.live() == {}


def test_a_trim_beside_a_close_destroys_no_event_twice_q6(open_probe):
    """Q6: the two destroy different events, and the close waits for the trim."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    for queue in (device.queue, device.queues.upload, device.queues.download):
        queue.fill(buffer, 1)
    device.wait_idle(LIMIT)
    device.statistics()
    destroy, events = probe.destroy_event, device._context.events
    closer = threading.Thread(target=device.close, args=(LIMIT,))

    def close_beside(event):
        probe.destroy_event = destroy
        closer.start()
        wait_until(lambda: events.is_empty)
        destroy(event)

    probe.destroy_event = close_beside
    device.trim()
    closer.join(LIMIT)
    assert probe.live() == {}


def test_a_ctrl_c_as_a_device_has_just_been_opened_closes_it_o3():
    """O3: its native device was closed, and the exit hook would have used that."""

    def interrupt(frame, event, _):
        if event == "return" and frame.f_code is hal.Device.__init__.__code__:
            raise KeyboardInterrupt

    before = set(lifecycle.devices)
    sys.setprofile(interrupt)
    with pytest.raises(KeyboardInterrupt):
        hal.create_device("cpu")
    sys.setprofile(None)
    assert set(lifecycle.devices) == before


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("what", ["queue", "device"])
def test_a_close_completes_what_an_interrupted_one_has_left_q6(open_probe, what, waits):
    """Q6: the thread's next calls, such as a wait, counted as the close that was interrupted."""
    gate = hal.create_semaphore()
    for number in itertools.count(1):
        device, probe = open_probe()
        closed = device.create_queue() if what == "queue" else device
        places, is_left = [], threading.Event()

        def close(closed=closed, device=device, number=number, places=places, is_left=is_left):
            with Interrupts(number) as interrupts:
                closed.close()
            places.append(interrupts.places)
            is_left.set()
            if waits:
                gate.wait(number, LIMIT)
            else:
                assert device.close(1.0) == (), places

        other = Running(close)
        is_left.wait(LIMIT)
        if waits:
            assert device.close(1.0) == (), places
            gate.signal(number)
        other.result()
        assert device.closed, places
        assert (probe.violations, probe.live()) == ([], {}), places
        if not places[0]:
            break
    assert number > 10
