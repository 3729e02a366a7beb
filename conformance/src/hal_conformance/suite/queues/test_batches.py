"""Batches: small graphs of operations over two queues, submitted before what releases them (S2)."""

from __future__ import annotations

import pytest

import hal
from hal_conformance.suite.support import LIMIT, MakeQueue, in_threads

pytestmark = pytest.mark.ordering

QUEUES = ("one unordered", "two ordered")


@pytest.fixture(params=QUEUES)
def pair(request: pytest.FixtureRequest, make_queue: MakeQueue) -> tuple[hal.Queue, hal.Queue]:
    """Two queues between which nothing is ordered: one unordered queue twice, or two ordered."""
    if request.param == "one unordered":
        queue = make_queue(ordered=False)
        return queue, queue
    return make_queue(), make_queue()


def test_an_empty_recording_signals_s2(device, queue, semaphore):
    """S2: the execution of a recording without commands signals."""
    with device.record() as commands:
        pass
    queue.execute(commands, signal=semaphore.at(1))
    semaphore.wait(1, LIMIT)
    assert semaphore.query() == 1


def test_wait_and_signal_of_each_operation_s2(queue, make_semaphore, operations, kind):
    """S2: w@1 to s@101, with s at 100: nothing moves before the host signals w."""
    wait, signal = make_semaphore(), make_semaphore(100)
    operations.submit(kind, queue, wait=wait.at(1), signal=signal.at(101))
    assert signal.query() == 100
    assert not signal.poll(101)
    wait.signal(1)
    signal.wait(101, LIMIT)
    assert signal.query() == 101


def test_many_waits_and_signals_s2(queue, make_semaphore):
    """S2: {w1, w2} to {s1, s2}: both are signalled once both waits are met."""
    w1, w2, s1, s2 = (make_semaphore() for _ in range(4))
    queue.barrier(wait=[w1.at(1), w2.at(1)], signal=[s1.at(1), s2.at(1)])
    w1.signal(1)
    assert (s1.query(), s2.query()) == (0, 0)
    w2.signal(1)
    hal.wait_all([s1.at(1), s2.at(1)], LIMIT)


@pytest.mark.parametrize("jump", [2, 3, 1000])
def test_consumers_of_different_values_s2(pair, make_semaphore, jump):
    """S2: those who wait for p@2 and p@1 are both released by a jump of p beyond them."""
    produced, first, second = make_semaphore(), make_semaphore(), make_semaphore()
    pair[1].barrier(wait=produced.at(2), signal=second.at(1))
    pair[1].barrier(wait=produced.at(1), signal=first.at(1))
    assert not first.poll(1)
    assert not second.poll(1)
    pair[0].barrier(signal=produced.at(jump))
    hal.wait_all([first.at(1), second.at(1)], LIMIT)
    assert produced.query() == jump


def test_an_intermediate_semaphore_between_batches_s2(pair, make_semaphore):
    """S2: the second batch is submitted first; each semaphore ends at exactly 1."""
    first, second = make_semaphore(), make_semaphore()
    pair[1].barrier(wait=first.at(1), signal=second.at(1))
    assert (first.query(), second.query()) == (0, 0)
    pair[0].barrier(signal=first.at(1))
    first.wait(1, LIMIT)
    assert first.query() == 1
    second.wait(1, LIMIT)
    assert second.query() == 1


def test_two_batches_wait_for_one_of_two_s2(pair, make_semaphore):
    """S2: two batches wait for the same former one; another former one is no help."""
    former, one, two = make_semaphore(), make_semaphore(), make_semaphore()
    pair[1].barrier(wait=former.at(1), signal=two.at(1))
    pair[1].barrier(wait=former.at(1), signal=one.at(1))
    pair[0].barrier().wait(LIMIT)
    assert (former.query(), one.query(), two.query()) == (0, 0, 0)
    pair[0].barrier(signal=former.at(1))
    hal.wait_all([one.at(1), two.at(1)], LIMIT)
    assert (former.query(), one.query(), two.query()) == (1, 1, 1)


def test_a_batch_waits_for_another_and_the_host_s2(pair, make_semaphore):
    """S2: {s1, s2} to s3, where s1 comes from a batch and s2 from the host: both are needed."""
    s1, s2, s3 = (make_semaphore() for _ in range(3))
    pair[1].barrier(wait=[s1.at(1), s2.at(1)], signal=s3.at(1))
    assert s3.query() == 0
    pair[0].barrier(signal=s1.at(1)).wait(LIMIT)
    assert s3.query() == 0
    in_threads([lambda: s2.signal(1), lambda: s3.wait(1, LIMIT)])


def test_a_batch_signals_another_and_the_host_s2(pair, make_semaphore):
    """S2: one batch signals a semaphore that a batch waits for and one that threads wait for."""
    s11, s12, s2 = (make_semaphore() for _ in range(3))
    pair[1].barrier(wait=s11.at(1), signal=s2.at(1))
    assert (s11.query(), s12.query(), s2.query()) == (0, 0, 0)
    in_threads(
        [
            lambda: s11.wait(1, LIMIT),
            lambda: s12.wait(1, LIMIT),
            lambda: s2.wait(1, LIMIT),
            lambda: pair[0].barrier(signal=[s11.at(1), s12.at(1)]),
        ]
    )
    assert (s11.query(), s12.query(), s2.query()) == (1, 1, 1)


@pytest.mark.parametrize("width", [2, 20])
def test_a_diamond_s2(make_queue, make_semaphore, width):
    """S2: one operation fans out to many on two queues, and one waits for all of their handles."""
    gate = make_semaphore()
    queues = [make_queue(), make_queue(ordered=False)]
    top = make_queue().barrier(wait=gate.at(1))
    middle = [queues[number % 2].barrier(wait=top) for number in range(width)]
    bottom = make_queue().barrier(wait=middle)
    assert not bottom.done
    gate.signal(1)
    bottom.wait(LIMIT)
    assert {each.state for each in (top, *middle)} == {"done"}


def test_submissions_are_waited_for_across_devices_s2(queue, second_device, make_queue, gate):
    """S2: the handle of one device's submission stands in a wait list of another device."""
    foreign = make_queue(device=second_device)
    first = queue.barrier(wait=gate.at(1))
    second = foreign.barrier(wait=first)
    third = queue.barrier(wait=second)
    assert not third.done
    gate.signal(1)
    third.wait(LIMIT)
    assert (first.state, second.state) == ("done", "done")
