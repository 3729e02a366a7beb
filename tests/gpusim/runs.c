/* Graphs that are running. In free mode the stream's thread and a few helpers take the ready nodes, in
 * an order that the seed shakes; in stepped mode the scheduler takes them one by one. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define HELPERS 3

static pthread_cond_t work_there = PTHREAD_COND_INITIALIZER, node_ended = PTHREAD_COND_INITIALIZER;
static bool helpers_started;
static int idle; /* helpers that sleep */

void sim_run_begin(struct sim_run *run, bool threaded) {
  const struct sim_plan *plan = run->plan;
  size_t count = (size_t)plan->count;
  run->threaded = threaded;
  run->remaining = plan->count;
  run->waiting = malloc((2 * count + 1) * sizeof *run->waiting);
  run->ready = run->waiting + count;
  memcpy(run->waiting, plan->indegree, count * sizeof *run->waiting);
  for (int i = 0; i < plan->count; i++)
    if (!run->waiting[i]) run->ready[run->ready_count++] = i;
  if (!run->remaining) return;
  run->next = sim.runs;
  sim.runs = run;
}

int sim_run_take(struct sim_run *run, int position) {
  int node = run->ready[position];
  run->ready[position] = run->ready[--run->ready_count];
  run->running++;
  return node;
}

bool sim_run_ended(struct sim_run *run, int node) {
  const struct sim_plan *plan = run->plan;
  run->running--;
  run->remaining--;
  for (int i = plan->first[node]; i < plan->first[node + 1]; i++)
    if (!--run->waiting[plan->successors[i]]) run->ready[run->ready_count++] = plan->successors[i];
  if (run->threaded) pthread_cond_broadcast(&node_ended);
  if (run->remaining) return false;
  struct sim_run **link = &sim.runs;
  while (*link != run) link = &(*link)->next;
  *link = run->next;
  return true;
}

void sim_run_free(struct sim_run *run) {
  run->exec->pending--;
  sim_plan_release(run->plan);
  free(run->waiting);
  free(run);
}

static void run_one(struct sim_run *run) {
  static uint64_t turn;
  int position = (int)(sim_hash(run->sequence, turn++, 6) % (uint64_t)run->ready_count);
  int node = sim_run_take(run, position);
  sim_run_item((struct sim_item){run->stream, run, node});
}

static void *help(void *unused) {
  (void)unused;
  sim_guard_thread();
  sim_lock();
  for (;;) {
    struct sim_run *run = sim.runs;
    while (run && !(run->threaded && run->ready_count)) run = run->next;
    if (run) {
      run_one(run);
    } else {
      idle++;
      pthread_cond_wait(&work_there, &sim.lock);
      idle--;
    }
  }
  return NULL;
}

void sim_run_all(struct sim_run *run) {
  struct sim_stream *stream = run->stream;
  sim_log(stream, run->sequence, -1, '>', &stream->head->op);
  sim_run_begin(run, true);
  if (run->ready_count > 1 && !helpers_started) {
    helpers_started = true;
    for (int i = 0; i < HELPERS; i++) sim_start_thread(help, NULL);
  }
  while (run->remaining) {
    for (int i = 1; i < run->ready_count && i <= idle; i++) pthread_cond_signal(&work_there);
    if (run->ready_count) run_one(run);
    else pthread_cond_wait(&node_ended, &sim.lock);
  }
  sim_complete_head(stream);
}
