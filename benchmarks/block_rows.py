"""Measure kernels whose threads work together: the CPU backend against C++ loops and numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from harness import Row, Sample
from native import NativeLoops

import hal

__all__ = ["SOURCE", "rows"]

SOURCE: Final = """
__global__ void naive(const float *a, const float *b, float *c, int n) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= n || y >= n) return;
  float sum = 0;
  for (int k = 0; k < n; k++) sum += a[y * n + k] * b[k * n + x];
  c[y * n + x] = sum;
}
__global__ void tiled(const float *a, const float *b, float *c, int n) {
  __shared__ float s[16][16], t[16][16];
  const int i = threadIdx.x, j = threadIdx.y;
  const int x = blockIdx.x * 16 + i, y = blockIdx.y * 16 + j;
  float sum = 0;
  for (int m = 0; m < n / 16; m++) {
    s[j][i] = a[y * n + m * 16 + i];
    t[j][i] = b[(m * 16 + j) * n + x];
    __syncthreads();
    for (int k = 0; k < 16; k++) sum += s[j][k] * t[k][i];
    __syncthreads();
  }
  c[y * n + x] = sum;
}
__global__ void softmax(const float *in, float *out, int n) {
  __shared__ float s[256];
  const float *row = in + blockIdx.x * n;
  float *to = out + blockIdx.x * n;
  const int t = threadIdx.x;
  float most = -INFINITY;
  for (int i = t; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
  s[t] = most;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (t < k) s[t] = fmaxf(s[t], s[t + k]);
    __syncthreads();
  }
  most = s[0];
  __syncthreads();
  float sum = 0;
  for (int i = t; i < n; i += blockDim.x) {
    to[i] = expf(row[i] - most);
    sum += to[i];
  }
  s[t] = sum;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (t < k) s[t] += s[t + k];
    __syncthreads();
  }
  for (int i = t; i < n; i += blockDim.x) to[i] /= s[0];
}
__global__ void sums(const float *in, float *out, int n) {
  __shared__ float s[256];
  const int t = threadIdx.x;
  const float *row = in + blockIdx.x * n;
  float sum = 0;
  for (int i = t; i < n; i += blockDim.x) sum += row[i];
  s[t] = sum;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (t < k) s[t] += s[t + k];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = s[0];
}
__global__ void convolution(const float *in, const float *w, float *out, int n) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= n || y >= n) return;
  float sum = 0;
  for (int j = 0; j < 5; j++)
    for (int i = 0; i < 5; i++) sum += w[j * 5 + i] * in[(y + j) * (n + 4) + x + i];
  out[y * n + x] = sum;
}
"""

_clock = time.perf_counter
Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class _Case:
    """A kernel over some arrays, and how it is launched."""

    title: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    inputs: Sequence[Floats]
    shape: tuple[int, ...]
    n: int
    amount: float  # of 1e9 operations or bytes
    unit: str
    numpy: Callable[..., Floats] | None


def rows(device: hal.Device, native: NativeLoops | None, *, quick: bool) -> list[Row]:
    """Return the rows; without `native` they have no side of C++.

    The sides' results are compared first.
    """
    random = np.random.default_rng(0)

    def floats(*shape: int) -> Floats:
        return random.random(shape, dtype=np.float32)

    cases = []
    for n in (256,) if quick else (256, 512):
        pair, work = (floats(n, n), floats(n, n)), 2e-9 * n**3
        square, flops = (n, n), "GFLOP/s"
        cases += [
            _Case(
                f"matrix product, {n}",
                "naive",
                (n // 32, n // 8),
                (32, 8),
                pair,
                square,
                n,
                work,
                flops,
                np.matmul,
            ),
            _Case(
                f"in tiles, {n}",
                "tiled",
                (n // 16, n // 16),
                (16, 16),
                pair,
                square,
                n,
                work,
                flops,
                np.matmul,
            ),
        ]
    n = 1024
    square = (n, n)
    table, image = floats(n, n), floats(n + 4, n + 4)
    cases += [
        _Case(
            "softmax of 1024 rows",
            "softmax",
            (n,),
            (256,),
            (table,),
            square,
            n,
            8e-9 * n * n,
            "GB/s",
            _softmax,
        ),
        _Case(
            "sums of 1024 rows",
            "sums",
            (n,),
            (256,),
            (table,),
            (n,),
            n,
            4e-9 * n * n,
            "GB/s",
            _sums,
        ),
        _Case(
            "convolution of 5 x 5",
            "convolution",
            (n // 128, n),
            (128, 1),
            (image, floats(5, 5)),
            square,
            n,
            50e-9 * n * n,
            "GFLOP/s",
            None,
        ),
    ]
    program = device.compile(SOURCE, filename="blocks.cpp")
    return [_row(device, program, native, case) for case in cases]


def _softmax(x: Floats) -> Floats:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _sums(x: Floats) -> Floats:
    return x.sum(axis=1)


def _row(
    device: hal.Device, program: hal.Executable, native: NativeLoops | None, case: _Case
) -> Row:
    result = device.upload(np.zeros(case.shape, np.float32))
    arguments = [*(device.upload(array) for array in case.inputs), result, case.n]
    kernel = program[case.kernel]

    def ours() -> None:
        device.queue.dispatch(kernel, grid=case.grid, block=case.block, args=arguments).wait()

    ours()
    sides = {"hal": _rate(ours, case.amount)}
    if native is not None:
        found = np.zeros(case.shape, np.float32)

        def theirs() -> None:
            native.call(case.kernel, *case.inputs, found, case.n)

        theirs()
        _require_close(case.title, result.numpy(), found)
        sides["openmp"] = _rate(theirs, case.amount)
    if case.numpy is not None:
        compute = case.numpy
        _require_close(case.title, result.numpy(), compute(*case.inputs))
        sides["numpy"] = _rate(lambda: compute(*case.inputs), case.amount)
    return Row(case.title, case.unit, sides, higher_is_better=True)


def _rate(work: Callable[[], object], amount: float) -> Sample:
    def sample() -> Mapping[str, float]:
        start = _clock()
        for _ in range(3):
            work()
        return {"": 3 * amount / (_clock() - start)}

    return sample


def _require_close(what: str, found: Floats, expected: Floats) -> None:
    if not np.allclose(found, expected, rtol=1e-3):
        message = f"{what}: two sides differ by {np.abs(found - expected).max():g}"
        raise AssertionError(message)
