"""Host calls that fail (S5), at close (Q6), and of lost devices."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import time
import traceback
import weakref

import pytest
from call_harness import returning, text_of, until_deferred
from core_harness import LIMIT, collect_in_threads, wait_until

import hal
from hal._engine import backlog, progress
from hal.errors import (
    CancelledError,
    DeviceLostError,
    InvalidArgumentError,
    OperationError,
    SemaphoreFailedError,
)


def test_a_reached_value_of_a_failed_semaphore_fails_the_call_s4(device):
    """S4: failure is retroactive, even if the value was reached before the other waits."""
    first, second = hal.create_semaphore(), hal.create_semaphore()
    call = device.queue.call(returning([first.at(1), second.at(1)]))
    until_deferred(call)
    first.signal(1)
    first.fail(OperationError("late"))
    second.signal(1)
    with pytest.raises(OperationError, match="late"):
        call.wait(LIMIT)


def test_a_call_deferred_to_itself_fails_s1(device):
    """S1: such a call would wait for its own end or its own signal."""
    box, ready = [], threading.Event()

    def work():
        assert ready.wait(LIMIT)
        return box[0]

    box.append(device.queue.call(work))
    ready.set()
    with pytest.raises(InvalidArgumentError, match="for itself"):
        box[0].wait(LIMIT)
    own = hal.create_semaphore()
    call = device.queue.call(returning(own.at(2)), signal=own.at(2))
    with pytest.raises(InvalidArgumentError, match="for itself"):
        call.wait(LIMIT)
    with pytest.raises(InvalidArgumentError, match="for itself"):
        own.wait(2, LIMIT)
    own = hal.create_semaphore()
    call = device.queue.call(returning(own.at(1)), signal=own.at(2))
    until_deferred(call)
    with pytest.raises(InvalidArgumentError, match="reserved"):
        own.signal(1)  # S1: 2 was reserved as the call was issued
    device.close(0.05)
    with pytest.raises(DeviceLostError):
        call.wait(LIMIT)


def test_a_call_deferred_to_its_successor_says_so_s9(device):
    """The call never ends: the text names both operations, and close cancels the successor."""
    box, ready = [], threading.Event()

    def work():
        assert ready.wait(LIMIT)
        return box[0]

    call = device.queue.call(work)
    box.append(device.queue.barrier())
    ready.set()
    until_deferred(call)
    for each in (call, box[0]):
        text = text_of(each)
        assert f"call on {device.queue.name}" in text
        assert f"barrier on {device.queue.name}" in text
        assert "behind" in text
        assert "wait for each other" in text
        assert len(text) < 1000
    assert device.close(LIMIT) == ()
    for each in (call, box[0]):
        with pytest.raises(CancelledError):
            each.wait(LIMIT)


def test_text_names_what_a_deferral_waits_for_s9(device, second_device):
    """S9: the chain leads on from the returned operation to the one that promised it."""
    gate = hal.create_semaphore(name="gate")
    there = second_device.queue.barrier(wait=gate.at(3))
    call = device.queue.call(returning(there))
    until_deferred(call)
    text = text_of(call)
    positions = [
        text.index(part)
        for part in ("call on", "has returned", "barrier on", "is not issued", "gate@3", "nobody")
    ]
    assert positions == sorted(positions)
    gate.signal(3)
    call.wait(LIMIT)


# Closing, and lost devices


@pytest.mark.parametrize("what", ["device", "queue"])
def test_close_waits_for_a_deferred_end_q6(device, what):
    """Q6: it was issued, so close waits for it."""
    gate, inside = hal.create_semaphore(), threading.Event()
    call = device.queue.call(returning(gate.at(1)))
    pending = device.queue.barrier()
    until_deferred(call)

    def release():
        with pytest.raises(CancelledError):
            pending.wait(LIMIT)  # close has begun
        inside.set()
        gate.signal(1)

    target = device if what == "device" else device.queue
    told, _ = collect_in_threads([lambda: target.close(LIMIT), release])
    assert told == ()
    assert inside.is_set()
    assert call.state == "done"


def test_close_abandons_a_deferral_that_never_ends_q6(open_probe):
    """Q6: it is named, fails with the lost device, and leaves no registration behind."""
    device, _ = open_probe()
    gate, done = hal.create_semaphore(), hal.create_semaphore()
    call = device.queue.call(returning([gate.at(1), gate.at(2)]), signal=done.at(1))
    until_deferred(call)
    start = time.monotonic()
    told = device.close(0.1)
    assert time.monotonic() - start >= 0.1
    assert [f"call on {device.queue.name}" in line for line in told] == [True]
    for waitable in (call, done.at(1)):
        with pytest.raises(DeviceLostError, match="call on"):
            hal.wait_all([waitable], LIMIT)
    assert not gate._reached, "somebody is still registered"
    gate.signal(2)
    assert call.state == "failed"
    assert device.close(LIMIT) == ()


def test_close_from_several_threads_while_deferrals_end_q6(open_probe):
    """Whichever thread wins, every call ends once and close returns."""
    for _ in range(10):
        device, _probe = open_probe()
        queues = [device.create_queue(ordered=False) for _ in range(2)]
        gates = [hal.create_semaphore() for _ in range(30)]
        calls = [
            queues[index % 2].call(returning([gate.at(1)])) for index, gate in enumerate(gates)
        ]
        told = collect_in_threads(
            [
                lambda device=device: device.close(LIMIT),
                lambda gates=gates: [gate.signal(1) for gate in gates] and (),
                lambda device=device: device.close(LIMIT),
            ]
        )
        assert told == [(), (), ()]
        for call in calls:
            assert call.state in {"done", "cancelled"}


@pytest.mark.parametrize("stage", ["deferred", "running"])
def test_a_lost_device_fails_a_deferred_call_s5(open_probe, stage):
    """S5: a deferred call fails at once; a running function's result is dropped."""
    device, probe = open_probe()
    other, _ = open_probe()
    buffer = device.allocate(16)
    gate, go, inside = hal.create_semaphore(), threading.Event(), threading.Event()

    def work():
        inside.set()
        if stage == "running":
            assert go.wait(LIMIT)
        return gate.at(1)

    call = device.queue.call(work)
    elsewhere = other.queue.call(returning(gate.at(1)))
    assert inside.wait(LIMIT)
    until_deferred(elsewhere, *([call] if stage == "deferred" else []))
    probe.fail_call(1, DeviceLostError("gone"), ("fill",))
    device.queues.upload.fill(buffer, 1)
    assert device.lost
    assert call.state == "failed"
    with pytest.raises(DeviceLostError, match="gone"):
        call.wait(LIMIT)
    go.set()
    assert device.close(LIMIT) == (), "somebody still waits for the gate"
    assert elsewhere.state == "issued"
    gate.signal(1)
    elsewhere.wait(LIMIT)
    assert call.state == "failed"


def test_a_call_of_a_lost_device_does_not_begin_s5(open_probe, monkeypatch):
    """S5: if the operation fails before its function begins, the function is not called."""
    device, probe = open_probe()
    buffer = device.allocate(16)

    class Held:
        """A pool whose threads are slow to begin."""

        tasks: list = []  # noqa: RUF012 - one pool only

        def start(self):
            pass

        def run(self, function, *arguments):
            self.tasks.append((function, arguments))

    ran = []
    with monkeypatch.context() as patch:
        patch.setattr(progress, "_pool", Held())
        call = device.queue.call(ran.append, 1)
        assert call.state == "issued"
        probe.fail_call(1, DeviceLostError("gone"), ("fill",))
        device.queues.upload.fill(buffer, 1)
    for function, arguments in Held.tasks:
        function(*arguments)
    with pytest.raises(DeviceLostError, match="gone"):
        call.wait(LIMIT)
    assert ran == []
    assert device.close(LIMIT) == ()


def test_a_deferral_at_interpreter_exit_q6(run_script):
    """Q6: the exit hook closes the device; a deferral that somebody ends lets it go at once."""
    result = run_script("""
        import threading, hal
        device = hal.create_device("cpu")
        gate = hal.create_semaphore()
        call = device.queue.call(lambda: gate.at(1))
        ended = hal.create_semaphore()
        behind = device.queue.barrier(signal=ended.at(1))
        ended.on_reached(1, lambda error: (print(type(error).__name__), gate.signal(1)))
    """)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == "CancelledError"


# What is told of a function that has raised


class Memory(list):
    """An object that a function uses."""


def divide(memory):
    memory.append(len(memory) // 0)


@pytest.mark.parametrize("waits_for", ["the call", "its signal", "what waits for it"])
def test_the_error_of_a_call_names_its_function_and_where_it_was_raised_s4(device, waits_for):
    """S4: it is text, so that no frame keeps the function's objects; it names no semaphore."""
    done = hal.create_semaphore()
    memory = Memory()
    reference = weakref.ref(memory)
    call = device.queue.call(divide, memory, signal=done.at(1))
    del memory
    waitable = {
        "the call": call,
        "its signal": done.at(1),
        "what waits for it": device.queues.upload.barrier(wait=call),
    }[waits_for]
    for _ in range(2):
        with pytest.raises(SemaphoreFailedError) as caught:
            hal.wait_all(waitable, LIMIT)
        error = caught.value
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert "the function divide of call on" in str(error)
        assert "semaphore" not in str(error)
        (note,) = error.__notes__
        assert "in divide" in note
        assert "len(memory) // 0" in note
        assert "hal_core" not in note
    # The thread that has failed the signal drops them after that.
    wait_until(lambda: gc.collect() >= 0 and reference() is None)


def test_a_function_that_does_not_tell_its_name_fails_its_call_alone_s4(device):
    """S4: its call never ended, and the queue stood behind it for good."""

    class Nameless:
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __call__(self):
            raise KeyError("why")

    with pytest.raises(SemaphoreFailedError, match=r"the function <.*Nameless object.*KeyError"):
        device.queue.call(Nameless()).wait(LIMIT)
    device.queue.barrier().wait(LIMIT)


def test_an_error_of_ours_that_a_call_raises_tells_its_place_once_s4(device):
    original = OperationError("mine")

    def fail():
        raise original

    for _ in range(3):
        call = device.queue.call(fail)
        with pytest.raises(OperationError, match=r"^mine$") as caught:
            call.wait(LIMIT)
        assert caught.value.__cause__ is original
    (note,) = original.__notes__
    assert "in fail" in note


def refuse_a_file():
    hal.Program.open("/missing")


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda: os.stat("/missing"), ("errno", "strerror", "filename")),
        (lambda: os.rename("/missing", "/other"), ("filename", "filename2")),
        (refuse_a_file, ("errno", "filename")),
        (lambda: importlib.import_module("no_such_module"), ("name",)),
        (b"\xff".decode, ("encoding", "start", "end", "reason")),
    ],
)
def test_an_error_keeps_what_its_class_has_for_it_s4(function, names):
    """S4: also what Python keeps apart from an error's arguments, such as the name of a file."""
    semaphore = hal.create_semaphore()
    try:
        function()
    except (OSError, ImportError, UnicodeError) as error:
        semaphore.fail(error)
        told = str(error), *[getattr(error, name) for name in names]
    with pytest.raises(hal.HalError) as caught:
        semaphore.query()
    kept = caught.value.__cause__
    for made in [kept] + [caught.value] * isinstance(kept, hal.HalError):
        assert (str(made), *[getattr(made, name) for name in names]) == told


@pytest.mark.parametrize("make", [OperationError, KeyError, OSError, ExceptionGroup])
def test_an_error_that_is_being_handled_keeps_its_traceback_s4(make):
    """S4: hal keeps a copy with its linked exceptions; the members of a group lose tracebacks."""
    semaphore = hal.create_semaphore()
    is_group = make is ExceptionGroup

    def deep():
        raise make("why", [ValueError(2)]) if is_group else make("why")

    try:
        try:
            divide([])
        except ZeroDivisionError as inner:
            try:
                deep()
            except make as outer:
                outer.more = "told"
                raise outer from inner
    except make as handled:
        semaphore.fail(handled)
        text = traceback.format_exc()
        error = handled
    assert ("in deep" in text, "in divide" in text) == (not is_group, not is_group)
    with pytest.raises(hal.HalError) as caught:
        semaphore.query()
    kept = caught.value.__cause__
    assert (kept is error) == is_group
    assert type(kept) is make
    assert (kept.args, kept.more, str(kept)) == (error.args, "told", str(error))
    assert isinstance(kept.__cause__, ZeroDivisionError)
    assert kept.__traceback__ is kept.__cause__.__traceback__ is None


def test_a_call_that_breaks_off_as_it_defers_its_end_is_completed_o3(device, monkeypatch):
    """O3: it ends behind both waits, though there was no memory for the second registration."""
    told, resolve = [], backlog._resolve
    missing = [None, MemoryError()]

    def short_of_memory(*arguments):
        error = missing.pop(0) if missing else None
        if error is not None:
            raise error
        return resolve(*arguments)

    monkeypatch.setattr(sys, "unraisablehook", told.append)
    first, second = hal.create_semaphore(), hal.create_semaphore()
    monkeypatch.setattr(backlog, "_resolve", short_of_memory)
    call = device.queue.call(returning([first.at(1), second.at(1)]))
    until_deferred(call)
    first.signal(1)
    assert call.state == "issued"
    second.signal(1)
    call.wait(LIMIT)
    assert [type(each.exc_value) for each in told] == [MemoryError]
