"""Hold the demo's kernels, in the portable dialect that every backend compiles.

Each takes one thread for each pixel of its result, x along the rows; rows lie
one after the other without padding. A kernel that looks at neighbours makes a
result that is smaller than its source by these neighbours, so that none has to
care for borders: the host extends the picture before it cuts it into tiles.

A tile's width and height are in memory, and `right` and `below` say how much
wider and higher the result is for the halo that later kernels need. So the
launches are the same for every tile, also for the smaller ones at the borders.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK", "SOURCE", "defines"]

BLOCK: Final = (64, 4)
"""Threads of a block, along x and y: whole warps along the rows on every device."""

SOURCE: Final = r"""
// RADIUS and WEIGHTS, the blur's 2 * RADIUS + 1 weights, are defined by whoever compiles this.

// Red, green and blue bytes to the luminance of ITU-R BT.601, 0 to 255.
extern "C" __global__ void luminance(const unsigned char* __restrict__ rgb,
                                     float* __restrict__ grey, const int* __restrict__ tile,
                                     int right, int below) {
  const int width = tile[0] + right, height = tile[1] + below;
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const int at = y * width + x;
  grey[at] = 0.299f * rgb[3 * at] + 0.587f * rgb[3 * at + 1] + 0.114f * rgb[3 * at + 2];
}

// Convolve the rows; the source is wider by 2 * RADIUS.
extern "C" __global__ void blur_rows(const float* __restrict__ source,
                                     float* __restrict__ target, const int* __restrict__ tile,
                                     int right, int below) {
  const float weights[] = {WEIGHTS};
  const int width = tile[0] + right, height = tile[1] + below;
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const int first = y * (width + 2 * RADIUS) + x;
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k <= 2 * RADIUS; ++k) sum += weights[k] * source[first + k];
  target[y * width + x] = sum;
}

// Convolve the columns; the source is higher by 2 * RADIUS.
extern "C" __global__ void blur_columns(const float* __restrict__ source,
                                        float* __restrict__ target, const int* __restrict__ tile,
                                        int right, int below) {
  const float weights[] = {WEIGHTS};
  const int width = tile[0] + right, height = tile[1] + below;
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k <= 2 * RADIUS; ++k) sum += weights[k] * source[(y + k) * width + x];
  target[y * width + x] = sum;
}

// The length of Sobel's gradient; the source is wider and higher by 2.
extern "C" __global__ void sobel(const float* __restrict__ source, float* __restrict__ edges,
                                 const int* __restrict__ tile, int right, int below) {
  const int width = tile[0] + right, height = tile[1] + below;
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const int top = y * (width + 2) + x;
  const int middle = top + width + 2;
  const int bottom = middle + width + 2;
  const float dx = source[top + 2] - source[top] +
                   2.0f * (source[middle + 2] - source[middle]) +
                   source[bottom + 2] - source[bottom];
  const float dy = source[bottom] - source[top] + 2.0f * (source[bottom + 1] - source[top + 1]) +
                   source[bottom + 2] - source[top + 2];
  edges[y * width + x] = sqrtf(dx * dx + dy * dy);
}
"""
"""The kernels' source; compile it with `defines`."""


def defines(weights: npt.NDArray[np.float32]) -> dict[str, str]:
    """Return the macros for a blur with these weights, an odd number of them.

    As constants in the source, since a compiler unrolls a loop of known length
    and then keeps them in registers.
    """
    return {
        "RADIUS": str(weights.size // 2),
        "WEIGHTS": ", ".join(f"{float(weight)!r}f" for weight in weights),
    }
