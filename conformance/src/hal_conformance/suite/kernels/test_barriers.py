"""Barriers in kernels: each place that they may stand in, and what lives across them (C5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("compile")

Numbers = np.ndarray[Any, Any]
Run = Callable[..., Numbers]

BLOCK = 64
SOURCE = """
__global__ void HAL_BLOCK(64) sums(const int *x, int *y) {
  __shared__ int a[2][64];
  const int t = threadIdx.x;
  int from = 0;
  a[0][t] = x[blockIdx.x * blockDim.x + t];
  __syncthreads();
  for (int by = 1; by < blockDim.x; by *= 2) {
    a[1 - from][t] = a[from][t] + (t < by ? 0 : a[from][t - by]);
    from = 1 - from;
    __syncthreads();
  }
  y[blockIdx.x * blockDim.x + t] = a[from][t];
}
__global__ void HAL_BLOCK(64) branches(const int *x, int *y, int n) {
  __shared__ int a[64];
  const int t = threadIdx.x;
  if (blockIdx.x % 2 == 0) {
    a[t] = x[t];
    __syncthreads();
    if (n > 3) {
      const int v = a[63 - t];
      __syncthreads();
      a[t] = v + 1;
    } else {
      a[63 - t] += 5;
    }
    __syncthreads();
    y[blockIdx.x * 64 + t] = a[(t + 1) % 64];
  } else {
    a[63 - t] = x[t];
    __syncthreads();
    __syncthreads();
    y[blockIdx.x * 64 + t] = 2 * a[t];
  }
}
__global__ void HAL_BLOCK(64) returned(const int *x, int *y, int n) {
  __shared__ int a[64];
  const int t = threadIdx.x;
  a[t] = 7;
  if (t >= n) return;
  a[t] = x[t];
  __syncthreads();
  for (int k = 0; k < 3; k++) {
    const int v = a[(t + 1) % n];
    __syncthreads();
    a[t] += v;
    if (t == 0 && k == 1) return;
    __syncthreads();
  }
  y[t] = a[t] + a[63];
}
__global__ void HAL_BLOCK(64) values(const int *x, int *y, int n, double d) {
  extern __shared__ int a[];
  int own[3] = {(int)threadIdx.x, n, 2};
  short s = (short)(x[threadIdx.x] - 100);
  unsigned int u = x[threadIdx.x] * 3000000000u;
  const int *p = x + threadIdx.x;
  y += 4 * threadIdx.x;
  n -= threadIdx.x;
  d += 0.5 * threadIdx.x;
  a[threadIdx.x] = own[0];
  __syncthreads();
  own[1] += a[63 - threadIdx.x];
  s *= 2;
  p++;
  d *= 3;
  n *= 5;
  __syncthreads();
  y[0] = own[0] + 1000 * own[1] + 100000 * own[2];
  y[1] = s + (int)(u >> 16);
  y[2] = (int)(p - x) + n;
  y[3] = (int)(2 * d);
}
__global__ void HAL_BLOCK(24) nested(const int *x, int *y, int n) {
  __shared__ int a[4][6];
  const int i = threadIdx.x, j = threadIdx.y + 2 * threadIdx.z;
  int v = x[i + 6 * j];
  for (int k = 0; k < n; k++) {
    for (int m = (int)blockIdx.x; m > 0; m--) {
      a[j][i] = v;
      __syncthreads();
      v += a[(j + 1) % 4][(i + m) % 6] % 100;
      __syncthreads();
    }
    v += k * j;
  }
  for (int k = 0; k < 2; k++) {
    a[j][i] = v;
    __syncthreads();
    v ^= a[3 - j][5 - i];
    __syncthreads();
  }
  y[i + 6 * j + 24 * blockIdx.x] = v;
}
__global__ void HAL_BLOCK(64) strides(const int *x, int *y, int n, int rows) {
  __shared__ int a[64];
  const int t = threadIdx.x;
  int v = 0;
  if (t == 63) return;
  for (int i = t; i < n; i += blockDim.x) v += x[i];
  for (int r = 1; r < rows; r++) {
    int w = x[r * 64 + t];
    v += w * r;
  }
  a[t] = v;
  __syncthreads();
  y[t] = a[(t + 1) % 63];
}
__global__ void HAL_BLOCK(64) some(const int *x, int *y, int n) {
  __shared__ int a[2][32];
  const int i = threadIdx.x, j = threadIdx.y;
  const unsigned int u = threadIdx.x;
  int v = 0;
  for (int k = i + 32 * j; k < n; k += 64) v += x[k];
  a[j][i] = v;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k /= 2) {
    if (i < k) a[j][i] += a[j][i + k];
    __syncthreads();
  }
  y[i + 32 * j] = a[j][0];
  __syncthreads();
  if (i == n % 32) y[i + 32 * j] += 1;
  __syncthreads();
  if (i < n - 70) y[i + 32 * j] += 10;
  __syncthreads();
  if (u < n - 70) y[i + 32 * j] += 100;
  __syncthreads();
  if (threadIdx.x < 4 && x[i] % 2) y[i + 32 * j] += 1000;
}
__global__ void HAL_BLOCK(64) votes(const int *x, int *y, int n) {
  const int t = threadIdx.x;
  x += blockIdx.x * 64;
  if (t >= n) return;
  int found = 0;
  for (int k = 0; k < 5; k++) found = 11 * found + __syncthreads_count(x[t] % 5 <= k);
  if (__syncthreads_or(x[t] == x[n - 1])) found += 1;
  if (__syncthreads_or(x[t] < 0)) found += 2;
  if (__syncthreads_and(x[t] >= 0)) found += 4;
  if (__syncthreads_and(x[t] != x[n - 1])) found += 8;
  y[blockIdx.x * 64 + t] = found;
}
"""


@pytest.fixture
def program(device: hal.Device) -> hal.Executable:
    """Kernels whose threads wait for each other."""
    return device.compile(SOURCE, filename="barriers.cpp")


@pytest.fixture
def values() -> Numbers:
    """Numbers that tell elements apart."""
    return np.random.default_rng(5).integers(0, 1000, 16 * BLOCK).astype(np.int32)


@pytest.fixture
def run(device: hal.Device, program: hal.Executable, values: Numbers) -> Run:
    """Run a kernel over the values and as many results as are asked for."""

    def run(
        name: str,
        size: int,
        scalars: Sequence[float] = (),
        grid: int = 1,
        block: tuple[int, ...] = (BLOCK,),
        shared_memory: int = 0,
    ) -> Numbers:
        x, y = device.upload(values), device.upload(np.zeros(size, np.int32))
        device.queue.dispatch(
            program[name],
            grid=grid,
            block=block,
            shared_memory=shared_memory,
            args=(x, y, *scalars),
        ).wait(LIMIT)
        return y.numpy(timeout=LIMIT)

    return run


def test_threads_meet_in_a_loop_c5(run, values):
    """C5: sums of all elements up to each, in rounds with a barrier at the end of each."""
    found = run("sums", 3 * BLOCK, grid=3).reshape(3, BLOCK)
    assert np.array_equal(found, np.cumsum(values[: 3 * BLOCK].reshape(3, BLOCK), axis=1))


@pytest.mark.parametrize("n", [3, 4])
def test_threads_meet_in_the_branch_of_their_block_c5(run, values, n):
    """C5: each block goes another way, with other barriers, two in a row among them."""
    found = run("branches", 2 * BLOCK, [n], grid=2).reshape(2, BLOCK)
    x = values[:BLOCK]
    a = x[::-1] + 1 if n > 3 else x + 5
    assert np.array_equal(found, [np.roll(a, -1), 2 * x[::-1]])


@pytest.mark.parametrize("n", [64, 33, 2])
def test_threads_that_have_returned_are_not_waited_for_c5(run, values, n):
    """C5: some return before the first barrier, one before the last."""
    a = values[:BLOCK].copy()
    a[n:] = 7
    for k in range(3):
        v = np.roll(a[:n], -1)
        a[1 if k == 2 else 0 : n] += v[1 if k == 2 else 0 :]
    expected = np.where(np.arange(BLOCK) < n, a + a[63], 0)
    expected[0] = 0
    assert np.array_equal(run("returned", BLOCK, [n]), expected)


def test_what_is_a_threads_own_stays_so_c5(run, values):
    """C5: variables, arrays, pointers and parameters that change live across barriers."""
    t, x = np.arange(BLOCK), values[:BLOCK].astype(np.int64)
    found = run("values", 4 * BLOCK, [9, 0.25], shared_memory=4 * BLOCK).reshape(BLOCK, 4).T
    assert np.array_equal(found[0], t + 1000 * (9 + 63 - t) + 200000)
    assert np.array_equal(found[1], 2 * (x - 100) + (x * 3000000000 % 2**32 >> 16))
    assert np.array_equal(found[2], t + 1 + 5 * (9 - t))
    assert np.array_equal(found[3], (2 * 3 * (0.25 + 0.5 * t)).astype(int))


def test_threads_in_rows_and_layers_meet_in_nested_loops_c5(run, values):
    """C5: a block of three dimensions, loops as long as the block says, one counter's name."""
    found = run("nested", 3 * 24, [2], grid=3, block=(6, 2, 2)).reshape(3, 4, 6)
    for block in range(3):
        v = values[:24].reshape(4, 6).copy()
        for k in range(2):
            for m in range(block, 0, -1):
                v += np.roll(np.roll(v, -1, axis=0), -m, axis=1) % 100
            v += k * np.arange(4, dtype=np.int32)[:, None]
        for _ in range(2):
            v ^= v[::-1, ::-1].copy()
        assert np.array_equal(found[block], v)


@pytest.mark.parametrize("n", [1000, 64, 63, 6, 0])
def test_loops_without_barriers_end_for_each_thread_alone_c5(run, values, n):
    """C5: threads that go through an array together; one has returned, and some end earlier."""
    x = values.astype(np.int64)
    v = np.array([x[t:n:BLOCK].sum() for t in range(BLOCK)])
    v += sum(r * x[r * BLOCK : (r + 1) * BLOCK] for r in range(1, 9))
    expected = [*np.roll(v[:-1], -1), 0]
    assert np.array_equal(run("strides", BLOCK, [n, 9]), expected)


@pytest.mark.parametrize("n", [100, 70, 64, 33, 0])
def test_conditions_choose_threads_of_each_row_c5(run, values, n):
    """C5: the first threads of each row, or one: signed and unsigned bounds, none at all, too."""
    i, x = np.arange(32), values.astype(np.int64)
    totals = [sum(x[k] for k in range(n) if k // 32 % 2 == j) for j in range(2)]
    extra = np.where(i == n % 32, 1, 0) + np.where(i < n - 70, 10, 0)
    extra += np.where(i < (n - 70) % 2**32, 100, 0)
    extra += np.where((i < 4) & (x[:32] % 2 == 1), 1000, 0)
    expected = np.array(totals)[:, None] + extra
    assert np.array_equal(run("some", BLOCK, [n], block=(32, 2)).reshape(2, 32), expected)


@pytest.mark.parametrize("n", [64, 33, 1])
def test_threads_vote_at_a_barrier_c5(run, values, n):
    """C5: each thread gets the votes of its block's threads that have not returned."""
    x = values[: 3 * BLOCK].reshape(3, BLOCK)[:, :n]
    found = np.zeros(3, np.int32)
    for k in range(5):
        found = 11 * found + (x % 5 <= k).sum(axis=1, dtype=np.int32)
    expected = np.zeros((3, BLOCK), np.int32)
    expected[:, :n] = (found + 1 + 4)[:, None]
    assert np.array_equal(run("votes", 3 * BLOCK, [n], grid=3).reshape(3, BLOCK), expected)
