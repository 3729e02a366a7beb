"""Recording: begin, end, execute again and again, names and categories (C1)."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import (
    ArgumentTypeError,
    CancelledError,
    ClosedError,
    HalError,
    InvalidArgumentError,
)
from hal_conformance.suite.support import LIMIT, assert_fails, broken, pattern


def test_a_recording_says_what_it_is_c1(device):
    """C1: its device, its slots, its length, and that it is one-shot."""
    with device.record(slots=2, one_shot=True, categories="dispatch") as recording:
        assert recording.lowering is None
    assert (recording.device, len(recording.slots)) == (device, 2)
    assert recording.one_shot
    assert len(recording) == 0
    assert "0 commands, 2 slots, ended" in repr(recording)
    assert not device.record().one_shot


@pytest.mark.parametrize("way", ["with", "end"])
def test_begin_and_end_c1(device, queue, way):
    """C1: a recording ends with its ``with`` block, or with `end`, and can be executed then."""
    buffer = device.upload(np.zeros(64, np.uint8))
    recording = device.record()
    if way == "with":
        with recording:
            recording.fill(buffer, 5)
    else:
        recording.fill(buffer, 5)
        recording.end()
    queue.execute(recording).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 5).all()


def test_recording_runs_nothing_c1(device):
    """C1: what is recorded and never executed has no effect."""
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record() as recording:
        recording.fill(buffer, 5)
    device.wait_idle(LIMIT)
    assert not buffer.numpy(timeout=LIMIT).any()
    del recording


def test_an_open_recording_is_not_executed_c1(device, queue):
    """C1: execute before `end` raises, and the recording can go on."""
    buffer = device.upload(np.zeros(64, np.uint8))
    recording = device.record()
    recording.fill(buffer, 5, size=32)
    with pytest.raises(InvalidArgumentError):
        queue.execute(recording)
    recording.fill(buffer, 6, offset=32)
    recording.end()
    queue.execute(recording).wait(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [5] * 32 + [6] * 32


def test_an_ended_recording_is_immutable_c1(device, queue):
    """C1: after `end` every recording method raises, and executions are as before."""
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record() as recording:
        recording.fill(buffer, 5)
        event = recording.create_event()
    uses = [
        lambda: recording.fill(buffer, 6),
        lambda: recording.update(buffer, b"6"),
        lambda: recording.copy(buffer, buffer, target_offset=32, size=32),
        recording.barrier,
        recording.create_event,
        lambda: recording.signal_event(event),
        lambda: recording.wait_events(event),
        lambda: recording.reset_event(event),
        lambda: recording.group("late"),
        recording.end,
        recording.__enter__,
    ]
    for use in uses:
        with pytest.raises(InvalidArgumentError):
            use()
    assert len(recording) == 1
    queue.execute(recording).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 5).all()


def test_an_error_in_the_block_spoils_the_recording_c1(device, queue):
    """C1: a recording that was left by an error is half a thing: it is never executed."""
    buffer = device.upload(np.zeros(64, np.uint8))
    recording = device.record()

    def fail():
        with recording:
            recording.fill(buffer, 5)
            raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        fail()
    with pytest.raises(InvalidArgumentError):
        queue.execute(recording)
    for use in (lambda: recording.fill(buffer, 6), recording.end):
        with pytest.raises(ClosedError):
            use()
    assert not buffer.numpy(timeout=LIMIT).any()


def test_a_reusable_recording_runs_each_time_c1(device, recorder):
    """C1: every execution does it all again, however many are in flight."""
    buffers = [device.upload(pattern(256, seed)) for seed in range(5)]

    def commands(recording, *operands):
        # Everything moves on by one: only the right number of runs gives the right order.
        for source, target in zip(operands[-2::-1], operands[:0:-1], strict=True):
            recording.copy(source, target)
            recording.barrier()

    recording = recorder.record(commands, *buffers)
    for _ in range(3):
        recorder.execute(recording, *buffers)
    recorder.execute(recording, *buffers).wait(LIMIT)
    assert all(np.array_equal(each.numpy(timeout=LIMIT), pattern(256)) for each in buffers)
    recorder.run(lambda each, *operands: each.update(operands[0], pattern(256, 9)), *buffers)
    recorder.execute(recording, *buffers)
    recorder.execute(recording, *buffers).wait(LIMIT)
    seeds = [9, 9, 9, 0, 0]
    for buffer, seed in zip(buffers, seeds, strict=True):
        assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(256, seed))


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_many_executions_in_flight_c1(device, make_queue, gate, lowering, *, ordered):
    """C1: sixteen executions of one recording on four queues, at once, each on its own memory."""
    queues = [make_queue(ordered=ordered) for _ in range(4)]
    with device.record(slots=2, command_buffer=lowering) as recording:
        source, target = recording.slots
        recording.copy(source, target, size=4096)
        recording.barrier()
        recording.fill(source, 3, size=4096)
    pairs = [(device.upload(pattern(4096, n)), device.allocate(4096)) for n in range(16)]
    ran = [
        queues[n % 4].execute(recording, bindings=pair, wait=gate.at(1))
        for n, pair in enumerate(pairs)
    ]
    gate.signal(1)
    hal.wait_all(ran, LIMIT)
    for number, (source_buffer, target_buffer) in enumerate(pairs):
        assert np.array_equal(target_buffer.numpy(timeout=LIMIT), pattern(4096, number))
        assert (source_buffer.numpy(timeout=LIMIT) == 3).all()


def test_executions_are_operations_of_their_queue_c1(device, queue, lowering):
    """C1, Q2: an ordered queue runs an execution between what was submitted before and after."""
    buffer, seen = device.upload(np.zeros(1 << 16, np.uint8)), np.zeros(1 << 16, np.uint8)
    with device.record(command_buffer=lowering) as recording:
        recording.copy(buffer, buffer, source_offset=0, target_offset=1 << 15, size=1 << 15)
        recording.barrier()
        recording.fill(buffer, 9, size=16)
    queue.fill(buffer, 1, size=1 << 15)
    ran = queue.execute(recording)
    assert ran.kind == "execute"
    queue.fill(buffer, 2, offset=16, size=16)
    queue.read(buffer, seen).wait(LIMIT)
    expected = [9] * 16 + [2] * 16
    assert seen[:32].tolist() == expected
    assert (seen[32:] == 1).all()


def test_a_failed_wait_runs_nothing_c1(device, queue, make_semaphore):
    """C1, S5: an execution whose wait fails does not run, fails its signal, and can be repeated."""
    buffer, wait, signal = device.upload(np.zeros(64, np.uint8)), make_semaphore(), make_semaphore()
    with device.record() as recording:
        recording.fill(buffer, 5)
    ran = queue.execute(recording, wait=wait.at(1), signal=signal.at(1))
    error = broken()
    wait.fail(error)
    assert_fails(ran, error)
    assert_fails(signal.at(1), error)
    assert not buffer.numpy(timeout=LIMIT).any()
    queue.execute(recording).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 5).all()


def test_a_closed_queue_cancels_executions_c1(device, make_queue, gate):
    """C1, Q6: an execution that is not issued is cancelled with its queue; others are not."""
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record() as recording:
        recording.fill(buffer, 5)
    first, second = make_queue(), make_queue()
    cancelled = first.execute(recording, wait=gate.at(1))
    first.close(LIMIT)
    with pytest.raises(CancelledError):
        cancelled.wait(LIMIT)
    assert not buffer.numpy(timeout=LIMIT).any()
    second.execute(recording).wait(LIMIT)
    assert (buffer.numpy(timeout=LIMIT) == 5).all()


def test_what_is_recorded_is_kept_c1(device, queue, lowering):
    """C1: closed and dropped buffers stay usable for the recording, and go with it."""
    before = device.statistics().allocations
    source, target = device.upload(pattern(256)), device.upload(np.zeros(256, np.uint8))
    with device.record(command_buffer=lowering) as recording:
        recording.copy(source, target)
    source.close()
    del source
    gc.collect()
    others = [device.upload(np.full(256, 0xEE, np.uint8)) for _ in range(4)]
    for _ in range(2):
        queue.execute(recording).wait(LIMIT)
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(256))
        queue.fill(target, 0).wait(LIMIT)
    del recording, others
    target.close()
    gc.collect()
    assert device.statistics().allocations == before


def test_a_pending_recording_is_kept_c1(device, queue, make_latch, lowering):
    """C1, Q5: a recording that is dropped while its execution is pending still runs."""
    latch = make_latch(queue)
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record(slots=1, command_buffer=lowering) as recording:
        recording.update(recording.slots[0], pattern(64))
    ran = queue.execute(recording, bindings=[buffer])
    del recording
    gc.collect()
    latch.open()
    ran.wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(64))


def test_a_hundred_recordings_leave_nothing_c1(device, queue, lowering):
    """C1: recordings that were executed and dropped free what they used."""
    before = device.statistics().allocations
    last = None
    for _ in range(100):
        buffer = device.allocate(256)
        with device.record(command_buffer=lowering) as recording:
            recording.fill(buffer, 1)
            recording.update(buffer, bytes(16))
        queue.execute(recording).wait(LIMIT)
        last = weakref.ref(buffer)
    del buffer, recording
    gc.collect()
    assert last is not None
    assert last() is None
    assert device.statistics().allocations == before


@pytest.mark.parametrize("category", ["transfer", "dispatch"])
def test_categories_narrow_a_recording_c1(device, queue, category):
    """C1: a recording of transfers takes transfers, one of dispatches does not."""
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record(categories=category) as recording:
        recording.barrier()
        for add in (
            lambda: recording.fill(buffer, 5),
            lambda: recording.update(buffer, b"5"),
            lambda: recording.copy(buffer, buffer, target_offset=32, size=32),
        ):
            if category == "transfer":
                add()
            else:
                with pytest.raises(InvalidArgumentError, match="dispatch"):
                    add()
    assert len(recording) == (3 if category == "transfer" else 0)
    queue.execute(recording).wait(LIMIT)


BAD_SETTINGS: dict[str, tuple[type[HalError], dict[str, Any]]] = {
    "an unknown category": (InvalidArgumentError, {"categories": "copy"}),
    "unknown hazards": (InvalidArgumentError, {"hazards": "none"}),
    "an unknown way to run": (InvalidArgumentError, {"command_buffer": "fast"}),
    "hazards that are no text": (InvalidArgumentError, {"hazards": True}),
    "slots as text": (ArgumentTypeError, {"slots": "two"}),
    "slots as a bool": (ArgumentTypeError, {"slots": True}),
    "a number of slots below zero": (InvalidArgumentError, {"slots": -1}),
    "a slot of no type": (ArgumentTypeError, {"slots": ["nonsense"]}),
    "a slot of a size below zero": (InvalidArgumentError, {"slots": [("u1", -4)]}),
    "a slot of a size as text": (ArgumentTypeError, {"slots": [("u1", "4")]}),
    "a slot of no device's": (ArgumentTypeError, {"slots": [("i4", 4, 4)]}),
    "a number with a size": (ArgumentTypeError, {"slots": [("scalar", 8)]}),
}


@pytest.mark.parametrize("what", BAD_SETTINGS)
def test_bad_settings_are_refused_c1(device, what):
    """C1: a setting that there is not raises at once."""
    kind, settings = BAD_SETTINGS[what]
    with pytest.raises(kind):
        device.record(**settings)


def test_bad_executions_are_refused_c1(device, second_device, queue):
    """C1: what is no recording, or another device's, raises and submits nothing."""
    with device.record() as recording:
        pass
    with second_device.record() as foreign:
        pass
    for wrong in (None, "recording", [recording], device):
        with pytest.raises(ArgumentTypeError):
            queue.execute(wrong)
    with pytest.raises(InvalidArgumentError):
        queue.execute(foreign)
    queue.wait_idle(LIMIT)


def test_names_and_groups_are_in_errors_c1(device):
    """C1: a refused command's error says its name and the groups around it."""
    buffer = device.allocate(64)
    with device.record() as recording:
        with recording.group("frame"), recording.group("blur"):
            with pytest.raises(InvalidArgumentError, match="frame/blur/clear"):
                recording.fill(buffer, 1, size=65, name="clear")
            with pytest.raises(InvalidArgumentError, match="frame/blur"):
                recording.fill(buffer, 1, size=65)
        with pytest.raises(InvalidArgumentError) as caught:
            recording.fill(buffer, 1, size=65)
        assert "frame" not in str(caught.value)
    assert len(recording) == 0


def test_groups_order_nothing_and_nest_c1(device, recorder):
    """C1: commands in groups run as if there were none."""
    buffer = device.upload(np.zeros(64, np.uint8))

    def commands(recording, target):
        with recording.group("outer"):
            recording.fill(target, 1, size=16, name="first")
            with recording.group("inner"):
                recording.fill(target, 2, offset=16, size=16)
            with recording.group("inner"):
                recording.fill(target, 3, offset=32, size=16)
        recording.fill(target, 4, offset=48)

    recorder.run(commands, buffer)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), np.repeat(np.arange(1, 5), 16))


def test_groups_are_balanced_c1(device):
    """C1: an open group keeps a recording from ending; groups end in the reverse of their order."""
    recording = device.record()
    with recording.group("outer"):
        inner = recording.group("inner")
        inner.__enter__()
        with pytest.raises(InvalidArgumentError, match="'outer/inner' is still open"):
            recording.end()
        with pytest.raises(InvalidArgumentError, match="'inner' is open already"):
            inner.__enter__()
        inner.__exit__(None, None, None)
        with pytest.raises(InvalidArgumentError, match="'inner' ends while 'outer' is open"):
            inner.__exit__(None, None, None)
    with pytest.raises(ArgumentTypeError):
        recording.group(7)
    with pytest.raises(ZeroDivisionError), recording.group("left by an error"):
        raise ZeroDivisionError
    recording.end()
    with pytest.raises(InvalidArgumentError, match="ended"):
        recording.group("late")


def test_two_recordings_at_once_c1(device, queue):
    """C1: recordings that are made side by side share nothing."""
    first, second = (device.upload(np.zeros(64, np.uint8)) for _ in range(2))
    one, two = device.record(), device.record()
    one.fill(first, 1, size=32)
    two.fill(second, 2, size=32)
    one.fill(first, 3, offset=32)
    two.fill(second, 4, offset=32)
    two.end()
    one.end()
    hal.wait_all([queue.execute(one), queue.execute(two)], LIMIT)
    assert first.numpy(timeout=LIMIT).tolist() == [1] * 32 + [3] * 32
    assert second.numpy(timeout=LIMIT).tolist() == [2] * 32 + [4] * 32
