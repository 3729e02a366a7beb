/* Captures: streams whose operations become nodes of a graph and do not run; and what they forbid
 * elsewhere. A call that a capture forbids is not only refused, it ends the capture: so real drivers
 * do (probed on an H100), and a second try comes too late. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static __thread unsigned thread_mode = SIM_CAPTURE_GLOBAL;
static __thread char thread_mark; /* its address names the thread */

static int invalidate(struct sim_capture *capture, int code) {
  capture->invalidated = true;
  return code;
}

/* What a stream's next node, or an event, comes behind. */
static void set_after(struct sim_node ***after, int *count, struct sim_node *const *nodes, int nodes_count) {
  struct sim_node **copied = malloc(((size_t)nodes_count + 1) * sizeof *copied);
  if (nodes_count) memcpy(copied, nodes, (size_t)nodes_count * sizeof *copied);
  free(*after);
  *after = copied;
  *count = nodes_count;
}

static void leave(struct sim_capture *capture) {
  for (struct sim_stream *stream = sim.streams; stream; stream = stream->next)
    if (stream->capture == capture) stream->capture = NULL;
  struct sim_capture **link = &sim.captures;
  while (*link != capture) link = &(*link)->next;
  *link = capture->next;
  capture->origin = NULL;
}

int sim_capture_begin(struct sim_stream *stream, unsigned mode) {
  if (mode > SIM_CAPTURE_RELAXED) return SIM_INVALID_VALUE;
  if (stream->internal && !stream->blocking) return SIM_CAPTURE_UNSUPPORTED; /* the legacy default one */
  struct sim_graph *graph;
  sim_graph_create(&graph, stream->device);
  sim_lock();
  bool captures = stream->capture != NULL;
  if (!captures) {
    struct sim_capture *capture = calloc(1, sizeof *capture); /* never freed: events know it */
    *capture = (struct sim_capture){stream, graph, mode, &thread_mark, false, sim.captures};
    sim.captures = stream->capture = capture;
    set_after(&stream->after, &stream->after_count, NULL, 0);
  }
  sim_unlock();
  if (captures) sim_graph_destroy(graph);
  return captures ? SIM_ILLEGAL_STATE : SIM_OK;
}

int sim_capture_end(struct sim_graph **out, struct sim_stream *stream) {
  *out = NULL;
  sim_lock();
  struct sim_capture *capture = stream->capture;
  int status = !capture ? SIM_ILLEGAL_STATE : capture->origin != stream ? invalidate(capture, SIM_CAPTURE_UNMATCHED) : SIM_OK;
  if (!status && capture->mode != SIM_CAPTURE_RELAXED && capture->thread != &thread_mark)
    status = invalidate(capture, SIM_CAPTURE_WRONG_THREAD);
  if (status) {
    sim_unlock();
    return status;
  }
  status = capture->invalidated ? SIM_CAPTURE_INVALIDATED : SIM_OK;
  for (struct sim_stream *other = sim.streams; other && !status; other = other->next)
    if (other->capture == capture && other != stream && !other->joined) status = SIM_CAPTURE_UNJOINED;
  leave(capture);
  sim_unlock();
  if (status) sim_graph_destroy(capture->graph);
  else *out = capture->graph;
  return status;
}

int sim_capture_exchange(unsigned *mode) {
  if (*mode > SIM_CAPTURE_RELAXED) return SIM_INVALID_VALUE;
  unsigned before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return SIM_OK;
}

/* The legacy default stream waits for every blocking one, which a captured one cannot be waited for. */
static struct sim_capture *implied(const struct sim_stream *legacy) {
  for (struct sim_stream *stream = sim.streams; stream; stream = stream->next)
    if (stream->capture && stream->blocking && stream->device == legacy->device) return stream->capture;
  return NULL;
}

int sim_capture_status(unsigned *status, struct sim_stream *stream) {
  sim_lock();
  bool refused = stream == sim.devices[stream->device].legacy && implied(stream);
  *status = !stream->capture ? 0 : stream->capture->invalidated ? 2 : 1;
  sim_unlock();
  return refused ? SIM_CAPTURE_IMPLICIT : SIM_OK;
}

int sim_capture_unsafe(void) {
  int status = SIM_OK;
  if (thread_mode == SIM_CAPTURE_RELAXED) return status;
  for (struct sim_capture *capture = sim.captures; capture; capture = capture->next) {
    bool mine = capture->mode != SIM_CAPTURE_RELAXED && capture->thread == &thread_mark;
    bool all = capture->mode == SIM_CAPTURE_GLOBAL && thread_mode == SIM_CAPTURE_GLOBAL;
    if (mine || all) status = invalidate(capture, SIM_CAPTURE_UNSUPPORTED);
  }
  return status;
}

int sim_capture_asked(struct sim_stream *stream) {
  if (stream->capture) return invalidate(stream->capture, SIM_CAPTURE_UNSUPPORTED);
  struct sim_capture *capture = stream == sim.devices[stream->device].legacy ? implied(stream) : NULL;
  return capture ? invalidate(capture, SIM_CAPTURE_IMPLICIT) : SIM_OK;
}

int sim_capture_device(int device) {
  int status = SIM_OK;
  for (struct sim_capture *capture = sim.captures; capture; capture = capture->next)
    if (capture->origin->device == device) status = invalidate(capture, SIM_CAPTURE_UNSUPPORTED);
  return status;
}

int sim_capture_op(struct sim_stream *stream, const struct sim_op *op) {
  struct sim_capture *capture = stream->capture;
  int status = capture->invalidated ? SIM_CAPTURE_INVALIDATED : SIM_OK;
  switch (op->kind) {
    case SIM_OP_EMPTY: case SIM_OP_COPY: case SIM_OP_SET: case SIM_OP_HOST: case SIM_OP_KERNEL: break;
    default: status = status ? status : SIM_NOT_SUPPORTED; /* a driver has nodes for these, too */
  }
  if (status) return status;
  struct sim_node *node;
  sim_op_hold(op); /* what is not taken stays the caller's */
  status = sim_graph_add_locked(&node, capture->graph, stream->after, (size_t)stream->after_count, op);
  if (status) return invalidate(capture, status);
  sim_op_release(op);
  set_after(&stream->after, &stream->after_count, &node, 1);
  stream->joined = false;
  return SIM_OK;
}

int sim_capture_record(struct sim_event *event, struct sim_stream *stream) {
  if (stream->capture->invalidated) return SIM_CAPTURE_INVALIDATED;
  event->capture = stream->capture;
  event->captured = stream;
  set_after(&event->after, &event->after_count, stream->after, stream->after_count);
  return SIM_OK;
}

int sim_capture_wait(struct sim_stream *stream, struct sim_event *event) {
  struct sim_capture *capture = event->capture;
  if (!capture) return invalidate(stream->capture, SIM_CAPTURE_ISOLATION);
  if (!capture->origin || capture->invalidated) return SIM_INVALID_VALUE;
  if (stream->capture && stream->capture != capture) {
    stream->capture->invalidated = true;
    return invalidate(capture, SIM_CAPTURE_MERGE);
  }
  if (!stream->capture) { /* the stream is drawn into the capture */
    stream->capture = capture;
    stream->after_count = 0;
    stream->joined = false;
  }
  int count = stream->after_count;
  struct sim_node **after = malloc(((size_t)(count + event->after_count) + 1) * sizeof *after);
  if (count) memcpy(after, stream->after, (size_t)count * sizeof *after);
  for (int i = 0; i < event->after_count; i++) {
    bool known = false;
    for (int j = 0; j < stream->after_count; j++) known |= stream->after[j] == event->after[i];
    if (!known) after[count++] = event->after[i];
  }
  set_after(&stream->after, &stream->after_count, after, count);
  free(after);
  if (stream == capture->origin) event->captured->joined = true;
  return SIM_OK;
}

int sim_capture_event(struct sim_event *event) {
  if (!event->capture) return sim_capture_unsafe();
  if (event->capture->origin) event->capture->invalidated = true;
  return SIM_CAPTURED_EVENT;
}

void sim_capture_drop(struct sim_stream *stream) {
  if (stream->capture && stream->capture->origin == stream) leave(stream->capture);
  stream->capture = NULL;
}
