"""The doorbell at which a host thread sleeps."""

import threading

import pytest

from hal._base import sync

LIMIT = 30.0


def test_a_doorbell_that_was_rung_lets_its_waiter_through_once():
    bell = sync.Doorbell()
    bell.ring()
    bell.ring()  # all rings before a wait are one
    bell.spin()
    assert bell.wait(LIMIT)
    assert not bell.wait(0.0)


def test_a_doorbell_that_nobody_rings_gives_up():
    bell = sync.Doorbell()
    bell.spin()
    assert not bell.wait(0.0)
    assert not bell.wait(0.01)


def test_a_sleep_does_not_look_at_a_clock_that_people_set(monkeypatch):
    """A clock that is set back would make the sleep longer."""
    if not sync._CAN_CLOCK:
        pytest.skip("the C library has no sem_clockwait")
    monkeypatch.setattr(sync.time, "time", None)
    assert not sync.Doorbell().wait(0.01)


def test_a_ring_can_be_forgotten():
    bell = sync.Doorbell()
    assert not bell.clear()
    bell.ring()
    assert bell.clear()
    assert not bell.wait(0.0)


def test_doorbells_do_not_ring_each_other():
    one, other = sync.Doorbell(), sync.Doorbell()
    one.ring()
    assert not other.wait(0.0)
    assert not sync.Doorbell().wait(0.0)


def test_another_thread_rings_for_a_spinner_and_for_a_sleeper():
    for spins in (False, True):
        bell = sync.Doorbell()
        for _ in range(200):
            ringer = threading.Thread(target=bell.ring)
            ringer.start()
            if spins:
                bell.spin()
            assert bell.wait(float("inf"))
            ringer.join(LIMIT)
