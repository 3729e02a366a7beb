"""Grids that are read from memory when a kernel is launched (C1, C4)."""

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import InvalidArgumentError, OperationError

WAYS = ("stream", "graph", "host")


@pytest.fixture(params=WAYS)
def indirect(open_probe, image, request):
    """A device that launches over grids in memory in one of the ways, its probe and kernels."""
    device, probe = open_probe()
    way = request.param
    if way == "host":
        probe.features -= {"indirect_dispatch"}
    else:
        device._command_buffer = way
    return device, probe, device.load(image), way


def test_a_grid_in_memory_c1(indirect):
    """C1: from a buffer, a part of one, and a slot; written before, or by a kernel of the same."""
    device, _, program, way = indirect
    grids = device.upload(np.array([9, 2, 3, 1, 0, 0, 0, 9], np.uint32))
    counted = [device.upload(np.zeros(32, np.uint32)) for _ in range(3)]
    made = device.allocate(12)
    with device.record(slots=2) as commands:
        out, counts = commands.slots
        commands.dispatch(program["ids"], grid=grids.subspan(4, 12), block=1, args=(counted[0],))
        commands.dispatch(program["choose"], grid=1, block=1, args=(made, 4))
        commands.barrier()
        commands.dispatch(program["ids"], grid=made, block=1, args=(counted[1],))
        commands.dispatch(program["ids"], grid=counts, block=1, args=(out,))
        commands.dispatch(program["ids"], grid=counts.subspan(4), block=1, args=(out,))
    assert commands.lowering == way
    for count in range(1, 4):
        given = device.upload(np.array([3, 1, 2, 5], np.uint32))
        target = device.upload(np.zeros(32, np.uint32))
        done = device.queue.execute(commands, bindings=[target, given])
        assert target.numpy(wait=done).tolist() == [2] * 6 + [1] * 4 + [0] * 22
        assert counted[0].numpy().tolist() == [count] * 6 + [0] * 26
        assert counted[1].numpy().tolist() == [count] * 8 + [0] * 24


def test_a_grid_without_an_address_yet_m3(indirect):
    """M3: grid and arguments from `alloca`, resolved when the dispatch is issued."""
    device, _, program, _ = indirect
    gate = hal.create_semaphore()
    counts = device.queue.alloca(12, wait=gate.at(1))
    target = device.queue.alloca(64, dtype=np.uint32)
    device.queue.update(counts, np.array([3, 1, 1], np.uint32))
    device.queue.fill(target, 0)
    done = device.queue.dispatch(program["ids"], grid=counts, block=1, args=(target,))
    gate.signal(1)
    assert target.numpy(wait=done).tolist() == [1] * 3 + [0] * 13
    never = hal.create_semaphore()
    late = device.queues.upload.alloca(64, wait=never.at(1))
    for grid, args in ((late, (target,)), (counts, (late,)), (1, (late,))):
        failing = device.queue.dispatch(program["ids"], grid=grid, block=1, args=args)
        with pytest.raises(OperationError, match="alloca"):
            failing.wait(LIMIT)
    never.signal(1)


def test_a_part_of_memory_without_an_address_is_a_grid_m3(indirect):
    """M3: the address is that of the part."""
    device, _, program, _ = indirect
    gate = hal.create_semaphore()
    counts = device.queue.alloca(24, wait=gate.at(1))
    target = device.upload(np.zeros(16, np.uint32))
    device.queue.update(counts, np.array([9, 9, 3, 2, 1, 9], np.uint32))
    part = counts.subspan(8, 12)
    done = device.queue.dispatch(program["ids"], grid=part, block=1, args=(target,))
    gate.signal(1)
    assert target.numpy(wait=done, timeout=LIMIT).tolist() == [1] * 6 + [0] * 10


def test_grids_in_memory_that_cannot_be_c1(indirect):
    device, _, program, way = indirect
    ids, target = program["ids"], device.allocate(64)
    memory = device.upload(np.zeros(8, np.uint32))
    with device.record(slots=[(np.uint32, 8)]) as commands:
        for grid in (memory.subspan(0, 8), memory.subspan(2, 12), commands.slots[0]):
            for dispatch in (commands.dispatch, device.queue.dispatch):
                with pytest.raises(
                    (InvalidArgumentError, TypeError), match=r"12 bytes|a grid|grid"
                ):
                    dispatch(ids, grid=grid, block=1, args=(target,))
    no_grid = device.allocate(12, usage=hal.BufferUsage.DISPATCH)
    with pytest.raises(InvalidArgumentError, match="INDIRECT"):
        device.queue.dispatch(ids, grid=no_grid, block=1, args=(target,))
    with device.record() as commands, pytest.raises(InvalidArgumentError, match="INDIRECT"):
        commands.dispatch(ids, grid=no_grid, block=1, args=(target,))
    if way == "host":
        device.queue.update(memory, np.array([1, 70_000, 1], np.uint32))
        failing = device.queue.dispatch(ids, grid=memory, block=1, args=(target,))
        with pytest.raises(OperationError, match="70000 blocks along y"):
            failing.wait(LIMIT)
