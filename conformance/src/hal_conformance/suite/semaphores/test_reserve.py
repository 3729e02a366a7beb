"""Reservation: who may signal which value is decided once, at the signal or the issue (S1)."""

import threading

import pytest

from hal.errors import InvalidArgumentError
from hal_conformance.suite.support import LIMIT, in_threads


@pytest.mark.parametrize("value", [1, 2, 3])
def test_submission_not_above_the_value_is_refused_s1(queue, make_semaphore, value):
    """S1: at 3, an operation that would signal 3 or less is refused, and nothing was submitted."""
    semaphore, untouched = make_semaphore(3), make_semaphore()
    with pytest.raises(InvalidArgumentError):
        queue.barrier(signal=[untouched.at(1), semaphore.at(value)])
    assert semaphore.query() == 3
    # The other semaphore of the list was not reserved either.
    queue.barrier(signal=[untouched.at(1), semaphore.at(4)]).wait(LIMIT)
    assert (untouched.query(), semaphore.query()) == (1, 4)


def test_every_operation_checks_its_signals_s1(queue, make_semaphore, operations, kind):
    """S1: whatever the operation, a signal not above the value raises, and it does not run."""
    semaphore = make_semaphore(5)
    with pytest.raises(InvalidArgumentError):
        operations.submit(kind, queue, signal=semaphore.at(5))
    queue.wait_idle(LIMIT)
    assert operations.nothing_has_run()
    operations.submit(kind, queue, signal=semaphore.at(6)).wait(LIMIT)
    assert operations.has_run(kind)
    assert semaphore.query() == 6


@pytest.mark.parametrize("value", [1, 2])
def test_host_signal_below_a_running_calls_value_is_refused_s1(queue, semaphore, make_latch, value):
    """S1: an issued operation has reserved its value 2; a host signal of 1 or 2 raises."""
    latch = make_latch(queue, signal=semaphore.at(2))
    latch.wait_running()
    with pytest.raises(InvalidArgumentError, match="2 is the highest value"):
        semaphore.signal(value)
    assert semaphore.query() == 0
    latch.open()
    semaphore.wait(2, LIMIT)


def test_host_signal_above_a_running_calls_value_stands_s1(queue, semaphore, make_latch):
    """S1: above the reserved value the host may signal; the operation's own value is overtaken.

    Retirement takes the maximum: the operation is done, and the value stays.
    """
    latch = make_latch(queue, signal=semaphore.at(2))
    latch.wait_running()
    semaphore.signal(5)
    assert semaphore.query() == 5
    latch.open()
    latch.submission.wait(LIMIT)
    assert semaphore.query() == 5


def test_a_pending_operation_reserves_nothing_s1(queue, semaphore, gate):
    """S1: only the issue reserves; while it waits, an operation's value can be overtaken.

    It then fails without running, with `InvalidArgumentError`, and so does its signal.
    """
    pending = queue.barrier(wait=gate.at(1), signal=semaphore.at(3))
    semaphore.signal(5)
    gate.signal(1)
    with pytest.raises(InvalidArgumentError):
        pending.wait(LIMIT)
    assert pending.state == "failed"
    with pytest.raises(InvalidArgumentError):
        semaphore.wait(3, LIMIT)


def test_two_pending_operations_with_one_value_s1(unordered, semaphore, gate):
    """S1: of two operations that would signal the same value one runs and the other fails."""
    both = [unordered.barrier(wait=gate.at(1), signal=semaphore.at(1)) for _ in range(2)]
    gate.signal(1)
    unordered.wait_idle(LIMIT)
    assert sorted(each.state for each in both) == ["done", "failed"]


def test_all_signals_are_reserved_together_s1(queue, make_semaphore, gate):
    """S1: an operation one of whose values was overtaken signals none of them."""
    first, second = make_semaphore(), make_semaphore()
    pending = queue.barrier(wait=gate.at(1), signal=[first.at(1), second.at(1)])
    second.signal(1)
    gate.signal(1)
    with pytest.raises(InvalidArgumentError):
        pending.wait(LIMIT)
    for semaphore in (first, second):
        with pytest.raises(InvalidArgumentError):
            semaphore.query()


@pytest.mark.parametrize(("wait", "signal"), [(1, 1), (2, 1), (5, 3)])
def test_waiting_for_ones_own_value_is_refused_s1(queue, semaphore, wait, signal):
    """S1: an operation that waits for s@a and signals s@b needs b > a, or it is refused."""
    with pytest.raises(InvalidArgumentError):
        queue.barrier(wait=semaphore.at(wait), signal=semaphore.at(signal))
    assert semaphore.query() == 0


def test_a_semaphore_stands_once_in_a_signal_list_s1(queue, semaphore):
    """S1: two signals of one semaphore in one operation are refused."""
    with pytest.raises(InvalidArgumentError):
        queue.barrier(signal=[semaphore.at(1), semaphore.at(2)])
    queue.barrier(signal=semaphore.at(1)).wait(LIMIT)


def test_one_of_many_signallers_wins_s1(make_semaphore):
    """S1: of eight threads that signal the same values each value is signalled by one.

    The others get `InvalidArgumentError`; at the end the highest value stands.
    """
    semaphore = make_semaphore()
    together = threading.Barrier(8, timeout=LIMIT)

    def signal_all():
        together.wait()
        accepted = 0
        for value in range(1, 201):
            try:
                semaphore.signal(value)
            except InvalidArgumentError:
                continue
            accepted += 1
        return accepted

    accepted = sum(in_threads([signal_all] * 8))
    assert semaphore.query() == 200
    assert 1 <= accepted <= 200


def test_host_and_queue_signal_one_semaphore_in_turn_s1(queue, semaphore):
    """S1: host and queue may take turns on one semaphore, each above what is there."""
    for value in range(1, 21, 2):
        semaphore.signal(value)
        queue.barrier(wait=semaphore.at(value), signal=semaphore.at(value + 1))
        semaphore.wait(value + 1, LIMIT)
    assert semaphore.query() == 20
