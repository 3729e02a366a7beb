"""Loops over threads that become vectors still do what each thread says, in its order."""

import platform

import numpy as np
import pytest

from hal._programs.scanner import scan
from hal.native import CompileRequest
from hal_cpu import _compile, _options, _toolchain

BLUR = """
#define RADIUS 8
template <int N> __device__ float tail(const float *p) {
  float sum = 0;
#pragma unroll N
  for (int k = 0; k < N; ++k) sum += p[k];
  return sum;
}
extern "C" __global__ void kernel(const float *QUALIFIER source, float *QUALIFIER target, int width,
                                  int height, int taps) {
  const float weights[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2, 1};
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  const float *first = source + y * (width + 2 * RADIUS) + x;
  float sum = tail<3>(first);
#pragma unroll
  for (int k = 0; k <= 2 * RADIUS; ++k) sum += weights[k] * first[k];
#pragma unroll(4)
  for (int k = 0; k < taps; ++k) sum += first[k];
#pragma unroll (RADIUS)
  for (int k = 0; k < RADIUS; ++k) sum += first[k];
#pragma unroll 1
  for (int k = 0; k < 2; ++k) sum += first[k];
  target[y * width + x] = sum;
}
"""


@pytest.mark.parametrize("qualifier", ["", "__restrict__", "const __restrict"])
@pytest.mark.parametrize("block", [(64, 4), (1, 1), (7, 3, 2), (1024, 1)])
def test_a_guarded_stencil(lab, qualifier, block):
    kernel = lab.function(BLUR.replace("QUALIFIER", qualifier))
    rng = np.random.default_rng(1)
    for width, height in ((1, 1), (63, 5), (64, 4), (65, 9), (200, 3)):
        source = rng.integers(0, 9, (height, width + 16)).astype("f4")
        weights = np.array([*range(1, 10), *range(8, 0, -1)], "f4")
        for length in (3, 5, 8, 2):  # of the loops that add without a weight
            weights[:length] += 1
        expected = sum(w * source[:, k : k + width] for k, w in enumerate(weights))
        target = lab.array(np.full((height + 1, width), -1), "f4")
        grid = (-(-width // block[0]), -(-height // block[1]))
        sizes = (np.int32(width), np.int32(height), np.int32(5))
        lab.run(kernel, grid, block, lab.array(source), target, *sizes)
        assert (target[:height] == expected).all()
        assert (target[height:] == -1).all(), "the guard holds"


def test_a_thread_sees_what_it_wrote_through_another_pointer(lab):
    """Threads have no order, the accesses of one thread do: `#pragma GCC ivdep` breaks this."""
    kernel = lab.function("""
__global__ void kernel(int *a, int *b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  a[2 * i] = b[2 * i + 1];
  a[2 * i + 1] = b[2 * i];
}
""")
    p = lab.array(np.arange(2000), "i4")
    lab.run(kernel, 4, 256, p, p, np.int32(1000))
    assert (p == np.arange(2000) | 1).all()


def test_arrays_of_a_thread(lab):
    kernel = lab.function("""
__global__ void kernel(int *out, const int *at, const int *from, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int own[4] = {0, 0, 0, 0};
  own[at[i]] = i + 1;
  own[from[i]] += 1;
  out[i] = own[3];
}
""")
    rng = np.random.default_rng(2)
    at, start = (lab.array(rng.integers(0, 4, 1000), "i4") for _ in range(2))
    out = lab.array(np.zeros(1000), "i4")
    lab.run(kernel, 4, 256, out, at, start, np.int32(1000))
    index = np.arange(1000)
    assert (out == np.where(at == 3, index + 1, 0) + (start == 3)).all()


def test_atomics_on_shared_places(lab):
    kernel = lab.function("""
__global__ void kernel(int *__restrict__ bins, int *__restrict__ order, const int *__restrict__ x,
                       int *__restrict__ flag, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  atomicAdd(&bins[x[i]], 1);
  order[atomicAdd(&bins[8], 1)] = i;
  if (x[i] == 5) *flag = 1;
}
""")
    rng = np.random.default_rng(3)
    x = lab.array(rng.integers(0, 8, 5000), "i4")
    bins, order, flag = (lab.array(np.zeros(size), "i4") for size in (9, 5000, 1))
    lab.run(kernel, 20, 256, bins, order, x, flag, np.int32(5000))
    assert bins.tolist() == [*np.bincount(x, minlength=8), 5000]
    assert (np.sort(order) == np.arange(5000)).all()
    assert flag[0] == 1


def test_a_compiler_without_the_limits(lab, monkeypatch):
    """They make kernels fast; one that a compiler does not know costs no kernel."""
    family = _toolchain.find_compiler().family
    if family != "gcc":
        pytest.skip("other compilers are given none")
    tuning = {**_options.TUNING, "gcc": ("--param=no-such-limit=1",)}
    monkeypatch.setattr(_options, "TUNING", tuning)
    kernel = lab.function("__global__ void kernel(int *p) { p[0] = 7; }")
    p = lab.array(np.zeros(1), "i4")
    lab.run(kernel, 1, 1, p)
    assert p[0] == 7


@pytest.mark.skipif(_toolchain.find_compiler().family != "gcc", reason="only GCC reports its loops")
def test_a_maximum_with_what_all_threads_share_is_one_loop():
    source = """__global__ void kernel(const float *p, float *q, int n) {
  __shared__ float parts[32];
  float most = p[threadIdx.x];
  for (int k = 16; k > 0; k /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, k));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
  __syncthreads();
  most = parts[0];
  for (int i = 1; i < blockDim.x / 32; i++) most = fmaxf(most, parts[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) q[i] = p[i] - most;
}
"""
    entries = scan(source, filename="user.cpp")
    request = CompileRequest(source, "user.cpp", entries, "", options=("-fopt-info-optimized",))
    found = _toolchain.find_compiler()
    _, log = _compile.compile_image(request, _options.NATIVE, "", found)
    assert "loop vectorized" in log
    assert "Unswitching loop" not in log


@pytest.mark.skipif(_toolchain.find_compiler().family != "gcc", reason="only GCC reports its loops")
def test_what_gcc_makes_vectors_of():
    """Counts loops instead of seconds: of the compiler, and of what it compiles."""
    threads = """__global__ void kernel(float *p, float a) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  p[i] *= a;
}"""
    barrier = threads.replace("{", "{ p[blockIdx.x] = 1; __syncthreads();")
    rounds = """
__global__ void kernel(const float *p, float4 *q, int n) {
  float4 sum = make_float4(0, 0, 0, 0);
  for (int k = 0; k < n; k++) {
    const float4 v = ((const float4 *)p)[threadIdx.x * n + k];
    sum.x += v.x * v.x; sum.y += v.y * v.x; sum.z += v.z * v.x; sum.w += v.w * v.x;
  }
  q[threadIdx.x] = sum;
}
"""
    calls = """
__global__ void kernel(const float *p, float *q, int n) {
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float power = expf(p[i]);
    q[i] = power;
    sum += power;
  }
  q[threadIdx.x] = sum;
}
"""
    logs = []
    for source in (threads, barrier, rounds, calls):
        entries = scan(source, filename="user.cpp")
        request = CompileRequest(source, "user.cpp", entries, "", options=("-fopt-info-optimized",))
        found = _toolchain.find_compiler()
        _, log = _compile.compile_image(request, _options.NATIVE, "", found)
        logs.append(log)
    # With ARM's short vectors, the loop around the calls is not worth it.
    last = platform.machine() == "x86_64"
    assert ["loop vectorized" in log for log in logs] == [True, True, False, last]
    # What is left beside the vectors stays a loop.
    assert not any("completely unrolled" in log for log in logs)
