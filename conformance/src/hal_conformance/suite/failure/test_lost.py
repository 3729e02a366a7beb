"""Lost devices: everything unretired of that context fails, and only that (S5)."""

from __future__ import annotations

import threading

import pytest

import hal
from hal.errors import DeviceLostError
from hal_conformance.suite.memory.scarcity import BIG, POOLS, ROOM, allocation
from hal_conformance.suite.support import LIMIT, OPERATIONS, Operations

pytestmark = pytest.mark.destructive


def occupy(queue: hal.Queue) -> tuple[hal.Submission, threading.Event]:
    """Start a call that runs until the event is set."""
    began, leave = threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        leave.wait(2 * LIMIT)

    running = queue.call(call)
    assert began.wait(LIMIT)
    return running, leave


def lose(device: hal.Device) -> tuple[hal.Submission, threading.Event]:
    """Lose a device through a queue that is closed while a call of it does not end."""
    queue = device.create_queue()
    running, leave = occupy(queue)
    assert queue.close(0.01)
    assert device.lost
    return running, leave


def test_everything_unretired_fails_s5(bench):
    """S5: what runs and what is pending fails, on every queue of the lost device."""
    device = bench.open()
    gate, promised = hal.create_semaphore(), hal.create_semaphore()
    pending = [
        queue.barrier(wait=gate.at(1))
        for queue in (device.queues.compute, device.queues.upload, device.create_queue())
    ]
    device.queues.download.barrier(wait=gate.at(1), signal=promised.at(1))
    running, leave = lose(device)
    for submission in (running, *pending):
        with pytest.raises(DeviceLostError):
            submission.wait(LIMIT)
        assert submission.state == "failed"
    with pytest.raises(DeviceLostError):
        promised.wait(1, LIMIT)
    gate.signal(1)
    assert gate.query() == 1
    leave.set()


def test_what_was_retired_before_stays_done_s5(bench):
    """S5: what had ended when the device was lost stays as it was."""
    device, semaphore = bench.open(), hal.create_semaphore()
    buffer = device.allocate(64)
    done = device.queue.fill(buffer, 1, signal=semaphore.at(1))
    done.wait(LIMIT)
    _, leave = lose(device)
    assert done.state == "done"
    assert done.error is None
    assert semaphore.query() == 1
    leave.set()


def test_later_submissions_fail_s5(bench):
    """S5: a submission of any kind to a lost device returns a handle that has failed already."""
    device = bench.open()
    operations = Operations(device)
    _, leave = lose(device)
    for kind in OPERATIONS:
        semaphore = hal.create_semaphore()
        submission = operations.submit(kind, device.queue, signal=semaphore.at(1))
        assert submission.state == "failed", kind
        for waitable in (submission, semaphore.at(1)):
            with pytest.raises(DeviceLostError):
                hal.wait_all([waitable], LIMIT)
    assert operations.called == 0
    assert not operations.out.any()
    leave.set()


@pytest.mark.parametrize("pool", POOLS)
def test_what_waits_for_memory_fails_s5(bench, pool):
    """S5, M3: allocas and executions that have found no memory fail, on every queue."""
    device = bench.open(memory_limit=ROOM, **POOLS[pool])
    with device.record() as recording:
        recording.fill(recording.alloca(BIG), 3)
    first = device.queue.alloca(BIG)
    device.queue.fill(first, 1).wait(LIMIT)
    _, leave = occupy(device.queue)
    device.queue.dealloca(first)  # behind the call, so that there is something to wait for
    starved = []
    for queue in (device.create_queue(), device.create_queue(ordered=False)):
        buffer = queue.alloca(BIG)
        used = queue.fill(buffer, 2, wait=allocation(buffer))
        starved += [allocation(buffer), used, queue.dealloca(buffer, wait=used)]
    starved.append(device.queues.upload.execute(recording))
    assert {each.state for each in starved} == {"pending"}
    _, other = lose(device)
    for submission in starved:
        with pytest.raises(DeviceLostError):
            submission.wait(LIMIT)
    leave.set()
    other.set()
    device.close(LIMIT)
    with bench.open(memory_limit=ROOM, **POOLS[pool]) as another:
        another.queue.fill(another.queue.alloca(BIG), 1).wait(LIMIT)


def test_another_device_goes_on_s5(bench):
    """S5: another device is not lost; what waits there for a lost device's work fails."""
    device, other = bench.open(), bench.open()
    gate = hal.create_semaphore()
    buffer = other.allocate(64)
    lost = device.queue.barrier(wait=gate.at(1))
    dependent = other.queue.fill(buffer, 1, wait=lost)
    independent = other.queue.fill(buffer, 2)
    _, leave = lose(device)
    with pytest.raises(DeviceLostError):
        dependent.wait(LIMIT)
    independent.wait(LIMIT)
    assert not other.lost
    assert (buffer.numpy(timeout=LIMIT) == 2).all()
    assert other.close(LIMIT) == ()
    leave.set()


def test_a_lost_device_can_be_closed_s5(bench):
    """S5: a lost device closes at once, twice, and another one opens."""
    device = bench.open()
    _, leave = lose(device)
    assert "lost" in repr(device)
    device.close(LIMIT)
    device.close(LIMIT)
    assert device.closed
    with bench.open() as another:
        assert not another.lost
        another.queue.barrier().wait(LIMIT)
    leave.set()
