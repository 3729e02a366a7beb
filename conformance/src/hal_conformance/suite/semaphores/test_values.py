"""Values: a semaphore's value only rises, by any amount, within 0 to 2**63 - 1 (S1)."""

import pytest

import hal
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, in_threads

MAX = 2**63 - 1


@pytest.mark.parametrize("initial", [0, 1, 123, 2**31 - 1, 2**31, 2**32, MAX], ids=hex)
def test_initial_value_s1(make_semaphore, initial):
    """S1: a semaphore starts at the value given, which is reached for the host at once."""
    semaphore = make_semaphore(initial)
    assert semaphore.query() == initial
    assert semaphore.poll(initial)
    semaphore.wait(initial, timeout=0)
    if initial < MAX:
        assert not semaphore.poll(initial + 1)


@pytest.mark.parametrize("initial", [0, 1, 2**32, MAX], ids=hex)
def test_initial_value_is_reached_for_a_queue_s1(make_semaphore, queue, initial):
    """S1: an operation that waits for the initial value runs."""
    queue.barrier(wait=make_semaphore(initial).at(initial)).wait(LIMIT)


def test_default_value_is_zero_s1():
    """S1: without an initial value a semaphore starts at 0."""
    assert hal.create_semaphore().query() == 0


def test_values_advance_with_gaps_s1(producers, make_semaphore, producer):
    """S1: 2, then 3, then 40: a signal may skip values, and `query` follows."""
    semaphore = make_semaphore(2)
    for value in (3, 40, 41):
        producers.signal(producer, semaphore.at(value))
        semaphore.wait(value, LIMIT)
        assert semaphore.query() == value


def test_the_whole_range_in_one_step_s1(producers, semaphore, producer):
    """S1: a signal may go from 0 to 2**63 - 1, the highest value."""
    producers.signal(producer, semaphore.at(MAX))
    semaphore.wait(MAX, LIMIT)
    assert semaphore.query() == MAX
    assert semaphore.poll(MAX - 1)


@pytest.mark.parametrize("value", [2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1])
def test_values_are_kept_exactly_s1(producers, make_semaphore, value):
    """S1: values around the limits of 32 bits and of floating point are kept exactly."""
    semaphore = make_semaphore(value - 1)
    assert not semaphore.poll(value)
    producers.signal("device", semaphore.at(value))
    semaphore.wait(value, LIMIT)
    assert semaphore.query() == value
    assert not semaphore.poll(value + 1)


@pytest.mark.parametrize("value", [0, 4, 5])
def test_host_signal_not_above_the_value_is_refused_s1(make_semaphore, value):
    """S1: at 5, a host signal of 5 or less raises `InvalidArgumentError`; the value stays."""
    semaphore = make_semaphore(5)
    with pytest.raises(InvalidArgumentError, match="signal 6 or more"):
        semaphore.signal(value)
    assert semaphore.query() == 5
    semaphore.signal(6)
    assert semaphore.query() == 6


@pytest.mark.parametrize("value", [-1, 2**63, 2**64])
@pytest.mark.parametrize("call", ["signal", "poll", "wait", "at", "on_reached", "reached"])
def test_values_out_of_range_are_refused_s1(semaphore, call, value):
    """S1: a value below 0 or above 2**63 - 1 raises `InvalidArgumentError` in every call."""
    arguments = (value, print) if call == "on_reached" else (value,)
    with pytest.raises(InvalidArgumentError):
        getattr(semaphore, call)(*arguments)
    assert semaphore.query() == 0


@pytest.mark.parametrize("value", [1.0, "1", None, True], ids=repr)
@pytest.mark.parametrize("call", ["signal", "poll", "wait", "at"])
def test_values_of_other_types_are_refused_s1(semaphore, call, value):
    """S1: a value that is no int, a bool included, raises `ArgumentTypeError`."""
    with pytest.raises(ArgumentTypeError):
        getattr(semaphore, call)(value)
    assert semaphore.query() == 0


@pytest.mark.parametrize("initial", [-1, 2**63])
def test_bad_initial_values_are_refused_s1(initial):
    """S1: an initial value out of range raises `InvalidArgumentError`."""
    with pytest.raises(InvalidArgumentError):
        hal.create_semaphore(initial)


def test_the_value_never_decreases_s1(producers, semaphore, producer):
    """S1: threads that poll all along while values are signalled never see one fall."""
    last = 60

    def watch():
        seen = 0
        while seen < last:
            now = semaphore.query()
            assert seen <= now <= last
            seen = now

    def signal():
        for value in range(1, last + 1):
            producers.signal(producer, semaphore.at(value))

    in_threads([watch, watch, signal])
    assert semaphore.query() == last


def test_polling_reaches_each_value_and_not_more_s1(queue, semaphore):
    """S1: while an operation for v + 1 is held up, polling sees v reached and v + 1 not."""
    for value in range(1, 11):
        queue.barrier(signal=semaphore.at(value))
        while not semaphore.poll(value):
            pass
        assert semaphore.query() == value
        assert not semaphore.poll(value + 1)
