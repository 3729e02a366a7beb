"""Failure: for good, also for values that were reached; the first wins; raised afresh (S4)."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from functools import partial

import pytest

import hal
from hal import errors
from hal.errors import ArgumentTypeError, InvalidArgumentError, OperationError, SemaphoreFailedError
from hal_conformance.suite.support import LIMIT, assert_fails, broken, in_threads

CLASSES = (
    errors.InvalidArgumentError,
    errors.ArgumentTypeError,
    errors.UnimplementedError,
    errors.NotFoundError,
    errors.OutOfMemoryError,
    errors.DeadlineExceededError,
    errors.ClosedError,
    errors.CancelledError,
    errors.OperationError,
    errors.DeviceLostError,
    errors.SemaphoreFailedError,
)

LOOKS: dict[str, Callable[[hal.Semaphore], object]] = {
    "query": lambda semaphore: semaphore.query(),
    "poll": lambda semaphore: semaphore.poll(1),
    "poll a later value": lambda semaphore: semaphore.poll(100),
    "wait": lambda semaphore: semaphore.wait(1, LIMIT),
    "wait with no time": lambda semaphore: semaphore.wait(1, 0),
    "wait for a later value": lambda semaphore: semaphore.wait(100, LIMIT),
    "wait_all": lambda semaphore: hal.wait_all([semaphore.at(1)], LIMIT),
    "wait_any": lambda semaphore: hal.wait_any([semaphore.at(1)], LIMIT),
    "signal": lambda semaphore: semaphore.signal(50),
    "fence": lambda semaphore: hal.Fence([semaphore.at(1)]).wait(LIMIT),
    "fence poll": lambda semaphore: hal.Fence([semaphore.at(1)]).poll(),
}


@pytest.mark.parametrize("look", LOOKS)
def test_failure_is_retroactive_s4(make_semaphore, look):
    """S4: after `fail`, every look raises the failure, also for a value that was reached."""
    semaphore = make_semaphore(2)
    semaphore.signal(3)
    semaphore.fail(broken())
    for _ in range(2):  # it is sticky
        with pytest.raises(OperationError, match="broken on purpose"):
            LOOKS[look](semaphore)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_class_of_an_error_survives_s4(semaphore, kind):
    """S4: a `HalError` is raised as what it is, with its text, status and native code."""
    original = kind("the very text", native_name="VENDOR_BROKEN", native_code=7)
    semaphore.fail(original)
    with pytest.raises(kind, match="the very text") as caught:
        semaphore.wait(1, LIMIT)
    error = caught.value
    assert type(error) is kind
    assert error.status == kind.status
    assert (error.native_name, error.native_code) == ("VENDOR_BROKEN", 7)
    assert error.__cause__ is original


@pytest.mark.parametrize("original", [OSError("disk"), KeyError("key"), SystemExit(3)], ids=repr)
def test_foreign_errors_become_semaphore_failed_errors_s4(semaphore, original):
    """S4: an error that is no `HalError` is the cause of a `SemaphoreFailedError`."""
    semaphore.fail(original)
    with pytest.raises(SemaphoreFailedError) as caught:
        semaphore.query()
    assert caught.value.__cause__ is original


def test_the_first_failure_wins_s4(semaphore):
    """S4: a second `fail` is dropped, whatever its error."""
    semaphore.fail(broken("first"))
    semaphore.fail(errors.CancelledError("second"))
    with pytest.raises(OperationError, match="first"):
        semaphore.query()


def test_one_of_many_failures_wins_s4(semaphore):
    """S4: of eight threads that fail a semaphore one wins, and all looks agree which."""
    together = threading.Barrier(8, timeout=LIMIT)

    def fail(number):
        together.wait()
        semaphore.fail(broken(f"failure {number}"))
        with pytest.raises(OperationError) as caught:
            semaphore.query()
        return str(caught.value)

    texts = in_threads([partial(fail, number) for number in range(8)])
    assert len(set(texts)) == 1


def test_the_value_stays_when_a_signal_comes_after_failure_s4(semaphore):
    """S4: a host signal after `fail` raises the failure, not that the value is too low."""
    semaphore.signal(5)
    semaphore.fail(broken())
    for value in (1, 5, 6):
        with pytest.raises(OperationError, match="broken"):
            semaphore.signal(value)


@pytest.mark.parametrize("wait", ["wait", "wait_all", "wait_any", "fence"])
def test_failure_wakes_blocked_waiters_s4(make_semaphore, wait):
    """S4: threads that are blocked in a wait wake with the error; other semaphores are fine."""
    semaphore, other = make_semaphore(), make_semaphore()
    waits = {
        "wait": lambda: semaphore.wait(1, LIMIT),
        "wait_all": lambda: hal.wait_all([other.at(1), semaphore.at(1)], LIMIT),
        "wait_any": lambda: hal.wait_any([other.at(1), semaphore.at(1)], LIMIT),
        "fence": lambda: hal.Fence([semaphore.at(1), other.at(1)]).wait(LIMIT),
    }
    together = threading.Barrier(4, timeout=LIMIT)

    def wait_for_it():
        together.wait()
        with pytest.raises(OperationError, match="broken"):
            waits[wait]()

    def fail():
        together.wait()
        semaphore.fail(broken())

    in_threads([*[wait_for_it] * 3, fail])
    assert other.query() == 0
    other.signal(1)


def test_what_is_raised_is_fresh_s4(semaphore):
    """S4: every look raises a new exception, so that tracebacks do not grow."""
    original = broken()
    semaphore.fail(original)
    lengths, caught = [], []
    for _ in range(5):
        try:
            semaphore.query()
        except OperationError as error:
            caught.append(error)
            lengths.append(len(traceback.extract_tb(error.__traceback__)))
    assert len({id(error) for error in caught}) == 5
    assert len(set(lengths)) == 1
    assert all(error.__cause__ is original for error in caught)


def test_a_kept_failure_keeps_no_frames_s4(make_semaphore):
    """S4: what is kept has no traceback, whose frames would keep buffers alive."""
    for original in (OSError("one"), ExceptionGroup("many", [OSError("one")])):
        semaphore = make_semaphore()
        try:
            raise original
        except (OSError, ExceptionGroup) as error:
            semaphore.fail(error)
        with pytest.raises(SemaphoreFailedError) as caught:
            semaphore.query()
        kept = caught.value.__cause__
        assert type(kept) is type(original)
        assert str(kept) == str(original)
        assert kept.__traceback__ is None


def test_a_queues_signal_to_a_failed_semaphore_is_dropped_s4(queue, make_semaphore):
    """S4: an operation that signals a failed semaphore runs, and its other signals proceed."""
    failed, good = make_semaphore(), make_semaphore()
    failed.fail(broken())
    submission = queue.barrier(signal=[failed.at(1), good.at(1)])
    submission.wait(LIMIT)
    good.wait(1, LIMIT)
    assert_fails(failed.at(1), broken())


def test_failure_while_the_producer_runs_s4(queue, second_queue, make_semaphore, make_latch):
    """S4, S5: it fails who waits for it, and stays failed; its producer goes on and is done."""
    failed, good = make_semaphore(), make_semaphore()
    latch = make_latch(queue, signal=[failed.at(1), good.at(1)])
    latch.wait_running()
    consumer = second_queue.barrier(wait=failed.at(1))
    failed.fail(broken())
    assert_fails(consumer, broken())
    latch.open()
    latch.submission.wait(LIMIT)
    good.wait(1, LIMIT)
    with pytest.raises(OperationError, match="broken"):
        failed.query()


@pytest.mark.parametrize("value", ["text", None, 3, OSError], ids=repr)
def test_only_exceptions_can_be_failed_with_s4(semaphore, value):
    """S4: `fail` takes an exception, and changes nothing otherwise."""
    with pytest.raises(ArgumentTypeError):
        semaphore.fail(value)
    assert semaphore.query() == 0


def test_failures_do_not_mix_s4(make_semaphore):
    """S4: one error may fail two semaphores, and two semaphores have two errors."""
    shared = broken("shared")
    first, second, third = make_semaphore(), make_semaphore(), make_semaphore()
    first.fail(shared)
    second.fail(shared)
    third.fail(InvalidArgumentError("own"))
    assert_fails(first.at(1), shared)
    assert_fails(second.at(1), shared)
    assert_fails(third.at(1), InvalidArgumentError("own"))
