"""What most tests of the core need: a limit, a native driver, a latch, threads, queues."""

import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
from concurrent.futures import Future

import pytest

import hal
from hal._engine import timelines
from hal_cpu.plugin import hal_backend

__all__ = [
    "LIMIT",
    "SEM_WAIT",
    "Contended",
    "Latch",
    "Running",
    "Stall",
    "collect_in_threads",
    "handled_by",
    "needs_gil",
    "open_native",
    "queues_of",
    "semaphores",
    "wait_until",
]

LIMIT = float(os.environ.get("HAL_TEST_LIMIT", "30"))
"""Seconds that any wait of these tests may take before the test fails; less for mutants."""

needs_gil = pytest.mark.skipif(
    hasattr(sys, "_is_gil_enabled") and not sys._is_gil_enabled(),
    reason="what it shows needs the interpreter lock",
)

_libc = ctypes.CDLL(None)
SEM_WAIT = ctypes.cast(_libc.sem_wait, ctypes.c_void_p).value


def open_native():
    """Return a native CPU driver of our own."""
    return hal_backend().open()


class Latch:
    """Hold native streams up until it is opened: a POSIX semaphore that a stream waits for."""

    def __init__(self):
        self._memory = ctypes.create_string_buffer(64)
        self.argument = ctypes.addressof(self._memory)
        assert _libc.sem_init(ctypes.c_void_p(self.argument), 0, 0) == 0
        _kept.append(self)  # a stream may look at it after the test

    def open(self, count=1):
        """Let `count` held operations go."""
        for _ in range(count):
            _libc.sem_post(ctypes.c_void_p(self.argument))


_kept = []


class Stall:
    """A fault for `Probe.fail_call`: a native call that does not return before `leave` is set."""

    def __init__(self):
        self.entered, self.leave = threading.Event(), threading.Event()

    def __call__(self):
        self.entered.set()
        assert self.leave.wait(LIMIT)


class Contended:
    """A lock that says when a thread finds another one in it, by a call of `found`."""

    def __init__(self, lock, found):
        self._lock, self._found = lock, found

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self._found()
            self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()

    def _is_owned(self):
        return self._lock._is_owned()


class Running(threading.Thread):
    """A function that runs on a thread of its own."""

    def __init__(self, function, *arguments):
        super().__init__(daemon=True)
        self._work = functools.partial(function, *arguments)
        self._outcome = Future()
        self.start()

    def run(self):
        try:
            self._outcome.set_result(self._work())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._outcome.set_exception(error)

    def result(self):
        """Return what the function returns, or raise what it raises, once it has ended."""
        self.join(3 * LIMIT)
        assert not self.is_alive(), "a thread hangs"
        return self._outcome.result()


@contextlib.contextmanager
def handled_by(handler, number=signal.SIGALRM):
    """Have a function handle a signal in the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def stalled(probe, name, number, function, *arguments):
    """Run a function till its n-th native call of a name, which stays; return the stall and it."""
    stall = Stall()
    probe.fail_call(number, stall, {name})
    running = Running(function, *arguments)
    assert stall.entered.wait(LIMIT)
    return stall, running


def collect_in_threads(functions):
    """Run functions on threads of their own; return their results, or raise the first error."""
    running = [Running(each) for each in functions]
    return [each.result() for each in running]


def queues_of(device):
    return (device.queues.compute, device.queues.upload, device.queues.download)


def semaphores(count):
    return [hal.create_semaphore(name=f"s{index}") for index in range(count)]


def count_holds(monkeypatch, *counted):
    """Return a list that gets a number for each hold of the timeline lock: of calls in it.

    Those of `counted`, pairs of a class and a method's name.
    """
    lock, held = timelines.lock, []

    class Counting:
        def __enter__(self):
            lock.__enter__()
            held.append(0)

        def __exit__(self, *_):
            lock.__exit__()

        def _is_owned(self):
            return lock._is_owned()

    def counting(method):
        def count(*arguments):
            held[-1] += 1
            return method(*arguments)

        return count

    for owner, name in counted:
        monkeypatch.setattr(owner, name, counting(getattr(owner, name)))
    monkeypatch.setattr(timelines, "lock", Counting())
    return held


def wait_until(condition):
    """Wait for what a helper thread of ours does some time after it was asked to."""
    pause = threading.Event()
    for _ in range(int(LIMIT * 100)):
        if condition():
            return
        pause.wait(0.01)
    message = "it did not come about in time"
    raise AssertionError(message)
