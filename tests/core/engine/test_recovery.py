"""A call that breaks off is put right by the next call, and by nobody else (O3, I5)."""

import gc
import sys
import weakref

import numpy as np
import pytest
from child_processes import assert_quiet
from core_harness import LIMIT, Running, needs_gil, stalled, wait_until
from recovery_world import WORLD

import hal
from hal._engine import progress, steps, timelines
from hal.errors import DeviceLostError, HalError, InvalidArgumentError, OperationError

TWICE = (
    WORLD
    + """
    def trial(first, second):
        world = World()
        with Interrupts(first, second) as interrupts, contextlib.suppress(HalError):
            world.act()
        wrong = world.check()
        # Between a native call's return and the note of its handle one may get lost.
        if not second and sum(world.probe.live().values()) > 1:
            wrong.append(f"left: {world.probe.live()}")
        return interrupts.places, wrong

    # The second one comes nowhere, right away, and at a place that moves on with the first.
    try_pairs(trial, KIND, lambda first: (0, 1, 2 + first * 7 % 31))
"""
)


@pytest.mark.parametrize(
    "kind",
    [
        "submit",
        "parts",
        "pending",
        "signal",
        "wait",
        "backlog",
        "call",
        "close",
        "fail",
        "cancel",
        "allocate",
        "deferred",
        "deferred fail",
    ],
)
def test_ctrl_c_at_every_call_of_ours_and_a_second_while_it_is_put_right(run_script, kind):
    """O3, Q6: as the n-th function is entered or left, for every n. Every operation ends, nothing
    is promised by nobody, no baton stays taken, no queue is stuck, no device lost, nothing is freed
    twice."""
    assert_quiet(run_script(TWICE, arguments=(kind,)))


@needs_gil  # else a thread finalises what it made and another dropped, wherever it is
def test_no_code_of_the_users_runs_under_the_lock_i5(device):
    """I5: objects with weak-reference callbacks are dropped outside of the lock."""
    seen, buffer = {}, device.allocate(64)

    def note(what):
        seen[what] = timelines.lock._is_owned()
        device.queue.flush()

    class Bag:
        pass

    def tracked(what, thing):
        weakref.finalize(thing, note, what)
        return thing

    semaphore, bag = hal.create_semaphore(), tracked("a cancelled callback", Bag())
    callback = semaphore.on_reached(5, lambda _, bag=bag: None)
    del bag
    assert callback.cancel()
    for _ in range(20):
        tracked("a submission", device.queue.fill(buffer, 1))
    gate, signalled = hal.create_semaphore(), tracked("a semaphore", hal.create_semaphore())
    done = device.queue.fill(buffer, 1, wait=gate.at(1), signal=signalled.at(1))
    del signalled
    gate.signal(1)
    done.wait(LIMIT)
    queue = device.create_queue()
    tracked("a cancelled submission", queue.fill(buffer, 1, wait=hal.create_semaphore().at(1)))
    queue.close()

    class OddError(OSError):
        pass

    error = tracked("an error", OddError("x"))
    failed, waiting = hal.create_semaphore(), hal.create_semaphore()
    failed.fail(error)
    device.queue.fill(buffer, 1, wait=failed.at(1), signal=waiting.at(1))
    del error, failed, waiting
    bag = tracked("an argument", Bag())
    done = device.queue.call(lambda _: None, bag)
    del bag
    done.wait(LIMIT)
    device.wait_idle(LIMIT)
    del done
    gc.collect()
    wait_until(lambda: device.queue.flush() or len(seen) == 6)
    assert seen == dict.fromkeys(seen, False)


FULL_STACK = """
    import os, sys
    import hal

    sys.setrecursionlimit(300)
    device = hal.create_device("cpu")
    buffer = device.allocate(64)

    def down(depth, function):
        return down(depth - 1, function) if depth else function()

    for what in ("signal", "submit", "wait"):
        broken = 0
        for depth in range(180, 300):
            queue, gate = device.create_queue(), hal.create_semaphore()
            waiting = queue.fill(buffer, 1, wait=gate.at(1))
            made = []
            act = {
                "signal": lambda: gate.signal(1),
                "submit": lambda: made.append(queue.fill(buffer, 2, wait=gate.at(1))),
                "wait": lambda: waiting.wait(0),
            }[what]
            try:
                down(depth, act)
            except RecursionError:
                broken += 1
            except hal.errors.DeadlineExceededError:
                pass
            try:
                gate.signal(1)
            except hal.errors.InvalidArgumentError:  # the one that broke off has been completed
                assert gate.query() == 1
            for each in (waiting, *made):
                try:
                    each.wait(30)
                except hal.errors.CancelledError:
                    assert what != "wait"
            queue.fill(buffer, 3).wait(30)
            queue.close()
        assert broken, what
    assert device.close() == ()
"""


def test_a_full_stack_loses_nothing(run_script):
    """O3: at whatever depth the stack overflows, waiters wake and the queue goes on."""
    assert_quiet(run_script(FULL_STACK))


def test_a_plugin_that_keeps_raising_fails_its_operations(open_probe):
    """O2: errors that are no HalError, from record_event on; the queue works again after that."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    for _ in range(3):
        for number in range(1, 4):
            probe.fail_call(number, RuntimeError("a bug"), {"record_event"})
        made = device.queue.fill(buffer, 1)
        with pytest.raises(OperationError, match="must raise a HalError"):
            made.wait(LIMIT)
        probe.heal()
    device.queue.fill(buffer, 2).wait(LIMIT)
    assert not device.lost


def test_a_device_whose_work_cannot_be_followed_is_lost(open_probe):
    """O2: neither an event nor a drained stream tells when the work ends."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    for name in ("record_event", "synchronize_stream"):
        for number in (1, 2):
            probe.fail_call(number, RuntimeError("a bug"), {name})
    with pytest.raises(OperationError):
        device.queue.fill(buffer, 1).wait(LIMIT)
    wait_until(lambda: device.lost)
    with pytest.raises(DeviceLostError, match="can no longer tell"):
        device.queue.fill(buffer, 1).wait(LIMIT)


@pytest.mark.parametrize("error", [OperationError("odd"), RuntimeError("a bug")])
def test_an_event_that_cannot_be_asked_fails_its_operation_only(open_probe, error):
    """O2: the device is not lost, and later operations succeed."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    probe.fail_call(1, error, {"query_event"})
    with pytest.raises(OperationError):
        device.queue.fill(buffer, 1).wait(LIMIT)
    device.queue.fill(buffer, 2).wait(LIMIT)
    assert not device.lost


def test_a_device_whose_events_never_answer_is_lost(open_probe):
    """O2: it is lost after many errors in a row, so that no backlog waits forever."""
    device, probe = open_probe(max_in_flight=2)
    buffer = device.allocate(64)
    for number in range(1, 2000):
        probe.fail_call(number, OperationError("odd"), {"query_event"})
    made = [device.queue.fill(buffer, 1) for _ in range(8)]
    for each in made:
        with pytest.raises(HalError):
            each.wait(LIMIT)
    assert device.lost
    probe.heal()


@pytest.mark.parametrize("way", ["device", "queue"])
def test_close_counts_what_is_being_issued_q6(open_probe, way):
    """Q6: another thread is inside a native call; close reports it and frees nothing under it."""
    device, probe = open_probe()
    buffer = device.allocate(64)
    stall, filling = stalled(probe, "record_event", 1, device.queue.fill, buffer, 1)
    told = (device if way == "device" else device.queue).close(0.05)
    assert len(told) == 1
    assert "fill on" in told[0]
    assert not probe.closed
    stall.leave.set()
    made = filling.result()
    with pytest.raises(DeviceLostError):
        made.wait(LIMIT)
    assert probe.violations == []


def test_no_step_is_left_open(device):
    """A call that has ended well, or was refused, leaves nothing behind."""
    buffer = device.upload(np.zeros(64, np.uint8))
    device.queue.fill(buffer, 1).wait(LIMIT)
    with pytest.raises(InvalidArgumentError):
        hal.create_semaphore(5).signal(3)
    with pytest.raises(TimeoutError):
        hal.create_semaphore().wait(1, 0)
    assert not steps.begin().is_open()


def test_the_progress_thread_repairs_again_what_it_could_not_o3(monkeypatch):
    """O3: there was no memory for three repairs, of which two are its own; nobody else comes by."""
    put_right, missing, told, mended = progress._put_right, [None] * 3, [], []

    def short_of_memory(broken, step):
        if missing:
            missing.pop()
            raise MemoryError
        put_right(broken, step)

    def break_off(step, *_):
        step.work.append((timelines.CHANGE, (lambda *_: mended.append(True), None, None)))
        raise LookupError

    progress.start()
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    monkeypatch.setattr(progress, "_put_right", short_of_memory)
    with pytest.raises(LookupError):
        Running(progress.act, break_off, None, None).result()
    wait_until(lambda: mended)
    assert {type(each.exc_value) for each in told} == {MemoryError}
