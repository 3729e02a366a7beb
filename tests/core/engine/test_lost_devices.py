"""Work that fails on the device, and lost devices: who sees it, and what goes on (S5)."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest
from core_harness import LIMIT, Latch, collect_in_threads
from failure_harness import assert_broken

import hal
from hal._engine import contexts, issuing
from hal.errors import ClosedError, DeadlineExceededError, DeviceLostError


@pytest.mark.parametrize("look", ["wait", "poll", "callback", "await", "close", "submit"])
def test_an_asynchronous_failure_is_seen_by_every_way_to_look(open_probe, look):
    """S5: waiters, pollers, the progress thread and close all see it; none hangs."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    semaphore = hal.create_semaphore()
    told, errors = threading.Event(), []

    def tell(error):
        errors.append(error)
        told.set()

    probe.fail_event(DeviceLostError("fault"))
    if look == "callback":
        semaphore.on_reached(1, tell)
    failing = device.queue.fill(buffer, 1, signal=semaphore.at(1))
    if look == "wait":
        with pytest.raises(DeviceLostError, match="fault"):
            semaphore.wait(1, LIMIT)
    elif look == "poll":
        while not failing.done:
            pass
    elif look == "callback":
        assert told.wait(LIMIT)
        assert "fault" in str(errors[0])
    elif look == "await":

        async def main():
            async with asyncio.timeout(LIMIT):
                await failing

        with pytest.raises(DeviceLostError, match="fault"):
            asyncio.run(main())
    elif look == "submit":
        while not device.lost:
            device.queue.barrier()
    else:
        device.close(LIMIT)
    assert device.lost
    assert failing.state == "failed"
    for waitable in (failing, semaphore.at(1)):
        with pytest.raises(DeviceLostError, match="fault") as caught:
            hal.wait_all([waitable], LIMIT)
        assert not caught.value.given_up


@pytest.mark.parametrize("look", ["producer first", "dependent first"])
@pytest.mark.parametrize("through", ["semaphore", "handle", "another operation"])
def test_an_asynchronous_failure_crosses_to_other_devices(open_probe, latch, through, look):
    """S5: A's device is lost after B was issued behind A on another device of the
    domain: B fails when it retires, whether or not it ran; what depends on neither goes on."""
    device, probe = open_probe()
    other, _ = open_probe()
    buffer, target = device.allocate(64), other.upload(np.zeros(64, np.uint8))
    original = DeviceLostError("fault", native_name="ACME_FAULT", native_code=9)
    semaphore, done, unrelated = (hal.create_semaphore() for _ in range(3))
    probe.hold(latch)
    probe.fail_event(original)
    failing = device.queues.upload.fill(buffer, 1, size=4, signal=semaphore.at(1))
    wait = failing if through == "handle" else semaphore.at(1)
    if through == "another operation":
        wait = other.queues.download.barrier(wait=wait)
    dependent = other.queues.compute.fill(target, 2, size=4, wait=wait, signal=done.at(1))
    behind = other.queues.compute.fill(target, 3, offset=8, size=4, signal=unrelated.at(1))
    assert dependent.state == "issued"
    latch.open()
    order = [failing, semaphore.at(1), dependent, done.at(1)]
    for waitable in order if look == "producer first" else reversed(order):
        assert_broken(waitable, original, DeviceLostError)
    behind.wait(LIMIT)
    unrelated.wait(1, LIMIT)
    assert (device.lost, other.lost) == (True, False)
    other.queue.fill(target, 4).wait(LIMIT)


@pytest.mark.parametrize("wait", [hal.wait_all, hal.wait_any])
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_wait_sees_the_failure_of_work_in_flight(open_probe, latch, wait, order, when):
    """S6: one of two running operations fails; the wait ends although the other never does."""
    device, probe = open_probe()
    other, holder = open_probe()
    first = Latch()
    probe.hold(first)
    probe.fail_event(DeviceLostError("one of two"))
    failing = device.queue.fill(device.allocate(64), 1)
    holder.hold(latch)
    running = other.queue.fill(other.allocate(64), 1)
    if when == "before":
        first.open()
    ready = threading.Barrier(2, timeout=LIMIT)

    def block():
        ready.wait()
        with pytest.raises(DeviceLostError, match="one of two"):
            wait([failing, running][::order], LIMIT)

    def release():
        ready.wait()
        with pytest.raises(DeadlineExceededError):
            running.wait(0.05)  # the other thread sleeps by now
        first.open()

    collect_in_threads([block, release])
    assert not running.done
    latch.open()
    running.wait(LIMIT)


@pytest.mark.parametrize("wait", [hal.wait_all, hal.wait_any])
@pytest.mark.parametrize("order", [1, -1])
def test_a_wait_that_runs_out_sees_a_failure_first(open_probe, wait, order):
    """S6: with time-out 0 the failure of one entry counts, not that the other is not reached."""
    device, probe = open_probe()
    probe.fail_event(DeviceLostError("gone"))
    failing = device.queue.fill(device.allocate(64), 1)
    for stream in probe.alive["stream"]:
        probe.inner.synchronize_stream(stream)
    never = hal.create_semaphore()
    with pytest.raises(DeviceLostError, match="gone"):
        wait([failing, never.at(1)][::order], 0)


FOREIGN = """
    import sys, threading
    import hal
    from core_harness import LIMIT, open_native
    from native_probe import Probe

    driver = open_native()
    probe = Probe(driver.open_device(0, {}))
    device = hal.Device("cpu", probe, None)
    buffer = device.allocate(64)
    first, second = hal.create_semaphore(), hal.create_semaphore()
    told = threading.Event()
    first.on_reached(1, lambda _: told.set())
    probe.fail_event(RuntimeError("not a HalError"))
    failing = device.queue.fill(buffer, 1, signal=first.at(1))
    assert told.wait(LIMIT), "the progress thread has ended"
    try:
        failing.wait(LIMIT)
    except hal.HalError as error:
        assert "not a HalError" in str(error)
    else:
        raise AssertionError("it did not fail")
    told.clear()
    second.on_reached(1, lambda _: told.set())
    other = hal.create_device("cpu")
    other.queue.barrier(signal=second.at(1))
    assert told.wait(LIMIT), "the progress thread has ended"
    other.close()
    device.close()
"""


def test_a_foreign_exception_of_a_query_loses_that_device_only(run_script):
    """A backend that breaks the rules and raises RuntimeError from a query loses its device only.

    In a process of its own, since what it may stop serves the whole process.
    """
    result = run_script(FOREIGN)
    assert (result.returncode, result.stderr) == (0, "")


# A lost device


@pytest.mark.parametrize("way", ["query", "record_event", "wait_event", "fill"])
def test_a_device_lost_at_any_call_fails_all_waiters_s5(open_probe, way):
    """Blocked waiters wake, later submissions fail, nothing hangs."""
    device, probe = open_probe()
    # Else a waiter's notification makes stream waits, too, and may be the one whose call fails.
    probe.notify_event = probe.inner.notify_event
    buffer = device.allocate(64)
    latch = Latch()
    probe.hold(latch)
    running = device.queues.upload.fill(buffer, 1, size=4)
    ready = threading.Barrier(3, timeout=LIMIT)

    def wait():
        ready.wait()
        with pytest.raises(DeviceLostError, match="gone"):
            running.wait(LIMIT)

    def lose():
        ready.wait()
        probe.fail_call(1, DeviceLostError("gone"), ("query_event" if way == "query" else way,))
        with contextlib.suppress(DeviceLostError):
            device.queues.compute.fill(buffer, 2, offset=8, wait=running).wait(LIMIT)

    collect_in_threads([wait, wait, lose])
    assert device.lost
    semaphore = hal.create_semaphore()
    later = device.queue.fill(buffer, 1, signal=semaphore.at(1))
    for waitable in (later, semaphore.at(1)):
        with pytest.raises(DeviceLostError, match="gone"):
            hal.wait_all([waitable], LIMIT)
    with pytest.raises(DeviceLostError):
        buffer.numpy(timeout=LIMIT)
    latch.open()
    device.close(LIMIT)
    device.close(LIMIT)


def test_only_the_first_loss_counts(open_probe):
    device, probe = open_probe()
    buffer = device.allocate(4)
    for text in ("first", "second"):
        probe.fail_call(1, DeviceLostError(text), ("fill",))
        device.queue.fill(buffer, 1)
    with pytest.raises(DeviceLostError, match="first"):
        device.queue.barrier().wait(LIMIT)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_device_that_is_lost_while_a_recording_is_issued_in_parts_s5(
    open_probe, monkeypatch, ordered
):
    """S5, Q1: a recording that then goes back into line for the rest of its launches fails, too."""
    device, _ = open_probe(max_in_flight=2)
    queue, buffer = device.create_queue(ordered=ordered), device.allocate(64)
    with device.record(command_buffer="stream") as commands:
        for value in range(6):
            commands.fill(buffer, value)
            commands.barrier()
    record = queue._record
    losses = [DeviceLostError("fault")]

    def lose_first(*arguments):
        if losses:
            collect_in_threads([lambda: contexts.lose(device._context, losses.pop())])
        record(*arguments)

    monkeypatch.setattr(queue, "_record", lose_first)
    behind = queue.barrier(wait=(submission := queue.execute(commands)))
    for each in (submission, behind):
        with pytest.raises(DeviceLostError, match="fault"):
            each.wait(LIMIT)
    assert not losses


@pytest.mark.parametrize("when", ["shared before", "shared after"])
def test_a_shared_loss_is_known_at_once_s5(open_probe, when):
    """S5: unissued work fails, too, on each device that shares the loss, and on no other."""
    (first, probe), (second, _), (third, _), (other, _) = (open_probe() for _ in range(4))
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    held = [each.queue.barrier(wait=gate.at(1)) for each in (second, third, other)]
    second.queues.upload.barrier(wait=gate.at(1), signal=done.at(1))
    second.share_loss(third)
    if when == "shared before":
        first.share_loss(second)
    original = DeviceLostError("fault")
    probe.fail_call(1, original, names={"fill"})
    assert_broken(first.queue.fill(first.allocate(64), 1), original, DeviceLostError)
    if when == "shared after":
        assert not second.lost
        second.share_loss(first)
    assert [each.state for each in held] == ["failed", "failed", "pending"]
    for device, waitable in ((second, held[0]), (second, done.at(1)), (third, held[1])):
        with pytest.raises(DeviceLostError, match=r"is lost with cpu:0.*, on the same hardware"):
            hal.wait_all([waitable], 0)
        assert str(device.loss.__cause__.__cause__) == "fault"
    assert [each.lost for each in (first, second, third, other)] == [True, True, True, False]
    assert (str(first.loss), other.loss) == ("fault", None)
    gate.signal(1)
    held[2].wait(LIMIT)


def test_a_device_that_was_closed_or_given_up_takes_none_with_it_s5(open_probe, latch):
    """S5, Q6: a close that times out says nothing of the hardware."""
    (first, probe), (second, _), (third, _) = (open_probe() for _ in range(3))
    for each in (second, third):
        first.share_loss(each)
    third.close(LIMIT)
    probe.hold(latch)
    first.queue.fill(first.allocate(4), 0)
    assert len(first.close(0.01)) == 1
    assert (first.loss.given_up, second.loss, third.loss) == (True, None, None)
    second.queue.fill(second.allocate(4), 0).wait(LIMIT)
    with pytest.raises(ClosedError):
        second.share_loss(third)
    with pytest.raises(TypeError, match="share_loss takes a device, not int"):
        second.share_loss(1)
    latch.open()


def test_who_sees_that_an_issue_failed_by_a_loss_sees_the_loss_s5(open_probe, monkeypatch):
    """S5: the device counts as lost before the operation's waiters are told."""
    device, probe = open_probe()
    buffer, seen, finish = device.allocate(64), [], issuing.finish

    def look(operation, *rest):
        seen.append(device.lost)
        finish(operation, *rest)

    monkeypatch.setattr(issuing, "finish", look)
    probe.fail_call(1, DeviceLostError("gone"), {"fill"})
    with pytest.raises(DeviceLostError):
        device.queue.fill(buffer, 1).wait(LIMIT)
    assert seen == [True]
