"""Operations whose issue breaks off part-way, after every single native call (Q5)."""

import gc

import pytest
from core_harness import LIMIT
from failure_harness import FAULTS
from native_probe import STREAM_CALLS

import hal
from hal.errors import (
    CancelledError,
    DeadlineExceededError,
    DeviceLostError,
    HalError,
    OperationError,
)
from hal_conformance.suite.support import Operations

SCRIPT_CALLS = (*STREAM_CALLS, "create_event")


def submit_script(operations, gate, end):
    """Submit one of everything, over two queues, behind a gate and in a chain."""
    device = operations.device
    upload, compute = device.queues.upload, device.queues.compute
    first, second = hal.create_semaphore(), hal.create_semaphore()
    submissions = [
        operations.submit("write", upload, wait=gate.at(1), signal=first.at(1)),
        operations.submit("fill", compute, wait=first.at(1), signal=second.at(1)),
        operations.submit("execute", compute),
        operations.submit("copy", upload, wait=[second.at(1), first.at(1)]),
        operations.submit("call", upload),
        operations.submit("read", device.queues.download, wait=second.at(1)),
    ]
    submissions.append(compute.barrier(wait=submissions, signal=end.at(1)))
    return submissions


def count_script_calls(open_probe):
    device, probe = open_probe()
    operations = Operations(device)
    gate, end = hal.create_semaphore(), hal.create_semaphore()
    submit_script(operations, gate, end)
    before = sum(probe.calls[name] for name in SCRIPT_CALLS)
    gate.signal(1)
    end.wait(1, LIMIT)
    return sum(probe.calls[name] for name in SCRIPT_CALLS) - before


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_at_every_native_call_q5(open_probe, fault):
    """For every n: the n-th native call of a script fails. Every operation ends; each failed one
    tells the injected error, and only those that depend on it fail; memory is not freed under
    running work (the probe looks); the device works after it, or is lost and says so."""
    total = count_script_calls(open_probe)
    assert total > 15
    hit = 0
    for number in range(1, total + 1):
        device, probe = open_probe()
        operations = Operations(device)
        gate, end = hal.create_semaphore(), hal.create_semaphore()
        submissions = submit_script(operations, gate, end)
        probe.fail_call(number, FAULTS[fault](), SCRIPT_CALLS)
        gate.signal(1)
        device.wait_idle(LIMIT)
        for each in submissions:
            assert each.done, (number, each)
            if each.state == "failed":
                assert "injected" in str(each.error), number
            else:
                assert each.state == "done", number
        hit += not probe.pending_fault
        probe.heal()
        if device.lost:
            assert fault == "lost"
            probe.finish()
            with pytest.raises(DeviceLostError, match="injected"):
                device.queue.barrier().wait(LIMIT)
            continue
        if submissions[-1].state == "failed":
            with pytest.raises(HalError, match="injected"):
                end.wait(1, LIMIT)
        else:
            end.wait(1, LIMIT)
        again = hal.create_semaphore()
        gate.poll(0)
        for queue in (device.queues.upload, device.queues.compute, device.queues.download):
            queue.fill(operations.buffer, 3).wait(LIMIT)
        device.queue.barrier(signal=again.at(1))
        again.wait(1, LIMIT)
        assert set(operations.buffer.numpy().tolist()) == {3}
        assert device.close(LIMIT) == ()
        assert probe.live() == {}, number
    assert hit > total // 2


def test_issue_that_cannot_record_drains_the_stream_q5(open_probe):
    """Q5: where not even the event can be recorded, the stream is drained before any free."""
    device, probe = open_probe()
    buffer = device.allocate(1 << 20)
    probe.fail_call(1, OperationError("one"), ("record_event",))
    probe.fail_call(2, OperationError("two"), ("record_event",))
    before = probe.calls["synchronize_stream"]
    submission = device.queue.fill(buffer, 1)
    assert submission.state == "failed"
    assert probe.calls["synchronize_stream"] == before + 1
    del buffer
    gc.collect()
    assert device.statistics().allocations == 0
    device.queue.barrier().wait(LIMIT)


def test_failing_native_call_reports_the_vendors_error(open_probe):
    """The error on the handle is of the native error's class, with its name and code."""
    device, probe = open_probe()
    probe.fail_call(1, OperationError("bad", native_name="ACME_E", native_code=42), ("fill",))
    error = device.queue.fill(device.allocate(4), 1).error
    assert isinstance(error, OperationError)
    assert (error.native_name, error.native_code) == ("ACME_E", 42)


def test_wait_idle_waits_behind_a_failed_issue(open_probe, latch):
    """Q6: the newest operation has failed at its issue; an older one still runs."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    probe.hold(latch)
    running = device.queue.fill(buffer, 1)
    probe.fail_call(1, OperationError("injected"), ("fill",))
    failed = device.queue.fill(buffer, 2)
    assert (running.state, failed.state) == ("issued", "failed")
    for wait_idle in (device.queue.wait_idle, device.wait_idle):
        with pytest.raises(DeadlineExceededError):
            wait_idle(0.02)
    latch.open()
    device.queue.wait_idle(LIMIT)
    assert running.state == "done"


def test_an_issue_that_was_interrupted_is_not_made_again_o3(open_probe):
    """O3: nobody knows whether the interrupted call reached the stream, so the operation fails."""
    device, probe = open_probe()
    buffer, gate = device.allocate(16), hal.create_semaphore()
    pending = device.queue.fill(buffer, 1, wait=gate.at(1))
    probe.fail_call(1, KeyboardInterrupt(), ("fill",))
    with pytest.raises(KeyboardInterrupt):
        gate.signal(1)
    device.queue.barrier().wait(LIMIT)
    assert probe.calls["fill"] == 1
    with pytest.raises(CancelledError, match="was interrupted"):
        pending.wait(LIMIT)
