"""Submission: it returns at once, whatever it waits for, and its handle tells its state (Q1)."""

import threading
from functools import partial

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, InvalidArgumentError, SemaphoreFailedError
from hal_conformance.suite.support import LIMIT, OPERATIONS, broken, in_threads


def test_every_operation_returns_while_its_wait_is_open_q1(queue, gate, operations, kind):
    """Q1: each operation returns a pending submission; it runs once the gate is opened.

    If the call waited for the gate, this thread would never get to open it.
    """
    submission = operations.submit(kind, queue, wait=gate.at(1))
    assert submission.state == "pending"
    assert not submission.done
    assert operations.nothing_has_run()
    gate.signal(1)
    submission.wait(LIMIT)
    assert operations.has_run(kind)


def test_every_operation_returns_while_its_queue_is_held_q1(queue, make_latch, operations, kind):
    """Q1: the same behind an operation that is running."""
    latch = make_latch(queue)
    latch.wait_running()
    submission = operations.submit(kind, queue)
    assert not submission.done
    assert operations.nothing_has_run()
    latch.open()
    submission.wait(LIMIT)
    assert operations.has_run(kind)


def test_the_handle_says_what_it_is_q1(queue, operations, kind):
    """Q1: a submission knows its kind and queue; done, it has no error and waits return."""
    submission = operations.submit(kind, queue)
    submission.wait(LIMIT)
    assert submission.kind == kind
    assert submission.queue is queue
    assert submission.state == "done"
    assert submission.done
    assert submission.error is None
    for word in (kind, queue.name, "done"):
        assert word in repr(submission)


def test_the_states_of_a_submission_q1(queue, gate):
    """Q1: pending, then issued while it runs, then done."""
    began, leave = threading.Event(), threading.Event()

    def call():
        began.set()
        assert leave.wait(LIMIT)

    submission = queue.call(call, wait=gate.at(1))
    assert submission.state == "pending"
    gate.signal(1)
    assert began.wait(LIMIT)
    assert submission.state == "issued"
    assert not submission.done
    leave.set()
    submission.wait(LIMIT)
    assert submission.state == "done"


def test_the_state_of_a_failed_submission_q1(queue):
    """Q1: failed, with its error, which `wait` raises and `error` returns, afresh each time."""
    submission = queue.call(lambda: 1 // 0)
    with pytest.raises(SemaphoreFailedError) as caught:
        submission.wait(LIMIT)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert submission.state == "failed"
    assert submission.done
    assert isinstance(submission.error, SemaphoreFailedError)
    assert submission.error is not submission.error


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_a_backlog_forms_and_drains_q1(open_device, make_semaphore, limit):
    """Q1: with few operations in flight allowed, 200 more are taken at once, and run in order."""
    device = open_device(max_in_flight=limit)
    semaphore = make_semaphore()
    buffer = device.allocate(4, dtype=np.uint32)
    latch_open = threading.Event()
    device.queue.call(latch_open.wait, LIMIT)
    submissions = [
        device.queue.fill(buffer, number, signal=semaphore.at(number)) for number in range(1, 201)
    ]
    assert not submissions[0].done
    latch_open.set()
    semaphore.wait(200, LIMIT)
    assert buffer.numpy(timeout=LIMIT)[0] == 200
    assert {each.state for each in submissions} == {"done"}


def test_a_backlog_moves_with_nobody_asking_q1(open_device, make_semaphore):
    """Q1: 300 operations over a limit of 2 end although no thread polls, waits or submits."""
    device = open_device(max_in_flight=2)
    buffer = device.allocate(64)
    last, ended = make_semaphore(), threading.Event()
    last.on_reached(1, lambda _: ended.set())
    for number in range(300):
        device.queue.fill(buffer, number % 251)
    device.queue.barrier(signal=last.at(1))
    assert ended.wait(LIMIT)


@pytest.mark.parametrize("count", [100, 2000])
def test_one_signal_releases_many_q1(unordered, make_semaphore, gate, count):
    """Q1: however many a host signal releases, all of them run."""
    last = make_semaphore()
    released = [unordered.barrier(wait=gate.at(1)) for _ in range(count)]
    unordered.barrier(wait=released, signal=last.at(1))
    gate.signal(1)
    last.wait(1, LIMIT)
    assert {each.state for each in released} == {"done"}


@pytest.mark.parametrize("count", [2, 33, 100])
@pytest.mark.parametrize("last", ["first", "last"])
def test_many_waits_of_one_operation_q1(queue, make_semaphore, count, last):
    """Q1: an operation may wait for any number of semaphores, met in any order."""
    semaphores = [make_semaphore() for _ in range(count)]
    pending = queue.barrier(wait=[each.at(1) for each in semaphores])
    ordered = semaphores if last == "last" else semaphores[::-1]
    for each in ordered[:-1]:
        each.signal(1)
    assert pending.state == "pending"
    ordered[-1].signal(1)
    pending.wait(LIMIT)


@pytest.mark.parametrize("count", [1, 2, 50])
def test_many_signals_of_one_operation_q1(queue, make_semaphore, gate, count):
    """Q1: an operation may signal any number of semaphores, with a value for each."""
    semaphores = [make_semaphore() for _ in range(count)]
    signal = [each.at(number + 1) for number, each in enumerate(semaphores)]
    queue.barrier(wait=gate.at(1), signal=signal)
    assert [each.query() for each in semaphores] == [0] * count
    gate.signal(1)
    hal.wait_all(signal, LIMIT)
    assert [each.query() for each in semaphores] == list(range(1, count + 1))


def test_threads_submit_to_one_queue_q1(device, queue, make_semaphore):
    """Q1: six threads submit to one queue; each one's own operations keep their order."""
    buffer = device.upload(np.zeros(6, np.uint8))
    semaphores = [make_semaphore() for _ in range(6)]

    def submit(number):
        mine = buffer.subspan(number, 1)
        for value in range(1, 101):
            queue.fill(mine, value, signal=semaphores[number].at(value))

    in_threads([partial(submit, number) for number in range(6)])
    hal.wait_all([each.at(100) for each in semaphores], LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [100] * 6


def test_a_thread_signals_while_another_submits_q1(make_queue, make_semaphore):
    """Q1: one thread submits, another signals what that waits for; neither holds up the other."""
    queue = make_queue(ordered=False)
    semaphore, done = make_semaphore(), [make_semaphore() for _ in range(300)]

    def submit():
        for number, each in enumerate(done, 1):
            queue.barrier(wait=semaphore.at(number), signal=each.at(1))

    def signal():
        for number in range(1, 301):
            semaphore.signal(number)

    in_threads([submit, signal])
    hal.wait_all([each.at(1) for each in done], LIMIT)


def test_progress_needs_no_flush_q1(queue, semaphore, gate):
    """Q1: operations run without `flush`, which may be called at any time and never blocks."""
    came = threading.Event()
    semaphore.on_reached(1, lambda _: came.set())
    queue.flush()
    queue.barrier(wait=gate.at(1), signal=semaphore.at(1))
    queue.flush()
    gate.signal(1)
    assert came.wait(LIMIT)
    queue.flush()


@pytest.mark.parametrize("bad", ["wait", "signal"])
def test_a_refused_submission_changes_nothing_q1(queue, make_semaphore, operations, bad):
    """Q1: a submission with a bad list raises; nothing was registered, reserved or run."""
    semaphore = make_semaphore(1)
    lists = {"wait": [semaphore.at(0)], "signal": [semaphore.at(2)]}
    lists[bad] = [semaphore.at(2), "nonsense"]
    for kind in OPERATIONS:
        with pytest.raises(ArgumentTypeError):
            operations.submit(kind, queue, **lists)
    queue.wait_idle(LIMIT)
    assert operations.nothing_has_run()
    assert semaphore.query() == 1
    queue.barrier(signal=semaphore.at(2)).wait(LIMIT)


@pytest.mark.parametrize("entry", ["submission", "fence", "semaphore", "pair"])
def test_a_signal_list_takes_timepoints_only_q1(queue, semaphore, entry):
    """Q1: submissions and fences can be waited for, and not signalled."""
    bad = {
        "submission": queue.barrier(),
        "fence": hal.Fence(semaphore.at(1)),
        "semaphore": semaphore,
        "pair": (semaphore, 1),
    }[entry]
    with pytest.raises((ArgumentTypeError, InvalidArgumentError)):
        queue.barrier(signal=[bad])
    assert semaphore.query() == 0


def test_a_submission_after_a_failure_is_fine_q1(queue, make_semaphore, operations):
    """Q1: a queue whose operations failed takes more, and runs them."""
    failed = make_semaphore()
    failed.fail(broken())
    for kind in OPERATIONS:
        assert operations.submit(kind, queue, wait=failed.at(1)).state == "failed"
    for kind in OPERATIONS:
        operations.submit(kind, queue).wait(LIMIT)
        assert operations.has_run(kind)
