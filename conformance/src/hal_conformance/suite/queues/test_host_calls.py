"""Host calls: functions in the place of operations (Q4, Q2)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    HalError,
    InvalidArgumentError,
    NotFoundError,
    OperationError,
    SemaphoreFailedError,
    UnimplementedError,
)
from hal_conformance.suite.support import LIMIT, assert_fails, broken


@pytest.mark.parametrize("when", ["no wait", "open wait"])
def test_a_call_runs_once_with_its_arguments_q4(queue, make_semaphore, when):
    """Q4: the function gets its arguments, once, after the waits, and then the signal comes."""
    wait, signal = make_semaphore(), make_semaphore()
    calls = []
    arguments = (10, 2**64 - 1, "text", None)
    waits = wait.at(1) if when == "open wait" else ()
    queue.call(lambda *given: calls.append(given), *arguments, wait=waits, signal=signal.at(1))
    if when == "open wait":
        assert not calls
        wait.signal(1)
    signal.wait(1, LIMIT)
    assert calls == [arguments]


def test_a_call_runs_on_another_thread_q4(queue):
    """Q4: a call runs on no thread of the user's."""
    threads = []
    queue.call(lambda: threads.append(threading.get_ident())).wait(LIMIT)
    assert threads[0] != threading.get_ident()


def test_what_a_call_returns_is_dropped_q4(queue, semaphore):
    """Q4: whatever a function returns, False and None included, the call is done."""
    for value, result in enumerate((None, False, 0, OSError("returned, not raised")), 1):
        queue.call(lambda result=result: result, signal=semaphore.at(value)).wait(LIMIT)
    assert semaphore.query() == 4


@pytest.mark.parametrize(
    "error",
    [OperationError("text"), NotFoundError("text"), UnimplementedError("text"), OSError("text")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("when", ["no wait", "open wait"])
def test_a_raising_call_fails_its_signals_q4(queue, make_semaphore, error, when):
    """Q4: what a function raises fails the submission and each of its signals, with that error."""
    wait, first, second = make_semaphore(), make_semaphore(), make_semaphore()

    def fail():
        raise error

    waits = wait.at(1) if when == "open wait" else ()
    submission = queue.call(fail, wait=waits, signal=[first.at(1), second.at(1)])
    if when == "open wait":
        assert not submission.done
        wait.signal(1)
    for waitable in (submission, first.at(1), second.at(1)):
        assert_fails(waitable, error)
    assert submission.state == "failed"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_call_that_wants_to_end_the_process_fails_q4(queue, error):
    """Q4: `SystemExit` and the like fail the call, and end nothing else."""

    def fail():
        raise error

    failed = queue.call(fail)
    with pytest.raises(SemaphoreFailedError) as caught:
        failed.wait(LIMIT)
    assert caught.value.__cause__ is error
    queue.call(list).wait(LIMIT)


def test_a_call_may_submit_and_wait_q4(device, queue, second_queue):
    """Q4: a host call may submit to other queues, and wait for that."""
    buffer = device.allocate(64)

    def call():
        second_queue.fill(buffer, 6).wait(LIMIT)

    queue.call(call).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 6).all()


def test_a_call_may_submit_behind_itself_q4(queue, semaphore):
    """Q4: a host call may submit to its own queue, without waiting for it."""
    order: list[str] = []

    def call():
        queue.call(order.append, "inner", signal=semaphore.at(1))
        order.append("outer")

    queue.call(call).wait(LIMIT)
    semaphore.wait(1, LIMIT)
    assert order == ["outer", "inner"]


def test_a_call_may_signal_and_wait_on_semaphores_q4(queue, make_semaphore):
    """Q4: a host call may signal a semaphore of its own, and wait for one of the host's."""
    asked, answered, done = make_semaphore(), make_semaphore(), make_semaphore()

    def call():
        asked.signal(1)
        answered.wait(1, LIMIT)

    queue.call(call, signal=done.at(1))
    asked.wait(1, LIMIT)
    assert done.query() == 0
    answered.signal(1)
    done.wait(1, LIMIT)


def test_a_call_that_goes_on_elsewhere_q4(queue, second_queue, make_semaphore):
    """Q4: a call may leave its signals to a thread of its own, which signals when it is ready."""
    first, second = make_semaphore(), make_semaphore()
    go_on = threading.Event()
    threads = []

    def later():
        assert go_on.wait(LIMIT)
        first.signal(1)
        second.signal(2)

    def call():
        thread = threading.Thread(target=later)
        thread.start()
        threads.append(thread)

    queue.call(call).wait(LIMIT)
    waiting = second_queue.barrier(wait=[first.at(1), second.at(2)])
    assert (first.query(), second.query()) == (0, 0)
    go_on.set()
    waiting.wait(LIMIT)
    threads[0].join(LIMIT)


TOGETHER: Final[dict[str, Callable[..., Any]]] = {
    "list": lambda queue, first, second: [first.at(1), second.at(1)],
    "tuple": lambda queue, first, second: (first.at(1), second.at(1)),
    "fence": lambda queue, first, second: hal.Fence([first.at(1), second.at(1)]),
    "submission": lambda queue, first, second: queue.barrier(wait=[first.at(1), second.at(1)]),
    "all of them": lambda queue, first, second: [
        queue.barrier(wait=first.at(1)),
        hal.Fence([first.at(0), second.at(1)]),
        first.at(1),
    ],
}


@pytest.mark.parametrize("how", TOGETHER)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first", "second"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_a_call_ends_with_all_that_it_returns_q4(
    make_queue, second_queue, make_semaphore, how, order, ordered
):
    """Q4: a call that returns timepoints brings its signals about once all of them are reached."""
    semaphores, done = [make_semaphore() for _ in range(2)], make_semaphore()
    queue, returned = make_queue(ordered=ordered), make_semaphore()

    def call():
        returned.signal(1)
        return TOGETHER[how](second_queue, *semaphores)

    submission = queue.call(call, signal=done.at(1))
    returned.wait(1, LIMIT)
    semaphores[order[0]].signal(1)
    queue.flush()
    assert (done.query(), submission.state) == (0, "issued")
    semaphores[order[1]].signal(1)
    submission.wait(LIMIT)
    assert done.query() == 1


@pytest.mark.parametrize("how", TOGETHER)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_fails_with_what_it_returns_q4(queue, second_queue, make_semaphore, how, when):
    """Q4: if something fails that a call has returned, the call and its signals fail with it."""
    first, second, done = (make_semaphore() for _ in range(3))
    error = broken()
    if when == "before":
        second.fail(error)
    submission = queue.call(lambda: TOGETHER[how](second_queue, first, second), signal=done.at(1))
    second.fail(error)
    assert_fails(submission, error)
    assert_fails(done.at(1), error)
    assert first.query() == 0


def test_what_a_call_returns_is_checked_q4(queue, semaphore):
    """Q4: a list of timepoints and other things, or a call's own signal, fails the call."""
    with pytest.raises(ArgumentTypeError):
        queue.call(lambda: [semaphore.at(1), 5]).wait(LIMIT)
    own = queue.call(lambda: semaphore.at(1), signal=semaphore.at(1))
    with pytest.raises(InvalidArgumentError):
        own.wait(LIMIT)


@pytest.mark.parametrize("count", [2, 40])
def test_blocking_calls_run_side_by_side_q4(unordered, count):
    """Q4, Q2: any number of calls that wait for each other run at the same time."""
    together = threading.Barrier(count, timeout=LIMIT)
    hal.wait_all([unordered.call(together.wait) for _ in range(count)], LIMIT)


def test_errors_of_calls_keep_their_class_down_the_line_q4(queue, second_queue):
    """Q4: who waits for a failed call, three queues on, gets the class that it raised."""

    def fail():
        message = "no such kernel"
        raise NotFoundError(message)

    first = queue.call(fail)
    second = second_queue.barrier(wait=first)
    third = queue.call(list, wait=second)
    with pytest.raises(NotFoundError, match="no such kernel"):
        third.wait(LIMIT)
    assert isinstance(second.error, HalError)


@pytest.mark.parametrize("function", [None, 3, "list"], ids=repr)
def test_what_cannot_be_called_is_refused_q4(queue, function):
    """Q4: a call of something that is no function raises at once."""
    with pytest.raises(TypeError):
        queue.call(function)
    queue.wait_idle(LIMIT)
