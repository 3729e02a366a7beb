"""Warps in kernels: shuffles, votes and tiles, as the device's own width has them (C5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("compile")

BLOCK = 128
SOURCE = """
#include <cooperative_groups.h>
#include <cuda_fp16.h>
namespace cg = cooperative_groups;

__device__ int sum_of(cg::thread_block_tile<8> tile, int v) {
  for (unsigned int by = tile.size() / 2; by > 0; by /= 2) v += tile.shfl_xor(v, by);
  return v;
}
__global__ void HAL_BLOCK(128) shuffles(const int *x, int *a, double *b, float *c, int *width) {
  const int i = threadIdx.x, v = x[i];
  a += 4 * i;
  a[0] = __shfl_sync(0xffffffff, v, 3);
  a[1] = __shfl_up_sync(0xffffffff, v, 2, 8);
  a[2] = __shfl_down_sync(0xffffffff, v, 5);
  a[3] = __shfl_xor_sync(0xffffffff, v, 9, 16);
  b[i] = __shfl_xor_sync(0xffffffff, v + 0.125, 1);
  c[i] = __half2float(__shfl_down_sync(0xffffffff, __float2half((float)i), 1, 4));
  *width = warpSize;
}
__global__ void HAL_BLOCK(128) votes(const int *x, unsigned long long *a, int *b) {
  const int i = threadIdx.x;
  if (i % 2 == 0) {  // the threads of a branch name one another
    const unsigned long long even = 0x5555555555555555;
    a[i] = __ballot_sync(even, x[i] > 0);
  } else {
    const unsigned long long odd = 0xaaaaaaaaaaaaaaaa;
    a[i] = __ballot_sync(odd, x[i] > 0);
  }
  __syncwarp();
  b[i] = (__any_sync(0xffffffff, x[i] == 7) != 0) + 2 * (__all_sync(0xffffffff, x[i] < 40) != 0);
}
__global__ void HAL_BLOCK(128) sums(const int *x, int *y, int *total) {
  __shared__ int parts[128];
  int v = x[threadIdx.x];
  for (int by = warpSize / 2; by > 0; by /= 2) v += __shfl_down_sync(0xffffffff, v, by);
  if (threadIdx.x % warpSize == 0) parts[threadIdx.x / warpSize] = v;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 0; i < 128 / warpSize; i++) atomicAdd(total, parts[i]);
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  int w = sum_of(tile, x[block.thread_rank()]);
  block.sync();
  y += 2 * threadIdx.x;
  y[0] = w + 1000 * (int)tile.thread_rank();
  y[1] = (int)tile.ballot(x[threadIdx.x] > 0) + 1000 * tile.any(x[threadIdx.x] == 7);
}
"""


@pytest.fixture
def program(device: hal.Device) -> hal.Executable:
    """Kernels of one block whose threads work together in warps."""
    return device.compile(SOURCE, filename="warps.cpp")


@pytest.fixture
def values() -> np.ndarray[Any, Any]:
    """A number for each thread, some above and some below zero."""
    return np.random.default_rng(3).integers(-50, 50, BLOCK).astype(np.int32)


def test_shuffles_fetch_from_other_lanes_c5(device, program, values):
    """C5: by lane, up, down and across, in groups of any width; 2, 4 and 8 bytes."""
    x, a = device.upload(values), device.upload(np.zeros((BLOCK, 4), np.int32))
    b, c = device.upload(np.zeros(BLOCK)), device.upload(np.zeros(BLOCK, np.float32))
    width = device.upload(np.zeros(1, np.int32))
    run = device.queue.dispatch(program["shuffles"], grid=1, args=(x, a, b, c, width))
    run.wait(timeout=LIMIT)
    wide = int(width.numpy(timeout=LIMIT)[0])
    assert wide == device.info.warp_size
    i = np.arange(BLOCK)
    lane, eight = i % wide, i % 8
    found = a.numpy(timeout=LIMIT).T
    np.testing.assert_array_equal(found[0], values[i - lane + 3])
    np.testing.assert_array_equal(found[1], values[np.where(eight >= 2, i - 2, i)])
    np.testing.assert_array_equal(found[2], values[np.where(lane + 5 < wide, i + 5, i) % BLOCK])
    np.testing.assert_array_equal(found[3], values[i ^ 9])
    np.testing.assert_array_equal(b.numpy(timeout=LIMIT), values[i ^ 1] + 0.125)
    np.testing.assert_array_equal(c.numpy(timeout=LIMIT), np.where(i % 4 < 3, i + 1, i))


def test_votes_count_the_lanes_of_a_mask_c5(device, program, values):
    """C5: the threads of each branch vote among themselves, then those of the warp."""
    x, a = device.upload(values), device.upload(np.zeros(BLOCK, np.uint64))
    b = device.upload(np.zeros(BLOCK, np.int32))
    device.queue.dispatch(program["votes"], grid=1, args=(x, a, b)).wait(timeout=LIMIT)
    wide = device.info.warp_size
    ballots, flags = a.numpy(timeout=LIMIT), b.numpy(timeout=LIMIT)
    for i in range(BLOCK):
        warp = values[i // wide * wide :][:wide]
        yes = sum(1 << lane for lane in range(i % 2, wide, 2) if warp[lane] > 0)
        assert int(ballots[i]) == yes
        assert flags[i] == bool((warp == 7).any()) + 2 * bool((warp < 40).all())


def test_warps_and_tiles_add_up_c5(device, program, values):
    """C5: by shuffles, the block's shared memory, and tiles of eight threads."""
    x, y = device.upload(values), device.upload(np.zeros((BLOCK, 2), np.int32))
    total = device.upload(np.zeros(1, np.int32))
    device.queue.dispatch(program["sums"], grid=1, args=(x, y, total)).wait(timeout=LIMIT)
    assert total.numpy(timeout=LIMIT)[0] == values.sum()
    tiles = values.reshape(-1, 8)
    found = y.numpy(timeout=LIMIT).reshape(-1, 8, 2)
    np.testing.assert_array_equal(
        found[..., 0], tiles.sum(axis=1, keepdims=True) + 1000 * np.arange(8)
    )
    yes = ((tiles > 0) << np.arange(8)).sum(axis=1) + 1000 * (tiles == 7).any(axis=1)
    np.testing.assert_array_equal(found[..., 1], np.repeat(yes[:, None], 8, axis=1))
