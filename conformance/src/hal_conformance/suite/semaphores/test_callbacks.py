"""Callbacks: on a thread of the runtime, in order, once, and they can be taken back (S8)."""

from __future__ import annotations

import itertools
import sys
import threading
from functools import partial
from typing import Any

import pytest

from hal.errors import ArgumentTypeError, HalError, OperationError, SemaphoreFailedError
from hal_conformance.suite.support import LIMIT, broken, callbacks_done, in_threads


class Note:
    """Keep what a callback was given, and on which thread."""

    def __init__(self) -> None:
        self.calls: list[tuple[HalError | None, int]] = []
        self.came = threading.Event()

    def __call__(self, error: HalError | None) -> None:
        self.calls.append((error, threading.get_ident()))
        self.came.set()

    def wait(self) -> None:
        """Block until it has been called."""
        assert self.came.wait(LIMIT), "the callback does not come"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_callback_comes_once_s8(producers, semaphore, producer, when):
    """S8: registered before or after the value is reached, it is called once, with None."""
    note = Note()
    if when == "before":
        semaphore.on_reached(1, note)
        assert not note.calls
    producers.signal(producer, semaphore.at(2))
    semaphore.wait(2, LIMIT)
    if when == "after":
        semaphore.on_reached(1, note)
    note.wait()
    callbacks_done()
    assert [error for error, _ in note.calls] == [None]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_callback_is_never_inline_s8(semaphore, when):
    """S8: not even a reached value's callback runs on the thread that registers or signals.

    That thread holds a lock which the callback takes: inline it would wait for itself.
    """
    lock, note = threading.Lock(), Note()

    def take_the_lock(error):
        with lock:
            note(error)

    with lock:
        if when == "before":
            semaphore.on_reached(1, take_the_lock)
        semaphore.signal(1)
        if when == "after":
            semaphore.on_reached(1, take_the_lock)
    note.wait()
    assert note.calls[0][1] != threading.get_ident()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_callback_gets_the_failure_s8(semaphore, when):
    """S8: on failure the function is called with the error, afresh."""
    note, original = Note(), broken()
    if when == "before":
        semaphore.on_reached(1, note)
    semaphore.fail(original)
    if when == "after":
        semaphore.on_reached(1, note)
    note.wait()
    error = note.calls[0][0]
    assert isinstance(error, OperationError)
    assert error is not original
    assert str(error) == str(original)


def test_a_callback_gets_a_hal_error_s8(semaphore):
    """S8: also an error that is no `HalError` comes as one, with the original as its cause."""
    note, original = Note(), OSError("the disk is gone")
    semaphore.on_reached(1, note)
    semaphore.fail(original)
    note.wait()
    error = note.calls[0][0]
    assert isinstance(error, SemaphoreFailedError)
    assert error.__cause__ is original


def test_callbacks_come_in_order_s8(semaphore):
    """S8: callbacks of values that are reached one after another come in that order."""
    seen = []
    for value in (3, 1, 2, 5, 4):
        semaphore.on_reached(value, partial(lambda value, _: seen.append(value), value))
    for value in range(1, 6):
        semaphore.signal(value)
    callbacks_done()
    assert seen == [1, 2, 3, 4, 5]


def test_a_callback_may_use_everything_s8(device, queue, make_semaphore):
    """S8: a callback runs under no lock: it may submit, signal, poll, fail and register."""
    first, second, third, failed = (make_semaphore() for _ in range(4))
    note = Note()
    buffer = device.allocate(64)

    def use(error):
        assert error is None
        assert first.query() == 1
        assert not second.poll(1)
        second.signal(1)
        failed.fail(broken())
        queue.fill(buffer, 5, signal=third.at(1))
        third.on_reached(1, note)

    first.on_reached(1, use)
    first.signal(1)
    note.wait()
    assert note.calls[0][0] is None
    assert (buffer.numpy(timeout=LIMIT) == 5).all()
    assert second.query() == 1


def test_callbacks_chain_s8(make_semaphore):
    """S8: a callback signals the next semaphore, whose callback signals the next, 50 long."""
    semaphores = [make_semaphore() for _ in range(51)]
    for here, there in itertools.pairwise(semaphores):
        here.on_reached(1, partial(lambda there, _: there.signal(1), there))
    semaphores[0].signal(1)
    semaphores[-1].wait(1, LIMIT)


def test_a_chain_of_callbacks_ends_where_a_condition_says_s8(make_semaphore):
    """S8: a callback that does not signal ends the chain; the rest stays as it is."""
    first, second, third = (make_semaphore() for _ in range(3))
    first.on_reached(1, lambda error: second.signal(1) if error is None else third.signal(1))
    first.signal(1)
    second.wait(1, LIMIT)
    callbacks_done()
    assert third.query() == 0


def test_a_raising_callback_ends_nothing_s8(semaphore, monkeypatch):
    """S8: what a callback raises goes to `sys.unraisablehook`, and the next ones come."""
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    note = Note()
    callbacks = [lambda _: 1 // 0, sys.exit]
    for callback in callbacks:
        semaphore.on_reached(1, callback)
    semaphore.on_reached(1, note)
    semaphore.signal(1)
    note.wait()
    assert [each.exc_type for each in reported] == [ZeroDivisionError, SystemExit]
    assert [each.object for each in reported] == callbacks


def test_cancelling_takes_a_callback_back_s8(semaphore):
    """S8: `cancel` returns True for a callback that was not sent off; it is never called."""
    cancelled, kept = Note(), Note()
    callback = semaphore.on_reached(1, cancelled)
    semaphore.on_reached(1, kept)
    assert callback.cancel() is True
    assert callback.cancel() is False
    semaphore.signal(1)
    kept.wait()
    callbacks_done()
    assert cancelled.calls == []


def test_cancelling_after_the_call_s8(semaphore):
    """S8: `cancel` returns False once the function was called."""
    note = Note()
    callback = semaphore.on_reached(1, note)
    semaphore.signal(1)
    note.wait()
    assert callback.cancel() is False
    assert len(note.calls) == 1


def test_cancelling_against_a_signal_s8(make_semaphore):
    """S8: of a cancel and a signal at once one wins: True and no call, or False and one."""
    for _ in range(50):
        semaphore, note = make_semaphore(), Note()
        callback = semaphore.on_reached(1, note)
        together = threading.Barrier(2, timeout=LIMIT)

        def cancel(callback=callback, together=together):
            together.wait()
            return bool(callback.cancel())

        def signal(semaphore=semaphore, together=together):
            together.wait()
            semaphore.signal(1)

        taken_back = in_threads([cancel, signal])[0]
        callbacks_done()
        assert len(note.calls) == (0 if taken_back else 1)


@pytest.mark.parametrize("function", [None, 7, "print"], ids=repr)
def test_a_callback_is_a_function_s8(semaphore, function):
    """S8: `on_reached` refuses what cannot be called, and registers nothing."""
    with pytest.raises(ArgumentTypeError):
        semaphore.on_reached(1, function)
    semaphore.signal(1)
    callbacks_done()
