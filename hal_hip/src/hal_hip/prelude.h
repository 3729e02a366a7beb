/* What hiprtc lacks of the portable dialect, in front of every source.
 *
 * hiprtc has a header of its own before this, with HIP's functions and types; which of them
 * differs from version to version. */
#define HAL_TABLE __attribute__((used)) __device__

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
#if defined(__HIPCC_RTC__) || !defined(__INT64_TYPE__)
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;
#endif
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#if !defined(NULL)
#define NULL nullptr
#endif
#if !defined(INFINITY)
#define INFINITY (__int_as_float(0x7f800000))
#define NAN (__int_as_float(0x7fffffff))
#endif
typedef decltype((char *)0 - (char *)0) intptr_t;
typedef decltype(sizeof(0)) uintptr_t;

#if !defined(__CUDACC__)
#if !defined(__HIPCC__)
#define __HIPCC__ 1
#endif
#define __trap() __builtin_trap()
/* CUDA's accesses that say what caches are to do. */
#define __ldca(address) (*(address))
#define __ldcg(address) (*(address))
#define __ldcs(address) (*(address))
#define __ldcv(address) (*(address))
#define __ldlu(address) (*(address))
#define __stcg(address, value) ((void)(*(address) = (value)))
#define __stcs(address, value) ((void)(*(address) = (value)))
#define __stwb(address, value) ((void)(*(address) = (value)))
#define __stwt(address, value) ((void)(*(address) = (value)))
/* Templates give way to HIP's own, of versions that have them. */
#define HAL_CHOICE(name, type, sign)                                         \
  template <class hal_A, class hal_B>                                        \
  static __device__ __forceinline__ type name(hal_A a, hal_B b) {            \
    return (type)a sign (type)b ? (type)a : (type)b;                         \
  }
HAL_CHOICE(umin, unsigned int, <)
HAL_CHOICE(umax, unsigned int, >)
HAL_CHOICE(llmin, long long, <)
HAL_CHOICE(llmax, long long, >)
HAL_CHOICE(ullmin, unsigned long long, <)
HAL_CHOICE(ullmax, unsigned long long, >)
#undef HAL_CHOICE
#if !defined(__nanosleep)
#define __nanosleep(time) ((void)(time), __builtin_amdgcn_s_sleep(1))
#endif
#if !defined(assert)
#if defined(NDEBUG)
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : hal_assertion_failed(#condition, __FILE__, __LINE__))
static __device__ __attribute__((noinline, unused)) void hal_assertion_failed(
    const char *text, const char *file, int line) {
  printf("%s:%d: the assertion `%s' failed\n", file, line, text);
  __builtin_trap();
}
#endif
#endif
#endif
