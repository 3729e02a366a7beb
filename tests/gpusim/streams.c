/* Streams: a queue and a thread each. In free mode the thread runs what is at its head as soon as it
 * is ready; in stepped mode it runs what the scheduler grants it. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define SPINS 20

static int parked; /* streams whose thread sleeps on a head that is not ready */

void sim_start_thread(void *(*body)(void *), void *argument) {
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  if (pthread_create(&thread, &attributes, body, argument)) sim_abort(NULL, "no thread could be started");
  pthread_attr_destroy(&attributes);
}

static struct timespec in_microseconds(unsigned long microseconds) {
  uint64_t at = sim_now() + microseconds * 1000u;
  return (struct timespec){.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)};
}

bool sim_done(struct sim_point point) { return !point.stream || point.stream->completed >= point.sequence; }

void sim_changed(void) {
  if (sim.waiters) pthread_cond_broadcast(&sim.changed);
  if (!parked || sim.stepped) return;
  for (struct sim_stream *stream = sim.streams; stream; stream = stream->next)
    if (stream->parked && sim_head_ready(stream)) pthread_cond_signal(&stream->wake);
}

static void tell_stuck(int device) {
  static char text[1 << 14];
  text[0] = 0;
  sim_history(NULL, 60, text, sizeof text);
  fprintf(stderr, "gpusim: a call has waited for %u seconds (device %d, %s, seed %llu); the last of all streams:\n%s", sim.stuck_s, device,
          sim.stepped ? "stepped" : "free", (unsigned long long)sim.seed, text);
}

/* A sleep and a wake-up cost more than most operations. */
static bool spin(bool (*condition)(void *), void *argument) {
  for (int turns = 0; turns < SPINS; turns++) {
    sim_unlock();
    sched_yield();
    sim_lock();
    if (condition(argument)) return true;
  }
  return false;
}

int sim_wait(bool (*condition)(void *), void *argument, int device) {
  uint64_t begun = 0;
  for (;;) {
    if (device >= 0 && sim.devices[device].error) return sim.devices[device].error;
    if (condition(argument)) return SIM_OK;
    if (sim.stepped && !sim.stepping && sim_step()) continue;
    if (!begun && !sim.stepped && spin(condition, argument)) continue;
    struct timespec until = in_microseconds(sim.stepped ? 1000 : 1000000);
    sim.waiters++;
    pthread_cond_timedwait(&sim.changed, &sim.lock, &until);
    sim.waiters--;
    if (!begun) begun = sim_now();
    if (sim.stuck_s && sim_now() - begun > sim.stuck_s * 1000000000ull) {
      tell_stuck(device);
      begun = UINT64_MAX / 2;
    }
  }
}

/* Kernels in a queue keep their modules from being unloaded. */
static void count_kernels(const struct sim_op *op, int by) {
  if (op->kind == SIM_OP_KERNEL) op->launch->kernel->module->pending += by;
  if (op->kind != SIM_OP_GRAPH) return;
  for (int i = 0; i < op->run->plan->count; i++)
    if (op->run->plan->ops[i].kind == SIM_OP_KERNEL) op->run->plan->ops[i].launch->kernel->module->pending += by;
}

void sim_complete_head(struct sim_stream *stream) {
  struct sim_queued *done = stream->head;
  if (stream->active) sim_log(stream, done->sequence, -1, '.', &done->op);
  stream->head = done->next;
  if (!stream->head) stream->tail = NULL;
  stream->completed = done->sequence;
  stream->active = false;
  count_kernels(&done->op, -1);
  if (done->op.kind == SIM_OP_FREE) sim_pool_completed(&done->op);
  sim_op_release(&done->op);
  free(done);
  sim_changed();
}

static void jitter(const struct sim_stream *stream) {
  unsigned microseconds = (unsigned)(sim_hash(stream->ordinal, stream->completed, 5) % (sim.jitter_us + 1));
  sim_unlock();
  if (microseconds) usleep(microseconds);
  sim_lock();
}

static void *work(void *argument) {
  struct sim_stream *stream = argument;
  int spins = 0;
  sim_guard_thread();
  sim_lock();
  for (;;) {
    if (stream->granted) {
      sim_run_item(stream->grant);
      stream->granted = false;
      sim_changed();
    } else if (!sim.stepped && stream->head && !stream->active && sim_head_ready(stream)) {
      stream->active = true;
      if (sim.jitter_us) jitter(stream);
      if (stream->head->op.kind == SIM_OP_GRAPH) sim_run_all(stream->head->op.run);
      else sim_run_item((struct sim_item){stream, NULL, -1});
    } else if (stream->destroyed && !stream->head) {
      break;
    } else if (stream->head && !stream->active && !sim.stepped) {
      stream->parked = true;
      parked++;
      if (stream->head->op.kind == SIM_OP_WAIT_VALUE) { /* nobody says when memory changes */
        sim_unlock();
        usleep(50);
        sim_lock();
      } else {
        pthread_cond_wait(&stream->wake, &sim.lock);
      }
      parked--;
      stream->parked = false;
    } else if (!sim.stepped && spins < SPINS) {
      spins++;
      sim_unlock();
      sched_yield();
      sim_lock();
      continue;
    } else {
      stream->asleep = true;
      pthread_cond_wait(&stream->wake, &sim.lock);
      stream->asleep = false;
    }
    spins = 0;
  }
  stream->started = false;
  struct sim_stream **link = &sim.streams;
  while (*link && *link != stream) link = &(*link)->next;
  if (*link) *link = stream->next;
  sim_unlock();
  return NULL;
}

static struct sim_stream *stream_new(int device, bool blocking) {
  struct sim_stream *stream = calloc(1, sizeof *stream);
  stream->device = device;
  stream->blocking = blocking;
  stream->ordinal = ++sim.ordinals[SIM_STREAM];
  pthread_cond_init(&stream->wake, NULL);
  stream->next = sim.streams;
  sim.streams = stream;
  sim_handle_add(stream, SIM_STREAM);
  return stream;
}

int sim_stream_create(struct sim_stream **out, int device, bool blocking) {
  sim_lock();
  *out = stream_new(device, blocking);
  sim_unlock();
  return SIM_OK;
}

struct sim_stream *sim_default_stream(int device, bool per_thread) {
  sim_lock();
  struct sim_stream **slot = per_thread ? &sim.devices[device].per_thread : &sim.devices[device].legacy;
  if (!*slot) {
    *slot = stream_new(device, per_thread);
    (*slot)->internal = true;
  }
  struct sim_stream *stream = *slot;
  sim_unlock();
  return stream;
}

/* Work that is still queued runs nevertheless; the thread ends behind it. */
int sim_stream_destroy(struct sim_stream *stream) {
  if (stream->internal) return SIM_INVALID_HANDLE;
  sim_lock();
  stream->destroyed = true;
  sim_order_forget(&stream->before);
  sim_capture_drop(stream);
  sim_handle_kill(stream);
  if (stream->started) {
    pthread_cond_signal(&stream->wake);
  } else if (!stream->head) {
    struct sim_stream **link = &sim.streams;
    while (*link && *link != stream) link = &(*link)->next;
    if (*link) *link = stream->next;
  }
  sim_unlock();
  return SIM_OK;
}

static void push(struct sim_stream *stream, const struct sim_op *op) {
  struct sim_queued *queued = malloc(sizeof *queued);
  *queued = (struct sim_queued){NULL, ++stream->enqueued, *op};
  bool first = !stream->head;
  if (stream->tail) stream->tail->next = queued;
  else stream->head = queued;
  stream->tail = queued;
  if (op->kind == SIM_OP_GRAPH) op->run->stream = stream, op->run->sequence = queued->sequence;
  count_kernels(op, 1);
  sim_log(stream, queued->sequence, -1, '+', op);
  if (!stream->started) {
    stream->started = true;
    sim_start_thread(work, stream);
  } else if (first && !sim.stepped && stream->asleep) {
    pthread_cond_signal(&stream->wake);
  }
  if (sim.stepped) sim_changed();
}

static void push_wait(struct sim_stream *stream, struct sim_stream *other) {
  if (other == stream || other->completed == other->enqueued) return;
  sim_order_wait(stream, (struct sim_point){other, other->enqueued}, &other->before);
  push(stream, &(struct sim_op){.kind = SIM_OP_WAIT, .wait = {other, other->enqueued}});
}

/* The legacy default stream waits for all blocking streams of its device, and they for it. */
static void order_legacy(struct sim_stream *stream) {
  struct sim_stream *legacy = sim.devices[stream->device].legacy;
  if (!legacy) return;
  if (stream != legacy) {
    if (stream->blocking) push_wait(stream, legacy);
    return;
  }
  for (struct sim_stream *other = sim.streams; other; other = other->next)
    if (other->device == stream->device && other->blocking) push_wait(stream, other);
}

static bool has_room(void *argument) {
  const struct sim_stream *stream = argument;
  return stream->enqueued - stream->completed < sim.launch_limit;
}

int sim_enqueue_locked(struct sim_stream *stream, const struct sim_op *op, struct sim_point *out) {
  if (sim.devices[stream->device].error) return sim.devices[stream->device].error;
  if (stream->capture) {
    if (out) *out = (struct sim_point){NULL, 0};
    return sim_capture_op(stream, op);
  }
  if (stream == sim.devices[stream->device].legacy) {
    int captured = sim_capture_asked(stream);
    if (captured) return captured;
  }
  if (!has_room(stream)) {
    sim.blocked++;
    if (sim.abort_on_blocked) sim_abort(stream, "a launch waits for room on a stream that has %u operations (Q1)", sim.launch_limit);
    int status = sim_wait(has_room, stream, stream->device);
    if (status) return status;
  }
  order_legacy(stream);
  sim_check_use(stream, op);
  push(stream, op);
  if (out) *out = (struct sim_point){stream, stream->enqueued};
  return SIM_OK;
}

int sim_enqueue(struct sim_stream *stream, const struct sim_op *op, struct sim_point *out) {
  sim_lock();
  int status = sim_enqueue_locked(stream, op, out);
  sim_unlock();
  return status;
}

int sim_stream_query(struct sim_stream *stream) {
  sim_lock();
  if (sim.stepped) sim_step_some();
  int status = sim.devices[stream->device].error;
  if (!status) status = sim_capture_asked(stream);
  if (!status && stream->completed < stream->enqueued) status = SIM_NOT_READY;
  sim_unlock();
  return status;
}

static bool point_done(void *argument) { return sim_done(*(struct sim_point *)argument); }

int sim_point_synchronize(struct sim_point point) {
  sim_lock();
  int status = sim_wait(point_done, &point, point.stream->device);
  sim_unlock();
  return status;
}

int sim_stream_synchronize(struct sim_stream *stream) {
  sim_lock();
  struct sim_point point = {stream, stream->enqueued};
  int status = sim.devices[stream->device].error;
  if (!status) status = sim_capture_asked(stream);
  if (!status) status = sim_wait(point_done, &point, stream->device);
  if (!status) sim_pools_waited(stream->device, point, &stream->before);
  sim_unlock();
  return status;
}

/* Waits for what is enqueued now, on all streams of the device. */
int sim_device_synchronize_locked(int device) {
  int status = sim.devices[device].error, count = 0;
  for (struct sim_stream *stream = sim.streams; stream; stream = stream->next)
    count += stream->device == device && stream->completed < stream->enqueued;
  if (status || !count) return status;
  struct sim_point *points = malloc((size_t)count * sizeof *points);
  count = 0;
  for (struct sim_stream *stream = sim.streams; stream; stream = stream->next)
    if (stream->device == device && stream->completed < stream->enqueued) points[count++] = (struct sim_point){stream, stream->enqueued};
  for (int i = 0; i < count && !status; i++) status = sim_wait(point_done, &points[i], device);
  free(points);
  return status;
}

int sim_device_synchronize(int device) {
  sim_lock();
  int status = sim.devices[device].error;
  if (!status) status = sim_capture_device(device);
  if (!status) status = sim_device_synchronize_locked(device);
  if (!status) sim_pools_waited(device, (struct sim_point){NULL, 0}, NULL);
  sim_unlock();
  return status;
}
