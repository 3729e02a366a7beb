/* The HIP face: streams, events, host functions, values in memory. */
#include "hip.h"

struct sim_stream *hip_stream(struct sim_stream *handle) {
  uintptr_t number = (uintptr_t)handle;
  if (number <= 2) return sim_default_stream(hip_device, number == 2);
  return sim_handle_alive(handle, SIM_STREAM) ? handle : NULL;
}

#include "both_streams.h"

API hipStreamCreateWithFlags(struct sim_stream **stream, unsigned flags) {
  CALL(hipStreamCreateWithFlags, CONTEXT);
  if (!stream || flags > 1) END(SIM_INVALID_VALUE);
  END(sim_stream_create(stream, hip_device, !(flags & 1)));
}

API hipStreamCreate(struct sim_stream **stream) {
  CALL(hipStreamCreate, CONTEXT);
  GIVEN(stream);
  END(sim_stream_create(stream, hip_device, true));
}

API hipStreamGetDevice(struct sim_stream *stream, int *device) {
  CALL(hipStreamGetDevice, CONTEXT);
  STREAM(stream);
  GIVEN(device);
  *device = stream->device;
  return SIM_OK;
}

/* Events */

enum { EVENT_FLAGS = 7, EVENT_NO_TIMING = 2 };

API hipEventCreateWithFlags(struct sim_event **event, unsigned flags) {
  CALL(hipEventCreateWithFlags, CONTEXT);
  if (!event || (flags & 0x1fffffffu) > EVENT_FLAGS) END(SIM_INVALID_VALUE);
  END(sim_event_create(event, hip_device, !(flags & EVENT_NO_TIMING)));
}

/* Host functions and values in memory */

static int value_op(struct sim_stream *stream, enum sim_op_kind kind, void *address, uint64_t value, unsigned width,
                    unsigned condition) {
  STREAM(stream);
  const struct sim_value wanted = {address, value, width, condition};
  END(sim_value_op(stream, kind, &wanted));
}

API hipStreamWriteValue64(struct sim_stream *stream, void *address, uint64_t value, unsigned flags) {
  CALL(hipStreamWriteValue64, CONTEXT);
  (void)flags;
  return value_op(stream, SIM_OP_WRITE_VALUE, address, value, 8, 0);
}

API hipStreamWaitValue64(struct sim_stream *stream, void *address, uint64_t value, unsigned flags, uint64_t mask) {
  CALL(hipStreamWaitValue64, CONTEXT);
  if (mask != UINT64_MAX) END(SIM_NOT_SUPPORTED);
  return value_op(stream, SIM_OP_WAIT_VALUE, address, value, 8, flags);
}
