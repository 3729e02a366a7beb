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
  return (int)(hal_rank_of(thread) % warpSize);
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

// Steps of a kernel that runs its block by itself, as `_warps.py` writes them: what each thread hands in becomes what it
// gets, one warp after the other. `warps` has the lanes that come, unless all do.

// What a thread hands in besides: its own, or one for all.
template <class T> static HAL_INLINE const T &hal_own(const T (&all)[hal_threads_at_most], int i) { return all[i]; }
template <class T> static HAL_INLINE const T &hal_own(const T &one, int) { return one; }
static HAL_INLINE hal_mask hal_asked(bool yes) { return yes; }

// The lanes of each warp whose threads are not absent.
static inline hal_mask hal_lanes_but(const unsigned char *absent, int first, int threads) {
  hal_mask lanes = 0;
  HAL_NOT_UNROLLED for (int lane = 0; lane < warpSize && first + lane < threads; lane++)
    lanes |= (hal_mask)!absent[first + lane] << lane;
  return lanes;
}
struct hal_warps {
  hal_mask lanes[hal_threads_at_most / warpSize];
  hal_warps() = default;
  __attribute__((noinline)) hal_warps(const unsigned char *absent, int threads) { set(absent, threads); }
  __attribute__((noinline, optimize("O1"))) void set(const unsigned char *absent, int threads) {
    for (int first = 0; first < threads; first += warpSize) lanes[first / warpSize] = hal_lanes_but(absent, first, threads);
  }
  const hal_mask *all() const { return lanes; }
};
// Those of the warp that begins at a thread; without an array all are here.
static HAL_INLINE hal_mask hal_lanes_at(const hal_mask *warps, int first, int threads) {
  if (warps) return warps[first / warpSize];
  return first + warpSize <= threads ? (hal_mask)~0ull : ((hal_mask)1 << (threads - first)) - 1;
}
template <class T> static HAL_INLINE void hal_give(T *values, hal_mask lanes, const T &result) {
  HAL_NOT_UNROLLED for (int lane = 0; lane < warpSize; lane++) values[lane] = lanes >> lane & 1 ? result : values[lane];
}
template <class F, class T, class B>
static HAL_INLINE void hal_step_shuffle(T (&values)[hal_threads_at_most], const T (&from)[hal_threads_at_most],
                                        const B &by, int width, int threads, const hal_mask *warps) {
  for (int first = 0; first < threads; first += warpSize) {
    const hal_mask lanes = hal_lanes_at(warps, first, threads);
    if (!lanes) continue;
    T *const warp = values + first;
    T given[warpSize];
    __builtin_memcpy(given, from + first, sizeof given);
    if (lanes == (hal_mask)~0ull) {
      HAL_NOT_UNROLLED for (int lane = 0; lane < warpSize; lane++) warp[lane] = given[F::of(lane, hal_own(by, first + lane), width)];
      continue;
    }
    HAL_NOT_UNROLLED for (int lane = 0; lane < warpSize; lane++) {
      if (!(lanes >> lane & 1)) continue;
      __asm__ volatile("");
      const int source = F::of(lane, hal_own(by, first + lane), width);
      warp[lane] = given[lanes >> source & 1 ? source : lane];
    }
  }
}

// A step as it is told of. The place is that of the line before: the text stands below the user's.
#define HAL_STEP_MEETING(name)                                                                                      \
  ({                                                                                                                \
    static constexpr hal_place hal_here = {hal_same_text(__FILE__, HAL_COMPILED_FILE) ? HAL_USER_FILE : __FILE__,   \
                                           __LINE__ - 1};                                                           \
    static constexpr hal_meeting hal_met{&hal_here, name, HAL_WARP_SIZE, 0, (hal_mask)~0ull, nullptr, nullptr}; \
    &hal_met;                                                                                                       \
  })
// The lanes that a thread's call names: those of its tile, or of a mask.
struct hal_tiles { int size; };
static HAL_INLINE hal_mask hal_named_by(hal_tiles tiles, int i) {
  return (hal_mask)(~0ull >> (64 - tiles.size)) << i % warpSize / tiles.size * tiles.size;
}
// Those of a thread's tile among those of its warp.
static HAL_INLINE hal_mask hal_of_tile(hal_mask votes, int rank, int size) {
  return votes >> rank % warpSize / size * size & (hal_mask)(~0ull >> (64 - size));
}
template <class M> static HAL_INLINE hal_mask hal_named_by(const M &masks, int i) { return hal_lanes(hal_own(masks, i)); }
static HAL_INLINE int hal_size_of(hal_tiles tiles) { return tiles.size; }
template <class M> static HAL_INLINE int hal_size_of(const M &) { return 0; }
// Do a step once for each mask of a warp, mostly for all lanes that come.
template <class M, class S>
static HAL_INLINE void hal_by_masks(const M &masks, int threads, const hal_mask *warps, S step) {
  hal_warps left, named;
  for (int first = 0; first < threads; first += warpSize) left.lanes[first / warpSize] = hal_lanes_at(warps, first, threads);
  bool goes_on;
  do {
    goes_on = false;
    for (int first = 0; first < threads; first += warpSize) {
      hal_mask &lanes = left.lanes[first / warpSize];
      const hal_mask mask = lanes ? lanes & hal_named_by(masks, first + __builtin_ctzll(lanes)) : 0;
      named.lanes[first / warpSize] = mask;
      lanes &= ~mask;
      goes_on |= lanes != 0;
    }
    step(named.all());
  } while (goes_on);
}
// Lanes that a step has named and that did not come to it. They may return; if they meet elsewhere, the launch fails.
// It has copies of what it tells of, and `any` is volatile: else the compiler takes the thread's own for changed behind each
// step, and makes a second kernel of where lanes are missing, which together is a quarter of its time.
struct hal_absentees {
  const uint3 block;
  const dim3 grid;
  hal_worker *const runner;
  volatile bool any = false;
  hal_meeting missed;
  hal_tiles tiles;  // of it, if it has no masks
  hal_mask lanes[hal_threads_at_most / warpSize] = {};
  template <bool tell>
  HAL_INLINE hal_absentees(const hal_thread_of<tell> &thread)
      : block(thread.hal_block), grid(thread.hal_grid_size), runner(thread.hal_runner) {}
  __attribute__((noinline, cold)) bool fail(const hal_meeting &meeting, hal_mask which, const hal_meeting *other) const {
    runner->block = block.x + grid.x * (block.y + (unsigned long long)grid.y * block.z);
    runner->missed(runner, &meeting, which, other);
    return true;
  }
  // Some threads (`warps`, or all) come to a step, or to a barrier (no meeting). Returns whether the block ends.
  template <class M>
  __attribute__((noinline, optimize("O1"))) bool meet(const hal_meeting *meeting, const hal_mask *warps, const M &masks,
                                                      int threads, const unsigned char *left) {
    for (int first = 0; first < threads; first += warpSize) {
      hal_mask &absent = lanes[first / warpSize];
      const hal_mask here = left ? hal_lanes_but(left, first, threads) : hal_lanes_at(nullptr, first, threads);
      const hal_mask come = warps ? warps[first / warpSize] : here;
      if (const hal_mask which = come & absent) {
        if (!(which & missed.lanes)) missed.lanes = tiles.size ? hal_named_by(tiles, __builtin_ctzll(which)) : which;
        return fail(missed, which & missed.lanes, meeting);
      }
      if (!meeting || (hal_size_of(masks) && come == here)) continue;
      hal_meeting told = *meeting;
      hal_mask named = 0;
      for (int lane = 0; lane < warpSize; lane++) {
        const hal_mask self = (hal_mask)1 << lane;
        if (!(come & ~named & self)) continue;
        const hal_mask mask = hal_named_by(masks, first + lane);
        hal_mask others = 0;
        for (int other = 0; other < warpSize; other++)
          if (come & mask & (hal_mask)1 << other && hal_named_by(masks, first + other) != mask) others |= (hal_mask)1 << other;
        told.lanes = mask;
        if (!(mask & self)) return fail(told, self, nullptr);
        if (others) return fail(told, others, meeting);
        named |= mask;
        if (!any && mask & here & ~come) missed = told, tiles = {hal_size_of(masks)}, any = true;
      }
      absent |= named & here & ~come;
    }
    return false;
  }
};
// The threads for which a condition holds that has steps below it.
struct hal_takers {
  hal_span span = {hal_threads_at_most, 0};
  bool has_gaps = false;
  unsigned char absent[hal_threads_at_most];
  hal_warps warps;
  __attribute__((noinline, optimize("O1"))) hal_takers(const bool *takes, const hal_takers *around, int size, int threads,
                                       const unsigned char *left) {
    for (int i = 0; i < threads; i++) absent[i] = !takes[i];
    if (around) leave(around->absent, threads);
    if (left) leave(left, threads);
    warps.set(absent, threads);
    for (int row = 0; row < threads; row += size) {
      int first = 0, last = size;
      while (first < last && absent[row + first]) first++;
      while (first < last && absent[row + last - 1]) last--;
      if (first == last) continue;
      if (first < span.first) span.first = first;
      if (last > span.last) span.last = last;
    }
    for (int row = 0; row < threads; row += size)
      for (int x = span.first; x < span.last; x++) has_gaps |= absent[row + x];
  }
  __attribute__((noinline, optimize("O1"))) void leave(const unsigned char *left, int threads) {
    for (int i = 0; i < threads; i++) absent[i] |= left[i];
  }
  // The lanes that come, some threads having returned since.
  const hal_mask *all(const unsigned char *left, int threads) {
    if (left) leave(left, threads), warps.set(absent, threads);
    return warps.lanes;
  }
};
#define HAL_REGION_TAKEN(takers)                  \
  if (takers.has_gaps) {                          \
    if (takers.absent[hal_i]) continue;           \
    __asm__ volatile("");                         \
  }

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
  struct hal_from_##name {                                                                                     \
    static HAL_INLINE int of(int lane, type by, int width) {                                                   \
      const int first = lane & ~(width - 1), end = first + width;                                              \
      (void)first, (void)end;                                                                                  \
      return __VA_ARGS__;                                                                                      \
    }                                                                                                          \
  };                                                                                                           \
  template <bool tell, class M, class T>                                                                       \
  static HAL_INLINE T hal_##name(const hal_thread_of<tell> &thread, const hal_place *place, const char *called, \
                                 M mask, T value, type by, int width = warpSize) {                             \
    const int from = hal_from_##name::of(hal_lane(thread), by, width);                                         \
    return hal_warp<hal_shuffle<T>>(thread, place, called, hal_lanes(mask), {value, from});                    \
  }                                                                                                            \
  template <class T, class B>                                                                                  \
  static HAL_INLINE void hal_step_##name(T (&values)[hal_threads_at_most], const T (&from)[hal_threads_at_most], \
                                         const B &by, int width, int threads, const hal_mask *warps) {         \
    hal_step_shuffle<hal_from_##name>(values, from, by, width, threads, warps);                                      \
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

// A tile's sum or the like, as its shuffles make it.
template <class T, class F>
static HAL_INLINE void hal_step_tile_reduce(T (&values)[hal_threads_at_most], const T (&from)[hal_threads_at_most],
                                            const F &operation, int size, int threads, const hal_mask *warps) {
  for (int first = 0; first < threads; first += warpSize) {
    const hal_mask lanes = hal_lanes_at(warps, first, threads);
    if (!lanes) continue;
    T own[warpSize], other[warpSize];
    __builtin_memcpy(own, from + first, sizeof own);
    for (int by = size / 2; by > 0; by /= 2) {
      HAL_NOT_UNROLLED for (int lane = 0; lane < warpSize; lane++) other[lane] = own[lanes >> (lane ^ by) & 1 ? lane ^ by : lane];
      HAL_NOT_UNROLLED for (int lane = 0; lane < warpSize; lane++) own[lane] = operation(own[lane], other[lane]);
    }
    __builtin_memcpy(values + first, own, sizeof own);
  }
}

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

#define HAL_STEP(name, ...)                                                                                       \
  template <class T>                                                                                              \
  static HAL_INLINE void hal_step_##name(T (&values)[hal_threads_at_most], const T (&)[hal_threads_at_most], int threads, \
                                         const hal_mask *warps) {                                                 \
    for (int first = 0; first < threads; first += warpSize) {                                                     \
      const hal_mask lanes = hal_lanes_at(warps, first, threads);                                                 \
      if (!lanes) continue;                                                                                       \
      hal_mask yes = 0;                                                                                           \
      HAL_NOT_UNROLLED for (int lane = 0; lane < warpSize; lane++) yes |= (hal_mask)(values[first + lane] != 0) << lane;           \
      yes &= lanes;                                                                                               \
      const T result = __VA_ARGS__;                                                                               \
      hal_give(values + first, lanes, result);                                                                    \
    }                                                                                                             \
  }
HAL_STEP(ballot, yes)
HAL_STEP(activemask, yes)
HAL_STEP(any, yes != 0)
HAL_STEP(all, yes == lanes)
#undef HAL_STEP

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
template <class T>
static inline void hal_step_match_any(hal_mask (&values)[hal_threads_at_most], const hal_mask (&)[hal_threads_at_most],
                                      const T &by, int threads, const hal_mask *warps) {
  for (int first = 0; first < threads; first += warpSize) {
    const hal_mask lanes = hal_lanes_at(warps, first, threads);
    if (!lanes) continue;
    for (int lane = 0; lane < warpSize; lane++) {
      if (!(lanes >> lane & 1)) continue;
      hal_mask same = 0;
      for (int other = 0; other < warpSize; other++)
        if (lanes >> other & 1 &&
            __builtin_memcmp(&hal_own(by, first + other), &hal_own(by, first + lane), sizeof hal_own(by, 0)) == 0)
          same |= (hal_mask)1 << other;
      values[first + lane] = same;
    }
  }
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
  }                                                                                                               \
  template <class T>                                                                                              \
  static inline void hal_step_reduce_##name(T (&values)[hal_threads_at_most], const T (&from)[hal_threads_at_most], \
                                             int threads, const hal_mask *warps) {                                \
    for (int first = 0; first < threads; first += warpSize) {                                                     \
      const hal_mask lanes = hal_lanes_at(warps, first, threads);                                                 \
      if (!lanes) continue;                                                                                       \
      void *steps[warpSize];                                                                                      \
      hal_step<hal_reduce_##name<T>> given[warpSize];                                                             \
      HAL_NOT_UNROLLED for (int lane = 0; lane < warpSize; lane++) given[lane].in = from[first + lane], steps[lane] = given + lane; \
      const T result = hal_reduce_##name<T>::of(lanes, 0, steps);                                                 \
      hal_give(values + first, lanes, result);                                                                    \
    }                                                                                                             \
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
