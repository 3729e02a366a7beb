"""Directions: host and queue wait and signal in every combination and any order (S2)."""

import threading
from functools import partial

import pytest

import hal
from hal.errors import DeadlineExceededError
from hal_conformance.suite.support import LIMIT, SHORT, in_threads

pytestmark = pytest.mark.ordering


def test_host_waits_before_the_signal_s2(producers, semaphore, producer):
    """S2: a thread may wait for a value that nobody has promised, and wakes when it comes."""
    waiting = threading.Event()

    def wait():
        with pytest.raises(DeadlineExceededError):
            semaphore.wait(1, SHORT)  # nobody has promised it by now
        waiting.set()
        semaphore.wait(1, LIMIT)
        return semaphore.query()

    def signal():
        assert waiting.wait(LIMIT)
        producers.signal(producer, semaphore.at(1))

    assert in_threads([wait, signal])[0] == 1


def test_queue_waits_after_the_signal_s2(producers, semaphore, second_queue, producer):
    """S2: an operation may wait for a value that was promised or reached before."""
    producers.signal(producer, semaphore.at(1))
    second_queue.barrier(wait=semaphore.at(1)).wait(LIMIT)
    assert semaphore.query() == 1


def test_queue_waits_before_the_signal_s2(producers, make_semaphore, second_queue, producer):
    """S2: an operation may wait for a value that nobody has promised (wait-before-signal)."""
    ready, done = make_semaphore(), make_semaphore()
    pending = second_queue.barrier(wait=ready.at(1), signal=done.at(1))
    assert pending.state == "pending"
    assert not done.poll(1)
    producers.signal(producer, ready.at(1))
    done.wait(1, LIMIT)
    assert pending.state == "done"


@pytest.mark.parametrize("waiter", ["host", "queue"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_overshoot_satisfies_s2(producers, make_semaphore, second_queue, order, producer, waiter):
    """S2: whoever waits for 3 passes at 10, which is signalled before or after."""
    semaphore, done = make_semaphore(2), make_semaphore()
    if order == "before":
        producers.signal(producer, semaphore.at(10))
        semaphore.wait(10, LIMIT)
    if waiter == "queue":
        second_queue.barrier(wait=semaphore.at(3), signal=done.at(1))
    else:
        semaphore.on_reached(3, lambda _: done.signal(1))
    if order == "after":
        assert not done.poll(1)
        producers.signal(producer, semaphore.at(10))
    done.wait(1, LIMIT)
    semaphore.wait(3, LIMIT)
    assert semaphore.query() == 10


@pytest.mark.parametrize("value", [1, 2])
def test_waits_for_reached_values_return_s2(make_semaphore, value):
    """S2: at 2, waits for 1 and for 2 return at once, with and without a time limit."""
    semaphore = make_semaphore(2)
    semaphore.wait(value)
    semaphore.wait(value, timeout=0)
    semaphore.wait(value, timeout=LIMIT)
    hal.wait_all([semaphore.at(value)])
    assert semaphore.query() == 2


def test_many_waiters_on_one_value_s2(producers, make_semaphore, make_queue, producer):
    """S2: eight threads and eight operations that wait for one value all go on."""
    semaphore = make_semaphore()
    together = threading.Barrier(9, timeout=LIMIT)
    queues = [make_queue(ordered=False), make_queue()]
    pending = [queues[number % 2].barrier(wait=semaphore.at(1)) for number in range(8)]

    def wait():
        together.wait()
        semaphore.wait(1, LIMIT)

    def signal():
        together.wait()
        producers.signal(producer, semaphore.at(1))

    in_threads([*[wait] * 8, signal])
    hal.wait_all(pending, LIMIT)
    assert all(each.state == "done" for each in pending)


def test_waiters_for_different_values_wake_in_their_turn_s2(semaphore):
    """S2: of those who wait for 5, 10 and 15, a signal of 7 wakes the first, 15 the rest."""
    reached = []
    events = {value: threading.Event() for value in (5, 10, 15)}
    for value, event in events.items():

        def note(_, value=value, event=event):
            reached.append(value)
            event.set()

        semaphore.on_reached(value, note)
    semaphore.signal(7)
    assert events[5].wait(LIMIT)
    assert reached == [5]
    semaphore.signal(15)
    assert events[15].wait(LIMIT)
    assert reached == [5, 10, 15]


def test_ping_pong_between_threads_s2(make_semaphore):
    """S2: two threads hand a turn to each other over two semaphores, 200 times."""
    there, back = make_semaphore(), make_semaphore()
    turns = []

    def ping():
        for turn in range(1, 201):
            turns.append("ping")
            there.signal(turn)
            back.wait(turn, LIMIT)

    def pong():
        for turn in range(1, 201):
            there.wait(turn, LIMIT)
            turns.append("pong")
            back.signal(turn)

    in_threads([ping, pong])
    assert turns == ["ping", "pong"] * 200


def test_ping_pong_of_host_and_queue_s2(queue, make_semaphore):
    """S2: host and queue hand a turn to each other; the queue's part is submitted beforehand."""
    there, back = make_semaphore(), make_semaphore()
    for turn in range(1, 51):
        queue.barrier(wait=there.at(turn), signal=back.at(turn))
    for turn in range(1, 51):
        assert back.query() == turn - 1
        there.signal(turn)
        back.wait(turn, LIMIT)


def test_ping_pong_over_a_beginning_that_was_reached_s2(make_semaphore):
    """S2: a wait for 0 returns at once; a jump from 1 to 4 lets the one go who waits for 4."""
    there, back = make_semaphore(), make_semaphore()

    def answer():
        there.wait(0, LIMIT)
        back.signal(1)
        there.wait(4, LIMIT)

    def ask():
        back.wait(1, LIMIT)
        there.signal(4)

    in_threads([answer, ask])
    assert (there.query(), back.query()) == (4, 1)


@pytest.mark.parametrize("length", [1, 12, 100])
def test_host_signal_releases_a_queued_chain_s2(make_queue, semaphore, length):
    """S2: a chain of operations over three queues, each waiting for the one before.

    The host's wait for its end times out; one host signal releases it to the end.
    """
    queues = [make_queue(), make_queue(), make_queue(ordered=False)]
    for step in range(1, length + 1):
        queues[step % 3].barrier(wait=semaphore.at(step), signal=semaphore.at(step + 1))
    with pytest.raises(DeadlineExceededError):
        semaphore.wait(length + 1, SHORT)
    assert semaphore.query() == 0
    semaphore.signal(1)
    semaphore.wait(length + 1, LIMIT)


@pytest.mark.parametrize("length", [12, 100])
def test_a_chain_submitted_from_its_end_s2(unordered, semaphore, length):
    """S2: the operations of a chain may be submitted last first, on one unordered queue."""
    for step in range(length, 0, -1):
        unordered.barrier(wait=semaphore.at(step), signal=semaphore.at(step + 1))
    assert semaphore.query() == 0
    semaphore.signal(1)
    semaphore.wait(length + 1, LIMIT)


@pytest.mark.parametrize("threads", [2, 8])
def test_concurrent_signals_of_own_semaphores_s2(make_semaphore, queue, threads):
    """S2: threads that each raise a semaphore of their own 300 times release what waits for all."""
    semaphores = [make_semaphore() for _ in range(threads)]
    waiting = queue.barrier(wait=[each.at(300) for each in semaphores])

    def raise_to_the_end(semaphore):
        for value in range(1, 301):
            semaphore.signal(value)

    in_threads([partial(raise_to_the_end, each) for each in semaphores])
    waiting.wait(LIMIT)
    assert [each.query() for each in semaphores] == [300] * threads


def test_each_of_many_waits_is_met_once_s2(semaphore, queue):
    """S2: a hundred callbacks registered while another thread signals come once each."""
    counts = [0] * 101
    last = threading.Event()

    def register():
        for value in range(1, 101):

            def count(_, value=value):
                counts[value] += 1

            semaphore.on_reached(value, count)
        semaphore.on_reached(100, lambda _: last.set())

    def signal():
        for value in range(1, 101):
            if value % 2:
                queue.barrier(signal=semaphore.at(value)).wait(LIMIT)
            else:
                semaphore.signal(value)

    in_threads([register, signal])
    assert last.wait(LIMIT)
    assert counts[1:] == [1] * 100
