/* Which places of streams come before which, by the waits that were enqueued; and whether what uses
 * stream-ordered memory comes behind its allocation and before its free. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void add_point(struct sim_order *order, struct sim_reach point) {
  int kept = 0;
  for (int i = 0; i < order->count; i++) {
    struct sim_reach known = order->points[i];
    if (known.stream == point.stream) {
      point.sequence = larger(known.sequence, point.sequence);
      point.by_events = larger(known.by_events, point.by_events);
    } else if (!known.stream->destroyed || !sim_done((struct sim_point){known.stream, known.sequence})) {
      order->points[kept++] = known;
    }
  }
  order->count = kept;
  if (order->count == order->capacity) {
    order->capacity = order->capacity ? 2 * order->capacity : 4;
    order->points = realloc(order->points, (size_t)order->capacity * sizeof *order->points);
  }
  order->points[order->count++] = point;
}

static void wait_for(struct sim_stream *stream, struct sim_point point, const struct sim_order *before, bool by_event) {
  for (int i = 0; before && i < before->count; i++) {
    struct sim_reach reach = before->points[i];
    if (!by_event) reach.by_events = 0;
    if (reach.stream != stream) add_point(&stream->before, reach);
  }
  if (point.stream && point.stream != stream)
    add_point(&stream->before, (struct sim_reach){point.stream, point.sequence, by_event ? point.sequence : 0});
}

/* A stream waits for a place, and so for all that came before that. */
void sim_order_wait(struct sim_stream *stream, struct sim_point point, const struct sim_order *before) {
  wait_for(stream, point, before, true);
}

/* A number in memory orders streams as well, but no driver knows of it. What writes the number has to be
 * enqueued before what waits for it: streams may share a channel of the device. Those of 32 bits are
 * the tests' own, which write some from the host. */
void sim_order_value(struct sim_stream *stream, enum sim_op_kind kind, const struct sim_value *value, struct sim_point point) {
  struct sim_written *written = sim.written;
  while (written && written->address != value->address) written = written->next;
  if (kind == SIM_OP_WRITE_VALUE) {
    if (!written) {
      written = calloc(1, sizeof *written);
      *written = (struct sim_written){.address = value->address, .next = sim.written};
      sim.written = written;
    }
    written->point = point;
    written->value = value->value;
    sim_order_copy(&written->before, &stream->before);
  } else if (written && written->value >= value->value) {
    wait_for(stream, written->point, &written->before, false);
  } else if (value->width == 8 && sim_strict_about(&sim.devices[stream->device])) {
    sim_abort(stream, "stream %u is to wait for the number %llu, and nothing that was enqueued writes it (I1)", stream->ordinal,
              (unsigned long long)value->value);
  }
}

void sim_order_copy(struct sim_order *target, const struct sim_order *source) {
  if (target->capacity < source->count) {
    target->capacity = source->count;
    target->points = realloc(target->points, (size_t)target->capacity * sizeof *target->points);
  }
  target->count = source->count;
  if (source->count) memcpy(target->points, source->points, (size_t)source->count * sizeof *source->points);
}

void sim_order_forget(struct sim_order *order) {
  free(order->points);
  *order = (struct sim_order){0};
}

static struct sim_reach reach(const struct sim_stream *other, const struct sim_stream *stream) {
  for (int i = 0; i < stream->before.count; i++)
    if (stream->before.points[i].stream == other) return stream->before.points[i];
  return (struct sim_reach){0};
}

static bool is_before(struct sim_point point, const struct sim_stream *stream) {
  return !point.stream || point.stream == stream || reach(point.stream, stream).sequence >= point.sequence;
}

bool sim_is_known_before(struct sim_point point, const struct sim_stream *stream) {
  return !point.stream || point.stream == stream || reach(point.stream, stream).by_events >= point.sequence;
}

/* Calls `look` with each pointer that an operation has; a kernel's are its arguments of that size. */
static void each_pointer(const struct sim_op *op, void (*look)(void *, const void *), void *context) {
  if (op->is_off) return;
  switch (op->kind) {
    case SIM_OP_COPY: look(context, op->copy.target), look(context, op->copy.source); break;
    case SIM_OP_SET: look(context, op->set.target); break;
    case SIM_OP_WRITE_VALUE:
    case SIM_OP_WAIT_VALUE: look(context, op->value.address); break;
    case SIM_OP_FREE: look(context, op->block->base); break;
    case SIM_OP_KERNEL: sim_launch_pointers(op->launch, look, context); break;
    case SIM_OP_GRAPH:
      for (int i = 0; i < op->run->plan->count; i++) each_pointer(&op->run->plan->ops[i], look, context);
      break;
    default: break;
  }
}

struct use {
  struct sim_stream *stream;
  const struct sim_op *op;
  const struct sim_block *freed;
};

static void look_at_life(void *context, const void *pointer) {
  struct use *use = context;
  const struct sim_block *block = sim_find(pointer);
  if (!block || !block->pool) return;
  if (block->freeing)
    sim_abort(use->stream, "a %s on stream %u uses allocation %u, which is freed already (M3)", sim_op_name(use->op->kind),
              use->stream->ordinal, block->ordinal);
  if (!sim_done(block->born) && !is_before(block->born, use->stream))
    sim_abort(use->stream, "a %s on stream %u uses allocation %u, and nothing orders it behind that on stream %u (M3)",
              sim_op_name(use->op->kind), use->stream->ordinal, block->ordinal, block->born.stream->ordinal);
}

void sim_check_use(struct sim_stream *stream, const struct sim_op *op) {
  if (!sim.pooled || !sim_strict_about(&sim.devices[stream->device])) return;
  each_pointer(op, look_at_life, &(struct use){stream, op, NULL});
}

static void look_for_freed(void *context, const void *pointer) {
  const struct use *use = context;
  if (sim_find(pointer) == use->freed)
    sim_abort(use->stream, "allocation %u is freed, and nothing orders a %s on stream %u before that (M3)", use->freed->ordinal,
              sim_op_name(use->op->kind), use->stream->ordinal);
}

void sim_check_free(struct sim_stream *stream, const struct sim_block *block) {
  if (!sim_strict_about(&sim.devices[stream->device])) return;
  for (struct sim_stream *other = sim.streams; other; other = other->next) {
    uint64_t last = other == stream ? UINT64_MAX : reach(other, stream).sequence;
    for (const struct sim_queued *queued = other->head; queued; queued = queued->next)
      if (queued->sequence > last) each_pointer(&queued->op, look_for_freed, &(struct use){other, &queued->op, block});
  }
}
