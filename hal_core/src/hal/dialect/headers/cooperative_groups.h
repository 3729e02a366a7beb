#line 2 "cooperative_groups.h"
// The cooperative groups of a block: the block itself, and its tiles of 1 to warpSize threads. No parameter has a name
// that is likely to be a user's macro, such as N.
#pragma once

#if defined(HAL_INLINE)
#define HAL_GROUP_FUNCTION static HAL_INLINE
#define HAL_GROUP_METHOD __attribute__((always_inline))
#else
#define HAL_GROUP_FUNCTION static __device__ __forceinline__
#define HAL_GROUP_METHOD __device__ __forceinline__
#endif

// hiprtc may have a namespace of the usual name already.
#define cooperative_groups hal_groups

namespace hal_groups {

#if defined(__HIPCC__) && !defined(__CUDACC__)
typedef unsigned long long mask_of_warp;
#else
typedef unsigned int mask_of_warp;
#endif

HAL_GROUP_FUNCTION unsigned int rank_in_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

struct thread_block {
  HAL_GROUP_METHOD void sync() const { __syncthreads(); }
  HAL_GROUP_METHOD unsigned int thread_rank() const { return rank_in_block(); }
  HAL_GROUP_METHOD unsigned int size() const { return blockDim.x * blockDim.y * blockDim.z; }
  HAL_GROUP_METHOD unsigned int num_threads() const { return size(); }
  HAL_GROUP_METHOD dim3 group_index() const { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  HAL_GROUP_METHOD dim3 thread_index() const { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
  HAL_GROUP_METHOD dim3 group_dim() const { return dim3(blockDim.x, blockDim.y, blockDim.z); }
  HAL_GROUP_METHOD dim3 dim_threads() const { return group_dim(); }
};

HAL_GROUP_FUNCTION thread_block this_thread_block() { return thread_block(); }

// Its parent, the second parameter, is forgotten: a tile of any is one of none, as functions take it.
template <unsigned int hal_N, typename hal_P = void> struct thread_block_tile {
  static_assert(hal_N >= 1 && hal_N <= 8 * sizeof(mask_of_warp) && (hal_N & (hal_N - 1)) == 0,
                "a tile has 1, 2, 4, ... threads, and no more than a warp");

  thread_block_tile() = default;
  template <typename hal_Q> HAL_GROUP_METHOD thread_block_tile(const thread_block_tile<hal_N, hal_Q> &) {}

  HAL_GROUP_METHOD unsigned int thread_rank() const { return rank_in_block() % hal_N; }
  HAL_GROUP_METHOD static constexpr unsigned int size() { return hal_N; }
  HAL_GROUP_METHOD static constexpr unsigned int num_threads() { return hal_N; }
  HAL_GROUP_METHOD unsigned int meta_group_rank() const { return rank_in_block() / hal_N; }
  HAL_GROUP_METHOD unsigned int meta_group_size() const {
    return (blockDim.x * blockDim.y * blockDim.z + hal_N - 1) / hal_N;
  }
  HAL_GROUP_METHOD void sync() const { __syncwarp(mask()); }
  template <class hal_T> HAL_GROUP_METHOD hal_T shfl(hal_T value, int rank) const {
    return __shfl_sync(mask(), value, rank, hal_N);
  }
  template <class hal_T> HAL_GROUP_METHOD hal_T shfl_up(hal_T value, unsigned int delta) const {
    return __shfl_up_sync(mask(), value, delta, hal_N);
  }
  template <class hal_T> HAL_GROUP_METHOD hal_T shfl_down(hal_T value, unsigned int delta) const {
    return __shfl_down_sync(mask(), value, delta, hal_N);
  }
  template <class hal_T> HAL_GROUP_METHOD hal_T shfl_xor(hal_T value, int lanes) const {
    return __shfl_xor_sync(mask(), value, lanes, hal_N);
  }
  HAL_GROUP_METHOD mask_of_warp ballot(int yes) const { return (__ballot_sync(mask(), yes) >> first()) & ones(); }
  HAL_GROUP_METHOD int any(int yes) const { return ballot(yes) != 0; }
  HAL_GROUP_METHOD int all(int yes) const { return ballot(!yes) == 0; }
  template <class hal_T> HAL_GROUP_METHOD mask_of_warp match_any(hal_T value) const {
    return (__match_any_sync(mask(), value) >> first()) & ones();
  }
  template <class hal_T> HAL_GROUP_METHOD mask_of_warp match_all(hal_T value, int &all) const {
    return (__match_all_sync(mask(), value, &all) >> first()) & ones();
  }

 private:
  HAL_GROUP_METHOD static mask_of_warp ones() { return (mask_of_warp)(~0ull >> (64 - hal_N)); }
  HAL_GROUP_METHOD static unsigned int first() { return rank_in_block() % warpSize / hal_N * hal_N; }
  HAL_GROUP_METHOD static mask_of_warp mask() { return (mask_of_warp)(ones() << first()); }
};

template <unsigned int hal_N>
HAL_GROUP_FUNCTION thread_block_tile<hal_N, thread_block> tiled_partition(const thread_block &) {
  return thread_block_tile<hal_N, thread_block>();
}
template <unsigned int hal_N, unsigned int hal_M, typename hal_P>
HAL_GROUP_FUNCTION thread_block_tile<hal_N, thread_block_tile<hal_M, hal_P>> tiled_partition(
    const thread_block_tile<hal_M, hal_P> &) {
  static_assert(hal_N <= hal_M, "a tile of a tile is not larger");
  return thread_block_tile<hal_N, thread_block_tile<hal_M, hal_P>>();
}

HAL_GROUP_FUNCTION void sync(const thread_block &group) { group.sync(); }
template <unsigned int hal_N, typename hal_P>
HAL_GROUP_FUNCTION void sync(const thread_block_tile<hal_N, hal_P> &group) { group.sync(); }

// What cooperative_groups/reduce.h and scan.h give.
#define HAL_GROUP_OPERATION(name, ...)                                                \
  template <class hal_T> struct name {                                                \
    HAL_GROUP_METHOD hal_T operator()(hal_T a, hal_T b) const { return __VA_ARGS__; } \
  };
HAL_GROUP_OPERATION(plus, a + b)
HAL_GROUP_OPERATION(less, b < a ? b : a)
HAL_GROUP_OPERATION(greater, a < b ? b : a)
HAL_GROUP_OPERATION(bit_and, a & b)
HAL_GROUP_OPERATION(bit_or, a | b)
HAL_GROUP_OPERATION(bit_xor, a ^ b)
#undef HAL_GROUP_OPERATION

template <unsigned int hal_N, typename hal_P, class hal_T, class hal_F>
HAL_GROUP_FUNCTION hal_T reduce(const thread_block_tile<hal_N, hal_P> &group, hal_T value, hal_F operation) {
  for (int by = hal_N / 2; by > 0; by /= 2) value = operation(value, group.shfl_xor(value, by));
  return value;
}
template <unsigned int hal_N, typename hal_P, class hal_T, class hal_F>
HAL_GROUP_FUNCTION hal_T inclusive_scan(const thread_block_tile<hal_N, hal_P> &group, hal_T value, hal_F operation) {
  for (unsigned int by = 1; by < hal_N; by *= 2) {
    const hal_T before = group.shfl_up(value, by);
    if (group.thread_rank() >= by) value = operation(before, value);
  }
  return value;
}
template <unsigned int hal_N, typename hal_P, class hal_T>
HAL_GROUP_FUNCTION hal_T inclusive_scan(const thread_block_tile<hal_N, hal_P> &group, hal_T value) {
  return inclusive_scan(group, value, plus<hal_T>());
}
template <unsigned int hal_N, typename hal_P, class hal_T, class hal_F>
HAL_GROUP_FUNCTION hal_T exclusive_scan(const thread_block_tile<hal_N, hal_P> &group, hal_T value, hal_F operation) {
  const hal_T before = group.shfl_up(inclusive_scan(group, value, operation), 1);
  return group.thread_rank() == 0 ? hal_T() : before;
}
template <unsigned int hal_N, typename hal_P, class hal_T>
HAL_GROUP_FUNCTION hal_T exclusive_scan(const thread_block_tile<hal_N, hal_P> &group, hal_T value) {
  return exclusive_scan(group, value, plus<hal_T>());
}

}  // namespace hal_groups
