"""Cases of the shortcuts for waits and for signals of the host, on any device."""

import sys
import threading
import time
from unittest import mock

import numpy as np
import pytest
from core_harness import Running
from shortcut_harness import Calls, OnlyC, main, warm

import hal
from hal._base import sync
from hal._engine import submission as submissions
from hal._engine import waiting
from hal.errors import DeadlineExceededError
from hal_conformance.calls import Holds


def case_waits_for_what_has_ended_take_no_python_s6(device):
    buffer, done = warm(device), hal.create_semaphore()
    submission = device.queue.fill(buffer, 1, signal=(done.at(5),))
    submission.wait()
    with OnlyC():
        submission.wait()
        submission.wait(timeout=1)
        done.wait(5)
        done.wait(3, 0.5)


def case_awaits_of_what_has_ended_take_no_step_of_python_s8(device):
    buffer, done = warm(device), hal.create_semaphore()
    for value in (1, 2):
        submission = device.queue.fill(buffer, 1, signal=(done.at(value),))
        device._native.bind()
        device._native.synchronize_stream(
            device.queue._stream
        )  # it has ended, and nobody has looked
        awaited = submission if value == 1 else done.reached(value)
        with Calls() as calls:
            assert next(iter(awaited.__await__()), None) is None
        assert "act" not in calls.names
        assert submission._retired


def case_a_wait_for_work_that_goes_on_counts_what_it_has_asked_s6(device):
    """Its naps belong to its time-out, and it sleeps for the rest alone."""
    buffer = warm(device)
    table = device._native.call_table()
    naps = bool(table and table.query_stream)
    with Holds(device._native) as holds:
        holds.hold(device.queue._stream)
        submission = device.queue.fill(buffer, 1)
        for timeout, least in ((0.003, 100e-6), (0.02, 0.01 if naps else 100e-6)):
            with mock.patch.object(submissions.waiting, "wait_all") as wait_all:
                wait_all.side_effect = DeadlineExceededError("over")
                with pytest.raises(DeadlineExceededError):
                    submission.wait(timeout)
            (_, given), options = wait_all.call_args
            assert given == timeout
            assert options["asked"] >= least
        with pytest.raises(DeadlineExceededError, match=r"waited 0\.02 s"):
            submission.wait(0.02)
        waiter = Running(submission.wait)
    waiter.result()
    assert submission.done


def case_two_threads_answer_each_other_s2(device):
    """They watch, or sleep where the machine has no processor for both."""
    there, back = hal.create_semaphore(), hal.create_semaphore()
    rounds = 300

    def answer():
        for value in range(1, rounds + 1):
            there.wait(value)
            back.signal(value)

    answering = Running(answer)
    for value in range(1, rounds + 1):
        there.signal(value)
        back.wait(value, 30)
    answering.result()
    assert (there.query(), back.query()) == (rounds, rounds)


def case_one_value_ends_a_wait_for_thousands_s6(device):
    """It is signalled on the host, and by an operation, for more waits than C tells by itself."""
    buffer, many = warm(device), 5000
    for signal_all in (
        lambda semaphore: semaphore.signal(many),
        lambda semaphore: device.queue.fill(buffer, 1, signal=(semaphore.at(many),)),
    ):
        semaphore, begun = hal.create_semaphore(), threading.Event()
        entries = [semaphore.at(value) for value in range(1, many + 1)]
        with mock.patch.object(sync.Doorbell, "clear", begun.set):  # it has registered for all
            waiter = Running(hal.wait_all, entries, 60)
            assert begun.wait(30)
        signal_all(semaphore)
        waiter.result()
        assert semaphore.query() == many


def case_a_value_of_another_process_takes_no_step_of_python_s2(device):
    """Signalled on the one side, taken over on the other: by C, as any signal."""
    here = hal.create_semaphore(shareable=True)
    there = device.open(here.share())  # as another process has it
    there._link.region.set_awake(1)  # the thread that watches takes nothing over
    with Calls() as calls:
        for value in range(1, 9):
            here.signal(value)
            assert there.query() == value
    assert not {"act", "Semaphore.signal", "signal_again"} & calls.names.keys()
    used = device.allocate(8)
    blocked = device.queue.fill(used, 1, wait=here.at(20), signal=there.at(30))
    here.signal(20)
    blocked.wait(30)
    here.wait(30, 30)
    there.signal(31)
    assert here.query() == 31


def case_a_wait_ends_with_a_failure_and_with_its_time_s6(device):
    for timeout in (0, 20e-6, 1e-3):
        with pytest.raises(hal.errors.DeadlineExceededError, match="never"):
            hal.create_semaphore(name="never").wait(1, timeout)
    for _ in range(50):  # some while it watches, some while it sleeps
        semaphore, begun = hal.create_semaphore(), threading.Event()

        def fail(semaphore=semaphore, begun=begun):
            begun.wait(30)
            semaphore.fail(ValueError("on purpose"))

        failing = Running(fail)
        begun.set()
        with pytest.raises(hal.errors.SemaphoreFailedError, match="on purpose"):
            semaphore.wait(1, 30)
        failing.result()


def case_who_has_watched_sleeps_at_once_s6(device):
    """A wait for one semaphore does not spin in Python after it has watched; one for two does."""
    never = [hal.create_semaphore() for _ in range(2)]
    with mock.patch.object(sync.Doorbell, "spin") as spin:
        for expected, wait in (
            (0, lambda: never[0].wait(1, 1e-3)),
            (1, lambda: hal.wait_all([each.at(1) for each in never], 1e-3)),
        ):
            spin.reset_mock()
            with pytest.raises(hal.errors.DeadlineExceededError):
                wait()
            assert spin.call_count == expected


def until_asleep(semaphore):
    """Return once a thread is registered with a semaphore, to be rung for."""
    deadline = time.monotonic() + 30
    while not any(
        isinstance(each, waiting.HostWaiter) and each._is_asleep
        for waiters in (semaphore._recorded, semaphore._reached)
        for bucket in (list(waiters._buckets.values()) if waiters else ())
        for each in list(bucket)
    ):
        assert time.monotonic() < deadline
        time.sleep(1e-3)


def case_a_thread_that_is_woken_takes_no_step_of_python_s6(device):
    """It waits for one value, for several, and for those of pending work."""
    one, other, done = (hal.create_semaphore() for _ in range(3))
    device.queue.fill(warm(device), 1, wait=(one.at(1),), signal=(done.at(1),))
    waits = (
        lambda: one.wait(1),
        lambda: hal.wait_all([other.at(1), one.at(1), other.at(2)], 60),
        lambda: hal.wait_all([done.at(1), other.at(2)], 60),
    )
    names = set()

    def note(frame, event, _):
        if event == "call" and frame.f_globals["__name__"].startswith("hal."):
            names.add((threading.current_thread().name, frame.f_code.co_qualname))

    threading.setprofile(note)
    threads = [Running(each) for each in waits]
    threading.setprofile(None)
    for semaphore in (one, other, done):
        until_asleep(semaphore)
    other.signal(1)
    names.clear()
    one.signal(1)
    other.signal(2)
    for thread in threads:
        thread.result()
    steps = {"act", "begin", "drain", "HostWaiter._turn", "HostWaiter.leave"}
    found = {each for each in names if not each[0].startswith("hal-") and each[1] in steps}
    assert not found, found


def case_a_thread_leaves_no_registration_behind_s6(device):
    """When its time is over, and when one of many semaphores fails."""
    one, other = hal.create_semaphore(), hal.create_semaphore()
    device.queue.fill(warm(device), 1, wait=(other.at(5),))
    for timepoints in ([one.at(1)], [one.at(1), other.at(1), one.at(1), one.at(2)]):
        with pytest.raises(DeadlineExceededError, match=r"waited 0\.01 s"):
            hal.wait_all(timepoints, 0.01)
        assert len(one._recorded or ()) + len(one._reached or ()) == 0
        assert len(other._recorded) == 1
        assert not other._reached
    waiter = Running(hal.wait_all, [one.at(1), other.at(1)])
    until_asleep(one)
    other.fail(ValueError("on purpose"))
    with pytest.raises(hal.errors.SemaphoreFailedError, match="on purpose"):
        waiter.result()
    assert not one._reached
    one.signal(1)


def case_a_signal_issues_what_waits_for_it_s2(device):
    """In order, on ordered and unordered queues, in Python only what is unusual."""
    buffer, unordered = warm(device), device.create_queue(ordered=False)
    beside = device.allocate(64, dtype=np.float64)
    go, done, other = (hal.create_semaphore() for _ in range(3))
    first = device.queue.fill(buffer, 1, wait=(go.at(1),), signal=(done.at(1),))
    second = device.queue.fill(buffer, 2, wait=(go.at(1), first), signal=(done.at(2),))
    third = unordered.fill(buffer, 3, offset=8, wait=(go.at(1),), signal=(other.at(1),))
    wide = device.queue.fill(beside, 1.5, wait=(go.at(2),))
    assert [each.state for each in (first, second, third, wide)] == ["pending"] * 4
    go.signal(1)
    hal.wait_all((second, third), 30)
    assert first.state == "done"
    assert wide.state == "pending"
    go.signal(2)
    wide.wait(30)
    assert beside.numpy().tolist() == [1.5] * 8
    assert (done.query(), other.query(), go.query()) == (2, 1, 2)
    for refused in (2, 1, 0):
        with pytest.raises(hal.errors.InvalidArgumentError):
            go.signal(refused)
    device.queue.fill(buffer, 5, wait=(go.at(3),), signal=(done.at(3),))
    with OnlyC():
        go.signal(3)
        go.signal(4)
    done.wait(3, 30)


def case_a_signal_releases_any_number_q1(device):
    """It issues 64 itself, the progress thread the rest, beyond what a stream takes at once."""
    buffer, go = warm(device), hal.create_semaphore()
    queues = [device.queue, device.create_queue(), device.create_queue(ordered=False)]
    done = [hal.create_semaphore() for _ in queues]
    count = 1500
    for number in range(1, count + 1):
        for queue, semaphore in zip(queues, done, strict=True):
            waits = [go.at(1)] if queue.ordered else [go.at(1), semaphore.at(number - 1)]
            queue.fill(buffer, 7, wait=waits, signal=(semaphore.at(number),))
    go.signal(1)
    for semaphore in done:
        semaphore.wait(count, 60)
    device.wait_idle(60)
    assert all(not queue._backlog and not queue._pending for queue in queues)
    assert not len(go._recorded or ())


if __name__ == "__main__":
    main(*sys.argv[1:], cases=globals())
