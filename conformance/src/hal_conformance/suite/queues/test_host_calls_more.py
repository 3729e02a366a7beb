"""Host calls that return what their end is deferred to (Q4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import hal
from hal.errors import ArgumentTypeError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT, MakeSemaphore, assert_fails, broken

TOGETHER: Final[dict[str, Callable[..., Any]]] = {
    "list": lambda first, second: [first.at(1), second.at(1)],
    "tuple": lambda first, second: (first.at(1), second.at(1)),
    "fence": lambda first, second: hal.Fence([first.at(1), second.at(1)]),
}


@pytest.mark.parametrize("how", TOGETHER)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first", "second"])
def test_a_call_ends_with_all_that_it_returns_q4(
    queue: hal.Queue, make_semaphore: MakeSemaphore, how: str, order: tuple[int, int]
) -> None:
    """Q4: a call that returns timepoints brings its signals about once all of them are reached."""
    semaphores, done = [make_semaphore() for _ in range(2)], make_semaphore()
    returned = make_semaphore()

    def call() -> object:
        returned.signal(1)
        return TOGETHER[how](*semaphores)

    submission = queue.call(call, signal=done.at(1))
    returned.wait(1, LIMIT)
    semaphores[order[0]].signal(1)
    queue.flush()
    assert (done.query(), submission.state) == (0, "issued")
    semaphores[order[1]].signal(1)
    submission.wait(LIMIT)
    assert done.query() == 1


def test_a_call_fails_with_what_it_returns_q4(
    queue: hal.Queue, make_semaphore: MakeSemaphore
) -> None:
    """Q4: if something fails that a call has returned, the call and its signals fail with it."""
    first, second, done = (make_semaphore() for _ in range(3))
    submission = queue.call(lambda: [first.at(1), second.at(1)], signal=done.at(1))
    error = broken()
    second.fail(error)
    assert_fails(submission, error)
    assert_fails(done.at(1), error)
    assert first.query() == 0


def test_what_a_call_returns_is_checked_q4(queue: hal.Queue, semaphore: hal.Semaphore) -> None:
    """Q4: a list of timepoints and other things, or a call's own signal, fails the call."""
    with pytest.raises(ArgumentTypeError):
        queue.call(lambda: [semaphore.at(1), 5]).wait(LIMIT)
    own = queue.call(lambda: semaphore.at(1), signal=semaphore.at(1))
    with pytest.raises(InvalidArgumentError):
        own.wait(LIMIT)
