"""tinygrad computes through hal as numpy does: eagerly, as recordings, on two devices."""

import os
import sys
from pathlib import Path

import pytest
from child_processes import output_of

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "tinygrad_backend"
PROGRAM = """
import numpy as np
import ops_hal
from tinygrad import Device, Tensor, TinyJit, Variable, dtypes

def tensor(array):
    return Tensor(array, device="HAL").realize()

random = np.random.default_rng(0)
a, b = (random.standard_normal((32, 32), dtype=np.float32) for _ in range(2))
found = {
    "matmul": ((tensor(a) @ tensor(b)), a @ b),
    "softmax": (tensor(a).softmax(), np.exp(a) / np.exp(a).sum(-1, keepdims=True)),
    "half": ((tensor(a).cast(dtypes.half) * 2).float(), (a.astype(np.float16) * 2).astype(float)),
    "integers": (tensor(np.arange(100)).cumsum(), np.arange(100).cumsum()),
}
for name, (ours, expected) in found.items():
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-4, atol=1e-5, err_msg=name)

kernel = Device["HAL"].runtime("odd", Device["HAL"].compiler.compile(
    'extern "C" __global__ void odd(float *x) { for (int i = 0; i < 9999; ++i) x[i % 64] += i; }'
))
room = Device["HAL"].allocator.alloc(256)
for _ in range(20):  # DEBUG=2 asks for seconds
    assert kernel(room, global_size=(1, 1, 1), local_size=(1, 1, 1), wait=True) >= 0

recordings = []
record = Device["HAL"].hal.record
Device["HAL"].hal.__class__.record = lambda self, **how: recordings.append(how) or record(**how)

@TinyJit
def layer(x, w):
    return ((x @ w).relu() @ w).sum(axis=0).realize()

for _ in range(4):
    x, w = (random.standard_normal((16, 16), dtype=np.float32) for _ in range(2))
    expected = (np.maximum(x @ w, 0) @ w).sum(axis=0)
    np.testing.assert_allclose(layer(tensor(x), tensor(w)).numpy(), expected, rtol=1e-3, atol=1e-4)

@TinyJit
def total(x):
    return ((x * 2).contiguous() + x).sum().realize()

whole = tensor(np.arange(40, dtype=np.float32))
for n in range(3, 40, 6):
    assert total(whole[: Variable("n", 1, 40).bind(n)]).item() == 3 * sum(range(n))

@TinyJit
def spread(x, w):
    return ((x @ w).relu() * 2).sum(axis=0).realize()

devices = ("HAL", "HAL:1")
for _ in range(4):
    x, w = (random.standard_normal((8, 8), dtype=np.float32) for _ in range(2))
    parts = tensor(x).shard(devices, axis=0).realize(), tensor(w).shard(devices).realize()
    expected = np.maximum(x @ w, 0).sum(axis=0) * 2
    np.testing.assert_allclose(spread(*parts).numpy(), expected, rtol=1e-3, atol=1e-4)
print(len(recordings), [kind for how in recordings for kind in how["slots"] if kind == "scalar"])
"""


def test_tinygrad_runs_on_hal():
    pytest.importorskip("tinygrad", reason="pip install tinygrad==0.13.0")
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "CACHELEVEL": "0"}
    found = output_of([sys.executable, "-c", PROGRAM], env=environment)
    # One recording for all lengths, and one for two devices
    assert found.split() == ["3", "['scalar']"]
