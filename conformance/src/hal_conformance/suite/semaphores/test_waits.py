"""Waits: return or raise, for one or many, for a time, and polling alike (S6)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    DeadlineExceededError,
    InvalidArgumentError,
    OperationError,
)
from hal_conformance.suite.support import LIMIT, SHORT, broken, in_threads


@pytest.mark.parametrize("timeout", [0, 1e-9, SHORT])
def test_unreached_values_time_out_s6(semaphore, timeout):
    """S6: a wait for what nobody promised raises `DeadlineExceededError`, a `TimeoutError`."""
    with pytest.raises(DeadlineExceededError) as caught:
        semaphore.wait(1, timeout)
    assert isinstance(caught.value, TimeoutError)
    assert semaphore.query() == 0


@pytest.mark.parametrize("timeout", [0.05, 0.2])
def test_the_time_limit_is_kept_s6(semaphore, timeout):
    """S6: a wait lasts as long as its time limit, and then ends."""
    start = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        semaphore.wait(1, timeout)
    assert time.monotonic() - start >= timeout


@pytest.mark.parametrize("timeout", [0, 1e-9, SHORT])
def test_a_wait_that_timed_out_can_be_tried_again_s6(producers, semaphore, timeout):
    """S6: finite waits are repeated until the value comes: it times out, or it is there."""
    with pytest.raises(DeadlineExceededError):
        semaphore.wait(1, timeout)
    producers.signal("device", semaphore.at(1))
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            semaphore.wait(1, timeout)
        except DeadlineExceededError:
            assert time.monotonic() < deadline
            continue
        break
    assert semaphore.query() == 1


@pytest.mark.parametrize("timeout", [None, 0, LIMIT, math.inf], ids=repr)
@pytest.mark.parametrize("empty", [(), [], hal.Fence()], ids=["tuple", "list", "fence"])
def test_waiting_for_nothing_s6(empty, timeout):
    """S6: a wait for all of nothing returns at once, whatever its time limit."""
    hal.wait_all(empty, timeout)


@pytest.mark.parametrize("timeout", [None, 0, LIMIT, math.inf], ids=repr)
def test_any_of_nothing_is_none_s6(timeout):
    """S6: a wait for any of nothing returns None at once, whatever its time limit."""
    assert hal.wait_any([], timeout) is None
    assert hal.wait_any([hal.Fence()], timeout) == 0


def test_wait_all_needs_all_s6(make_semaphore):
    """S6: one of two reached is not enough for `wait_all`, and is for `wait_any`."""
    first, second = make_semaphore(), make_semaphore(1)
    with pytest.raises(DeadlineExceededError):
        hal.wait_all([first.at(1), second.at(1)], 0)
    assert hal.wait_any([first.at(1), second.at(1)], 0) == 1
    first.signal(1)
    hal.wait_all([first.at(1), second.at(1)], 0)
    assert hal.wait_any([first.at(1), second.at(1)], 0) == 0


@pytest.mark.parametrize("reached", [0, 7, 15])
def test_wait_any_says_which_s6(make_semaphore, reached):
    """S6: `wait_any` returns the index of the entry that was reached, the first of several."""
    semaphores = [make_semaphore() for _ in range(16)]
    with pytest.raises(DeadlineExceededError):
        hal.wait_any([each.at(1) for each in semaphores], SHORT)
    semaphores[reached].signal(1)
    semaphores[15].signal(2)
    assert hal.wait_any([each.at(1) for each in semaphores], LIMIT) == reached


def test_wait_all_of_a_hundred_s6(producers, make_semaphore, producer):
    """S6: a wait for a hundred semaphores, signalled each by its own operation."""
    semaphores = [make_semaphore() for _ in range(100)]
    for each in semaphores[1:]:
        producers.signal(producer, each.at(1))
    with pytest.raises(DeadlineExceededError):
        hal.wait_all([each.at(1) for each in semaphores], SHORT)
    producers.signal(producer, semaphores[0].at(1))
    hal.wait_all([each.at(1) for each in semaphores], LIMIT)
    hal.wait_all([each.at(1) for each in semaphores], 0)


def test_wait_any_wakes_for_one_of_a_hundred_s6(producers, make_semaphore, producer):
    """S6: a thread that waits for any of a hundred wakes for the one that is signalled."""
    semaphores = [make_semaphore() for _ in range(100)]
    started = threading.Event()

    def wait():
        started.set()
        return hal.wait_any([each.at(1) for each in semaphores], LIMIT)

    def signal():
        assert started.wait(LIMIT)
        producers.signal(producer, semaphores[63].at(1))

    assert in_threads([wait, signal])[0] == 63
    assert sum(each.query() for each in semaphores) == 1


def test_simultaneous_waits_for_all_s6(make_semaphore):
    """S6: two threads that wait for the same two semaphores wake when a third signals both."""
    first, second = make_semaphore(), make_semaphore()
    together = threading.Barrier(3, timeout=LIMIT)

    def wait():
        together.wait()
        hal.wait_all([first.at(1), second.at(1)], LIMIT)

    def signal():
        together.wait()
        first.signal(1)
        second.signal(1)

    in_threads([wait, wait, signal])
    assert (first.query(), second.query()) == (1, 1)


@pytest.mark.parametrize("count", [2, 16])
def test_staggered_signals_s6(make_semaphore, count):
    """S6: `wait_all` goes on with its last semaphore only, in whatever order they come."""
    semaphores = [make_semaphore() for _ in range(count)]
    everything = [each.at(1) for each in semaphores]
    for each in reversed(semaphores):
        with pytest.raises(DeadlineExceededError):
            hal.wait_all(everything, 0)
        each.signal(1)
    hal.wait_all(everything, 0)


WAYS: dict[str, Callable[[list[hal.Timepoint]], object]] = {
    "wait_all": lambda entries: hal.wait_all(entries, LIMIT),
    "wait_all with no time": lambda entries: hal.wait_all(entries, 0),
    "wait_any": lambda entries: hal.wait_any(entries, LIMIT),
    "wait_any with no time": lambda entries: hal.wait_any(entries, 0),
    "fence": lambda entries: hal.Fence(entries).wait(LIMIT),
    "fence poll": lambda entries: hal.Fence(entries).poll(),
}


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_a_failure_in_the_set_ends_every_wait_s6(make_semaphore, way, position):
    """S6: one failed of three ends any wait, blocking or polling, although another is reached."""
    reached, unreached, failed = make_semaphore(1), make_semaphore(), make_semaphore()
    failed.fail(broken())
    entries = [reached.at(1), unreached.at(1)]
    entries.insert(position, failed.at(1))
    with pytest.raises(OperationError, match="broken"):
        WAYS[way](entries)
    assert (reached.query(), unreached.query()) == (1, 0)


def test_host_and_queue_in_one_wait_for_all_s6(queue, make_semaphore):
    """S6: a wait for all of a thread's and a queue's semaphore, both released by the host."""
    names = ("host waits", "host signals", "queue waits", "queue signals")
    host_wait, host_signal, queue_wait, queue_signal = (make_semaphore(name=n) for n in names)
    queue.barrier(wait=queue_wait.at(1), signal=queue_signal.at(1))

    def answer():
        host_wait.wait(1, LIMIT)
        host_signal.signal(1)

    def ask():
        assert (host_signal.query(), queue_signal.query()) == (0, 0)
        host_wait.signal(1)
        queue_wait.signal(1)
        hal.wait_all([host_signal.at(1), queue_signal.at(1)], LIMIT)

    in_threads([answer, ask])


@pytest.mark.parametrize("first", ["host", "queue"])
def test_host_or_queue_in_one_wait_for_any_s6(queue, make_semaphore, first):
    """S6: a wait for any of a thread's and a queue's semaphore ends with the one released."""
    host_wait, host_signal, queue_wait, queue_signal = (make_semaphore() for _ in range(4))
    pending = queue.barrier(wait=queue_wait.at(1), signal=queue_signal.at(1))

    def answer():
        host_wait.wait(1, LIMIT)
        host_signal.signal(1)

    def ask():
        entries = [host_signal.at(1), queue_signal.at(1)]
        (host_wait if first == "host" else queue_wait).signal(1)
        assert hal.wait_any(entries, LIMIT) == ("host", "queue").index(first)
        other = queue_signal if first == "host" else host_signal
        assert other.query() == 0
        (queue_wait if first == "host" else host_wait).signal(1)
        hal.wait_all(entries, LIMIT)

    in_threads([answer, ask])
    assert pending.state == "done"


def test_poll_and_query_do_not_block_s6(queue, semaphore, make_latch):
    """S6: while the producer is held up, `poll`, `query` and `done` answer at once, 1,000 times."""
    latch = make_latch(queue)
    behind = queue.barrier(signal=semaphore.at(1))
    for _ in range(1000):
        assert not semaphore.poll(1)
        assert semaphore.query() == 0
        assert not behind.done
    latch.open()
    behind.wait(LIMIT)
    assert semaphore.query() == 1


@pytest.mark.parametrize("kind", ["semaphore", "submission", "fence"])
def test_submissions_and_fences_are_waited_for_alike_s6(queue, semaphore, gate, kind):
    """S6: a timepoint, a submission and a fence stand in every wait, alone or in a list."""
    submission = queue.barrier(wait=gate.at(1), signal=semaphore.at(1))
    waitable = {
        "semaphore": semaphore.at(1),
        "submission": submission,
        "fence": hal.Fence([submission, semaphore.at(1)]),
    }[kind]
    for way in (hal.wait_all, hal.wait_any):
        with pytest.raises(DeadlineExceededError):
            way(waitable, SHORT)
        with pytest.raises(DeadlineExceededError):
            way([waitable], 0)
    gate.signal(1)
    hal.wait_all(waitable, LIMIT)
    assert hal.wait_any([waitable], LIMIT) == 0
    queue.barrier(wait=waitable).wait(LIMIT)


def test_a_submission_times_out_s6(queue, gate):
    """S6: `Submission.wait` keeps its time limit, and can be tried again."""
    submission = queue.barrier(wait=gate.at(1))
    for timeout in (0, SHORT):
        with pytest.raises(DeadlineExceededError):
            submission.wait(timeout)
    gate.signal(1)
    submission.wait(LIMIT)
    submission.wait(0)


@pytest.mark.parametrize("what", ["queue", "device"])
def test_wait_idle_ends_with_everything_s6(device, gate, queue, what):
    """S6: `wait_idle` times out while work is pending; it raises no failure of that work."""
    good = queue.barrier(wait=gate.at(1))
    bad = queue.call(lambda: 1 // 0)
    idle = queue.wait_idle if what == "queue" else device.wait_idle
    with pytest.raises(DeadlineExceededError):
        idle(SHORT)
    gate.signal(1)
    idle(LIMIT)
    assert (good.state, bad.state) == ("done", "failed")
    idle(0)


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, True, "1", []], ids=repr)
def test_bad_time_limits_are_refused_s6(device, queue, semaphore, timeout):
    """S6: what is negative or no number, by each call that takes one, before it waits."""
    kind = InvalidArgumentError if type(timeout) in {int, float} else ArgumentTypeError
    buffer, entries = device.allocate(4), [semaphore.at(1)]
    for wait in (
        lambda: semaphore.wait(1, timeout),
        lambda: hal.wait_all(entries, timeout),
        lambda: hal.wait_any(entries, timeout),
        lambda: hal.Fence(entries).wait(timeout),
        lambda: queue.wait_idle(timeout),
        lambda: device.wait_idle(timeout),
        lambda: queue.barrier(wait=entries).wait(timeout),
        lambda: buffer.numpy(wait=entries, timeout=timeout),
        lambda: device.close(timeout),
        lambda: queue.close(timeout),
    ):
        with pytest.raises(kind, match="timeout"):
            wait()
    assert not device.closed


@pytest.mark.parametrize("entry", [None, 1, "semaphore", (1, 2), object], ids=repr)
def test_what_is_no_timepoint_is_refused_s6(queue, semaphore, entry):
    """S6: a wait list takes timepoints, submissions and fences; others raise, nothing is done."""
    bad = [semaphore.at(0), entry]
    calls = [
        lambda: hal.wait_all(bad, 0),
        lambda: hal.wait_any(bad, 0),
        lambda: hal.Fence(bad),
        lambda: queue.barrier(wait=bad, signal=semaphore.at(1)),
    ]
    for call in calls:
        with pytest.raises(ArgumentTypeError):
            call()
    assert semaphore.query() == 0


def test_duplicates_in_a_wait_list_s6(queue, semaphore):
    """S6: a semaphore may stand more than once in a wait list; the highest value counts."""
    entries = [semaphore.at(1), semaphore.at(3), semaphore.at(2)]
    pending = queue.barrier(wait=entries)
    semaphore.signal(2)
    assert pending.state == "pending"
    with pytest.raises(DeadlineExceededError):
        hal.wait_all(entries, 0)
    assert hal.wait_any(entries, 0) == 0
    semaphore.signal(3)
    hal.wait_all(entries, 0)
    pending.wait(LIMIT)


def test_any_iterable_is_a_wait_list_s6(queue, make_semaphore):
    """S6: a wait list may be a generator, a set or a dictionary's keys."""
    first, second = make_semaphore(1), make_semaphore(2)
    hal.wait_all((each.at(1) for each in (first, second)), 0)
    hal.wait_all({first.at(1), second.at(2)}, 0)
    queue.barrier(wait={first.at(1): None, second.at(2): None}.keys()).wait(LIMIT)
