"""The kernels that the suite runs, in portable source.

A device without a compiler can get them as an image; see
`hal_conformance.Profile`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FILENAME", "SIGNATURES", "SOURCE"]

FILENAME: Final = "conformance.cpp"

SOURCE: Final = """
__global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

__global__ void scale_and_offset(const int *input, int *output, int scale, int offset, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) output[i] = input[i] * scale + offset;
}

__global__ void write_constants(int *output, int a, int b, int c, int d) {
  output[0] = a;
  output[1] = b;
  output[2] = c;
  output[3] = d;
}

__global__ void write_block_ids(unsigned *output, unsigned width, unsigned height) {
  unsigned block = blockIdx.x + width * (blockIdx.y + height * blockIdx.z);
  if (threadIdx.x == 0) output[block] = block + 1;
}

__global__ void reverse_block(const int *input, int *output) {
  __shared__ int tile[64];
  int i = threadIdx.x, first = blockIdx.x * blockDim.x;
  tile[i] = input[first + i];
  __syncthreads();
  output[first + i] = tile[blockDim.x - 1 - i];
}

__global__ void sum_dynamic(const int *input, int *output, int n) {
  extern __shared__ int partial[];
  int i = threadIdx.x;
  partial[i] = i < n ? input[i] : 0;
  __syncthreads();
  if (i == 0) {
    int sum = 0;
    for (unsigned k = 0; k < blockDim.x; k++) sum += partial[k];
    output[0] = sum;
  }
}

__global__ void absolute(const float *input, float *output, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) output[i] = input[i] < 0 ? -input[i] : input[i];
}

__global__ void negate(const int *input, int *output) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  output[i] = -input[i];
}

__global__ void twice(const int *input, int *output) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  output[i] = input[i] + input[i];
}

__global__ void mix(const unsigned *input, unsigned *output, unsigned factor, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) output[i] = output[i] * 5u + input[i] * factor + i;
}

__global__ void count(unsigned *counter) { atomicAdd(counter, 1u); }

// Holds its queue until the host, or another queue, sets the flag. Bounded, so that
// nothing can hold a device for ever; what it returns is whether it saw the flag.
__global__ void hold(unsigned *flag, unsigned *seen, unsigned turns) {
  for (unsigned turn = 0; turn < turns; turn++) {
    if (*(volatile unsigned *)flag) {
      *seen = 1;
      return;
    }
    __threadfence_system();
  }
}
"""

SIGNATURES: Final = {
    "saxpy": "(f32 a, const f32* x, f32* y, i32 n)",
    "scale_and_offset": "(const i32* input, i32* output, i32 scale, i32 offset, i32 n)",
    "write_constants": "(i32* output, i32 a, i32 b, i32 c, i32 d)",
    "write_block_ids": "(u32* output, u32 width, u32 height)",
    "reverse_block": "(const i32* input, i32* output)",
    "sum_dynamic": "(const i32* input, i32* output, i32 n)",
    "absolute": "(const f32* input, f32* output, i32 n)",
    "negate": "(const i32* input, i32* output)",
    "twice": "(const i32* input, i32* output)",
    "mix": "(const u32* input, u32* output, u32 factor, u32 n)",
    "count": "(u32* counter)",
    "hold": "(u32* flag, u32* seen, u32 turns)",
}
"""The signatures of an image that does not have them itself, as `Device.load` takes them."""
