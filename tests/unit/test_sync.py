"""The gate at which a host thread sleeps."""

from __future__ import annotations

import threading

from hal._base import sync

LIMIT = 30.0


def test_a_gate_that_was_opened_lets_everything_through():
    gate = sync.Gate()
    gate.open()
    gate.open()  # any number of times: around a Ctrl-C it is opened again
    assert gate.spin()
    assert gate.wait(LIMIT)


def test_two_threads_open_a_gate_at_once():
    """A free-threaded Python lets the other one in between any two steps of the first."""

    class Opened:
        """A lock that another thread has released since anybody looked."""

        def locked(self):
            return True

        def release(self):
            message = "release unlocked lock"
            raise RuntimeError(message)

    gate = sync.Gate()
    gate._lock = Opened()
    gate.open()
    assert gate.spin()


def test_a_shut_gate_gives_up():
    gate = sync.Gate()
    assert not gate.spin()
    assert not gate.wait(0.0)
    assert not gate.wait(0.01)


def test_gates_do_not_open_each_other():
    one, other = sync.Gate(), sync.Gate()
    one.open()
    assert not other.spin()
    assert not sync.Gate().spin()


def test_another_thread_opens_it_for_a_spinner_and_for_a_sleeper():
    for wait in (lambda gate: gate.wait(LIMIT), lambda gate: gate.spin() or gate.wait(LIMIT)):
        for _ in range(200):
            gate = sync.Gate()
            opener = threading.Thread(target=gate.open)
            opener.start()
            assert wait(gate)
            opener.join(LIMIT)
