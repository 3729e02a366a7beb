"""The queues that a device has, and in which order they run operations (Q2, Q3)."""

import pytest
from core_harness import LIMIT

import hal
from hal.errors import DeviceLostError

# In which order operations run


def test_what_enqueues_nothing_ends_with_what_is_before_it_q2(open_probe, latch):
    """Q2: a barrier behind work makes no native call; waiting for it waits for that work."""
    device, probe = open_probe()
    buffer, done = device.allocate(4), hal.create_semaphore()
    probe.hold(latch)
    device.queue.fill(buffer, 1)
    calls = probe.calls.copy()
    barriers = [device.queue.barrier(signal=done.at(value)) for value in (1, 2)]
    assert probe.calls == calls
    after = device.queues.upload.fill(buffer, 2, wait=done.at(1))
    assert [each.state for each in (*barriers, after)] == ["issued"] * 3
    assert done.query() == 0
    latch.open()
    after.wait(LIMIT)
    assert done.query() == 2
    assert buffer.numpy(timeout=LIMIT).tolist() == [2] * 4
    device.wait_idle(LIMIT)
    assert device._context.events.is_idle()


@pytest.mark.parametrize("lost", [False, True])
def test_what_enqueues_nothing_fails_with_its_device_s5(open_probe, latch, lost):
    """S5: a lost device fails the barrier; a failed operation before it does not."""
    device, probe = open_probe()
    buffer = device.allocate(4)
    probe.hold(latch)
    device.queue.fill(buffer, 1)
    if lost:
        probe.fail_event(DeviceLostError("gone"))
    else:
        probe.fail_call(1, names={"fill"})
    device.queue.fill(buffer, 2)
    barrier = device.queue.barrier()
    latch.open()
    if lost:
        with pytest.raises(DeviceLostError):
            barrier.wait(LIMIT)
    else:
        barrier.wait(LIMIT)
