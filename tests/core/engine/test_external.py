"""Waiting for streams and events of other libraries, and theirs for our queues (I1, Q1).

The other library is `foreign_library`: it makes native calls of its own on the
device under the probe.
"""

import gc
import threading
import weakref

import pytest
from core_harness import LIMIT, Latch, Running, wait_until
from external_harness import SIZE, pretend, zeros
from foreign_library import Event

import hal
from hal.errors import (
    ArgumentTypeError,
    CancelledError,
    ClosedError,
    DeadlineExceededError,
    InvalidArgumentError,
    OperationError,
    UnimplementedError,
)


def test_the_record_is_made_during_the_call_i1(shared):
    """I1: also when our operation has to wait for something else first."""
    device, probe, library = shared
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    theirs, latch = library.held_stream()
    records = probe.calls["record_event"]
    waited = device.queue.wait_external(theirs.handle, wait=[gate.at(1)], signal=[done.at(1)])
    assert waited.state == "pending"
    assert probe.calls["record_event"] == records + 1
    later = theirs.hold()
    gate.signal(1)
    assert not waited.done
    latch.open()
    done.wait(1, LIMIT)
    assert not theirs.is_done()
    later.open()


def test_a_queue_waits_for_their_event(shared):
    device, _, library = shared
    buffer, copied = zeros(device), zeros(device)
    theirs, latch = library.held_stream()
    theirs.fill(buffer.address, 5, SIZE)
    event = theirs.record()
    for given in (event, event.handle):
        waited = device.queue.wait_external(event=given)
        assert waited.state == "issued"
    work = device.queue.copy(buffer, copied)
    assert not work.done
    latch.open()
    work.wait(LIMIT)
    assert (copied.map() == 5).all()
    device.queue.wait_external(event=Event(library.native)).wait(LIMIT)  # never recorded


def test_an_event_is_kept_until_it_was_waited_for_q5(shared):
    """Q5: an object is; a bare handle is its owner's matter."""

    class Tracked(Event):
        pass

    device, _, library = shared
    gate = hal.create_semaphore()
    event = Tracked(library.native)
    reference = weakref.ref(event)
    waited = device.queue.wait_external(event=event, wait=gate.at(1))
    del event
    gc.collect()
    assert reference() is not None
    gate.signal(1)
    waited.wait(LIMIT)
    del waited
    device.wait_idle(LIMIT)
    gc.collect()
    assert reference() is None


def test_our_events_come_back_i7(shared):
    """I7: from waits that were issued, failed, cancelled and refused."""
    device, probe, library = shared
    theirs, latch = library.held_stream()
    gate = hal.create_semaphore()
    for _ in range(8):
        device.queue.wait_external(theirs.handle)
        device.queues.upload.wait_external(theirs.handle, wait=gate.at(1))
    probe.fail_call(1, OperationError("no way"), {"wait_event"})
    with pytest.raises(OperationError, match="no way"):
        device.queues.download.wait_external(theirs.handle).wait(LIMIT)
    used = probe.live()["event"]
    latch.open()
    device.queue.barrier().wait(LIMIT)
    device.queues.upload.close(LIMIT)
    with pytest.raises(ClosedError):
        device.queues.upload.wait_external(theirs.handle)
    gc.collect()
    for _ in range(32):
        device.queue.wait_external(theirs.handle).wait(LIMIT)
        gc.collect()
    assert probe.live()["event"] <= used + 1
    device.trim(1 << 40)  # retires what has failed, too
    assert device._context.events.is_idle()
    assert "adopted stream" not in probe.live()


def test_a_wait_that_is_not_over_does_not_hold_up_close_for_ever_q6(shared):
    """Q6: the device is lost at the time-out, and what is theirs stays theirs."""
    device, probe, library = shared
    theirs, latch = library.held_stream()
    waited = device.queue.wait_external(theirs.handle)
    (line,) = device.close(0.05)
    assert "wait_external on cpu:0/compute" in line
    assert waited.state == "failed"
    assert device.lost
    latch.open()
    theirs.synchronize()
    assert probe.calls["destroy_stream"] == 0


# They wait for our queue


def test_their_event_is_recorded_behind_a_queue(shared):
    device, probe, library = shared
    buffer, copied = zeros(device), zeros(device)
    latch = Latch()
    probe.hold(latch)
    device.queue.fill(buffer, 5)
    theirs, event = library.stream(), Event(library.native)
    device.queue.notify_external(event=event)
    theirs.wait(event)
    theirs.copy(copied.address, buffer.address, SIZE)
    assert not theirs.is_done()
    latch.open()
    theirs.synchronize()
    assert (copied.map() == 5).all()


def test_host_operations_are_waited_for_on_the_host_q2(shared, gate):
    device, _, library = shared
    theirs = library.stream()
    device.queue.call(gate.wait, LIMIT)
    with pytest.raises(DeadlineExceededError):
        device.queue.notify_external(theirs.handle, timeout=0)
    gate.set()
    device.queue.notify_external(theirs.handle, timeout=LIMIT)
    theirs.synchronize()


def test_an_event_that_was_given_up_is_not_recorded_later(shared):
    """No order is established then, and its owner may have destroyed it."""
    device, probe, library = shared
    ready, event = hal.create_semaphore(), Event(library.native)
    with pytest.raises(DeadlineExceededError):
        device.queue.notify_external(event=event, wait=ready.at(1), timeout=0)
    ready.signal(1)
    device.queue.barrier().wait(LIMIT)
    assert probe.calls["adopt_event"] == 0


def test_failures_of_the_list_are_raised_s5(shared):
    device, probe, library = shared
    theirs = library.stream()
    failed = hal.create_semaphore()
    failed.fail(OperationError("broken"))
    with pytest.raises(OperationError, match="broken"):
        device.queue.notify_external(theirs.handle, wait=failed.at(1))
    gate = hal.create_semaphore()
    device.queue.fill(zeros(device), 1, wait=gate.at(1))
    notifying = Running(device.queue.notify_external, theirs.handle)
    wait_until(lambda: device.queue._unissued()[1:])
    device.queue.close(LIMIT)
    with pytest.raises(CancelledError):
        notifying.result()
    # The progress thread may have made its own stream wait.
    for ident in (threading.get_ident(), notifying.ident):
        assert probe.callers["wait_event", ident] == 0


# What is taken for a stream or an event


@pytest.mark.parametrize("where", [(2, 0), (10, 0)])
def test_objects_of_cuda_are_taken_where_the_device_is_one(shared, monkeypatch, where):
    device, probe, library = shared
    theirs = library.stream()
    for use in uses_of_streams(device):
        with pytest.raises(InvalidArgumentError, match=r"stream of CUDA, and cpu:0 is not"):
            use(theirs)
    assert theirs.asked == 0
    pretend(probe, monkeypatch, where)
    for use in uses_of_streams(device):
        use(theirs)
    assert theirs.asked == len(uses_of_streams(device))
    device.wait_idle(LIMIT)


def uses_of_streams(device):
    return (
        device.queue.wait_external,
        device.queue.notify_external,
        lambda stream: device.create_queue(stream=stream),
    )


def test_bad_streams_and_events_are_refused(shared, monkeypatch):
    device, probe, _ = shared
    pretend(probe, monkeypatch, (2, 0))

    class NextVersion:
        def __cuda_stream__(self):
            return 1, 5

    before = dict(probe.calls)
    for use in uses_of_streams(device):
        for wrong in ("stream", 1.5, True, object()):
            with pytest.raises(ArgumentTypeError, match="__cuda_stream__"):
                use(wrong)
        with pytest.raises(InvalidArgumentError, match="0 or more"):
            use(-1)
        with pytest.raises(InvalidArgumentError, match="version 1"):
            use(NextVersion())
    for method in (device.queue.wait_external, device.queue.notify_external):
        for wrong in ("event", 1.5, True, object()):
            with pytest.raises(ArgumentTypeError, match=r"\.handle"):
                method(event=wrong)
        for wrong in (-1, 0):
            with pytest.raises(InvalidArgumentError):
                method(event=wrong)
        for arguments in ({}, {"stream": 5, "event": 5}):
            with pytest.raises(ArgumentTypeError, match="one of them"):
                method(**arguments)
    with pytest.raises(InvalidArgumentError):
        device.queue.notify_external(5, timeout=-1)
    assert dict(probe.calls) == before


def test_a_handle_that_the_driver_refuses(shared):
    device, probe, _ = shared
    for use in uses_of_streams(device):
        with pytest.raises(OperationError, match="no stream"):
            use(1 << 40)
    with pytest.raises(OperationError, match="no event"):
        device.queue.wait_external(event=1 << 40).wait(LIMIT)
    with pytest.raises(OperationError, match="no event"):
        device.queue.notify_external(event=1 << 40)
    assert "adopted stream" not in probe.live()


def test_a_device_that_knows_no_streams_says_so(open_probe):
    device, probe = open_probe(without={"external_streams"})
    for use in uses_of_streams(device):
        with pytest.raises(UnimplementedError, match="'external_streams'"):
            use(5)
    assert probe.calls["adopt_stream"] == 0
