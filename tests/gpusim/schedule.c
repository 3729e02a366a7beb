/* What may run next, and in stepped mode what does: one ready operation at a time, chosen by the
 * seed. It runs on whoever waits, asks, or, when nobody has made a call for a while, on a tick.
 *
 * The choice is the ready operation with the lowest hash of (seed, stream, place in it, node), so that
 * it depends on nothing but what is ready; every fourth stream or so is slow, and runs when nothing
 * else can. Equal seeds and equal calls give equal histories. */
#include <time.h>
#include <unistd.h>

#include "sim.h"

static bool ran_host_function;

static bool value_holds(const struct sim_value *value) {
  if (!sim_within(value->address, value->width)) return true;
  uint64_t now = value->width == 8 ? __atomic_load_n((uint64_t *)value->address, __ATOMIC_ACQUIRE)
                                   : __atomic_load_n((uint32_t *)value->address, __ATOMIC_ACQUIRE);
  uint64_t mask = value->width == 8 ? UINT64_MAX : UINT32_MAX, wanted = value->value & mask;
  switch (value->condition) {
    case 0: return value->width == 8 ? (int64_t)(now - wanted) >= 0 : (int32_t)((uint32_t)now - (uint32_t)wanted) >= 0;
    case 1: return now == wanted;
    case 2: return (now & wanted) != 0;
    default: return (~(now | wanted) & mask) != 0;
  }
}

bool sim_head_ready(const struct sim_stream *stream) {
  if (!stream->head || stream->active) return false;
  if (sim.devices[stream->device].error) return true;
  const struct sim_op *op = &stream->head->op;
  switch (op->kind) {
    case SIM_OP_WAIT: return sim_done(op->wait) || sim.devices[op->wait.stream->device].error;
    case SIM_OP_GRAPH: return sim_done(op->run->before);
    case SIM_OP_WAIT_VALUE: return value_holds(&op->value);
    default: return true;
  }
}

static const struct sim_op *op_of(struct sim_item item) {
  return item.run ? &item.run->plan->ops[item.node] : &item.stream->head->op;
}

void sim_run_item(struct sim_item item) {
  struct sim_stream *stream = item.stream;
  uint64_t sequence = stream->head->sequence;
  const struct sim_op *op = op_of(item);
  sim_log(stream, sequence, item.node, '>', op);
  if (op->kind == SIM_OP_GRAPH) { /* its nodes are items of their own; free mode does not come here */
    sim_run_begin(op->run, false);
    if (!op->run->remaining) sim_complete_head(stream);
    return;
  }
  int status = SIM_OK;
  if (!sim.devices[stream->device].error) {
    /* The number and the end of its operation are seen at once: the host may read the number and launch. */
    bool is_seen = op->kind == SIM_OP_WRITE_VALUE;
    if (!is_seen) sim_unlock();
    status = sim_execute(op, stream);
    if (!is_seen && sim.jitter_us && !sim.stepped) usleep(sim.jitter_us);
    if (!is_seen) sim_lock();
    if (op->kind == SIM_OP_RECORD && op->record.event->record <= op->record.record)
      op->record.event->time = sim.stepped ? sim.steps * 1000 : sim_now();
    if (op->kind == SIM_OP_FREE) sim_pool_ran(op);
  }
  if (status) sim_fail_device(stream->device, status, op->kind == SIM_OP_KERNEL ? op->launch->kernel->name : sim_op_name(op->kind));
  if (!item.run) {
    sim_complete_head(stream);
    return;
  }
  sim_log(stream, sequence, item.node, '.', op);
  if (sim_run_ended(item.run, item.node) && !item.run->threaded) sim_complete_head(stream);
}

static bool needs_thread(const struct sim_op *op) { return op->kind == SIM_OP_KERNEL || op->kind == SIM_OP_HOST; }

struct choice {
  struct sim_item item;
  int position; /* among the ready nodes of the run */
  uint64_t key;
  bool any;
};

static void consider(struct choice *choice, struct sim_item item, int position, uint64_t key) {
  if (item.stream->granted && needs_thread(op_of(item))) return; /* its thread is busy */
  if (sim_hash(item.stream->ordinal, 0, 1) % 4 == 0) key |= 1ull << 63;
  else key &= ~(1ull << 63);
  if (choice->any && choice->key <= key) return;
  *choice = (struct choice){item, position, key, true};
}

static struct choice choose(void) {
  struct choice choice = {.any = false};
  for (struct sim_stream *stream = sim.streams; stream; stream = stream->next)
    if (sim_head_ready(stream))
      consider(&choice, (struct sim_item){stream, NULL, -1}, -1, sim_hash(stream->ordinal, stream->head->sequence, 2));
  for (struct sim_run *run = sim.runs; run; run = run->next)
    for (int i = 0; i < run->ready_count && !run->threaded; i++)
      consider(&choice, (struct sim_item){run->stream, run, run->ready[i]}, i,
               sim_hash(run->stream->ordinal, run->sequence, 3 + (uint64_t)run->ready[i]));
  return choice;
}

/* Kernels and host functions run on the stream's thread: one that waits for the host must not hold up
 * the others, and after GPUSIM_LONG_MS it goes on by itself. */
static void grant(struct sim_item item) {
  struct sim_stream *stream = item.stream;
  stream->grant = item;
  stream->granted = true;
  pthread_cond_signal(&stream->wake);
  uint64_t until = sim_now() + sim.long_ms * 1000000ull;
  struct timespec limit = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};
  sim.waiters++;
  while (stream->granted && sim_now() < until) pthread_cond_timedwait(&sim.changed, &sim.lock, &limit);
  sim.waiters--;
}

bool sim_step(void) {
  struct choice choice = choose();
  if (!choice.any) return false;
  sim.stepping = true;
  sim.steps++;
  if (choice.item.run) sim_run_take(choice.item.run, choice.position);
  else choice.item.stream->active = true;
  const struct sim_op *op = op_of(choice.item);
  ran_host_function = op->kind == SIM_OP_HOST;
  if (needs_thread(op)) grant(choice.item);
  else sim_run_item(choice.item);
  sim.stepping = false;
  sim_changed();
  return true;
}

void sim_step_some(void) {
  for (unsigned steps = (unsigned)(sim_hash(sim.calls, 0, 4) % 4); steps && !sim.stepping; steps--)
    if (!sim_step()) return;
}

/* A program may wait elsewhere than in the driver, for a host function's sake. When it has made no call
 * for a while, everything that can run does, up to and with a host function. */
static void *tick(void *unused) {
  (void)unused;
  sim_guard_thread();
  unsigned long seen = 0;
  sim_lock();
  for (;;) {
    unsigned milliseconds = sim.stepped && sim.tick_ms ? sim.tick_ms : 100;
    sim_unlock();
    usleep(milliseconds * 1000);
    sim_lock();
    bool quiet = sim.calls == seen && !sim.stepping && !sim.waiters;
    seen = sim.calls;
    ran_host_function = false;
    while (sim.stepped && sim.tick_ms && quiet && sim.calls == seen && !ran_host_function && !sim.stepping && sim_step()) continue;
  }
  return NULL;
}

void sim_start_tick(void) {
  static bool started;
  if (!sim.stepped || !sim.tick_ms || __atomic_exchange_n(&started, true, __ATOMIC_ACQ_REL)) return;
  sim_start_thread(tick, NULL);
}
