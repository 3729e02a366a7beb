// The error function's relatives, which few kernels use. Behind kernel.h, for sources that name one.
//
// `_headers.py` reads the names from this text, as those of intrinsics.h. The polynomials are the project's own: they go
// through the values at Chebyshev's points, of 60 digits, and are 2e-17 off at most.
#pragma once
#include "hal_overloads.h"

// The even powers and the odd ones are two sums, neither of which waits for the other.
template <int count> static HAL_INLINE double hal_polynomial(const double (&factors)[count], double x) {
  static_assert(count % 2 == 1, "the highest power is even");
  const double square = x * x;
  double even = factors[0], odd = factors[1];
  for (int i = 2; i < count - 1; i += 2) even = even * square + factors[i], odd = odd * square + factors[i + 1];
  return even * square + factors[count - 1] + odd * x;
}
// erfcx for x >= 0, where it falls from 1 to 0 like 0.56 / x: times 1 + 9/8 x it is nearly flat.
static constexpr double hal_scaled_erfc_factors[] = {
    -1.6148432264388659e-10, 4.5532308821990603e-10, 1.906800415887931e-09, -6.081225465927259e-09,
    -1.2638996289030858e-08, 5.31246669571303e-08, 5.472879895578726e-08, -4.1983272699948184e-07,
    3.988184228484206e-08, 3.0312322676141355e-06, -5.02368581029093e-06, -1.4556447552967948e-05,
    7.485629682369616e-05, -7.752698022738425e-05, -0.0004357682042198497, 0.0024808651771525895,
    -0.007334860074781587, 0.015287501095582292, -0.023617493542254658, 0.025115050344564707, -0.009163084533407716,
    -0.03355820178682012, 0.10434091383446463, -0.1918791495553914, 0.7534970169378377};
static HAL_INLINE double hal_scaled_erfc(double x) {
  return hal_polynomial(hal_scaled_erfc_factors, 1 - 8 / (x + 4)) / (1 + 1.125 * x);
}
// exp of half a square times `halves`. What rounding takes from the square counts, where it is large.
static HAL_INLINE double hal_exp_of_square(double x, double halves) {
  const double square = x * x, rest = fma(x, x, -square), power = exp(square * halves * 0.5);
  return power + power * (rest * halves * 0.5);
}
static HAL_INLINE double hal_erfcx(double x) {
  const double scaled = hal_scaled_erfc(fabs(x));
  if (x < 0) return x < -26.64 ? INFINITY : 2 * hal_exp_of_square(x, 2) - scaled;
  return scaled;
}
static HAL_INLINE double hal_normcdf(double x) {
  const double size = fabs(x) > 40 ? 40 : fabs(x);
  const double tail = 0.5 * hal_exp_of_square(size, -1) * hal_scaled_erfc(size * 0.70710678118654752440);
  return x < 0 ? tail : 1 - tail;
}

static constexpr double hal_erfinv_factors[] = {
    0.12003690619362008, -0.09642274527103643, 0.08722866446698135, -0.0014607021070302691, 0.030910158235606017,
    0.026969129751201436, 0.03181283844468519, 0.03645513184554066, 0.042837381929296245, 0.05173125434128652,
    0.06495961849686033, 0.08655212922928228, 0.1275561753057025, 0.23201366653465413, 0.886226925452758};
// The x of erfc(x) = y for y <= 1/2: a first guess (by Winitzki's formula) is off by a thousandth, and each step of
// Halley's method, for the logarithm of erfc, cubes that.
template <int steps> static HAL_INLINE double hal_erfc_inverse(double y) {
  if (!(y > 0)) return y == 0 ? INFINITY : NAN;
  const double goal = log(y), m = goal + (0.693147 - y * (0.5 + y * 0.125)), half = 4.3307 + m / 2;
  double x = sqrt(sqrt(half * half - m * 6.8027) - half);
  for (int i = 0; i < steps; i++) {
    const double scaled = hal_scaled_erfc(x), slope = -1.12837916709551257390 / scaled;
    const double step = (log(scaled) - (goal + x * x)) / slope;
    x -= step / (1 + step * (x + slope / 2));
  }
  return x;
}
template <int steps> static HAL_INLINE double hal_erfinv(double x) {
  const double size = fabs(x);
  if (size > 0.5) return copysign(hal_erfc_inverse<steps>(1 - size), x);
  return x * hal_polynomial(hal_erfinv_factors, x * x);
}
template <int steps> static HAL_INLINE double hal_erfcinv(double x) {
  if (x < 0.5) return hal_erfc_inverse<steps>(x);
  return x > 1.5 ? -hal_erfc_inverse<steps>(2 - x) : hal_erfinv<steps>(1 - x);
}

// Floats come from double, where one step is enough; integers, too.
#define HAL_FROM_DOUBLE(name, of_double, of_float)                              \
  static HAL_INLINE double name(double x) { return of_double; }                 \
  static HAL_INLINE float name##f(float single) {                               \
    const double x = single;                                                    \
    return (float)(of_float);                                                   \
  }                                                                             \
  static HAL_INLINE float name(float x) { return name##f(x); }                  \
  template <class T> static HAL_INLINE typename hal_whole<T>::wide name(T x) { return name((double)x); }
HAL_FROM_DOUBLE(erfcx, hal_erfcx(x), hal_erfcx(x))
HAL_FROM_DOUBLE(normcdf, hal_normcdf(x), 0.5 * erfc(x * -0.70710678118654752440))
HAL_FROM_DOUBLE(erfinv, hal_erfinv<2>(x), hal_erfinv<1>(x))
HAL_FROM_DOUBLE(erfcinv, hal_erfcinv<2>(x), hal_erfcinv<1>(x))
HAL_FROM_DOUBLE(normcdfinv, 0.0 - hal_erfcinv<2>(2 * x) * 1.41421356237309504880,
                0.0 - hal_erfcinv<1>(2 * x) * 1.41421356237309504880)
#undef HAL_FROM_DOUBLE
