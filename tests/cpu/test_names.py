"""Names of CUDA that few kernels use, against exact arithmetic of Python's."""

import math
import string
from fractions import Fraction

import numpy as np
import pytest

import hal


def test_minima_and_maxima_of_one_type(lab):
    kernel = lab.function("""
__global__ void kernel(const long long *x, long long *y) {
  const long long a = x[0], b = x[1];
  y[0] = umin(a, b), y[1] = umax(a, b), y[2] = llmin(a, b), y[3] = llmax(a, b);
  y[4] = (long long)ullmin(a, b), y[5] = (long long)ullmax(a, b);
  y[6] = min((int)a, 3u), y[7] = max((int)a, 3u), y[8] = __hadd((int)a, (int)b);
}
""")
    x, y = lab.array([-1, 4], "i8"), lab.array(np.zeros(9), "i8")
    lab.run(kernel, 1, 1, x, y)
    assert y.tolist() == [4, 2**32 - 1, -1, 4, 4, -1, 3, 2**32 - 1, 1]


CONVERSIONS = {
    "double2float": ("f8", "f4", "double"),
    "int2float": ("i4", "f4", "int"),
    "uint2float": ("u4", "f4", "unsigned"),
    "ll2float": ("i8", "f4", "long long"),
    "ull2float": ("u8", "f4", "unsigned long long"),
    "ll2double": ("i8", "f8", "long long"),
    "ull2double": ("u8", "f8", "unsigned long long"),
}
ODD = np.array([0.1, -0.1, 1 / 3, 2**24 + 1, -1e-40, 1e300, -1e300, 0.5, -0.0, math.inf, 2**-149])


@pytest.mark.parametrize("name", CONVERSIONS)
def test_conversions_round_down_up_and_to_zero(lab, name):
    kind, to, spelled = CONVERSIONS[name]
    result = {"f4": "float", "f8": "double"}[to]
    kernel = lab.function(f"""
__global__ void kernel(const {spelled} *x, {result} *y, int n) {{
  const int i = threadIdx.x;
  if (i >= n) return;
  y[3 * i] = __{name}_rd(x[i]), y[3 * i + 1] = __{name}_ru(x[i]), y[3 * i + 2] = __{name}_rz(x[i]);
}}
""")
    given = set(ODD.tolist())
    if kind != "f8":
        least, most = (int(getattr(np.iinfo(kind), each)) for each in ("min", "max"))
        given = {0, 1, 2**24 + 1, 2**24 + 3, most, most - 1, most // 3, least, least // 3}
        given |= {2**53 + 1, 2**53 + 3, 2**62 + 2**37 + 1} if kind[1] == "8" else set()
    x = lab.array(sorted(given), kind)
    y = lab.array(np.zeros((len(x), 3)), to)
    lab.run(kernel, 1, 32, x, y, np.int32(len(x)))
    for value, results in zip(x.tolist(), y, strict=True):
        down, up, zero = (each.item() for each in results)
        exact = Fraction(value) if math.isfinite(value) else value
        assert down <= exact <= up
        with np.errstate(over="ignore"):
            above = np.nextafter(results[0], np.inf, dtype=to)
        assert up == (down if down == exact else above)
        assert zero == (up if exact < 0 else down)


def test_norms_of_any_number_of_coordinates(lab):
    """Without an overflow on the way; infinite if one coordinate is, whatever the others are."""
    kernel = lab.function("""
__global__ void kernel(const double *x, const float *v, int n, double *d, float *f) {
  d[0] = norm(n, x), d[1] = rnorm(n, x), f[0] = normf(n, v), f[1] = rnormf(n, v);
}
""")
    d, f = lab.array(np.zeros(2), "f8"), lab.array(np.zeros(2), "f4")
    generator = np.random.default_rng(3)
    for scale, single in ((1, 1), (1e300, 1e37), (1e-300, 1e-38), (0, 0)):
        for count in (1, 2, 7, 100):
            x = lab.array(generator.uniform(-1, 1, count) * scale, "f8")
            v = lab.array(generator.uniform(-1, 1, count) * single, "f4")
            lab.run(kernel, 1, 1, x, v, np.int32(count), d, f)
            for found, array in ((d, x), (f, v)):
                squares = sum(Fraction(each) ** 2 for each in array.tolist())
                root = Fraction(
                    math.isqrt(squares.numerator * squares.denominator << 400),
                    squares.denominator << 200,
                )
                unit = Fraction(float(np.spacing(found[0])))
                assert abs(Fraction(float(found[0])) - root) <= 2 * unit
                if root:
                    with np.errstate(over="ignore"):
                        np.testing.assert_allclose(
                            found[1], found.dtype.type(1) / found[0], rtol=1e-6
                        )
    for odd, expected in (
        ([1, math.nan, -math.inf], (math.inf, 0)),
        ([math.nan, 1, 2], (math.nan, math.nan)),
    ):
        lab.run(kernel, 1, 1, lab.array(odd, "f8"), lab.array(odd, "f4"), np.int32(3), d, f)
        np.testing.assert_array_equal(d, expected)
        np.testing.assert_array_equal(f, expected)


def test_mathematics_of_integers_is_that_of_doubles(lab):
    """And of a float with a double; a float with an integer stays a float, as with NVRTC."""
    kernel = lab.function("""
__global__ void kernel(int i, unsigned u, long long l, short s, bool b, float f, double d,
                       double *y, int *sizes) {
  y[0] = sqrt(i), y[1] = sqrt(u), y[2] = exp(l), y[3] = log(s), y[4] = cos(b), y[5] = floor(i / 2);
  y[6] = pow(i, i), y[7] = pow(2, s), y[8] = pow(f, d), y[9] = atan2(i, u), y[10] = fmax(i, 2);
  y[11] = rsqrt(4), y[12] = hypot(3, 4), y[13] = isnan(i) + 2 * isfinite(l) + 4 * isinf(u);
  y[14] = fmod(d, f), y[15] = log2(8u);
  sizes[0] = sizeof(sqrt(i)), sizes[1] = sizeof(pow(f, 2)), sizes[2] = sizeof(pow(f, d));
  sizes[3] = sizeof(fmin(i, u)), sizes[4] = sizeof(isnan(i)), sizes[5] = sizeof(sqrt(f));
  sizes[6] = sizeof(ldexp(f, 1));
}
""")
    y, sizes = lab.array(np.zeros(16), "f8"), lab.array(np.zeros(7), "i4")
    arguments = (
        np.int32(7),
        np.uint32(3),
        np.int64(5),
        np.int16(9),
        np.bool_(1),
        np.float32(1.5),
        np.float64(2.75),
    )
    lab.run(kernel, 1, 1, *arguments, y, sizes)
    expected = [
        *(7**0.5, 3**0.5, math.exp(5), math.log(9), math.cos(1), 3, 7**7, 512, 1.5**2.75),
        *(math.atan2(7, 3), 7, 0.5, 5, 2, 2.75 % 1.5, 3),
    ]
    np.testing.assert_allclose(y, expected, rtol=1e-15)
    assert sizes.tolist() == [8, 4, 8, 8, 1, 4, 4]


def test_what_has_no_number_pauses_or_is_valid_for_a_block_alone(lab):
    kernel = lab.function("""
__global__ void kernel(int *x, unsigned *u, float *f, double *d) {
  atomicAdd_block(x, 2), atomicSub_block(x + 1, 1), atomicMin_block(x + 2, -5);
  atomicMax_block(x + 3, 5), atomicAnd_block(x + 4, 6), atomicOr_block(x + 5, 6);
  atomicXor_block(x + 6, 6), atomicExch_block(x + 7, 9);
  if (threadIdx.x == 0) atomicCAS_block(x + 8, 7, 8);
  atomicInc_block(u, 5u), atomicDec_block(u + 1, 5u);
  atomicInc_system(u + 2, 100u), atomicDec_system(u + 3, 100u);
  __nanosleep(20);
  f[0] = nanf(""), d[0] = nan("1");
  sincos(1.0f, f + 1, f + 2), f[4] = modf(2.5f, f + 3);
}
""")
    x, u = lab.array(np.full(9, 7), "i4"), lab.array([0, 0, 0, 50], "u4")
    f, d = lab.array(np.zeros(5), "f4"), lab.array(np.zeros(1), "f8")
    lab.run(kernel, 1, 8, x, u, f, d)
    assert x.tolist() == [7 + 16, 7 - 8, -5, 7, 6, 7, 7, 9, 8]
    assert u.tolist() == [8 % 6, 4, 8, 42]
    assert math.isnan(f[0])
    assert math.isnan(d[0])
    np.testing.assert_allclose(f[1:], [math.sin(1), math.cos(1), 2, 0.5], rtol=1e-6)


GROUPS = """
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
namespace cg = cooperative_groups;
struct Pair { float value; int index; };
__global__ void HAL_BLOCK(96) k(const int *x, int *y, double *d) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<TILE>(block);
  const int i = block.thread_rank(), v = x[i];
  y += 10 * i;
  y[0] = cg::reduce(tile, v, cg::plus<int>()), y[1] = cg::reduce(tile, v, cg::less<int>());
  y[2] = cg::reduce(tile, v, cg::greater<int>()), y[3] = cg::reduce(tile, v, cg::bit_and<int>());
  y[4] = cg::reduce(tile, v, cg::bit_or<int>()), y[5] = cg::reduce(tile, v, cg::bit_xor<int>());
  y[6] = cg::inclusive_scan(tile, v), y[7] = cg::exclusive_scan(tile, v);
  y[8] = cg::inclusive_scan(tile, v, cg::greater<int>());
  y[9] = cg::reduce(tile, v, [](int a, int b) { return a * 31 < b * 31 ? b : a; });
  d[i] = cg::reduce(tile, v * 0.5, cg::plus<double>());
}
"""


@pytest.mark.parametrize("tile", [1, 4, 32])
def test_groups_reduce_and_scan(device, tile):
    x = np.random.default_rng(5).integers(-1000, 1000, 96).astype(np.int32)
    y, d = device.upload(np.zeros((96, 10), np.int32)), device.upload(np.zeros(96))
    program = device.compile(GROUPS, defines={"TILE": tile})
    device.queue.dispatch(program["k"], grid=1, args=(device.upload(x), y, d)).wait(timeout=60)
    tiles = x.reshape(-1, tile)
    sums = np.cumsum(tiles, axis=1)
    whole = [
        *(tiles.sum(1), tiles.min(1), tiles.max(1), np.bitwise_and.reduce(tiles, 1)),
        *(np.bitwise_or.reduce(tiles, 1), np.bitwise_xor.reduce(tiles, 1)),
    ]
    expected = [np.repeat(each, tile) for each in whole]
    expected += [
        sums.ravel(),
        (sums - tiles).ravel(),
        np.maximum.accumulate(tiles, 1).ravel(),
        expected[2],
    ]
    assert (y.numpy() == np.transpose(expected)).all()
    assert (d.numpy() == expected[0] / 2).all()


def test_all_lanes_agree_or_none_c5(device):
    source = """
#include <cooperative_groups.h>
__global__ void HAL_BLOCK(64) k(const float *x, unsigned *lanes, int *all) {
  const int i = threadIdx.x;
  lanes[i] = __match_all_sync(0xffffffff, x[i], &all[i]);
  int same;
  auto tile = cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());
  lanes[64 + i] = tile.match_all(x[i], same);
  all[64 + i] = same;
}
"""
    x = np.ones(64, np.float32)
    x[40] = 2
    lanes, all_of = (
        device.upload(np.zeros(128, np.uint32)),
        device.upload(np.full(128, 7, np.int32)),
    )
    device.queue.dispatch(
        device.compile(source)["k"], grid=1, args=(device.upload(x), lanes, all_of)
    ).wait(timeout=60)
    agree = [i < 32 for i in range(64)] + [i // 8 != 5 for i in range(64)]
    assert all_of.numpy().tolist() == agree
    ones = [0xFFFFFFFF] * 64 + [0xFF] * 64
    assert lanes.numpy().tolist() == [
        one if same else 0 for one, same in zip(ones, agree, strict=True)
    ]


def test_macros_of_one_letter_do_not_reach_into_the_headers_c5(device):
    """`N` and the like are what programs are often given."""
    macros = dict.fromkeys(string.ascii_uppercase, 1)
    source = "#include <cooperative_groups.h>\n#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    source += "__global__ void k(int *p) { p[0] = A; }"
    assert "k" in device.compile(source, defines=macros)


def test_a_kernel_has_no_name_of_a_function_of_the_dialect(device):
    for name in ("norm", "umin", "erfinvf", "nan"):
        with pytest.raises(hal.errors.HalError, match=name):
            device.compile(f"__global__ void {name}(int *x) {{ x[0] = 1; }}")
