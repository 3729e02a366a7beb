"""`half` and `bfloat16` in kernels: every value, every rounding, against numpy."""

import numpy as np
import pytest

import hal
from hal import bfloat16

COUNT = 1 << 16
EVERY = np.arange(COUNT, dtype=np.uint16)
HALVES = EVERY.view(np.float16)
SEED = 5

SOURCE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define INDEX int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;

__global__ void HAL_BLOCK(256) widen(const half *x, const nv_bfloat16 *y, float *a, float *b,
                                     int n) {
  INDEX
  a[i] = x[i];
  b[i] = __bfloat162float(y[i]);
}
__global__ void HAL_BLOCK(256) narrow(const float *x, half *a, __nv_bfloat16 *b, int n) {
  INDEX
  a[4 * i] = __float2half(x[i]);
  a[4 * i + 1] = __float2half_rz(x[i]);
  a[4 * i + 2] = __float2half_rd(x[i]);
  a[4 * i + 3] = __float2half_ru(x[i]);
  b[i] = x[i];
}
__global__ void HAL_BLOCK(256) narrow_double(const double *x, half *a, __nv_bfloat16 *b, int n) {
  INDEX
  a[i] = __double2half(x[i]);
  b[i] = __double2bfloat16(x[i]);
}
__global__ void HAL_BLOCK(256) narrow_integer(const long long *x, half *a, nv_bfloat16 *b, int n) {
  INDEX
  a[i] = __ll2half_rn(x[i]);
  b[i] = __ll2bfloat16_rn(x[i]);
}
__global__ void HAL_BLOCK(256) to_integer(const half *x, int *a, int n) {
  INDEX
  a[4 * i] = __half2int_rn(x[i]);
  a[4 * i + 1] = __half2int_rz(x[i]);
  a[4 * i + 2] = __half2int_rd(x[i]);
  a[4 * i + 3] = __half2int_ru(x[i]);
}
template <class T> __device__ void operate(T x, T y, T z, T *a) {
  a[0] = x + y;
  a[1] = x - y;
  a[2] = x * y;
  a[3] = x / y;
  a[4] = hsqrt(x);
  a[5] = __hmax(x, y);
  a[6] = __hmin(x, y);
  a[7] = T((float)(__hlt(x, y) + 2 * __heq(x, y) + 4 * __hgeu(x, y)));
  a[8] = __hfma(x, y, z);
}
__global__ void HAL_BLOCK(256) halves(const half *x, const half *y, const half *z, half *a, int n) {
  INDEX
  operate(x[i], y[i], z[i], a + 9 * i);
}
__global__ void HAL_BLOCK(256) bfloats(const nv_bfloat16 *x, const nv_bfloat16 *y,
                                       const nv_bfloat16 *z, nv_bfloat16 *a, int n) {
  INDEX
  operate(x[i], y[i], z[i], a + 9 * i);
}
__global__ void HAL_BLOCK(256) mathematics(const half *x, half *a, int n) {
  INDEX
  a += 8 * i;
  a[0] = hsin(x[i]);
  a[1] = hexp2(x[i]);
  a[2] = hlog2(x[i]);
  a[3] = hrcp(x[i]);
  a[4] = htrunc(x[i]);
  const half2 two = __hfma2(__half2half2(x[i]), make_half2(x[i], -x[i]), half2(x[i], half(1)));
  a[5] = __low2half(two);
  a[6] = two.y;
  a[7] = __habs(-x[i]);
}
__global__ void HAL_BLOCK(256) add_up(half *a, half2 *b, nv_bfloat16 *c) {
  atomicAdd(a, half(1));
  atomicAdd(b, half2(half(1), half(2)));
  atomicAdd(c, nv_bfloat16(0.5f));
}
__global__ void HAL_BLOCK(1) given(half x, __nv_bfloat16 y, unsigned short *a) {
  a[0] = __half_as_ushort(x);
  a[1] = __bfloat16_as_ushort(y);
}
"""


@pytest.fixture(scope="module")
def program(device):
    return device.compile(SOURCE)


@pytest.fixture
def run(device, program):
    """Run a kernel over arrays; return what is in its outputs, each (numbers for each, dtype).

    Outputs of bfloat16 come as their bits.
    """

    def run(name, inputs, *outputs):
        count = inputs[0].size
        made = [
            device.allocate(each * count * (2 if kind == "bfloat16" else int(kind[1])), dtype=kind)
            for each, kind in outputs
        ]
        arguments = (*(device.upload(each) for each in inputs), *made, count)
        device.queue.dispatch(program[name], grid=-(-count // 256), args=arguments).wait()
        found = [each.numpy() for each in made]
        bits = [each.view("u2") if each.dtype.kind == "V" else each for each in found]
        return [each.reshape(count, -1).squeeze() for each in bits]

    return run


def bfloats(bits):
    """Return bfloat16 numbers, by their bits, as floats."""
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def rounded(values):
    """Return floats rounded to bfloat16, as bits: by integers, independently of the header."""
    bits = values.view(np.uint32).astype(np.uint64)
    near = ((bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)) & 0xFFFF
    return np.where(np.isnan(values), 0x7FFF, near).astype(np.uint16)


def assert_same(found, expected):
    """Compare numbers bit by bit; one NaN is as good as another."""
    both = np.isnan(found) & np.isnan(expected)
    kind = f"u{found.dtype.itemsize}"
    assert found.dtype == expected.dtype
    wrong = (
        np.ascontiguousarray(found).view(kind) != np.ascontiguousarray(expected).view(kind)
    ) & ~both
    assert not wrong.any(), (found[wrong][:5], expected[wrong][:5])


def floats():
    """Return every half, every bfloat16, the middles between them, and their neighbours."""
    finite = np.sort(HALVES[np.isfinite(HALVES)].astype(np.float32))
    middles = (finite[1:] + finite[:-1]) / 2
    halfway = (EVERY.astype(np.uint32) << 16 | 0x8000).view(np.float32)
    near = np.concatenate([finite, middles])
    ways = [np.nextafter(near, np.float32(end)) for end in (np.inf, -np.inf)]
    rng = np.random.default_rng(SEED)
    some = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    return np.concatenate(
        [near, *ways, halfway, bfloats(EVERY), some, [65519, 65520, -65520, 1e30]]
    ).astype("f4")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_number_widens_and_narrows_as_numpy_has_it_c5(run):
    a, b = run("widen", [HALVES, EVERY.view(bfloat16.dtype())], (1, "f4"), (1, "f4"))
    assert_same(a, HALVES.astype(np.float32))
    assert_same(b, bfloats(EVERY))
    values = floats()
    a, b = run("narrow", [values], (4, "f2"), (1, "bfloat16"))
    near = values.astype(np.float16)
    down = np.where(near > values, np.nextafter(near, np.float16(-np.inf)), near)
    up = np.where(near < values, np.nextafter(near, np.float16(np.inf)), near)
    for found, expected in zip(a.T, (near, np.where(values < 0, up, down), down, up), strict=True):
        assert_same(found, np.where(np.isnan(values), np.float16(np.nan), expected))
    assert_same(bfloats(b), bfloats(rounded(values)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_doubles_and_integers_are_rounded_once_c5(run):
    values = np.concatenate([floats().astype(np.float64), [5e-324, -5e-324, 1e300, -1e300]])
    values = np.concatenate([values, np.nextafter(values, np.inf), np.nextafter(values, -np.inf)])
    a, b = run("narrow_double", [values], (1, "f2"), (1, "bfloat16"))
    assert_same(a, values.astype(np.float16))
    # The nearest of three neighbours, by exact differences; a tie goes to even bits.
    ordinary = (np.abs(values) < 3e38) & (np.abs(values) > 1e-30)
    for step in (-1, 1):
        other = bfloats((b.astype(np.int64) + step).astype(np.uint16)).astype(np.float64)
        own = np.abs(bfloats(b).astype(np.float64) - values)
        gap = np.abs(other - values)
        assert ((own < gap) | ((own == gap) & (b % 2 == 0)))[ordinary].all()
    rng = np.random.default_rng(SEED)
    ends = [2**63 - 1, -(2**63), 2**62 + 2**54, 2**62 + 2**54 + 1, 2**62 + 2**54 - 1]
    whole = np.concatenate([np.arange(-70_000, 70_000), rng.integers(-(2**63), 2**63, 9_000), ends])
    a, b = run("narrow_integer", [whole.astype(np.int64)], (1, "f2"), (1, "bfloat16"))
    assert_same(a, whole.astype(np.float64).astype(np.float16))
    assert b[-3:].tolist() == [0x5E80, 0x5E81, 0x5E80]
    assert_same(
        bfloats(b), bfloats(np.array([bfloat16.bits_of(int(each)) for each in whole], "u2"))
    )


def test_integers_of_halves_round_each_way_and_saturate_c5(run):
    (found,) = run("to_integer", [HALVES], (4, "i4"))
    with np.errstate(invalid="ignore"):
        values = np.nan_to_num(HALVES.astype(np.float64), posinf=2**31 - 1, neginf=-(2**31))
    for column, way in zip(found.T, (np.rint, np.trunc, np.floor, np.ceil), strict=True):
        assert np.array_equal(column, way(values).astype(np.int64))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["halves", "bfloats"])
def test_arithmetic_is_rounded_once_c5(run, name):
    rng = np.random.default_rng(SEED)
    bits = [rng.integers(0, COUNT, 100_000).astype(np.uint16) for _ in range(3)]
    if name == "halves":
        (found,) = run(name, [each.view(np.float16) for each in bits], (9, "f2"))
        x, y, z = (each.view(np.float16).astype(np.float32) for each in bits)
        narrow = lambda values: values.astype(np.float16)  # noqa: E731
        columns = list(found.T)
    else:
        (found,) = run(name, [each.view(bfloat16.dtype()) for each in bits], (9, "bfloat16"))
        x, y, z = map(bfloats, bits)
        narrow = lambda values: bfloats(rounded(values))  # noqa: E731
        columns = [bfloats(np.ascontiguousarray(each)) for each in found.T]
    # numpy's fmax of a signalling NaN is a NaN on ARM.
    x, y, z = (np.where(np.isnan(each), np.float32(np.nan), each) for each in (x, y, z))
    unordered = np.isnan(x) | np.isnan(y)
    flags = (x < y) + 2 * (x == y) + 4 * ((x >= y) | unordered)
    expected = [x + y, x - y, x * y, x / y, np.sqrt(x), np.fmax(x, y), np.fmin(x, y)]
    for column, values in zip(columns, [*expected, flags.astype(np.float32)], strict=False):
        assert_same(column, narrow(values))
    # long double has enough bits for these sums, but for numbers far apart, which cannot be ties.
    exact = x.astype(np.longdouble) * y.astype(np.longdouble) + z.astype(np.longdouble)
    with np.errstate(all="ignore"):
        near = columns[8].astype(np.longdouble)
        error = np.abs(near - exact)
    kind = np.float16 if name == "halves" else None
    usual = np.isfinite(near) & (np.abs(exact) > 1e-4) & (np.abs(exact) < 6e4)
    spacing = (
        np.spacing(np.abs(columns[8])).astype(np.longdouble) if kind else np.abs(near) * 2.0**-7
    )
    assert usual.sum() > 1_000
    wrong = usual & (error > spacing / 2 * (1 + 2.0**-50))
    assert not wrong.any(), (x[wrong][:5], y[wrong][:5], z[wrong][:5], near[wrong][:5])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_functions_and_vectors_of_halves_c5(run):
    (found,) = run("mathematics", [HALVES], (8, "f2"))
    x = HALVES.astype(np.float32)
    wide = HALVES.astype(np.float64)
    expected = [np.sin(wide), np.exp2(wide), np.log2(wide), 1 / wide, np.trunc(wide)]
    expected += [wide * wide + wide, 1 - wide * wide, np.abs(wide)]
    for column, values in zip(found.T, expected, strict=True):
        near = values.astype(np.float16)
        same = (column == near) | (np.isnan(column) & np.isnan(near))
        step = np.abs(column.view(np.int16).astype(int) - near.view(np.int16).astype(int)) <= 1
        assert (same | step | (np.isnan(x))).all()


def test_atomics_of_16_bits_lose_nothing_c5(device, program):
    sums = device.upload(np.zeros(8, np.uint16))
    parts = sums.subspan(0, 2, dtype="f2"), sums.subspan(4, 4), sums.subspan(8, 2, dtype="bfloat16")
    device.queue.dispatch(program["add_up"], grid=4, args=parts).wait()
    bits = sums.numpy()
    assert bits[:4].view(np.float16).tolist() == [1024, 0, 1024, 2048]
    assert bfloats(bits[4:5]) == [128]  # a half more is lost from there on


def test_scalar_arguments_are_rounded_once_c5(device, program):
    found = device.upload(np.zeros(2, np.uint16))
    tie = 1 + 2.0**-8  # between two bfloat16 numbers
    for value, bits in (
        (tie, 0x3F80),
        (tie + 2.0**-40, 0x3F81),
        (float("inf"), 0x7F80),
        (3, 0x4040),
    ):
        device.queue.dispatch(program["given"], grid=1, args=(1.5, value, found)).wait()
        assert found.numpy().tolist() == [0x3E00, bits]
    with pytest.raises(
        hal.errors.InvalidArgumentError, match=r"'y' \(bf16\) takes finite values up"
    ):
        device.queue.dispatch(program["given"], grid=1, args=(1.5, 3.4e38, found))
    with pytest.raises(TypeError, match=r"'y' \(bf16\) takes a float or an int"):
        device.queue.dispatch(program["given"], grid=1, args=(1.5, True, found))


def test_headers_of_both_vendors_and_the_standard_library_are_there_c5(device):
    program = device.compile(r"""
        #include <hip/hip_runtime.h>
        #include <hip/hip_fp16.h>
        #include "hip/hip_bf16.h"
        #include <cmath>
        #include <cstdint>
        #include <cfloat>
        #include <climits>
        __global__ void HAL_BLOCK(1) all(__half *x, __hip_bfloat16 *y, uint *a, ushort b, ulong c,
                                         float *d) {
          a[0] = b + c + sizeof(ulong) + (INT_MAX >> 24);
          d[0] = std::sqrt(16.0f) + (FLT_MAX < INFINITY) + isnan(NAN);
          x[0] = __half(d[0]);
          y[0] = __hip_bfloat16(d[0]);
        }""")
    assert str(program["all"].signature) == "(f16* x, bf16* y, u32* a, u16 b, u64 c, f32* d)"
    x, y, a, d = (device.upload(np.zeros(1, kind)) for kind in ("f2", "u2", "u4", "f4"))
    device.queue.dispatch(program["all"], grid=1, args=(x, y.view("bfloat16"), a, 1, 2, d)).wait()
    assert (x.numpy()[0], y.numpy()[0], a.numpy()[0], d.numpy()[0]) == (6, 0x40C0, 138, 6)
