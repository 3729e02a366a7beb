"""Cases of operations that stand in line, and are released, on any device."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from shortcut_harness import SOURCE, Calls, main, warm

import hal
from hal.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    SemaphoreFailedError,
)


def case_what_waits_stands_in_line_without_python_q1(device):
    """On ordered and unordered queues, for one value and for several, promised or not."""
    buffer, pinned = warm(device), device.allocate(256, memory="host")
    queue, beside = device.queue, device.create_queue(ordered=False)
    x = device.upload(np.arange(4, dtype=np.int32))
    y = device.upload(np.zeros(4, np.int32))
    kernel = device.compile(SOURCE)["add"]
    queue.dispatch(kernel, grid=1, args=(x, y, 1, 2.0)).wait()
    mapped = pinned.map()
    go, done, other = (hal.create_semaphore(name=name) for name in ("go", "done", "other"))
    with Calls() as calls:
        waiting = [
            queue.fill(buffer, 5, wait=(go.at(1),), signal=(done.at(1),)),
            queue.copy(buffer, pinned, wait=(go.at(1), done.at(1)), signal=done.at(2)),
            queue.dispatch(kernel, grid=1, args=(x, y, 3, 1.5), wait=[go.at(2)]),
            queue.barrier(wait=(go.at(1),), signal=(done.at(3),)),
            beside.fill(buffer, 6, size=8, wait=(done.at(3), go.at(1)), signal=(other.at(7),)),
        ]
        behind = queue.fill(buffer, 7, size=1, signal=(done.at(4),))
    assert calls.names == {"Queue.barrier": 1}, calls.names
    waiting.append(behind)
    assert [each.state for each in waiting] == ["pending"] * 6
    told = r"other@7.*fill on .*done@3.*barrier on .*go@1"
    with pytest.raises(DeadlineExceededError, match=told):
        other.wait(7, 0)
    go.signal(1)
    hal.wait_all(waiting[:2], 30)
    assert mapped.tolist() == [5] * 256
    assert waiting[3].state == "pending"
    go.signal(2)
    hal.wait_all(waiting, 30)
    assert (done.query(), other.query()) == (4, 7)
    assert y.numpy().tolist() == [7, 9, 11, 13]
    assert not len(go._recorded) + len(done._recorded)


def case_what_stands_in_line_keeps_its_arguments_q5(device):
    """The parameters of a launch, and memory that is given back behind it."""
    kernel, queue = device.compile(SOURCE)["add"], device.queue
    y = device.upload(np.zeros(4, np.int32))
    queue.dispatch(kernel, grid=1, args=(y, y, 0, 0.0)).wait()
    temporary, go = queue.alloca(16, dtype=np.int32), hal.create_semaphore()
    temporary.allocation.wait()
    queue.fill(temporary, 100, wait=(go.at(1),))
    for number in range(1, 9):
        queue.dispatch(kernel, grid=1, args=(temporary, y, number, 0.5), wait=(go.at(number),))
    last = queue.dealloca(temporary)
    go.signal(8)
    last.wait(30)
    assert y.numpy().tolist() == [836] * 4


def case_what_cannot_stand_in_line_is_refused_q1(device):
    """As ever: the Python engine says why, and nothing has changed."""
    buffer, queue = warm(device), device.queue
    go, done = hal.create_semaphore(), hal.create_semaphore()
    done.signal(3)
    for options, words in (
        ({"wait": go.at(2), "signal": go.at(2)}, "wait for itself"),
        ({"wait": go.at(1), "signal": done.at(3)}, "cannot be signalled to 3"),
        ({"wait": go.at(1), "signal": (done.at(4), done.at(5))}, "twice in the signal list"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            queue.fill(buffer, 1, **options)
    assert not queue._backlog
    assert go._recorded is None
    twice = queue.fill(buffer, 1, wait=(go.at(1), go.at(2)))
    go.signal(1)
    assert twice.state == "pending"
    go.signal(2)
    twice.wait(30)
    with pytest.raises(InvalidArgumentError, match="was asked for"):
        queue.fill(buffer, 1, wait=(go.at(2**63),))
    device.queue.fill(buffer, 1, wait=(go.at(2**63 - 1),)).cancel()


def case_what_stands_in_line_ends_without_its_issue_s5_q7(device):
    """It is cancelled, its wait fails, or its queue is closed; and what waits for it fails."""
    buffer = warm(device)
    for queue in (device.queue, device.create_queue(ordered=False)):
        go, never, done = (hal.create_semaphore() for _ in range(3))
        first = queue.fill(buffer, 1, wait=(go.at(1),), signal=(done.at(1),))
        second = queue.fill(buffer, 2, wait=(never.at(1),))
        third = queue.fill(buffer, 3, wait=(go.at(1),))
        behind = device.queues.upload.fill(buffer, 4, wait=(done.at(1),))
        assert first.cancel()
        with pytest.raises(CancelledError, match="cancelled by cancel"):
            behind.wait(30)
        never.fail(ValueError("on purpose"))
        with pytest.raises(SemaphoreFailedError, match="on purpose"):
            second.wait(30)
        assert third.state == "pending"
        go.signal(1)
        third.wait(30)
        assert [each.state for each in (first, second, third)] == ["cancelled", "failed", "done"]
    closing, go = device.create_queue(), hal.create_semaphore()
    left = closing.fill(buffer, 1, wait=(go.at(1),))
    closing.close()
    assert left.state == "cancelled"
    go.signal(1)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
