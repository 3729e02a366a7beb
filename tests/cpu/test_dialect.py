"""What the portable dialect has, run on the processor."""

import ctypes
import re

import numpy as np
import pytest

from hal._programs.scanner import scan
from hal.errors import CompilationError
from hal.native import CompileRequest
from hal_cpu import _dialect


def test_functions_between_kernels_know_their_thread(lab):
    """What is defined behind a kernel is a declaration of its own."""
    image = lab.image("""
__global__ void first(int *out) { out[0] = 1; }
__device__ int thread() { return threadIdx.x; }
__device__ int beyond() { return thread() + 10; }
__global__ void second(int *out) { out[threadIdx.x] = beyond(); }
__device__ void meet() { __syncthreads(); }
__global__ void third(int *out) {
  __shared__ int last;
  if (threadIdx.x == 3) last = out[3];
  meet();
  out[thread()] = last;
}
""")
    module = lab.load(image)
    out = lab.array(np.zeros(4), "i4")
    for name, expected in (("second", [10, 11, 12, 13]), ("third", [13] * 4)):
        lab.run(lab.device.get_function(module, name), 1, 4, out)
        assert out.tolist() == expected


def test_kernels_may_be_declared_ahead(lab):
    """With their lines where they were, and preprocessor lines between them left alone."""
    source = """
__global__ void kernel(int *out,
                       int n);
extern "C" __global__ void kernel(int *, int); __device__ int line() { return __LINE__; }
extern "C" { __global__ void other(void); }
#if 1
__global__ void kernel(int *out, int n);
#endif
__global__ void other() {}
__global__ void kernel(int *out, int n) { out[threadIdx.x] = n + line(); }
"""
    out = lab.array(np.zeros(4), "i4")
    lab.run(lab.function(source), 1, 4, out, np.int32(100))
    assert out.tolist() == [104] * 4
    with pytest.raises(CompilationError, match=r":5:\d+: error: .*nothing"):
        lab.image("\n__global__ void kernel(int *out,\n  int n); \n\nnothing x;\n"
                  "__global__ void kernel(int *out, int n) {}")  # fmt: skip


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


PRINTS = r"""
import ctypes, sys
import numpy as np
from hal._programs.scanner import scan
from hal.native import CompileRequest
from hal_cpu.compiler import CpuCompiler
from hal_cpu.driver import CpuDriver
source = '''%s'''
device = CpuDriver().open_device(0, {})
request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
module = device.load_module(CpuCompiler().compile(request, "").image)
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


def test_a_rounding_of_its_own_is_never_one_with_a_sum(lab):
    """What is multiplied out by `__fmul_rn` is rounded before it is added."""
    kernel = lab.function("""
__global__ void kernel(float x, double y, float *f, double *d) {
  f[0] = __fadd_rn(__fmul_rn(x, x), -1.0f);
  d[0] = __dadd_rn(__dmul_rn(y, y), -1.0);
}
""")
    f, d = lab.array(np.zeros(1), "f4"), lab.array(np.zeros(1), "f8")
    x, y = np.float32(1 + 2**-12), np.float64(1 + 2**-30)
    lab.run(kernel, 1, 1, x, y, f, d)
    assert f[0] == x * x - np.float32(1)
    assert d[0] == y * y - 1


def test_dot_products_of_bytes(lab):
    kernel = lab.function("""
__global__ void kernel(int *p, unsigned *q) {
  p[0] = __dp4a(0x01ff7f80, 0x02038081, 5);
  q[0] = __dp4a(0x01ff7f80u, 0x02038081u, 5u);
}
""")
    p, q = lab.array(np.zeros(1), "i4"), lab.array(np.zeros(1), "u4")
    lab.run(kernel, 1, 1, p, q)
    assert p[0] == 5 + 2 - 3 - 127 * 128 + 128 * 127
    assert q[0] == 5 + 2 + 255 * 3 + 127 * 128 + 128 * 129


@pytest.mark.parametrize(
    ("text", "headers"),
    [
        ("p[0] = p[1] + make_int2(1, 2).x;", ()),
        ("p[0] = sqrtf(2);", ("functions.h",)),
        ("p[0] = NAN > 0;", ("functions.h",)),
        ("p[0] = p[0] > 0 ? asinhf(2) : 0;", ("functions.h",)),
        ("p[0] = min(p[0], p[1]);", ("functions.h",)),
        ("p[0] = __activemask();", ("warp.h",)),
        ("p[0] = warpSize + make_long2(1, 2).x;", ("functions.h", "warp.h", "intrinsics.h")),
        ("p[0] = __float2int_rn(p[0]);", ("functions.h", "intrinsics.h")),
        ("p[0] = __vadd4(p[0], p[1]);", ("functions.h", "hal_simd.h")),
        ("p[0] = erfinvf(p[0]) * sinf(p[1]);", ("functions.h", "special.h")),
        (
            "p[0] = sqrt(p[0]) + (int)umin(p[1], 2);",
            ("functions.h", "hal_overloads.h", "intrinsics.h"),
        ),
    ],
)
def test_headers_that_few_kernels_need_are_read_by_those_alone(text, headers):
    source = f"__global__ void kernel(int *p) {{ {text} }}"
    request = CompileRequest(source, "user.cpp", scan(source, filename="user.cpp"), "")
    text = _dialect.rewrite(request, "", "")
    found = re.findall(r'^#include "hal_cpu/(.*)"$', text, re.MULTILINE)
    assert found == ["kernel.h", *headers]


def test_a_name_that_is_pasted_together_finds_its_header(lab):
    kernel = lab.function("""
#define ROUND(how) __float2int_##how(1.5f)
__global__ void kernel(int *p) { p[0] = ROUND(rn); p[1] = ROUND(rz); }
""")
    p = lab.array(np.zeros(2), "i4")
    lab.run(kernel, 1, 1, p)
    assert p.tolist() == [2, 1]
