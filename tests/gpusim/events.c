/* Events: one never recorded is complete, a record overwrites, a wait captures the last record. */
#include <stdlib.h>

#include "sim.h"

int sim_event_create(struct sim_event **out, int device, bool timing) {
  struct sim_event *event = calloc(1, sizeof *event);
  event->device = device;
  event->timing = timing;
  sim_lock();
  event->ordinal = ++sim.ordinals[SIM_EVENT];
  sim_unlock();
  sim_handle_add(event, SIM_EVENT);
  *out = event;
  return SIM_OK;
}

int sim_event_destroy(struct sim_event *event) {
  sim_handle_kill(event);
  return SIM_OK;
}

int sim_event_record(struct sim_event *event, struct sim_stream *stream) {
  if (event->device != stream->device) return SIM_INVALID_HANDLE;
  sim_lock();
  if (stream->capture) {
    int captured = sim_capture_record(event, stream);
    sim_unlock();
    return captured;
  }
  struct sim_op op = {.kind = SIM_OP_RECORD, .record = {event, event->record + 1}};
  struct sim_point point;
  int status = sim_enqueue_locked(stream, &op, &point);
  if (!status) {
    event->record = op.record.record;
    event->recorded = true;
    event->capture = NULL;
    event->point = point;
    sim_order_copy(&event->before, &stream->before);
  }
  sim_unlock();
  return status;
}

int sim_event_wait(struct sim_stream *stream, struct sim_event *event) {
  sim_lock();
  if (stream->capture || event->capture) {
    int captured = sim_capture_wait(stream, event);
    sim_unlock();
    return captured;
  }
  if (!event->recorded) {
    if (sim_strict_about(&sim.devices[stream->device]))
      sim_abort(stream, "stream %u is to wait for event %u, which was never recorded (I1)", stream->ordinal, event->ordinal);
    sim_unlock();
    return SIM_OK;
  }
  struct sim_point point = event->point;
  int status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_WAIT, .wait = point}, NULL);
  if (!status) sim_order_wait(stream, point, &event->before);
  sim_unlock();
  return status;
}

int sim_event_query(struct sim_event *event) {
  sim_lock();
  if (sim.stepped) sim_step_some();
  int status = sim.devices[event->device].error;
  if (!status) status = sim_capture_event(event);
  if (!status && event->recorded && !sim_done(event->point)) status = SIM_NOT_READY;
  sim_unlock();
  return status;
}

int sim_event_synchronize(struct sim_event *event) {
  sim_lock();
  bool recorded = event->recorded;
  struct sim_point point = event->point;
  int status = sim.devices[event->device].error;
  if (!status) status = sim_capture_event(event);
  struct sim_order before = {0};
  sim_order_copy(&before, &event->before);
  sim_unlock();
  if (recorded && !status) status = sim_point_synchronize(point);
  sim_lock();
  if (recorded && !status) sim_pools_waited(event->device, point, &before);
  sim_unlock();
  sim_order_forget(&before);
  return status;
}

int sim_event_elapsed(float *milliseconds, struct sim_event *start, struct sim_event *end) {
  sim_lock();
  int status = sim.devices[start->device].error;
  if (!status && (!start->timing || !end->timing || !start->recorded || !end->recorded)) status = SIM_INVALID_HANDLE;
  if (!status && (!sim_done(start->point) || !sim_done(end->point))) status = SIM_NOT_READY;
  if (!status) *milliseconds = (float)(((double)end->time - (double)start->time) / 1e6);
  sim_unlock();
  return status;
}
