/* Let idle threads sleep and wake, and share work over the processors.
 *
 * Part of runtime.c. */
#ifndef HAL_CPU_POOL_H
#define HAL_CPU_POOL_H

#include "lanes.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)

enum {
  LINE = 64, /* bytes of a cache line, the unit of records */
  MAX_HELPERS = 1024,
  HELPER_SPIN_NS = 50000, /* how long an idle helper looks for work before it sleeps */
  WAIT_SPIN_NS = 30000,   /* how long a thread looks at another's progress before it sleeps */
  WAKE_NS = 25000,        /* what it costs to wake a thread of the user's, at most */
};

/* Threads */

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

static inline int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Sleep while *word == expected, for `timeout` nanoseconds at most (negative: no limit). */
static void futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout) {
  struct timespec limit = {timeout / 1000000000, timeout % 1000000000};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, timeout < 0 ? NULL : &limit, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static _Atomic bool halting; /* the process is about to end: take no more work */
static pid_t owner;          /* the process that has the threads; a fork's child has none */
static int processors = 1;   /* that this process may use */

/* Whether spinning can help at all: with one processor only the thread that it
 * takes the time from could end it. */
static inline bool may_spin(void) { return processors > 1; }

/* Look at a condition for a microsecond or so, then let another thread have the
 * processor if one wants it. */
#define SPIN(condition)                          \
  do {                                           \
    for (int i = 0; i < 32 && !(condition); i++) \
      relax();                                   \
    if (!(condition)) sched_yield();             \
  } while (0)

/* Create a thread that no signal is delivered to, so that Python's stay where they belong. */
static int start_thread(pthread_t *thread, void *(*function)(void *), void *argument) {
  sigset_t all, old;
  sigfillset(&all);
  /* Faults of a kernel must still end the process at the instruction at fault. */
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  sigdelset(&all, SIGTRAP);
  sigdelset(&all, SIGABRT);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int error = pthread_create(thread, NULL, function, argument);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return error;
}

/* The pool */

/* Work that several threads can take part in, each as long as it finds something
 * to claim. A job lies on the stack of the stream's worker that offers it, is
 * linked into `jobs` while helpers may come, and ends when none is inside. */
struct job {
  bool (*open)(struct job *job); /* whether there is something to claim */
  void (*work)(struct job *job, struct thread_state *state);
  _Atomic uint32_t users; /* helpers inside; rises under the pool's lock only */
  uint32_t limit;         /* helpers that may take part */
  bool first;             /* helpers look here before they look at other jobs */
  uint32_t slot;          /* of the stream that offers it */
  struct job *link;
};

static struct {
  pthread_mutex_t lock;
  struct job *jobs;              /* under lock */
  int helpers, wanted;           /* under lock: those that run, and those that the first job starts */
  _Atomic uint32_t generation;   /* counts offers; what idle helpers look at */
  _Atomic uint32_t sleepers;
  _Atomic uint32_t wide; /* jobs that a thread which polls would delay by more than its waking takes */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct job *join_job(void) {
  pthread_mutex_lock(&pool.lock);
  struct job *job = pool.jobs;
  while (job && (atomic_load_explicit(&job->users, memory_order_relaxed) >= job->limit || !job->open(job)))
    job = job->link;
  if (job) atomic_fetch_add_explicit(&job->users, 1, memory_order_relaxed);
  pthread_mutex_unlock(&pool.lock);
  return job;
}

static void *helper_main(void *unused) {
  (void)unused;
  struct thread_state state;
  start_state(&state);
  for (;;) {
    uint32_t seen = atomic_load_explicit(&pool.generation, memory_order_acquire);
    struct job *job;
    while ((job = join_job()) != NULL) {
      state.slot = job->slot;
      job->work(job, &state);
      /* The job's owner may go on, and its stack may be reused, as soon as the
       * count falls; waking an address needs nothing of what is there. */
      if (atomic_fetch_sub(&job->users, 1) == 1) futex_wake(&job->users, 1);
    }
    if (may_spin()) {
      int64_t end = now_ns() + HELPER_SPIN_NS;
      do SPIN(atomic_load_explicit(&pool.generation, memory_order_relaxed) != seen);
      while (atomic_load_explicit(&pool.generation, memory_order_relaxed) == seen && now_ns() < end);
    }
    atomic_fetch_add(&pool.sleepers, 1);
    while (atomic_load(&pool.generation) == seen) futex_wait(&pool.generation, seen, -1);
    atomic_fetch_sub(&pool.sleepers, 1);
  }
  return NULL; /* helpers live as long as the process */
}

/* Have so many helpers from the next job on: a process that shares no work needs none. */
static void want_helpers(int count) {
  if (count > MAX_HELPERS) count = MAX_HELPERS;
  pthread_mutex_lock(&pool.lock);
  if (pool.wanted < count) pool.wanted = count;
  pthread_mutex_unlock(&pool.lock);
}

/* Start the helpers that are wanted; under the pool's lock. */
static void start_helpers(void) {
  pthread_t thread;
  while (pool.helpers < pool.wanted && start_thread(&thread, helper_main, NULL) == 0) {
    pthread_detach(thread);
    pool.helpers++;
  }
  pool.wanted = pool.helpers; /* fewer are no error: the stream's worker does what is left */
}

/* Let helpers look for jobs, so many of them if they sleep. */
static void call_helpers(uint32_t count) {
  atomic_fetch_add(&pool.generation, 1);
  if (atomic_load(&pool.sleepers) > 0) futex_wake(&pool.generation, (int)count);
}

static void offer(struct job *job) {
  pthread_mutex_lock(&pool.lock);
  start_helpers();
  struct job **link = &pool.jobs;
  while (!job->first && *link && (*link)->first) link = &(*link)->link;
  job->link = *link;
  *link = job;
  pthread_mutex_unlock(&pool.lock);
}

/* Let no more helpers in, and wait until none is inside. */
static void withdraw(struct job *job) {
  pthread_mutex_lock(&pool.lock);
  struct job **link = &pool.jobs;
  while (*link != job) link = &(*link)->link;
  *link = job->link;
  pthread_mutex_unlock(&pool.lock);
  int64_t end = 0;
  uint32_t users;
  while ((users = atomic_load_explicit(&job->users, memory_order_acquire)) != 0) {
    int64_t time = now_ns();
    if (end == 0) end = time + WAIT_SPIN_NS;
    if (time < end && may_spin())
      SPIN(atomic_load_explicit(&job->users, memory_order_relaxed) == 0);
    else
      futex_wait(&job->users, users, -1);
  }
}

/* Ranges */

/* A job over a range of indices, of which every thread claims pieces. */
struct range {
  struct job job; /* must come first */
  void (*run)(void *context, struct thread_state *state, uint64_t first, uint64_t last);
  void *context;
  uint64_t total, piece;
  double nanoseconds; /* that one thread would take, roughly */
  _Atomic uint64_t next;
};

static bool range_open(struct job *job) {
  struct range *range = (struct range *)job;
  return atomic_load_explicit(&range->next, memory_order_relaxed) < range->total;
}

/* Run the next piece; false if none is left. */
static bool run_piece(struct range *range, struct thread_state *state) {
  uint64_t first = atomic_fetch_add_explicit(&range->next, range->piece, memory_order_relaxed);
  if (first >= range->total) return false;
  uint64_t last = range->total - first < range->piece ? range->total : first + range->piece;
  range->run(range->context, state, first, last);
  return true;
}

static void range_work(struct job *job, struct thread_state *state) {
  while (run_piece((struct range *)job, state)) {
  }
}

/* Run the indices from range->next to range->total, on up to `threads` threads. */
static void share(struct range *range, uint32_t threads, struct thread_state *state) {
  uint64_t left = range->total - atomic_load_explicit(&range->next, memory_order_relaxed);
  uint64_t pieces = (left + range->piece - 1) / range->piece;
  uint32_t limit = (uint32_t)(pieces < threads ? pieces : threads) - 1;
  range->job = (struct job){.open = range_open, .work = range_work, .limit = limit, .slot = state->slot};
  if (limit == 0) {
    range_work(&range->job, state);
    return;
  }
  /* Work for every processor, on one less because a thread polls there. That it yields between two looks is no help:
   * the system sees as many threads as processors have, and leaves a helper behind the worker on the worker's. */
  bool is_wide = limit + 1 >= (uint32_t)processors && range->nanoseconds > (double)WAKE_NS * limit * (limit + 1);
  if (is_wide) {
    /* What polls sleeps by the end of a piece: only then a helper that wakes finds a processor free. */
    atomic_fetch_add(&pool.wide, 1);
    run_piece(range, state);
  }
  offer(&range->job);
  call_helpers(limit);
  range_work(&range->job, state);
  withdraw(&range->job);
  if (is_wide) atomic_fetch_sub(&pool.wide, 1);
}

#endif
