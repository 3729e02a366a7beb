#line 2 "cooperative_groups.h"
// The cooperative groups of a block: the block itself, and its tiles of 1 to warpSize threads.
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
template <unsigned int N, typename P = void> struct thread_block_tile {
  static_assert(N >= 1 && N <= 8 * sizeof(mask_of_warp) && (N & (N - 1)) == 0,
                "a tile has 1, 2, 4, ... threads, and no more than a warp");

  thread_block_tile() = default;
  template <typename Q> HAL_GROUP_METHOD thread_block_tile(const thread_block_tile<N, Q> &) {}

  HAL_GROUP_METHOD unsigned int thread_rank() const { return rank_in_block() % N; }
  HAL_GROUP_METHOD static constexpr unsigned int size() { return N; }
  HAL_GROUP_METHOD static constexpr unsigned int num_threads() { return N; }
  HAL_GROUP_METHOD unsigned int meta_group_rank() const { return rank_in_block() / N; }
  HAL_GROUP_METHOD unsigned int meta_group_size() const {
    return (blockDim.x * blockDim.y * blockDim.z + N - 1) / N;
  }
  HAL_GROUP_METHOD void sync() const { __syncwarp(mask()); }
  template <class T> HAL_GROUP_METHOD T shfl(T value, int rank) const { return __shfl_sync(mask(), value, rank, N); }
  template <class T> HAL_GROUP_METHOD T shfl_up(T value, unsigned int delta) const {
    return __shfl_up_sync(mask(), value, delta, N);
  }
  template <class T> HAL_GROUP_METHOD T shfl_down(T value, unsigned int delta) const {
    return __shfl_down_sync(mask(), value, delta, N);
  }
  template <class T> HAL_GROUP_METHOD T shfl_xor(T value, int lanes) const {
    return __shfl_xor_sync(mask(), value, lanes, N);
  }
  HAL_GROUP_METHOD mask_of_warp ballot(int yes) const { return (__ballot_sync(mask(), yes) >> first()) & ones(); }
  HAL_GROUP_METHOD int any(int yes) const { return ballot(yes) != 0; }
  HAL_GROUP_METHOD int all(int yes) const { return ballot(!yes) == 0; }
  template <class T> HAL_GROUP_METHOD mask_of_warp match_any(T value) const {
    return (__match_any_sync(mask(), value) >> first()) & ones();
  }

 private:
  HAL_GROUP_METHOD static mask_of_warp ones() { return (mask_of_warp)(~0ull >> (64 - N)); }
  HAL_GROUP_METHOD static unsigned int first() { return rank_in_block() % warpSize / N * N; }
  HAL_GROUP_METHOD static mask_of_warp mask() { return (mask_of_warp)(ones() << first()); }
};

template <unsigned int N> HAL_GROUP_FUNCTION thread_block_tile<N, thread_block> tiled_partition(const thread_block &) {
  return thread_block_tile<N, thread_block>();
}
template <unsigned int N, unsigned int M, typename P>
HAL_GROUP_FUNCTION thread_block_tile<N, thread_block_tile<M, P>> tiled_partition(const thread_block_tile<M, P> &) {
  static_assert(N <= M, "a tile of a tile is not larger");
  return thread_block_tile<N, thread_block_tile<M, P>>();
}

HAL_GROUP_FUNCTION void sync(const thread_block &group) { group.sync(); }
template <unsigned int N, typename P> HAL_GROUP_FUNCTION void sync(const thread_block_tile<N, P> &group) { group.sync(); }

}  // namespace hal_groups
