"""Functions of the devices' libraries that few kernels use (C5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import hal
from hal_conformance.suite.support import LIMIT

pytestmark = pytest.mark.feature("compile")

SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <ctime>
#define CONVERT(name) name##_rn(v), name##_rz(v), name##_rd(v), name##_ru(v)
__global__ void HAL_BLOCK(1) conversions(float x, double y, long long *to) {
  const long long all[] = {
#define v x
    CONVERT(__float2int), CONVERT(__float2ll), __float2uint_rn(-v), (long long)__float2ull_ru(-v),
#undef v
#define v y
    CONVERT(__double2int), CONVERT(__double2ll), __double2uint_rz(-v),
    (long long)__double2ull_rd(-v), __double2hiint(v), __double2loint(v),
#undef v
    (long long)__int2float_rn(16777217), (long long)__ull2double_rn(9007199254740993ull),
    (long long)__hiloint2double(0x40080000, 0),
  };
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++) to[i] = all[i];
}
__global__ void HAL_BLOCK(1) rounded(const float *x, const double *y, float *f, double *d) {
  f[0] = __fadd_rn(__fmul_rn(x[0], x[1]), x[2]);
  f[1] = __fsub_rn(__fmul_rn(x[0], x[1]), -x[2]);
  f[2] = __fdiv_rn(x[0], x[1]);
  d[0] = __dadd_rn(__dmul_rn(y[0], y[1]), y[2]);
  d[1] = __dsub_rn(__dmul_rn(y[0], y[1]), -y[2]);
  d[2] = __ddiv_rn(y[0], y[1]);
  d[3] = __dsqrt_rn(y[0]);
}
__global__ void HAL_BLOCK(1) turns(const double *x, int n, float *f, double *d) {
  for (int i = 0; i < n; i++) {
    f[4 * i] = sinpif((float)x[i]), f[4 * i + 1] = cospif((float)x[i]);
    d[4 * i] = sinpi(x[i]), d[4 * i + 1] = cospi(x[i]);
    sincospif((float)x[i], f + 4 * i + 2, f + 4 * i + 3);
    sincospi(x[i], d + 4 * i + 2, d + 4 * i + 3);
  }
}
__global__ void HAL_BLOCK(1) mathematics(const double *x, float *f, double *d) {
  int quotient;
  d[0] = norm3d(x[0], x[1], x[2]), f[0] = norm3df(x[0], x[1], x[2]);
  d[1] = norm4d(x[0], x[1], x[2], x[3]), f[1] = norm4df(x[0], x[1], x[2], x[3]);
  d[2] = rnorm3d(x[0], x[1], x[2]), f[2] = rnorm3df(x[0], x[1], x[2]);
  d[3] = rnorm4d(x[0], x[1], x[2], x[3]), f[3] = rnorm4df(x[0], x[1], x[2], x[3]);
  d[4] = rhypot(x[0], x[1]), f[4] = rhypotf(x[0], x[1]);
  d[5] = rcbrt(x[0]), f[5] = rcbrtf(x[0]);
  d[6] = j0(x[0]) + j1(x[0]) + jn(2, x[0]), f[6] = j0f(x[0]) + j1f(x[0]) + jnf(2, x[0]);
  d[7] = y0(x[0]) + y1(x[0]) + yn(2, x[0]), f[7] = y0f(x[0]) + y1f(x[0]) + ynf(2, x[0]);
  d[8] = logb(x[3]) + ilogb(x[3]), f[8] = logbf(x[3]) + ilogbf(x[3]);
  d[9] = lround(x[0]) + llround(-x[0]), f[9] = lroundf(x[0]) + llroundf(-x[0]);
  d[10] = scalbn(x[0], 3) + scalbln(x[0], 2), f[10] = scalbnf(x[0], 3) + scalblnf(x[0], 2);
  d[11] = remquo(x[3], x[0], &quotient) + quotient;
  f[11] = remquof(x[3], x[0], &quotient) + quotient;
  d[12] = normcdf(x[1]), f[12] = normcdff(x[1]);
  d[13] = erfinv(x[1]) + erfcinv(x[2] / 8), f[13] = erfinvf(x[1]) + erfcinvf(x[2] / 8);
  d[14] = erfcx(x[0]), f[14] = erfcxf(x[0]), d[15] = norm(4, x), f[15] = (float)(1 / rnorm(4, x));
}
__global__ void HAL_BLOCK(1) integers(unsigned a, unsigned b, long long c, unsigned *u,
                                      long long *l) {
  u[0] = __byte_perm(a, b, 0x7250), u[1] = __byte_perm(a, b, 0x3120);
  for (int i = 0; i < 2; i++) {
    const unsigned by = i ? 36 : 8;
    u[4 * i + 2] = __funnelshift_l(a, b, by), u[4 * i + 3] = __funnelshift_lc(a, b, by);
    u[4 * i + 4] = __funnelshift_r(a, b, by), u[4 * i + 5] = __funnelshift_rc(a, b, by);
  }
  u[10] = __sad(-5, 3, a), u[11] = __usad(a, b, 1u);
  u[12] = __uhadd(a, b), u[13] = __urhadd(a, b), u[14] = (unsigned)__rhadd(-5, 2);
  u[15] = __vadd4(a, b), u[16] = __vabsdiffu4(a, b), u[17] = __vcmpgts2(a, b ^ 1u << 31);
  u[18] = __vsadu4(a, b), u[19] = umin(a, b), u[20] = (unsigned)llmax(c, 5);
  u[21] = (unsigned)sqrt((int)b % 100);
  l[0] = __mul64hi(c, -c), l[1] = (long long)__umul64hi(c, ~0ull), l[2] = labs(-7l);
}
__global__ void HAL_BLOCK(1) memory(const float4 *x, const int *from, float4 *y, int *to) {
  __stcs(y, __ldcs(x));
  __stcg(y + 1, __ldcg(x + 1));
  to[0] = __ldca(from) + __ldcv(from + 1) + __ldlu(from + 2);
  __stwb(to + 1, 5);
  __stwt(to + 2, 6);
  atomicAdd_system(to + 2, 1);
  const long2 pair = make_long2(7, 8);
  to[3] = NULL == to ? 0 : (int)pair.y;
  const long long begin = clock64();
  while (clock64() == begin) {}
  to[4] = INT32_MAX;
}
"""


X = (2.75, -0.5, 3.0, 11.0)
# Sums of Bessel functions of 2.75, of the first kind and of the second.
BESSEL = 0.7357703414727403, 0.42494191167729956
# What erf takes to -0.5, and erfc to 0.375.
INVERSES = -0.4769362762044699 + 0.6273073477885589


@pytest.fixture
def program(device: hal.Device) -> hal.Executable:
    """Kernels of one thread that call each function."""
    return device.compile(SOURCE, filename="functions.cpp")


def run(device: hal.Device, program: hal.Executable, name: str, *args: object) -> list[list[Any]]:
    """Run a kernel; return what its arrays have then."""
    given = [device.upload(each) if isinstance(each, np.ndarray) else each for each in args]
    device.queue.dispatch(program[name], grid=1, args=tuple(given)).wait(timeout=LIMIT)
    return [each.numpy(timeout=LIMIT).tolist() for each in given if isinstance(each, hal.Buffer)]


def test_conversions_round_as_their_names_say_c5(device, program):
    """C5: to the nearest, ties to even; to zero, down and up; bits of a double."""
    (found,) = run(device, program, "conversions", -2.5, -3.5, np.zeros(25, np.int64))
    high, low = -1072955392, 0  # of -3.5
    assert found == [
        *(-2, -2, -3, -2, -2, -2, -3, -2, 2, 3),
        *(-4, -3, -4, -3, -4, -3, -4, -3, 3, 3, high, low),
        *(16777216, 9007199254740992, 3),
    ]


def test_arithmetic_with_a_rounding_of_its_own_c5(device, program):
    """C5: sums, products, quotients and roots to the nearest."""
    x, y = np.array([1.5, 3.0, 0.25], np.float32), np.array([2.0, 3.0, 0.25])
    _, _, f, d = run(device, program, "rounded", x, y, np.zeros(3, np.float32), np.zeros(4))
    assert f == [4.75, 4.75, 0.5]
    assert d == [6.25, 6.25, 2 / 3, math.sqrt(2)]


def test_multiples_of_pi_are_exact_where_they_can_be_c5(device, program):
    """C5: whole and half turns of any size have no error of pi in them."""
    x = np.array([0.0, 0.5, 1.0, -1.5, 1000.0, 1000.5, -4194303.0, 0.25, 2.125])
    f, d = run(device, program, "turns", x, x.size, np.zeros((9, 4), np.float32), np.zeros((9, 4)))[
        1:
    ]
    exact = [[0, 1], [1, 0], [0, -1], [1, 0], [0, 1], [1, 0], [0, -1]]
    assert f[:7] == d[:7] == [2 * each for each in exact]
    rest = [[math.sin(math.pi * each), math.cos(math.pi * each)] * 2 for each in (0.25, 0.125)]
    np.testing.assert_allclose(d[7:], rest, rtol=1e-14)
    np.testing.assert_allclose(f[7:], rest, rtol=1e-6)


def test_mathematics_that_few_kernels_use_c5(device, program):
    """C5: norms and their inverses, Bessel functions, exponents, remainders."""
    a, b, c, e = X
    three, four = math.hypot(a, b, c), math.hypot(a, b, c, e)
    expected = [
        *(three, four, 1 / three, 1 / four, 1 / math.hypot(a, b), a ** (-1 / 3), *BESSEL),
        *(6, 0, 12 * a, 4, (1 + math.erf(b / math.sqrt(2))) / 2),
        *(INVERSES, math.exp(a * a) * math.erfc(a), four),
    ]
    arrays = np.array(X), np.zeros(16, np.float32), np.zeros(16)
    _, f, d = run(device, program, "mathematics", *arrays)
    np.testing.assert_allclose(d, expected, rtol=1e-13)
    np.testing.assert_allclose(f, expected, rtol=2e-6)


def test_bits_and_halves_of_integers_c5(device, program):
    """C5: chosen bytes, shifts of two words, upper halves of products, differences and means."""
    a, b, c = 0x89ABCDEF, 0x01234567, 0x123456789ABCDEF
    arrays = np.zeros(22, np.uint32), np.zeros(3, np.int64)
    words, longs = run(device, program, "integers", a, b, c, *arrays)
    both, mask = b << 32 | a, 2**32 - 1
    assert words == [
        *(0x01AB45EF, 0x89CDABEF),
        *(both << 8 >> 32 & mask, both << 8 >> 32 & mask, both >> 8 & mask, both >> 8 & mask),
        *(both << 4 >> 32 & mask, a, both >> 4 & mask, b),
        *(8 + a, a - b + 1, (a + b) // 2, (a + b + 1) // 2, mask),
        *(0x8ACE1256, 0x88888888, 0xFFFF0000, 4 * 0x88, b, c & mask, math.isqrt(b % 100)),
    ]
    assert longs == [-c * c >> 64, c * (2**64 - 1) >> 64, 7]


def test_accesses_that_say_what_caches_do_c5(device, program):
    """C5: they load and store as others do; atomics for all devices; long vectors, the clock."""
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    arrays = x, np.array([1, 2, 3], np.int32), np.zeros_like(x), np.zeros(5, np.int32)
    _, _, y, to = run(device, program, "memory", *arrays)
    assert y == x.tolist()
    assert to == [6, 5, 7, 8, 2**31 - 1]
