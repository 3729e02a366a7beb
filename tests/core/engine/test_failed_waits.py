"""Operations fail with what they wait for, and their signals with them (S4, S5)."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
from core_harness import LIMIT
from failure_harness import assert_broken

import hal
from hal.errors import OperationError


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


# Issued work


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
