"""Failure: S4, S5, Q5 when it breaks off part-way, and lost devices."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from core_harness import LIMIT, STREAM_CALLS, Latch, collect_in_threads

import hal
from hal.errors import (
    CancelledError,
    DeadlineExceededError,
    DeviceLostError,
    HalError,
    InvalidArgumentError,
    OperationError,
    OutOfMemoryError,
    SemaphoreFailedError,
)


class Operations:
    """Submit each kind of operation on a device, with what it needs."""

    KINDS = ("fill", "update", "copy", "write", "read", "call", "execute", "barrier")

    def __init__(self, device):
        self.device = device
        self.buffer = device.upload(np.zeros(16, np.uint8))
        self.other = device.upload(np.zeros(16, np.uint8))
        self.array = np.full(16, 7, np.uint8)
        self.out = np.zeros(16, np.uint8)
        self.called = 0
        with device.record() as self.commands:
            self.commands.fill(self.buffer, 7)
            self.commands.barrier()
            self.commands.copy(self.buffer, self.other)

    def call(self):
        self.called += 1

    def submit(self, kind, queue=None, **lists):
        queue = queue or self.device.queue
        arguments = {
            "fill": (self.buffer, 7),
            "update": (self.buffer, self.array),
            "copy": (self.other, self.buffer),
            "write": (self.buffer, self.array),
            "read": (self.buffer, self.out),
            "call": (self.call,),
            "execute": (self.commands,),
            "barrier": (),
        }[kind]
        return getattr(queue, kind)(*arguments, **lists)

    def untouched(self):
        """Return whether no operation has run."""
        return not (
            self.called or self.buffer.numpy().any() or self.other.numpy().any() or self.out.any()
        )


def assert_broken(waitable, original, kind=OperationError):
    """The failure is the original's class and text, fresh, with the original as its cause."""
    with pytest.raises(kind, match=str(original)) as caught:
        hal.wait_all([waitable], LIMIT)
    assert caught.value is not original
    assert caught.value.__cause__ is original


# S5: failed waits


@pytest.mark.parametrize("kind", Operations.KINDS)
@pytest.mark.parametrize("when", ["before submission", "after submission"])
def test_a_failed_wait_fails_the_operation_s5(device, kind, when):
    """S5: it does not run; handle and signals fail with that very error."""
    operations = Operations(device)
    original = OperationError("original")
    waited, signalled = hal.create_semaphore(), hal.create_semaphore()
    if when == "before submission":
        waited.fail(original)
    submission = operations.submit(kind, wait=waited.at(1), signal=signalled.at(1))
    if when == "after submission":
        assert submission.state == "pending"
        waited.fail(original)
    assert_broken(submission, original)
    assert_broken(signalled.at(1), original)
    assert submission.state == "failed"
    assert operations.untouched()
    operations.submit(kind).wait(LIMIT)  # the queue goes on


@pytest.mark.parametrize("kind", Operations.KINDS)
def test_a_failed_wait_counts_although_its_value_was_reached_s5(device, kind):
    """S4, S5: retroactive for queues as well."""
    operations = Operations(device)
    waited = hal.create_semaphore(5)
    waited.fail(OperationError("late"))
    with pytest.raises(OperationError, match="late"):
        operations.submit(kind, wait=waited.at(1)).wait(LIMIT)
    assert operations.untouched()


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


@pytest.mark.parametrize("length", [1, 2, 60])
def test_failure_runs_down_a_chain_s5(device, length):
    """S5: over three queues and all kinds, the last one fails like the first."""
    operations = Operations(device)
    queues = [device.create_queue() for _ in range(3)]
    original = KeyError("the first")
    gate = hal.create_semaphore()
    links = [hal.create_semaphore() for _ in range(length)]
    previous = gate
    submissions = []
    for index, link in enumerate(links):
        kind = Operations.KINDS[index % len(Operations.KINDS)]
        submissions.append(
            operations.submit(kind, queues[index % 3], wait=previous.at(1), signal=link.at(1))
        )
        previous = link
    gate.fail(original)
    for waitable in [*submissions, links[-1].at(1)]:
        assert_broken(waitable, original, SemaphoreFailedError)
    assert operations.untouched()


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


def test_a_failing_call_fails_its_signals_s5(device):
    """S5: what a host function raises is the cause, also what is no HalError."""
    semaphore = hal.create_semaphore()
    original = ZeroDivisionError("by me")

    def call():
        raise original

    submission = device.queue.call(call, signal=semaphore.at(1))
    for waitable in (submission, semaphore.at(1)):
        assert_broken(waitable, original, SemaphoreFailedError)
    assert submission.state == "failed"


def test_system_exit_in_a_call_ends_nothing_else(device):
    """A host function that raises SystemExit fails its submission, not our thread."""
    for _ in range(3):
        failing = device.queue.call(lambda: (_ for _ in ()).throw(SystemExit(3)))
        with pytest.raises(SemaphoreFailedError, match="SystemExit"):
            failing.wait(LIMIT)
    device.queue.call(list).wait(LIMIT)


def test_unrelated_work_survives_s5(device):
    """S5: what does not wait for the failed runs, on the same queue and on others."""
    broken, fine = hal.create_semaphore(), hal.create_semaphore()
    one, two = device.upload(np.zeros(4, np.uint8)), device.upload(np.zeros(4, np.uint8))
    failing = device.queue.fill(one, 1, wait=broken.at(1))
    related = device.queue.fill(one, 1, wait=failing)
    unrelated = device.queue.fill(two, 2, wait=fine.at(1))
    elsewhere = device.queues.upload.fill(one, 3)
    broken.fail(OperationError("no"))
    assert (failing.state, related.state) == ("failed", "failed")
    assert unrelated.state == "pending"
    fine.signal(1)
    hal.wait_all([unrelated, elsewhere], LIMIT)
    assert (one.numpy().tolist(), two.numpy().tolist()) == ([3] * 4, [2] * 4)


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


def test_the_first_failure_wins_s4(device):
    """S4: two failing waits; what came first is what is told, on handle and signals."""
    one, two, signalled = (hal.create_semaphore() for _ in range(3))
    submission = device.queue.barrier(wait=[one.at(1), two.at(1)], signal=signalled.at(1))
    two.fail(OperationError("second semaphore, first failure"))
    one.fail(OperationError("too late"))
    signalled.fail(OperationError("too late"))
    for waitable in (submission, signalled.at(1)):
        with pytest.raises(OperationError, match="first failure"):
            hal.wait_all([waitable], LIMIT)


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


# S5: issued work


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


# Work that fails on the device: the error is the whole context's


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
        with pytest.raises(DeviceLostError, match="fault"):
            hal.wait_all([waitable], LIMIT)


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
    sys.path.insert(0, sys.argv[1])
    import hal
    from core_harness import LIMIT, Probe, open_native

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
    result = run_script(FOREIGN, arguments=(str(Path(__file__).parent),))
    assert (result.returncode, result.stderr) == (0, "")


# Q5: breaking off part-way, after every single native call

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


FAULTS = {
    "operation": lambda: OperationError("injected", native_code=7),
    "memory": lambda: OutOfMemoryError("injected"),
    "foreign": lambda: RuntimeError("injected"),
    "lost": lambda: DeviceLostError("injected"),
}


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
        assert operations.buffer.numpy().tolist() == [3] * 16
        assert device.close(LIMIT) == ()
        assert probe.live() == {}, number
    assert hit > total // 2


@pytest.mark.parametrize("position", [1, 2, 3])
def test_a_command_buffer_that_breaks_off_part_way_q5(open_probe, position):
    """Q5: its first commands run on; their buffers live until then although all names are gone."""
    device, probe = open_probe()
    latch = Latch()
    buffers = [device.allocate(1 << 16) for _ in range(3)]
    with device.record(command_buffer="stream") as commands:
        for buffer in buffers:
            commands.fill(buffer, 1)
    semaphore = hal.create_semaphore()
    device.wait_idle(LIMIT)
    device.statistics()
    if position > 1:
        probe.hold(latch)
    probe.fail_call(position, OperationError("injected"), ("fill",))
    submission = device.queue.execute(commands, signal=semaphore.at(1))
    assert submission.state == "failed"
    with pytest.raises(OperationError, match="injected"):
        semaphore.wait(1, LIMIT)
    del commands, buffers, buffer
    gc.collect()
    if position > 1:
        assert device.statistics().allocations == 3
    latch.open()
    device.queue.barrier().wait(LIMIT)
    device.wait_idle(LIMIT)
    gc.collect()
    assert device.statistics().allocations == 0


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


# A lost device


def test_a_lost_device_fails_what_is_unretired_and_only_that_s5(open_probe):
    """S5: all queues of that context, pending, running and calling; not what had ended, and not
    another device's."""
    device, probe = open_probe()
    other, _ = open_probe()
    buffer = device.allocate(64)
    latch = Latch()
    before = device.queue.fill(buffer, 1)
    before.wait(LIMIT)
    gate, unmet = hal.create_semaphore(), hal.create_semaphore()
    go = threading.Event()
    calling = device.create_queue().call(go.wait, LIMIT)
    probe.hold(latch)
    running = device.queues.upload.fill(buffer, 1, size=4)
    pending = device.queues.download.barrier(wait=unmet.at(1))
    elsewhere = other.queue.barrier(wait=unmet.at(1))
    dependent = other.queues.upload.barrier(wait=running)
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    trigger = device.queues.compute.fill(buffer, 1, offset=8, wait=gate.at(1))
    gate.signal(1)
    assert device.lost
    assert not other.lost
    for each in (running, pending, trigger, calling):
        assert each.state == "failed", each
        with pytest.raises(DeviceLostError, match="gone"):
            each.wait(LIMIT)
    assert before.state == "done"
    go.set()
    latch.open()
    with pytest.raises(DeviceLostError, match="gone"):
        dependent.wait(LIMIT)
    unmet.signal(1)
    elsewhere.wait(LIMIT)
    other.queue.barrier().wait(LIMIT)


@pytest.mark.parametrize("way", ["query", "record_event", "wait_event", "fill"])
def test_a_device_lost_at_any_call_fails_all_waiters_s5(open_probe, way):
    """Blocked waiters wake, later submissions fail, nothing hangs."""
    device, probe = open_probe()
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


def test_a_lost_device_says_why_in_its_text_and_state(open_probe):
    device, probe = open_probe()
    assert not device.lost
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    device.queue.fill(device.allocate(4), 1)
    assert device.lost
    assert "lost" in repr(device)


def test_only_the_first_loss_counts(open_probe):
    device, probe = open_probe()
    buffer = device.allocate(4)
    for text in ("first", "second"):
        probe.fail_call(1, DeviceLostError(text), ("fill",))
        device.queue.fill(buffer, 1)
    with pytest.raises(DeviceLostError, match="first"):
        device.queue.barrier().wait(LIMIT)


# Dependencies that cannot be met


def test_two_operations_that_signal_the_same_value_s1(device):
    """S1: the one that is issued second fails without running, and leaves the first alone."""
    gate, shared = hal.create_semaphore(), hal.create_semaphore()
    buffer = device.upload(np.zeros(4, np.uint8))
    first = device.queue.fill(buffer, 1, wait=gate.at(1), signal=shared.at(1))
    second = device.queue.fill(buffer, 2, wait=gate.at(1), signal=shared.at(1))
    gate.signal(1)
    first.wait(LIMIT)
    with pytest.raises(InvalidArgumentError, match="1"):
        second.wait(LIMIT)
    assert buffer.numpy().tolist() == [1] * 4


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
