/* The CUDA face: streams, events, host functions, values in memory. */
#include "cuda.h"

struct sim_stream *cu_stream(struct sim_stream *handle) {
  uintptr_t number = (uintptr_t)handle;
  if (number <= 2) return cu_device() < 0 ? NULL : sim_default_stream(cu_device(), number == 2);
  return sim_handle_alive(handle, SIM_STREAM) ? handle : NULL;
}

int cu_refused(const struct sim_stream *handle) { return (uintptr_t)handle <= 2 ? SIM_INVALID_CONTEXT : SIM_INVALID_HANDLE; }

#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamBeginCapture cuStreamBeginCapture_v2
#define cuEventDestroy cuEventDestroy_v2
#include "both_streams.h"

API cuStreamCreate(struct sim_stream **stream, unsigned flags) {
  CALL(cuStreamCreate, CONTEXT);
  if (!stream || flags > 1) return SIM_INVALID_VALUE;
  return sim_stream_create(stream, cu_device(), !(flags & 1));
}

API cuStreamGetFlags(struct sim_stream *stream, unsigned *flags) {
  CALL(cuStreamGetFlags, HANDLE);
  STREAM(stream);
  GIVEN(flags);
  sim_lock();
  int status = stream->capture ? sim_capture_asked(stream) : SIM_OK; /* as a driver does */
  sim_unlock();
  *flags = !stream->blocking;
  return status;
}

API cuStreamGetCtx(struct sim_stream *stream, struct cu_context **context) {
  CALL(cuStreamGetCtx, HANDLE);
  STREAM(stream);
  GIVEN(context);
  *context = &cu_contexts[stream->device];
  return SIM_OK;
}

API cuStreamGetCtx_v2(struct sim_stream *stream, struct cu_context **context, void **green) {
  CALL(cuStreamGetCtx, HANDLE);
  STREAM(stream);
  GIVEN(context);
  *context = &cu_contexts[stream->device];
  if (green) *green = NULL;
  return SIM_OK;
}

/* Events */

API cuEventCreate(struct sim_event **event, unsigned flags) {
  CALL(cuEventCreate, CONTEXT);
  if (!event || flags > 7 || (flags & 6) == 4) return SIM_INVALID_VALUE;
  return sim_event_create(event, cu_device(), !(flags & 2));
}

/* Host functions and values in memory */

static int value_op(struct sim_stream *stream, enum sim_op_kind kind, cu_address address, uint64_t value, unsigned width, unsigned condition) {
  STREAM(stream);
  const struct sim_value wanted = {(void *)(uintptr_t)address, value, width, condition & ~(1u << 30)};
  return sim_value_op(stream, kind, &wanted);
}

API cuStreamWaitValue32_v2(struct sim_stream *stream, cu_address address, uint32_t value, unsigned flags) {
  CALL(cuStreamWaitValue32, HANDLE);
  return value_op(stream, SIM_OP_WAIT_VALUE, address, value, 4, flags);
}

API cuStreamWaitValue64_v2(struct sim_stream *stream, cu_address address, uint64_t value, unsigned flags) {
  CALL(cuStreamWaitValue64, HANDLE);
  return value_op(stream, SIM_OP_WAIT_VALUE, address, value, 8, flags);
}

API cuStreamWriteValue32_v2(struct sim_stream *stream, cu_address address, uint32_t value, unsigned flags) {
  CALL(cuStreamWriteValue32, HANDLE);
  return flags > 1 ? SIM_INVALID_VALUE : value_op(stream, SIM_OP_WRITE_VALUE, address, value, 4, 0);
}

API cuStreamWriteValue64_v2(struct sim_stream *stream, cu_address address, uint64_t value, unsigned flags) {
  CALL(cuStreamWriteValue64, HANDLE);
  return flags > 1 ? SIM_INVALID_VALUE : value_op(stream, SIM_OP_WRITE_VALUE, address, value, 8, 0);
}
