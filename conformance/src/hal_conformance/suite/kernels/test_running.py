"""Running work: what the host sees and can do while a kernel is held up on the device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import DeadlineExceededError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, SHORT, assert_fails, broken

pytestmark = pytest.mark.feature("kernels")


class Held:
    """A kernel that runs until it is let go."""

    def __init__(self, device: hal.Device, queue: hal.Queue, program: hal.Executable) -> None:
        self._flag = device.allocate(4, dtype=np.uint32, memory="host")
        self._seen = device.upload(np.zeros(1, np.uint32))
        self._view = self._flag.map(wait=())
        self._view[0] = 0
        self._queue = queue
        self._kernel = program["hold"]
        self.submission: hal.Submission

    def start(self, **lists: Any) -> hal.Submission:  # noqa: ANN401 - as the queue's
        """Submit it; the bound on its turns keeps a failing test from holding the device."""
        self.submission = self._queue.dispatch(
            self._kernel, grid=1, block=1, args=(self._flag, self._seen, 2**31), **lists
        )
        return self.submission

    def let_go(self) -> None:
        """End it."""
        self._view[0] = 1

    def close(self) -> None:
        """End it, and let go of its memory."""
        self.let_go()
        del self._view
        self._flag.close()
        self._seen.close()

    def was_held(self) -> bool:
        """Return whether it saw the flag, and did not run out of turns."""
        return bool(self._seen.numpy(timeout=LIMIT)[0])


@pytest.fixture
def held(device: hal.Device, queue: hal.Queue, program: hal.Executable) -> Iterator[Held]:
    """Make a kernel on `queue`, not submitted yet."""
    made = Held(device, queue, program)
    yield made
    made.close()


def test_a_submission_does_not_wait_for_a_running_kernel_q1(device, queue, held):
    """Q1: 50 operations are taken behind a kernel that runs, none ends, then all do."""
    running = held.start()
    buffer = device.allocate(64)
    behind = [queue.fill(buffer, number) for number in range(50)]
    assert not running.done
    assert not any(each.done for each in behind)
    held.let_go()
    behind[-1].wait(LIMIT)
    assert held.was_held()
    assert {each.state for each in (running, *behind)} == {"done"}


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_is_in_flight_than_allowed_q1(bench, open_device, limit):
    """Q1: behind a kernel that runs, as many operations are issued as may be, no more."""
    device = open_device(max_in_flight=limit)
    held = Held(device, device.queue, bench.program(device))
    try:
        first = held.start()
        buffer = device.allocate(64)
        behind = [device.queue.fill(buffer, number) for number in range(10)]
        states = [each.state for each in (first, *behind)]
        assert states == ["issued"] * limit + ["pending"] * (11 - limit)
        held.let_go()
        behind[-1].wait(LIMIT)
        assert (buffer.numpy(timeout=LIMIT) == 9).all()
    finally:
        held.close()


def test_an_ordered_queue_issues_behind_a_running_kernel_q2(queue, held):
    """Q2: an operation needs no more than that the previous one was issued."""
    held.start()
    behind = queue.barrier()
    assert behind.state == "issued"
    assert not behind.done
    held.let_go()
    behind.wait(LIMIT)


def test_values_of_running_work_are_not_seen_s7(held, second_queue, make_semaphore):
    """S7: neither the kernel's value nor what depends on it can be seen before it ends."""
    semaphore, dependent = make_semaphore(), make_semaphore()
    held.start(signal=semaphore.at(1))
    consumer = second_queue.barrier(wait=semaphore.at(1), signal=dependent.at(1))
    for _ in range(200):
        assert (semaphore.query(), dependent.query()) == (0, 0)
        assert not consumer.done
    for look in (semaphore, dependent):
        with pytest.raises(DeadlineExceededError):
            look.wait(1, SHORT)
    held.let_go()
    dependent.wait(1, LIMIT)
    assert semaphore.query() == 1


def test_running_work_has_reserved_its_value_s1(held, make_semaphore):
    """S1: below the running kernel's value the host may not signal; above it may."""
    semaphore = make_semaphore()
    held.start(signal=semaphore.at(2))
    for value in (1, 2):
        with pytest.raises(InvalidArgumentError):
            semaphore.signal(value)
    semaphore.signal(5)
    held.let_go()
    held.submission.wait(LIMIT)
    assert semaphore.query() == 5


def test_other_queues_run_beside_a_kernel_q3(device, held, make_queue):
    """Q3: copies on other queues do not wait for a kernel that runs."""
    running = held.start()
    source, target = device.upload(np.arange(64, dtype=np.uint8)), device.allocate(64)
    copied = make_queue().copy(source, target)
    assert target.numpy(wait=copied, timeout=LIMIT).tolist() == list(range(64))
    assert not running.done


def test_a_failure_comes_too_late_for_running_work_s5(held, make_semaphore, queue):
    """S5: a wait that fails after the issue does not recall the kernel; it affects later waits."""
    wait, signal = make_semaphore(1), make_semaphore()
    held.start(wait=wait.at(1), signal=signal.at(1))
    wait.fail(broken())
    later = queue.barrier(wait=wait.at(1))
    assert_fails(later, broken())
    held.let_go()
    signal.wait(1, LIMIT)
    assert held.submission.state == "done"


def test_callbacks_come_when_a_kernel_ends_s8(held, semaphore):
    """S8: a callback for running work comes when it ends, though no thread looks."""
    came = threading.Event()
    held.start(signal=semaphore.at(1))
    semaphore.on_reached(1, lambda _: came.set())
    assert not came.wait(SHORT)
    held.let_go()
    assert came.wait(LIMIT)


def test_the_text_names_the_running_kernel_s9(held, queue, make_semaphore):
    """S9: a time-out says that a dispatch on this queue has promised the value, and runs."""
    frames = make_semaphore(name="frames")
    held.start(signal=frames.at(1))
    with pytest.raises(DeadlineExceededError) as caught:
        frames.wait(1, SHORT)
    text = str(caught.value)
    for part in ("frames@1", "dispatch", queue.name, "running"):
        assert part in text


@pytest.mark.parametrize("consumer", ["host", "queue", "call", "other device"])
def test_everyone_can_wait_for_a_running_kernel_s2(
    held, semaphore, make_queue, second_device, consumer
):
    """S2: host, queue, host call and another device wait for a kernel that runs."""
    held.start(signal=semaphore.at(1))
    seen = []

    def wait():
        semaphore.wait(1, LIMIT)
        seen.append(1)

    if consumer == "host":
        thread = threading.Thread(target=wait)
        thread.start()
    elif consumer == "call":
        done = make_queue().call(seen.append, 1, wait=semaphore.at(1))
    else:
        device = second_device if consumer == "other device" else None
        done = make_queue(device=device).barrier(wait=semaphore.at(1))
    assert not seen
    assert not held.submission.done
    held.let_go()
    if consumer == "host":
        thread.join(LIMIT)
        assert seen == [1]
    else:
        done.wait(LIMIT)
        assert held.submission.state == "done"
