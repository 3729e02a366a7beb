"""Hazards: work waits for the work that it conflicts with, and for nothing else."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal.flow import Flow, TrackedBuffer
from hal_conformance.suite.support import LIMIT, broken, pattern


def buffer_of(flow: Flow, *values: int) -> TrackedBuffer:
    """Return a tracked buffer with known bytes."""
    buffer = flow.from_host(np.array(values, np.uint8))
    buffer.used.wait(LIMIT)
    return buffer


def test_a_read_comes_after_the_write_q2(flow, gate):
    """Q2: a flow has the download queue wait for what the compute queue writes."""
    buffer = buffer_of(flow, 1, 1)
    flow.fill(buffer, 2, wait=gate.at(1))
    read = flow.to_host(buffer)
    assert read.submission.state == "pending"
    gate.signal(1)
    assert read.result(LIMIT).tolist() == [2, 2]


def test_a_write_comes_after_every_reader_q2(flow, gate):
    """Q2: a flow has the upload queue wait for readers on two queues."""
    buffer, other = buffer_of(flow, 1), buffer_of(flow, 0)
    array = np.zeros(1, np.uint8)
    read = flow.read(buffer, array, wait=gate.at(1))
    flow.copy(buffer, other, wait=gate.at(2))
    write = flow.write(buffer, np.array([2], np.uint8))
    gate.signal(1)
    read.wait(LIMIT)
    assert write.state == "pending"
    gate.signal(2)
    write.wait(LIMIT)
    assert array.tolist() == other.numpy(timeout=LIMIT).tolist() == [1]
    assert buffer.numpy(timeout=LIMIT).tolist() == [2]


def test_a_write_comes_after_the_write_q2(flow, gate):
    """Q2: a flow has the upload queue wait for what the compute queue writes."""
    buffer = buffer_of(flow, 1)
    flow.fill(buffer, 2, wait=gate.at(1))
    write = flow.write(buffer, np.array([3], np.uint8))
    assert write.state == "pending"
    gate.signal(1)
    write.wait(LIMIT)
    assert buffer.numpy(timeout=LIMIT).tolist() == [3]


def test_what_shares_no_byte_is_not_waited_for_q2(flow, gate):
    """Q2: parts of a tracked buffer are ordered by the bytes that they share."""
    buffer = buffer_of(flow, 1, 2, 3, 4)
    held = flow.fill(buffer.subspan(0, 1), 0, wait=gate.at(1))
    rest = buffer.subspan(1, 3)
    flow.write(rest, np.array([7, 8, 9], np.uint8)).wait(LIMIT)
    assert rest.numpy(timeout=LIMIT).tolist() == [7, 8, 9]
    late = flow.to_host(buffer.subspan(0, 2))
    assert (held.state, late.submission.state) == ("pending", "pending")
    gate.signal(1)
    assert late.result(LIMIT).tolist() == [0, 7]


def test_readers_do_not_wait_for_each_other_q2(flow, gate):
    """Q2: two reads of the same tracked bytes are not ordered."""
    buffer, other = buffer_of(flow, 1), buffer_of(flow, 0)
    held = flow.copy(buffer, other, wait=gate.at(1))
    assert flow.to_host(buffer).result(LIMIT).tolist() == [1]
    assert held.state == "pending"


@pytest.mark.feature("kernels")
def test_a_kernel_waits_for_what_its_parameters_say_c5(flow, program, gate):
    """C5: to a flow a pointer to const is read, and another one is written, too."""
    x, y = (flow.from_host(np.full(64, value, np.float32)) for value in (1, 10))
    flow.wait_idle(LIMIT)
    saxpy = program["saxpy"]
    flow.dispatch(saxpy, grid=1, block=64, args=(2.0, x, y, 64), wait=gate.at(1))
    assert flow.to_host(x).result(LIMIT)[63] == 1
    late = flow.to_host(y)
    overwrite = flow.write(x, np.full(64, 5, np.float32))
    assert (late.submission.state, overwrite.state) == ("pending", "pending")
    gate.signal(1)
    assert late.result(LIMIT)[63] == 12
    assert x.numpy(timeout=LIMIT)[63] == 5


def test_a_recording_waits_for_what_it_uses_c3(flow, gate):
    """C3: a flow's recording reads and writes what is in its slots, as it was recorded."""
    with flow.record(slots=2) as commands:
        source, target = commands.slots
        commands.copy(source, target, size=4)
    read, written = buffer_of(flow, 1, 2, 3, 4), buffer_of(flow, 0, 0, 0, 0)
    flow.execute(commands, bindings=[read, written], wait=gate.at(1))
    assert flow.to_host(read).result(LIMIT).tolist() == [1, 2, 3, 4]
    late = flow.to_host(written)
    assert late.submission.state == "pending"
    gate.signal(1)
    assert late.result(LIMIT).tolist() == [1, 2, 3, 4]


@pytest.mark.ordering
@pytest.mark.parametrize("seed", range(3))
def test_any_program_ends_as_if_done_in_turn_q2(flow, seed):
    """Q2: fills, writes, copies and reads of parts, on three queues, by what they share."""
    chance = random.Random(seed)  # noqa: S311 - the same each time
    size = 256
    buffers = [flow.from_host(pattern(size, number)) for number in range(3)]
    expected = [pattern(size, number) for number in range(3)]
    found = []
    for step in range(150):
        number, length = chance.randrange(3), chance.randrange(1, 64)
        start = chance.randrange(size - length)
        part, stop = buffers[number].subspan(start, length), start + length
        kind = chance.choice(("fill", "write", "copy", "read"))
        if kind == "fill":
            flow.fill(part, step)
            expected[number][start:stop] = step
        elif kind == "write":
            data = pattern(length, step)
            flow.write(part, data)
            expected[number][start:stop] = data
        elif kind == "copy":
            other = (number + 1) % 3
            flow.copy(part, buffers[other], target_offset=size - length)
            expected[other][size - length :] = expected[number][start:stop]
        else:
            found.append((flow.to_host(part), expected[number][start:stop].copy()))
    for download, bytes_ in found:
        assert np.array_equal(download.result(LIMIT), bytes_)
    for buffer, bytes_ in zip(buffers, expected, strict=True):
        assert np.array_equal(buffer.numpy(timeout=LIMIT), bytes_)


def test_a_failure_stays_with_the_bytes_s5(flow, gate):
    """S5: what uses the bytes of failed work fails with it, until they are recovered."""
    buffer, other = buffer_of(flow, 1), buffer_of(flow, 1)
    flow.fill(buffer, 2, wait=gate.at(1))
    flow.copy(buffer, other)
    gate.fail(broken("the sensor was unplugged"))
    for each in (buffer, other):
        with pytest.raises(HalError, match="unplugged"):
            each.numpy(timeout=LIMIT)
        each.recover()
        flow.fill(each, 3)
        assert each.numpy(timeout=LIMIT).tolist() == [3]


def test_memory_changes_hands_with_its_work_q2(flow, device, queue, gate):
    """Q2: a tracked buffer comes after the raw work before, and raw work after the tracked."""
    raw = device.upload(np.array([1], np.uint8))
    buffer = flow.adopt(raw, after=queue.fill(raw, 2, wait=gate.at(1)))
    with pytest.raises(InvalidArgumentError, match="tracked already"):
        flow.adopt(raw)
    late = flow.fill(buffer, 3)
    assert late.state == "pending"
    returned, after = buffer.release()
    copied = device.allocate(1)
    copy = queue.copy(returned, copied, wait=after)
    gate.signal(1)
    copy.wait(LIMIT)
    assert copied.numpy(timeout=LIMIT).tolist() == [3]


def test_raw_and_tracked_buffers_are_not_mixed_q4(flow, device, queue, open_device):
    """Q4: a flow refuses raw buffers and those of other devices, a queue tracked ones."""
    buffer, raw = buffer_of(flow, 1), device.allocate(1)
    with pytest.raises(ArgumentTypeError, match="adopt"):
        flow.fill(raw, 2)
    with pytest.raises(ArgumentTypeError):
        queue.fill(buffer, 2)
    with pytest.raises(InvalidArgumentError, match="not among"):
        flow.adopt(open_device().allocate(1))
    assert buffer.numpy(timeout=LIMIT).tolist() == [1]
