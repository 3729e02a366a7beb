"""What the portable dialect has, run on the processor."""

import ctypes

import numpy as np
import pytest

from hal_cpu._driver import KernelRecord


def test_vector_add(lab):
    kernel = lab.function("""
extern "C" __global__ void kernel(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
""")
    for count, block in ((1, 1), (1000, 256), (1000, 7), (100_003, 1024), (1 << 20, 256)):
        x = lab.array(np.arange(count) % 1000, "f4")
        y = lab.array(np.arange(count) % 77, "f4")
        lab.run(kernel, -(-count // block), block, np.float32(3), x, y, np.int32(count))
        assert (y == 3 * (np.arange(count) % 1000) + np.arange(count) % 77).all()


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


def test_threads_that_return_before_a_barrier(lab):
    kernel = lab.function("""
__global__ void kernel(int *x) {
  int t = threadIdx.x;
  if (t % 3 == 0) return;
  int right = x[(t + 1) % blockDim.x];
  __syncthreads();
  x[t] = right;
}
""")
    x = lab.array(np.arange(100), "i4")
    lab.run(kernel, 1, 100, x)
    expected = np.where(np.arange(100) % 3 == 0, np.arange(100), (np.arange(100) + 1) % 100)
    assert (x == expected).all()


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


class Small(ctypes.Structure):
    _fields_ = [("a", ctypes.c_byte), ("b", ctypes.c_double), ("c", ctypes.c_short)]


def test_structs_by_value(lab):
    kernel = lab.function("""
struct Small { char a; double b; short c; };
struct Large { Small parts[40]; };
struct alignas(16) Wide { float v[4]; };
__global__ void kernel(char before, Large large, Small small, short between, Wide wide,
                       double *out) {
  for (int i = 0; i < 40; i++) out[i] = large.parts[i].a + large.parts[i].b + large.parts[i].c;
  out[40] = small.a + small.b + small.c;
  out[41] = before + between;
  out[42] = wide.v[0] + wide.v[3];
  small.b = 0;
}
""")

    class Large(ctypes.Structure):
        _fields_ = [("parts", Small * 40)]

    out = lab.array(np.zeros(43), "f8")
    large = Large((Small * 40)(*[Small(1, i, 2) for i in range(40)]))
    wide = np.arange(4, dtype="f4")
    info = lab.device.function_info(kernel)
    assert info.parameter_sizes == (1, 960, 24, 2, 16, 8)
    stream = lab.stream()
    lab.launch(
        stream,
        kernel,
        1,
        3,
        ctypes.c_byte(5),
        large,
        Small(1, 2, 3),
        ctypes.c_short(6),
        np.frombuffer(wide.tobytes(), "V16")[0],
        out,
    )
    large.parts[7].b = -1  # the arguments were copied
    lab.finish(stream)
    assert out.tolist() == [3 + i for i in range(40)] + [6, 11, 3]


def test_variables_of_the_module(lab):
    source = """
__device__ int counter = 5;
__constant__ float table[4] = {1, 2, 3, 4};
__device__ __constant__ double one = 1;
__global__ void kernel(float *out) {
  atomicAdd(&counter, 1);
  out[threadIdx.x] = table[threadIdx.x] * one;
}
"""
    image = lab.image(source)
    module, other = lab.load(image), lab.load(image)
    kernel = lab.device.get_function(module, "kernel")
    address, size = lab.device.get_global(module, "table")
    assert size == 16
    stream = lab.stream()
    new = np.array([5, 6, 7, 8], "f4")
    lab.device.copy_from_host(stream, address, new.ctypes.data, size)
    out = lab.array(np.zeros(4), "f4")
    lab.launch(stream, kernel, 1, 4, out)
    lab.finish(stream)
    assert (out == new).all()
    counts = [lab.device.get_global(each, "counter") for each in (module, other)]
    assert [size for _, size in counts] == [4, 4]
    # Two modules of one image have variables of their own.
    assert [ctypes.c_int.from_address(address).value for address, _ in counts] == [9, 5]


def test_mathematics(lab):
    kernel = lab.function("""
__global__ void kernel(const float *x, float *f, const double *y, double *d, int n) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i >= n) return;
  float a = x[i];
  double b = y[i];
  float *r = f + 16 * i;
  r[0] = sqrtf(a); r[1] = rsqrtf(a); r[2] = expf(a); r[3] = logf(a); r[4] = sinf(a);
  r[5] = cosf(a); r[6] = powf(a, 1.5f); r[7] = fminf(a, 1.0f); r[8] = fmaxf(a, 1.0f);
  r[9] = __fdividef(1.0f, a); r[10] = floorf(a); r[11] = fabsf(-a); r[12] = tanhf(a);
  r[13] = fmaf(a, a, 1.0f); r[14] = atan2f(a, 2.0f);
  r[15] = min(a, 2.0f) + max(1.0f, a) + abs(-a) + sqrt(a) + fabs(-a);
  double *s = d + 8 * i;
  s[0] = sqrt(b); s[1] = rsqrt(b); s[2] = exp(b); s[3] = log(b); s[4] = sin(b); s[5] = pow(b, 1.5);
  s[6] = fmin(b, 1.0) + fmax(b, 1.0);
  s[7] = floor(b) + ceil(b) + trunc(b) + round(b) + fma(b, b, 1.0);
}
""")
    x = lab.array(np.linspace(0.1, 5, 100), "f4")
    y = lab.array(np.linspace(0.1, 5, 100), "f8")
    f, d = lab.array(np.zeros((100, 16)), "f4"), lab.array(np.zeros((100, 8)), "f8")
    lab.run(kernel, 2, 64, x, f, y, d, np.int32(100))
    a, b = x.astype("f8"), y
    singles = [
        np.sqrt(a), 1 / np.sqrt(a), np.exp(a), np.log(a), np.sin(a), np.cos(a), a**1.5,
        np.minimum(a, 1), np.maximum(a, 1), 1 / a, np.floor(a), a, np.tanh(a), a * a + 1,
        np.arctan2(a, 2), np.minimum(a, 2) + np.maximum(1, a) + a + np.sqrt(a) + a,
    ]  # fmt: skip
    np.testing.assert_allclose(f, np.transpose(singles), rtol=2e-6, atol=1e-6)
    rounds = np.floor(b) + np.ceil(b) + np.trunc(b) + np.floor(b + 0.5) + b * b + 1
    doubles = [
        np.sqrt(b), 1 / np.sqrt(b), np.exp(b), np.log(b), np.sin(b), b**1.5,
        np.minimum(b, 1) + np.maximum(b, 1), rounds,
    ]  # fmt: skip
    np.testing.assert_allclose(d, np.transpose(doubles), rtol=1e-14, atol=1e-14)


def test_nan_is_the_lesser_operand(lab):
    kernel = lab.function("""
__global__ void kernel(float nan, float *out) {
  out[0] = fminf(nan, 1.0f); out[1] = fminf(1.0f, nan);
  out[2] = fmaxf(nan, 1.0f); out[3] = fmaxf(1.0f, nan);
  out[4] = fminf(nan, nan); out[5] = isnan(nan);
  out[6] = isfinite(out[0]); out[7] = isinf(1.0f / 0.0f);
}
""")
    out = lab.array(np.zeros(8), "f4")
    lab.run(kernel, 1, 1, np.float32("nan"), out)
    assert out[:4].tolist() == [1, 1, 1, 1]
    assert np.isnan(out[4])
    assert out[5:].tolist() == [1, 1, 1]


def test_integers_and_bits(lab):
    kernel = lab.function("""
__global__ void kernel(long long *out) {
  uint8_t a = 255; int8_t b = -1; uint16_t c = 65535; int64_t d = -1;
  uint64_t e = ~(uint64_t)0; size_t f = 3;
  out[0] = a + b + c; out[1] = d; out[2] = e == 18446744073709551615ull; out[3] = f;
  out[4] = __popc(0xffu); out[5] = __clz(1); out[6] = __ffs(8); out[7] = __brev(1u);
  out[8] = __popcll(~0ull); out[9] = __umulhi(0xffffffffu, 0xffffffffu);
  out[10] = __mulhi(-5, 1 << 30); out[11] = __clz(0); out[12] = __float_as_int(1.0f);
  out[13] = __int_as_float(0x40000000); out[14] = min(-1, 5) + max(-1, 5); out[15] = max(1u, 2u);
  out[16] = min(7ll, 3ll); out[17] = abs(-4); out[18] = min((size_t)3, (size_t)4);
  out[19] = -7 / 2; out[20] = -7 % 3; out[21] = (-8) >> 1;
}
""")
    out = lab.array(np.zeros(22), "i8")
    lab.run(kernel, 1, 1, out)
    assert out.tolist() == [
        65789, -1, 1, 3, 8, 31, 4, 1 << 31, 64, 0xFFFFFFFE, -2, 32, 0x3F800000, 2, 4, 2, 3, 4, 3,
        -3, -1, -4,
    ]  # fmt: skip


def test_vector_types(lab):
    kernel = lab.function("""
struct Mixed { float3 a; float b; int2 c; float4 d; };
__global__ void kernel(float4 *v, int *sizes, float4 add) {
  float4 x = v[threadIdx.x];
  v[threadIdx.x] = make_float4(x.x + add.x, x.y + add.y, x.z + add.z, x.w + add.w);
  sizes[0] = sizeof(float3); sizes[1] = alignof(float4);
  sizes[2] = alignof(float2); sizes[3] = sizeof(Mixed);
  sizes[4] = alignof(double2); sizes[5] = alignof(uchar4);
  dim3 one(2); sizes[6] = one.x * 100 + one.y * 10 + one.z;
}
""")
    values = lab.array(np.arange(32).reshape(8, 4), "f4")
    sizes = lab.array(np.zeros(7), "i4")
    add = np.array([(1, 2, 3, 4)], "f4,f4,f4,f4")[0]
    lab.run(kernel, 1, 8, values, sizes, add)
    assert (values == np.arange(32).reshape(8, 4) + np.arange(1, 5)).all()
    assert sizes.tolist() == [12, 16, 8, 48, 16, 4, 211]


def test_language(lab):
    """Templates, lambdas, namespaces, extern "C" blocks, macros: what both GPU compilers take."""
    module = lab.build("""
#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)
namespace tools {
template <typename T, int N> struct vec { T v[N]; };
template <typename T> __device__ __forceinline__ T twice(T x) { return x + x; }
__device__ __noinline__ int once(int x) { return x; }
}
extern "C" {
__global__ void __launch_bounds__(256) first(int *__restrict__ p) {
  p[INDEX] = tools::twice((int)INDEX);
}
__global__ __launch_bounds__(64, 2) void second(int p[], const int n)
{ // one more
  auto at = [&](int k) { return threadIdx.x + k; };
  if (INDEX < n) p[INDEX] = at(tools::once(1));
}
}
static __global__ void third(void) {}
__global__ void fourth(tools::vec<int, 3> v, int *p) { p[threadIdx.x] = v.v[threadIdx.x]; }
/* __global__ void none() { __syncthreads(); } */
""")
    p = lab.array(np.zeros(8), "i4")
    device = lab.device
    lab.run(device.get_function(module, "first"), 2, 4, p)
    assert p.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    lab.run(device.get_function(module, "second"), 2, 4, p, np.int32(6))
    assert p.tolist() == [1, 2, 3, 4, 1, 2, 12, 14]
    lab.run(device.get_function(module, "third"), 5, 4)
    vec = np.array([(7, 8, 9)], "i4,i4,i4")[0]
    lab.run(device.get_function(module, "fourth"), 1, 3, vec, p)
    assert p[:3].tolist() == [7, 8, 9]


def test_no_parameters(lab):
    module = lab.build("""
__device__ int count;
__global__ void kernel() { atomicAdd(&count, 1); }
""")
    lab.run(lab.device.get_function(module, "kernel"), (3, 3), (5, 2))
    address, _ = lab.device.get_global(module, "count")
    assert ctypes.c_int.from_address(address).value == 90


def test_private_arrays_are_each_threads_own(lab):
    kernel = lab.function("""
__global__ void kernel(const int *x, int *out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int bins[8] = {};
  for (int k = 0; k < n; k++) bins[x[(i * 7 + k) % n] & 7]++;
  int best = 0;
  for (int k = 1; k < 8; k++) if (bins[k] > bins[best]) best = k;
  out[i] = best * 1000 + bins[best] + bins[i & 7];
}
""")
    x = lab.array(np.random.default_rng(5).integers(0, 100, 37), "i4")
    out = lab.array(np.zeros(512), "i4")
    lab.run(kernel, 4, 128, x, out, np.int32(37))
    bins = np.bincount(x & 7, minlength=8)
    expected = bins.argmax() * 1000 + bins.max() + bins[np.arange(512) & 7]
    assert (out == expected).all()


def test_grid_stride(lab):
    kernel = lab.function("""
__global__ void kernel(int *x, size_t n) {
  size_t step = (size_t)gridDim.x * blockDim.x;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) x[i] += i;
}
""")
    x = lab.array(np.zeros(10_007), "i4")
    lab.run(kernel, 3, 100, x, np.uint64(x.size))
    assert (x == np.arange(x.size)).all()


def test_indices_that_pass_2_to_the_31(lab):
    """Run the last blocks of a grid that would take minutes in whole."""
    kernel = lab.function("""
__global__ void kernel(unsigned *low, unsigned long long *whole, unsigned first) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  low[(blockIdx.x - first) * blockDim.x + threadIdx.x] = i;
  unsigned long long all = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
  whole[(blockIdx.x - first) * blockDim.x + threadIdx.x] = all;
}
""")

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


def test_results_do_not_change_from_run_to_run(lab):
    kernel = lab.function("""
__global__ void kernel(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float s = 0;
  for (int k = -4; k <= 4; k++) s += x[min(max(i + k, 0), n - 1)] * (1.0f / (1 + k * k));
  y[i] = s;
}
""")
    x = lab.array(np.random.default_rng(2).random(50_001), "f4")
    y = lab.array(np.zeros(x.size), "f4")
    results = []
    for _ in range(5):
        lab.run(kernel, -(-x.size // 256), 256, x, y, np.int32(x.size))
        results.append(y.copy())
    assert all((result == results[0]).all() for result in results)


def test_launches_on_several_streams_at_once(lab, other_lab):
    source = """
__global__ void kernel(unsigned *x, int rounds) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
  for (int k = 0; k < rounds; k++) v = v * 1664525u + 1013904223u;
  x[i] = v;
}
"""
    expected = np.arange(1 << 14, dtype="u4")
    for _ in range(300):
        expected = expected * np.uint32(1664525) + np.uint32(1013904223)
    arrays = []
    for each in (lab, other_lab):
        kernel = each.function(source)
        for _ in range(3):
            stream = each.stream()
            array = each.array(np.arange(1 << 14), "u4")
            for _ in range(3):
                each.launch(stream, kernel, 256, 64, array, np.int32(100))
            arrays.append(array)
    lab.finish()
    other_lab.finish()
    assert all((array == expected).all() for array in arrays)


def test_a_small_grid_keeps_its_order_of_blocks(lab):
    """Not promised, but what makes a first look at a kernel with printf readable."""
    kernel = lab.function("""
__device__ int next;
__global__ void kernel(int *order) { order[atomicAdd(&next, 1)] = blockIdx.x * 10 + threadIdx.x; }
""")
    order = lab.array(np.zeros(40), "i4")
    lab.run(kernel, 4, 10, order)
    assert (order == np.arange(40)).all()


PRINTS = r"""
import ctypes, sys
import numpy as np
from hal._kernel_source import scan
from hal.native import CompileRequest
from hal_cpu.driver import CpuDriver
source = '''%s'''
device = CpuDriver().open_device(0, {})
request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
module = device.load_module(device.compile(request))
function = device.get_function(module, "kernel")
stream = device.create_stream()
x = np.arange(4, dtype="i4")
pointer = ctypes.c_void_p(x.ctypes.data)
pointers = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
device.launch(stream, function, (2, 1, 1), (2, 1, 1), 0, ctypes.addressof(pointers))
device.synchronize_stream(stream)
sys.stdout.write("after\n")
sys.stdout.flush()
import os; os._exit(0)
"""


@pytest.mark.parametrize("first", ["", "__syncthreads();"], ids=["plain", "barrier"])
def test_printf_goes_to_standard_output(python, first):
    source = r"""
__global__ void kernel(int *x) {
  FIRST
  printf("block %d thread %d: %d %.2f %s\\n", blockIdx.x, threadIdx.x, x[threadIdx.x], 0.5, "text");
}
"""
    result = python(PRINTS % source.replace("FIRST", first))
    # There when the launch is over, though standard output is a pipe.
    lines = [f"block {b} thread {t}: {t} 0.50 text\n" for b in range(2) for t in range(2)]
    assert (result.stdout, result.stderr) == ("".join(lines) + "after\n", "")


@pytest.mark.parametrize(
    ("body", "signal", "text"),
    [
        ("*(volatile int *)(size_t)threadIdx.x = 1;", 11, "Segmentation fault"),
        ("assert(x[0] == 17);", 6, "Assertion `x[0] == 17' failed"),
        ("__trap();", 4, "Illegal instruction"),
        (
            # An index that is known would leave one byte of it.
            "volatile char big[100000]; big[x[0]] = 1; __syncthreads(); x[0] = big[x[1]];",
            11,
            "Segmentation fault",
        ),
    ],
    ids=["address", "assert", "trap", "stack"],
)
def test_a_fault_ends_the_process(python, body, signal, text):
    result = python(PRINTS % f"__global__ void kernel(int *x) {{ {body} }}")
    assert result.returncode == -signal
    assert text in result.stderr
    assert "<string>" in result.stderr, "faulthandler shows where Python is"
