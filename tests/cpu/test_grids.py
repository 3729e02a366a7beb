"""Blocks and threads, barriers, shared memory and atomics, run on the processor."""

import ctypes

import numpy as np
import pytest

from hal_cpu._driver import KernelRecord


@pytest.mark.parametrize(
    ("grid", "block"),
    [(1, 1), ((3, 4, 5), (2, 3, 4)), ((7, 1, 2), (1, 16, 2)), ((1, 9), (32, 32)), (5, (4, 4, 64))],
)
def test_indices(lab, grid, block):
    kernel = lab.function("""
__device__ unsigned where() {
  unsigned b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return b * blockDim.x * blockDim.y * blockDim.z + t;
}
__global__ void kernel(uint3 *direct, unsigned *called) {
  unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  unsigned i = b * (blockDim.x * blockDim.y * blockDim.z) + t;
  direct[i] = make_uint3(blockIdx.x * 1000 + threadIdx.x, blockIdx.y * 1000 + threadIdx.y,
                         blockIdx.z * 1000 + threadIdx.z);
  called[where()] = i;
}
""")
    grids, blocks = ((*((s,) if isinstance(s, int) else s), 1, 1)[:3] for s in (grid, block))
    count = int(np.prod(grids) * np.prod(blocks))
    direct, called = lab.array(np.zeros((count, 3)), "u4"), lab.array(np.zeros(count), "u4")
    lab.run(kernel, grid, block, direct, called)
    expected = [
        (bx * 1000 + tx, by * 1000 + ty, bz * 1000 + tz)
        for bz, by, bx in np.ndindex(*grids[::-1])
        for tz, ty, tx in np.ndindex(*blocks[::-1])
    ]
    assert (direct == expected).all()
    assert (called == np.arange(count)).all()


@pytest.mark.parametrize("block", [32, 256, 1024])
def test_reduction_with_barriers(lab, block):
    kernel = lab.function("""
__global__ void kernel(const int *x, int *sums, int n) {
  __shared__ int part[1024];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  part[t] = i < n ? x[i] : 0;
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (t < step) part[t] += part[t + step];
    __syncthreads();
  }
  if (t == 0) sums[blockIdx.x] = part[0];
}
""")
    count = 20_011
    x = lab.array(np.random.default_rng(1).integers(-1000, 1000, count), "i4")
    blocks = -(-count // block)
    sums = lab.array(np.zeros(blocks), "i4")
    lab.run(kernel, blocks, block, x, sums, np.int32(count))
    padded = np.zeros(blocks * block, "i4")
    padded[:count] = x
    assert (sums == padded.reshape(blocks, block).sum(1)).all()
    info = lab.device.function_info(kernel)
    assert info.static_shared_memory == 4096
    assert info.parameter_sizes == (8, 8, 4)
    assert info.max_threads_per_block == 1024


def test_barriers_in_functions_keep_each_thread_its_index(lab):
    kernel = lab.function("""
__device__ int sum(int value) {
  __shared__ int total;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  atomicAdd(&total, value);
  __syncthreads();
  int result = total;
  __syncthreads();
  return result * 1000 + threadIdx.x;
}
__global__ void kernel(int *out) {
  int first = sum(threadIdx.x), second = sum(1);
  out[blockIdx.x * blockDim.x + threadIdx.x] = first + second;
}
""")
    out = lab.array(np.zeros((50, 64)), "i4")
    lab.run(kernel, 50, 64, out)
    total = sum(range(64))
    assert (out == (total + 64) * 1000 + 2 * np.arange(64)).all()


def test_stacks_are_aligned(lab):
    """Each thread of a kernel with barriers has a stack of its own, laid out by hand."""
    kernel = lab.function("""
__device__ __noinline__ size_t place(volatile float4 *p) { return (size_t)p; }
__global__ void kernel(size_t *out) {
  float4 mine = make_float4(threadIdx.x, 1, 2, 3);
  alignas(64) double wide[8] = {1};
  __syncthreads();
  size_t wrong = place(&mine) % 16 + place((volatile float4 *)wide) % 64;
  out[threadIdx.x] = wrong * 1000 + (size_t)mine.x;
}
""")
    out = lab.array(np.zeros(100), "u8")
    lab.run(kernel, 1, 100, out)
    assert (out == np.arange(100)).all()


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("", "extern __shared__ int part[];"),
        ("extern __shared__ int part[];", ""),
        ("", "extern __shared__ __align__(16) int part[];"),
        ("", "extern __shared__ char bytes[]; int *part = (int *)bytes;"),
        ("extern __shared__ unsigned char bytes[];", "int *part = reinterpret_cast<int *>(bytes);"),
        ("", "extern __shared__ int rows[][4]; int *part = &rows[0][0];"),
        ("struct pair { int a, b; };", "extern\n__shared__ pair pairs[]; int *part = &pairs->a;"),
    ],
)
def test_dynamic_shared_memory(lab, before, inside):
    kernel = lab.function(
        before
        + """
__global__ void kernel(int *x, int n) {
"""
        + inside
        + """
  int t = threadIdx.x;
  part[t] = x[blockIdx.x * n + t];
  __syncthreads();
  x[blockIdx.x * n + t] = part[n - 1 - t];
}
"""
    )
    x = lab.array(np.arange(8 * 64).reshape(8, 64), "i4")
    expected = x[:, ::-1].copy()
    lab.run(kernel, 8, 64, x, np.int32(64), shared=256)
    assert (x == expected).all()


@pytest.mark.parametrize(
    ("ctype", "dtype"),
    [
        ("int", "i4"),
        ("unsigned int", "u4"),
        ("unsigned long long", "u8"),
        ("float", "f4"),
        ("double", "f8"),
    ],
)
def test_atomics(lab, ctype, dtype):
    whole = dtype[0] != "f"
    kernel = lab.function(f"""
typedef {ctype} T;
__global__ void kernel(T *x, const T *values, int n) {{
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  T v = values[i];
  atomicAdd(&x[0], v);
#if {int(whole)}
  atomicSub(&x[1], v);
  atomicMin(&x[2], v);
  atomicMax(&x[3], v);
  atomicAnd(&x[4], v);
  atomicOr(&x[5], v);
  atomicXor(&x[6], v);
  T seen = x[7], old;
  do {{ old = seen; seen = atomicCAS(&x[7], old, old + 1); }} while (seen != old);
#endif
  if (atomicExch(&x[8], 1) != 0) atomicAdd(&x[9], 1);
}}
""")
    count = 30_000
    values = lab.array(np.random.default_rng(3).integers(0, 100, count), dtype)
    x = lab.array(np.zeros(10), dtype)
    x[2], x[4] = 1000, 127
    lab.run(kernel, -(-count // 128), 128, x, values, np.int32(count))
    assert x[0] == values.sum()
    assert x[8] == 1
    assert x[9] == count - 1
    if whole:
        assert x[1] == (-values).sum(dtype=dtype)
        assert x[2] == values.min()
        assert x[3] == values.max()
        assert x[4] == np.bitwise_and.reduce(values) & 127
        assert x[5] == np.bitwise_or.reduce(values)
        assert x[6] == np.bitwise_xor.reduce(values)
        assert x[7] == count


@pytest.mark.parametrize("barrier", ["", "__syncthreads();"])
def test_indices_that_pass_2_to_the_31(lab, barrier):
    """Run the last blocks of a grid that would take minutes in whole."""
    kernel = lab.function(
        """
__global__ void kernel(unsigned *low, unsigned long long *whole, unsigned first) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  low[(blockIdx.x - first) * blockDim.x + threadIdx.x] = i;
  unsigned long long all = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  BARRIER
  whole[(blockIdx.x - first) * blockDim.x + threadIdx.x] = all;
}
""".replace("BARRIER", barrier)
    )

    class Launch(ctypes.Structure):
        _fields_ = [
            ("grid", ctypes.c_uint * 3),
            ("block", ctypes.c_uint * 3),
            ("shared", ctypes.c_uint),
            ("reserved", ctypes.c_uint),
            ("arguments", ctypes.c_void_p),
        ]

    low, whole = lab.array(np.zeros(1024), "u4"), lab.array(np.zeros(1024), "u8")
    record = KernelRecord.from_address(kernel)
    run = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_ulonglong
    )(record.run)
    for first in (2**21 - 1, 2**22 - 1, 2**24 + 5):
        packed = np.array([(low.ctypes.data, whole.ctypes.data, first)], "u8,u8,u4")
        launch = Launch((2**25, 1, 1), (1024, 1, 1), 0, 0, packed.ctypes.data)
        run(ctypes.addressof(launch), None, first, first + 1)
        expected = np.arange(1024, dtype="u8") + first * 1024
        assert (whole == expected).all()
        assert (low == expected.astype("u4")).all()


def test_a_small_grid_keeps_its_order_of_blocks(lab):
    """Not promised, but what makes a first look at a kernel with printf readable."""
    kernel = lab.function("""
__device__ int next;
__global__ void kernel(int *order) { order[atomicAdd(&next, 1)] = blockIdx.x * 10 + threadIdx.x; }
""")
    order = lab.array(np.zeros(40), "i4")
    lab.run(kernel, 4, 10, order)
    assert (order == np.arange(40)).all()
