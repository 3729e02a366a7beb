"""Recordings that several queues run, of one device or of two (C1, C2)."""

from __future__ import annotations

from collections.abc import Callable

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
from hal_conformance.suite.support import LIMIT, broken, pattern

SIZE = 4096
peers = pytest.mark.feature("peer_access")


def test_each_queue_of_a_device_runs_its_part_c2(device, queue, lowering):
    """C2: what one queue writes another one reads, in the order of the recording."""
    x, y, z = (device.upload(np.zeros(SIZE, np.uint8)) for _ in "xyz")
    with device.record(hazards="auto", command_buffer=lowering) as commands:
        with commands.on("upload"):
            commands.update(x, pattern(SIZE, 1))
        commands.copy(x, y)
        with commands.on("download"):
            commands.copy(y, z)
            commands.fill(y, 7)
        with commands.on(device):
            commands.copy(y, x, size=8)
    assert commands.lowering == "parts"
    for _ in range(3):
        queue.execute(commands).wait(LIMIT)
        assert np.array_equal(z.numpy(timeout=LIMIT), pattern(SIZE, 1))
        found = x.numpy(timeout=LIMIT)
        assert (found[:8] == 7).all()
        assert np.array_equal(found[8:], pattern(SIZE, 1)[8:])


@peers
def test_two_devices_take_turns_c2(device, second_device, queue, lowering):
    """C2: barriers and events order commands of different devices, too."""
    here, back = device.allocate(SIZE), device.upload(np.zeros(SIZE, np.uint8))
    there = second_device.allocate(SIZE)
    with device.record(command_buffer=lowering) as commands:
        copied = commands.create_event()
        commands.update(here, pattern(SIZE, 3))
        commands.barrier()
        with commands.on(second_device):
            commands.copy(here, there)
        commands.signal_event(copied)
        with commands.on(second_device.queues.upload):
            commands.wait_events(copied)
            commands.fill(there, 9, size=4)
        commands.barrier()
        commands.copy(there, back)
    for _ in range(3):
        queue.execute(commands).wait(LIMIT)
        found = back.numpy(timeout=LIMIT)
        assert (found[:4] == 9).all()
        assert np.array_equal(found[4:], pattern(SIZE, 3)[4:])


def test_a_part_waits_for_another_queues_c2(device, queue, make_queue, make_latch, lowering):
    """C2: that queue is held up; so nothing that comes after its part runs, nor does it end."""
    held = make_queue()
    x, y = device.upload(pattern(SIZE, 1)), device.upload(np.zeros(SIZE, np.uint8))
    with device.record(hazards="auto", command_buffer=lowering) as commands:
        with commands.on(held):
            commands.fill(x, 5)
        commands.copy(x, y)
    latch = make_latch(held)
    latch.wait_running()
    submission = queue.execute(commands)
    assert submission.state == "pending"
    latch.open()
    submission.wait(LIMIT)
    assert (y.numpy(timeout=LIMIT) == 5).all()


def test_an_execution_ends_with_its_last_part_c1(
    device, queue, make_queue, make_latch, make_semaphore
):
    """C1: its handle and its signals, though the executing queue's own part has long ended."""
    held, done = make_queue(), make_semaphore()
    x, y = device.allocate(SIZE), device.allocate(SIZE)
    with device.record() as commands:
        commands.fill(x, 1)
        with commands.on(held):
            commands.fill(y, 2)
    latch = make_latch(held)
    latch.wait_running()
    submission = queue.execute(commands, signal=done.at(1))
    assert submission.state == "pending"
    assert not submission.done
    assert done.query() == 0
    latch.open()
    done.wait(1, LIMIT)
    assert (y.numpy(timeout=LIMIT) == 2).all()


def test_parts_begin_behind_the_executing_queue_q2(device, make_queue, gate):
    """Q2: whatever the other queues do meanwhile."""
    queue, other = make_queue(), make_queue()
    x, y = device.upload(np.zeros(SIZE, np.uint8)), device.upload(np.zeros(SIZE, np.uint8))
    with device.record() as commands, commands.on(other):
        commands.copy(x, y)
    queue.fill(x, 3, wait=gate.at(1))
    executed = queue.execute(commands)
    queue.fill(x, 4)
    assert executed.state == "pending"
    gate.signal(1)
    executed.wait(LIMIT)
    assert (y.numpy(timeout=LIMIT) == 3).all()


def test_executions_in_flight_run_one_after_the_other_c1(device, queue, gate, lowering):
    """C1, C3: each with the bindings that it was given."""
    between = device.allocate(SIZE)
    with device.record(slots=2, hazards="auto", command_buffer=lowering) as commands:
        with commands.on("upload"):
            commands.copy(commands.slots[0], between, size=SIZE)
        with commands.on("download"):
            commands.copy(between, commands.slots[1], size=SIZE)
    sources = [device.upload(pattern(SIZE, seed)) for seed in range(4)]
    targets = [device.allocate(SIZE) for _ in sources]
    queue.barrier(wait=gate.at(1))
    last = None
    for pair in zip(sources, targets, strict=True):
        last = queue.execute(commands, bindings=pair)
    gate.signal(1)
    assert last is not None
    last.wait(LIMIT)
    for seed, target in enumerate(targets):
        assert np.array_equal(target.numpy(timeout=LIMIT), pattern(SIZE, seed))


def fill_in_parts(
    device: hal.Device, queue: hal.Queue, gate: hal.Semaphore
) -> tuple[hal.Submission, Callable[[], None]]:
    """Execute fills on two queues behind a gate; return also what checks that none has run."""
    x, y = (device.upload(np.zeros(SIZE, np.uint8)) for _ in "xy")
    with device.record() as commands:
        commands.fill(x, 1)
        with commands.on("upload"):
            commands.fill(y, 1)

    def untouched() -> None:
        hal.wait_all([queue.barrier(), device.queues.upload.barrier()], LIMIT)
        assert not x.numpy(timeout=LIMIT).any()
        assert not y.numpy(timeout=LIMIT).any()

    return queue.execute(commands, wait=gate.at(1)), untouched


def test_a_failed_wait_runs_no_part_s5(device, queue, gate):
    """S5: and fails the submission with its cause."""
    pending, untouched = fill_in_parts(device, queue, gate)
    gate.fail(broken())
    with pytest.raises(HalError, match="broken on purpose"):
        pending.wait(LIMIT)
    untouched()


def test_cancelling_takes_all_parts_back_q7(device, queue, gate):
    """Q7: as long as none was issued."""
    pending, untouched = fill_in_parts(device, queue, gate)
    assert pending.cancel()
    gate.signal(1)
    untouched()


@peers
def test_closing_a_parts_device_fails_the_execution_q6(device, queue, open_device, gate):
    """Q6: what is in line is cancelled, and later executions are refused."""
    other = open_device()
    x, y = device.allocate(SIZE), other.allocate(SIZE)
    with device.record() as commands:
        commands.fill(x, 1)
        with commands.on(other):
            commands.copy(x, y)
    pending = queue.execute(commands, wait=gate.at(1))
    other.close(LIMIT)
    gate.signal(1)
    with pytest.raises(CancelledError):
        pending.wait(LIMIT)
    with pytest.raises(ClosedError):
        queue.execute(commands)


@peers
def test_slots_stand_for_one_devices_memory_c3(device, second_device, queue, lowering):
    """C3: the recording's, unless they are declared as another's; misuse is told at once."""
    slots = [(np.uint8, SIZE), (np.uint8, SIZE, second_device)]
    with device.record(slots=slots, hazards="auto", command_buffer=lowering) as commands:
        here, there = commands.slots
        with pytest.raises(InvalidArgumentError, match="slot 1 stands for memory of"):
            commands.fill(there, 1)
        with commands.on(second_device):
            with pytest.raises(InvalidArgumentError, match="slot 0 stands for memory of"):
                commands.fill(here, 1)
            commands.copy(here, there)
            commands.fill(there, 8, size=4)
        commands.copy(there, here, size=8)
    for seed in range(2):
        x, y = device.upload(pattern(SIZE, seed)), second_device.allocate(SIZE)
        queue.execute(commands, bindings=[x, y]).wait(LIMIT)
        found = x.numpy(timeout=LIMIT)
        assert (found[:4] == 8).all()
        assert np.array_equal(found[4:], pattern(SIZE, seed)[4:])
        assert np.array_equal(y.numpy(timeout=LIMIT), found)
    with pytest.raises(InvalidArgumentError, match="slot 1"):
        queue.execute(commands, bindings=[x, x])


def test_temporaries_serve_all_parts_m3(device, queue, lowering):
    """M3: from the first part to the last."""
    x, y = device.upload(pattern(SIZE, 5)), device.upload(np.zeros(SIZE, np.uint8))
    with device.record(hazards="auto", command_buffer=lowering) as commands:
        between = commands.alloca(SIZE)
        commands.copy(x, between)
        with commands.on("download"):
            commands.copy(between, y)
    for _ in range(3):
        queue.fill(y, 0)
        queue.execute(commands).wait(LIMIT)
        assert np.array_equal(y.numpy(timeout=LIMIT), pattern(SIZE, 5))


def test_what_is_no_place_for_a_part_is_refused_c1(device, make_queue, open_device):
    """C1: while recording, each error with its way out."""
    commands = device.record()
    with pytest.raises(InvalidArgumentError, match="'upload'"):
        commands.on("transfer")
    wrong = 3
    with pytest.raises(ArgumentTypeError, match="a queue, a device"):
        commands.on(wrong)
    queue, other = make_queue(), open_device()
    queue.close(LIMIT)
    other.close(LIMIT)
    with pytest.raises(ClosedError, match="create_queue"):
        commands.on(queue)
    with pytest.raises(ClosedError, match="create_device"):
        commands.on(other)
    upload = commands.on("upload")
    with upload:
        with pytest.raises(InvalidArgumentError, match="open"):
            commands.end()
        with pytest.raises(InvalidArgumentError, match="open already"), upload:
            pass
    commands.end()
    with pytest.raises(InvalidArgumentError, match="has ended"):
        commands.on("upload")
