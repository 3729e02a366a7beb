"""Programs to compile, and what their kernels make."""

import numpy as np
from core_harness import LIMIT

SOURCE = """
struct Pair { int left; double right; };
__device__ int counter = 5;
__global__ void HAL_BLOCK(4) HAL_SHARED_MEMORY(64) scale(float a, const float *x, float *y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = a * x[threadIdx.x];
}
__global__ void count(int *out, Pair pair) { counter += pair.left; out[0] = counter; }
"""
SIGNATURES = {
    "scale": "(f32 a, const f32* x, f32* y, i32 n)",
    "count": "(i32* out, bytes[16] pair)",
}
PART = """
static __device__ int same(int x) {{ return x + {0}; }}
__device__ int own{0} = {0};
__global__ void HAL_BLOCK(4) k{0}(int *p) {{ p[threadIdx.x] = same(threadIdx.x) * 10 + own{0}; }}
"""
PARTS = {f"part{number}.cpp": PART.format(number) for number in (1, 2, 3)}


def scaled(device, executable):
    """Return what the kernel `scale` makes of 0, 1, 2, 3."""
    x, y = device.upload(np.arange(4, dtype=np.float32)), device.upload(np.zeros(4, np.float32))
    device.queue.dispatch(executable["scale"], grid=1, args=(2.0, x, y, 4)).wait(LIMIT)
    return y.numpy().tolist()


def counted(device, executable, step=1):
    """Run `count`, whose variable keeps what it counts."""
    out = device.upload(np.zeros(1, np.int32))
    pair = np.zeros(1, np.dtype([("left", "i4"), ("right", "f8")], align=True))
    pair["left"] = step
    kernel = executable["count"]
    device.queue.dispatch(kernel, grid=1, block=1, args=(out, pair)).wait(LIMIT)
    return int(out.numpy()[0])
