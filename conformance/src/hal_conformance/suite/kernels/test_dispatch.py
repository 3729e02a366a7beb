"""Dispatching: kernels run over their grid with their arguments, in order (C5, Q4)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import hal
from hal.errors import ArgumentTypeError, ClosedError, InvalidArgumentError
from hal_conformance.suite.command_buffers.recording import scale
from hal_conformance.suite.support import LIMIT, assert_fails, broken, in_threads

pytestmark = pytest.mark.feature("kernels")

INPUT = np.array([1, 2, 3, 4], np.int32)


def test_constants_and_buffers_c5(device, way, program):
    """C5, C1: [1, 2, 3, 4] times 3 plus 10 is [13, 16, 19, 22]."""
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    way.run(lambda to, a, b: scale(to, program, a, b, 3, 10), source, target)
    assert target.numpy(timeout=LIMIT).tolist() == [13, 16, 19, 22]


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "c8", ">i4"])
def test_elements_that_are_not_the_pointers_are_refused_c5(device, queue, program, dtype):
    """C5: queued and recorded, directly and by slot; `view` says that the bytes are meant."""
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    other = device.upload(np.zeros(4, dtype))
    kernel = program["scale_and_offset"]
    match = r"scale_and_offset.*'input'.*int32"
    with pytest.raises(ArgumentTypeError, match=match):
        scale(queue, program, other, target, 3, 10)
    with device.record(slots=1) as commands:
        with pytest.raises(ArgumentTypeError, match=match):
            commands.dispatch(kernel, grid=1, block=4, args=(other, target, 3, 10, 4))
        arguments = (commands.slots[0], target, 3, 10, 4)
        commands.dispatch(kernel, grid=1, block=4, args=arguments)
    with pytest.raises(ArgumentTypeError, match=r"slot 0.*int32"):
        queue.execute(commands, bindings=[other])
    queue.update(other.view(np.int32), INPUT).wait(LIMIT)
    scale(queue, program, other.view(np.int32), target, 3, 10).wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [13, 16, 19, 22]
    queue.execute(commands, bindings=[source]).wait(LIMIT)
    queue.execute(commands, bindings=[other.view(np.uint8)]).wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [13, 16, 19, 22]


@pytest.mark.parametrize("dtype", ["i4", "u4", "u1"])
def test_elements_that_a_pointer_takes_c5(device, queue, program, dtype):
    """C5: integers of one size whatever their sign, and bytes, which have no type."""
    source = device.upload(INPUT.view(dtype))
    target = device.upload(np.zeros(4, np.int32))
    scale(queue, program, source, target, 3, 10).wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [13, 16, 19, 22]


def test_memory_that_is_not_aligned_for_a_pointer_is_refused_c5(device, queue, program):
    """C5: a device would be lost by it."""
    source, target = device.allocate(20), device.upload(np.zeros(4, np.int32))
    with pytest.raises(InvalidArgumentError, match=r"'input'.*multiple of 4 bytes"):
        scale(queue, program, source.subspan(2, 16), target, 3, 10)
    kernel, arguments = program["scale_and_offset"], (source.subspan(1, 16), target, 3, 10, 4)
    with device.record() as commands, pytest.raises(InvalidArgumentError, match="multiple of 4"):
        commands.dispatch(kernel, grid=1, block=4, args=arguments)


def test_constants_arrive_in_their_order_c5(device, way, program):
    """C5, C1: four constants land where they belong, by position and by name."""
    buffers = [device.upload(np.zeros(4, np.int32)) for _ in range(2)]

    def commands(to, first, second):
        kernel = program["write_constants"]
        to.dispatch(kernel, grid=1, block=1, args=(first, 11, 22, 33, 44))
        names = {"d": 44, "a": 11, "output": second, "c": 33, "b": 22}
        to.dispatch(kernel, grid=1, block=1, args=names)

    way.run(commands, *buffers)
    assert all(each.numpy(timeout=LIMIT).tolist() == [11, 22, 33, 44] for each in buffers)


def test_pending_dispatches_have_arguments_of_their_own_c5(device, queue, gate, program):
    """C5: dispatches of one kernel that wait side by side run with what each of them was given."""
    outputs = [device.upload(np.zeros(4, np.int32)) for _ in range(5)]
    for number, output in enumerate(outputs):
        constants = (number, 10 + number, 20 + number, 30 + number)
        queue.dispatch(
            program["write_constants"], grid=1, block=1, args=(output, *constants), wait=gate.at(1)
        )
    gate.signal(1)
    queue.wait_idle(LIMIT)
    for number, output in enumerate(outputs):
        expected = [number, 10 + number, 20 + number, 30 + number]
        assert output.numpy(timeout=LIMIT).tolist() == expected


@pytest.mark.parametrize("n", [1, 31, 1000, 100_003])
def test_every_thread_runs_once_c5(device, queue, program, n):
    """C5: saxpy over n elements, with a grid that is larger than that."""
    x = device.upload(np.arange(n, dtype=np.float32))
    y = device.upload(np.ones(n, np.float32))
    queue.dispatch(program["saxpy"], grid=-(-n // 64), block=64, args=(2.0, x, y, n)).wait(LIMIT)
    assert np.array_equal(y.numpy(timeout=LIMIT), 2 * np.arange(n, dtype=np.float32) + 1)


@pytest.mark.parametrize("grid", [1, 32, 1024, (7, 5), (3, 4, 5), (1, 1, 8)], ids=str)
def test_every_block_of_a_grid_runs_c5(device, way, program, grid):
    """C5, C1: in one to three dimensions, each block writes its own number, and no other's."""
    x, y, z = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
    out, kernel = device.upload(np.zeros(x * y * z + 8, np.uint32)), program["write_block_ids"]
    way.run(lambda to, out: to.dispatch(kernel, grid=grid, block=2, args=(out, x, y)), out)
    expected = [*range(1, x * y * z + 1), *[0] * 8]
    assert out.numpy(timeout=LIMIT).tolist() == expected


@pytest.mark.parametrize("grid", [0, (0, 1, 1), (1, 0), (4, 4, 0)], ids=str)
def test_an_empty_grid_does_nothing_and_signals_c5(device, queue, program, make_semaphore, grid):
    """C5: a grid with a zero anywhere runs nothing, and still waits and signals."""
    wait, signal = make_semaphore(), make_semaphore()
    out = device.upload(np.full(16, 99, np.uint32))
    queue.dispatch(
        program["write_block_ids"],
        grid=grid,
        block=1,
        args=(out, 1, 1),
        wait=wait.at(1),
        signal=signal.at(1),
    )
    assert signal.query() == 0
    wait.signal(1)
    signal.wait(1, LIMIT)
    assert (out.numpy(timeout=LIMIT) == 99).all()


@pytest.mark.parametrize("block", [1, 2, 32, 64])
def test_threads_of_a_block_meet_at_a_barrier_c5(device, queue, program, block):
    """C5: with static shared memory and `__syncthreads` each block reverses its part."""
    if program["reverse_block"].max_threads_per_block < block:
        return  # a device of narrow blocks has nothing to meet
    data = np.arange(4 * block, dtype=np.int32)
    source, target = device.upload(data), device.upload(np.zeros_like(data))
    queue.dispatch(program["reverse_block"], grid=4, block=block, args=(source, target)).wait(LIMIT)
    expected = data.reshape(4, block)[:, ::-1].ravel()
    assert np.array_equal(target.numpy(timeout=LIMIT), expected)


@pytest.mark.parametrize("n", [1, 7, 32])
def test_dynamic_shared_memory_c5(device, way, program, n):
    """C5, C1: a block gets the shared memory that the dispatch asks for."""
    data = np.arange(1, n + 1, dtype=np.int32)
    source, target = device.upload(data), device.upload(np.zeros(1, np.int32))

    def commands(to, *both):
        kernel, arguments = program["sum_dynamic"], (*both, n)
        to.dispatch(kernel, grid=1, block=32, shared_memory=32 * 4, args=arguments)

    way.run(commands, source, target)
    assert target.numpy(timeout=LIMIT)[0] == data.sum()


def test_atomics_count_every_thread_c5(device, make_queue, program):
    """C5: atomic additions of many blocks, launches and queues lose nothing."""
    counter = device.upload(np.zeros(1, np.uint32))
    queues = [make_queue(), make_queue(ordered=False)]
    launches = [
        queues[number % 2].dispatch(program["count"], grid=100, block=32, args=(counter,))
        for number in range(20)
    ]
    hal.wait_all(launches, LIMIT)
    assert counter.numpy(timeout=LIMIT)[0] == 20 * 100 * 32


def test_a_dispatch_behind_an_open_wait_c5(device, queue, program, gate):
    """C5: a dispatch may be submitted before its wait is met; it runs then, and not before."""
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    pending = scale(queue, program, source, target, 2, 0, wait=gate.at(1))
    assert pending.state == "pending"
    assert not target.numpy(wait=(), timeout=LIMIT).any()
    gate.signal(1)
    pending.wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [2, 4, 6, 8]
    assert pending.kind == "dispatch"


def test_a_dispatch_behind_a_failed_wait_c5(device, queue, program, gate):
    """C5: it does not run, and fails with the wait's error."""
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    pending = scale(queue, program, source, target, 2, 0, wait=gate.at(1))
    gate.fail(broken())
    assert_fails(pending, broken())
    assert not target.numpy(timeout=LIMIT).any()


def test_dispatches_of_a_queue_run_in_order_c5(device, queue, program):
    """C5: each of 30 launches works on what the one before it wrote."""
    a, b = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    expected = INPUT.astype(np.int64)
    for number in range(30):
        source, target = (a, b) if number % 2 == 0 else (b, a)
        scale(queue, program, source, target, 3, number)
        expected = (expected * 3 + number + 2**31) % 2**32 - 2**31
    queue.wait_idle(LIMIT)
    assert a.numpy(timeout=LIMIT).tolist() == expected.tolist()


def test_arguments_are_taken_during_the_call_c5(device, queue, program, gate):
    """C5: the list, the mapping and numpy scalars may change after the call."""
    out = device.upload(np.zeros(4, np.int32))
    values = [out, 1, 2, 3, 4]
    pending = queue.dispatch(
        program["write_constants"], grid=1, block=1, args=values, wait=gate.at(1)
    )
    values[1:] = [9, 9, 9, 9]
    gate.signal(1)
    pending.wait(LIMIT)
    assert out.numpy(timeout=LIMIT).tolist() == [1, 2, 3, 4]


def test_subspans_are_arguments_c5(device, way, program):
    """C5, C3: a subspan of a buffer or slot binds its part; what is around it stays."""
    source = device.upload(-np.arange(16, dtype=np.float32))
    target = device.upload(np.full(16, -9, np.float32))

    def commands(to, source, target):
        parts = source.subspan(16, 16), target.subspan(32, 16)
        to.dispatch(program["absolute"], grid=1, block=4, args=(*parts, 4))

    way.run(commands, source, target)
    expected = [*[-9] * 8, 4, 5, 6, 7, *[-9] * 4]
    assert target.numpy(timeout=LIMIT).tolist() == expected


@pytest.mark.parametrize("memory", ["host", "managed"])
def test_kernels_reach_host_visible_memory_c5(device, queue, program, memory):
    """C5: a kernel reads and writes pinned and shared memory; the host sees it when it is done."""
    source = device.allocate(16, dtype=np.int32, memory=memory)
    target = device.allocate(16, dtype=np.int32, memory=memory)
    source.map()[:] = INPUT
    scale(queue, program, source, target, 5, 0).wait(LIMIT)
    assert target.map().tolist() == [5, 10, 15, 20]


def test_what_a_dispatch_uses_is_kept_c5(device, queue, program, gate):
    """C5: buffers may be dropped while the dispatch still waits."""
    source, target = device.upload(INPUT), device.upload(np.zeros(4, np.int32))
    pending = scale(queue, program, source, target, 1, 1, wait=gate.at(1))
    source.close()
    del source
    gc.collect()
    others = [device.upload(np.zeros(4, np.int32)) for _ in range(8)]
    gate.signal(1)
    pending.wait(LIMIT)
    assert target.numpy(timeout=LIMIT).tolist() == [2, 3, 4, 5]
    assert len(others) == 8


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Have threads take turns as often as the interpreter can, inside of a plugin's calls too."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_threads_dispatch_one_kernel_c5(device, make_queue, program):
    """C5: four threads dispatch one kernel on four queues, each launch with its own arguments."""
    kernel, turns = program["write_constants"], range(100)

    def work(number):
        queue = make_queue()
        targets = device.upload(np.zeros((len(turns), 4), np.int32))
        for turn in turns:
            arguments = (targets.subspan(16 * turn, 16), number, turn, number + turn, -turn)
            queue.dispatch(kernel, grid=1, block=1, args=arguments)
        queue.barrier().wait(LIMIT)
        return list(targets.numpy(timeout=LIMIT).tolist())

    results = in_threads([partial(work, number) for number in range(4)])
    for number, rows in enumerate(results):
        assert rows == [[number, turn, number + turn, -turn] for turn in turns]


@pytest.mark.usefixtures("eager_switches")
def test_threads_dispatch_one_kernel_over_several_grids_c5(device, make_queue, program):
    """C5: four threads dispatch one kernel on four queues, each launch with a grid and a block."""
    kernel, turns = program["count"], range(100)

    def work(number):
        queue = make_queue()
        counters = device.upload(np.zeros(len(turns), np.uint32))
        for turn in turns:
            counter = counters.subspan(4 * turn, 4)
            queue.dispatch(kernel, grid=number + 1, block=turn % 7 + 1, args=(counter,))
        queue.barrier().wait(LIMIT)
        return list(counters.numpy(timeout=LIMIT).tolist())

    results = in_threads([partial(work, number) for number in range(4)])
    for number, counts in enumerate(results):
        assert counts == [(number + 1) * (turn % 7 + 1) for turn in turns]


BAD: dict[str, tuple[type[Exception], dict[str, Any]]] = {
    "too few arguments": (TypeError, {"args": ()}),
    "too many arguments": (TypeError, {"args": (None, 1, 2, 3, 4, 5)}),
    "a number for a buffer": (TypeError, {"args": (4096, 1, 2, 3, 4)}),
    "a buffer for a number": (TypeError, {"args": "buffers"}),
    "text for a number": (TypeError, {"args": "text"}),
    "a number that does not fit": (ValueError, {"args": "large"}),
    "an unknown name": (TypeError, {"args": "unknown"}),
    "a negative grid": (InvalidArgumentError, {"grid": -1}),
    "a grid of four numbers": (InvalidArgumentError, {"grid": (1, 1, 1, 1)}),
    "a grid of text": (ArgumentTypeError, {"grid": "1"}),
    "a grid that is too large": (InvalidArgumentError, {"grid": (1, 1 << 20)}),
    "a block of nothing": (InvalidArgumentError, {"block": 0}),
    "a block that is too large": (InvalidArgumentError, {"block": 1 << 20}),
    "negative shared memory": (InvalidArgumentError, {"shared_memory": -1}),
    "too much shared memory": (InvalidArgumentError, {"shared_memory": 1 << 40}),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_dispatches_are_refused_c5(device, way, program, what):
    """C5, C1: what is wrong with arguments and sizes raises in the call, and nothing of it runs."""
    kind, changes = BAD[what]
    kernel, buffer = program["write_constants"], device.upload(np.zeros(4, np.int32))

    def commands(to, out):
        right = {"grid": 1, "block": 1, "args": (out, 1, 2, 3, 4)}
        wrong = {**right, **changes}
        special = {
            "buffers": (out, buffer, 2, 3, 4),
            "text": (out, "1", 2, 3, 4),
            "large": (out, 1 << 40, 2, 3, 4),
            "unknown": {"output": out, "a": 1, "b": 2, "c": 3, "nonsense": 4},
        }
        if isinstance(wrong["args"], str):
            wrong["args"] = special[wrong["args"]]
        with pytest.raises(kind) as caught:
            to.dispatch(kernel, **wrong)
        assert isinstance(caught.value, hal.HalError)
        assert not isinstance(to, hal.CommandBuffer) or len(to) == 0
        to.dispatch(kernel, **right)

    way.run(commands, buffer)
    assert buffer.numpy(timeout=LIMIT).tolist() == [1, 2, 3, 4]


def test_a_kernel_of_another_device_is_refused_c5(second_device, make_queue, program):
    """C5: a kernel runs on the device that it was loaded on."""
    out = second_device.upload(np.zeros(4, np.int32))
    queue = make_queue(device=second_device)
    with pytest.raises(InvalidArgumentError):
        queue.dispatch(program["write_constants"], grid=1, block=1, args=(out, 1, 2, 3, 4))


def test_a_buffer_of_another_device_is_refused_c5(open_device, queue, program):
    """C5: a kernel's buffers are those of its device, unless access was enabled."""
    foreign = open_device().upload(np.zeros(4, np.int32))
    with pytest.raises(InvalidArgumentError):
        queue.dispatch(program["write_constants"], grid=1, block=1, args=(foreign, 1, 2, 3, 4))


def test_a_closed_buffer_is_refused_c5(device, queue, program):
    """C5: a closed buffer is no argument."""
    out = device.upload(np.zeros(4, np.int32))
    out.close()
    with pytest.raises(ClosedError):
        queue.dispatch(program["write_constants"], grid=1, block=1, args=(out, 1, 2, 3, 4))


@pytest.mark.parametrize("kernel", [None, "write_constants", print], ids=repr)
def test_what_is_no_kernel_is_refused_c5(queue, kernel):
    """C5: `dispatch` takes a kernel of an executable."""
    with pytest.raises(ArgumentTypeError):
        queue.dispatch(kernel, grid=1, block=1)
