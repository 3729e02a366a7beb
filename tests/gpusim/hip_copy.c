/* The HIP face: copies and fills. A copy has a kind, which must not contradict its addresses. */
#include "hip.h"

#include "both_copies.h"

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
  if (status || !size) END(status);
  const struct sim_copy line = hip_line(target, source, size);
  END(sim_copy(stream, &line, known[0], known[1], synchronous));
}

API hipMemcpy(void *target, const void *source, size_t size, int kind) {
  CALL(hipMemcpy, CONTEXT);
  return copy(NULL, target, source, size, kind, true);
}
API hipMemcpyAsync(void *target, const void *source, size_t size, int kind, struct sim_stream *stream) {
  CALL(hipMemcpyAsync, CONTEXT);
  return copy(stream, target, source, size, kind, false);
}
API hipMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t size, struct sim_stream *stream) {
  CALL(hipMemcpyPeerAsync, CONTEXT);
  DEVICE(to);
  DEVICE(from);
  if (!are_on(target, to, source, from, size)) END(SIM_INVALID_VALUE);
  return copy(stream, target, source, size, HIP_DEVICE_TO_DEVICE, false);
}

API hipMemset(void *target, int value, size_t size) {
  CALL(hipMemset, CONTEXT);
  return set(NULL, target, (unsigned char)value, 1, size);
}
