"""Recorded dispatches: kernels in recordings, with buffers, slots and constants (C1 to C5)."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from hal.errors import ArgumentTypeError, HalError, InvalidArgumentError
from hal_conformance.suite.command_buffers.recording import scale
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("kernels")

INPUT = np.array([1, 2, 3, 4], np.int32)


def test_two_kernels_of_one_program_c1(device, program, recorder):
    """C1: two entry points on one input, into two outputs."""
    source = device.upload(INPUT)
    negative, double = (device.upload(np.zeros(4, np.int32)) for _ in range(2))

    def commands(recording, source, negative, double):
        recording.dispatch(program["negate"], grid=1, block=4, args=(source, negative))
        recording.dispatch(program["twice"], grid=2, block=2, args=(source, double))

    recorder.run(commands, source, negative, double)
    assert negative.numpy(timeout=LIMIT).tolist() == [-1, -2, -3, -4]
    assert double.numpy(timeout=LIMIT).tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("grid", [0, (4, 0), (1, 1, 0)], ids=str)
def test_an_empty_grid_is_nothing_c4(device, program, recorder, make_semaphore, grid):
    """C4: a grid with a zero in it runs nothing; the execution waits and signals."""
    out, wait, signal = device.upload(np.full(4, 99, np.uint32)), make_semaphore(), make_semaphore()

    def commands(recording, out):
        recording.dispatch(program["write_block_ids"], grid=grid, block=1, args=(out, 1, 1))

    recording = recorder.record(commands, out)
    recorder.execute(recording, out, wait=wait.at(1), signal=signal.at(1))
    assert signal.query() == 0
    wait.signal(1)
    signal.wait(1, LIMIT)
    assert out.numpy(timeout=LIMIT).tolist() == [99] * 4


def test_update_then_dispatch_c2(device, program, recorder):
    """C2: [1, 2, 3, 4], a barrier, times 2 plus 5 is [7, 9, 11, 13]."""
    source, target = (device.upload(np.zeros(4, np.int32)) for _ in range(2))

    def commands(recording, source, target):
        recording.update(source, INPUT)
        recording.barrier()
        scale(recording, program, source, target, 2, 5)

    recorder.run(commands, source, target)
    assert target.numpy(timeout=LIMIT).tolist() == [7, 9, 11, 13]


@pytest.mark.parametrize("hazards", ["manual", "auto"])
def test_chained_dispatches_c2(device, program, recorder, hazards):
    """C2: times 2, then plus 10, is [12, 14, 16, 18], and what is between is there, too."""
    source, middle, target = device.upload(INPUT), device.allocate(16), device.allocate(16)

    def commands(recording, source, middle, target):
        scale(recording, program, source, middle, 2, 0)
        if hazards == "manual":
            recording.barrier()
        scale(recording, program, middle, target, 1, 10)

    recorder.run(commands, source, middle, target, hazards=hazards)
    assert target.numpy(np.int32, timeout=LIMIT).tolist() == [12, 14, 16, 18]
    assert middle.numpy(np.int32, timeout=LIMIT).tolist() == [2, 4, 6, 8]


@pytest.mark.parametrize("hazards", ["manual", "auto"])
def test_transfers_and_dispatches_in_turn_c2(device, program, recorder, hazards):
    """C2: an update, times 3, a fill of the input, plus 7, a copy: [37, 67, 97, 127]."""
    source, middle, target, last = (device.upload(np.zeros(4, np.int32)) for _ in range(4))

    def commands(recording, *operands):
        source, middle, target, last = operands
        steps = [
            lambda: recording.update(source, INPUT * 10),
            lambda: scale(recording, program, source, middle, 3, 0),
            lambda: recording.fill(source, -1),
            lambda: scale(recording, program, middle, target, 1, 7),
            lambda: recording.copy(target, last),
        ]
        for step in steps:
            step()
            if hazards == "manual":
                recording.barrier()

    recorder.run(commands, source, middle, target, last, hazards=hazards)
    assert last.numpy(timeout=LIMIT).tolist() == [37, 67, 97, 127]
    assert source.numpy(timeout=LIMIT).tolist() == [-1] * 4


def test_a_barrier_orders_large_dispatches_c2(device, program, recorder):
    """C2: the last elements of a large grid are seen by a small one after a barrier."""
    n = 1 << 18
    source = device.upload(np.arange(n, dtype=np.int32))
    middle, target = device.upload(np.zeros(n, np.int32)), device.upload(np.zeros(64, np.int32))

    def commands(recording, source, middle, target):
        scale(recording, program, source, middle, 1, 1, n)
        recording.barrier()
        scale(recording, program, middle.subspan(4 * n - 256, 256), target, 1, 1, 64)

    recording = recorder.record(commands, source, middle, target)
    for _ in range(3):
        device.queue.fill(middle, 0).wait(LIMIT)
        recorder.execute(recording, source, middle, target).wait(LIMIT)
        assert target.numpy(timeout=LIMIT).tolist() == list(range(n - 62, n + 2))


def test_a_pipeline_over_different_inputs_c3(device, queue, program, lowering):
    """C3: times 2 plus 100 in two steps, on three inputs through three tables."""
    with device.record(slots=3, command_buffer=lowering) as recording:
        source, middle, target = recording.slots
        scale(recording, program, source, middle, 2, 0)
        recording.barrier()
        scale(recording, program, middle, target, 1, 100)
    for base in (0, 10, 1000):
        table = device.upload(INPUT + base), device.allocate(16), device.allocate(16)
        queue.execute(recording, bindings=table).wait(LIMIT)
        expected = ((INPUT + base) * 2 + 100).tolist()
        assert table[2].numpy(np.int32, timeout=LIMIT).tolist() == expected


def test_resubmission_with_other_bindings_c3(device, queue, program, lowering):
    """C3: 64 blocks, three times, each into an output of its own."""
    with device.record(slots=1, command_buffer=lowering) as recording:
        arguments = (recording.slots[0], 64, 1)
        recording.dispatch(program["write_block_ids"], grid=64, block=1, args=arguments)
    outputs = [device.upload(np.zeros(64, np.uint32)) for _ in range(3)]
    for number, out in enumerate(outputs):
        queue.execute(recording, bindings=[out]).wait(LIMIT)
        assert out.numpy(timeout=LIMIT).tolist() == list(range(1, 65))
        assert not any(each.numpy(timeout=LIMIT).any() for each in outputs[number + 1 :])


def test_slots_and_buffers_in_one_dispatch_c3(device, queue, program, lowering):
    """C3: the input given directly, the output by slot."""
    source = device.upload(INPUT)
    with device.record(slots=1, command_buffer=lowering) as recording:
        scale(recording, program, source, recording.slots[0], -1, 0)
    for _ in range(2):
        target = device.upload(np.zeros(4, np.int32))
        queue.execute(recording, bindings=[target]).wait(LIMIT)
        assert target.numpy(timeout=LIMIT).tolist() == [-1, -2, -3, -4]


def test_a_pending_dispatch_keeps_its_table_c3(device, queue, program, gate, lowering):
    """C3, Q5: recording, input and table are dropped before the wait is met."""
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    with device.record(slots=2, command_buffer=lowering) as recording:
        first, second = recording.slots
        scale(recording, program, first, second, 3, 10)
    table = [source, target]
    ran = queue.execute(recording, bindings=table, wait=gate.at(1))
    source.close()
    table.clear()
    del recording, source
    gc.collect()
    gate.signal(1)
    ran.wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [13, 16, 19, 22]


def test_two_dispatches_into_two_slots_c3(device, queue, program, lowering):
    """C3: two dispatches in one recording, executed five times with new outputs each time."""
    with device.record(slots=2, command_buffer=lowering) as recording:
        for slot, width in zip(recording.slots, (16, 32), strict=True):
            recording.dispatch(
                program["write_block_ids"], grid=width, block=1, args=(slot, width, 1)
            )
    for _ in range(5):
        outputs = [device.upload(np.zeros(32, np.uint32)) for _ in range(2)]
        queue.execute(recording, bindings=outputs).wait(LIMIT)
        first, second = (out.numpy(timeout=LIMIT).tolist() for out in outputs)
        assert first == [*range(1, 17), *[0] * 16]
        assert second == [*range(1, 33)]


def test_many_executions_count_c4(device, queue, program, lowering):
    """C4: five dispatches in a recording, executed forty times: each of them runs each time."""
    counter = device.upload(np.zeros(1, np.uint32))
    with device.record(command_buffer=lowering) as recording:
        for _ in range(5):
            recording.dispatch(program["count"], grid=3, block=2, args=(counter,))
    for _ in range(40):
        last = queue.execute(recording)
    last.wait(LIMIT)
    assert counter.numpy(timeout=LIMIT)[0] == 40 * 5 * 3 * 2


@pytest.mark.parametrize("says", ["the types", "reads", "writes"])
def test_hazards_of_kernels_c2(device, program, recorder, says):
    """C2: with ``hazards="auto"`` kernels are ordered by what they read and write."""
    n = 1 << 16
    first = device.upload(np.arange(n, dtype=np.int32))
    second, third = (device.upload(np.zeros(n, np.int32)) for _ in range(2))
    said = {"the types": {}, "reads": {"reads": ["input"]}, "writes": {"writes": ["output"]}}

    def commands(recording, *operands):
        kernel, first, second, third = program["scale_and_offset"], *operands
        blocks = {"grid": n // 64, "block": 64, **said[says]}
        recording.dispatch(kernel, args=(first, second, 2, 0, n), **blocks)
        recording.dispatch(kernel, args=(second, third, 1, 1, n), **blocks)
        recording.fill(second, 0)
        recording.dispatch(kernel, args=(third, second, 1, 1, n), **blocks)

    recording = recorder.record(commands, first, second, third, hazards="auto")
    for _ in range(2):
        recorder.execute(recording, first, second, third).wait(LIMIT)
        expected = 2 * np.arange(n, dtype=np.int32) + 1
        assert np.array_equal(third.numpy(timeout=LIMIT), expected)
        assert np.array_equal(second.numpy(timeout=LIMIT), expected + 1)


def test_categories_take_dispatches_or_not_c1(device, program):
    """C1: a recording of dispatches takes them, one of transfers does not."""
    out = device.allocate(16)
    arguments = {"grid": 1, "block": 1, "args": (out, 1, 2, 3, 4)}
    with device.record(categories="dispatch") as recording:
        recording.dispatch(program["write_constants"], **arguments)
    other = device.record(categories="transfer")
    with pytest.raises(InvalidArgumentError, match="transfer"):
        other.dispatch(program["write_constants"], **arguments)
    assert (len(recording), len(other)) == (1, 0)


BAD: dict[str, tuple[type[HalError], dict[str, Any]]] = {
    "no kernel": (ArgumentTypeError, {"kernel": "write_constants"}),
    "no block": (ArgumentTypeError, {"block": None}),
    "reads as text": (ArgumentTypeError, {"reads": "output"}),
    "reads of a constant": (InvalidArgumentError, {"reads": ["a"]}),
    "writes of nothing known": (InvalidArgumentError, {"writes": ["missing"]}),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_dispatches_are_refused_c1(device, queue, program, what):
    """C1: a dispatch that is wrong raises while it is recorded, and leaves nothing of itself."""
    kind, wrong = BAD[what]
    out = device.upload(np.zeros(4, np.int32))
    right = {"grid": 1, "block": 1, "args": (out, 1, 2, 3, 4)}
    with device.record() as recording:
        with pytest.raises(kind):
            recording.dispatch(**{"kernel": program["write_constants"], **right, **wrong})
        assert len(recording) == 0
        recording.dispatch(program["write_constants"], **right)
    queue.execute(recording).wait(LIMIT)
    assert out.numpy(timeout=LIMIT).tolist() == [1, 2, 3, 4]


def test_what_a_recorded_kernel_uses_is_kept_c1(bench, device, queue, lowering):
    """C1: a recording keeps the code and the buffers of its kernels."""
    out = device.upload(np.zeros(4, np.int32))
    image = bench.program(device)
    loaded = device.load(image.image, signatures={})
    with device.record(command_buffer=lowering) as recording:
        kernel = loaded.kernel("write_constants", signature=image["write_constants"].signature)
        recording.dispatch(kernel, grid=1, block=1, args=(out, 5, 6, 7, 8))
    del kernel, loaded
    gc.collect()
    queue.execute(recording).wait(LIMIT)
    assert out.numpy(timeout=LIMIT).tolist() == [5, 6, 7, 8]
