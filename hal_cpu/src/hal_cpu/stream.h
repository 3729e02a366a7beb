/* Queues of records, one for each stream, and how far each has got.
 *
 * Part of runtime.c. */
#ifndef HAL_CPU_STREAM_H
#define HAL_CPU_STREAM_H

#include "work.h"

#include <errno.h>
#include <limits.h>

enum {
  CHUNK = 64 * 1024,      /* bytes of records that are allocated at once */
  SPARE_CHUNKS = 16,      /* chunks that a stream keeps for reuse */
  MAX_STREAMS = 4096,     /* that live at the same time */
  STREAM_SPIN_NS = 50000, /* how long an idle stream's worker looks for work before it sleeps */
  HELP_NS = 2000,         /* and waits for a thread that has helped before to help again */
};

struct chunk {
  struct chunk *next;
  _Alignas(LINE) char records[CHUNK - LINE];
};
_Static_assert(sizeof(struct chunk) == CHUNK, "a chunk's header must be one line");

/* The part of a stream that others look at; never freed, never reset. Python
 * reads `completed` at word 16 * slot, `fault` behind it, and `published` at word 16 * slot + 8. */
struct progress {
  _Alignas(LINE) _Atomic uint64_t completed;
  _Atomic uint64_t fault; /* the record of the oldest fault that nobody took, or UINT64_MAX */
  _Atomic bool is_shared; /* threads that wait may find something that they may run */
  _Alignas(LINE) _Atomic uint64_t published;
};
_Static_assert(sizeof(struct progress) == 128, "Python relies on this layout");
static struct progress progress[MAX_STREAMS];

/* A function to be called when a stream has got there. */
struct notice {
  struct notice *next;
  uint64_t sequence;
  void (*function)(void *);
  void *argument;
};

/* Who waits for a stream's progress. */
static struct watch {
  _Alignas(LINE) pthread_mutex_t lock;
  _Atomic uint64_t wake_at; /* the smallest value of a notice, or that somebody sleeps for; written under lock */
  _Atomic uint32_t epoch;   /* what they sleep on */
  _Atomic bool is_taken;    /* by the thread that runs records: here others' looks do not slow it down */
  struct notice *notices;   /* under lock */
} watches[MAX_STREAMS];

struct stream {
  uint32_t slot;
  uint32_t threads; /* that may work on one of its operations */
  pthread_t thread;

  /* The enqueuing side's. */
  _Alignas(LINE) _Atomic bool is_entered; /* by a thread that enqueues */
  struct chunk *chunk;
  size_t used; /* bytes of chunk->records */

  /* Both sides'. */
  _Alignas(LINE) _Atomic uint32_t asleep;
  struct chunk *_Atomic spare; /* a stack with one pushing and one popping thread */
  _Atomic int spare_count;

  /* Of the thread that runs records. */
  _Alignas(LINE) char *position;
  struct chunk *reading;
  struct thread_state state;
  _Atomic bool is_helped; /* the last record was run by a thread that waited for it */
};

static struct stream *streams[MAX_STREAMS];
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t free_slots[MAX_STREAMS];
static int free_slot_count;
static uint32_t slot_count; /* that were taken once; the memory of the others is untouched */

/* Return a slot, or MAX_STREAMS if none is left; under the streams' lock. */
static uint32_t take_slot(void) {
  if (free_slot_count > 0) return free_slots[--free_slot_count];
  if (slot_count == MAX_STREAMS) return MAX_STREAMS;
  pthread_mutex_init(&watches[slot_count].lock, NULL);
  watches[slot_count].wake_at = UINT64_MAX;
  atomic_store(&progress[slot_count].fault, UINT64_MAX);
  return slot_count++;
}

/* Sleep until the stream of `slot` has completed `sequence` records, or until a time. Returns whether it has. */
static bool sleep_for(uint32_t slot, uint64_t sequence, int64_t deadline) {
  _Atomic uint64_t *completed = &progress[slot].completed;
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
    if (deadline != INT64_MAX && (left = deadline - now_ns()) <= 0) return false;
    futex_wait(&watch->epoch, epoch, left);
  }
}

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
  return sleep_for(slot, sequence, deadline);
}

/* Call and wake those who wait for what a stream has completed. */
static void tell(struct watch *watch, uint64_t sequence) {
  struct notice *due = NULL, **place = &watch->notices;
  uint64_t next = UINT64_MAX;
  pthread_mutex_lock(&watch->lock);
  while (*place) {
    struct notice *notice = *place;
    if (notice->sequence <= sequence) {
      *place = notice->next;
      notice->next = due;
      due = notice;
    } else {
      if (notice->sequence < next) next = notice->sequence;
      place = &notice->next;
    }
  }
  atomic_store(&watch->wake_at, next);
  atomic_fetch_add(&watch->epoch, 1);
  pthread_mutex_unlock(&watch->lock);
  while (due) {
    struct notice *notice = due;
    due = notice->next;
    notice->function(notice->argument);
    free(notice);
  }
  futex_wake(&watch->epoch, INT_MAX); /* a thread that waits for a later record registers again */
}

static void complete(uint32_t slot, uint64_t sequence) {
  struct watch *watch = &watches[slot];
  atomic_exchange_explicit(&progress[slot].completed, sequence, memory_order_seq_cst);
  if (LIKELY(atomic_load_explicit(&watch->wake_at, memory_order_seq_cst) > sequence)) return;
  tell(watch, sequence);
}

/* Have a function called when a stream has completed so many records, by its worker, or at once. Returns 0, or
 * ENOMEM. */
static int notify_at(uint32_t slot, uint64_t sequence, void (*function)(void *), void *argument) {
  struct watch *watch = &watches[slot];
  struct notice *notice = malloc(sizeof *notice);
  if (!notice) return ENOMEM;
  pthread_mutex_lock(&watch->lock);
  *notice = (struct notice){watch->notices, sequence, function, argument};
  watch->notices = notice;
  if (atomic_load_explicit(&watch->wake_at, memory_order_relaxed) > sequence) atomic_store(&watch->wake_at, sequence);
  pthread_mutex_unlock(&watch->lock);
  /* Either this load sees the progress, or the worker's look at wake_at sees us: all four are in one order. */
  uint64_t completed = atomic_load(&progress[slot].completed);
  if (completed >= sequence) tell(watch, completed);
  return 0;
}

/* The worker's side */

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

/* Return the next record of a stream that has one. */
static struct record *next_record(struct stream *stream) {
  struct record *record = (struct record *)stream->position;
  if (record->kind != KIND_JUMP) return record;
  struct chunk *old = stream->reading;
  stream->reading = record->jump;
  stream->position = stream->reading->records;
  recycle(stream, old);
  return (struct record *)stream->position;
}

static bool take(uint32_t slot) {
  _Atomic bool *is_taken = &watches[slot].is_taken;
  return !atomic_load_explicit(is_taken, memory_order_relaxed) &&
         !atomic_exchange_explicit(is_taken, true, memory_order_acquire);
}

static void let_go(uint32_t slot) { atomic_store_explicit(&watches[slot].is_taken, false, memory_order_release); }

/* Have the worker run records; false if another thread has run some meanwhile. */
static bool take_over(struct stream *stream, uint64_t done) {
  _Atomic uint64_t *completed = &progress[stream->slot].completed;
  if (atomic_load_explicit(&stream->is_helped, memory_order_relaxed)) {
    int64_t end = now_ns() + HELP_NS;
    do SPIN(atomic_load_explicit(completed, memory_order_relaxed) != done);
    while (atomic_load_explicit(completed, memory_order_relaxed) == done && now_ns() < end);
    if (atomic_load_explicit(completed, memory_order_relaxed) != done) return false;
    atomic_store_explicit(&stream->is_helped, false, memory_order_relaxed);
  }
  while (!take(stream->slot)) SPIN(!atomic_load_explicit(&watches[stream->slot].is_taken, memory_order_relaxed));
  return true;
}

/* Run what a thread that waits may run, up to a record, while it takes no long time. The worker would be woken or
 * watched for it, and the waiting thread told: that took as long as the work itself. A stream lives while it is taken
 * and has a record in front of `sequence`. */
static void help(uint32_t slot, uint64_t sequence) {
  if (!atomic_load_explicit(&progress[slot].is_shared, memory_order_relaxed)) return;
  if (atomic_load_explicit(&halting, memory_order_relaxed) || !take(slot)) return;
  _Atomic uint64_t *completed = &progress[slot].completed;
  uint64_t done;
  while ((done = atomic_load_explicit(completed, memory_order_acquire)) < sequence) {
    struct stream *stream = streams[slot];
    struct record *record = next_record(stream);
    if (record->kind != KIND_SHARED || !record->shared.function(record->shared.argument, 1)) break;
    stream->position += (size_t)record->lines * LINE;
    atomic_store_explicit(&stream->is_helped, true, memory_order_relaxed);
    complete(slot, done + 1);
  }
  let_go(slot);
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

#endif
