// What the threads of a warp do together: shuffles, votes, matches, reductions. Part of kernel.h.
//
// Threads of a block that use them have stacks of their own. At each call a thread hands in what it
// has and waits until the mask's lanes have come (lanes.h of the runtime); the last one computes what
// each of them gets.
#pragma once

#ifndef HAL_WARP_SIZE
#define HAL_WARP_SIZE 32
#endif
static constexpr int warpSize = HAL_WARP_SIZE;

template <int size> struct hal_mask_of { typedef unsigned int type; };
template <> struct hal_mask_of<64> { typedef unsigned long long type; };
typedef hal_mask_of<HAL_WARP_SIZE>::type hal_mask;

// A mask of 32 ones means all lanes, also where there are more.
template <class M> static HAL_INLINE hal_mask hal_lanes(M mask) {
  return sizeof(M) <= 4 && (unsigned int)mask == ~0u ? (hal_mask)~0ull
         : sizeof(M) <= 4                            ? (hal_mask)(unsigned int)mask
                                                     : (hal_mask)mask;
}

template <bool tell> static HAL_INLINE int hal_lane(const hal_thread_of<tell> &thread) {
  const uint3 i = thread.hal_index;
  const dim3 n = thread.hal_block_size;
  return (int)((i.x + n.x * (i.y + n.y * i.z)) % warpSize);
}

static HAL_INLINE void hal_meet(const hal_quiet_thread_t &thread, const hal_meeting *meeting) {
  thread.hal_runner->meet(thread.hal_runner, meeting);
}
// Other threads of the block run meanwhile, and leave their own index in the variable.
static HAL_INLINE void hal_meet(const hal_thread_t &thread, const hal_meeting *meeting) {
  const hal_thread_t saved = hal_thread;
  thread.hal_runner->meet(thread.hal_runner, meeting);
  hal_thread = saved;
}

// F says what one lane hands in, `in`, what it gets, `out`, and how: of(lanes, lane, steps).
template <class F> struct hal_step {
  typename F::in in;
  typename F::out out;
};
template <class F> static const typename F::in &hal_of(void *const *steps, int lane) {
  return ((const hal_step<F> *)steps[lane])->in;
}
template <class F> static void hal_together(unsigned long long lanes, void *const *steps) {
  for (int lane = 0; lane < warpSize; lane++)
    if (lanes >> lane & 1) ((hal_step<F> *)steps[lane])->out = F::of(lanes, lane, steps);
}
template <class F, bool tell>
static HAL_INLINE typename F::out hal_warp(const hal_thread_of<tell> &thread, const hal_place *place, const char *name,
                                           hal_mask lanes, const typename F::in &in, bool open = false) {
  hal_step<F> step{in, {}};
  const hal_meeting meeting{place, name, HAL_WARP_SIZE, open, lanes, hal_together<F>, &step};
  hal_meet(thread, &meeting);
  return step.out;
}
#define HAL_WARP(function, name, ...) \
  ({ HAL_PLACE(hal_here); function(hal_thread, &hal_here, name, __VA_ARGS__); })

// Shuffles: a lane whose source does not take part keeps its own value.

template <class T> struct hal_shuffle {
  struct in {
    T value;
    int from;
  };
  typedef T out;
  static T of(unsigned long long lanes, int lane, void *const *steps) {
    const int from = hal_of<hal_shuffle>(steps, lane).from;
    return hal_of<hal_shuffle>(steps, lanes >> from & 1 ? from : lane).value;
  }
};
#define HAL_SHUFFLE(name, type, ...)                                                                           \
  template <bool tell, class M, class T>                                                                       \
  static HAL_INLINE T hal_##name(const hal_thread_of<tell> &thread, const hal_place *place, const char *called, \
                                 M mask, T value, type by, int width = warpSize) {                             \
    const int lane = hal_lane(thread), first = lane & ~(width - 1), end = first + width;                       \
    const int from = __VA_ARGS__;                                                                              \
    return hal_warp<hal_shuffle<T>>(thread, place, called, hal_lanes(mask), {value, from});                    \
  }
HAL_SHUFFLE(shfl, int, first | (by & (width - 1)))
HAL_SHUFFLE(shfl_up, unsigned int, by <= (unsigned int)(lane - first) ? lane - (int)by : lane)
HAL_SHUFFLE(shfl_down, unsigned int, by < (unsigned int)(end - lane) ? lane + (int)by : lane)
HAL_SHUFFLE(shfl_xor, int, (lane ^ by) < end && (lane ^ by) >= 0 ? lane ^ by : lane)
#undef HAL_SHUFFLE
#define __shfl_sync(...) HAL_WARP(hal_shfl, "__shfl_sync", __VA_ARGS__)
#define __shfl_up_sync(...) HAL_WARP(hal_shfl_up, "__shfl_up_sync", __VA_ARGS__)
#define __shfl_down_sync(...) HAL_WARP(hal_shfl_down, "__shfl_down_sync", __VA_ARGS__)
#define __shfl_xor_sync(...) HAL_WARP(hal_shfl_xor, "__shfl_xor_sync", __VA_ARGS__)

// Votes

struct hal_vote {
  typedef bool in;
  struct out {
    hal_mask yes, lanes;
  };
  static out of(unsigned long long lanes, int, void *const *steps) {
    unsigned long long yes = 0;
    for (int i = 0; i < warpSize; i++)
      if (lanes >> i & 1 && hal_of<hal_vote>(steps, i)) yes |= 1ull << i;
    return {(hal_mask)yes, (hal_mask)lanes};
  }
};
template <bool tell, class M>
static HAL_INLINE hal_vote::out hal_ballot(const hal_thread_of<tell> &thread, const hal_place *place, const char *name,
                                           M mask, bool yes) {
  return hal_warp<hal_vote>(thread, place, name, hal_lanes(mask), yes);
}
#define __ballot_sync(...) (HAL_WARP(hal_ballot, "__ballot_sync", __VA_ARGS__).yes)
#define __any_sync(...) ((int)(HAL_WARP(hal_ballot, "__any_sync", __VA_ARGS__).yes != 0))
#define __all_sync(...) \
  ({ const hal_vote::out hal_votes = HAL_WARP(hal_ballot, "__all_sync", __VA_ARGS__); (int)(hal_votes.yes == hal_votes.lanes); })

struct hal_gathering {
  typedef bool in;
  typedef hal_mask out;
  static out of(unsigned long long lanes, int, void *const *) { return (hal_mask)lanes; }
};
template <bool tell, class M>
static HAL_INLINE void hal_syncwarp(const hal_thread_of<tell> &thread, const hal_place *place, const char *name,
                                    M mask) {
  hal_warp<hal_gathering>(thread, place, name, hal_lanes(mask), false);
}
static HAL_INLINE unsigned int hal_given() { return ~0u; }
template <class M> static HAL_INLINE M hal_given(M mask) { return mask; }
template <bool tell>
static HAL_INLINE hal_mask hal_active(const hal_thread_of<tell> &thread, const hal_place *place, const char *name) {
  return hal_warp<hal_gathering>(thread, place, name, 0, false, true);
}
#define __syncwarp(...) \
  HAL_WARP(hal_syncwarp, "__syncwarp", hal_given(__VA_ARGS__))
#define __activemask() ({ HAL_PLACE(hal_here); hal_active(hal_thread, &hal_here, "__activemask"); })

// Matches and reductions

template <class T> struct hal_match {
  typedef T in;
  typedef hal_mask out;
  static out of(unsigned long long lanes, int lane, void *const *steps) {
    unsigned long long same = 0;
    for (int i = 0; i < warpSize; i++)
      if (lanes >> i & 1 && __builtin_memcmp(&hal_of<hal_match>(steps, i), &hal_of<hal_match>(steps, lane), sizeof(T)) == 0)
        same |= 1ull << i;
    return (hal_mask)same;
  }
};
template <bool tell, class M, class T>
static HAL_INLINE hal_mask hal_match_any(const hal_thread_of<tell> &thread, const hal_place *place, const char *name,
                                         M mask, T value) {
  return hal_warp<hal_match<T>>(thread, place, name, hal_lanes(mask), value);
}
#define __match_any_sync(...) HAL_WARP(hal_match_any, "__match_any_sync", __VA_ARGS__)

// All lanes, or none.
template <class T> struct hal_agreement : hal_match<T> {
  static hal_mask of(unsigned long long lanes, int lane, void *const *steps) {
    return hal_match<T>::of(lanes, lane, steps) == (hal_mask)lanes ? (hal_mask)lanes : 0;
  }
};
template <bool tell, class M, class T>
static HAL_INLINE hal_mask hal_match_all(const hal_thread_of<tell> &thread, const hal_place *place, const char *name,
                                         M mask, T value, int *all) {
  const hal_mask lanes = hal_warp<hal_agreement<T>>(thread, place, name, hal_lanes(mask), value);
  *all = lanes != 0;
  return lanes;
}
#define __match_all_sync(...) HAL_WARP(hal_match_all, "__match_all_sync", __VA_ARGS__)

#define HAL_REDUCE(name, ...)                                                                                     \
  template <class T> struct hal_reduce_##name {                                                                   \
    typedef T in;                                                                                                 \
    typedef T out;                                                                                                \
    static T of(unsigned long long lanes, int, void *const *steps) {                                              \
      int i = __builtin_ctzll(lanes);                                                                             \
      T a = hal_of<hal_reduce_##name>(steps, i);                                                                  \
      while (++i < warpSize)                                                                                      \
        if (lanes >> i & 1) {                                                                                     \
          const T b = hal_of<hal_reduce_##name>(steps, i);                                                        \
          a = __VA_ARGS__;                                                                                        \
        }                                                                                                         \
      return a;                                                                                                   \
    }                                                                                                             \
  };                                                                                                              \
  template <bool tell, class M, class T>                                                                          \
  static HAL_INLINE T hal_reduced_##name(const hal_thread_of<tell> &thread, const hal_place *place,               \
                                         const char *called, M mask, T value) {                                   \
    return hal_warp<hal_reduce_##name<T>>(thread, place, called, hal_lanes(mask), value);                         \
  }
HAL_REDUCE(add, a + b)
HAL_REDUCE(min, a < b ? a : b)
HAL_REDUCE(max, a > b ? a : b)
HAL_REDUCE(and, a & b)
HAL_REDUCE(or, a | b)
HAL_REDUCE(xor, a ^ b)
#undef HAL_REDUCE
#define __reduce_add_sync(...) HAL_WARP(hal_reduced_add, "__reduce_add_sync", __VA_ARGS__)
#define __reduce_min_sync(...) HAL_WARP(hal_reduced_min, "__reduce_min_sync", __VA_ARGS__)
#define __reduce_max_sync(...) HAL_WARP(hal_reduced_max, "__reduce_max_sync", __VA_ARGS__)
#define __reduce_and_sync(...) HAL_WARP(hal_reduced_and, "__reduce_and_sync", __VA_ARGS__)
#define __reduce_or_sync(...) HAL_WARP(hal_reduced_or, "__reduce_or_sync", __VA_ARGS__)
#define __reduce_xor_sync(...) HAL_WARP(hal_reduced_xor, "__reduce_xor_sync", __VA_ARGS__)
