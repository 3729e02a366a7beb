"""Kernels: C4's empty grids, C5's typed arguments, and the life of executables."""

import gc

import numpy as np
import pytest
from core_harness import LIMIT

import hal
from hal.errors import ArgumentTypeError, InvalidArgumentError

SOURCE = """
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void is_null(const int *pointer, int *out) { out[0] = pointer == nullptr; }

__global__ void nothing() {}
"""


@pytest.fixture(scope="module")
def compiled():
    """A device and the program on it, compiled once for all tests that leave it as it is."""
    with hal.create_device("cpu") as device:
        yield device, device.compile(SOURCE, filename="core.cpp")


def test_null_pointers_c5(compiled):
    device, program = compiled
    out = device.upload(np.zeros(2, np.int32))
    for pointer, offset, expected in ((None, 0, 1), (out, 4, 0)):
        target = out.subspan(offset, 4)
        device.queue.dispatch(program["is_null"], grid=1, block=1, args=(pointer, target)).wait(
            LIMIT
        )
        assert target.numpy().tolist() == [expected]


WRONG_SHAPES = {
    "negative grid": ({"grid": -1}, InvalidArgumentError, "grid.*-1"),
    "huge grid": ({"grid": 2**31}, InvalidArgumentError, "2147483647"),
    "huge grid y": ({"grid": (1, 65536)}, InvalidArgumentError, "along y.*65535"),
    "four numbers": ({"grid": (1, 1, 1, 1)}, InvalidArgumentError, "grid"),
    "no number": ({"grid": ()}, InvalidArgumentError, "grid"),
    "float grid": ({"grid": 1.5}, ArgumentTypeError, "grid"),
    "an array of no ints": ({"grid": np.array([1.5])}, ArgumentTypeError, "grid"),
    "a table": ({"grid": np.ones((3, 1), np.uint32)}, ArgumentTypeError, "grid"),
    "float in grid": ({"grid": (1, 2.0)}, ArgumentTypeError, "grid"),
    "text grid": ({"grid": "1"}, ArgumentTypeError, "grid"),
    "bool grid": ({"grid": True}, ArgumentTypeError, "grid"),
    "no grid": ({"grid": None}, ArgumentTypeError, "grid"),
    "zero block": ({"block": 0}, InvalidArgumentError, "block"),
    "zero in block": ({"block": (4, 0)}, InvalidArgumentError, "block"),
    "negative block": ({"block": (-4, -1)}, InvalidArgumentError, "block"),
    "huge block": ({"block": 1025}, InvalidArgumentError, "1024"),
    "huge product": ({"block": (32, 32, 2)}, InvalidArgumentError, "1024"),
    "negative shared": ({"shared_memory": -1}, InvalidArgumentError, "shared memory"),
    "huge shared": ({"shared_memory": 1 << 30}, InvalidArgumentError, "shared memory"),
    "float shared": ({"shared_memory": 1.0}, ArgumentTypeError, "shared memory"),
}


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_wrong_shapes_are_refused(compiled, name):
    device, program = compiled
    changed, error, match = WRONG_SHAPES[name]
    given = {"grid": 1, "block": 1, "shared_memory": 0, **changed}
    with pytest.raises(error, match=match) as caught:
        device.queue.dispatch(program["nothing"], **given)
    assert "nothing" in str(caught.value)
    device.queue.dispatch(program["nothing"], grid=1, block=1).wait(LIMIT)


def test_modules_live_as_long_as_their_work_q5(open_probe, latch):
    """Q5: the program is dropped while its kernel is pending and while it runs."""
    device, probe = open_probe()
    gate = hal.create_semaphore()
    x = device.upload(np.ones(4, np.float32))
    program = device.compile(SOURCE)
    pending = device.queue.dispatch(
        program["saxpy"], grid=1, block=4, args=(2.0, x, x, 4), wait=gate.at(1)
    )
    del program
    gc.collect()
    device.trim(1 << 40)
    assert probe.live()["module"] == 1
    probe.hold(latch)
    gate.signal(1)
    assert pending.state == "issued"
    gc.collect()
    device.trim(1 << 40)
    assert probe.live()["module"] == 1
    latch.open()
    assert x.numpy(wait=pending).tolist() == [3] * 4
    device.wait_idle(LIMIT)
    gc.collect()
    device.trim(1 << 40)
    assert "module" not in probe.live()
