"""Copies of ordinary memory when native calls fail, devices are lost or close (M1, S5, Q6)."""

import threading

import numpy as np
import pytest
from copies_harness import MANY, SLOT, some
from core_harness import LIMIT, Latch, wait_until

import hal
from hal._memory import blocking
from hal.errors import CancelledError, DeviceLostError, OperationError

CALLS = ("bind", "create_stream", "copy_from_host", "copy_to_host")


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("name", CALLS)
def test_a_native_call_fails_m1(open_blocking, name, number):
    """M1: the operation fails with the error, and the next one works."""
    device, probe = open_blocking()
    buffer, out = device.allocate(MANY), np.zeros(MANY, np.uint8)
    semaphore = hal.create_semaphore()
    probe.fail_call(number, OperationError("injected"), (name,))
    submissions = [
        device.queue.write(buffer, some(MANY), signal=semaphore.at(1)),
        device.queue.read(buffer, out),
    ]
    failed = 0
    for submission in submissions:
        try:
            submission.wait(LIMIT)
        except OperationError as error:
            failed += "injected" in str(error)
    assert failed == (0 if probe.pending_fault else 1)
    probe.heal()
    device.queue.write(buffer, some(MANY, 1)).wait(LIMIT)
    device.queue.read(buffer, out).wait(LIMIT)
    assert (out == some(MANY, 1)).all()


@pytest.mark.parametrize("name", ["copy_from_host", "copy_to_host", "synchronize_stream"])
@pytest.mark.parametrize("number", [1, 3])
def test_the_device_is_lost_s5(open_blocking, monkeypatch, name, number):
    """S5: the operation and all others of the device fail with the cause; nothing hangs."""
    monkeypatch.setattr(blocking, "PART", SLOT)
    device, probe = open_blocking()
    buffer, out = device.allocate(MANY), np.zeros(MANY, np.uint8)
    never = hal.create_semaphore()
    waiting = device.create_queue().fill(buffer, 1, wait=never.at(1))
    probe.fail_call(number, DeviceLostError("gone", native_code=700), (name,))
    submissions = [device.queue.write(buffer, some(MANY)), device.queue.read(buffer, out), waiting]
    for submission in submissions[1:]:
        with pytest.raises(DeviceLostError, match="gone"):
            submission.wait(LIMIT)
    assert device.lost
    device.close(LIMIT)


def test_a_synchronisation_that_fails_twice_loses_the_device_s5(open_blocking):
    """S5: nobody would know when the copy ends, and its memory must not be used again."""
    device, probe = open_blocking()
    probe.fail_call(1, OperationError("once"), ("synchronize_stream",))
    probe.fail_call(2, OperationError("injected"), ("synchronize_stream",))
    failed = device.queue.write(device.allocate(MANY), some(MANY))
    with pytest.raises(DeviceLostError, match="injected"):
        failed.wait(LIMIT)
    assert device.lost


def test_close_with_copies_under_way_q6(open_blocking):
    """Q6: running operations are waited for, others cancelled, and the streams destroyed."""
    device, probe = open_blocking()
    latch, never = Latch(), hal.create_semaphore()
    buffer = device.allocate(MANY)
    probe.hold(latch)
    running = device.queue.write(buffer, some(MANY))
    pending = device.queues.upload.write(buffer, some(MANY), wait=never.at(1))
    wait_until(lambda: probe.calls["copy_from_host"])
    threading.Thread(target=latch.open).start()
    assert device.close(LIMIT) == ()
    assert running.state == "done"
    assert isinstance(pending.error, CancelledError)
    assert probe.live() == {}


def test_close_gives_up_on_a_copy_q6(open_blocking):
    """Q6: at the time-out it is abandoned and reported."""
    device, probe = open_blocking()
    latch = Latch()
    probe.hold(latch)
    stuck = device.queue.write(device.allocate(MANY), some(MANY))
    told = device.close(0.05)
    assert len(told) == 1
    assert "write" in told[0]
    assert isinstance(stuck.error, DeviceLostError)
    latch.open()
