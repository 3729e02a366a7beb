"""Steps: what a call that was broken off leaves in one does not change the thread's next call."""

import threading

import pytest
from core_harness import LIMIT, Running, wait_until

import hal
from hal._devices import lifecycle
from hal._engine import progress, steps, timelines
from hal._engine.steps import CallStep
from hal.errors import ReentrantCallError
from hal.host_pins import HostPins


def is_inside_of_a_call():
    """Return whether a signal handler in the middle of a call of ours would be told so."""
    return progress.act(lambda *_: steps.is_inside(), None, None)


def test_a_call_after_a_close_is_no_calm_one_o3():
    """O3: handlers may call anything while a close waits, but not during the next call."""
    device = hal.create_device("cpu")
    assert device.close(LIMIT) == ()
    assert is_inside_of_a_call()


def interrupt_a_wait(device, probe, latch):
    """Break a wait off while it asks an event, by a Ctrl-C."""
    probe.hold(latch)
    running = device.queue.barrier()
    probe.fail_call(1, KeyboardInterrupt(), {"query_event"})
    with pytest.raises(KeyboardInterrupt):
        running.wait(LIMIT)
    probe.heal()


def test_a_call_after_an_interrupted_wait_is_no_calm_one_o3(open_probe, latch):
    """O3: handlers may call anything while a wait polls, but not during the next call."""
    device, probe = open_probe()
    interrupt_a_wait(device, probe, latch)
    assert is_inside_of_a_call()


def test_an_interrupted_wait_holds_up_no_close_q6(open_probe, latch):
    """Q6: the thread now sleeps for something else, and is in no native call."""
    device, probe = open_probe()
    semaphore, is_asleep = hal.create_semaphore(), threading.Event()

    def wait():
        interrupt_a_wait(device, probe, latch)
        is_asleep.set()
        semaphore.wait(1, 3 * LIMIT)

    waiting = Running(wait)
    assert is_asleep.wait(LIMIT)
    wait_until(lambda: semaphore._recorded)
    assert device.close(LIMIT) == ()
    semaphore.signal(1)
    waiting.result()


def in_elapsed(device):
    first, second = device.queue.timestamp(), device.queue.timestamp()
    hal.wait_all([first, second], LIMIT)
    return device._timers._lock, lambda: second.seconds_since(first)


def in_load(device):
    program = hal.compile("__global__ void f(int* x) {}", target="cpu")
    return device._loading, lambda: device.load(program)


def in_pin(_):
    pins = HostPins(0)
    return pins._lock, lambda: pins.pin(pins, 4096, 1, lambda: None, lambda: 0)


@pytest.mark.parametrize("inside", [in_elapsed, in_load, in_pin])
def test_a_handler_that_asks_for_what_its_thread_is_doing_is_told_o3(device, inside):
    """O3: it does not wait for a lock of the interrupted call; the lock works afterwards."""
    lock, call = inside(device)
    with lock, pytest.raises(ReentrantCallError, match="another thread"):
        call()
    call()


def test_a_handler_that_opens_a_device_while_one_is_named_is_told_o3():
    """O3: the lock on names is like any other that the interrupted call holds."""
    with lifecycle._naming, pytest.raises(ReentrantCallError, match="another thread"):
        hal.create_device("cpu")
    hal.create_device("cpu").close(LIMIT)


def test_a_handler_that_exports_while_its_thread_does_is_told_o3(latch, held):
    """O3: the interrupted call owns the stream on which other libraries wait for ours."""
    device, _, running = held
    with device._external._lock, pytest.raises(ReentrantCallError, match="another thread"):
        device._external.outgoing()
    latch.open()
    running.wait(LIMIT)


def test_nobody_takes_the_work_of_a_thread_that_comes_back(monkeypatch):
    """O3: another thread takes over a broken step just as its own thread begins another call."""
    real, arrived = threading.RLock(), threading.Event()

    class Watched:
        """The timeline lock, which tells when a thread has to wait for it."""

        def __enter__(self):
            if not real.acquire(blocking=False):
                arrived.set()
                real.acquire()

        def __exit__(self, *_):
            real.release()

        def _is_owned(self):
            return real._is_owned()

    did, broken = [], CallStep()

    def change(first, second, work):
        did.append((threading.get_ident(), len(work)))

    def call(step, _, __):
        step.work.append((timelines.CHANGE, (change, None, None)))
        arrived.set()
        assert taken.wait(LIMIT)

    def come_back():
        steps._steps[threading.get_ident()] = broken
        try:
            progress.act(call, None, None)
            assert did, "its own changes are made when a call returns"
        finally:
            del steps._steps[threading.get_ident()]

    class Mark:
        """A mark that its thread takes right after another one has found it free."""

        def __init__(self):
            self.lock = threading.Lock()

        def __enter__(self):
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

        def locked(self):
            if not owner.ident:
                owner.start()
                assert arrived.wait(LIMIT)
                return False
            return self.lock.locked()

    taken, outcome = threading.Event(), []
    broken.mark = Mark()
    owner = threading.Thread(target=lambda: outcome.append(come_back()))
    monkeypatch.setattr(timelines, "lock", Watched())
    try:
        progress.act(lambda step, *_: progress._put_right(broken, step), None, None)
    finally:
        taken.set()
        owner.join(LIMIT)
    assert outcome == [None]
    assert [thread for thread, _ in did] == [owner.ident]


def test_mending_takes_nothing_from_a_thread_that_has_ended_its_call_meanwhile():
    """That call has mended the step; the work in it now belongs to the next call."""
    broken, in_hand = CallStep(), [(timelines.DROP, None)]

    class Mark:
        """A mark that was released when another thread looks at it."""

        def locked(self):
            broken.is_left = False  # the end of one call
            broken.work = in_hand  # the next one
            return False

    broken.mark = Mark()
    progress.act(lambda step, *_: progress._put_right(broken, step), None, None)
    assert broken.work is in_hand
