"""Test the locks that a ``with`` of Python 3.14 does not lose (O3), on the Python that is here."""

import contextlib
import importlib
import itertools
import random
import signal
import threading

import pytest
from core_harness import handled_by

from hal import locks

KINDS = {"threading's": type(threading.RLock())}
with contextlib.suppress(ImportError):  # the extension may not be built; the engine here is Python
    KINDS["the extension's"] = importlib.import_module("hal._speedups").OwnedLock


class RaisedError(Exception):
    pass


@pytest.fixture(params=["plain", *KINDS])
def lock(request):
    kind = KINDS.get(request.param)
    return locks.safe_owned_lock(kind)() if kind else locks.SafeLock()


def is_free(lock):
    """Return whether another thread can take it."""
    found = []

    def take():
        with lock:
            found.append(True)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(30)
    return found == [True]


def test_a_with_takes_it_and_gives_it_back(lock):
    for _ in range(3):
        with lock:
            assert lock.locked() if isinstance(lock, locks.SafeLock) else lock._is_owned()
        assert is_free(lock)
    with pytest.raises(RaisedError), lock:
        raise RaisedError
    assert is_free(lock)


def test_others_wait_for_it(lock):
    order = []
    began = threading.Event()

    def work():
        began.set()
        with lock:
            order.append("second")

    thread = threading.Thread(target=work)
    with lock:
        thread.start()
        assert began.wait(30)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_an_interrupt_leaves_it_free_o3(lock):
    """Interrupts come at random moments of a loop that takes it and gives it back."""
    is_armed = False

    def handler(*_):
        if is_armed:
            raise RaisedError

    def interrupt(seconds):
        nonlocal is_armed
        is_armed = True
        signal.setitimer(signal.ITIMER_REAL, seconds)
        for _ in itertools.count():
            with lock:
                pass

    pick = random.Random(1)
    with handled_by(handler):
        for _ in range(200):
            with pytest.raises(RaisedError):
                interrupt(pick.uniform(0.0001, 0.0005))
            is_armed = False
            assert is_free(lock)
