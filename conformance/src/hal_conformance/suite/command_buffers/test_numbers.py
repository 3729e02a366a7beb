"""Slots for numbers: scalar arguments and grids that each execution gives (C3, C4)."""

from __future__ import annotations

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("kernels")

INPUT = np.array([1, 2, 3, 4], np.int32)


def scaled(
    device: hal.Device, program: hal.Executable, lowering: str, steps: int = 1
) -> hal.CommandBuffer:
    """Record ``target[i] = source[i] * factor + offset``, and then some steps in place.

    The slots are the source, the target, the factor, the offset and the grid, of blocks of one.
    """
    slots = ["<i4", "<i4", "scalar", "scalar", "grid"]
    with device.record(slots=slots, command_buffer=lowering) as recording:
        source, target, factor, offset, grid = recording.slots
        for _ in range(steps):
            recording.dispatch(
                program["scale_and_offset"],
                grid=grid,
                block=1,
                args=(source, target, factor, offset, 4),
            )
            recording.barrier()
            source = target
    return recording


def test_slots_say_that_they_are_numbers_c3(device, program):
    """C3: a slot is declared as a number, or becomes one by its first use."""
    with device.record(slots=["<i4", "scalar", "grid"]) as recording:
        assert [slot.kind for slot in recording.slots] == ["buffer", "scalar", "grid"]
    with device.record(slots=3) as recording:
        source, target, factor = recording.slots
        kernel = program["scale_and_offset"]
        recording.dispatch(kernel, grid=1, block=4, args=(source, target, factor, factor, 4))
        assert [slot.kind for slot in recording.slots] == ["buffer", "buffer", "scalar"]


def test_each_execution_gives_its_scalars_c3(device, program, queue, lowering):
    """C3: one recording, executed with one pair of numbers after another, and the first again."""
    recording = scaled(device, program, lowering)
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    for factor, offset in ((2, 1), (2, -7), (np.int8(-3), np.int64(0)), (2, 1)):
        done = queue.execute(recording, bindings=[source, target, factor, offset, 4])
        expected = INPUT * int(factor) + int(offset)
        assert target.numpy(wait=done, timeout=LIMIT).tolist() == expected.tolist()


def test_each_execution_gives_its_grid_c3(device, program, queue, lowering):
    """C3: larger and smaller grids, in each of the forms that a dispatch takes."""
    recording = scaled(device, program, lowering)
    source = device.upload(INPUT)
    grids = (1, 3, (2,), (4, 1), (1, 1, 1), np.int32(2))
    for grid in grids:
        target = device.upload(np.zeros(4, np.int32))
        done = queue.execute(recording, bindings=[source, target, 5, 0, grid])
        count = int(np.prod(grid))
        expected = [5 * each for each in INPUT[:count].tolist()] + [0] * (4 - count)
        assert target.numpy(wait=done, timeout=LIMIT).tolist() == expected


def test_empty_grids_by_slot_order_and_signal_c4(device, program, queue, lowering, make_semaphore):
    """C4: a launch of nothing, before, between and after launches of something, in both orders."""
    semaphore = make_semaphore()
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    recording = scaled(device, program, lowering, steps=3)
    value = 0
    for grids in ((0, 4, (0, 1, 1)), ((4, 0), (1, 1, 0), 4)):
        for grid in grids:
            value += 1
            queue.fill(target, 0)
            table = [source, target, 1, 1, grid]
            queue.execute(recording, bindings=table, signal=semaphore.at(value))
            semaphore.wait(value, LIMIT)
            expected = (INPUT + 3).tolist() if grid == 4 else [0] * 4
            assert target.numpy(timeout=LIMIT).tolist() == expected


def test_an_empty_grid_between_others_orders_them_c4(device, program, queue, lowering):
    """C4: what comes behind a launch of nothing still comes behind what is before that."""
    with device.record(slots=["grid"], command_buffer=lowering) as recording:
        first, second, third = (device.upload(np.zeros(4, np.int32)) for _ in range(3))
        kernel = program["scale_and_offset"]
        recording.update(first, INPUT)
        recording.barrier()
        recording.dispatch(kernel, grid=recording.slots[0], block=4, args=(first, second, 2, 0, 4))
        recording.barrier()
        recording.copy(first, third)
    for grid, expected in ((0, [0] * 4), (1, (2 * INPUT).tolist()), (0, [0] * 4)):
        for buffer in (first, second, third):
            queue.fill(buffer, 0)
        done = queue.execute(recording, bindings=[grid])
        assert third.numpy(wait=done, timeout=LIMIT).tolist() == INPUT.tolist()
        assert second.numpy(timeout=LIMIT).tolist() == expected


def test_one_slot_serves_several_parameters_c3(device, program, queue, lowering):
    """C3: a number for two parameters of a command, and for one of another command."""
    targets = [device.upload(np.zeros(4, np.int32)) for _ in range(2)]
    with device.record(slots=2, command_buffer=lowering) as recording:
        one, two = recording.slots
        kernel = program["write_constants"]
        recording.dispatch(kernel, grid=1, block=1, args=(targets[0], one, two, one, 7))
        names = {"output": targets[1], "a": two, "b": 8, "c": 9, "d": one}
        recording.dispatch(kernel, grid=1, block=1, args=names)
    for numbers in ((1, 2), (1, 5), (-4, 5)):
        first, second = numbers
        done = queue.execute(recording, bindings={1: second, 0: first})
        assert targets[0].numpy(wait=done, timeout=LIMIT).tolist() == [first, second, first, 7]
        assert targets[1].numpy(timeout=LIMIT).tolist() == [second, 8, 9, first]


def test_executions_in_flight_keep_their_numbers_c3(
    device, program, queue, lowering, make_semaphore
):
    """C3: many executions with numbers of their own stand behind a wait, and do not mix."""
    semaphore = make_semaphore()
    recording = scaled(device, program, lowering)
    source = device.upload(INPUT)
    targets = [device.upload(np.zeros(4, np.int32)) for _ in range(12)]
    numbers = [7]
    for index, target in enumerate(targets):
        table = [source, target, numbers[0], index, index % 5]
        queue.execute(recording, bindings=table, wait=semaphore.at(1))
        numbers[0] += 1
        table[:] = []
    semaphore.signal(1)
    for index, target in enumerate(targets):
        count = index % 5
        expected = [*(INPUT[:count] * (7 + index) + index).tolist(), *[0] * (4 - count)]
        assert target.numpy(timeout=LIMIT).tolist() == expected


def test_numbers_that_do_not_fit_are_refused_c3(device, program, queue, lowering):
    """C3, C5: by kernel, parameter and slot, at the submission; nothing has changed."""
    recording = scaled(device, program, lowering)
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    for slot, wrong, kind, words in (
        (2, 1.5, ArgumentTypeError, "scale_and_offset.*scale.*float"),
        (2, True, ArgumentTypeError, "scale_and_offset.*scale.*bool"),
        (2, None, ArgumentTypeError, "scale_and_offset.*scale.*NoneType"),
        (2, source, ArgumentTypeError, "scale.*scale_and_offset.*Buffer"),
        (3, 2**31, InvalidArgumentError, "scale_and_offset.*offset.*2147483648"),
        (4, -1, InvalidArgumentError, "scale_and_offset.*grid.*-1"),
        (4, (1, 70000), InvalidArgumentError, "scale_and_offset.*grid.*70000"),
        (4, 1.0, ArgumentTypeError, "scale_and_offset.*grid.*float"),
        (4, target, ArgumentTypeError, "grid.*scale_and_offset.*Buffer"),
        (0, 3, ArgumentTypeError, "buffer.*int"),
    ):
        table = [source, target, 2, 0, 4]
        table[slot] = wrong
        with pytest.raises(kind, match=words) as caught:
            queue.execute(recording, bindings=table)
        assert f"slot {slot}" in str(caught.value)
    assert target.numpy(timeout=LIMIT).tolist() == [0] * 4
    done = queue.execute(recording, bindings=[source, target, 2, 0, 4])
    assert target.numpy(wait=done, timeout=LIMIT).tolist() == (2 * INPUT).tolist()


def test_a_slot_is_of_one_kind_c3(device, program):
    """C3: a use of another kind is refused while it is recorded, by slot."""
    buffer = device.allocate(64)
    kernel = program["scale_and_offset"]
    with device.record(slots=["<i4", "scalar", "grid", "<u4"]) as recording:
        memory, number, grid, counts = recording.slots
        for index, wrong in (
            (1, lambda: recording.fill(number, 0, size=4)),
            (2, lambda: recording.copy(buffer, grid, size=4)),
            (1, lambda: number.subspan(0, 4)),
            (
                0,
                lambda: recording.dispatch(
                    kernel, grid=1, block=4, args=(memory, memory, memory, 0, 4)
                ),
            ),
            (
                1,
                lambda: recording.dispatch(kernel, grid=1, block=4, args=(number, memory, 1, 0, 4)),
            ),
            (
                2,
                lambda: recording.dispatch(
                    kernel, grid=1, block=4, args=(memory, memory, grid, 0, 4)
                ),
            ),
            (
                1,
                lambda: recording.dispatch(
                    kernel, grid=number, block=4, args=(memory, memory, 1, 0, 4)
                ),
            ),
        ):
            with pytest.raises(HalError, match=f"slot {index} stands for"):
                wrong()
    assert len(recording) == 0
    assert counts.kind == "buffer"
