// The loops over threads of a kernel that runs its block by itself, as `_regions.py` divides it.
// Part of kernel.h.
#pragma once

enum { hal_threads_at_most = 1024 };
static HAL_INLINE void hal_enter(const hal_quiet_thread_t &) {}
static HAL_INLINE void hal_enter(const hal_thread_t &thread) { hal_thread = thread; }
// The threads of a row that a region is for: first <= x < last.
struct hal_span { int first, last; };
static HAL_INLINE hal_span hal_all(int size) { return {0, size}; }
// `T` is the type of what the kernel compares with a bound, x in each thread, so that the comparison has the
// type of their sum. A bound that is no whole number excludes nobody, and the region compares by itself.
template <class T, class E> static HAL_INLINE constexpr bool hal_is_whole(E) { return (decltype(T() + E()))0.5 == 0; }
template <class T, class E> static HAL_INLINE hal_span hal_below(int size, E bound) {
  typedef decltype(T() + bound) C;
  return {0, !hal_is_whole<T>(bound) || (C)bound > (C)size ? size : (C)bound < 0 ? 0 : (int)bound};
}
template <class T, class E> static HAL_INLINE hal_span hal_at(int size, E index) {
  typedef decltype(T() + index) C;
  if (!hal_is_whole<T>(index)) return {0, size};
  if ((C)index < 0 || (C)index >= (C)size) return {0, 0};
  return {(int)index, (int)index + 1};
}
// The type of a variable that is declared `auto`, from that of what it begins as.
template <class T> struct hal_plain { typedef T type; };
template <class T> struct hal_plain<const T> { typedef T type; };
template <class T> struct hal_plain<T &> : hal_plain<T> {};
// How many rounds of a loop in step a thread makes at once, and whether so many are left: `at` is below `bound`.
enum { hal_turns = 8 };
template <class T, class E> static HAL_INLINE bool hal_is_far(T at, E bound) {
  typedef decltype(at + bound) C;
  return hal_is_whole<T>(bound) && (unsigned long long)(C)bound - (unsigned long long)(C)at >= hal_turns;
}
// How many rounds of a loop that goes by the width of a block a thread makes at once, and whether so many are left for
// all: `at` is below `bound`. Only in blocks of whole sixteens: GCC then writes vectors and nothing for a rest, which is a
// tenth less to compile.
enum { hal_rounds = 4 };
template <class T, class E, class S> static HAL_INLINE bool hal_goes_on(E bound, T at, S step, int size) {
  typedef decltype(at + bound) C;
  const unsigned long long left = (unsigned long long)(C)bound - (unsigned long long)(C)at;
  return size % 16 == 0 && hal_is_whole<T>(bound) && hal_is_whole<T>(step) && step > 0 && step >= size &&
         left / hal_rounds >= (unsigned long long)step;
}
static HAL_INLINE hal_span hal_sixteens(int size) { return {0, size & ~15}; }
// From which counter on a loop that halves its counter has constants for it: blocks of 128 threads still come by it. GCC
// makes each round vectors that are as wide as the round, so that none waits for several stores of the round before.
enum { hal_levels = 64 };
// Which threads have returned. Mostly those at the end of a row have: `lasts` says where each row ends, and loops stop
// there. Only where others have, too, each thread is asked. (That loop is kept from becoming one of vectors, whose
// conditional loads GCC may get wrong, see _masked_loads.py.)
static HAL_INLINE int hal_least(int a, int b) { return a < b ? a : b; }
static HAL_INLINE void hal_begin(unsigned char *left, short *lasts, int threads, int size) {
  __builtin_memset(left, 0, threads);
  for (int row = 0, i = 0; i < threads; row++, i += size) lasts[row] = (short)size;
}
// Return whether a thread is left.
static HAL_INLINE bool hal_leave(const unsigned char *left, short *lasts, int threads, int size, bool *has_gaps) {
  bool is_left = false;
  for (int row = 0, i = 0; i < threads; row++, i += size) {
    int last = lasts[row];
    while (last > 0 && left[i + last - 1]) last--;
    lasts[row] = (short)last;
    is_left |= last > 0;
    while (last > 0 && !left[i + last - 1]) last--;
    *has_gaps |= last > 0;
  }
  return is_left;
}
// `returns`: whether threads may return before the end. `flat`: the kernel asks for no index but that in x. `in_grid`: it
// may ask for that in the grid, which loops over threads then count. Else they count from 0, an eighth less to compile,
// and GCC does not know the greatest width: it would fill what is kept by `rep stos`, which takes 20 ns to begin.
#define HAL_BLOCK_BEGIN(returns, flat, in_grid)                                                     \
  const auto &hal_outer = hal_thread;                                                               \
  constexpr bool hal_is_flat = flat && !hal_plain<decltype(hal_thread)>::type::hal_tells;           \
  const int hal_size_y = (int)hal_outer.hal_block_size.y;                                           \
  const int hal_size_z = (int)hal_outer.hal_block_size.z;                                           \
  const int hal_rows = hal_size_y * hal_size_z;                                                     \
  int hal_size_x = (int)hal_outer.hal_block_size.x;                                                 \
  if (!in_grid) __asm__("" : "+r"(hal_size_x));                                                     \
  if (hal_size_x < 1 || (in_grid && hal_size_x > hal_threads_at_most)) __builtin_unreachable();     \
  const int hal_threads = hal_size_x * hal_rows;                                                    \
  const int hal_first = in_grid ? (int)hal_outer.hal_index.x : 0;                                   \
  bool hal_some_left = false, hal_has_gaps = false;                                                 \
  unsigned char hal_left[returns ? hal_threads_at_most : 1];                                        \
  short hal_lasts[returns ? hal_threads_at_most : 1];                                               \
  if (returns) hal_begin(hal_left, hal_lasts, hal_threads, hal_size_x)
// A block has a row at least, and these loops begin without a question: the compiler sees early where it is one.
#define HAL_REGION_BEGIN(returns, span)                                                                          \
  {                                                                                                              \
    const hal_span hal_here = span;                                                                              \
    int hal_z = 0, hal_row = 0, hal_i0 = 0;                                                                      \
    do {                                                                                                         \
      int hal_y = 0;                                                                                             \
      do {                                                                                                       \
        HAL_NOT_UNROLLED                                                                                         \
        for (int hal_index = hal_first + hal_here.first,                                                         \
                 hal_end = hal_first + (returns ? hal_least(hal_here.last, hal_lasts[hal_row]) : hal_here.last); \
             hal_index < hal_end; hal_index++) {                                                                 \
          const int hal_x = hal_index - hal_first;                                                               \
          const int hal_i = hal_i0 + hal_x;                                                                      \
          if (returns && hal_has_gaps) {                                                                         \
            if (hal_left[hal_i]) continue;                                                                       \
            __asm__ volatile("");                                                                                \
          }                                                                                                      \
          auto hal_thread = hal_outer;                                                                           \
          hal_thread.hal_index = {(unsigned int)hal_x, (unsigned int)hal_y, (unsigned int)hal_z};                \
          hal_enter(hal_thread);
#define HAL_REGION_END                                                                              \
        }                                                                                           \
        hal_row++;                                                                                  \
        hal_i0 += hal_size_x;                                                                       \
      } while (hal_is_flat ? hal_row < hal_rows : ++hal_y < hal_size_y);                            \
    } while (!hal_is_flat && ++hal_z < hal_size_z);                                                 \
  }
// Behind a region from which threads may return. What all threads have in common goes on for those that are left.
#define HAL_REGION_RETURNED \
  if (hal_some_left && !hal_leave(hal_left, hal_lasts, hal_threads, hal_size_x, &hal_has_gaps)) return;
#define HAL_REGION_RETURN(label)          \
  {                                       \
    hal_left[hal_i] = hal_some_left = true; \
    goto label;                           \
  }
// Barriers with votes: how many threads that have not returned say so.
static inline int hal_votes_of(const bool *votes, bool yes, int threads, const unsigned char *left) {
  int count = 0;
  for (int i = 0; i < threads; i++) count += votes[i] == yes && !(left && left[i]);
  return count;
}
#define hal_step_syncthreads_count(votes, ...) hal_votes_of(votes, true, __VA_ARGS__)
#define hal_step_syncthreads_or(votes, ...) (hal_votes_of(votes, true, __VA_ARGS__) != 0)
#define hal_step_syncthreads_and(votes, ...) (hal_votes_of(votes, false, __VA_ARGS__) == 0)
