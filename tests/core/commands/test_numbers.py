"""Slots for scalars and grids: C3, C4, in both ways of running a recording."""

import ctypes

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import HalError

SOURCE = """
struct Pair { int a, b; };
__global__ void HAL_BLOCK(1) put(double *out, signed char small, unsigned long long large,
                                 double real, bool flag, Pair pair) {
  int i = blockIdx.x + 2 * blockIdx.y;
  out[i] = small + 1000.0 * (double)large + real + (flag ? 0.25 : 0) + pair.a * pair.b;
}
"""


@pytest.fixture(scope="module")
def compiled():
    """A device and a kernel on it."""
    with hal.create_device("cpu") as device:
        yield device, device.compile(SOURCE, filename="numbers.cpp")["put"]


def record(device, kernel, mode, **options):
    kinds = [np.float64, *["scalar"] * 5, "grid"]
    with device.record(slots=kinds, command_buffer=mode, **options) as commands:
        *values, grid = commands.slots
        commands.dispatch(kernel, grid=grid, args=values)
    return commands


def pair(a, b):
    return np.array([a, b], np.int32).tobytes()


def run(device, commands, *numbers):
    out = device.upload(np.full(4, -1.0))
    done = device.queue.execute(commands, bindings=[out, *numbers])
    return out.numpy(wait=done, timeout=LIMIT).tolist()


def test_every_type_of_parameter_takes_a_slot_c3(compiled, mode):
    device, kernel = compiled
    commands = record(device, kernel, mode)
    assert run(device, commands, *(-3, 2, 0.5, True), pair(2, 3), 1) == [2003.75, -1, -1, -1]
    assert run(device, commands, *(np.int8(4), 2**40, 0, False), pair(0, 3), (1, 2)) == [
        4 + 1000.0 * 2**40,
        -1,
        4 + 1000.0 * 2**40,
        -1,
    ]

    class Pair(ctypes.Structure):
        _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_int))

    numbers = (0, 0, -0.0, np.bool_(0), Pair(3, 4), np.array([4]))
    assert run(device, commands, *numbers) == [12.0] * 4


@pytest.mark.parametrize("hazards", ["auto", "manual"])
def test_a_graph_is_updated_in_place_c4(compiled, hazards):
    """C4: whatever the numbers are, empty grids too: one instance, and an update for each."""
    device, kernel = compiled
    commands = record(device, kernel, "graph", hazards=hazards)
    seen = []
    update = device._native.update_graph

    class Native:
        def __getattr__(self, name):
            return getattr(native, name)

        def update_graph(self, instance, index, node):
            seen.append(node.grid)
            update(instance, index, node)

    native = device._native
    out = device.upload(np.zeros(4))
    device._native = Native()
    try:
        for grid in (0, 1, 1, (1, 0), 2):
            table = [out, 1, 1, 1.0, True, pair(1, 1), grid]
            device.queue.execute(commands, bindings=table).wait(LIMIT)
    finally:
        device._native = native
    assert seen == [(0, 1, 1), (1, 1, 1), (1, 0, 1), (2, 1, 1)]
    assert len(commands._playback._pool) == 1


def test_a_number_is_taken_during_the_call_c3(compiled, mode):
    """C3: arrays that stand for a grid or a record may change at once."""
    device, kernel = compiled
    commands = record(device, kernel, mode)
    gate = hal.create_semaphore()
    record_bytes, grid = bytearray(pair(2, 5)), np.array([2, 1])
    out = device.upload(np.zeros(4))
    table = [out, 0, 0, 0, False, record_bytes, grid]
    done = device.queue.execute(commands, bindings=table, wait=gate.at(1))
    record_bytes[:] = bytes(8)
    grid[:] = 0
    gate.signal(1)
    assert out.numpy(wait=done, timeout=LIMIT).tolist() == [10, 10, 0, 0]


def test_late_buffers_and_numbers_are_bound_together_m3(compiled, mode):
    """M3: numbers beside a buffer that has its memory only at issue."""
    device, kernel = compiled
    commands = record(device, kernel, mode, hazards="auto")
    gate = hal.create_semaphore()
    out = device.queue.alloca(32, dtype=np.float64, wait=gate.at(1))
    table = [out, 1, 0, 0, False, pair(0, 0), 2]
    done = device.queue.execute(commands, bindings=table, wait=out.allocation)
    gate.signal(1)
    assert out.numpy(wait=done, timeout=LIMIT).tolist()[:2] == [1, 1]
    device.queue.dealloca(out)


def test_a_slot_of_no_command_takes_its_kind_c3(compiled, mode):
    device, _ = compiled
    with device.record(slots=["scalar", "grid"], command_buffer=mode) as commands:
        pass
    device.queue.execute(commands, bindings=[1.5, (1, 2)]).wait(LIMIT)
    buffer = device.allocate(8)
    for table, words in (
        ([buffer, 1], "slot 0 stands for a scalar, of no command"),
        ([1, buffer], "slot 1 stands for a grid, of no command"),
        ([1, -1], "slot 1: the grid"),
    ):
        with pytest.raises(HalError, match=words):
            device.queue.execute(commands, bindings=table)
