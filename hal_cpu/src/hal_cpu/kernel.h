// The portable kernel dialect for the processor: what CUDA C++ and HIP C++ have in common.
//
// Included before a user's source, which `_dialect.py` has rewritten so that each kernel takes
// one more parameter, `hal_thread`: which CUDA thread it is. A kernel is inlined into loops over
// the threads of a block, where `hal_thread` is the loops' counters, so that the compiler turns
// neighbouring threads into vectors. A function that is no kernel finds the variable of the same
// name below in its place, one for each thread of the operating system.
//
// Includes no standard header: they take longer to read than most kernels, and GPUs' run-time
// compilers have none either.
#pragma once
#include "image.h"

#define HAL_INLINE inline __attribute__((always_inline))
// Before a loop over threads. What is left of it beside its vectors is then a loop, too, and not a copy of the body for
// each of so few threads, which took a fifth of the compiler's time.
#define HAL_NOT_UNROLLED _Pragma("GCC unroll 1")
#define HAL_EXPORT __attribute__((visibility("default"), used))

// Types

#define NULL nullptr
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// Alignments are the GPUs', so that a struct has the same layout everywhere.
#define HAL_VECTORS(name, type, two, four)                                                      \
  struct name##1 { type x; };                                                                   \
  struct alignas(two) name##2 { type x, y; };                                                   \
  struct name##3 { type x, y, z; };                                                             \
  struct alignas(four) name##4 { type x, y, z, w; };                                            \
  static HAL_INLINE name##1 make_##name##1(type x) { return {x}; }                              \
  static HAL_INLINE name##2 make_##name##2(type x, type y) { return {x, y}; }                   \
  static HAL_INLINE name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }        \
  static HAL_INLINE name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
HAL_VECTORS(char, signed char, 2, 4)
HAL_VECTORS(uchar, unsigned char, 2, 4)
HAL_VECTORS(short, short, 4, 8)
HAL_VECTORS(ushort, unsigned short, 4, 8)
HAL_VECTORS(int, int, 8, 16)
HAL_VECTORS(uint, unsigned int, 8, 16)
HAL_VECTORS(longlong, long long, 16, 16)
HAL_VECTORS(ulonglong, unsigned long long, 16, 16)
HAL_VECTORS(float, float, 8, 16)
HAL_VECTORS(double, double, 16, 16)

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

// Which thread runs

// `tell`: functions that the kernel calls ask which thread runs, and find it in the variable.
template <bool tell> struct hal_thread_of {
  static constexpr bool hal_tells = tell;
  uint3 hal_index, hal_block;
  dim3 hal_block_size, hal_grid_size;
  hal_worker *hal_runner;
};
typedef hal_thread_of<true> hal_thread_t;
typedef hal_thread_of<false> hal_quiet_thread_t;
static thread_local hal_thread_t hal_thread{};

// Macros use no name that a user's macro may have.
#define threadIdx (hal_thread.hal_index)
#define blockIdx (hal_thread.hal_block)
#define blockDim (hal_thread.hal_block_size)
#define gridDim (hal_thread.hal_grid_size)

static constexpr bool hal_same_text(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return *a == *b;
}
// The user's source is compiled under another name than the user's.
#define HAL_PLACE(name) \
  static constexpr hal_place name = {hal_same_text(__FILE__, HAL_COMPILED_FILE) ? HAL_USER_FILE : __FILE__, __LINE__}

static HAL_INLINE void hal_barrier(const hal_quiet_thread_t &thread, const hal_place *place) {
  thread.hal_runner->barrier(thread.hal_runner, place);
}
// Other threads of the block run inside the barrier, and leave their own index in the variable.
static HAL_INLINE void hal_barrier(const hal_thread_t &thread, const hal_place *place) {
  const hal_thread_t saved = hal_thread;
  thread.hal_runner->barrier(thread.hal_runner, place);
  hal_thread = saved;
}
#define __syncthreads() ({ HAL_PLACE(hal_here); hal_barrier(hal_thread, &hal_here); })

// How many threads of the block say yes, of those that come. Each takes back its own vote, instead of one that sets the
// sum to zero: of threads that run one after another the first may vote anew before the last has left.
static thread_local int hal_votes;
template <bool tell>
static HAL_INLINE int hal_count(const hal_thread_of<tell> &thread, const hal_place *place, bool yes) {
  hal_votes += yes;
  hal_barrier(thread, place);
  const int votes = hal_votes;
  hal_barrier(thread, place);
  hal_votes -= yes;
  return votes;
}
#define HAL_COUNT(...) ({ HAL_PLACE(hal_here); hal_count(hal_thread, &hal_here, __VA_ARGS__); })
#define __syncthreads_count(...) HAL_COUNT((__VA_ARGS__) != 0)
#define __syncthreads_or(...) ((int)(HAL_COUNT((__VA_ARGS__) != 0) != 0))
#define __syncthreads_and(...) ((int)(HAL_COUNT((__VA_ARGS__) == 0) == 0))

// The thread's rank in its block.
template <bool tell> static HAL_INLINE unsigned int hal_rank_of(const hal_thread_of<tell> &thread) {
  const uint3 i = thread.hal_index;
  const dim3 n = thread.hal_block_size;
  return i.x + n.x * (i.y + n.y * i.z);
}
#define hal_rank hal_rank_of(hal_thread)

#include "regions.h"

// Qualifiers

#define __global__ HAL_INLINE
#define __device__ __attribute__((visibility("default")))
#define __host__
#define __constant__
#define __managed__
// A thread of the operating system runs one block at a time, so that what is
// static to it is shared by the block's threads and by nobody else.
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
#define __grid_constant__

// Dynamic shared memory. `extern __shared__ type name[]...;` declares the type, and is followed in
// a function, or preceded where functions see it from outside, by the pointer.
#define HAL_DYNAMIC_TYPE(name, dimensions, ...) typedef __VA_ARGS__ hal_dynamic_##name dimensions
#define HAL_DYNAMIC_POINTER(name) \
  hal_dynamic_##name *const name = (hal_dynamic_##name *)hal_shared(hal_thread)
template <bool tell> static HAL_INLINE void *hal_shared(const hal_thread_of<tell> &thread) {
  return thread.hal_runner->shared;
}

// The rest of the C library that GPUs have

extern "C" int printf(const char *, ...);
extern "C" void *memcpy(void *, const void *, size_t) noexcept;
extern "C" void *memset(void *, int, size_t) noexcept;
extern "C" void __assert_fail(const char *, const char *, unsigned int, const char *) noexcept
    __attribute__((noreturn));
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#define assert(condition) \
  ((condition) ? (void)0 : __assert_fail(#condition, __FILE__, __LINE__, __func__))
#endif
static HAL_INLINE void __trap() {
#ifdef __aarch64__  // the compiler's own is a breakpoint there, which no handler of Python's tells
  __asm__ volatile("udf #0");
#endif
  __builtin_trap();
}

#define __HAL_CPU__ 1
#define HAL_TABLE HAL_EXPORT

#include "launch.h"
