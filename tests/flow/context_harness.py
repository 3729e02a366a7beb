"""What tests of contexts work on."""

import numpy as np

from hal.flow import Step

SOURCE = """
__global__ void HAL_BLOCK(64) add(const int *x, int *y, int amount) {
  y[threadIdx.x] = x[threadIdx.x] + amount;
}
__global__ void HAL_BLOCK(64) scale(const int *y, int *z, int factor) {
  z[threadIdx.x] = y[threadIdx.x] * factor;
}
__global__ void HAL_BLOCK(64) count(int *y) { y[threadIdx.x] += 1; }
__global__ void HAL_BLOCK(64) merge(const int *theirs, int *ours) {
  ours[threadIdx.x] += theirs[threadIdx.x];
}
"""
BYTES = 256
NUMBERS = np.arange(64, dtype=np.int32)


def step(kernel, scalars=None, **buffers):
    """Return a step of one block, with names for its pointers."""
    return Step(kernel, grid=1, buffers=buffers, scalars=scalars or {})


def declare(context, mode, *names):
    """Declare room for numbers."""
    for name in names:
        context.allocate(name, BYTES, dtype=np.int32, mode=mode)
    return context
