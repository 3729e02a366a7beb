/* The CPU backend's runtime: streams, events, transfers and kernel launches.
 *
 * A stream is a queue of records that one thread of its own, the stream's
 * worker, takes in order. Nothing here knows of Python, and nothing here runs
 * Python: `_driver.py` loads this file's shared object and calls the functions
 * whose names begin with hal_cpu_.
 *
 * Who may call what: one thread at a time enqueues on one stream (the caller
 * sees to that); everything else may be called by any thread at any time.
 *
 * Progress is two counters per stream that only rise, also when a new stream
 * takes over an old one's slot: `published` counts the records enqueued,
 * `completed` those finished. An event is therefore nothing but a pair (slot,
 * value of `published` at the record), and it is complete when `completed` has
 * got there. Python reads both counters without a call.
 *
 * Idle threads spin for a moment before they sleep, so that in a busy phase
 * neither side makes a system call. */
#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <limits.h>

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)

enum {
  LINE = 64,              /* bytes of a cache line, the unit of records */
  CHUNK = 64 * 1024,      /* bytes of records that are allocated at once */
  SPARE_CHUNKS = 16,      /* chunks that a stream keeps for reuse */
  MAX_STREAMS = 4096,     /* that live at the same time */
  STREAM_SPIN_NS = 50000, /* how long an idle stream's worker looks for work before it sleeps */
  ALONE_NS = 15000,       /* a launch shorter than this wakes no helper */
  CHUNK_NS = 8000,        /* blocks for at least this long are taken at once from a shared launch */
  SPLIT_BYTES = 4 << 20,  /* a transfer of fewer bytes is not shared out */
  PIECE_BYTES = 512 << 10, /* bytes of a transfer that are taken at once */
  /* From here on pieces are larger: the C library's functions write past the
   * cache, which is faster, where one call is for more than its size. */
  HUGE_BYTES = 64 << 20,
  HUGE_PIECE = 32 << 20,
};

/* ------------------------------------------------------------------ streams */

enum kind { KIND_JUMP, KIND_EXIT, KIND_FILL, KIND_COPY, KIND_WAIT, KIND_CALL, KIND_LAUNCH }; /* known to Python */

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
      const struct hal_kernel *kernel;
      struct hal_launch launch;
    } launch;
  };
};
_Static_assert(sizeof(struct record) == LINE, "a record must be one line");

struct chunk {
  struct chunk *next;
  _Alignas(LINE) char records[CHUNK - LINE];
};
_Static_assert(sizeof(struct chunk) == CHUNK, "a chunk's header must be one line");

/* The part of a stream that others look at; never freed, never reset. Python
 * reads `completed` at word 16 * slot and `published` at word 16 * slot + 8. */
struct progress {
  _Alignas(LINE) _Atomic uint64_t completed;
  _Alignas(LINE) _Atomic uint64_t published;
};
_Static_assert(sizeof(struct progress) == 128, "Python relies on this layout");
static struct progress progress[MAX_STREAMS];

/* Who waits for a stream's progress. */
static struct watch {
  _Alignas(LINE) pthread_mutex_t lock;
  _Atomic uint64_t wake_at; /* the smallest value somebody sleeps for; written under lock */
  _Atomic uint32_t epoch;   /* what they sleep on */
} watches[MAX_STREAMS];

struct stream {
  uint32_t slot;
  uint32_t threads; /* that may work on one of its operations */
  pthread_t thread;

  /* The enqueuing side's. */
  _Alignas(LINE) struct chunk *chunk;
  size_t used; /* bytes of chunk->records */

  /* Both sides'. */
  _Alignas(LINE) _Atomic uint32_t asleep;
  struct chunk *_Atomic spare; /* a stack with one pushing and one popping thread */
  _Atomic int spare_count;

  /* The worker's. */
  _Alignas(LINE) char *position;
  struct chunk *reading;
  struct thread_state state;
};

static struct stream *streams[MAX_STREAMS];
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t free_slots[MAX_STREAMS];
static int free_slot_count;

/* Wait until the stream of `slot` has completed `sequence` records, or the time
 * is over (negative: no limit). Returns whether it has. */
static bool wait_for(uint32_t slot, uint64_t sequence, int64_t timeout) {
  _Atomic uint64_t *completed = &progress[slot].completed;
  if (atomic_load_explicit(completed, memory_order_acquire) >= sequence) return true;
  int64_t start = now_ns(), deadline = timeout < 0 ? INT64_MAX : start + timeout;
  if (may_spin()) {
    int64_t end = deadline - start < WAIT_SPIN_NS ? deadline : start + WAIT_SPIN_NS;
    do {
      SPIN(atomic_load_explicit(completed, memory_order_relaxed) >= sequence);
      if (atomic_load_explicit(completed, memory_order_acquire) >= sequence) return true;
    } while (now_ns() < end);
  }
  struct watch *watch = &watches[slot];
  for (;;) {
    pthread_mutex_lock(&watch->lock);
    if (atomic_load_explicit(&watch->wake_at, memory_order_relaxed) > sequence) atomic_store(&watch->wake_at, sequence);
    uint32_t epoch = atomic_load_explicit(&watch->epoch, memory_order_relaxed);
    pthread_mutex_unlock(&watch->lock);
    /* Either this load sees the progress, or the worker's look at wake_at sees us. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(completed, memory_order_acquire) >= sequence) return true;
    int64_t left = -1;
    if (timeout >= 0 && (left = deadline - now_ns()) <= 0) return false;
    futex_wait(&watch->epoch, epoch, left);
  }
}

static void complete(uint32_t slot, uint64_t sequence) {
  struct watch *watch = &watches[slot];
  atomic_exchange_explicit(&progress[slot].completed, sequence, memory_order_seq_cst);
  if (LIKELY(atomic_load_explicit(&watch->wake_at, memory_order_seq_cst) > sequence)) return;
  pthread_mutex_lock(&watch->lock);
  atomic_store(&watch->wake_at, UINT64_MAX);
  atomic_fetch_add(&watch->epoch, 1);
  pthread_mutex_unlock(&watch->lock);
  futex_wake(&watch->epoch, INT_MAX); /* who is not served yet registers again */
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
static void transfer(struct stream *stream, void (*run)(void *, struct thread_state *, uint64_t, uint64_t),
                     void *context, uint64_t bytes) {
  uint64_t piece = piece_of(bytes), pieces = (bytes + piece - 1) / piece;
  if (bytes < SPLIT_BYTES || stream->threads < 2) {
    run(context, &stream->state, 0, pieces);
    return;
  }
  struct job job = {.run = run, .context = context, .total = pieces, .piece = 1, .limit = stream->threads - 1};
  share(&job, &stream->state);
}

static void do_fill(struct stream *stream, const struct record *record) {
  struct fill_context fill = {record->fill.target, record->fill.count * record->fill.width,
                              (uint32_t)record->fill.pattern, (uint32_t)record->fill.width};
  if (fill.width == 2 && (fill.pattern & 0xff) == (fill.pattern >> 8 & 0xff)) fill.width = 1;
  if (fill.width == 4 && fill.pattern == (fill.pattern & 0xff) * 0x01010101u) fill.width = 1;
  fill.pattern &= fill.width == 1 ? 0xffu : 0xffffffffu;
  transfer(stream, fill_range, &fill, fill.total);
}

/* Launch */

static void launch_range(void *context, struct thread_state *state, uint64_t first, uint64_t last) {
  const struct record *record = context;
  need_shared(state, record->launch.launch.shared_memory);
  record->launch.kernel->run(&record->launch.launch, &state->worker, first, last);
}

static void do_launch(struct stream *stream, struct record *record) {
  const struct hal_launch *launch = &record->launch.launch;
  uint64_t total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
  uint64_t done = 0;
  if (stream->threads < 2 || total == 1) {
    launch_range(record, &stream->state, 0, total);
    done = total;
  } else {
    /* Start alone, with ever longer ranges, and measure: only what is left
     * after a while is worth waking somebody for. */
    int64_t start = now_ns(), elapsed = 0;
    for (uint64_t range = 1; done < total; range *= 2) {
      if (range > total - done) range = total - done;
      launch_range(record, &stream->state, done, done + range);
      done += range;
      elapsed = now_ns() - start;
      if (elapsed >= ALONE_NS / 2) break;
    }
    if (done < total) {
      double each = (double)elapsed / (double)done;
      if (each * (double)(total - done) <= ALONE_NS) {
        launch_range(record, &stream->state, done, total);
      } else {
        uint64_t piece = (total - done) / (stream->threads * 16u), least = (uint64_t)(CHUNK_NS / (each + 1.0));
        if (piece < least) piece = least;
        if (piece < 1) piece = 1;
        struct job job = {.run = launch_range,
                          .context = record,
                          .total = total,
                          .piece = piece,
                          .next = done,
                          .limit = stream->threads - 1};
        share(&job, &stream->state);
      }
    }
  }
  if (record->launch.kernel->flags & HAL_KERNEL_PRINTS) fflush(stdout);
}

/* Return when there are new records. */
static void await_work(struct stream *stream, uint64_t done) {
  _Atomic uint64_t *published = &progress[stream->slot].published;
  if (may_spin()) {
    int64_t end = now_ns() + STREAM_SPIN_NS;
    do SPIN(atomic_load_explicit(published, memory_order_relaxed) != done);
    while (atomic_load_explicit(published, memory_order_relaxed) == done && now_ns() < end);
  }
  while (atomic_load(published) == done) {
    atomic_store(&stream->asleep, 1);
    /* Either this load sees the record, or the enqueuing side sees `asleep`. */
    if (atomic_load(published) == done) futex_wait(&stream->asleep, 1, -1);
    atomic_store(&stream->asleep, 0);
  }
}

static void recycle(struct stream *stream, struct chunk *chunk) {
  if (atomic_load_explicit(&stream->spare_count, memory_order_relaxed) >= SPARE_CHUNKS) {
    free(chunk);
    return;
  }
  atomic_fetch_add_explicit(&stream->spare_count, 1, memory_order_relaxed);
  chunk->next = atomic_load_explicit(&stream->spare, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&stream->spare, &chunk->next, chunk, memory_order_release,
                                                memory_order_relaxed)) {
  }
}

static void *stream_main(void *argument) {
  struct stream *stream = argument;
  start_state(&stream->state);
  _Atomic uint64_t *published = &progress[stream->slot].published;
  uint64_t done = atomic_load_explicit(&progress[stream->slot].completed, memory_order_relaxed);
  for (;;) {
    uint64_t target = atomic_load_explicit(published, memory_order_acquire);
    if (target == done) {
      await_work(stream, done);
      continue;
    }
    while (done != target) {
      /* At exit nobody keeps memory alive any more: stay here for good. */
      while (atomic_load_explicit(&halting, memory_order_relaxed)) pause();
      struct record *record = (struct record *)stream->position;
      if (record->kind == KIND_JUMP) {
        struct chunk *old = stream->reading;
        stream->reading = record->jump;
        stream->position = stream->reading->records;
        recycle(stream, old);
        continue;
      }
      stream->position += (size_t)record->lines * LINE;
      switch (record->kind) {
        case KIND_FILL: do_fill(stream, record); break;
        case KIND_COPY:
          if (LIKELY(record->copy.size < PIECE_BYTES))
            memcpy(record->copy.target, record->copy.source, record->copy.size);
          else
            transfer(stream, copy_range, record, record->copy.size);
          break;
        case KIND_WAIT: wait_for((uint32_t)record->wait.slot, record->wait.sequence, -1); break;
        case KIND_CALL: record->call.function(record->call.argument); break;
        case KIND_LAUNCH: do_launch(stream, record); break;
        case KIND_EXIT:
          end_state(&stream->state);
          complete(stream->slot, done + 1);
          return NULL;
        default: die("a stream's queue is damaged");
      }
      complete(stream->slot, ++done);
    }
  }
}

/* The enqueuing side */

static struct chunk *take_chunk(struct stream *stream) {
  struct chunk *chunk = atomic_load_explicit(&stream->spare, memory_order_acquire);
  /* Only this side pops, so that a chunk at the top stays there until taken here. */
  while (chunk) {
    if (atomic_compare_exchange_weak_explicit(&stream->spare, &chunk, chunk->next, memory_order_acquire,
                                              memory_order_acquire)) {
      atomic_fetch_sub_explicit(&stream->spare_count, 1, memory_order_relaxed);
      return chunk;
    }
  }
  return aligned_alloc(LINE, sizeof *chunk);
}

/* Return space for a record of so many lines, or NULL when memory ended. */
static struct record *reserve(struct stream *stream, uint32_t lines) {
  /* A line is kept for the jump to the next chunk. */
  if (stream->used + (size_t)(lines + 1) * LINE > sizeof stream->chunk->records) {
    struct chunk *chunk = take_chunk(stream);
    if (!chunk) return NULL;
    struct record *jump = (struct record *)(stream->chunk->records + stream->used);
    jump->kind = KIND_JUMP;
    jump->lines = 1;
    jump->jump = chunk;
    stream->chunk = chunk;
    stream->used = 0;
  }
  struct record *record = (struct record *)(stream->chunk->records + stream->used);
  record->lines = lines;
  return record;
}

static void publish(struct stream *stream, const struct record *record) {
  _Atomic uint64_t *published = &progress[stream->slot].published;
  stream->used += (size_t)record->lines * LINE;
  atomic_store(published, atomic_load_explicit(published, memory_order_relaxed) + 1);
  if (atomic_load(&stream->asleep)) {
    atomic_store(&stream->asleep, 0);
    futex_wake(&stream->asleep, 1);
  }
}

/* Where the enqueuing side writes what it wants, one mailbox for each slot. A
 * foreign function interface takes more time over each argument than over the
 * whole rest of a call, so that Python packs them into memory and passes only
 * the slot. */
static struct mailbox {
  _Alignas(LINE) uint64_t kind;
  union {
    uint64_t words[7];
    struct {
      const struct hal_kernel *kernel;
      void *const *arguments;
      uint32_t grid[3], block[3], shared_memory;
    } launch;
  };
} mailboxes[MAX_STREAMS];
_Static_assert(sizeof(struct mailbox) == LINE, "Python relies on this layout");

/* Enqueue what the slot's mailbox says:
 *
 *     KIND_FILL    target, pattern, width, count
 *     KIND_COPY    target, source, size
 *     KIND_WAIT    slot of the other stream, value of its `completed` to wait for
 *     KIND_CALL    function, argument
 *     KIND_LAUNCH  kernel, arguments, then as 32 bits: grid, block, shared memory
 *
 * Returns 0, or ENOMEM and nothing was enqueued. Never blocks. */
EXPORT int hal_cpu_enqueue(int slot) {
  struct stream *stream = streams[slot];
  const struct mailbox *mail = &mailboxes[slot];
  if (mail->kind == KIND_LAUNCH) {
    const struct hal_kernel *kernel = mail->launch.kernel;
    struct record *record = reserve(stream, 1 + (kernel->argument_bytes + LINE - 1) / LINE);
    if (!record) return ENOMEM;
    char *packed = (char *)(record + 1);
    record->kind = KIND_LAUNCH;
    record->launch.kernel = kernel;
    struct hal_launch *launch = &record->launch.launch;
    memcpy(launch->grid, mail->launch.grid, sizeof launch->grid);
    memcpy(launch->block, mail->launch.block, sizeof launch->block);
    launch->shared_memory = mail->launch.shared_memory;
    launch->reserved = 0;
    launch->arguments = packed;
    for (uint32_t i = 0; i < kernel->parameter_count; i++)
      memcpy(packed + kernel->offsets[i], mail->launch.arguments[i], kernel->sizes[i]);
    publish(stream, record);
    return 0;
  }
  struct record *record = reserve(stream, 1);
  if (!record) return ENOMEM;
  record->kind = (uint32_t)mail->kind;
  memcpy(record->words, mail->words, sizeof record->words);
  publish(stream, record);
  return 0;
}

/* Return where the mailbox of slot 0 is; that of slot i is 64 * i bytes further. */
EXPORT void *hal_cpu_mailboxes(void) { return mailboxes; }

/* ---------------------------------------------------------------- life cycle */

static void halt(void) {
  /* Runs at exit, after Python: what streams still have to do may use memory
   * that is gone. Workers stop before their next record; nobody waits for
   * them, since a record may never end. */
  if (getpid() == owner) atomic_store(&halting, true);
}

/* Prepare the runtime for that many processors; to be called once, first. */
EXPORT void hal_cpu_start(int count) {
  owner = getpid();
  processors = count < 1 ? 1 : count;
  for (int i = MAX_STREAMS - 1; i >= 0; i--) {
    if (i > 0) free_slots[free_slot_count++] = (uint32_t)i; /* 0 is no stream */
    pthread_mutex_init(&watches[i].lock, NULL);
    watches[i].wake_at = UINT64_MAX;
  }
  atexit(halt);
}

/* Return where the counters of slot 0 are, and their number of streams. */
EXPORT void *hal_cpu_progress(int *count) {
  *count = MAX_STREAMS;
  return progress;
}

/* Create a stream whose operations up to `threads` threads work on; returns its
 * slot, or the negative errno. */
EXPORT int hal_cpu_stream_create(uint32_t threads) {
  struct stream *stream = aligned_alloc(LINE, sizeof *stream);
  struct chunk *chunk = aligned_alloc(LINE, sizeof *chunk);
  if (!stream || !chunk) {
    free(stream);
    free(chunk);
    return -ENOMEM;
  }
  memset(stream, 0, sizeof *stream);
  stream->threads = threads < 1 ? 1 : threads;
  stream->chunk = stream->reading = chunk;
  stream->position = chunk->records;
  pthread_mutex_lock(&streams_lock);
  int error = EAGAIN;
  if (free_slot_count > 0) {
    stream->slot = free_slots[--free_slot_count];
    streams[stream->slot] = stream;
    error = start_thread(&stream->thread, stream_main, stream);
    if (error) {
      streams[stream->slot] = NULL;
      free_slots[free_slot_count++] = stream->slot;
    }
  }
  pthread_mutex_unlock(&streams_lock);
  if (error) {
    free(chunk);
    free(stream);
    return -error;
  }
  if (threads > 1) start_helpers((int)threads - 1);
  return (int)stream->slot;
}

/* End a stream when it has done all that was enqueued; blocks until then. */
EXPORT int hal_cpu_stream_destroy(uint32_t slot) {
  struct stream *stream = streams[slot];
  if (getpid() != owner) return 0; /* a fork's child has no threads to end */
  struct record *record = reserve(stream, 1);
  if (!record) return ENOMEM;
  record->kind = KIND_EXIT;
  publish(stream, record);
  pthread_join(stream->thread, NULL);
  for (struct chunk *chunk = stream->spare; chunk;) {
    struct chunk *next = chunk->next;
    free(chunk);
    chunk = next;
  }
  free(stream->reading);
  pthread_mutex_lock(&streams_lock);
  streams[slot] = NULL;
  free_slots[free_slot_count++] = slot;
  pthread_mutex_unlock(&streams_lock);
  free(stream);
  return 0;
}

/* Wait until a stream has completed so many records; 1 if it has, 0 when
 * `timeout` nanoseconds were over first (negative: no limit). */
EXPORT int hal_cpu_synchronize(uint32_t slot, uint64_t sequence, int64_t timeout) {
  return wait_for(slot, sequence, timeout);
}

/* Order what was read of the counters before what is read of memory after. */
EXPORT void hal_cpu_fence(void) { atomic_thread_fence(memory_order_acquire); }

/* ------------------------------------------------------------------- memory */

/* Return `size` > 0 bytes aligned to 256, or NULL. */
EXPORT void *hal_cpu_allocate(uint64_t size) {
  enum { HUGE = 2 * 1024 * 1024 };
  uint64_t alignment = size >= 4 * (uint64_t)HUGE ? HUGE : 256;
  if (size > (uint64_t)PTRDIFF_MAX - alignment) return NULL;
  void *memory = aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
  /* Fewer page faults and table walks; no harm where the system declines. */
  if (memory && alignment == HUGE) madvise(memory, size, MADV_HUGEPAGE);
  return memory;
}

EXPORT void hal_cpu_free(void *memory) { free(memory); }
