"""Threads that submit at once: each counts, and the sum of all is known (Q1, S7)."""

import random

import numpy as np
import pytest
from core_harness import LIMIT, collect_in_threads

import hal
from hal._engine import contexts
from hal.errors import WorkFailedError


@pytest.mark.parametrize("limit", [None, 3])
def test_threads_that_submit_concurrently(open_probe, limit):
    """Six threads submit chains to the same queues, wait for each other's work, and read back.

    Each thread has its own slot of a shared buffer and counts in it; the sum
    of all is known. The probe watches the native rules meanwhile.
    """
    device, probe = open_probe(max_in_flight=limit)
    threads, rounds = 6, 60
    shared = device.upload(np.zeros(threads * 4, np.uint8))
    queues = [
        device.queues.compute,
        device.queues.upload,
        device.create_queue(ordered=False),
        device.create_queue(ordered=False),
    ]
    semaphores = [hal.create_semaphore() for _ in range(threads)]
    asked, counted = [0] * threads, [0] * threads

    def work(index):
        generator = random.Random(index)
        mine = shared.subspan(4 * index, 4)
        scratch = device.allocate(4)
        semaphore = semaphores[index]
        value = 0
        for number in range(1, rounds + 1):
            queue = generator.choice(queues)
            kind = generator.randrange(4)
            wait, signal = semaphore.at(value), semaphore.at(value + 1)
            if kind == 0:
                queue.fill(mine, number, wait=wait, signal=signal)
            elif kind == 1:
                queue.update(mine, bytes([number] * 4), wait=wait, signal=signal)
            elif kind == 2:
                first = queue.fill(scratch, number, wait=wait)
                generator.choice(queues).copy(scratch, mine, wait=first, signal=signal)
            else:
                queue.fill(mine, number, wait=wait, signal=signal)
                neighbour = semaphores[(index + 1) % threads]
                # No more than it has reached, else they could wait in a circle.
                reached = min(neighbour.query(), 1)
                asked[index] += 1
                device.queues.download.call(
                    count, index, wait=[signal, neighbour.at(reached)]
                ).wait(LIMIT)
            value += 1
            if generator.random() < 0.1:
                semaphore.wait(value, LIMIT)
                assert (mine.numpy(timeout=LIMIT) == number).all()
        semaphore.wait(value, LIMIT)

    def count(index):
        counted[index] += 1

    collect_in_threads([lambda index=index: work(index) for index in range(threads)])
    device.wait_idle(LIMIT)
    assert shared.numpy().tolist() == [rounds] * (4 * threads)
    assert [semaphore.query() for semaphore in semaphores] == [rounds] * threads
    assert counted == asked
    assert probe.violations == []


def test_an_event_that_was_recorded_again_forgets_no_failure_s4(open_probe, monkeypatch):
    """S4: its answer is about other work, maybe of another stream, whose failure has its number."""
    device, probe = open_probe()
    events, forgotten = device._context.events, []
    ask = events.query_event
    ended = device.queue.fill(device.allocate(4), 1)
    probe.inner.synchronize_stream(device.queue._stream)

    def ask_late(_):
        events.query_event = ask
        # Another thread retires it first.
        collect_in_threads([lambda: contexts.harvest(device._context)])
        raise WorkFailedError("other work has failed", native_code=1)

    monkeypatch.setattr(type(probe), "forget_failure", lambda _, *call: forgotten.append(call))
    events.query_event = ask_late
    assert ended.state == "done"
    assert not forgotten
