/* Which places of streams come before which, by the waits that were enqueued; and whether what uses
 * stream-ordered memory comes behind its allocation and before its free. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static void add_point(struct sim_order *order, struct sim_point point) {
  int kept = 0;
  for (int i = 0; i < order->count; i++) {
    struct sim_point known = order->points[i];
    if (known.stream == point.stream) point.sequence = known.sequence > point.sequence ? known.sequence : point.sequence;
    else if (!known.stream->destroyed || !sim_done(known)) order->points[kept++] = known;
  }
  order->count = kept;
  if (order->count == order->capacity) {
    order->capacity = order->capacity ? 2 * order->capacity : 4;
    order->points = realloc(order->points, (size_t)order->capacity * sizeof *order->points);
  }
  order->points[order->count++] = point;
}

/* A stream waits for a place, and so for all that came before that. */
void sim_order_wait(struct sim_stream *stream, struct sim_point point, const struct sim_order *before) {
  for (int i = 0; before && i < before->count; i++)
    if (before->points[i].stream != stream) add_point(&stream->before, before->points[i]);
  if (point.stream && point.stream != stream) add_point(&stream->before, point);
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

static uint64_t reach(const struct sim_stream *other, const struct sim_stream *stream) {
  for (int i = 0; i < stream->before.count; i++)
    if (stream->before.points[i].stream == other) return stream->before.points[i].sequence;
  return 0;
}

bool sim_is_before(struct sim_point point, const struct sim_stream *stream) {
  return !point.stream || point.stream == stream || reach(point.stream, stream) >= point.sequence;
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
  if (!sim_done(block->born) && !sim_is_before(block->born, use->stream))
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
    uint64_t last = other == stream ? UINT64_MAX : reach(other, stream);
    for (const struct sim_queued *queued = other->head; queued; queued = queued->next)
      if (queued->sequence > last) each_pointer(&queued->op, look_for_freed, &(struct use){other, &queued->op, block});
  }
}
