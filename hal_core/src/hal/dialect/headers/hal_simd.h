// CUDA's arithmetic on the two half-words or the four bytes of a word, and its atomics of a block, where a compiler
// lacks them.
//
// hal_cpu's `_headers.py` reads the names from this text: first in the parentheses of a macro.
#if !defined(HAL_SIMD) && !defined(__CUDACC__)
#define HAL_SIMD
#if defined(HAL_INLINE)
#define HAL_SIMD_FUNCTION static HAL_INLINE
#else
#define HAL_SIMD_FUNCTION static __device__ __forceinline__
#endif

HAL_SIMD_FUNCTION int hal_within(int value, int least, int most) {
  return value < least ? least : value > most ? most : value;
}

// `a` and `b` are parts of two words; of what is computed with them a part of the result keeps the lowest bits.
#define HAL_PARTS(name, bits, type, ...)                                                       \
  HAL_SIMD_FUNCTION unsigned int name(unsigned int x, unsigned int y) {                        \
    const unsigned int ones = 0xffffffffu >> (32 - bits);                                      \
    const bool is_signed = (type)ones < 0;                                                     \
    const int most = (int)(is_signed ? ones >> 1 : ones), least = is_signed ? -most - 1 : 0;   \
    unsigned int result = 0;                                                                   \
    for (int i = 0; i < 32; i += bits) {                                                       \
      const int a = (type)(x >> i), b = (type)(y >> i);                                        \
      result |= ((unsigned int)(__VA_ARGS__) & ones) << i;                                     \
    }                                                                                          \
    return result;                                                                             \
  }
#define HAL_SIGNED(name, ...) HAL_PARTS(name##2, 16, short, __VA_ARGS__) HAL_PARTS(name##4, 8, signed char, __VA_ARGS__)
#define HAL_UNSIGNED(name, ...) \
  HAL_PARTS(name##2, 16, unsigned short, __VA_ARGS__) HAL_PARTS(name##4, 8, unsigned char, __VA_ARGS__)
#define HAL_PART(name, ...) \
  HAL_SIMD_FUNCTION unsigned int name(unsigned int x) { return __VA_ARGS__; }
// The sum of the differences, which are in parts of a word.
#define HAL_PARTS_SUM(name, bits, difference)                                      \
  HAL_SIMD_FUNCTION unsigned int name(unsigned int x, unsigned int y) {            \
    const unsigned int parts = difference(x, y), ones = 0xffffffffu >> (32 - bits); \
    unsigned int sum = 0;                                                          \
    for (int i = 0; i < 32; i += bits) sum += parts >> i & ones;                   \
    return sum;                                                                    \
  }

HAL_UNSIGNED(__vadd, a + b)
HAL_UNSIGNED(__vsub, a - b)
HAL_SIGNED(__vaddss, hal_within(a + b, least, most))
HAL_UNSIGNED(__vaddus, hal_within(a + b, least, most))
HAL_SIGNED(__vsubss, hal_within(a - b, least, most))
HAL_UNSIGNED(__vsubus, hal_within(a - b, least, most))
HAL_SIGNED(__vabsdiffs, a < b ? b - a : a - b)
HAL_UNSIGNED(__vabsdiffu, a < b ? b - a : a - b)
HAL_SIGNED(__vavgs, (a + b + (a + b >= 0)) >> 1)  // halves away from zero
HAL_UNSIGNED(__vavgu, (a + b + 1) >> 1)
HAL_UNSIGNED(__vhaddu, (a + b) >> 1)
HAL_SIGNED(__vmaxs, a > b ? a : b)
HAL_UNSIGNED(__vmaxu, a > b ? a : b)
HAL_SIGNED(__vmins, a < b ? a : b)
HAL_UNSIGNED(__vminu, a < b ? a : b)

// Comparisons: all bits of a part, or its lowest.
HAL_UNSIGNED(__vcmpeq, -(a == b))
HAL_UNSIGNED(__vcmpne, -(a != b))
HAL_SIGNED(__vcmpges, -(a >= b))
HAL_UNSIGNED(__vcmpgeu, -(a >= b))
HAL_SIGNED(__vcmpgts, -(a > b))
HAL_UNSIGNED(__vcmpgtu, -(a > b))
HAL_SIGNED(__vcmples, -(a <= b))
HAL_UNSIGNED(__vcmpleu, -(a <= b))
HAL_SIGNED(__vcmplts, -(a < b))
HAL_UNSIGNED(__vcmpltu, -(a < b))
HAL_UNSIGNED(__vseteq, a == b)
HAL_UNSIGNED(__vsetne, a != b)
HAL_SIGNED(__vsetges, a >= b)
HAL_UNSIGNED(__vsetgeu, a >= b)
HAL_SIGNED(__vsetgts, a > b)
HAL_UNSIGNED(__vsetgtu, a > b)
HAL_SIGNED(__vsetles, a <= b)
HAL_UNSIGNED(__vsetleu, a <= b)
HAL_SIGNED(__vsetlts, a < b)
HAL_UNSIGNED(__vsetltu, a < b)

HAL_PARTS_SUM(__vsads2, 16, __vabsdiffs2)
HAL_PARTS_SUM(__vsads4, 8, __vabsdiffs4)
HAL_PARTS_SUM(__vsadu2, 16, __vabsdiffu2)
HAL_PARTS_SUM(__vsadu4, 8, __vabsdiffu4)
HAL_PART(__vabs2, __vabsdiffs2(x, 0))
HAL_PART(__vabs4, __vabsdiffs4(x, 0))
HAL_PART(__vabsss2, __vminu2(__vabs2(x), 0x7fff7fff))
HAL_PART(__vabsss4, __vminu4(__vabs4(x), 0x7f7f7f7f))
HAL_PART(__vneg2, __vsub2(0, x))
HAL_PART(__vneg4, __vsub4(0, x))
HAL_PART(__vnegss2, __vsubss2(0, x))
HAL_PART(__vnegss4, __vsubss4(0, x))

// Atomics of a block may be those of the device.
#define atomicAdd_block atomicAdd
#define atomicSub_block atomicSub
#define atomicExch_block atomicExch
#define atomicMin_block atomicMin
#define atomicMax_block atomicMax
#define atomicCAS_block atomicCAS
#define atomicAnd_block atomicAnd
#define atomicOr_block atomicOr
#define atomicXor_block atomicXor
#define atomicInc_block atomicInc
#define atomicDec_block atomicDec

#undef HAL_PARTS
#undef HAL_SIGNED
#undef HAL_UNSIGNED
#undef HAL_PART
#undef HAL_PARTS_SUM
#endif
