"""What a signal handler or a finaliser raises is the user's, and what it asks for is done (O3)."""

import asyncio
import gc
import signal
import sys
import weakref
from collections import deque

import pytest
from child_processes import assert_quiet
from core_harness import LIMIT, Running, handled_by, wait_until
from recovery_world import WORLD

import hal
from hal._base.failures import is_users
from hal._base.regions import SharedRegion
from hal._commands.instances import Lease
from hal._engine import progress, timelines
from hal.errors import InvalidArgumentError, ReentrantCallError

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


CAUGHT = """
    import itertools, signal, sys
    import numpy as np
    import hal, hal_cpu
    from hal import errors
    from hal._devices import lifecycle
    from hal.flow import Flow
    from interrupts import Interrupts

    KIND = sys.argv[1]
    OURS = (hal.__path__[0], hal_cpu.__path__[0])
    SOURCE = (
        "__global__ void add(const float *x, float *y, float amount) {"
        "  y[threadIdx.x] = x[threadIdx.x] + amount;"
        "}"
    )

    class Limit(
        errors.DeviceLostError, errors.OutOfMemoryError, errors.DeadlineExceededError,
        errors.ClosedError, errors.UnimplementedError, errors.ArgumentTypeError,
        errors.OperationError, errors.NotFoundError, errors.ReentrantCallError,
        errors.CompilationError, errors.BackendUnavailableError, errors.PluginError,
        FileNotFoundError, PermissionError, IndexError, KeyError, OverflowError,
    ):
        # One of every kind that hal catches.
        def __init__(self):
            Exception.__init__(self, "time limit")

    class Alarm(Interrupts):
        ours = OURS

        def interrupt(self):
            signal.raise_signal(signal.SIGALRM)

    def limit(*_):
        raise error

    def open_and_close():
        hal.devices()
        hal.create_device("cpu").close()

    def allocate():
        queue = device.queue
        taken = device.allocate(1000), device.allocate(3_000_000), queue.alloca(4000)
        queue.dealloca(taken[2]).wait(LIMIT)
        device.trim()
        device.statistics()

    def exchange():
        arrays.append(np.zeros(4096))  # no two at one address
        device.queue.fill(device.import_array(arrays[-1]), 1).wait(LIMIT)
        device.from_dlpack(np.ones(30))
        hal.create_semaphore(shareable=True).share()

    def copy():
        x, out = device.upload(np.ones(64, np.float32)), np.empty(64, np.float32)
        device.queue.read(x, hal.File(path)).wait(LIMIT)
        device.queue.write(x, hal.File(path)).wait(LIMIT)
        out[:] = x.numpy()

    def load():
        device.compile(SOURCE)  # from the cache

    def record():
        add, (x, y) = program["add"], buffers
        with device.record(slots=2, command_buffer="graph") as commands:
            commands.fill(x, 1.0)
            commands.dispatch(add, grid=1, block=64, args=(x, commands.slots[0], commands.slots[1]))
        for amount in (1.0, 2.0):
            device.queue.execute(commands, bindings=[y, amount]).wait(LIMIT)

    def flow():
        x = flows.from_host(np.ones(64, np.float32))
        y = flows.allocate(256, dtype=np.float32)
        flows.dispatch(program["add"], grid=1, block=64, args=(x, y, 2.0))
        y.numpy()

    act, LIMIT, path = globals()[KIND], 30.0, sys.argv[2]
    signal.signal(signal.SIGALRM, limit)
    told, arrays = [], []
    sys.unraisablehook = told.append
    device = hal.create_device("cpu")
    flows, program = Flow(device), device.compile(SOURCE)
    buffers = [device.upload(np.ones(64, np.float32)) for _ in range(2)]
    act()
    for number in itertools.count(1):
        error, alarm, raised = Limit(), Alarm(number), None
        try:
            with alarm:
                act()
        except BaseException as caught:
            raised = caught
        # Python tells of what comes up while it ends a generator; nobody could raise that.
        came_out = raised is error or [each for each in told if each.exc_value is error]
        assert came_out or not alarm.places, (KIND, number, alarm.places, repr(raised))
        assert not device.lost, (KIND, alarm.places)
        told.clear()
        for each in [*lifecycle.devices]:  # what was broken off before anybody had it
            if each is not device:
                each.close(LIMIT)
        act()
        if not alarm.places:
            break
    assert raised is None, raised
    assert number > 50, number
    device.wait_idle(LIMIT)
    assert device.close(LIMIT) == ()
"""


@pytest.mark.parametrize(
    "kind", ["open_and_close", "allocate", "exchange", "copy", "load", "record", "flow"]
)
def test_an_error_of_a_kind_that_hal_catches_is_the_users_too(run_script, tmp_path, kind):
    """O3: at every call of ours and of the plugin's, of all kinds at once. It is taken for no
    refusal, full memory, missing file or lost device, and the call works when it is made again."""
    assert_quiet(run_script(CAUGHT, arguments=(kind, str(tmp_path / "file"))))


def test_what_a_handler_raises_while_a_thread_takes_work_back_is_the_users(monkeypatch):
    """O3: an IndexError there is not that of an empty inbox, and the work stays."""

    class Interrupted(deque):
        def popleft(self):
            signal.raise_signal(signal.SIGALRM)
            return super().popleft()

    def limit(*_):
        raise IndexError("the user's")

    inbox, taken = Interrupted([((0, None), 0)]), []
    monkeypatch.setattr(progress._progress, "_inbox", inbox)
    with handled_by(limit), pytest.raises(IndexError, match="the user's"):
        progress._progress._take(1, taken)
    assert (list(inbox), taken) == ([((0, None), 0)], [])


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

    with handled_by(limit):
        asyncio.run(program())
    assert [str(error) for error in raised] == ["time limit"]


def test_whose_an_error_is_is_asked_without_keeping_its_frames():
    """O3: the objects that a caller of ours holds are free as soon as it has handled the error."""

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


AWAITED = (
    WORLD
    + """
    from hal._base.sync import Doorbell

    class Handler:
        # Signals what the wait is for, as the n-th function of hal is entered or has called one of
        # C's; at the latest as the thread goes to sleep.
        def __init__(self, number, gate):
            self.left, self.gate, self.is_asleep = number, gate, False

        def __call__(self, frame, event, argument):
            if event in ("call", "c_return") and frame.f_code.co_filename.startswith(OURS):
                self.left -= 1
                self.is_asleep = frame.f_code is Doorbell.wait.__code__
                if self.left <= 0 or self.is_asleep:
                    sys.setprofile(None)
                    self.gate.signal(1)

    for number in itertools.count(1):
        world = World()
        world.fill(world.queue, wait=world.gate.at(1))
        handler = Handler(number, world.gate)
        sys.setprofile(handler)
        try:
            if KIND == "any":
                hal.wait_any([world.gate.at(1), world.out.at(1)], timeout=LIMIT)
            elif KIND == "all":
                hal.wait_all([world.taken[0], world.gate.at(1)], LIMIT)
            else:
                world.device.wait_idle(LIMIT)
        finally:
            sys.setprofile(None)
        assert world.check() == [], number
        if handler.is_asleep:
            break
    assert number > 5, number
"""
)


@pytest.mark.parametrize("kind", ["any", "all", "idle"])
def test_a_signal_handler_ends_a_wait_of_its_thread(run_script, kind):
    """O3: at every call of ours. It signals what the wait is for, which is put off to a moment that
    comes before the thread sleeps for it."""
    assert_quiet(run_script(AWAITED, arguments=(kind,)))


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
                # Nothing else is called on this thread: the next thread that calls hal does it.
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


def test_a_handler_in_the_middle_of_a_trim_may_execute_o3(device):
    """O3: the trim has no lock in its hands that the execution takes."""
    buffer = device.allocate(16)
    with device.record(command_buffer="graph") as commands:
        commands.fill(buffer, 1)
    device.queue.execute(commands).wait(LIMIT)
    (instance,) = commands._playback._pool._instances
    executed = []

    class Interrupted(weakref.ref):
        """A reference to a lease; to look at it is where the handler comes."""

        def __call__(self):
            if not executed:
                executed.append(device.queue.execute(commands))
                executed[0].wait(LIMIT)
            return super().__call__()

    instance.lease = Interrupted(Lease())
    Running(device.trim).result()
    assert executed[0].done
    device.queue.execute(commands).wait(LIMIT)


def test_a_handler_may_signal_as_a_shared_semaphore_is_published_o3(monkeypatch):
    """O3: the value of the handler, which is the higher one, stays what other processes see."""
    semaphore = hal.create_semaphore(shareable=True)
    region, raise_to = semaphore._link.region, SharedRegion.raise_to

    def interrupted(of, value):
        if value == 1:
            semaphore.signal(2)
        raise_to(of, value)

    monkeypatch.setattr(SharedRegion, "raise_to", interrupted)
    semaphore.signal(1)
    assert (semaphore.query(), region.value()) == (2, 2)
