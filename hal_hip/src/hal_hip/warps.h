/* CUDA's functions of warps by HIP's, after prelude.h.
 *
 * hiprtc has had those with a mask since ROCm 6.2, with masks of 64 bits only. Here a mask of 32 ones
 * means all lanes, so that one text suits both vendors. As with HIP's own, lanes that are not in a
 * mask must not be among those that run. Templates, so that a program that uses none needs none. */
#if !defined(__CUDACC__) && !defined(__shfl_sync)
#define HAL_WARP_FUNCTION static __device__ __forceinline__

template <class hal_M> HAL_WARP_FUNCTION unsigned long long hal_lanes(hal_M mask) {
  if (sizeof(hal_M) > 4) return (unsigned long long)mask;
  return (unsigned int)mask == ~0u ? ~0ull : (unsigned long long)(unsigned int)mask;
}

/* Any type goes through in words of 32 bits. */
#define HAL_SHUFFLE(name, own, type)                                              \
  template <class hal_M, class hal_T>                                             \
  HAL_WARP_FUNCTION hal_T name(hal_M, hal_T value, type by, int width = warpSize) { \
    int words[(sizeof(hal_T) + 3) / 4] = {0};                                     \
    __builtin_memcpy(words, &value, sizeof value);                                \
    for (int &word : words) word = own(word, by, width);                          \
    __builtin_memcpy(&value, words, sizeof value);                                \
    return value;                                                                 \
  }
HAL_SHUFFLE(hal_shfl, __shfl, int)
HAL_SHUFFLE(hal_shfl_up, __shfl_up, unsigned int)
HAL_SHUFFLE(hal_shfl_down, __shfl_down, unsigned int)
HAL_SHUFFLE(hal_shfl_xor, __shfl_xor, int)
#undef HAL_SHUFFLE

template <class hal_M, class hal_B> HAL_WARP_FUNCTION unsigned long long hal_ballot(hal_M mask, hal_B yes) {
  return __ballot((int)(bool)yes) & hal_lanes(mask);
}
template <class hal_M> HAL_WARP_FUNCTION void hal_syncwarp(hal_M) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
template <class hal_M> HAL_WARP_FUNCTION hal_M hal_given(hal_M mask) { return mask; }
HAL_WARP_FUNCTION unsigned int hal_given() { return ~0u; }

template <class hal_M, class hal_T> HAL_WARP_FUNCTION unsigned long long hal_match_any(hal_M mask, hal_T value) {
  const unsigned long long lanes = __ballot((int)(sizeof(hal_T) > 0)) & hal_lanes(mask);
  unsigned long long same = 0;
  for (unsigned long long left = lanes; left; left &= left - 1) {
    const int lane = __builtin_ctzll(left);
    if (hal_shfl(mask, value, lane) == value) same |= 1ull << lane;
  }
  return same;
}
template <class hal_M, class hal_T>
HAL_WARP_FUNCTION unsigned long long hal_match_all(hal_M mask, hal_T value, int *all) {
  const unsigned long long lanes = __ballot((int)(sizeof(hal_T) > 0)) & hal_lanes(mask);
  *all = hal_ballot(mask, hal_shfl(mask, value, __builtin_ctzll(lanes)) == value) == lanes;
  return *all ? lanes : 0;
}
#define HAL_REDUCE(name, ...)                                                              \
  template <class hal_M, class hal_T> HAL_WARP_FUNCTION hal_T hal_reduce_##name(hal_M mask, hal_T value) { \
    unsigned long long left = __ballot((int)(sizeof(hal_T) > 0)) & hal_lanes(mask);        \
    hal_T a = hal_shfl(mask, value, __builtin_ctzll(left));                                \
    while (left &= left - 1) {                                                             \
      const hal_T b = hal_shfl(mask, value, __builtin_ctzll(left));                        \
      a = __VA_ARGS__;                                                                     \
    }                                                                                      \
    return a;                                                                              \
  }
HAL_REDUCE(add, a + b)
HAL_REDUCE(min, a < b ? a : b)
HAL_REDUCE(max, a > b ? a : b)
HAL_REDUCE(and, a & b)
HAL_REDUCE(or, a | b)
HAL_REDUCE(xor, a ^ b)
#undef HAL_REDUCE

#define __shfl_sync hal_shfl
#define __shfl_up_sync hal_shfl_up
#define __shfl_down_sync hal_shfl_down
#define __shfl_xor_sync hal_shfl_xor
#define __ballot_sync hal_ballot
#define __any_sync(mask, yes) ((int)(hal_ballot(mask, yes) != 0))
#define __all_sync(mask, yes) ((int)(hal_ballot(mask, !(yes)) == 0))
#define __activemask() __ballot(1)
#define __syncwarp(...) hal_syncwarp(hal_given(__VA_ARGS__))
#define __match_any_sync hal_match_any
#define __match_all_sync hal_match_all
#define __reduce_add_sync hal_reduce_add
#define __reduce_min_sync hal_reduce_min
#define __reduce_max_sync hal_reduce_max
#define __reduce_and_sync hal_reduce_and
#define __reduce_or_sync hal_reduce_or
#define __reduce_xor_sync hal_reduce_xor
#endif
