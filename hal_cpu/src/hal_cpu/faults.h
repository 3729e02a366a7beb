/* What made a stream's work fail, kept until the host takes it.
 *
 * Part of runtime.c. A fault belongs to the record that the stream worked on when it happened. Each
 * record has one at most: the first. */
#ifndef HAL_CPU_FAULTS_H
#define HAL_CPU_FAULTS_H

#include "stream.h"

struct fault {
  struct fault *next;
  uint64_t sequence; /* the record's number, counted as `completed` counts */
  char text[768];
};

static struct {
  pthread_mutex_t lock;
  struct fault *first[MAX_STREAMS]; /* of each stream, the oldest first */
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Whether a record up to the given one has failed, and nobody has taken that yet. */
static inline bool has_fault(uint64_t slot, uint64_t sequence) {
  return atomic_load_explicit(&progress[slot].fault, memory_order_relaxed) <= sequence;
}

/* Make the work that a thread runs fail, with the kernel, the block and the line. */
static void add_fault(const struct hal_worker *worker, const struct hal_place *place, const char *what) {
  const struct thread_state *state = (const struct thread_state *)worker;
  const uint32_t *grid = state->launch->grid;
  /* The record is not complete before this returns. */
  uint64_t sequence = atomic_load(&progress[state->slot].completed) + 1, block = worker->block;
  pthread_mutex_lock(&faults.lock);
  struct fault **link = &faults.first[state->slot];
  while (*link && (*link)->sequence < sequence) link = &(*link)->next;
  struct fault *fault = *link ? NULL : calloc(1, sizeof *fault);
  if (fault) {
    fault->sequence = sequence;
    snprintf(fault->text, sizeof fault->text, "kernel '%s', block (%llu, %llu, %llu): %s:%u: %s", state->kernel->name,
             (unsigned long long)(block % grid[0]), (unsigned long long)(block / grid[0] % grid[1]),
             (unsigned long long)(block / grid[0] / grid[1]), place->file, place->line, what);
    *link = fault;
    if (fault == faults.first[state->slot]) atomic_store(&progress[state->slot].fault, sequence);
  }
  pthread_mutex_unlock(&faults.lock);
}

static void diverged(struct hal_worker *worker, const struct hal_place *one, const struct hal_place *other) {
  char there[256] = "others go past it", text[400];
  if (other && other->line != one->line)
    snprintf(there, sizeof there, "others wait at the one in line %u of %s", other->line, other->file);
  else if (other)
    snprintf(there, sizeof there, "others wait at another one in the same line");
  snprintf(text, sizeof text,
           "some threads wait at this __syncthreads(), %s; all threads of a block that have not returned must come "
           "to the same one",
           there);
  add_fault(worker, one, text);
}

static void misled(struct hal_worker *worker, const struct hal_meeting *meeting, const char *what) {
  char text[480];
  snprintf(text, sizeof text, "%s(): %s", meeting->name, what);
  add_fault(worker, meeting->place, text);
}

/* Write the text of the oldest fault of a stream's records up to the given one, or "". */
EXPORT void hal_cpu_fault(uint32_t slot, uint64_t sequence, char *text, uint64_t size) {
  pthread_mutex_lock(&faults.lock);
  const struct fault *fault = faults.first[slot];
  snprintf(text, size, "%s", fault && fault->sequence <= sequence ? fault->text : "");
  pthread_mutex_unlock(&faults.lock);
}

/* Forget the faults of a stream's records up to the given one. */
EXPORT void hal_cpu_forget_faults(uint32_t slot, uint64_t sequence) {
  pthread_mutex_lock(&faults.lock);
  struct fault **first = &faults.first[slot], *fault;
  while ((fault = *first) && fault->sequence <= sequence) {
    *first = fault->next;
    free(fault);
  }
  atomic_store(&progress[slot].fault, *first ? (*first)->sequence : UINT64_MAX);
  pthread_mutex_unlock(&faults.lock);
}

#endif
