"""The real compiler, where it is installed: it needs no device."""

import os

import pytest
from child_processes import run_alone

# All imports come first: a machine without NVRTC checks them, too.
PROGRAM = """
import sys
from compile_requests import request
from hal.errors import CompilationError
from hal_cuda import _compile
try:
    from cuda.pathfinder import load_nvidia_dynamic_lib
    load_nvidia_dynamic_lib("nvrtc")
except RuntimeError as error:
    sys.exit(f"no NVRTC: {error}")
"""

# Everything that docs/kernels.md promises.
DIALECT = r"""
struct Pair { int a; double b; };
enum Colour : short { RED, GREEN };
typedef const float *Input;
template <class T> __device__ __forceinline__ T square(T x) { return x * x; }
namespace deep { struct Functor { float k; __device__ float operator()(float x) const { return k *
  x; } }; }
__constant__ float weights[4] = {1, 2, 3, 4};
__device__ int counter = 5;
__host__ __device__ __noinline__ int both(int x) { return x + counter; }
struct __align__(16) Wide { float4 v; };
__global__ void prototype(int *out);

__global__ void HAL_BLOCK(64) HAL_SHARED_MEMORY(256) __launch_bounds__(128)
everything(Pair pair, Colour colour, Input in, float *__restrict__ out, int8_t a, uint8_t b,
  int16_t c,
           uint16_t d, int32_t e, uint32_t f, int64_t g, uint64_t h, size_t n, bool flag, Wide
             wide) {
  extern __shared__ int memory[];
  __shared__ float tile[64];
  dim3 size = blockDim;
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  auto lambda = [=](float x) { return x + pair.a; };
  tile[threadIdx.x] = in[i];
  memory[threadIdx.x] = (int)size.y + warpSize + gridDim.z;
  __syncthreads();
  __threadfence(); __threadfence_block(); __threadfence_system();
  int *ints = &counter; unsigned u = 1; unsigned long long l = 1; float x = 1; double y = 1;
  atomicAdd(ints, 1); atomicSub(ints, 1); atomicMin(ints, 1); atomicMax(ints, 1); atomicExch(ints,
    1);
  atomicCAS(ints, 1, 2); atomicAnd(ints, 1); atomicOr(ints, 1); atomicXor(ints, 1);
  atomicInc((unsigned *)ints, 7u); atomicDec((unsigned *)ints, 7u);
  atomicAdd((unsigned *)ints, u); atomicAdd((unsigned long long *)out, l); atomicAdd(out, 1.0f);
  atomicAdd((double *)out, 1.0); atomicExch(out, 1.0f); atomicExch((double *)out, 1.0);
  float2 two = make_float2(1, 2); double4 four = make_double4(1, 2, 3, 4); char1 one =
    make_char1(1);
  ulonglong3 three = make_ulonglong3(1, 2, 3);
  x += sqrtf(x) + sinf(x) + powf(x, 2) + fmaf(x, x, x) + floorf(x) + rsqrtf(x) + __fdividef(x, 2)
    + __expf(x);
  x += __saturatef(x) + fminf(x, 1) + __sinf(x) + __logf(x) + __powf(x, 2) + erfcf(x) + hypotf(x,
    x);
  y += sqrt(y) + sin(y) + pow(y, 2.0) + fma(y, y, y) + floor(y) + rsqrt(y) + exp(y) + lgamma(y) +
    cbrt(y);
  x += min(1.0f, x) + max(2, 1) + abs(-1) + abs(-1.5f) + (isnan(x) || isinf(y) || isfinite(x));
  e += __popc(f) + __clz(e) + __ffs(e) + __brev(f) + __popcll(h) + __clzll(g) + __ffsll(g) +
    __mulhi(e, e);
  f += __umulhi(f, f) + __mul24(1, 2) + __float_as_int(x) + __ldg(in);
  x += __int_as_float(e) + __longlong_as_double(g) + __double_as_longlong(y) + one.x + three.z;
  y += sqrt(e) + pow(2, e) + pow(x, y) + fmax(e, 2u) + isnan(e) + erfinv(y) + erfcinvf(x) + erfcx(y)
    + normcdfinv(y) + norm(1, &y) + rnormf(1, &x) + nan("") + __ll2float_rz(g) + llmin(g, 2);
  f += __vadd4(f, f) + __vsads2(f, f) + umin(f, 2) + atomicAdd_block(ints, 1) + __hadd(1, 2);
  f += __match_all_sync(0xffffffff, e, ints); __nanosleep(10);
  memcpy(out, in, 4); memset(out, 0, 4);
  if (flag && !n) { printf("%d\n", i); assert(i >= 0); __trap(); }
  out[i] = lambda(tile[0]) + square(x) + deep::Functor{2}(x) + weights[i & 3] + two.y + four.w + y
    + a + b + c + d + e +
           f + g + h + colour + pair.b + both(1) + wide.v.x + memory[0] + sizeof(ptrdiff_t) +
             sizeof(uintptr_t);
}
extern "C" __global__ void prototype(int *out) { out[0] = 1; }
"""


def nvrtc(tmp_path, source, **environment):
    path = os.environ.get("LD_LIBRARY_PATH", "")
    done = run_alone(tmp_path, PROGRAM + source, LD_LIBRARY_PATH=path, **environment)
    if done.stderr.startswith("no NVRTC"):
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120", "sm_9999"])
def test_the_dialect_compiles(tmp_path, architecture):
    lines = nvrtc(
        tmp_path,
        f"""
from hal_cuda import _image
image, _ = _compile.compile_image(request({DIALECT!r}), _compile.target_for({architecture!r}))
found = _image.sniff(image)
print(found.kind, found.contents)
names = ("everything", "prototype", "hal_kernels", "hal_parameters", "counter", "weights")
if found.kind == "elf":
    from hal import elf
    symbols = {{each.name: each for each in elf.symbols(image) if each.section}}
    print([name for name in names if name not in symbols or not symbols[name].size])
    print(symbols["hal_kernels"].size, symbols["hal_parameters"].size)
else:
    print([name for name in names if name.encode() not in image])
""",
    )
    kind = "ptx PTX for " if architecture == "sm_9999" else f"elf a cubin for {architecture}"
    assert lines[0].startswith(kind)
    assert lines[1] == "[]"
    if len(lines) > 2:
        names = len("everything(pair,colour,in,out,a,b,c,d,e,f,g,h,n,flag,wide);prototype(out)") + 1
        assert lines[2] == f"{names} {(1 + 1 + 15 + 1 + 1) * 16}"


def test_an_error_has_file_line_and_column_c5(tmp_path):
    lines = nvrtc(
        tmp_path,
        r"""
source = "\n\n  __global__ void broken(int *p) {\n\tp[0] = 1 + missing;\n}\n"
for text in (source, source.replace("\n\n", "\n#define N 3\n")):
    try:
        _compile.compile_image(request(text, filename="my broken.cpp"), "sm_90")
    except CompilationError as error:
        print(str(error).splitlines()[1])
""",
    )
    assert lines == ['my broken.cpp:4:13: error: identifier "missing" is undefined'] * 2


def test_too_much_shared_memory_has_file_and_line_c5(tmp_path):
    lines = nvrtc(
        tmp_path,
        r"""
source = "\n__global__ void k(int *p) { __shared__ int a[20000]; a[p[0]] = 1; p[0] = a[p[1]]; }"
try:
    _compile.compile_image(request(source, filename="large.cu"), "sm_90")
except CompilationError as error:
    print(str(error).splitlines()[1])
""",
    )
    told = "kernel 'k': it declares 80,000 bytes of __shared__ memory, and a block has 49,152"
    assert lines == [f"large.cu:2: error: {told}"]


@pytest.mark.parametrize("target", ["sm_80", "sm_120", "compute_80"])
def test_what_an_image_says_of_its_kernels_c5(tmp_path, target):
    """The compiler's own PTX and cubins, read as images of another compiler."""
    lines = nvrtc(
        tmp_path,
        f"""
import hal
source = "__global__ void __launch_bounds__(64) f(float a, int *x, double3 r, bool b) {{ *x = 1; }}"
image, _ = _compile.compile_image(request(source), {target!r})
image = image.replace(b"hal_kernels", b"HAL_kernels")  # hal's own table says more
(found,) = hal.Program.from_images(image).images
print(found.name, *(f"{{name}}{{each.signature}}" for name, each in found.kernels.items()))
try:
    hal.Program.from_images(image, kernels={{"f": {{"block": 65}}}})
except hal.errors.InvalidArgumentError as error:
    print(error)
""",
    )
    sizes = ", ".join(f"any[{size}] arg{i}" for i, size in enumerate((4, 8, 24, 1)))
    assert lines[0] == f"cuda:{target} f({sizes})"
    assert lines[1].endswith("kernel 'f' takes blocks of 64 threads at most, and (65, 1, 1) are 65")
