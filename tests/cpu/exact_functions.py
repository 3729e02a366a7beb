"""The error function and its relatives to hundreds of digits, of exact fractions.

A number is an integer, in units of 2 to the power of minus BITS. The terms of the series reach
2**1060 before they fall, and what is left of them can be as small as 2**-1100.
"""

import math
from fractions import Fraction

BITS = 1300
ONE = 1 << BITS


def _fixed(value):
    return (value.numerator << BITS) // value.denominator


def _power_series(square, divisor):
    """Return the sum of square**n / n! / divisor(n)."""
    term, total, n = ONE, 0, 0
    while term:
        total += term // divisor(n)
        n += 1
        term = term * square.numerator // (square.denominator * n)
    return total


def _arc_tangent(inverse):
    term, total, n = ONE // inverse, 0, 0
    while term:
        total += (-term if n % 2 else term) // (2 * n + 1)
        n += 1
        term //= inverse * inverse
    return total


ROOT_OF_PI = math.isqrt((16 * _arc_tangent(5) - 4 * _arc_tangent(239)) << BITS)


def erf(x):
    series = _power_series(-x * x, lambda n: 2 * n + 1)
    return Fraction(2 * _fixed(x) * series // ROOT_OF_PI, ONE)


def erfc(x):
    return 1 - erf(x)


def erfcx(x):
    return erfc(x) * Fraction(_power_series(x * x, lambda n: 1), ONE)


def normcdf(x):
    root = Fraction(math.isqrt(2 << 2 * BITS), ONE)
    return erfc(-x / root) / 2
