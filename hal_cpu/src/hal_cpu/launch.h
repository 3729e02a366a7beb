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
enum { hal_in_steps = 4 };
template <int way, int shape, unsigned long long alone, auto F> struct hal_kernel_of;

// `way`: threads run one by one (with loops over vectors of their own or without), side by side, or the kernel runs its
// block by itself. `shape`: it asks for a thread's index in x, in x and y, or in all (0: in x, and not in the grid). In the
// others a block has one thread, or is as rare as a huge grid: no loops over them. With `hal_in_steps` if steps of warps
// stand between its loops. `alone`: a bit for each of the first 64 parameters that is marked `__restrict__`.
template <int way, int shape, unsigned long long alone, bool tell, class... A,
          void (*F)(const hal_thread_of<tell> &, A...)>
struct hal_kernel_of<way, shape, alone, F> {
  static constexpr int axes = shape & 3;
  static constexpr hal_layout<A...> hal_parameters_of = {};
  static constexpr unsigned int hal_count = sizeof...(A), hal_bytes = hal_parameters_of.offset[sizeof...(A)];
  static constexpr const unsigned int *hal_sizes = hal_parameters_of.size, *hal_offsets = hal_parameters_of.offset;
  typedef typename hal_make_indices<sizeof...(A)>::type indices;
  static constexpr int looped = tell || way != hal_by_itself ? 3 : axes;

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
  template <bool small> static HAL_INLINE unsigned int start_of(uint3 block, dim3 size) {
    if (!small) return 0;
    if (block.x * (unsigned long long)size.x + size.x > 0x7fffffffu) __builtin_unreachable();
    if (block.y * (unsigned long long)size.y + size.y > 0x7fffffffu) __builtin_unreachable();
    if (block.x * size.x > hal_few) __builtin_unreachable();
    return block.x * size.x;
  }
  static HAL_INLINE dim3 size_of(const hal_launch *launch, int looped) {
    const unsigned int *b = launch->block;
    const dim3 size{b[0], looped < 2 ? 1 : b[1], looped < 3 ? 1 : b[2]};
    if (size.x - 1 >= 1024 || size.y - 1 >= 1024 || size.z - 1 >= 1024) __builtin_unreachable();
    return size;
  }
  static HAL_INLINE uint3 block_at(unsigned long long i, dim3 grid) {
    return {(unsigned int)(i % grid.x), (unsigned int)(i / grid.x % grid.y), (unsigned int)(i / grid.x / grid.y)};
  }
  static HAL_INLINE uint3 behind(uint3 block, dim3 grid) {
    if (++block.x < grid.x) return block;
    if (++block.y < grid.y) return {0, block.y, block.z};
    return {0, 0, block.z + 1};
  }

  // The loops over blocks and threads. A macro, because the compiler optimises each function that the kernel is inlined
  // into before it inlines that one in turn: with a function for each loop, twice as long.
  //
  // Not to be inlined: `__restrict__` counts for parameters of a function only.
  //
  // No `#pragma GCC ivdep` here. That threads have no order allows it, but GCC 12
  // then also changes the order inside of a thread, where two pointers meet.
#define HAL_LOOPS(name, small, attributes)                                                                           \
  __attribute__(attributes) static void name(                                                                        \
      const hal_launch *launch, hal_worker *worker, unsigned long long first, unsigned long long last,               \
      typename hal_restrict<A, (I < 64 && (alone >> I % 64 & 1))>::type... arguments) {                              \
    const unsigned int *g = launch->grid;                                                                            \
    const dim3 size = size_of(launch, small ? looped : 3), grid{g[0], g[1], g[2]};                                      \
    uint3 block = block_at(first, grid);                                                                             \
    for (unsigned long long i = first; i < last; i++, block = behind(block, grid)) {                                 \
      const unsigned int start = start_of<small>(block, size);                                                       \
      if constexpr (way == hal_by_itself) {                                                                          \
        F({{start, 0, 0}, block, size, grid, worker}, arguments...);                                                 \
      } else {                                                                                                       \
        const int end = (int)(start + size.x);                                                                       \
        for (unsigned int z = 0; z < size.z; z++)                                                                    \
          for (unsigned int y = 0; y < size.y; y++)                                                                  \
            HAL_NOT_UNROLLED for (int index = (int)start; index < end; index++) {                                    \
              const hal_thread_of<tell> thread{{(unsigned int)index - start, y, z}, block, size, grid, worker};      \
              if constexpr (tell) hal_thread = thread;                                                               \
              F(thread, arguments...);                                                                               \
            }                                                                                                        \
      }                                                                                                              \
    }                                                                                                                \
  }
  template <unsigned... I> struct of {
    HAL_LOOPS(fast, true, (noinline))
    // GCC would make vectors of the rounds of a thread's own loop, with a lane for each round, and then none of the
    // vectors that the thread handles in it: a product of matrices takes six times as long.
    HAL_LOOPS(fast_with_vectors, true, (noinline, optimize("no-tree-loop-vectorize")))
    // Without an index in the grid the compiler needs no ranges of values to know that none wraps round. The passes that
    // find ranges, and common expressions far apart, are a tenth of its time.
    HAL_LOOPS(fast_from_zero, true, (noinline, optimize("no-tree-vrp", "no-gcse")))
    // Between steps the compiler finds many ways through the kernel to be copied, and none that is worth it.
    HAL_LOOPS(fast_in_steps, true, (noinline, optimize("no-thread-jumps")))
    // For what hardly anybody launches: it is to take the compiler little time. (clang ignores the level. At -Og it runs
    // twice as fast, and a kernel takes a twelfth longer to compile.)
    HAL_LOOPS(any, false, (cold, noinline, optimize("O0")))
  };
#undef HAL_LOOPS
  template <unsigned... I>
  static HAL_INLINE void run(bool is_small, const hal_launch *launch, hal_worker *worker, unsigned long long first,
                             unsigned long long last, hal_indices<I...>) {
    constexpr auto fast = way == hal_each_with_vectors ? of<I...>::fast_with_vectors
                          : shape & hal_in_steps       ? of<I...>::fast_in_steps
                          : axes == 0                  ? of<I...>::fast_from_zero
                                                       : of<I...>::fast;
    if (is_small)
      fast(launch, worker, first, last, argument<A>(launch, hal_parameters_of.offset[I])...);
    else
      of<I...>::any(launch, worker, first, last, argument<A>(launch, hal_parameters_of.offset[I])...);
  }

  static void hal_run(const hal_launch *launch, hal_worker *worker, unsigned long long first, unsigned long long last) {
    const unsigned int *g = launch->grid, *b = launch->block;
    if constexpr (way == hal_side_by_side) {
      const unsigned int count = b[0] * b[1] * b[2];
      for (unsigned long long i = first; i < last; i++) {
        frame f{launch, worker, block_at(i, {g[0], g[1], g[2]})};
        worker->block = i;
        hal_votes = 0;  // a block that was given up has left some
        worker->run_threads(worker, count, entry, &f);
      }
    } else {
      const bool is_small = g[0] * (unsigned long long)b[0] <= hal_few && g[1] * (unsigned long long)b[1] <= hal_few &&
                            (looped > 1 || b[1] == 1) && (looped > 2 || b[2] == 1);
      run(is_small, launch, worker, first, last, indices());
    }
  }
};

}  // namespace

// How many threads a block may have, after __launch_bounds__.
constexpr unsigned int hal_bounded(long long threads) {
  return threads > 0 && threads < hal_threads_at_most ? (unsigned int)threads : hal_threads_at_most;
}

#define HAL_KERNEL(name, way, shape, alone, flags, bounds)                                        \
  extern "C++" {                                                                                   \
  extern "C" {                                                                                     \
  extern const hal_kernel hal_kernel_##name;                                                       \
  HAL_EXPORT const hal_kernel hal_kernel_##name = {                                                \
      HAL_IMAGE_ABI, flags, #name, hal_kernel_of<way, shape, alone, name>::hal_run,                  \
      hal_bounded((long long)bounds), 0,                                                           \
      hal_kernel_of<way, shape, alone, name>::hal_bytes,                                             \
      hal_kernel_of<way, shape, alone, name>::hal_count,                                             \
      hal_kernel_of<way, shape, alone, name>::hal_sizes,                                             \
      hal_kernel_of<way, shape, alone, name>::hal_offsets};                                          \
  }                                                                                                \
  }
