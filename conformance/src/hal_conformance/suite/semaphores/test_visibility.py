"""Visibility: a value that is seen means that all the work it depends on has ended (S7)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT, callbacks_done, in_threads, pattern

pytestmark = pytest.mark.ordering

SIZE = 1 << 16

LOOKS: dict[str, Callable[[hal.Semaphore, int], Any]] = {
    "wait": lambda semaphore, value: semaphore.wait(value, LIMIT),
    "poll": lambda semaphore, value: _until(lambda: semaphore.poll(value)),
    "query": lambda semaphore, value: _until(lambda: semaphore.query() >= value),
    "wait_all": lambda semaphore, value: hal.wait_all([semaphore.at(value)], LIMIT),
    "wait_any": lambda semaphore, value: hal.wait_any([semaphore.at(value)], LIMIT),
}


def _until(look: Callable[[], bool]) -> None:
    while not look():
        pass


@pytest.mark.parametrize("look", LOOKS)
def test_a_seen_value_means_that_memory_is_written_s7(device, queue, semaphore, look):
    """S7: 20 reads into host arrays; when the host sees a value its array is complete."""
    source = device.upload(pattern(SIZE))
    expected = pattern(SIZE)
    for value in range(1, 21):
        out = np.zeros(SIZE, np.uint8)
        queue.read(source, out, signal=semaphore.at(value))
        LOOKS[look](semaphore, value)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize("look", LOOKS)
def test_a_seen_value_means_that_other_queues_work_is_done_s7(
    device, make_queue, make_semaphore, look
):
    """S7: what a value depends on has ended on every queue, and its handle says so."""
    queues = [make_queue(), make_queue(), make_queue(ordered=False)]
    buffer = device.allocate(SIZE)
    last = make_semaphore()
    for value in range(1, 21):
        middle = make_semaphore()
        first = queues[value % 3].fill(buffer, value, signal=middle.at(1))
        second = queues[(value + 1) % 3].barrier(wait=middle.at(1), signal=last.at(value))
        LOOKS[look](last, value)
        assert (first.state, second.state) == ("done", "done")
        assert middle.query() == 1
        assert (buffer.numpy(timeout=LIMIT) == value).all()


def test_a_callback_sees_what_was_written_s7(device, queue, semaphore):
    """S7: when a callback comes, the memory of the work before it is complete."""
    source = device.upload(pattern(SIZE, 3))
    seen = []
    for value in range(1, 11):
        out = np.zeros(SIZE, np.uint8)

        def look(error, out=out):
            seen.append(error is None and np.array_equal(out, pattern(SIZE, 3)))

        semaphore.on_reached(value, look)
        queue.read(source, out, signal=semaphore.at(value))
    semaphore.wait(10, LIMIT)
    callbacks_done()
    assert seen == [True] * 10


def test_rounds_between_host_and_device_keep_the_data_s7(device, make_queue, semaphore):
    """S7: 12 rounds of write or update, copy on another queue, read on a third, and a change."""
    up, across, down = make_queue(), make_queue(), make_queue()
    first, second = device.allocate(SIZE), device.allocate(SIZE)
    data = pattern(SIZE, 1)
    expected = data.copy()
    for step in range(12):
        value = 3 * step
        to_device = up.update if step % 2 else up.write
        to_device(first, data, wait=semaphore.at(value), signal=semaphore.at(value + 1))
        across.copy(first, second, wait=semaphore.at(value + 1), signal=semaphore.at(value + 2))
        out = np.zeros(SIZE, np.uint8)
        down.read(second, out, wait=semaphore.at(value + 2), signal=semaphore.at(value + 3))
        semaphore.wait(value + 3, LIMIT)
        data = out + np.uint8(1)
        expected = expected + np.uint8(1)
        assert np.array_equal(data, expected)


def test_one_write_fans_out_to_every_queue_s7(device, make_queue, semaphore):
    """S7: five queues that wait for one write, submitted before it, each read its bytes."""
    buffer = device.allocate(SIZE)
    outs = [np.zeros(SIZE, np.uint8) for _ in range(5)]
    reads = [
        make_queue(ordered=bool(number % 2)).read(buffer, out, wait=semaphore.at(1))
        for number, out in enumerate(outs)
    ]
    make_queue().write(buffer, pattern(SIZE, 9), signal=semaphore.at(1))
    hal.wait_all(reads, LIMIT)
    for out in outs:
        assert np.array_equal(out, pattern(SIZE, 9))


def test_query_does_not_run_ahead_of_a_running_call_s7(queue, second_queue, make_semaphore):
    """S7: while a host call runs, no value that depends on it can be seen, on any queue."""
    semaphore, dependent = make_semaphore(), make_semaphore()
    observed: list[tuple[int, int]] = []

    def call():
        observed.extend((semaphore.query(), dependent.query()) for _ in range(100))

    queue.call(call, signal=semaphore.at(1))
    second_queue.barrier(wait=semaphore.at(1), signal=dependent.at(1))
    dependent.wait(1, LIMIT)
    assert observed == [(0, 0)] * 100
    assert semaphore.query() == 1


def test_threads_see_each_others_work_s7(device, make_queue, semaphore):
    """S7: four threads, each with a queue, add to one buffer in turn; nothing is lost."""
    buffer = device.upload(np.zeros(256, np.uint8))
    queues = [make_queue() for _ in range(4)]

    def work(number):
        out = np.zeros(256, np.uint8)
        for turn in range(number, 40, 4):
            semaphore.wait(turn, LIMIT)
            queues[number].read(buffer, out).wait(LIMIT)
            assert (out == turn).all()
            queues[number].update(buffer, out + np.uint8(1), signal=semaphore.at(turn + 1))

    in_threads([partial(work, number) for number in range(4)])
    semaphore.wait(40, LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 40).all()
