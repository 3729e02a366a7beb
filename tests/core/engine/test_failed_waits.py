"""Operations fail with what they wait for, and their signals with them (S4, S5)."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads
from failure_harness import assert_broken

import hal
from hal.errors import CancelledError, OperationError


@pytest.mark.parametrize("position", [0, 1, 49, 99])
@pytest.mark.parametrize("when", ["before submission", "after submission"])
def test_one_failed_wait_of_many_fails_the_operation_s5(device, position, when):
    """S5: whichever it is, although the others are never met; nothing stays registered."""
    many = [hal.create_semaphore() for _ in range(100)]
    original = OperationError("one of many")
    if when == "before submission":
        many[position].fail(original)
    submission = device.queue.barrier(wait=[each.at(1) for each in many])
    if when == "after submission":
        many[position].fail(original)
    assert_broken(submission, original)
    reference = weakref.ref(submission)
    del submission
    device.queue.barrier().wait(LIMIT)
    gc.collect()
    assert reference() is None, "the other 99 semaphores keep it"


def test_a_long_chain_fails_without_recursion_s5(device):
    """S5: a cascade of 3000 failures uses no stack."""
    gate = hal.create_semaphore()
    queues = [device.create_queue(ordered=False), device.create_queue(ordered=False)]
    submission = device.queue.barrier(wait=gate.at(1))
    for index in range(3000):
        submission = queues[index % 2].barrier(wait=submission)
    gate.fail(OperationError("far away"))
    with pytest.raises(OperationError, match="far away"):
        submission.wait(LIMIT)


def test_failure_crosses_devices_s5(device, second_device, open_probe):
    """S5: through a device of the same driver, and one of another domain."""
    foreign, _ = open_probe(domain=object())
    original = OperationError("over the border")
    failing = device.queue.call(lambda: (_ for _ in ()).throw(original))
    middle = second_device.queue.barrier(wait=failing)
    last = foreign.queue.barrier(wait=middle)
    back = device.queues.upload.barrier(wait=last)
    for each in (failing, middle, last, back):
        assert_broken(each, original)
    for each in (device, second_device, foreign):
        each.queue.barrier().wait(LIMIT)


def test_pending_and_failing_in_one_queue(device, second_device):
    """Queue [pending P, failing F]: F fails, and P is released from another device's queue."""
    held, broken = hal.create_semaphore(), hal.create_semaphore()
    told = threading.Event()
    resubmitted = []

    def again(_):
        resubmitted.append(device.queue.barrier())
        told.set()

    ended = hal.create_semaphore()
    ended.on_reached(1, again)
    pending = device.queue.barrier(wait=held.at(1))
    failing = device.queue.barrier(wait=broken.at(1), signal=ended.at(1))
    broken.fail(OperationError("no"))
    assert told.wait(LIMIT)
    assert failing.state == "failed"
    assert pending.state == "pending"
    second_device.queue.barrier(signal=held.at(1))
    pending.wait(LIMIT)
    resubmitted[0].wait(LIMIT)


def test_failure_without_signals_or_handle(device):
    """Nobody asked for it; nobody is disturbed, and close finds nothing."""
    broken = hal.create_semaphore()
    device.queue.barrier(wait=broken.at(1))
    broken.fail(OperationError("unseen"))
    device.queue.call(lambda: 1 / 0)
    device.queue.barrier().wait(LIMIT)
    device.wait_idle(LIMIT)


def test_a_failed_handle_raises_flat_and_fresh_s4(device):
    """S4: 4 threads raise one handle's error 250 times each."""
    broken = hal.create_semaphore()
    submission = device.queue.barrier(wait=broken.at(1))
    original = OperationError("kept")
    broken.fail(original)

    def raise_often():
        errors = []
        for _ in range(250):
            with contextlib.suppress(OperationError):
                try:
                    submission.wait(LIMIT)
                except OperationError as error:
                    errors.append(error)
                    raise
        return errors

    errors = [error for each in collect_in_threads([raise_often] * 4) for error in each]
    assert len({id(error) for error in errors}) == 1000
    assert {id(error.__cause__) for error in errors} == {id(original)}
    assert original.__traceback__ is None


# Issued work


def test_issued_work_is_not_recalled_s5(open_probe, latch):
    """S5: a host's fail of what it has waited for, after issue, affects later waits only."""
    device, probe = open_probe()
    buffer = device.upload(np.zeros(4, np.uint8))
    waited = hal.create_semaphore(1)
    signalled = hal.create_semaphore()
    probe.hold(latch)
    issued = device.queue.fill(buffer, 1, wait=waited.at(1), signal=signalled.at(1))
    waited.fail(OperationError("too late"))
    later = device.queue.fill(buffer, 2, wait=waited.at(1))
    latch.open()
    issued.wait(LIMIT)
    assert signalled.query() == 1
    assert later.state == "failed"
    assert buffer.numpy().tolist() == [1] * 4


def test_host_failure_of_a_running_producers_semaphore_s5(open_probe, latch):
    """S5: B was issued on A's event; failing A's semaphore by hand does not fail B, since A ran."""
    device, probe = open_probe()
    one, two = device.upload(np.zeros(4, np.uint8)), device.upload(np.zeros(4, np.uint8))
    semaphore = hal.create_semaphore()
    probe.hold(latch)
    producer = device.queues.upload.fill(one, 1, signal=semaphore.at(1))
    consumer = device.queues.compute.fill(two, 2, wait=semaphore.at(1))
    assert consumer.state == "issued"
    semaphore.fail(OperationError("by hand"))
    latch.open()
    producer.wait(LIMIT)
    consumer.wait(LIMIT)
    assert two.numpy().tolist() == [2] * 4


# Dependencies that cannot be met


def test_an_operation_that_waits_for_its_own_promise_is_cancelled_by_close(device):
    """A circle of two is no error; it stands until close, which ends it."""
    left, right = hal.create_semaphore(), hal.create_semaphore()
    queue = device.create_queue(ordered=False)
    circle = [
        queue.barrier(wait=left.at(1), signal=right.at(1)),
        queue.barrier(wait=right.at(1), signal=left.at(1)),
    ]
    assert queue.close(LIMIT) == ()
    for each in circle:
        with pytest.raises(CancelledError):
            each.wait(LIMIT)
