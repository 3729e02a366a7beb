"""Propagation: a failure reaches what depends on it, whole, and nothing else (S5)."""

import threading
from functools import partial

import pytest

import hal
from hal.errors import OperationError
from hal_conformance.suite.support import LIMIT, assert_fails, broken, in_threads

WHEN = ("before the submission", "after the submission")


@pytest.mark.parametrize("when", WHEN)
def test_a_failed_wait_fails_the_operation_s5(queue, make_semaphore, operations, kind, when):
    """S5: the operation does not run; its handle and its signals fail with that error."""
    wait, signal = make_semaphore(), make_semaphore()
    if when == WHEN[0]:
        wait.fail(broken())
    submission = operations.submit(kind, queue, wait=wait.at(1), signal=signal.at(1))
    if when == WHEN[1]:
        assert submission.state == "pending"
        wait.fail(broken())
    assert_fails(submission, broken())
    assert_fails(signal.at(1), broken())
    assert submission.state == "failed"
    assert isinstance(submission.error, OperationError)
    queue.wait_idle(LIMIT)
    assert operations.nothing_has_run()


def test_a_failed_wait_counts_although_its_value_was_reached_s5(
    queue, make_semaphore, operations, kind
):
    """S5: failure is retroactive for operations as well: at 5 and failed, a wait for 1 fails."""
    wait = make_semaphore(5)
    wait.fail(broken())
    submission = operations.submit(kind, queue, wait=wait.at(1))
    assert_fails(submission, broken())
    assert operations.nothing_has_run()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_failed_wait_of_many_is_enough_s5(queue, make_semaphore, position, when):
    """S5: of three waits one reached, one open and one failed: the operation fails at once."""
    reached, unreached, failed = make_semaphore(1), make_semaphore(), make_semaphore()
    waits = [reached.at(1), unreached.at(1)]
    waits.insert(position, failed.at(1))
    if when == WHEN[0]:
        failed.fail(broken())
    submission = queue.barrier(wait=waits)
    if when == WHEN[1]:
        assert submission.state == "pending"
        failed.fail(broken())
    assert_fails(submission, broken())
    unreached.signal(1)
    assert unreached.query() == 1


@pytest.mark.parametrize("link", ["semaphore", "submission", "fence"])
@pytest.mark.parametrize("length", [2, 10, 2000])
def test_a_failure_runs_down_a_chain_s5(unordered, gate, length, link):
    """S5: every operation of a chain fails with the first one's error, however long it is."""
    chain = []
    wait = gate.at(1)
    for _ in range(length):
        semaphore = hal.create_semaphore()
        chain.append(unordered.barrier(wait=wait, signal=semaphore.at(1)))
        if link == "fence":
            wait = hal.Fence([chain[-1], semaphore.at(1)])
        else:
            wait = semaphore.at(1) if link == "semaphore" else chain[-1]
    gate.fail(broken())
    unordered.wait_idle(LIMIT)
    assert {each.state for each in chain} == {"failed"}
    assert_fails(wait, broken())


def test_a_failure_fans_out_s5(queue, make_queue, make_semaphore):
    """S5: all who wait for a failed operation fail, on every queue, and all of their signals."""
    gate = make_semaphore()
    root = queue.barrier(wait=gate.at(1))
    signals = [make_semaphore() for _ in range(20)]
    queues = [make_queue(), make_queue(ordered=False)]
    for number, each in enumerate(signals):
        queues[number % 2].barrier(wait=root, signal=each.at(1))
    gate.fail(broken())
    for each in signals:
        assert_fails(each.at(1), broken())


@pytest.mark.parametrize("direction", ["there", "back"])
def test_a_failure_crosses_devices_s5(queue, second_device, make_queue, gate, direction):
    """S5: who waits for another device's failed operation fails with its error."""
    queues = [queue, make_queue(device=second_device)]
    first, second = queues if direction == "there" else queues[::-1]
    producer = first.barrier(wait=gate.at(1))
    consumer = second.barrier(wait=producer)
    unrelated = second.barrier()
    gate.fail(broken())
    assert_fails(consumer, broken())
    unrelated.wait(LIMIT)


def test_unrelated_work_goes_on_s5(queue, second_queue, operations, gate, kind):
    """S5: while one operation fails, others of the same and of another queue run."""
    failing = queue.barrier(wait=gate.at(1))
    same = operations.submit(kind, queue)
    other = second_queue.barrier()
    gate.fail(broken())
    same.wait(LIMIT)
    other.wait(LIMIT)
    assert operations.has_run(kind)
    assert failing.state == "failed"


def test_a_failed_operation_leaves_a_reached_semaphore_alone_s5(queue, make_semaphore):
    """S5: what a failed operation waited for, and did not signal, is untouched."""
    good, failed, signal = make_semaphore(), make_semaphore(), make_semaphore()
    submission = queue.barrier(wait=[good.at(1), failed.at(1)], signal=signal.at(1))
    failed.fail(broken())
    assert_fails(submission, broken())
    good.signal(1)
    queue.barrier(wait=good.at(1)).wait(LIMIT)
    assert good.query() == 1


def test_issued_work_is_not_recalled_s5(queue, make_semaphore, make_latch):
    """S5: a wait that fails after the issue is too late for the operation: it is done."""
    wait, signal = make_semaphore(1), make_semaphore()
    latch = make_latch(queue, wait=wait.at(1), signal=signal.at(1))
    latch.wait_running()
    wait.fail(broken())
    latch.open()
    latch.submission.wait(LIMIT)
    signal.wait(1, LIMIT)
    assert_fails(queue.barrier(wait=wait.at(1)), broken())


def test_the_first_of_two_failures_counts_s5(queue, make_semaphore):
    """S5: an operation with two waits that fail one after the other fails with the first's."""
    first, second = make_semaphore(), make_semaphore()
    submission = queue.barrier(wait=[first.at(1), second.at(1)])
    second.fail(broken("the earlier one"))
    first.fail(broken("the later one"))
    assert_fails(submission, broken("the earlier one"))


def test_a_failed_submission_fails_nothing_that_it_shares_s5(queue, semaphore, gate):
    """S5: a handle is no value of a shared semaphore: its own signals fail, and no more."""
    failing = queue.barrier(wait=gate.at(1))
    queue.barrier(signal=semaphore.at(1))
    gate.fail(broken())
    semaphore.wait(1, LIMIT)
    assert failing.state == "failed"
    assert semaphore.query() == 1


@pytest.mark.parametrize("threads", [2, 6])
def test_failures_of_many_threads_s5(unordered, make_semaphore, threads):
    """S5: threads fail and signal what is waited for; each operation ends as its gate says."""
    gates = [make_semaphore() for _ in range(threads * 20)]
    submissions = [unordered.barrier(wait=each.at(1)) for each in gates]
    together = threading.Barrier(threads, timeout=LIMIT)

    def act(thread):
        together.wait()
        for number in range(thread, len(gates), threads):
            if number % 3 == 0:
                gates[number].fail(broken(f"gate {number}"))
            else:
                gates[number].signal(1)

    in_threads([partial(act, thread) for thread in range(threads)])
    unordered.wait_idle(LIMIT)
    for number, submission in enumerate(submissions):
        if number % 3 == 0:
            assert_fails(submission, broken(f"gate {number}"))
        else:
            assert submission.state == "done"
