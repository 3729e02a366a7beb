// One 16-bit floating-point type with its vector of two and its functions, under the names that CUDA
// gives them. Included once for each type, with these macros, which it ends:
//
//   HAL_F, HAL_F2    the type and its vector: __half, __half2
//   HAL_F_RAW        the structure of its bits: __half_raw
//   HAL_WORD         its name inside of names: half, as in __float2half
//   HAL_BITS         the function from a float to bits, rounding to the nearest
//   HAL_VALUE        the function from bits to a float
//
// Arithmetic is that of float, rounded: for + - * / and the square root this is what one rounding
// gives, since a float has more than twice the bits.
#define HAL_N(before, after) HAL_F16_PASTE(before, HAL_WORD, after)
#define HAL_D HAL_F16_FUNCTION

struct HAL_F_RAW {
  unsigned short x;
};

struct HAL_F {
  unsigned short __x;

  HAL_F() = default;
  HAL_F16_METHOD HAL_F(HAL_F_RAW raw) : __x(raw.x) {}
  HAL_F16_METHOD HAL_F(float value) : __x(HAL_BITS(value)) {}
  HAL_F16_METHOD HAL_F(double value) : __x(HAL_BITS(hal_f32_sticky(value))) {}
  HAL_F16_METHOD HAL_F(short value) : __x(HAL_BITS(value)) {}
  HAL_F16_METHOD HAL_F(unsigned short value) : __x(HAL_BITS(value)) {}
  HAL_F16_METHOD HAL_F(int value) : __x(HAL_BITS(hal_f32_sticky((double)value))) {}
  HAL_F16_METHOD HAL_F(unsigned int value) : __x(HAL_BITS(hal_f32_sticky((double)value))) {}
  HAL_F16_METHOD HAL_F(long value) : __x(HAL_BITS(hal_f32_sticky((long long)value))) {}
  HAL_F16_METHOD HAL_F(unsigned long value) : __x(HAL_BITS(hal_f32_sticky((unsigned long long)value))) {}
  HAL_F16_METHOD HAL_F(long long value) : __x(HAL_BITS(hal_f32_sticky(value))) {}
  HAL_F16_METHOD HAL_F(unsigned long long value) : __x(HAL_BITS(hal_f32_sticky(value))) {}
// GCC 12 has the type's limits on ARM, and the type in C only.
#if defined(__FLT16_MAX__) && !defined(__CUDACC_RTC__) && !(defined(__aarch64__) && !defined(__clang__) && __GNUC__ < 13)
  HAL_F16_METHOD HAL_F(_Float16 value) : __x(HAL_BITS((float)value)) {}
#endif
  HAL_F16_METHOD operator float() const { return HAL_VALUE(__x); }
  HAL_F16_METHOD operator HAL_F_RAW() const { return {__x}; }
};

struct __align__(4) HAL_F2 {
  HAL_F x, y;

  HAL_F2() = default;
  HAL_F16_METHOD HAL_F2(const HAL_F &x, const HAL_F &y) : x(x), y(y) {}
};

// Operators

#define HAL_ARITHMETIC(op)                                                                        \
  HAL_D HAL_F operator op(const HAL_F &a, const HAL_F &b) { return HAL_F((float)a op(float) b); } \
  HAL_D HAL_F &operator op##=(HAL_F &a, const HAL_F &b) { return a = a op b; }                    \
  HAL_D HAL_F2 operator op(const HAL_F2 &a, const HAL_F2 &b) { return HAL_F2(a.x op b.x, a.y op b.y); } \
  HAL_D HAL_F2 &operator op##=(HAL_F2 &a, const HAL_F2 &b) { return a = a op b; }
HAL_ARITHMETIC(+) HAL_ARITHMETIC(-) HAL_ARITHMETIC(*) HAL_ARITHMETIC(/)
#undef HAL_ARITHMETIC
#define HAL_COMPARISON(op)                                                                       \
  HAL_D bool operator op(const HAL_F &a, const HAL_F &b) { return (float)a op(float) b; }        \
  HAL_D bool operator op(const HAL_F2 &a, const HAL_F2 &b) { return a.x op b.x && a.y op b.y; }
HAL_COMPARISON(==) HAL_COMPARISON(<) HAL_COMPARISON(>) HAL_COMPARISON(<=) HAL_COMPARISON(>=)
#undef HAL_COMPARISON
HAL_D bool operator!=(const HAL_F &a, const HAL_F &b) { return (float)a != (float)b; }
HAL_D bool operator!=(const HAL_F2 &a, const HAL_F2 &b) { return a.x != b.x && a.y != b.y; }

HAL_D HAL_F HAL_N(__ushort_as_, )(unsigned short bits) { return HAL_F(HAL_F_RAW{bits}); }
HAL_D HAL_F HAL_N(__short_as_, )(short bits) { return HAL_F(HAL_F_RAW{(unsigned short)bits}); }
HAL_D unsigned short HAL_N(__, _as_ushort)(HAL_F a) { return a.__x; }
HAL_D short HAL_N(__, _as_short)(HAL_F a) { return (short)a.__x; }

HAL_D HAL_F operator+(const HAL_F &a) { return a; }
HAL_D HAL_F operator-(const HAL_F &a) { return HAL_N(__ushort_as_, )((unsigned short)(a.__x ^ 0x8000u)); }
HAL_D HAL_F2 operator+(const HAL_F2 &a) { return a; }
HAL_D HAL_F2 operator-(const HAL_F2 &a) { return HAL_F2(-a.x, -a.y); }
HAL_D HAL_F &operator++(HAL_F &a) { return a = a + HAL_F(1.0f); }
HAL_D HAL_F &operator--(HAL_F &a) { return a = a - HAL_F(1.0f); }
HAL_D HAL_F operator++(HAL_F &a, int) {
  const HAL_F before = a;
  ++a;
  return before;
}
HAL_D HAL_F operator--(HAL_F &a, int) {
  const HAL_F before = a;
  --a;
  return before;
}

// Conversions

// The neighbours of the nearest number are one bit pattern away.
HAL_D HAL_F HAL_N(__float2, _rn)(float a) { return HAL_F(a); }
HAL_D HAL_F HAL_N(__float2, )(float a) { return HAL_F(a); }
HAL_D HAL_F HAL_N(__double2, )(double a) { return HAL_F(a); }
HAL_D HAL_F HAL_N(__float2, _rz)(float a) {
  HAL_F near(a);
  if (a < 0 ? (float)near < a : (float)near > a) near.__x--;
  return near;
}
HAL_D HAL_F HAL_N(__float2, _rd)(float a) {
  HAL_F near(a);
  if ((float)near > a) near.__x = near.__x & 0x8000u ? near.__x + 1 : near.__x ? near.__x - 1 : 0x8001;
  return near;
}
HAL_D HAL_F HAL_N(__float2, _ru)(float a) {
  HAL_F near(a);
  if ((float)near < a) near.__x = near.__x == 0x8000u ? 1 : near.__x & 0x8000u ? near.__x - 1 : near.__x + 1;
  return near;
}
HAL_D float HAL_N(__, 2float)(HAL_F a) { return a; }

#define HAL_INTEGER(name, type)                                                                        \
  HAL_D HAL_F HAL_N(__##name##2, _rn)(type a) { return HAL_F(a); }                                     \
  HAL_D type HAL_N(__, 2##name##_rn)(HAL_F a) { return hal_f16_integer<type>(rintf((float)a)); }       \
  HAL_D type HAL_N(__, 2##name##_rz)(HAL_F a) { return hal_f16_integer<type>(truncf((float)a)); }      \
  HAL_D type HAL_N(__, 2##name##_rd)(HAL_F a) { return hal_f16_integer<type>(floorf((float)a)); }      \
  HAL_D type HAL_N(__, 2##name##_ru)(HAL_F a) { return hal_f16_integer<type>(ceilf((float)a)); }
HAL_INTEGER(int, int) HAL_INTEGER(uint, unsigned int) HAL_INTEGER(short, short) HAL_INTEGER(ushort, unsigned short)
HAL_INTEGER(ll, long long) HAL_INTEGER(ull, unsigned long long)
#undef HAL_INTEGER

HAL_D HAL_F2 HAL_N(make_, 2)(HAL_F x, HAL_F y) { return HAL_F2(x, y); }
HAL_D HAL_F2 HAL_N(__halves2, 2)(HAL_F x, HAL_F y) { return HAL_F2(x, y); }
HAL_D HAL_F2 HAL_F16_PASTE(HAL_N(__, 2), HAL_WORD, 2)(HAL_F a) { return HAL_F2(a, a); }
HAL_D HAL_F2 HAL_N(__float2, 2_rn)(float a) { return HAL_F2(HAL_F(a), HAL_F(a)); }
HAL_D HAL_F2 HAL_N(__floats2, 2_rn)(float x, float y) { return HAL_F2(HAL_F(x), HAL_F(y)); }
HAL_D HAL_F2 HAL_N(__float22, 2_rn)(float2 a) { return HAL_F2(HAL_F(a.x), HAL_F(a.y)); }
HAL_D float2 HAL_N(__, 22float2)(HAL_F2 a) { return make_float2(a.x, a.y); }
HAL_D float __low2float(HAL_F2 a) { return a.x; }
HAL_D float __high2float(HAL_F2 a) { return a.y; }
HAL_D HAL_F HAL_N(__low2, )(HAL_F2 a) { return a.x; }
HAL_D HAL_F HAL_N(__high2, )(HAL_F2 a) { return a.y; }
HAL_D HAL_F2 HAL_N(__low2, 2)(HAL_F2 a) { return HAL_F2(a.x, a.x); }
HAL_D HAL_F2 HAL_N(__high2, 2)(HAL_F2 a) { return HAL_F2(a.y, a.y); }
HAL_D HAL_F2 HAL_N(__lows2, 2)(HAL_F2 a, HAL_F2 b) { return HAL_F2(a.x, b.x); }
HAL_D HAL_F2 HAL_N(__highs2, 2)(HAL_F2 a, HAL_F2 b) { return HAL_F2(a.y, b.y); }
HAL_D HAL_F2 __lowhigh2highlow(HAL_F2 a) { return HAL_F2(a.y, a.x); }

// Functions of one, two and three numbers, each for the vector too

#define HAL_UNARY(name, vector, ...)           \
  HAL_D HAL_F name(HAL_F a) { return HAL_F(__VA_ARGS__); } \
  HAL_D HAL_F2 vector(HAL_F2 a) { return HAL_F2(name(a.x), name(a.y)); }
#define HAL_MATH(name, ...) HAL_UNARY(h##name, h2##name, __VA_ARGS__)
HAL_MATH(sqrt, sqrtf((float)a)) HAL_MATH(rsqrt, 1.0f / sqrtf((float)a)) HAL_MATH(rcp, 1.0f / (float)a)
HAL_MATH(exp, expf((float)a)) HAL_MATH(exp2, exp2f((float)a)) HAL_MATH(exp10, exp10f((float)a))
HAL_MATH(log, logf((float)a)) HAL_MATH(log2, log2f((float)a)) HAL_MATH(log10, log10f((float)a))
HAL_MATH(sin, sinf((float)a)) HAL_MATH(cos, cosf((float)a)) HAL_MATH(tanh, tanhf((float)a))
HAL_MATH(floor, floorf((float)a)) HAL_MATH(ceil, ceilf((float)a)) HAL_MATH(trunc, truncf((float)a))
HAL_MATH(rint, rintf((float)a))
HAL_UNARY(__hneg, __hneg2, -a)
HAL_UNARY(__habs, __habs2, HAL_F_RAW{(unsigned short)(a.__x & 0x7fffu)})
#undef HAL_MATH
#undef HAL_UNARY

HAL_D bool __hisnan(HAL_F a) { return a != a; }
HAL_D int __hisinf(HAL_F a) {
  const float value = a;
  return value - value == 0 || value != value ? 0 : value < 0 ? -1 : 1;
}
HAL_D HAL_F2 __hisnan2(HAL_F2 a) { return HAL_F2(HAL_F((float)__hisnan(a.x)), HAL_F((float)__hisnan(a.y))); }
HAL_D bool isnan(HAL_F a) { return __hisnan(a); }
HAL_D bool isinf(HAL_F a) { return __hisinf(a) != 0; }

#define HAL_BINARY(name, ...)                                                             \
  HAL_D HAL_F name(HAL_F a, HAL_F b) { return __VA_ARGS__; }                              \
  HAL_D HAL_F2 name##2(HAL_F2 a, HAL_F2 b) { return HAL_F2(name(a.x, b.x), name(a.y, b.y)); }
#define HAL_OPERATION(name, op)                                                          \
  HAL_BINARY(__h##name, a op b)                                                          \
  HAL_D HAL_F __h##name##_rn(HAL_F a, HAL_F b) { return a op b; }                        \
  HAL_D HAL_F2 __h##name##2_rn(HAL_F2 a, HAL_F2 b) { return a op b; }                    \
  HAL_D HAL_F __h##name##_sat(HAL_F a, HAL_F b) { return HAL_F(hal_f16_saturated((float)a op(float) b)); } \
  HAL_D HAL_F2 __h##name##2_sat(HAL_F2 a, HAL_F2 b) {                                    \
    return HAL_F2(__h##name##_sat(a.x, b.x), __h##name##_sat(a.y, b.y));                 \
  }
HAL_OPERATION(add, +) HAL_OPERATION(sub, -) HAL_OPERATION(mul, *)
#undef HAL_OPERATION
HAL_D HAL_F __hdiv(HAL_F a, HAL_F b) { return a / b; }
HAL_D HAL_F2 __h2div(HAL_F2 a, HAL_F2 b) { return a / b; }
// Of two numbers of which one is NaN, the other one; of two zeros, that with the sign.
HAL_BINARY(__hmax, __hisnan(a) ? b : __hisnan(b) || a > b || (a == b && !(a.__x & 0x8000u)) ? a : b)
HAL_BINARY(__hmin, __hisnan(a) ? b : __hisnan(b) || a < b || (a == b && (a.__x & 0x8000u)) ? a : b)
HAL_BINARY(__hmax_nan, __hisnan(a) || __hisnan(b) ? HAL_F(a + b) : __hmax(a, b))
HAL_BINARY(__hmin_nan, __hisnan(a) || __hisnan(b) ? HAL_F(a + b) : __hmin(a, b))
#undef HAL_BINARY
HAL_D HAL_F2 __hmax2_nan(HAL_F2 a, HAL_F2 b) { return __hmax_nan2(a, b); }
HAL_D HAL_F2 __hmin2_nan(HAL_F2 a, HAL_F2 b) { return __hmin_nan2(a, b); }

// Comparisons; those with a u are true if a number is NaN.
#define HAL_COMPARE(name, ...)                                                                           \
  HAL_D bool __h##name(HAL_F a, HAL_F b) { return __VA_ARGS__; }                                         \
  HAL_D bool __h##name##u(HAL_F a, HAL_F b) { return a != a || b != b || (__VA_ARGS__); }                \
  HAL_D bool __hb##name##2(HAL_F2 a, HAL_F2 b) { return __h##name(a.x, b.x) && __h##name(a.y, b.y); }    \
  HAL_D bool __hb##name##u2(HAL_F2 a, HAL_F2 b) { return __h##name##u(a.x, b.x) && __h##name##u(a.y, b.y); } \
  HAL_D HAL_F2 __h##name##2(HAL_F2 a, HAL_F2 b) {                                                        \
    return HAL_F2(HAL_F((float)__h##name(a.x, b.x)), HAL_F((float)__h##name(a.y, b.y)));                 \
  }
HAL_COMPARE(eq, a == b) HAL_COMPARE(lt, a < b) HAL_COMPARE(le, a <= b) HAL_COMPARE(gt, a > b) HAL_COMPARE(ge, a >= b)
HAL_COMPARE(ne, a == a && b == b && a != b)
#undef HAL_COMPARE

// One rounding: the product is exact in a double, the sum has a sticky last bit.
HAL_D float hal_f16_fma(HAL_F a, HAL_F b, HAL_F c) {
  const double product = (double)(float)a * (double)(float)b, addend = (double)(float)c;
  double sum = product + addend;
  const double part = sum - product, error = (product - (sum - part)) + (addend - part);
  long long bits;
  memcpy(&bits, &sum, sizeof bits);
  if (error - error == 0 && error != 0 && !(bits & 1)) {
    bits += (error > 0) == (sum > 0) ? 1 : -1;
    memcpy(&sum, &bits, sizeof bits);
  }
  return hal_f32_sticky(sum);
}
HAL_D HAL_F __hfma(HAL_F a, HAL_F b, HAL_F c) { return HAL_F(hal_f16_fma(a, b, c)); }
HAL_D HAL_F __hfma_sat(HAL_F a, HAL_F b, HAL_F c) { return HAL_F(hal_f16_saturated(hal_f16_fma(a, b, c))); }
HAL_D HAL_F __hfma_relu(HAL_F a, HAL_F b, HAL_F c) {
  const HAL_F result = __hfma(a, b, c);
  return result < HAL_F(0.0f) ? HAL_F(0.0f) : result;
}
#define HAL_TERNARY(name, scalar) \
  HAL_D HAL_F2 name(HAL_F2 a, HAL_F2 b, HAL_F2 c) { return HAL_F2(scalar(a.x, b.x, c.x), scalar(a.y, b.y, c.y)); }
HAL_TERNARY(__hfma2, __hfma) HAL_TERNARY(__hfma2_sat, __hfma_sat) HAL_TERNARY(__hfma2_relu, __hfma_relu)
#undef HAL_TERNARY
HAL_D HAL_F fma(HAL_F a, HAL_F b, HAL_F c) { return __hfma(a, b, c); }

// Atomics

#ifdef HAL_INLINE
HAL_D HAL_F atomicAdd(HAL_F *address, HAL_F value) {
  return hal_atomic_update(address, [=](HAL_F old) { return old + value; });
}
HAL_D HAL_F2 atomicAdd(HAL_F2 *address, HAL_F2 value) {
  return hal_atomic_update(address, [=](HAL_F2 old) { return old + value; });
}
#else
HAL_D HAL_F atomicAdd(HAL_F *address, HAL_F value) {
  // Not every device exchanges 16 bits: the word around them.
  const unsigned int shift = ((size_t)address & 2u) * 8;
  unsigned int *const word = (unsigned int *)((size_t)address & ~(size_t)3);
  unsigned int old = *word, seen;
  for (;; old = seen) {
    const HAL_F before = HAL_N(__ushort_as_, )((unsigned short)(old >> shift));
    const unsigned int sum = (before + value).__x;
    seen = atomicCAS(word, old, (old & ~(0xffffu << shift)) | sum << shift);
    if (seen == old) return before;
  }
}
HAL_D HAL_F2 atomicAdd(HAL_F2 *address, HAL_F2 value) {
  const HAL_F x = atomicAdd(&address->x, value.x);
  return HAL_F2(x, atomicAdd(&address->y, value.y));
}
#endif

#undef HAL_D
#undef HAL_N
#undef HAL_F
#undef HAL_F2
#undef HAL_F_RAW
#undef HAL_WORD
#undef HAL_BITS
#undef HAL_VALUE
