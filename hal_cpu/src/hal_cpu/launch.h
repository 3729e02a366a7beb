// How a launch runs a kernel: as loops over threads, as threads side by side, or as the kernel's own loops.
// Part of kernel.h.
#pragma once

namespace {

template <unsigned...> struct hal_indices {};
template <unsigned N, unsigned... I> struct hal_make_indices : hal_make_indices<N - 1, N - 1, I...> {};
template <unsigned... I> struct hal_make_indices<0, I...> { typedef hal_indices<I...> type; };

template <class... A> struct hal_layout {
  unsigned int size[sizeof...(A) + 1], offset[sizeof...(A) + 1];
  constexpr hal_layout() : size{(unsigned int)sizeof(A)..., 0}, offset{} {
    const unsigned int alignment[] = {(unsigned int)alignof(A)..., 1};
    unsigned int end = 0;
    for (unsigned int i = 0; i < sizeof...(A); i++) {
      end = (end + alignment[i] - 1) / alignment[i] * alignment[i];
      offset[i] = end;
      end += size[i];
    }
    offset[sizeof...(A)] = end;
  }
};

// What is asserted of a kernel, where it stands.
template <class F> struct hal_shape {
  static constexpr bool hal_returns_void = false;
  static constexpr unsigned int hal_bytes = 0;
};
template <bool tell, class... A> struct hal_shape<void(const hal_thread_of<tell> &, A...)> {
  static constexpr bool hal_returns_void = true;
  static constexpr unsigned int hal_bytes = hal_layout<A...>().offset[sizeof...(A)];
};

// A parameter's type as its function has it forgets `__restrict__`: this puts it back.
template <class T, bool alone> struct hal_restrict { typedef T type; };
template <class T> struct hal_restrict<T *, true> { typedef T *__restrict type; };

enum { hal_few = 0x7fffffff - 1024 };  // threads in a direction that can be counted with an int
enum { hal_each, hal_each_with_vectors, hal_side_by_side, hal_by_itself };
template <int way, bool flat, unsigned long long alone, auto F> struct hal_kernel_of;

// `way`: threads run one by one (with loops over vectors of their own or without), side by side, or the kernel runs its
// block by itself. `flat`: it asks for no thread's index but that in x, so that a block has one row, or is as rare as a
// huge grid: no loops over rows. `alone`: a bit for each of the first 64 parameters that is marked `__restrict__`.
template <int way, bool flat, unsigned long long alone, bool tell, class... A,
          void (*F)(const hal_thread_of<tell> &, A...)>
struct hal_kernel_of<way, flat, alone, F> {
  static constexpr hal_layout<A...> hal_parameters_of = {};
  static constexpr unsigned int hal_count = sizeof...(A), hal_bytes = hal_parameters_of.offset[sizeof...(A)];
  static constexpr const unsigned int *hal_sizes = hal_parameters_of.size, *hal_offsets = hal_parameters_of.offset;
  typedef typename hal_make_indices<sizeof...(A)>::type indices;
  static constexpr bool in_a_row = flat && !tell && way == hal_by_itself;

  struct frame {
    const hal_launch *launch;
    hal_worker *worker;
    uint3 block;
  };

  template <class P> static HAL_INLINE const P &argument(const hal_launch *launch, unsigned int offset) {
    return *(const P *)((const char *)launch->arguments + offset);
  }

  // One thread of a block whose threads run side by side.
  template <unsigned... I>
  static HAL_INLINE void one(const frame *f, unsigned int i, hal_indices<I...>) {
    const unsigned int *b = f->launch->block, *g = f->launch->grid;
    const hal_thread_of<tell> thread{
        {i % b[0], i / b[0] % b[1], i / b[0] / b[1]}, f->block, {b[0], b[1], b[2]}, {g[0], g[1], g[2]}, f->worker};
    if constexpr (tell) hal_thread = thread;
    F(thread, argument<A>(f->launch, hal_parameters_of.offset[I])...);
  }
  static void entry(void *f, unsigned int i) { one((const frame *)f, i, indices()); }

  // `small`: no index in x reaches INT_MAX, so that the arithmetic which makes it
  // cannot wrap round. Told so, the compiler finds that neighbouring threads
  // touch neighbouring elements. The innermost loop then counts the index in x of
  // the whole grid, so that a guard `if (index >= n) return;` compares the loop's
  // own counter: the compiler splits the loop there, and what is left has no
  // branch. (Code under a branch that stays is vectorised as if its integers may
  // wrap, which is with gathers, or not at all.)
  //
  // No `#pragma GCC ivdep` here. That threads have no order allows it, but GCC 12
  // then also changes the order inside of a thread, where two pointers meet.
  template <bool small>
  static HAL_INLINE void loops(const hal_launch *launch, hal_worker *worker, unsigned long long first,
                               unsigned long long last, A... arguments) {
    const unsigned int bx = launch->block[0], by = launch->block[1], bz = launch->block[2];
    const unsigned int gx = launch->grid[0], gy = launch->grid[1], gz = launch->grid[2];
    if (bx - 1 >= 1024 || by - 1 >= 1024 || bz - 1 >= 1024) __builtin_unreachable();
    unsigned int cx = (unsigned int)(first % gx), cy = (unsigned int)(first / gx % gy);
    unsigned int cz = (unsigned int)(first / gx / gy);
    for (unsigned long long i = first; i < last; i++) {
      if (small) {
        if (cx * (unsigned long long)bx + bx > 0x7fffffffu) __builtin_unreachable();
        if (cx * bx > hal_few) __builtin_unreachable();
      }
      const unsigned int start = small ? cx * bx : 0;
      const int end = (int)(start + bx);
      for (unsigned int z = 0; z < bz; z++)
        for (unsigned int y = 0; y < by; y++)
          HAL_NOT_UNROLLED for (int index = (int)start; index < end; index++) {
            const unsigned int x = (unsigned int)index - start;
            const hal_thread_of<tell> thread{{x, y, z}, {cx, cy, cz}, {bx, by, bz}, {gx, gy, gz}, worker};
            if constexpr (tell) hal_thread = thread;
            F(thread, arguments...);
          }
      if (++cx == gx) {
        cx = 0;
        if (++cy == gy) {
          cy = 0;
          cz++;
        }
      }
    }
  }

  template <bool small>
  static HAL_INLINE void blocks(const hal_launch *launch, hal_worker *worker, unsigned long long first,
                                unsigned long long last, A... arguments) {
    constexpr bool row = small && in_a_row;
    const unsigned int *g = launch->grid;
    const unsigned int b[3] = {launch->block[0], row ? 1 : launch->block[1], row ? 1 : launch->block[2]};
    if (b[0] - 1 >= 1024 || b[1] - 1 >= 1024 || b[2] - 1 >= 1024) __builtin_unreachable();
    for (unsigned long long i = first; i < last; i++) {
      const uint3 block{(unsigned int)(i % g[0]), (unsigned int)(i / g[0] % g[1]), (unsigned int)(i / g[0] / g[1])};
      if (small) {
        if (block.x * (unsigned long long)b[0] + b[0] > 0x7fffffffu) __builtin_unreachable();
        if (block.y * (unsigned long long)b[1] + b[1] > 0x7fffffffu) __builtin_unreachable();
      }
      // What the kernel's loops count from.
      const uint3 start{small ? block.x * b[0] : 0, 0, 0};
      F({start, block, {b[0], b[1], b[2]}, {g[0], g[1], g[2]}, worker}, arguments...);
    }
  }

  template <bool small, class... P>
  static HAL_INLINE void all(const hal_launch *launch, hal_worker *worker, unsigned long long first,
                             unsigned long long last, P... arguments) {
    if constexpr (way == hal_by_itself)
      blocks<small>(launch, worker, first, last, arguments...);
    else
      loops<small>(launch, worker, first, last, arguments...);
  }
  // Not to be inlined: `__restrict__` counts for parameters of a function only.
#define HAL_FAST(name, attributes)                                                                                   \
  attributes static void name(const hal_launch *launch, hal_worker *worker, unsigned long long first,                \
                              unsigned long long last,                                                               \
                              typename hal_restrict<A, (I < 64 && (alone >> I % 64 & 1))>::type... arguments) {      \
    all<true>(launch, worker, first, last, arguments...);                                                            \
  }
  template <unsigned... I> struct fast_of {
    HAL_FAST(run, __attribute__((noinline)))
    // GCC would make vectors of the rounds of a thread's own loop, with a lane for each round, and then none of the
    // vectors that the thread handles in it: a product of matrices takes six times as long.
    HAL_FAST(run_with_vectors, __attribute__((noinline, optimize("no-tree-loop-vectorize"))))
  };
#undef HAL_FAST
  template <unsigned... I>
  static HAL_INLINE void fast(const hal_launch *launch, hal_worker *worker, unsigned long long first,
                              unsigned long long last, hal_indices<I...>) {
    constexpr auto run = way == hal_each_with_vectors ? fast_of<I...>::run_with_vectors : fast_of<I...>::run;
    run(launch, worker, first, last, argument<A>(launch, hal_parameters_of.offset[I])...);
  }
  // For what hardly anybody launches: it is to take the compiler little time. (clang ignores the level.)
  template <unsigned... I>
  __attribute__((cold, noinline, optimize("Og"))) static void any(const hal_launch *launch, hal_worker *worker,
                                                                  unsigned long long first, unsigned long long last,
                                                                  hal_indices<I...>) {
    all<false>(launch, worker, first, last, argument<A>(launch, hal_parameters_of.offset[I])...);
  }

  static void hal_run(const hal_launch *launch, hal_worker *worker, unsigned long long first, unsigned long long last) {
    const unsigned int *g = launch->grid, *b = launch->block;
    if constexpr (way == hal_side_by_side) {
      const unsigned int count = b[0] * b[1] * b[2];
      for (unsigned long long i = first; i < last; i++) {
        frame f{launch, worker,
                {(unsigned int)(i % g[0]), (unsigned int)(i / g[0] % g[1]), (unsigned int)(i / g[0] / g[1])}};
        worker->block = i;
        worker->run_threads(worker, count, entry, &f);
      }
    } else if (g[0] * (unsigned long long)b[0] <= hal_few && g[1] * (unsigned long long)b[1] <= hal_few &&
               (!in_a_row || b[1] * b[2] == 1)) {
      fast(launch, worker, first, last, indices());
    } else {
      any(launch, worker, first, last, indices());
    }
  }
};

}  // namespace

// How many threads a block may have, after __launch_bounds__.
constexpr unsigned int hal_bounded(long long threads) {
  return threads > 0 && threads < hal_threads_at_most ? (unsigned int)threads : hal_threads_at_most;
}

#define HAL_KERNEL(name, way, flat, alone, flags, bounds)                                        \
  extern "C++" {                                                                                   \
  extern "C" {                                                                                     \
  extern const hal_kernel hal_kernel_##name;                                                       \
  HAL_EXPORT const hal_kernel hal_kernel_##name = {                                                \
      HAL_IMAGE_ABI, flags, #name, hal_kernel_of<way, flat, alone, name>::hal_run,                  \
      hal_bounded((long long)bounds), 0,                                                           \
      hal_kernel_of<way, flat, alone, name>::hal_bytes,                                             \
      hal_kernel_of<way, flat, alone, name>::hal_count,                                             \
      hal_kernel_of<way, flat, alone, name>::hal_sizes,                                             \
      hal_kernel_of<way, flat, alone, name>::hal_offsets};                                          \
  }                                                                                                \
  }
