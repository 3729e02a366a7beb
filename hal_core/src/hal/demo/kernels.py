"""The demo's kernels, in the portable dialect that every backend compiles.

Each uses one thread for each pixel of its result, x along the rows; rows lie
one after the other without padding. A kernel that looks at neighbours makes a
result that is smaller than its source by these neighbours, so that no kernel has to
handle borders: the host extends the picture before it cuts it into tiles.

A tile's width and height stand in front of its colours, and `right` and `below` say how much
wider and higher the result is for the halo that later kernels need. So the
launches are the same for every tile, also for the smaller ones at the borders.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

import hal
from hal.demo.tiles import Tile
from hal.flow import Recording

BLOCK: Final = (64, 4)
"""Threads of a block, along x and y: whole warps along the rows on every device."""

TILE: Final = 0
"""The slot of a tile: its header, and its colours with their halo."""
EDGES: Final = 3
"""The slot of a tile's edge magnitude."""

HEADER: Final = 8
"""Bytes of a tile's header: its width and height, of 32 bits each."""

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


class TileKernels:
    """The compiled kernels, recorded for one tile after another, with `slots` for its memory."""

    def __init__(self, device: hal.Device, sigma: float, largest: Tile) -> None:
        """Compile for a blur of `sigma` pixels, and tiles that are no larger than `largest`.

        Raises the errors of `hal.Device.compile`.
        """
        self.device: Final = device
        self._largest = largest
        self._both = 2 * halo_of(sigma)
        self._program = device.compile(
            SOURCE, filename="demo.cpp", defines=defines(gaussian(sigma))
        )
        region = (largest.width + self._both) * (largest.height + self._both)
        floats = (np.float32, 4 * region)
        pixels = (np.float32, 4 * largest.width * largest.height)
        self.slots: Final = ((np.uint8, HEADER + 3 * region), floats, floats, pixels)

    def record(self, commands: hal.CommandBuffer | Recording) -> None:
        """Record the kernels for a tile of any size, in a recording with these slots.

        Their order follows from the bytes that they read and write. The grids
        are those of the largest tile; a smaller one leaves threads idle.
        """
        both = self._both
        tile, grey, scratch, edges = commands.slots
        for name, source, target, right, below in (
            ("luminance", tile.subspan(HEADER), grey, both, both),
            ("blur_rows", grey, scratch, 2, both),
            ("blur_columns", scratch, grey, 2, 2),
            ("sobel", grey, edges, 0, 0),
        ):
            width, height = self._largest.width + right, self._largest.height + below
            commands.dispatch(
                self._program[name],
                grid=(-(-width // BLOCK[0]), -(-height // BLOCK[1])),
                block=BLOCK,
                args=(source, target, tile, right, below),
            )


def gaussian(sigma: float) -> npt.NDArray[np.float32]:
    """Return the weights of a Gaussian that ends at four standard deviations; their sum is 1."""
    radius = _radius(sigma)
    bell = [math.exp(-0.5 * (k / sigma) ** 2) for k in range(-radius, radius + 1)]
    total = math.fsum(bell)
    return np.array([weight / total for weight in bell], dtype=np.float32)


def halo_of(sigma: float) -> int:
    """Return how many pixels around it a tile's edges depend on."""
    # One more than the blur needs, for the neighbours that Sobel looks at.
    return _radius(sigma) + 1


def defines(weights: npt.NDArray[np.float32]) -> dict[str, str]:
    """Return the macros for a blur with these weights, an odd number of them.

    They are constants in the source, since a compiler unrolls a loop of known length
    and then keeps them in registers.
    """
    return {
        "RADIUS": str(weights.size // 2),
        "WEIGHTS": ", ".join(f"{float(weight)!r}f" for weight in weights),
    }


def _radius(sigma: float) -> int:
    return int(4.0 * sigma + 0.5)
