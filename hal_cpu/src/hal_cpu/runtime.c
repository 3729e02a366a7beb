/* The CPU backend's runtime: streams, events, transfers, kernel launches and graphs.
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
 * takes over an old one's slot, so that an event of the old one stays complete:
 * `published` counts the records enqueued,
 * `completed` those finished. An event is therefore nothing but a pair (slot,
 * value of `published` at the record), and it is complete when `completed` has
 * got there. Python reads both counters, and reads and writes events, without a call.
 *
 * The parts, each built on those before it: fibers.h runs a block's threads,
 * lanes.h lets those of a warp meet, pool.h shares work over the processors, work.h has the records and runs them,
 * stream.h queues them, faults.h keeps what failed, graph.h runs many with dependencies,
 * enqueue.h is how work gets in.
 *
 * Idle threads spin for a moment before they sleep, so that in a busy phase
 * neither side makes a system call. */
#define _GNU_SOURCE
#include "enqueue.h"

#include <errno.h>

/* A stream's worker. */
static void *stream_main(void *argument) {
  struct stream *stream = argument;
  start_state(&stream->state);
  stream->state.slot = stream->slot;
  _Atomic uint64_t *published = &progress[stream->slot].published;
  _Atomic uint64_t *completed = &progress[stream->slot].completed;
  for (;;) {
    uint64_t done = atomic_load_explicit(completed, memory_order_acquire);
    if (atomic_load_explicit(published, memory_order_acquire) == done) {
      await_work(stream, done);
      continue;
    }
    if (!take_over(stream, done)) continue;
    done = atomic_load_explicit(completed, memory_order_acquire);
    uint64_t target = atomic_load_explicit(published, memory_order_acquire);
    while (done != target) {
      /* At exit nobody keeps memory alive any more: stay here for good. */
      while (atomic_load_explicit(&halting, memory_order_relaxed)) pause();
      struct record *record = next_record(stream);
      stream->position += (size_t)record->lines * LINE;
      switch (record->kind) {
        case KIND_WAIT: wait_for((uint32_t)record->wait.slot, record->wait.sequence, -1); break;
        case KIND_CALL: record->call.function(record->call.argument); break;
        case KIND_SHARED: record->shared.function(record->shared.argument, 0); break;
        case KIND_GRAPH: do_graph(record, stream->threads, &stream->state); break;
        case KIND_EXIT:
          end_state(&stream->state);
          complete(stream->slot, done + 1);
          return NULL;
        default: do_work(record, stream->threads, &stream->state);
      }
      complete(stream->slot, ++done);
    }
    let_go(stream->slot);
  }
}

/* What built this, for people to read. */
#ifdef __clang__
EXPORT const char hal_cpu_compiler[] = __VERSION__;
#else
EXPORT const char hal_cpu_compiler[] = "GCC " __VERSION__;
#endif

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
  take_slot(); /* 0 is no stream */
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
  stream->slot = take_slot();
  if (stream->slot < MAX_STREAMS) {
    streams[stream->slot] = stream;
    let_go(stream->slot);
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
  want_helpers((int)stream->threads - 1);
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
  hal_cpu_forget_faults(slot, UINT64_MAX);
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

/* --------------------------------------------------------------------- time */

/* Write the time in nanoseconds to the 8 bytes at `timer`; for a stream to call. */
EXPORT void hal_cpu_stamp(int64_t *timer) { *timer = now_ns(); }
