/* What streams and graphs are made of: records, and how one is run.
 *
 * Part of runtime.c. */
#ifndef HAL_CPU_WORK_H
#define HAL_CPU_WORK_H

#include "pool.h"

enum {
  ALONE_NS = 15000,        /* a launch shorter than this wakes no helper */
  CHUNK_NS = 8000,         /* blocks for at least this long are taken at once from a shared launch */
  SPLIT_BYTES = 4 << 20,   /* a transfer of fewer bytes is not shared out */
  PIECE_BYTES = 512 << 10, /* bytes of a transfer that are taken at once */
  /* From here on pieces are larger: the C library's functions write past the
   * cache, which is faster, where one call is for more than its size. */
  HUGE_BYTES = 64 << 20,
  HUGE_PIECE = 32 << 20,
};

enum kind { /* known to Python */
  KIND_JUMP,
  KIND_EXIT,
  KIND_FILL,
  KIND_COPY,
  KIND_WAIT,
  KIND_CALL,
  KIND_LAUNCH,
  KIND_INDIRECT,
  KIND_EMPTY,
  KIND_GRAPH,
  KIND_SHARED,
};

/* A record takes one or more cache lines; a launch's arguments follow in the next. */
struct record {
  _Alignas(LINE) uint32_t kind;
  uint32_t lines;
  union {
    uint64_t words[7];
    struct chunk *jump;
    struct {
      char *target;
      uint64_t pattern, width, count;
    } fill;
    struct {
      char *target;
      const char *source;
      uint64_t size;
    } copy;
    struct {
      uint64_t slot, sequence;
    } wait;
    struct {
      void (*function)(void *);
      void *argument;
    } call;
    struct {
      int (*function)(void *argument, int helps); /* helping, it returns soon: 0 before its end */
      void *argument;
    } shared;
    struct {
      const struct hal_kernel *kernel;
      struct hal_launch launch;
      const uint32_t *counts; /* where the grid is, for KIND_INDIRECT */
    } launch;
    struct {
      struct instance *instance;
      struct version *version;
      uint64_t number; /* of the launches of this instance, from 0 */
    } graph;
  };
};
_Static_assert(sizeof(struct record) == LINE, "a record must be one line");

/* What Python asks for. A foreign function interface takes more time over each
 * argument than over the whole rest of a call, so that they come in memory:
 *
 *     KIND_FILL      target, pattern, width, count
 *     KIND_COPY      target, source, size
 *     KIND_WAIT      slot of the other stream, value of its `completed` to wait for
 *     KIND_CALL      function, argument
 *     KIND_LAUNCH    kernel, arguments, then as 32 bits: grid, 0, block, shared memory
 *     KIND_INDIRECT  kernel, arguments, counts, 0, then as 32 bits: block, shared memory
 *     KIND_EMPTY     nothing
 *     KIND_GRAPH     instance
 *     KIND_SHARED    function, argument: what a thread that waits may do, too */
struct order {
  uint64_t kind;
  union {
    uint64_t words[7];
    struct {
      const struct hal_kernel *kernel;
      void *const *arguments;
      union {
        uint32_t grid[3];
        struct {
          const uint32_t *counts;
          uint64_t unused;
        };
      };
      uint32_t block[3], shared_memory;
    } launch;
  };
};
_Static_assert(sizeof(struct order) == LINE, "Python relies on this layout");

static inline bool is_launch(uint64_t kind) { return kind == KIND_LAUNCH || kind == KIND_INDIRECT; }

/* Return how many lines the record of an order takes. */
static inline uint32_t lines_of(const struct order *order) {
  return is_launch(order->kind) ? 1 + (order->launch.kernel->argument_bytes + LINE - 1) / LINE : 1;
}

/* Write a record of so many lines as `lines_of` says. */
static inline void write_record(struct record *record, const struct order *order) {
  record->kind = (uint32_t)order->kind;
  if (!is_launch(order->kind)) {
    memcpy(record->words, order->words, sizeof record->words);
    return;
  }
  const struct hal_kernel *kernel = order->launch.kernel;
  char *packed = (char *)(record + 1);
  record->launch.kernel = kernel;
  struct hal_launch *launch = &record->launch.launch;
  if (order->kind == KIND_LAUNCH)
    memcpy(launch->grid, order->launch.grid, sizeof launch->grid);
  else
    record->launch.counts = order->launch.counts;
  memcpy(launch->block, order->launch.block, sizeof launch->block);
  launch->shared_memory = order->launch.shared_memory;
  launch->reserved = 0;
  launch->arguments = packed;
  for (uint32_t i = 0; i < kernel->parameter_count; i++)
    memcpy(packed + kernel->offsets[i], order->launch.arguments[i], kernel->sizes[i]);
}

/* Fill */

static inline uint64_t piece_of(uint64_t bytes) { return bytes < HUGE_BYTES ? PIECE_BYTES : HUGE_PIECE; }

struct fill_context {
  char *target;
  uint64_t total; /* bytes */
  uint32_t pattern, width;
};

static void fill_range(void *context, struct thread_state *state, uint64_t first, uint64_t last) {
  const struct fill_context *fill = context;
  (void)state;
  uint64_t piece = piece_of(fill->total), begin = first * piece, end = last * piece;
  if (end > fill->total) end = fill->total;
  char *target = fill->target + begin;
  if (fill->width == 1) {
    memset(target, (int)fill->pattern, end - begin);
  } else if (fill->width == 2) {
    uint16_t *words = (uint16_t *)target, word = (uint16_t)fill->pattern;
    for (uint64_t i = 0; i < (end - begin) / 2; i++) words[i] = word;
  } else {
    uint32_t *words = (uint32_t *)target, word = fill->pattern;
    for (uint64_t i = 0; i < (end - begin) / 4; i++) words[i] = word;
  }
}

static void copy_range(void *context, struct thread_state *state, uint64_t first, uint64_t last) {
  const struct record *record = context;
  (void)state;
  uint64_t piece = piece_of(record->copy.size), begin = first * piece, end = last * piece;
  if (end > record->copy.size) end = record->copy.size;
  memcpy(record->copy.target + begin, record->copy.source + begin, end - begin);
}

/* Run all pieces of a transfer, with help if it is long enough. */
static void transfer(uint32_t threads, struct thread_state *state,
                     void (*run)(void *, struct thread_state *, uint64_t, uint64_t), void *context, uint64_t bytes) {
  uint64_t piece = piece_of(bytes), pieces = (bytes + piece - 1) / piece;
  if (bytes < SPLIT_BYTES || threads < 2) {
    run(context, state, 0, pieces);
    return;
  }
  struct range range = {.run = run, .context = context, .total = pieces, .piece = 1, .nanoseconds = bytes * 0.1};
  share(&range, threads, state);
}

static void do_fill(const struct record *record, uint32_t threads, struct thread_state *state) {
  struct fill_context fill = {record->fill.target, record->fill.count * record->fill.width,
                              (uint32_t)record->fill.pattern, (uint32_t)record->fill.width};
  if (fill.width == 2 && (fill.pattern & 0xff) == (fill.pattern >> 8 & 0xff)) fill.width = 1;
  if (fill.width == 4 && fill.pattern == (fill.pattern & 0xff) * 0x01010101u) fill.width = 1;
  fill.pattern &= fill.width == 1 ? 0xffu : 0xffffffffu;
  transfer(threads, state, fill_range, &fill, fill.total);
}

/* Launch */

struct launch_context {
  const struct hal_kernel *kernel;
  const struct hal_launch *launch;
};

static void launch_range(void *context, struct thread_state *state, uint64_t first, uint64_t last) {
  const struct launch_context *it = context;
  need_shared(state, it->launch->shared_memory);
  state->kernel = it->kernel;
  state->launch = it->launch;
  it->kernel->run(it->launch, &state->worker, first, last);
}

static void do_launch(const struct hal_kernel *kernel, const struct hal_launch *launch, uint32_t threads,
                      struct thread_state *state) {
  struct launch_context context = {kernel, launch};
  uint64_t total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  uint64_t done = 0;
  if (total == 0) return; /* a graph's launch over a slot's grid */
  if (threads < 2 || total == 1) {
    launch_range(&context, state, 0, total);
    done = total;
  } else {
    /* Start alone, with ever longer ranges, and measure: only what is left
     * after a while is worth waking somebody for. */
    int64_t start = now_ns(), elapsed = 0;
    for (uint64_t range = 1; done < total; range *= 2) {
      if (range > total - done) range = total - done;
      launch_range(&context, state, done, done + range);
      done += range;
      elapsed = now_ns() - start;
      if (elapsed >= ALONE_NS / 2) break;
    }
    if (done < total) {
      double each = (double)elapsed / (double)done;
      if (each * (double)(total - done) <= ALONE_NS) {
        launch_range(&context, state, done, total);
      } else {
        uint64_t piece = (total - done) / (threads * 16u), least = (uint64_t)(CHUNK_NS / (each + 1.0));
        if (piece < least) piece = least;
        if (piece < 1) piece = 1;
        struct range range = {.run = launch_range, .context = &context, .total = total, .piece = piece,
                              .nanoseconds = each * (double)(total - done), .next = done};
        share(&range, threads, state);
      }
    }
  }
  if (kernel->flags & HAL_KERNEL_PRINTS) fflush(stdout);
}

/* A grid that is only known now. A zero is an empty grid; what no launch could
 * be given is a fault, as one inside of the kernel would be. */
static void do_indirect(const struct record *record, uint32_t threads, struct thread_state *state) {
  const uint32_t x = record->launch.counts[0], y = record->launch.counts[1], z = record->launch.counts[2];
  if (x == 0 || y == 0 || z == 0) return;
  if (x > INT32_MAX || y > UINT16_MAX || z > UINT16_MAX) {
    fprintf(stderr,
            "hal_cpu: an indirect launch of %s found a grid of %u x %u x %u blocks in memory, at most %d x %d x %d\n",
            record->launch.kernel->name, x, y, z, INT32_MAX, UINT16_MAX, UINT16_MAX);
    abort();
  }
  struct hal_launch launch = record->launch.launch;
  launch.grid[0] = x;
  launch.grid[1] = y;
  launch.grid[2] = z;
  do_launch(record->launch.kernel, &launch, threads, state);
}

/* Run a record that is not the business of streams alone, on up to `threads` threads. */
static inline void do_work(struct record *record, uint32_t threads, struct thread_state *state) {
  switch (record->kind) {
    case KIND_FILL: do_fill(record, threads, state); break;
    case KIND_COPY:
      if (LIKELY(record->copy.size < PIECE_BYTES))
        memcpy(record->copy.target, record->copy.source, record->copy.size);
      else
        transfer(threads, state, copy_range, record, record->copy.size);
      break;
    case KIND_LAUNCH: do_launch(record->launch.kernel, &record->launch.launch, threads, state); break;
    case KIND_INDIRECT: do_indirect(record, threads, state); break;
    case KIND_EMPTY: break;
    default: die("a record is damaged");
  }
}

#endif
