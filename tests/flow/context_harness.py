"""What tests of contexts work on."""

from __future__ import annotations

import numpy as np

from hal.flow import Memory

SOURCE = """
__global__ void HAL_BLOCK(64) add(const int *x, int *y, int amount) {
  y[threadIdx.x] = x[threadIdx.x] + amount;
}
__global__ void HAL_BLOCK(64) scale(const int *y, int *z, int factor) {
  z[threadIdx.x] = y[threadIdx.x] * factor;
}
__global__ void HAL_BLOCK(64) count(int *y) { y[threadIdx.x] += 1; }
"""
BYTES = 256
NUMBERS = np.arange(64, dtype=np.int32)


def memory(mode):
    return Memory(BYTES, np.int32, mode)
