/* Copies, fills and values in memory: the drivers' checks at the call, and who has to wait. */
#include "sim.h"

static int check(const void *address, size_t size, bool device_memory) {
  const struct sim_block *block = sim_find(address);
  if (!block) return device_memory ? SIM_INVALID_VALUE : SIM_OK;
  if (device_memory && block->memory == SIM_REGISTERED) return SIM_OK;
  return sim_within(address, size) ? SIM_OK : SIM_INVALID_VALUE;
}

int sim_check_copy(const struct sim_copy *copy, bool target_device, bool source_device) {
  if (!copy->target || !copy->source) return SIM_INVALID_VALUE;
  int status = check(copy->target, copy->size, target_device);
  return status ? status : check(copy->source, copy->size, source_device);
}

int sim_check_set(const struct sim_set *set) {
  if (set->element != 1 && set->element != 2 && set->element != 4) return SIM_INVALID_VALUE;
  if ((uintptr_t)set->target % set->element) return SIM_INVALID_VALUE;
  return set->count ? check(set->target, set->count * set->element, true) : SIM_OK;
}

static bool is_host(const void *address) {
  const struct sim_block *block = sim_find(address);
  return block && (block->memory == SIM_HOST || block->memory == SIM_REGISTERED);
}

bool sim_is_between_hosts(const struct sim_copy *copy) { return is_host(copy->target) && is_host(copy->source); }

int sim_copy(struct sim_stream *stream, const struct sim_copy *copy, bool target_device, bool source_device, bool synchronous) {
  if (!copy->size) return SIM_OK;
  sim_lock();
  struct sim_point point;
  int status = sim_check_copy(copy, target_device, source_device);
  /* Pageable memory goes through the driver's staging, and the caller waits for it; so it does for what
   * has no device on either side. */
  bool blocks = synchronous || sim_is_pageable(copy->target) || sim_is_pageable(copy->source) ||
                sim_is_between_hosts(copy);
  if (stream->capture) blocks = false; /* nothing runs */
  if (!status) status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_COPY, .copy = *copy}, &point);
  sim_unlock();
  if (!status && blocks) status = sim_point_synchronize(point);
  return status;
}

int sim_set(struct sim_stream *stream, const struct sim_set *set) {
  sim_lock();
  int status = sim_check_set(set);
  if (!status && set->count) status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_SET, .set = *set}, NULL);
  sim_unlock();
  return status;
}

int sim_value_op(struct sim_stream *stream, enum sim_op_kind kind, const struct sim_value *value) {
  sim_lock();
  int status = (uintptr_t)value->address % value->width || value->condition > 3 ? SIM_INVALID_VALUE : check(value->address, value->width, true);
  struct sim_point point;
  if (!status) status = sim_enqueue_locked(stream, &(struct sim_op){.kind = kind, .value = *value}, &point);
  if (!status && !stream->capture) sim_order_value(stream, kind, value, point);
  sim_unlock();
  return status;
}
