"""Cases of operations that stand in line, and are released, on any device."""

import sys

import numpy as np
import pytest
from core_harness import Running
from shortcut_harness import SOURCE, Calls, OnlyC, main, warm

import hal
from hal._engine import progress
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


def case_recordings_stand_in_line_and_are_issued_in_c_q1(device):
    """Those of one command and of many, replayed or as a graph; with bindings, which Python checks
    when they are submitted, and binds when they are issued."""
    buffer, other, queue = warm(device), warm(device), device.queue
    for mode in ("stream", "graph"):
        for count in (1, 3):
            with device.record(command_buffer=mode, hazards="auto") as commands:
                for value in range(1, count + 1):
                    commands.fill(buffer, value)
            queue.execute(commands).wait()
            queue.fill(buffer, 0).wait()
            go, done = hal.create_semaphore(), hal.create_semaphore()
            with OnlyC():
                for value in range(1, 41):
                    last = queue.execute(commands, wait=(go.at(1),), signal=(done.at(value),))
            assert last.state == "pending"
            with OnlyC():
                go.signal(1)
            done.wait(40, 30)
            assert buffer.numpy().tolist() == [count] * 256
        with device.record(slots=1, command_buffer=mode) as commands:
            commands.fill(commands.slots[0], 7, size=256)
            commands.fill(buffer, 8)
        queue.execute(commands, bindings=[buffer]).wait()
        go = hal.create_semaphore()
        for each in (other, buffer, other):
            last = queue.execute(commands, bindings=[each], wait=(go.at(1),))
        with pytest.raises(InvalidArgumentError, match="slot"):
            queue.execute(commands, bindings=[], wait=(go.at(1),))
        go.signal(1)
        last.wait(30)
        assert (other.numpy()[0], buffer.numpy()[0]) == (7, 8)
        queue.fill(other, 0).wait()


def case_what_a_handler_signals_in_c_is_released_by_python_o3(device):
    """In the middle of a call of its thread: C finds no event, and Python's step is put off."""
    buffer, go = device.allocate(256), hal.create_semaphore()
    filled = device.queue.fill(buffer, 5, wait=go.at(1))
    progress.act(lambda *_: go.signal(1), None, None)
    filled.wait(30)
    assert buffer.numpy().tolist() == [5] * 256


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
    """The Python engine says why, as ever, and nothing has changed."""
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


def case_a_signal_releases_what_its_operations_signal_s2(device):
    """Over queues and semaphores, and what stands behind; also on streams that others know."""
    buffer = warm(device)
    shown = device.create_queue()
    assert shown.stream_handle
    queues = [device.queue, device.create_queue(), device.create_queue(ordered=False), shown]
    go = hal.create_semaphore()
    steps = [hal.create_semaphore() for _ in range(12)]
    before = go
    for number, step in enumerate(steps):
        queue = queues[number % len(queues)]
        queue.fill(buffer, number, wait=(before.at(1), go.at(1)), signal=(step.at(1),))
        before = step
    behind = [queue.fill(buffer, 99, signal=(steps[0].at(9),)) for queue in queues[1:2]]
    with OnlyC():
        go.signal(1)
    hal.wait_all([steps[-1].at(1), *behind], 30)
    device.wait_idle()
    assert all(not queue._backlog and not queue._pending for queue in queues)
    assert not any(len(each._recorded or ()) for each in (go, *steps))


def case_a_submission_releases_what_waits_for_it_s2(device):
    """In C, as a signal of the host does, and what those signal in turn."""
    buffer, other = warm(device), device.create_queue()
    first, second = hal.create_semaphore(), hal.create_semaphore()
    queue = device.queue
    waiting = [
        other.fill(buffer, 1, wait=(first.at(value),), signal=(second.at(value),))
        for value in (1, 2)
    ]
    last = other.barrier(wait=(second.at(2),))
    with OnlyC():
        queue.fill(buffer, 2, signal=(first.at(2),))
    hal.wait_all((*waiting, last), 30)
    assert (first.query(), second.query()) == (2, 2)


def case_many_waits_of_one_operation_q1(device):
    """More than a C number has bits; they are Python's."""
    buffer, beside = warm(device), device.create_queue(ordered=False)
    go, done = hal.create_semaphore(), hal.create_semaphore()
    released = [beside.barrier(wait=go.at(1)) for _ in range(100)]
    last = beside.fill(buffer, 1, wait=released, signal=done.at(1))
    go.signal(1)
    done.wait(1, 30)
    assert last.done
    assert all(each.done for each in released)


def case_what_is_cancelled_holds_nobody_up_q7(device):
    """It stays in line behind what waits, and is passed by."""
    buffer, queue = warm(device), device.queue
    go, never = hal.create_semaphore(), hal.create_semaphore()
    first = queue.fill(buffer, 1, wait=(go.at(1),))
    second = queue.fill(buffer, 2, wait=(never.at(1),))
    rest = [queue.fill(buffer, 3), queue.fill(buffer, 4, wait=(go.at(1),))]
    assert second.cancel()
    go.signal(1)
    hal.wait_all((first, *rest), 30)
    assert buffer.numpy()[0] == 4


def case_a_signal_wakes_who_sleeps_without_python_s6(device):
    """A thread that waits for one value, and one that waits for many; not before the last."""
    first, second = hal.create_semaphore(), hal.create_semaphore()
    twice = (first.at(1), second.at(1), first.at(1))
    threads = [Running(first.wait, 1, 30), Running(hal.wait_all, twice, 30)]
    registers = [(first, "_recorded"), (first, "_reached"), (second, "_reached")]
    while not all(len(getattr(semaphore, name) or ()) for semaphore, name in registers):
        assert all(each.is_alive() for each in threads)
    with OnlyC():
        first.signal(1)
    threads[0].result()
    assert [each.is_alive() for each in threads] == [False, True]
    second.signal(1)
    threads[1].result()
    assert not len(first._recorded) + len(first._reached) + len(second._reached)


def case_a_thread_that_waits_for_many_leaves_them_to_c_s6(device):
    """They are issued and retired there, although it is registered for each of them."""
    buffer, queue, go = warm(device), device.queue, hal.create_semaphore()
    semaphores = [hal.create_semaphore() for _ in range(200)]
    for semaphore in semaphores:
        queue.fill(buffer, 1, wait=(go.at(1),), signal=(semaphore.at(1),))
    waiting = Running(hal.wait_all, [each.at(1) for each in semaphores], 60)
    while not len(semaphores[0]._reached or ()):
        assert waiting.is_alive()
    with Calls() as calls:
        go.signal(1)
    assert not {"_issue", "release", "_publish"} & calls.names.keys(), calls.names
    waiting.result()
    device.wait_idle()
    assert all(not len(each._reached) for each in semaphores)


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
