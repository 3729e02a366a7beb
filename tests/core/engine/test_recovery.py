"""What breaks a call off is put right by whoever comes next, and by nobody else (O3, I5)."""

import asyncio
import gc
import signal
import sys
import weakref

import numpy as np
import pytest
from child_processes import assert_quiet
from core_harness import LIMIT, needs_gil, stalled, wait_until

import hal
from hal._base.failures import is_users
from hal._engine import steps, timelines
from hal.errors import (
    DeviceLostError,
    HalError,
    InvalidArgumentError,
    OperationError,
    ReentrantCallError,
)

WORLD = """
    import contextlib, itertools, signal, sys, threading
    import hal
    from core_harness import LIMIT, Latch, open_native, wait_until
    from hal._engine.operation import DEFERRED
    from hal.errors import (
        ClosedError, DeadlineExceededError, HalError, InvalidArgumentError, ReentrantCallError
    )
    from native_probe import Probe
    from interrupts import Interrupts

    KIND, OURS = sys.argv[1], hal.__path__[0]
    driver = open_native()

    class World:
        def __init__(self):
            self.probe = Probe(driver.open_device(0, {}))
            self.device = hal.Device("cpu", self.probe, 2 if KIND == "backlog" else None)
            self.buffer = self.device.allocate(64)
            self.gate, self.out = hal.create_semaphore(), hal.create_semaphore()
            self.queue, self.other = self.device.queue, self.device.queues.upload
            self.taken = []
            if KIND == "parts":
                with self.device.record() as self.commands:
                    for queue in (self.queue, self.other, self.queue):
                        with self.commands.on(queue):
                            self.commands.fill(self.buffer, 1)
                        self.commands.barrier()
            if KIND in ("signal", "fail", "cancel"):
                self.fill(self.queue, wait=self.gate.at(1), signal=self.out.at(1))
                self.fill(self.other, wait=self.out.at(1))
            if KIND in ("deferred", "deferred fail"):
                for queue in (self.queue, self.other):
                    signal = self.out.at(1) if queue is self.queue else ()
                    self.taken.append(queue.call(lambda: [self.gate.at(1)], signal=signal))
                wait_until(lambda: {each._state for each in self.taken} == {DEFERRED})
                self.fill(self.queue)
                self.fill(self.other, wait=self.taken[0])

        def fill(self, queue, **order):
            self.taken.append(queue.fill(self.buffer, 1, **order))

        def act(self):
            if KIND == "submit":
                self.fill(self.queue, signal=self.out.at(1))
                self.fill(self.other, wait=self.out.at(1))
            elif KIND == "parts":
                done = self.queue.execute(self.commands, signal=self.out.at(1))
                self.taken.append(done)
                self.fill(self.other, wait=self.out.at(1))
            elif KIND == "pending":
                self.fill(self.queue, wait=self.gate.at(1), signal=self.out.at(1))
                self.gate.signal(1)
            elif KIND in ("signal", "deferred"):
                self.gate.signal(1)
            elif KIND == "wait":
                self.fill(self.queue)
                self.taken[-1].wait(LIMIT)
            elif KIND == "idle":
                self.fill(self.queue)
                self.device.wait_idle(LIMIT)
            elif KIND == "asleep":
                # The work runs until the wait has had the driver ring for it.
                latch, notify = Latch(), self.probe.notify
                self.probe.hold(latch)
                self.probe.notify = lambda *call: (notify(*call), latch.open())
                self.fill(self.queue)
                self.taken[-1].wait(LIMIT)
            elif KIND == "backlog":
                for _ in range(5):
                    self.fill(self.queue)
                self.taken[-1].wait(LIMIT)
            elif KIND == "call":
                self.taken.append(self.queue.call(int))
                self.fill(self.queue)
                self.taken[-1].wait(LIMIT)
            elif KIND == "close":
                self.device.close(LIMIT)
            elif KIND in ("fail", "deferred fail"):
                self.gate.fail(ValueError("x"))
            elif KIND == "cancel":
                self.taken[0].cancel()
            elif KIND == "allocate":
                for size in (64, 100_000, 64):
                    self.device.allocate(size)
                self.device.trim()

        def check(self):
            # Every promise is kept or broken, every queue takes work, nothing is left.
            wrong = []

            def attempt(what, function):
                try:
                    function()
                except DeadlineExceededError as error:
                    wrong.append(f"{what}: {error}")
                except HalError:
                    pass

            def reach(semaphore):
                # A promise is kept, broken or was never made: else whoever waits would hang.
                try:
                    semaphore.signal(1)
                except InvalidArgumentError:
                    semaphore.wait(1, LIMIT)

            attempt("gate", lambda: reach(self.gate))
            for each in self.taken:
                attempt("never ends", lambda: each.wait(LIMIT))
            attempt("out", lambda: reach(self.out))
            if KIND.startswith("deferred") and self.taken[0].state != self.taken[1].state:
                wrong.append(f"the calls ended as {self.taken[:2]}")
            if KIND != "close":
                for queue in (self.queue, self.other):
                    attempt("stuck", lambda: queue.fill(self.buffer, 9).wait(LIMIT))
                if self.device.lost:
                    wrong.append("lost")
            wrong += self.device.close(LIMIT)
            return wrong + self.probe.violations
"""

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

    problems = doubles = 0
    for first in itertools.count(1):
        # Where the second one comes: nowhere, right away, and at a place that moves on with the
        # first.
        for second in (0, 1, 2 + first * 7 % 31):
            places, wrong = trial(first, second)
            doubles += len(places) == 2
            if wrong:
                problems += 1
                print(f"{KIND}, {places}: {wrong}", file=sys.stderr)
        if not places or problems > 5:
            break
    assert doubles > 5, doubles
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


ALARMS = (
    WORLD
    + """
    class SoftLimit(TimeoutError):
        pass

    kinds = itertools.cycle([SoftLimit, ReentrantCallError, RuntimeError])

    def limit(*_):
        raise kind("time limit")

    signal.signal(signal.SIGALRM, limit)
    # How often an event is asked before the wait sleeps is a matter of time.
    names = {"create_stream", "wait_event", "notify"} if KIND == "asleep" else None
    for number, kind in zip(itertools.count(1), kinds):
        world = World()
        world.probe.fail_call(number, lambda: signal.raise_signal(signal.SIGALRM), names)
        raised = False
        try:
            world.act()
            world.device.queue.fill(world.buffer, 2).wait(LIMIT)
        except kind as error:
            raised = str(error) == "time limit"
        reached = not world.probe.pending_fault
        world.probe.heal()
        failed = [each for each in world.taken if each.state in ("failed", "cancelled")]
        assert world.check() == [], number
        assert world.probe.live() == {}, (number, world.probe.live())
        assert raised or not reached, number
        assert len(failed) <= 2, (number, failed)  # the one interrupted, and what waited for it
        if not reached:
            break
    assert number > 3, number
"""
)


@pytest.mark.parametrize("kind", ["submit", "parts", "pending", "wait", "asleep", "backlog"])
def test_what_a_signal_handler_raises_is_the_users(run_script, kind):
    """O3: at every native call. It is raised where the user is, loses no device, and fails no
    operation that it did not interrupt."""
    assert_quiet(run_script(ALARMS, arguments=(kind,)))


ALARMED = (
    WORLD
    + """
    class Alarm(Interrupts):
        def interrupt(self):
            signal.raise_signal(signal.SIGALRM)

    def limit(*_):
        raise kind("time limit")

    signal.signal(signal.SIGALRM, limit)
    for kind in (ReentrantCallError, RuntimeError):
        for number in itertools.count(1):
            world = World()
            alarm = Alarm(number)
            try:
                with alarm:
                    world.act()
            except kind as error:
                raised = str(error) == "time limit"
            else:
                raised = False
            assert raised == bool(alarm.places), (kind, alarm.places)
            told = [str(each.error) for each in world.taken if each.state == "failed"]
            assert not any("time limit" in each for each in told), (alarm.places, told)
            assert world.check() == [], (kind, alarm.places)
            if not alarm.places:
                break
        assert number > 50, number
"""
)


@pytest.mark.parametrize("kind", ["submit", "parts", "pending", "idle", "cancel", "close"])
def test_what_a_signal_handler_raises_anywhere_is_the_users(run_script, kind):
    """O3: at every call of ours, an error of hal's or Python's alike. It is raised once, and is
    no refusal: what the interrupted call had begun is completed."""
    assert_quiet(run_script(ALARMED, arguments=(kind,)))


@pytest.mark.parametrize("kind", [TimeoutError, RuntimeError])
def test_what_a_handler_raises_while_a_loop_is_told_is_the_users(kind):
    """O3: it is raised by the call that told the loop, which is told all the same."""
    semaphore, raised = hal.create_semaphore(), []

    def limit(*_):
        raise kind("time limit")

    async def program():
        loop = asyncio.get_running_loop()
        tell = loop.call_soon_threadsafe

        def interrupted(*call):
            loop.call_soon_threadsafe = tell
            signal.raise_signal(signal.SIGALRM)

        task = asyncio.create_task(asyncio.wait_for(semaphore.reached(1), LIMIT))
        while semaphore._reached is None:
            await asyncio.sleep(0)
        loop.call_soon_threadsafe = interrupted
        try:
            semaphore.signal(1)
        except kind as error:
            raised.append(error)
        await task

    before = signal.signal(signal.SIGALRM, limit)
    try:
        asyncio.run(program())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [str(error) for error in raised] == ["time limit"]


def test_whose_an_error_is_is_asked_without_keeping_its_frames():
    """O3: what a caller of ours holds is free as soon as it has handled the error."""

    class Bag:
        pass

    def handle():
        bag = Bag()
        try:
            hal.create_semaphore(1).signal(1)
        except InvalidArgumentError as error:
            is_users(error)
        return weakref.ref(bag)

    gc.disable()
    try:
        assert handle()() is None
    finally:
        gc.enable()


HANDLERS = (
    WORLD
    + """
    class Handler:
        # Calls hal, as a signal handler does, as the n-th function of hal is entered or has
        # called one of C's.
        def __init__(self, number, world):
            self.left, self.world, self.made, self.gone = number, world, None, None
            self.stop = hal.create_semaphore()

        def __call__(self, frame, event, argument):
            if event in ("call", "c_return") and frame.f_code.co_filename.startswith(OURS):
                self.left -= 1
                if self.left == 0:
                    sys.setprofile(None)
                    self.stop.signal(1)
                    self.stop.signal(2)
                    self.world.other.flush()
                    assert self.stop.query() in (0, 1, 2)
                    for call in (self.submit, self.allocate, self.wait):
                        try:
                            call()
                        except (ReentrantCallError, DeadlineExceededError):
                            assert call != self.submit
                        except ClosedError:
                            assert KIND == "close"

        def submit(self):
            fill, buffer = self.world.other.fill, self.world.buffer
            self.gone = fill(buffer, 3, wait=self.stop.at(3))
            self.made = fill(buffer, 3, wait=self.stop.at(1))
            assert self.gone.cancel() is (self.gone.state == "cancelled")

        def allocate(self):
            self.world.device.allocate(64)

        def wait(self):
            hal.wait_all(self.stop.at(2), 0)

    for number in itertools.count(1):
        world = World()
        handler = Handler(number, world)
        sys.setprofile(handler)
        try:
            world.act()
        finally:
            sys.setprofile(None)
        if handler.left > 0:
            break
        handler.stop.wait(2, LIMIT)
        if KIND != "close":
            handler.made.wait(LIMIT)
            assert handler.gone.state == "cancelled", number
        assert world.check() == [], number
    assert number > 5, number
"""
)


@pytest.mark.parametrize(
    "kind", ["submit", "pending", "signal", "wait", "call", "close", "fail", "cancel", "allocate"]
)
def test_a_signal_handler_may_call_hal(run_script, kind):
    """O3: at every call of ours. Signals, submissions and cancellations are put off and made in
    order; what cannot be put off raises at once; nothing hangs."""
    assert_quiet(run_script(HANDLERS, arguments=(kind,)))


PUT_OFF = (
    WORLD
    + """
    class Handler(Interrupts):
        # A handler that calls hal, which is put off, and a Ctrl-C some places after it.
        def __init__(self, first, second, world):
            super().__init__(first, second)
            self.world, self.made = world, None
            self.stop = hal.create_semaphore()

        def interrupt(self):
            if not self.places[1:]:
                sys.setprofile(None)
                self.is_due = False
                self.stop.signal(1)
                queue = self.world.device.queues.download
                self.made = queue.fill(self.world.buffer, 3, wait=self.stop.at(1))
                sys.setprofile(self.profile)
            else:
                raise KeyboardInterrupt

    told = []
    sys.unraisablehook = told.append
    pairs = broken = 0
    for first in itertools.count(1):
        for second in (1 + first * 3 % 61, 1 + first * 5 % 149):
            world = World()
            handler = Handler(first, second, world)
            sys.setprofile(handler.profile)
            try:
                world.act()
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            places = handler.places
            pairs += len(places) == 2
            if places:
                # Nothing else is called on this thread: whoever comes next does it.
                for _ in range(1000):
                    if handler.stop._value == 1 and handler.made.state != "pending":
                        break
                    threading.Event().wait(0.01)
                assert handler.stop._value == 1, places
                with contextlib.suppress(HalError):
                    handler.made.wait(LIMIT)
            assert world.check() == [] and not told, (places, told)
            if places and handler.made.state != "done":
                broken += 1  # in its native calls, as any other submission
                assert "was interrupted" in str(handler.made.error), (places, handler.made.error)
        if not places:
            break
    assert pairs > 20 and broken < pairs / 4, (pairs, broken)
"""
)


@pytest.mark.parametrize("kind", ["submit", "pending", "signal", "wait", "fail", "allocate"])
def test_a_ctrl_c_loses_no_call_that_was_put_off(run_script, kind):
    """O3: what a signal handler has signalled and submitted is done once, whatever comes after."""
    assert_quiet(run_script(PUT_OFF, arguments=(kind,)))


def test_what_a_handler_asks_for_at_once_is_refused(device):
    """O3: a wait or an allocation in the middle of a call of ours says what to do instead."""
    told = []

    class Bag:
        def __del__(self):
            with timelines.lock:  # as if the collector had run in there
                for call in (
                    lambda: hal.create_semaphore().wait(1, 0),
                    lambda: device.queue.wait_idle(0),
                ):
                    try:
                        call()
                    except ReentrantCallError as error:
                        told.append(str(error))
                made.append(device.queue.barrier())

    made = []
    bag = Bag()
    device.queue.barrier(wait=hal.create_semaphore().at(1))
    del bag
    gc.collect()
    assert told
    assert all("signal handler" in each and "another thread" in each for each in told)
    assert made[0].state == "pending"


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


def test_a_call_that_was_put_off_and_refused_is_told(device, monkeypatch):
    """O3: its caller has returned, so the error goes to `sys.unraisablehook`."""
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    semaphore = hal.create_semaphore()
    semaphore.signal(5)

    class Bag:
        def __del__(self):
            with timelines.lock:
                semaphore.signal(3)

    bag = Bag()
    del bag
    wait_until(lambda: told)
    assert isinstance(told[0].exc_value, InvalidArgumentError)


def test_no_step_is_left_open(device):
    """A call that has ended well, or was refused, leaves nothing behind."""
    buffer = device.upload(np.zeros(64, np.uint8))
    device.queue.fill(buffer, 1).wait(LIMIT)
    with pytest.raises(InvalidArgumentError):
        hal.create_semaphore(5).signal(3)
    with pytest.raises(TimeoutError):
        hal.create_semaphore().wait(1, 0)
    mine = [each for each in steps.all_steps() if steps.is_mine(each)]
    assert not any(each.is_open() for each in [*mine, steps.begin()])
