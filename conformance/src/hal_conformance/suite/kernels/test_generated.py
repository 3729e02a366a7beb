"""Kernels as generators and users of other libraries write them compile unchanged (C5)."""

# ruff: noqa: E501 - the lines are the generator's

import numpy as np
import pytest

from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("compile")

# Made with tinygrad 0.13's CUDARenderer, from (x @ x) of halves, and a cast and a maximum of bfloat16.
MATMUL = """\
#define INFINITY (__int_as_float(0x7f800000))
#define NAN (__int_as_float(0x7fffffff))
template <class T, class F> __device__ __forceinline__ T tg_bitcast(F v) { union U { F f; T t; }; U u; u.f = v; return u.t; }
#include <cuda_fp16.h>
struct __align__(8) half4 { half x, y, z, w; }; __device__ half4 make_half4(half x, half y, half z, half w) { half4 r={x, y, z, w}; return r; }
extern "C" __global__ void __launch_bounds__(64) r_8_8_8(float* data0_64, half* data1_64) {
  int lidx1 = threadIdx.y; /* 8 */
  half val0 = (*(data1_64+lidx1));
  half val1 = (*(data1_64+(lidx1+8)));
  half val2 = (*(data1_64+(lidx1+16)));
  half val3 = (*(data1_64+(lidx1+24)));
  half val4 = (*(data1_64+(lidx1+32)));
  half val5 = (*(data1_64+(lidx1+40)));
  half val6 = (*(data1_64+(lidx1+48)));
  half val7 = (*(data1_64+(lidx1+56)));
  int lidx0 = threadIdx.x; /* 8 */
  int alu0 = (lidx0<<3);
  half4 val8 = (*((half4*)((data1_64+(alu0+4)))));
  half4 val9 = (*((half4*)((data1_64+alu0))));
  *(data0_64+(lidx1+alu0)) = ((float)(((half)((((float)((val9.x*val0)))+((float)((val9.y*val1)))+((float)((val9.z*val2)))+((float)((val9.w*val3)))+((float)((val8.x*val4)))+((float)((val8.y*val5)))+((float)((val8.z*val6)))+((float)((val8.w*val7))))))));
}
"""
CAST = """\
#define INFINITY (__int_as_float(0x7f800000))
#define NAN (__int_as_float(0x7fffffff))
template <class T, class F> __device__ __forceinline__ T tg_bitcast(F v) { union U { F f; T t; }; U u; u.f = v; return u.t; }
#include <cuda_bf16.h>
extern "C" __global__ void __launch_bounds__(16) E_16_4n3(nv_bfloat16* data0_64, float* data1_64) {
  int lidx0 = threadIdx.x; /* 16 */
  int alu0 = (lidx0<<2);
  float4 val0 = (*((float4*)((data1_64+alu0))));
  *(data0_64+(alu0+1)) = ((nv_bfloat16)(val0.y));
  *(data0_64+(alu0+2)) = ((nv_bfloat16)(val0.z));
  *(data0_64+(alu0+3)) = ((nv_bfloat16)(val0.w));
  *(data0_64+alu0) = ((nv_bfloat16)(val0.x));
}
"""
MAXIMUM = """\
#define INFINITY (__int_as_float(0x7f800000))
#define NAN (__int_as_float(0x7fffffff))
template <class T, class F> __device__ __forceinline__ T tg_bitcast(F v) { union U { F f; T t; }; U u; u.f = v; return u.t; }
#include <cuda_bf16.h>
extern "C" __global__ void __launch_bounds__(16) r_16_4n2(nv_bfloat16* data0_1, nv_bfloat16* data1_64) {
  nv_bfloat16 acc0[1];
  nv_bfloat16 acc1[1];
  __shared__ __align__(16) nv_bfloat16 temp0[16];
  int lidx0 = threadIdx.x; /* 16 */
  *(acc0+0) = ((nv_bfloat16)(-INFINITY));
  for (int Ridx0 = 0; Ridx0 < 4; Ridx0++) {
    nv_bfloat16 val0 = (*(data1_64+((lidx0<<2)+Ridx0)));
    nv_bfloat16 alu1 = (((*(acc0+0))<val0)?val0:(*(acc0+0)));
    *(acc0+0) = alu1;
  }
  *(temp0+lidx0) = (*(acc0+0));
  __syncthreads();
  *(acc1+0) = ((nv_bfloat16)(-INFINITY));
  for (int Ridx101 = 0; Ridx101 < 16; Ridx101++) {
    nv_bfloat16 val1 = (*(temp0+Ridx101));
    nv_bfloat16 alu7 = (((*(acc1+0))<val1)?val1:(*(acc1+0)));
    *(acc1+0) = alu7;
  }
  bool alu10 = (lidx0==0);
  if (alu10) {
    *(data0_1+0) = (*(acc1+0));
  }
}
"""
# In the manner of what CuPy's RawKernel is given.
RAW = r"""
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <math.h>
#define WARP_SUM(v) for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o, 32)
extern "C" __global__ void softmax(const __half2* __restrict__ x, __half2* __restrict__ y, const uint n) {
  const uint lane = threadIdx.x;
  const float2 v = lane < n ? __half22float2(x[blockIdx.x * n + lane]) : make_float2(-INFINITY, -INFINITY);
  float m = fmaxf(v.x, v.y);
  #pragma unroll
  for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffff, m, o, 32));
  const float a = expf(v.x - m), b = expf(v.y - m);
  float s = a + b;
  WARP_SUM(s);
  if (lane < n) y[blockIdx.x * n + lane] = __floats2half2_rn(a / s, b / s);
}
"""


def test_a_generated_matmul_of_halves_runs_unchanged_c5(device):
    """C5: tinygrad's text, with its own vectors of halves."""
    x = np.linspace(-2, 2, 64, dtype=np.float32).astype(np.float16)
    out, source = device.upload(np.zeros(64, np.float32)), device.upload(x)
    kernel = device.compile(MATMUL)["r_8_8_8"]
    run = device.queue.dispatch(kernel, grid=1, block=(8, 8), args=(out, source))
    wide = x.astype(np.float64).reshape(8, 8)
    found = out.numpy(wait=run, timeout=LIMIT).reshape(8, 8)
    np.testing.assert_allclose(found, wide @ wide, rtol=2e-3, atol=2e-2)


def test_generated_kernels_of_bfloat16_run_unchanged_c5(device):
    """C5: tinygrad's text, with shared memory and a barrier."""
    x = np.linspace(-7, 11, 64, dtype=np.float32)
    narrow, most = (device.allocate(size, dtype="bfloat16") for size in (128, 2))
    source = device.upload(x)
    cast = device.compile(CAST)["E_16_4n3"]
    device.queue.dispatch(cast, grid=1, block=16, args=(narrow, source))
    run = device.queue.dispatch(
        device.compile(MAXIMUM)["r_16_4n2"], grid=1, block=16, args=(most, narrow)
    )
    assert most.view(np.uint16).numpy(wait=run, timeout=LIMIT).tolist() == [0x4130]
    bits = narrow.view(np.uint16).numpy(timeout=LIMIT).astype(np.uint32)
    np.testing.assert_allclose((bits << 16).view(np.float32), x, rtol=2.0**-8)


def test_a_kernel_of_another_library_runs_unchanged_c5(device):
    """C5: vendor headers, vectors of halves and shuffles of 32 lanes."""
    x = np.random.default_rng(2).normal(size=(5, 48)).astype(np.float16)
    source, out = device.upload(x), device.upload(np.zeros_like(x))
    kernel = device.compile(RAW)["softmax"]
    run = device.queue.dispatch(kernel, grid=5, block=32, args=(source, out, 24))
    e = np.exp(x.astype(np.float64))
    found = out.numpy(wait=run, timeout=LIMIT)
    np.testing.assert_allclose(found, e / e.sum(axis=1, keepdims=True), rtol=4e-3, atol=1e-4)
