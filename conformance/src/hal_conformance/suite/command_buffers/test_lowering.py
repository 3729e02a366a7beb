"""How a recording is run: the same results and the same errors in every lowering (C4)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import hal
from hal.errors import InvalidArgumentError, UnimplementedError
from hal_conformance.suite.support import LIMIT, pattern


def test_a_recording_is_run_as_asked_for_c4(device, queue, lowering):
    """C4: `lowering` says what was asked for, and the result is right."""
    buffer = device.upload(np.zeros(64, np.uint8))
    with device.record(command_buffer=lowering) as recording:
        for offset in range(0, 64, 8):
            recording.fill(buffer, 1 + offset // 8, offset=offset, size=8)
    assert recording.lowering == lowering
    queue.execute(recording).wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), np.repeat(np.arange(1, 9), 8))


def test_auto_takes_what_there_is_c4(device, queue):
    """C4: "auto" never fails for want of graphs, short and long."""
    buffer = device.upload(np.zeros(256, np.uint8))
    for count in (0, 1, 2, 8, 64):
        with device.record(command_buffer="auto") as recording:
            for index in range(count):
                recording.fill(buffer, count, offset=4 * index, size=4)
        known = {"stream", "graph"} if "graphs" in device.features else {"stream"}
        assert recording.lowering in known
        queue.execute(recording).wait(LIMIT)
        assert (buffer.numpy(timeout=LIMIT)[: 4 * count] == count).all()


def test_graphs_are_there_or_refused_c4(device):
    """C4: a device without native graphs raises `UnimplementedError` when one is asked for."""
    if "graphs" not in device.features:
        with pytest.raises(UnimplementedError, match="graphs"):
            device.record(command_buffer="graph")
        return
    buffer = device.allocate(64)
    with device.record(command_buffer="graph") as recording:
        recording.fill(buffer, 3)
    assert recording.lowering == "graph"


@pytest.mark.parametrize("mode", ["auto", "stream", "graph"])
def test_the_devices_parameter_is_the_default_c4(device, open_device, mode):
    """C4: `command_buffer` of the device holds for recordings that do not say."""
    if mode == "graph" and "graphs" not in device.features:
        with pytest.raises(UnimplementedError, match="graphs"):
            open_device(command_buffer=mode)
        return
    mine = open_device(command_buffer=mode)
    buffer = mine.upload(np.zeros(64, np.uint8))
    with mine.record() as recording:
        recording.fill(buffer, 5)
    if mode != "auto":
        assert recording.lowering == mode
    with mine.record(command_buffer="stream") as other:
        other.fill(buffer, 6, offset=32)
    assert other.lowering == "stream"
    mine.queue.execute(recording)
    mine.queue.execute(other).wait(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [5] * 32 + [6] * 32


def test_an_unknown_mode_is_refused_c4(open_device):
    """C4: a device is not opened with a mode that there is not."""
    with pytest.raises(InvalidArgumentError, match="command_buffer"):
        open_device(command_buffer="fast")


@pytest.mark.parametrize("hazards", ["manual", "auto"])
def test_nothing_to_do_still_orders_and_signals_c4(
    device, queue, make_semaphore, lowering, hazards
):
    """C4: fills, copies and updates of no bytes, and barriers: w@1 to s@1, and no more."""
    wait, signal = make_semaphore(), make_semaphore()
    buffer, empty = device.upload(pattern(64)), device.allocate(0)
    with device.record(command_buffer=lowering, hazards=hazards) as recording:
        recording.fill(buffer, 1, size=0)
        recording.barrier()
        recording.fill(empty, 1)
        recording.copy(buffer, buffer, size=0)
        recording.copy(empty, buffer)
        recording.update(buffer, b"", offset=64)
        recording.barrier()
    for value in (1, 2):
        ran = queue.execute(recording, wait=wait.at(value), signal=signal.at(value))
        assert not ran.done
        assert signal.query() == value - 1
        wait.signal(value)
        signal.wait(value, LIMIT)
        ran.wait(LIMIT)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), pattern(64))


def test_nothing_between_two_barriers_keeps_the_order_c4(device, queue, lowering):
    """C4: commands of no bytes between barriers do not loosen them."""
    size = 1 << 20
    source, target = device.allocate(size), device.upload(np.zeros(64, np.uint8))
    with device.record(command_buffer=lowering) as recording:
        recording.fill(source, 7)
        recording.barrier()
        recording.fill(source, 1, size=0)
        recording.barrier()
        recording.copy(source, target, source_offset=size - 64, size=64)
    queue.execute(recording).wait(LIMIT)
    assert (target.numpy(timeout=LIMIT) == 7).all()


def test_executions_on_several_queues_at_once_c4(device, make_queue, gate, lowering):
    """C4: one recording in flight on four queues, three times on each, with and without slots."""
    queues = [make_queue() for _ in range(4)]
    fixed = device.upload(np.zeros(64, np.uint8))
    with device.record(command_buffer=lowering) as direct:
        for offset in range(0, 64, 8):
            direct.fill(fixed, 9, offset=offset, size=8)
    with device.record(slots=1, command_buffer=lowering) as slotted:
        for offset in range(0, 64, 8):
            slotted.copy(
                fixed, slotted.slots[0], source_offset=offset, target_offset=offset, size=8
            )
    targets = [device.upload(np.zeros(64, np.uint8)) for _ in range(12)]
    ran = []
    for number, target in enumerate(targets):
        queue = queues[number % 4]
        queue.execute(direct, wait=gate.at(1))
        ran.append(queue.execute(slotted, bindings=[target]))
    gate.signal(1)
    hal.wait_all(ran, LIMIT)
    assert all((target.numpy(timeout=LIMIT) == 9).all() for target in targets)


def test_a_recording_moves_between_queues_c4(device, queue, second_queue, lowering):
    """C4: executed here and there in turn, each after the other, on the same memory."""
    buffer = device.upload(pattern(256))
    with device.record(command_buffer=lowering) as recording:
        # Turns the four quarters round by one.
        spare = device.allocate(64)
        recording.copy(buffer, spare, size=64)
        recording.barrier()
        for begin in (64, 128, 192):
            recording.copy(buffer, buffer, source_offset=begin, target_offset=begin - 64, size=64)
            recording.barrier()
        recording.copy(spare, buffer, target_offset=192)
    last: tuple[hal.Submission, ...] = ()
    for number in range(10):
        where = second_queue if number % 2 else queue
        last = (where.execute(recording, wait=last),)
    last[0].wait(LIMIT)
    expected = np.roll(pattern(256).reshape(4, 64), -10, axis=0).reshape(-1)
    assert np.array_equal(buffer.numpy(timeout=LIMIT), expected)


def test_a_recording_survives_a_closed_queue_c4(device, make_queue, lowering):
    """C4: what was executed on a queue that is gone is executed on another one."""
    with device.record(slots=1, command_buffer=lowering) as recording:
        for offset in range(0, 64, 8):
            recording.fill(recording.slots[0], 5, offset=offset, size=8)
    for _ in range(5):
        queue, buffer = make_queue(), device.upload(np.zeros(64, np.uint8))
        queue.execute(recording, bindings=[buffer]).wait(LIMIT)
        queue.close(LIMIT)
        assert (buffer.numpy(timeout=LIMIT) == 5).all()


def test_a_device_closes_with_recordings_alive_c4(open_device, lowering):
    """C4, Q6: a device with executed recordings closes, and leaves nothing behind."""
    device = open_device()
    buffer = device.allocate(64)
    with device.record(command_buffer=lowering) as recording:
        for offset in range(0, 64, 8):
            recording.fill(buffer, 5, offset=offset, size=8)
    device.queue.execute(recording)
    device.queues.upload.execute(recording)
    assert device.close(LIMIT) == ()
    with pytest.raises(hal.errors.ClosedError):
        device.record()
    del recording
    gc.collect()


def test_wide_and_long_recordings_c4(device, queue, lowering):
    """C4: two hundred independent commands, and two hundred behind each other."""
    wide, long = device.upload(np.zeros(800, np.uint8)), device.upload(np.zeros(804, np.uint8))
    with device.record(command_buffer=lowering, hazards="auto") as recording:
        for index in range(200):
            recording.fill(wide, index, offset=4 * index, size=4)
        recording.fill(long, 77, size=4)
        for index in range(200):
            recording.copy(long, long, source_offset=4 * index, target_offset=4 * index + 4, size=4)
    for _ in range(2):
        queue.execute(recording).wait(LIMIT)
        assert np.array_equal(wide.numpy(timeout=LIMIT), np.repeat(np.arange(200), 4))
        assert (long.numpy(timeout=LIMIT) == 77).all()
        queue.fill(wide, 0)
        queue.fill(long, 0).wait(LIMIT)
