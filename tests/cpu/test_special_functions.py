"""The error function's relatives against exact arithmetic: within CUDA's documented bounds."""

import math
from fractions import Fraction

import exact_functions as exact
import numpy as np
import pytest

KERNEL = """
__global__ void kernel(const double *x, double *d, float *f, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  d[i] = NAME(x[i]);
  f[i] = NAMEf((float)x[i]);
}
"""
TINY = [5e-324, 1e-310, 2.3e-308, 1e-300, 1e-200, 1e-100, 1e-40, 1e-30, 1e-17, 1e-9, 1e-4]
HALVES = [0.03, 0.1, 0.24, 0.25, 0.26, 0.4, 0.49, math.nextafter(0.5, 0)]
BELOW_ONE = [
    *TINY,
    *HALVES,
    0.5,
    math.nextafter(0.5, 1),
    0.6,
    0.75,
    0.8,
    0.99,
    1 - 2**-20,
    1 - 2**-53,
]
NEGATIVE = [-26.6, -26.3, -20.1, -9.3, -5.3, -1, -0.3, -1e-9]
POSITIVE = [0, *TINY[6:], *HALVES, 0.9, 1.7, 2.9, 4, 7.3, 12, 19.7, 25]
LOW = [-38.4, -37.5, -30.3, -14.1, -13.2, -8.3, -5.5, -3.1, -1, -0.7, -0.1, -1e-9]
ABOVE_ONE = [1 + 2**-52, 1.2, 1.499, 1.5, 1.6, 1.9, 2 - 2**-20, 2 - 2**-52]
# What a function is or is the inverse of, arguments, the bound for doubles in last places.
CASES = {
    "erfcx": (exact.erfcx, None, [*NEGATIVE, *POSITIVE], 4),
    "normcdf": (exact.normcdf, None, [*LOW, 0, 1e-9, 0.2, 1.4, 4.4, 8.1], 5),
    "erfinv": (None, exact.erf, [*BELOW_ONE, *(-x for x in BELOW_ONE)], 5),
    "erfcinv": (None, exact.erfc, [*BELOW_ONE, *ABOVE_ONE], 6),
    "normcdfinv": (None, exact.normcdf, BELOW_ONE, 8),
}
SPECIAL = {
    "erfcx": {
        math.inf: 0,
        -math.inf: math.inf,
        -27.0: math.inf,
        1e300: 1 / math.sqrt(math.pi) / 1e300,
    },
    "normcdf": {math.inf: 1, -math.inf: 0, 50.0: 1, -50.0: 0},
    "erfinv": {0.0: 0, 1.0: math.inf, -1.0: -math.inf, 1.5: math.nan, -2.0: math.nan},
    "erfcinv": {0.0: math.inf, 1.0: 0, 2.0: -math.inf, -0.5: math.nan, 2.5: math.nan},
    "normcdfinv": {0.0: -math.inf, 0.5: 0, 1.0: math.inf, -0.5: math.nan, 1.5: math.nan},
}


def values(lab, name, x):
    """Return what the function gives, of doubles and of floats."""
    x = lab.array(x, "f8")
    d, f = lab.array(np.zeros(len(x)), "f8"), lab.array(np.zeros(len(x)), "f4")
    kernel = lab.function(KERNEL.replace("NAME", name))
    lab.run(kernel, -(-len(x) // 64), 64, x, d, f, np.int32(len(x)))
    return d, f


def is_within(found, argument, bound, direct, inverse):
    """Return whether a value is at most `bound` units of the last place from the exact one."""
    unit = Fraction(float(np.spacing(np.abs(found))))
    near = Fraction(float(found))
    if direct is not None:
        return abs(near - direct(argument)) <= bound * unit
    sides = sorted(inverse(near + side * bound * unit) for side in (-1, 1))
    return sides[0] <= argument <= sides[1]


@pytest.mark.parametrize("name", CASES)
def test_values_are_as_exact_as_cuda_promises(lab, name):
    direct, inverse, x, bound = CASES[name]
    d, f = values(lab, name, x)
    for argument, found, single in zip(x, d, f, strict=True):
        assert is_within(found, Fraction(argument), bound, direct, inverse), (name, argument)
        rounded = np.float32(argument)
        if np.isfinite(single) and (rounded or not argument):
            of = Fraction(float(rounded))
            assert is_within(single, of, 2, direct, inverse), (name, rounded)


@pytest.mark.parametrize("name", SPECIAL)
def test_limits_and_what_has_no_value(lab, name):
    special = SPECIAL[name]
    d, f = values(lab, name, [*special, math.nan])
    np.testing.assert_allclose(d, [*special.values(), math.nan], rtol=1e-15)
    np.testing.assert_allclose(f, np.float32([*special.values(), math.nan]), rtol=1e-6)
    assert not np.signbit([found for found in d if found == 0]).any()


def test_names_without_an_f_take_floats_and_integers(lab):
    kernel = lab.function("""
__global__ void kernel(double *d, int *sizes) {
  d[0] = erfcx(1), d[1] = erfinv(0), d[2] = normcdf(0u), d[3] = rcbrt(8), d[4] = cospi(1ll);
  sizes[0] = sizeof(erfcx(1.0f)), sizes[1] = sizeof(normcdfinv(0.5f));
  sizes[2] = sizeof(erfcinv(1.0)), sizes[3] = sizeof(j0(1.0f));
  sizes[4] = sizeof(rcbrt(1)), sizes[5] = sizeof(exp10(1.0f));
}
""")
    d, sizes = lab.array(np.zeros(5), "f8"), lab.array(np.zeros(6), "i4")
    lab.run(kernel, 1, 1, d, sizes)
    np.testing.assert_allclose(d, [float(exact.erfcx(Fraction(1))), 0, 0.5, 0.5, -1], rtol=1e-15)
    assert sizes.tolist() == [4, 4, 8, 4, 8, 4]
