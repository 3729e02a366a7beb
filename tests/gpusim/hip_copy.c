/* The HIP face: copies and fills. A copy has a kind, which must not contradict its addresses. */
#include "hip.h"

/* `known` tells which of target and source has to be memory that the runtime knows. */
int hip_check_kind(int kind, bool known[2]) {
  if (kind < HIP_HOST_TO_HOST || kind > HIP_ANY_KIND) return HIP_INVALID_KIND;
  known[0] = kind == HIP_HOST_TO_DEVICE || kind == HIP_DEVICE_TO_DEVICE;
  known[1] = kind == HIP_DEVICE_TO_HOST || kind == HIP_DEVICE_TO_DEVICE;
  return SIM_OK;
}

struct sim_copy hip_line(void *target, const void *source, size_t size) {
  return (struct sim_copy){target, source, size};
}

static int copy(struct sim_stream *stream, void *target, const void *source, size_t size, int kind, bool synchronous) {
  bool known[2];
  STREAM(stream);
  int status = hip_check_kind(kind, known);
  if (status || !size) FAIL(status);
  const struct sim_copy line = hip_line(target, source, size);
  FAIL(sim_copy(stream, &line, known[0], known[1], synchronous));
}

API hipMemcpy(void *target, const void *source, size_t size, int kind) {
  CALL(hipMemcpy, CURRENT);
  return copy(NULL, target, source, size, kind, true);
}
API hipMemcpyAsync(void *target, const void *source, size_t size, int kind, struct sim_stream *stream) {
  CALL(hipMemcpyAsync, CURRENT);
  return copy(stream, target, source, size, kind, false);
}
API hipMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t size, struct sim_stream *stream) {
  CALL(hipMemcpyPeerAsync, CURRENT);
  DEVICE(to);
  DEVICE(from);
  sim_lock();
  const struct sim_block *a = sim_find(target), *b = sim_find(source);
  bool right = !size || (a && b && (a->memory != SIM_DEVICE || a->device == to) && (b->memory != SIM_DEVICE || b->device == from));
  sim_unlock();
  if (!right) FAIL(SIM_INVALID_VALUE);
  return copy(stream, target, source, size, HIP_DEVICE_TO_DEVICE, false);
}

static int set(struct sim_stream *stream, void *target, uint32_t value, unsigned element, size_t count) {
  STREAM(stream);
  const struct sim_set fill = {target, value, element, count};
  FAIL(sim_set(stream, &fill));
}

API hipMemset(void *target, int value, size_t size) {
  CALL(hipMemset, CURRENT);
  return set(NULL, target, (unsigned char)value, 1, size);
}
API hipMemsetD8Async(void *target, unsigned char value, size_t count, struct sim_stream *stream) {
  CALL(hipMemsetD8Async, CURRENT);
  return set(stream, target, value, 1, count);
}
API hipMemsetD16Async(void *target, unsigned short value, size_t count, struct sim_stream *stream) {
  CALL(hipMemsetD16Async, CURRENT);
  return set(stream, target, value, 2, count);
}
API hipMemsetD32Async(void *target, int value, size_t count, struct sim_stream *stream) {
  CALL(hipMemsetD32Async, CURRENT);
  return set(stream, target, (uint32_t)value, 4, count);
}
