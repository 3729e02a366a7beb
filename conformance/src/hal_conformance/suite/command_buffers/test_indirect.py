"""Indirect dispatch: grids that are read from memory when the kernel is launched (C1, C4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal_conformance.suite.command_buffers.recording import Target
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("kernels")

EMPTY = 0xCDCDCDCD


@pytest.fixture
def out(device: hal.Device) -> Iterator[hal.Buffer]:
    """Thirty-two numbers that no block has written."""
    made = device.upload(np.full(32, EMPTY, np.uint32))
    yield made
    made.close()  # fixtures outlive the check for leftovers


def counts_of(device: hal.Device, *blocks: int) -> hal.Buffer:
    """Return a grid in memory."""
    return device.upload(np.array(blocks, np.uint32))


def check_blocks(out: hal.Buffer, count: int) -> None:
    """Check that exactly the first `count` blocks wrote their numbers."""
    expected = [*range(1, count + 1), *[EMPTY] * (32 - count)]
    assert out.numpy(timeout=LIMIT).tolist() == expected


def launch(
    recording: hal.CommandBuffer, program: hal.Executable, counts: Target, out: Target
) -> None:
    """Record a dispatch whose blocks write their numbers."""
    recording.dispatch(program["write_block_ids"], grid=counts, block=2, args=(out, 32, 1))


@pytest.mark.parametrize("blocks", [(4, 1, 1), (1, 1, 1), (32, 1, 1)], ids=str)
def test_a_grid_in_memory_q4(device, queue, program, out, blocks):
    """Q4: a dispatch reads its grid from a buffer: those blocks run, and no other."""
    counts = counts_of(device, *blocks)
    queue.dispatch(program["write_block_ids"], grid=counts, block=2, args=(out, 32, 1)).wait(LIMIT)
    check_blocks(out, blocks[0])


def test_a_grid_is_read_when_the_dispatch_runs_q4(device, queue, program, out, make_semaphore):
    """Q4: a grid that is written after the submission, behind a wait, is the one that is used."""
    written, gate = make_semaphore(), make_semaphore()
    counts = counts_of(device, 9, 1, 1)
    arguments = (out, 32, 1)
    ran = queue.dispatch(
        program["write_block_ids"], grid=counts, block=1, args=arguments, wait=written.at(1)
    )
    device.queues.upload.update(
        counts, np.array([4, 1, 1], np.uint32), wait=gate.at(1), signal=written.at(1)
    )
    assert not ran.done
    gate.signal(1)
    ran.wait(LIMIT)
    check_blocks(out, 4)


def test_a_grid_of_an_earlier_operation_q4(device, queue, program, out):
    """Q4, Q2: in an ordered queue a grid is read after what was submitted before has run."""
    counts = counts_of(device, 0, 0, 0)
    for blocks in (3, 5, 8):
        queue.update(counts, np.array([blocks, 1, 1], np.uint32))
        last = queue.dispatch(program["write_block_ids"], grid=counts, block=1, args=(out, 32, 1))
        queue.update(counts, np.array([31, 1, 1], np.uint32))
    last.wait(LIMIT)
    queue.wait_idle(LIMIT)
    check_blocks(out, 8)


def test_three_dimensions_in_memory_q4(device, queue, program, out):
    """Q4: all three numbers of a grid in memory count."""
    counts = counts_of(device, 3, 2, 4)
    queue.dispatch(program["write_block_ids"], grid=counts, block=1, args=(out, 3, 2)).wait(LIMIT)
    check_blocks(out, 24)


@pytest.mark.parametrize("blocks", [(0, 1, 1), (4, 0, 1), (4, 4, 0), (0, 0, 0)], ids=str)
def test_an_empty_grid_in_memory_runs_nothing_q4(device, queue, program, out, semaphore, blocks):
    """Q4: a zero anywhere in memory is an empty grid: nothing runs, and it signals."""
    counts = counts_of(device, *blocks)
    arguments = (out, 1, 1)
    queue.dispatch(
        program["write_block_ids"], grid=counts, block=1, args=arguments, signal=semaphore.at(1)
    )
    semaphore.wait(1, LIMIT)
    check_blocks(out, 0)


def test_a_recorded_grid_in_memory_c1(device, program, recorder, out):
    """C1: the grid of a recorded dispatch is read at each execution."""
    counts = counts_of(device, 4, 1, 1)
    recording = recorder.record(lambda r, *pair: launch(r, program, *pair), counts, out)
    recorder.execute(recording, counts, out).wait(LIMIT)
    check_blocks(out, 4)
    device.queue.update(counts, np.array([7, 1, 1], np.uint32)).wait(LIMIT)
    recorder.execute(recording, counts, out).wait(LIMIT)
    check_blocks(out, 7)


def test_a_grid_of_a_submission_before_c1(device, program, recorder, out, semaphore):
    """C1: an update on another queue signals, the execution waits: its numbers are used."""
    counts = counts_of(device, 30, 1, 1)
    recording = recorder.record(lambda r, *pair: launch(r, program, *pair), counts, out)
    ran = recorder.execute(recording, counts, out, wait=semaphore.at(1))
    device.queues.upload.update(counts, np.array([4, 1, 1], np.uint32), signal=semaphore.at(1))
    ran.wait(LIMIT)
    check_blocks(out, 4)


MAKERS: dict[str, Any] = {
    "update": lambda r, _, counts: r.update(counts, np.array([4, 1, 1], np.uint32)),
    "fill": lambda r, _, counts: r.fill(counts, 1, size=12),
    "dispatch": lambda r, program, counts: r.dispatch(
        program["write_constants"], grid=1, block=1, args=(counts, 4, 1, 1, 9)
    ),
}


@pytest.mark.parametrize("hazards", ["manual", "auto"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_grid_that_the_recording_makes_c2(device, program, recorder, out, maker, hazards):
    """C2: a recording writes the grid, with each kind of command, and launches over it."""
    counts = counts_of(device, 30, 1, 1, 1)

    def commands(recording, counts, out):
        MAKERS[maker](recording, program, counts)
        if hazards == "manual":
            recording.barrier()
        launch(recording, program, counts, out)

    recorder.run(commands, counts, out, hazards=hazards)
    check_blocks(out, 1 if maker == "fill" else 4)


def test_a_grid_in_a_part_of_a_buffer_c1(device, program, recorder, out):
    """C1: the grid begins where the subspan does: [4, 1, 1] at byte 16, with [2, 1, 1] at 0."""
    counts = counts_of(device, 2, 1, 1, 0, 4, 1, 1)

    def commands(recording, counts, out):
        launch(recording, program, counts.subspan(16, 12), out)

    recorder.run(commands, counts, out)
    check_blocks(out, 4)


def test_what_is_behind_an_indirect_dispatch_c2(device, program, recorder):
    """C2: commands after a barrier see what an indirect dispatch has written."""
    counts = counts_of(device, 4, 1, 1)
    first, second = (device.upload(np.zeros(8, np.uint32)) for _ in range(2))

    def commands(recording, *operands):
        counts, first, second = operands
        launch(recording, program, counts, first)
        recording.barrier()
        recording.copy(first, second, size=16)
        recording.barrier()
        recording.fill(first, 0)

    recorder.run(commands, counts, first, second)
    assert second.numpy(timeout=LIMIT).tolist() == [1, 2, 3, 4, 0, 0, 0, 0]
    assert not first.numpy(timeout=LIMIT).any()


def test_without_the_feature_the_host_launches_c4(device, queue, program, out, lowering):
    """C4: natively where the device can, else by the host: the result is the same."""
    counts = counts_of(device, 4, 1, 1)
    with device.record(command_buffer=lowering) as recording:
        launch(recording, program, counts, out)
    native = "indirect_dispatch" in device.features
    assert recording.lowering == (lowering if native else "host")
    queue.execute(recording).wait(LIMIT)
    check_blocks(out, 4)


BAD: dict[str, tuple[type[HalError], Any]] = {
    "too few bytes": (InvalidArgumentError, lambda counts: counts.subspan(0, 8)),
    "a wrong alignment": (InvalidArgumentError, lambda counts: counts.subspan(2, 12, dtype="u1")),
    "no numbers": (ArgumentTypeError, lambda _: [[4], [1]]),
    "no right to it": (
        InvalidArgumentError,
        lambda counts: counts.device.allocate(12, usage=hal.BufferUsage.TRANSFER_TARGET),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_grids_in_memory_are_refused_q4(device, queue, program, out, what):
    """Q4: a grid in memory is 12 bytes at a multiple of 4, in a buffer that allows it."""
    kind, make = BAD[what]
    grid = make(counts_of(device, 4, 1, 1, 1))
    arguments = {"grid": grid, "block": 1, "args": (out, 32, 1)}
    with pytest.raises(kind):
        queue.dispatch(program["write_block_ids"], **arguments)
    with device.record() as recording, pytest.raises(kind):
        recording.dispatch(program["write_block_ids"], **arguments)
    assert len(recording) == 0
    check_blocks(out, 0)
