"""Waiting on the host: S6 (all, any, time-outs), and what S8 leaves."""

import gc
import math
import queue
import threading
import time

import pytest
from core_harness import (
    LIMIT,
    Latch,
    Running,
    collect_in_threads,
    count_holds,
    semaphores,
    wait_until,
)

import hal
from hal._base import sync
from hal._engine import progress, timelines, waiting
from hal._engine.notifier import Notifier
from hal._engine.steps import CallStep
from hal.errors import DeadlineExceededError, OperationError, OutOfMemoryError


@pytest.fixture
def slept(monkeypatch):
    """How long each sleep of a waiter may take, as they begin."""
    sleeps = queue.SimpleQueue()
    wait = sync.Doorbell.wait

    def noting(bell, seconds):
        if not threading.current_thread().name.startswith("hal-"):
            sleeps.put(seconds)
        return wait(bell, seconds)

    monkeypatch.setattr(sync.Doorbell, "wait", noting)
    return sleeps


@pytest.mark.parametrize("values", [[1], [1, 2], [1, 1], [1, 1, 2, 2, 1]], ids=str)
def test_a_waiter_sleeps_once_until_it_is_woken_s6(slept, values):
    """S6: without a time-out of its own; a waiter on one value twice is woken as well."""
    semaphore = hal.create_semaphore()
    entries = [semaphore.at(value) for value in values]
    waiter = Running(hal.wait_all, entries)
    assert slept.get(timeout=LIMIT) == math.inf
    semaphore.signal(2)
    waiter.result()
    assert slept.empty()


@pytest.mark.parametrize("wait", [hal.wait_all, hal.wait_any])
def test_a_wait_for_many_sleeps_once_s6(slept, wait):
    """S6: the last of many wakes who waits for all, the first who waits for any, a failure both."""
    for ends in ("signalled", "failed"):
        many = semaphores(300)
        waiter = Running(wait, [semaphore.at(1) for semaphore in many])
        assert slept.get(timeout=LIMIT) == math.inf
        if ends == "failed":
            many[150].fail(OperationError("failed"))
            with pytest.raises(OperationError, match="failed"):
                waiter.result()
        elif wait is hal.wait_any:
            many[299].signal(1)
            assert waiter.result() == 299
        else:
            for semaphore in many:
                semaphore.signal(1)
            waiter.result()
        assert slept.empty()


def test_a_wait_for_many_holds_the_lock_in_short_pieces_s6(monkeypatch):
    """S6: signals do not wait behind thousands of registrations or their removal."""
    many = semaphores(2000)
    held = count_holds(monkeypatch, (timelines.Waiters, "watch"), (timelines.Timeline, "_forget"))
    with pytest.raises(DeadlineExceededError):
        hal.wait_all([semaphore.at(1) for semaphore in many], 1e-6)
    with pytest.raises(DeadlineExceededError):
        hal.wait_any([semaphore.at(1) for semaphore in many], 0.001)
    assert sum(held) >= 4000
    assert max(held) <= 100


def test_a_waiter_asks_for_what_ends_first_on_each_queue_s6(open_probe, latch, monkeypatch):
    """S6: it polls the earlier of two operations of a queue, in whichever order."""
    device, probe = open_probe()
    buffer, asked = device.allocate(4), []

    ask = waiting._ask_until

    def ask_until(points, *rest):
        asked.append(points)
        latch.open()
        return ask(points, *rest)

    probe.hold(latch)
    first, second = (device.queue.fill(buffer, value) for value in (1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(waiting, "_ask_until", ask_until)
        hal.wait_any([second, first], LIMIT)
    assert asked[0] == [first]
    second.wait(LIMIT)


def test_a_failure_while_a_waiter_asks_ends_the_wait_s6(held, latch, monkeypatch):
    """S6: also for a value that was already reached, which brings no other news."""
    _, _, running = held
    reached = hal.create_semaphore(1)

    def ask_until(*_):
        collect_in_threads([lambda: reached.fail(OperationError("failed meanwhile"))])
        return False

    with monkeypatch.context() as patch:
        patch.setattr(waiting, "_ask_until", ask_until)
        with pytest.raises(OperationError, match="failed meanwhile"):
            hal.wait_all([reached.at(1), *hal.Fence(running)], 0.5)
    latch.open()
    running.wait(LIMIT)


def test_waiting_sleeps_s6(held, latch):
    """S6: a wait of 300 ms for work in flight burns next to no processor time."""
    _, probe, running = held
    before = time.thread_time()
    with pytest.raises(DeadlineExceededError):
        running.wait(0.3)
    assert time.thread_time() - before < 0.1
    asked = probe.calls["query_event"]
    with pytest.raises(DeadlineExceededError):
        waiting.wait_all([running._as_timepoint()], 0.3, asked=waiting._ASK_SECONDS)
    # Once a slice of 0.1 seconds, and at the end
    assert probe.calls["query_event"] - asked <= 9
    latch.open()
    running.wait(LIMIT)


class Clock:
    """A clock in the place of `hal._base.sync` that only pauses move."""

    def __init__(self, turn):
        self.turn, self.now, self.naps = turn, 0.0, []

    def monotonic(self):
        return self.now

    def yield_thread(self):
        self.now += self.turn

    def nap(self, seconds):
        self.naps.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(("turn", "most"), [(2e-6, 0), (100e-6, 50)])
def test_a_waiter_naps_only_where_others_want_the_processor_s6(
    held, latch, monkeypatch, turn, most
):
    """S6: in its first millisecond it asks without a pause, unless its turns take long."""
    _, probe, running = held
    asked, clock = probe.calls["query_event"], Clock(turn)
    with monkeypatch.context() as patch:
        patch.setattr(waiting, "sync", clock)
        waiting._ask_until((running,), CallStep(), 0.0, waiting._ASK_SECONDS, None)
    asked = probe.calls["query_event"] - asked
    assert bool(clock.naps) == bool(most)
    assert asked <= most if most else asked > 100
    latch.open()
    running.wait(LIMIT)


def test_time_out_reads_the_value_once_more_s6(open_probe, latch):
    """S6: with time-out 0 a value whose work has just ended is seen."""
    device, probe = open_probe()
    buffer = device.allocate(16)
    semaphore = hal.create_semaphore()
    for value in range(1, 51):
        device.queue.fill(buffer, 1, signal=semaphore.at(value))
        for stream in probe.alive["stream"]:  # the work ends, and nobody has looked
            probe.inner.synchronize_stream(stream)
        semaphore.wait(value, 0)
    probe.hold(latch)
    device.queue.fill(buffer, 1, signal=semaphore.at(51))
    with pytest.raises(DeadlineExceededError):
        semaphore.wait(51, 0)
    latch.open()


@pytest.mark.parametrize("wait", ["submission", "semaphore", "all", "any"])
def test_a_sleeper_retires_what_it_waits_for_itself_s6(open_probe, latch, monkeypatch, wait):
    """S6: the driver rings for it, once for each queue; no other thread of ours takes part."""
    device, probe = open_probe()
    queues = device.queue, device.create_queue()
    buffer, semaphore, retirers = device.allocate(16), hal.create_semaphore(), set()
    retire = progress.retire

    def noting(*arguments):
        retirers.add(threading.get_ident())
        retire(*arguments)

    monkeypatch.setattr(progress, "retire", noting)
    monkeypatch.setattr(progress, "serve", lambda *_: pytest.fail("it is the waiter's"))
    for _ in queues:
        probe.hold(latch)
    running = queues[0].fill(buffer, 1, signal=semaphore.at(1))
    beside = queues[1].fill(buffer, 1)
    waits, count = {
        "submission": (running.wait, 1),
        "semaphore": (lambda: semaphore.wait(1), 1),
        "all": (lambda: hal.wait_all([running, beside]), 2),
        "any": (lambda: hal.wait_any([beside, running]), 2),
    }[wait]
    waiter = Running(waits)
    wait_until(lambda: probe.calls["notify"] == count)
    latch.open(2)
    waiter.result()
    assert retirers == {waiter.ident}
    assert probe.calls["notify"] == count


def test_the_progress_thread_serves_more_sleepers_than_have_a_doorbell_s6(held, latch, monkeypatch):
    """S6: two of five have themselves rung for, and it does the rest."""
    monkeypatch.setattr(Notifier, "MOST", 2)
    _, probe, running = held
    waiters = []
    for count in (1, 2, 3, 3, 3):
        waiters.append(Running(running.wait, LIMIT))
        wait_until(lambda count=count: probe.calls["notify"] == count)
    latch.open()
    for waiter in waiters:
        waiter.result()
    assert probe.calls["notify"] == 3


def test_waits_that_run_out_do_not_fill_the_notify_stream_s6(held, latch):
    """S6: each leaves its notification behind, on a stream that takes only so many."""
    _, probe, running = held
    for _ in range(3 * Notifier.MOST):
        with pytest.raises(DeadlineExceededError):
            running.wait(0.002)
    assert probe.calls["notify"] <= Notifier.MOST + 1
    latch.open()
    running.wait(LIMIT)


def test_no_sleeper_relies_on_a_notification_behind_a_later_one_s6(open_probe, latch):
    """S6: a notify stream rings in order; the progress thread asks for a sleeper that is late."""
    device, probe = open_probe()
    buffer, second = device.allocate(16), Latch()
    for held in (latch, second):
        probe.hold(held)
    early, late = (device.queue.fill(buffer, value) for value in (1, 2))
    last = Running(late.wait, LIMIT)
    wait_until(lambda: probe.calls["notify"] == 1)
    first = Running(early.wait, LIMIT)
    wait_until(lambda: device.queue._watched)
    latch.open()
    first.result()
    second.open()
    last.result()
    assert probe.calls["notify"] == 1


def test_no_sleeper_relies_on_a_notification_of_an_earlier_operation_s6(
    open_probe, latch, slept, monkeypatch
):
    """S6: a wait that ran out leaves its doorbell armed; the next one to sleep there waits on."""
    monkeypatch.setattr(waiting, "NET_SECONDS", math.inf)  # nothing else would wake it
    device, probe = open_probe()
    buffer, second = device.allocate(16), Latch()
    for held in (latch, second):
        probe.hold(held)
    early, late = (device.queue.fill(buffer, value) for value in (1, 2))
    while slept.empty():  # on a busy machine its time may be over before it sleeps
        with pytest.raises(DeadlineExceededError):
            early.wait(0.05)
    assert slept.get() <= 0.05
    last = Running(late.wait)
    assert slept.get(timeout=LIMIT) == math.inf
    latch.open()
    assert slept.get(timeout=LIMIT) == math.inf  # it was rung for, and sleeps again
    second.open()
    last.result()


def test_ctrl_c_leaves_no_half_armed_notification_s6(held, latch):
    """S6, O3: it comes while the waiter is in the native call; the next one arms anew."""
    device, probe, running = held
    probe.fail_call(1, KeyboardInterrupt(), ("notify",))
    with pytest.raises(KeyboardInterrupt):
        running.wait(LIMIT)
    wait_until(lambda: device.queue._notifier.arming is None)  # the progress thread may arm, too
    waiter = Running(running.wait, LIMIT)
    wait_until(lambda: probe.calls["notify"] >= 2)
    latch.open()
    waiter.result()
    device.wait_idle(LIMIT)
    assert device.queue._context.events.is_idle()


def test_impatient_leader_wakes_a_follower_s6(held, latch):
    """S6: the waiter that polls times out; the others must still see the work end."""
    _, _, running = held
    ready, gone = threading.Barrier(9, timeout=LIMIT), threading.Barrier(5, timeout=LIMIT)

    def impatient():
        ready.wait()
        with pytest.raises(DeadlineExceededError):
            running.wait(0.02)
        gone.wait()

    def patient():
        ready.wait()
        running.wait(LIMIT)

    def release():
        ready.wait()
        gone.wait()
        latch.open()

    collect_in_threads([impatient] * 4 + [patient] * 4 + [release])


def test_time_outs_leave_no_waiter_behind_s6():
    """S6: 2000 waits that ran out leave nothing on the semaphores."""
    many = semaphores(10)
    entries = [semaphore.at(5) for semaphore in many]

    def run_out(count):
        for _ in range(count):
            with pytest.raises(DeadlineExceededError):
                hal.wait_any(entries, 0)
            with pytest.raises(DeadlineExceededError):
                hal.wait_all(entries, 1e-6)

    run_out(20)
    gc.collect()
    before = len(gc.get_objects())
    run_out(1000)
    gc.collect()
    assert len(gc.get_objects()) - before < 200


@pytest.mark.parametrize("name", ["create_stream", "wait_event", "notify"])
def test_a_notification_that_cannot_be_armed_is_tried_again_s6(held, latch, name):
    """S6: at once, not when the progress thread's longest sleep is over."""
    device, probe, running = held
    for number in range(1, 6):
        probe.fail_call(number, OutOfMemoryError("no room for it"), (name,))
    tried = probe.calls[name]
    waiter = Running(running.wait, LIMIT)
    wait_until(lambda: probe.calls[name] >= tried + 6)
    wait_until(lambda: probe.calls["notify"] > 0)
    latch.open()
    waiter.result()
    assert not device.lost


def test_a_signal_that_broke_off_tells_nobody_who_has_left_s6():
    """O3: what completes it finds the registrations of threads that still wait, and no more."""
    first, second, third = semaphores(3)
    waiting = Running(hal.wait_all, [each.at(1) for each in (first, second, third)], LIMIT)
    wait_until(lambda: all(each._reached for each in (first, second, third)))
    with timelines.lock:
        first._value = first._reserved = 1  # and it has broken off before it told anybody
    third.fail(OperationError("broken"))
    with pytest.raises(OperationError, match="broken"):
        waiting.result()
    progress.act(progress.change, timelines.Timeline._advance, (first, 1))
    assert not first._reached
