"""The staging ring when native calls fail, devices are lost or close (M1, S5, Q6)."""

import threading

import numpy as np
import pytest
from core_harness import LIMIT, Latch, wait_until
from staging_harness import LARGE, MANY, some

import hal
from hal._transfers.transfers import SMALL
from hal.errors import CancelledError, ClosedError, DeviceLostError, OperationError

CALLS = ("bind", "allocate", "host_pointer", "create_stream", "copy_from_host", "copy_to_host")


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("name", CALLS)
def test_a_native_call_fails_m1(staged, name, number):
    """M1: the operation fails with the error, the ring stays whole, the next one works."""
    device, probe = staged()
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
    staging = device._staging
    assert (len(staging._free), staging._active, len(staging._waiting)) == (staging._count, 0, 0)


@pytest.mark.parametrize("name", ["copy_from_host", "copy_to_host", "synchronize_stream"])
@pytest.mark.parametrize("number", [1, 3])
def test_the_device_is_lost_s5(staged, name, number):
    """S5: the operation and all others of the device fail with the cause; nothing hangs."""
    device, probe = staged()
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


def test_a_synchronisation_that_fails_loses_the_device_s5(staged):
    """S5: nobody would know when the copy ends, and its memory must not be used again."""
    device, probe = staged()
    probe.fail_call(1, OperationError("injected"), ("synchronize_stream",))
    failed = device.queue.write(device.allocate(MANY), some(MANY))
    with pytest.raises(DeviceLostError, match="injected"):
        failed.wait(LIMIT)
    assert device.lost


def test_operations_in_line_end_when_the_device_is_lost_s5(staged):
    """S5: those who wait for a slot are told as well."""
    device, probe = staged(slot=2 * SMALL)  # one slot for each
    latches = [Latch() for _ in range(4)]
    for latch in latches:
        probe.hold(latch)
    queues = [device.create_queue() for _ in range(9)]
    submissions = [
        queue.write(device.allocate(LARGE), np.ones(LARGE, np.uint8)) for queue in queues[:8]
    ]
    wait_until(lambda: len(device._staging._waiting) == 4)
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    queues[8].fill(device.allocate(4), 1)
    for submission in submissions:
        with pytest.raises(DeviceLostError, match="gone"):
            submission.wait(LIMIT)
    for latch in latches:
        latch.open()
    wait_until(lambda: not device._staging._active)
    assert (device._staging._active, len(device._staging._waiting)) == (0, 0)


def test_close_with_staged_operations_under_way_q6(staged):
    """Q6: running operations are waited for, others cancelled, and the ring is given back."""
    device, probe = staged()
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
    with pytest.raises(ClosedError):
        device._staging.write(buffer._offset, 1, lambda memory, position: None)


def test_close_gives_up_on_a_staged_operation_q6(staged):
    """Q6: at the time-out it is abandoned and reported."""
    device, probe = staged()
    latch = Latch()
    probe.hold(latch)
    stuck = device.queue.write(device.allocate(MANY), some(MANY))
    told = device.close(0.05)
    assert len(told) == 1
    assert "write" in told[0]
    assert isinstance(stuck.error, DeviceLostError)
    latch.open()
