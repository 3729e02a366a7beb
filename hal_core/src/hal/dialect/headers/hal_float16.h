// What both 16-bit floating-point types are made of: conversions of bits, by integer arithmetic that a
// compiler turns into vectors. Every conversion to fewer bits rounds once, to the nearest, ties to even.
#pragma once

#ifdef HAL_INLINE  // the CPU backend's kernel.h
#define HAL_F16_FUNCTION static HAL_INLINE
#define HAL_F16_METHOD __attribute__((always_inline))
#else
#define HAL_F16_FUNCTION static __device__ __forceinline__
#define HAL_F16_METHOD __device__ __forceinline__
#endif

HAL_F16_FUNCTION unsigned int hal_f32_bits(float value) {
  unsigned int bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
HAL_F16_FUNCTION float hal_f32_value(unsigned int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Round to fewer bits than a float has, in two steps with the result of one: the last bit records
// whether any bit was cut off.
HAL_F16_FUNCTION float hal_f32_sticky(double value) {
  const float near = (float)value;
  unsigned int bits = hal_f32_bits(near);
  const bool exact = (double)near == value || value != value;
  bits -= (value < 0 ? (double)near < value : (double)near > value) ? 1u : 0u;
  return hal_f32_value(exact ? hal_f32_bits(near) : bits | 1u);
}
HAL_F16_FUNCTION float hal_f32_sticky(unsigned long long value) {
  const unsigned long long rest = value & 0x7ff;
  return hal_f32_sticky((double)(value >> 53 ? (value >> 11 | (rest ? 1ull : 0ull)) << 11 : value));
}
HAL_F16_FUNCTION float hal_f32_sticky(long long value) {
  const unsigned long long magnitude = value < 0 ? 0ull - (unsigned long long)value : (unsigned long long)value;
  const float result = hal_f32_sticky(magnitude);
  return value < 0 ? -result : result;
}

// The nearest integer that the type has; 0 for NaN. The value is a whole number.
template <class hal_T> HAL_F16_FUNCTION hal_T hal_f16_integer(float value) {
  const bool is_signed = (hal_T)-1 < (hal_T)0;
  const hal_T most = (hal_T)(~0ull >> (64 - 8 * sizeof(hal_T) + is_signed)), least = (hal_T)(is_signed ? ~most : 0);
  if (value != value) return 0;
  if (value >= (float)most) return most;
  return value <= (float)least ? least : (hal_T)value;
}

// To 0 at least and 1 at most; NaN becomes 0.
HAL_F16_FUNCTION float hal_f16_saturated(float value) { return value >= 1 ? 1.0f : value > 0 ? value : 0.0f; }

// binary16: 5 bits of exponent, 10 of fraction
HAL_F16_FUNCTION unsigned short hal_half_bits(float value) {
  const unsigned int bits = hal_f32_bits(value), magnitude = bits & 0x7fffffffu;
  const unsigned int normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  // The sum's last bit is worth as much as that of a subnormal number.
  const unsigned int small = hal_f32_bits(hal_f32_value(magnitude) + 0.5f) - 0x3f000000u;
  unsigned int result = magnitude < 0x38800000u ? small : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? 0x7fffu : result;
  return (unsigned short)(result | (bits >> 16 & 0x8000u));
}
HAL_F16_FUNCTION float hal_half_value(unsigned short bits) {
  const unsigned int magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
  const unsigned int finite = hal_f32_bits(hal_f32_value(magnitude << 13) * 0x1p112f);
  return hal_f32_value(sign | (magnitude >= 0x7c00u ? magnitude << 13 | 0x7f800000u : finite));
}

// bfloat16: the upper half of a float
HAL_F16_FUNCTION unsigned short hal_bfloat16_bits(float value) {
  const unsigned int bits = hal_f32_bits(value);
  const unsigned int result = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  return (unsigned short)(value != value ? 0x7fffu : result);
}
HAL_F16_FUNCTION float hal_bfloat16_value(unsigned short bits) { return hal_f32_value((unsigned int)bits << 16); }

#define HAL_F16_PASTE_(a, b, c) a##b##c
#define HAL_F16_PASTE(a, b, c) HAL_F16_PASTE_(a, b, c)
