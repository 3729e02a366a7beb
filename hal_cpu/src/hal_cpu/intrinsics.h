// Functions of CUDA's device library that few kernels use. Behind kernel.h, for sources that name one.
//
// `_headers.py` reads the names from this text: each stands in a line of its own, behind a type or
// `#define`, or first in the parentheses of a macro.
#pragma once
#include "hal_overloads.h"

#define HAL_ONE(name, to, from, ...) \
  static HAL_INLINE to name(from x) { return __VA_ARGS__; }
#define HAL_TWO(name, to, type, ...) \
  static HAL_INLINE to name(type x, type y) { return __VA_ARGS__; }
#define HAL_THREE(name, to, one, two, three, ...) \
  static HAL_INLINE to name(one x, two y, three z) { return __VA_ARGS__; }

HAL_VECTORS(long, long, 16, 16)
HAL_VECTORS(ulong, unsigned long, 16, 16)

// Conversions. Numbers that the result's type does not have give any result.

HAL_ONE(__float2int_rn, int, float, (int)rintf(x))
HAL_ONE(__float2int_rz, int, float, (int)x)
HAL_ONE(__float2int_rd, int, float, (int)floorf(x))
HAL_ONE(__float2int_ru, int, float, (int)ceilf(x))
HAL_ONE(__float2uint_rn, unsigned int, float, (unsigned int)rintf(x))
HAL_ONE(__float2uint_rz, unsigned int, float, (unsigned int)x)
HAL_ONE(__float2uint_rd, unsigned int, float, (unsigned int)floorf(x))
HAL_ONE(__float2uint_ru, unsigned int, float, (unsigned int)ceilf(x))
HAL_ONE(__float2ll_rn, long long, float, (long long)rintf(x))
HAL_ONE(__float2ll_rz, long long, float, (long long)x)
HAL_ONE(__float2ll_rd, long long, float, (long long)floorf(x))
HAL_ONE(__float2ll_ru, long long, float, (long long)ceilf(x))
HAL_ONE(__float2ull_rn, unsigned long long, float, (unsigned long long)rintf(x))
HAL_ONE(__float2ull_rz, unsigned long long, float, (unsigned long long)x)
HAL_ONE(__float2ull_rd, unsigned long long, float, (unsigned long long)floorf(x))
HAL_ONE(__float2ull_ru, unsigned long long, float, (unsigned long long)ceilf(x))
HAL_ONE(__double2int_rn, int, double, (int)rint(x))
HAL_ONE(__double2int_rz, int, double, (int)x)
HAL_ONE(__double2int_rd, int, double, (int)floor(x))
HAL_ONE(__double2int_ru, int, double, (int)ceil(x))
HAL_ONE(__double2uint_rn, unsigned int, double, (unsigned int)rint(x))
HAL_ONE(__double2uint_rz, unsigned int, double, (unsigned int)x)
HAL_ONE(__double2uint_rd, unsigned int, double, (unsigned int)floor(x))
HAL_ONE(__double2uint_ru, unsigned int, double, (unsigned int)ceil(x))
HAL_ONE(__double2ll_rn, long long, double, (long long)rint(x))
HAL_ONE(__double2ll_rz, long long, double, (long long)x)
HAL_ONE(__double2ll_rd, long long, double, (long long)floor(x))
HAL_ONE(__double2ll_ru, long long, double, (long long)ceil(x))
HAL_ONE(__double2ull_rn, unsigned long long, double, (unsigned long long)rint(x))
HAL_ONE(__double2ull_rz, unsigned long long, double, (unsigned long long)x)
HAL_ONE(__double2ull_rd, unsigned long long, double, (unsigned long long)floor(x))
HAL_ONE(__double2ull_ru, unsigned long long, double, (unsigned long long)ceil(x))
HAL_ONE(__double2float_rn, float, double, (float)x)
// Beside the nearest lie those of the other roundings; back in a type that is exact it tells on which side it is, unless
// it is `end`, which that type does not have.
#define HAL_DIRECTED(name, to, from, exact, end, next)                                   \
  static HAL_INLINE to name##_rd(from x) {                                               \
    const to y = (to)x;                                                                  \
    return y == (to)end || (exact)y > x ? next(y, -(to)INFINITY) : y;                    \
  }                                                                                      \
  static HAL_INLINE to name##_ru(from x) {                                               \
    const to y = (to)x;                                                                  \
    return y != (to)end && (exact)y < x ? next(y, (to)INFINITY) : y;                     \
  }                                                                                      \
  static HAL_INLINE to name##_rz(from x) { return x < 0 ? name##_ru(x) : name##_rd(x); }
HAL_DIRECTED(__double2float, float, double, double, NAN, nextafterf)
HAL_DIRECTED(__int2float, float, int, double, NAN, nextafterf)
HAL_DIRECTED(__uint2float, float, unsigned int, double, NAN, nextafterf)
HAL_DIRECTED(__ll2float, float, long long, long long, 0x1p63, nextafterf)
HAL_DIRECTED(__ull2float, float, unsigned long long, unsigned long long, 0x1p64, nextafterf)
HAL_DIRECTED(__ll2double, double, long long, long long, 0x1p63, nextafter)
HAL_DIRECTED(__ull2double, double, unsigned long long, unsigned long long, 0x1p64, nextafter)
HAL_ONE(__int2float_rn, float, int, (float)x)
HAL_ONE(__uint2float_rn, float, unsigned int, (float)x)
HAL_ONE(__ll2float_rn, float, long long, (float)x)
HAL_ONE(__ull2float_rn, float, unsigned long long, (float)x)
HAL_ONE(__int2double_rn, double, int, x)
HAL_ONE(__uint2double_rn, double, unsigned int, x)
HAL_ONE(__ll2double_rn, double, long long, (double)x)
HAL_ONE(__ull2double_rn, double, unsigned long long, (double)x)
HAL_ONE(__double2hiint, int, double, (int)(hal_bits<long long>(x) >> 32))
HAL_ONE(__double2loint, int, double, (int)hal_bits<long long>(x))
HAL_TWO(__hiloint2double, double, int, hal_bits<double>((unsigned long long)(unsigned int)x << 32 | (unsigned int)y))

// Arithmetic that is rounded at once: no product becomes one rounding with a sum.

#if defined(__clang__)
#define HAL_ROUNDED(name, type, ...) \
  static HAL_INLINE type name(type x, type y) { _Pragma("clang fp contract(off)") return __VA_ARGS__; }
#elif __GNUC__ >= 12
#define HAL_ROUNDED(name, type, ...) HAL_TWO(name, type, type, __builtin_assoc_barrier(__VA_ARGS__))
#else
#define HAL_ROUNDED(name, type, ...) \
  static HAL_INLINE type name(type x, type y) { type z = __VA_ARGS__; asm("" : "+m"(z)); return z; }
#endif
HAL_ROUNDED(__fadd_rn, float, x + y)
HAL_ROUNDED(__fsub_rn, float, x - y)
HAL_ROUNDED(__fmul_rn, float, x * y)
HAL_ROUNDED(__dadd_rn, double, x + y)
HAL_ROUNDED(__dsub_rn, double, x - y)
HAL_ROUNDED(__dmul_rn, double, x * y)
HAL_TWO(__fdiv_rn, float, float, x / y)
HAL_TWO(__ddiv_rn, double, double, x / y)
HAL_ONE(__drcp_rn, double, double, 1.0 / x)
HAL_ONE(__dsqrt_rn, double, double, sqrt(x))
HAL_ONE(__frsqrt_rn, float, float, (float)(1.0 / sqrt((double)x)))

// Mathematics

extern "C" double j0(double) noexcept;
extern "C" float j0f(float) noexcept;
extern "C" double j1(double) noexcept;
extern "C" float j1f(float) noexcept;
extern "C" double y0(double) noexcept;
extern "C" float y0f(float) noexcept;
extern "C" double y1(double) noexcept;
extern "C" float y1f(float) noexcept;
extern "C" double logb(double) noexcept;
extern "C" float logbf(float) noexcept;
extern "C" double jn(int, double) noexcept;
extern "C" float jnf(int, float) noexcept;
extern "C" double yn(int, double) noexcept;
extern "C" float ynf(int, float) noexcept;
extern "C" int ilogb(double) noexcept;
extern "C" int ilogbf(float) noexcept;
extern "C" long lround(double) noexcept;
extern "C" long lroundf(float) noexcept;
extern "C" long long llround(double) noexcept;
extern "C" long long llroundf(float) noexcept;
extern "C" double scalbn(double, int) noexcept;
extern "C" float scalbnf(float, int) noexcept;
extern "C" double scalbln(double, long) noexcept;
extern "C" float scalblnf(float, long) noexcept;
extern "C" double remquo(double, double, int *) noexcept;
extern "C" float remquof(float, float, int *) noexcept;
HAL_ONE(rcbrt, double, double, 1.0 / cbrt(x))
HAL_ONE(rcbrtf, float, float, 1.0f / cbrtf(x))
HAL_TWO(rhypot, double, double, 1.0 / hypot(x, y))
HAL_TWO(rhypotf, float, float, 1.0f / hypotf(x, y))
HAL_THREE(norm3d, double, double, double, double, hypot(hypot(x, y), z))
HAL_THREE(norm3df, float, float, float, float, hypotf(hypotf(x, y), z))
HAL_THREE(rnorm3d, double, double, double, double, 1.0 / norm3d(x, y, z))
HAL_THREE(rnorm3df, float, float, float, float, 1.0f / norm3df(x, y, z))
static HAL_INLINE double norm4d(double x, double y, double z, double w) { return hypot(hypot(x, y), hypot(z, w)); }
static HAL_INLINE float norm4df(float x, float y, float z, float w) { return hypotf(hypotf(x, y), hypotf(z, w)); }
static HAL_INLINE double rnorm4d(double x, double y, double z, double w) { return 1.0 / norm4d(x, y, z, w); }
static HAL_INLINE float rnorm4df(float x, float y, float z, float w) { return 1.0f / norm4df(x, y, z, w); }
HAL_TWO(fdividef, float, float, x / y)
static HAL_INLINE double nan(const char *) { return NAN; }
static HAL_INLINE float nanf(const char *) { return NAN; }

// Of any number of coordinates. Squares of floats fit a double; those of doubles once the largest is near 1.
static HAL_INLINE float normf(int count, const float *x) {
  double sum = 0;
  bool is_infinite = false;
  for (int i = 0; i < count; i++) sum += (double)x[i] * x[i], is_infinite |= isinf(x[i]);
  return is_infinite ? INFINITY : (float)sqrt(sum);
}
static HAL_INLINE double norm(int count, const double *x) {
  double most = 0, sum = 0;
  for (int i = 0; i < count; i++) most = fmax(most, fabs(x[i]));
  if (isinf(most)) return INFINITY;
  const int power = most > 0 ? ilogb(most) : 0;
  for (int i = 0; i < count; i++) {
    const double scaled = scalbn(x[i], -power);
    sum += scaled * scaled;
  }
  return scalbn(sqrt(sum), power);
}
static HAL_INLINE float rnormf(int count, const float *x) { return 1.0f / normf(count, x); }
static HAL_INLINE double rnorm(int count, const double *x) { return 1.0 / norm(count, x); }

// A multiple of pi: what is left of x beside whole turns is exact, and at most a quarter of a turn.
#define HAL_TURNS(name, type, rest, function, pi, ...)   \
  static HAL_INLINE type name(type x) {                  \
    const type rest = x - 2 * __builtin_rint(x / 2);     \
    return function(__VA_ARGS__ * (type)pi);             \
  }
HAL_TURNS(sinpi, double, r, sin, 3.14159265358979323846, (fabs(r) > 0.5 ? copysign(1.0, r) - r : r))
HAL_TURNS(sinpif, float, r, sinf, 3.14159265358979323846, (fabsf(r) > 0.5f ? copysignf(1.0f, r) - r : r))
HAL_TURNS(cospi, double, r, sin, 3.14159265358979323846, (0.5 - fabs(r)))
HAL_TURNS(cospif, float, r, sinf, 3.14159265358979323846, (0.5f - fabsf(r)))
static HAL_INLINE void sincospi(double x, double *s, double *c) { *s = sinpi(x), *c = cospi(x); }
static HAL_INLINE void sincospif(float x, float *s, float *c) { *s = sinpif(x), *c = cospif(x); }
#define HAL_ALSO(name)                                       \
  static HAL_INLINE float name(float x) { return name##f(x); } \
  template <class T> static HAL_INLINE typename hal_whole<T>::wide name(T x) { return name((double)x); }
HAL_ALSO(rcbrt) HAL_ALSO(sinpi) HAL_ALSO(cospi) HAL_ALSO(logb) HAL_ALSO(j0) HAL_ALSO(j1) HAL_ALSO(y0) HAL_ALSO(y1)
static HAL_INLINE void __sincosf(float x, float *s, float *c) { sincosf(x, s, c); }

// Bits and integers

static HAL_INLINE unsigned int __byte_perm(unsigned int x, unsigned int y, unsigned int places) {
  const unsigned long long bytes = (unsigned long long)y << 32 | x;
  unsigned int result = 0;
  for (int i = 0; i < 4; i++) result |= (unsigned int)(bytes >> (places >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
static HAL_INLINE unsigned int __funnelshift_lc(unsigned int low, unsigned int high, unsigned int by) {
  return (unsigned int)(((unsigned long long)high << 32 | low) << (by < 32 ? by : 32) >> 32);
}
static HAL_INLINE unsigned int __funnelshift_rc(unsigned int low, unsigned int high, unsigned int by) {
  return (unsigned int)(((unsigned long long)high << 32 | low) >> (by < 32 ? by : 32));
}
static HAL_INLINE unsigned int __funnelshift_l(unsigned int low, unsigned int high, unsigned int by) {
  return __funnelshift_lc(low, high, by & 31);
}
static HAL_INLINE unsigned int __funnelshift_r(unsigned int low, unsigned int high, unsigned int by) {
  return __funnelshift_rc(low, high, by & 31);
}
HAL_ONE(labs, long, long, x < 0 ? -x : x)
HAL_TWO(umin, unsigned int, unsigned int, x < y ? x : y)
HAL_TWO(umax, unsigned int, unsigned int, x > y ? x : y)
HAL_TWO(llmin, long long, long long, x < y ? x : y)
HAL_TWO(llmax, long long, long long, x > y ? x : y)
HAL_TWO(ullmin, unsigned long long, unsigned long long, x < y ? x : y)
HAL_TWO(ullmax, unsigned long long, unsigned long long, x > y ? x : y)
HAL_TWO(__hadd, int, int, (int)(((long long)x + y) >> 1))
HAL_TWO(__mul64hi, long long, long long, (long long)((__int128)x * y >> 64))
HAL_TWO(__umul64hi, unsigned long long, unsigned long long, (unsigned long long)((unsigned __int128)x * y >> 64))
HAL_TWO(__rhadd, int, int, (int)(((long long)x + y + 1) >> 1))
HAL_TWO(__uhadd, unsigned int, unsigned int, (unsigned int)(((unsigned long long)x + y) >> 1))
HAL_TWO(__urhadd, unsigned int, unsigned int, (unsigned int)(((unsigned long long)x + y + 1) >> 1))
HAL_THREE(__sad, unsigned int, int, int, unsigned int, (x < y ? (unsigned int)y - x : (unsigned int)x - y) + z)
HAL_THREE(__usad, unsigned int, unsigned int, unsigned int, unsigned int, (x < y ? y - x : x - y) + z)
#define HAL_DOT(name, type, byte)                                            \
  static HAL_INLINE type name(type x, type y, type sum) {                     \
    for (int i = 0; i < 32; i += 8) sum += (byte)(x >> i) * (byte)(y >> i);   \
    return sum;                                                               \
  }
HAL_DOT(__dp4a, int, signed char)
HAL_DOT(__dp4a, unsigned int, unsigned char)

// Memory: what caches are to do is the processor's own business

#define __ldca __ldg
#define __ldcg __ldg
#define __ldcs __ldg
#define __ldcv __ldg
#define __ldlu __ldg
#define __stcg hal_store
#define __stcs hal_store
#define __stwb hal_store
#define __stwt hal_store
template <class T> static HAL_INLINE void hal_store(T *address, typename hal_same<T>::type value) { *address = value; }

// Atomics are valid for the host and all its threads anyway.
#define atomicAdd_system atomicAdd
#define atomicSub_system atomicSub
#define atomicExch_system atomicExch
#define atomicMin_system atomicMin
#define atomicMax_system atomicMax
#define atomicCAS_system atomicCAS
#define atomicAnd_system atomicAnd
#define atomicOr_system atomicOr
#define atomicXor_system atomicXor
#define atomicInc_system atomicInc
#define atomicDec_system atomicDec

// The clock of the processor that runs the block

typedef long clock_t;
static HAL_INLINE long long clock64() {
#if defined(__x86_64__)
  return (long long)__builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  long long now;
  asm volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#endif
}
static HAL_INLINE clock_t clock() { return (clock_t)clock64(); }
#define __nanosleep(time) ((void)(time))
