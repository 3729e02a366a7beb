// Atomics and mathematics, for sources that name one of them: a fifth of what is read for the others.
//
// Behind kernel.h and before the other headers, which use them. `_headers.py` reads the names from this text.
#pragma once

// Atomics: relaxed, as on GPUs

template <class T> struct hal_same { typedef T type; };

#define HAL_ATOMIC(name, builtin) \
  template <class T> static HAL_INLINE T name(T *address, typename hal_same<T>::type value) { \
    return builtin(address, value, __ATOMIC_RELAXED); \
  }
template <class T, class F> static HAL_INLINE T hal_atomic_update(T *address, F next) {
  T old, wanted;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do wanted = next(old);
  while (!__atomic_compare_exchange(address, &old, &wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
HAL_ATOMIC(atomicAdd, __atomic_fetch_add)
HAL_ATOMIC(atomicSub, __atomic_fetch_sub)
HAL_ATOMIC(atomicAnd, __atomic_fetch_and)
HAL_ATOMIC(atomicOr, __atomic_fetch_or)
HAL_ATOMIC(atomicXor, __atomic_fetch_xor)
#undef HAL_ATOMIC
static HAL_INLINE float atomicAdd(float *address, float value) {
  return hal_atomic_update(address, [=](float old) { return old + value; });
}
static HAL_INLINE double atomicAdd(double *address, double value) {
  return hal_atomic_update(address, [=](double old) { return old + value; });
}
static HAL_INLINE float atomicSub(float *address, float value) { return atomicAdd(address, -value); }
static HAL_INLINE double atomicSub(double *address, double value) { return atomicAdd(address, -value); }
template <class T> static HAL_INLINE T atomicExch(T *address, typename hal_same<T>::type value) {
  T old;
  __atomic_exchange(address, &value, &old, __ATOMIC_RELAXED);
  return old;
}
template <class T>
static HAL_INLINE T atomicCAS(T *address, typename hal_same<T>::type compare, typename hal_same<T>::type value) {
  __atomic_compare_exchange(address, &compare, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return compare;
}
template <class T> static HAL_INLINE T atomicMin(T *address, typename hal_same<T>::type value) {
  return hal_atomic_update(address, [=](T old) { return value < old ? value : old; });
}
template <class T> static HAL_INLINE T atomicMax(T *address, typename hal_same<T>::type value) {
  return hal_atomic_update(address, [=](T old) { return old < value ? value : old; });
}
static HAL_INLINE unsigned int atomicInc(unsigned int *address, unsigned int limit) {
  return hal_atomic_update(address, [=](unsigned int old) { return old >= limit ? 0u : old + 1u; });
}
static HAL_INLINE unsigned int atomicDec(unsigned int *address, unsigned int limit) {
  return hal_atomic_update(address, [=](unsigned int old) { return old == 0u || old > limit ? limit : old - 1u; });
}
static HAL_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static HAL_INLINE void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static HAL_INLINE void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Mathematics

#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))

#define HAL_UNARY(name) \
  extern "C" double name(double) noexcept; \
  extern "C" float name##f(float) noexcept; \
  static HAL_INLINE float name(float x) { return name##f(x); }
#define HAL_BINARY(name) \
  extern "C" double name(double, double) noexcept; \
  extern "C" float name##f(float, float) noexcept; \
  static HAL_INLINE float name(float x, float y) { return name##f(x, y); }
HAL_UNARY(sqrt) HAL_UNARY(cbrt) HAL_UNARY(exp) HAL_UNARY(exp2) HAL_UNARY(expm1) HAL_UNARY(log)
HAL_UNARY(log2) HAL_UNARY(log10) HAL_UNARY(log1p) HAL_UNARY(sin) HAL_UNARY(cos) HAL_UNARY(tan)
HAL_UNARY(asin) HAL_UNARY(acos) HAL_UNARY(atan) HAL_UNARY(sinh) HAL_UNARY(cosh) HAL_UNARY(tanh)
HAL_UNARY(asinh) HAL_UNARY(acosh) HAL_UNARY(atanh) HAL_UNARY(erf) HAL_UNARY(erfc) HAL_UNARY(tgamma)
HAL_UNARY(lgamma) HAL_UNARY(floor) HAL_UNARY(ceil) HAL_UNARY(trunc) HAL_UNARY(round) HAL_UNARY(rint)
HAL_UNARY(nearbyint) HAL_UNARY(fabs)
HAL_BINARY(pow) HAL_BINARY(atan2) HAL_BINARY(fmod) HAL_BINARY(remainder) HAL_BINARY(hypot)
HAL_BINARY(copysign) HAL_BINARY(nextafter) HAL_BINARY(fdim)
#undef HAL_UNARY
#undef HAL_BINARY
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" double frexp(double, int *) noexcept;
extern "C" float frexpf(float, int *) noexcept;
extern "C" double modf(double, double *) noexcept;
extern "C" float modff(float, float *) noexcept;
extern "C" void sincos(double, double *, double *) noexcept;
extern "C" void sincosf(float, float *, float *) noexcept;
extern "C" long lrint(double) noexcept;
extern "C" long lrintf(float) noexcept;
extern "C" long long llrint(double) noexcept;
extern "C" long long llrintf(float) noexcept;
static HAL_INLINE float fma(float x, float y, float z) { return fmaf(x, y, z); }
static HAL_INLINE float ldexp(float x, int by) { return ldexpf(x, by); }
static HAL_INLINE float frexp(float x, int *power) { return frexpf(x, power); }
static HAL_INLINE float modf(float x, float *whole) { return modff(x, whole); }
static HAL_INLINE void sincos(float x, float *s, float *c) { sincosf(x, s, c); }

// The library's are calls, and these are two instructions. A NaN yields the other operand. One condition each: of two,
// what is the same for all threads becomes a loop over them of its own, and rounds that are unrolled double them again.
static HAL_INLINE double fmin(double x, double y) { return (x < y) | (y != y) ? x : y; }
static HAL_INLINE double fmax(double x, double y) { return (x > y) | (y != y) ? x : y; }
static HAL_INLINE float fmin(float x, float y) { return (x < y) | (y != y) ? x : y; }
static HAL_INLINE float fmax(float x, float y) { return (x > y) | (y != y) ? x : y; }
static HAL_INLINE float fminf(float x, float y) { return fmin(x, y); }
static HAL_INLINE float fmaxf(float x, float y) { return fmax(x, y); }

static HAL_INLINE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static HAL_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
static HAL_INLINE float rsqrt(float x) { return 1.0f / sqrtf(x); }
static HAL_INLINE float exp10f(float x) { return powf(10.0f, x); }
static HAL_INLINE double exp10(double x) { return pow(10.0, x); }
static HAL_INLINE float exp10(float x) { return exp10f(x); }
static HAL_INLINE float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
static HAL_INLINE float __fdividef(float x, float y) { return x / y; }
static HAL_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
static HAL_INLINE float __frcp_rn(float x) { return 1.0f / x; }
static HAL_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static HAL_INLINE double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
static HAL_INLINE float __expf(float x) { return expf(x); }
static HAL_INLINE float __exp10f(float x) { return exp10f(x); }
static HAL_INLINE float __logf(float x) { return logf(x); }
static HAL_INLINE float __log2f(float x) { return log2f(x); }
static HAL_INLINE float __log10f(float x) { return log10f(x); }
static HAL_INLINE float __powf(float x, float y) { return powf(x, y); }
static HAL_INLINE float __sinf(float x) { return sinf(x); }
static HAL_INLINE float __cosf(float x) { return cosf(x); }
static HAL_INLINE float __tanf(float x) { return tanf(x); }
static HAL_INLINE bool isnan(float x) { return __builtin_isnan(x); }
static HAL_INLINE bool isnan(double x) { return __builtin_isnan(x); }
static HAL_INLINE bool isinf(float x) { return __builtin_isinf(x); }
static HAL_INLINE bool isinf(double x) { return __builtin_isinf(x); }
static HAL_INLINE bool isfinite(float x) { return __builtin_isfinite(x); }
static HAL_INLINE bool isfinite(double x) { return __builtin_isfinite(x); }
static HAL_INLINE bool signbit(float x) { return __builtin_signbit(x); }
static HAL_INLINE bool signbit(double x) { return __builtin_signbit(x); }

static HAL_INLINE int abs(int x) { return x < 0 ? -x : x; }
static HAL_INLINE long abs(long x) { return x < 0 ? -x : x; }
static HAL_INLINE long long abs(long long x) { return x < 0 ? -x : x; }
static HAL_INLINE float abs(float x) { return __builtin_fabsf(x); }
static HAL_INLINE double abs(double x) { return __builtin_fabs(x); }
static HAL_INLINE long long llabs(long long x) { return x < 0 ? -x : x; }

template <class A, class B> static HAL_INLINE auto min(A a, B b) -> decltype(a + b) {
  typedef decltype(a + b) T;
  T x = (T)a, y = (T)b;
  return x < y || y != y ? x : y;
}
template <class A, class B> static HAL_INLINE auto max(A a, B b) -> decltype(a + b) {
  typedef decltype(a + b) T;
  T x = (T)a, y = (T)b;
  return x > y || y != y ? x : y;
}

static HAL_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned int)x) : 32; }
static HAL_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static HAL_INLINE int __ffs(int x) { return __builtin_ffs(x); }
static HAL_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
static HAL_INLINE int __popc(unsigned int x) { return __builtin_popcount(x); }
static HAL_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static HAL_INLINE unsigned int __brev(unsigned int x) {
  x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
  x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
  x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(x);
}
static HAL_INLINE unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned int)x) << 32 | __brev((unsigned int)(x >> 32));
}
static HAL_INLINE int __mul24(int x, int y) { return x * y; }
static HAL_INLINE unsigned int __umul24(unsigned int x, unsigned int y) { return x * y; }
static HAL_INLINE int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
static HAL_INLINE unsigned int __umulhi(unsigned int x, unsigned int y) {
  return (unsigned int)((unsigned long long)x * y >> 32);
}
template <class To, class From> static HAL_INLINE To hal_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
static HAL_INLINE int __float_as_int(float x) { return hal_bits<int>(x); }
static HAL_INLINE unsigned int __float_as_uint(float x) { return hal_bits<unsigned int>(x); }
static HAL_INLINE float __int_as_float(int x) { return hal_bits<float>(x); }
static HAL_INLINE float __uint_as_float(unsigned int x) { return hal_bits<float>(x); }
static HAL_INLINE long long __double_as_longlong(double x) { return hal_bits<long long>(x); }
static HAL_INLINE double __longlong_as_double(long long x) { return hal_bits<double>(x); }
template <class T> static HAL_INLINE T __ldg(const T *address) { return *address; }
