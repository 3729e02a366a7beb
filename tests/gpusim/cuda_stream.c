/* The CUDA face: streams, events, host functions, values in memory. */
#include "cuda.h"

struct sim_stream *cu_stream(struct sim_stream *handle) {
  uintptr_t number = (uintptr_t)handle;
  if (number <= 2) return cu_device() < 0 ? NULL : sim_default_stream(cu_device(), number == 2);
  return sim_handle_alive(handle, SIM_STREAM) ? handle : NULL;
}

int cu_refused(const struct sim_stream *handle) { return (uintptr_t)handle <= 2 ? SIM_INVALID_CONTEXT : SIM_INVALID_HANDLE; }

API cuStreamCreate(struct sim_stream **stream, unsigned flags) {
  CALL(cuStreamCreate, CONTEXT);
  if (!stream || flags > 1) return SIM_INVALID_VALUE;
  return sim_stream_create(stream, cu_device(), !(flags & 1));
}

API cuStreamDestroy_v2(struct sim_stream *stream) {
  CALL(cuStreamDestroy, HANDLE);
  if ((uintptr_t)stream <= 2) return SIM_INVALID_HANDLE;
  ALIVE(stream, SIM_STREAM);
  return sim_stream_destroy(stream);
}

API cuStreamQuery(struct sim_stream *stream) {
  CALL(cuStreamQuery, HANDLE | UNSAFE);
  STREAM(stream);
  return sim_stream_query(stream);
}

API cuStreamSynchronize(struct sim_stream *stream) {
  CALL(cuStreamSynchronize, HANDLE | UNSAFE);
  STREAM(stream);
  return sim_stream_synchronize(stream);
}

API cuStreamWaitEvent(struct sim_stream *stream, struct sim_event *event, unsigned flags) {
  CALL(cuStreamWaitEvent, HANDLE);
  STREAM(stream);
  if (flags > 1) return SIM_INVALID_VALUE;
  ALIVE(event, SIM_EVENT);
  return sim_event_wait(stream, event);
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

API cuStreamIsCapturing(struct sim_stream *stream, unsigned *status) {
  CALL(cuStreamIsCapturing, HANDLE);
  STREAM(stream);
  GIVEN(status);
  return sim_capture_status(status, stream);
}

API cuStreamBeginCapture_v2(struct sim_stream *stream, unsigned mode) {
  CALL(cuStreamBeginCapture, CONTEXT);
  STREAM(stream);
  return sim_capture_begin(stream, mode);
}

API cuStreamEndCapture(struct sim_stream *stream, struct sim_graph **graph) {
  CALL(cuStreamEndCapture, HANDLE);
  STREAM(stream);
  GIVEN(graph);
  return sim_capture_end(graph, stream);
}

API cuThreadExchangeStreamCaptureMode(unsigned *mode) {
  CALL(cuThreadExchangeStreamCaptureMode, ANY | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(mode);
  return sim_capture_exchange(mode);
}

/* Events */

API cuEventCreate(struct sim_event **event, unsigned flags) {
  CALL(cuEventCreate, CONTEXT);
  if (!event || flags > 7 || (flags & 6) == 4) return SIM_INVALID_VALUE;
  return sim_event_create(event, cu_device(), !(flags & 2));
}

API cuEventDestroy_v2(struct sim_event *event) {
  CALL(cuEventDestroy, HANDLE);
  ALIVE(event, SIM_EVENT);
  return sim_event_destroy(event);
}

API cuEventRecord(struct sim_event *event, struct sim_stream *stream) {
  CALL(cuEventRecord, HANDLE);
  STREAM(stream);
  ALIVE(event, SIM_EVENT);
  return sim_event_record(event, stream);
}

API cuEventQuery(struct sim_event *event) {
  CALL(cuEventQuery, HANDLE);
  ALIVE(event, SIM_EVENT);
  return sim_event_query(event);
}

API cuEventSynchronize(struct sim_event *event) {
  CALL(cuEventSynchronize, HANDLE);
  ALIVE(event, SIM_EVENT);
  return sim_event_synchronize(event);
}

API cuEventElapsedTime(float *milliseconds, struct sim_event *start, struct sim_event *end) {
  CALL(cuEventElapsedTime, HANDLE);
  GIVEN(milliseconds);
  ALIVE(start, SIM_EVENT);
  ALIVE(end, SIM_EVENT);
  return sim_event_elapsed(milliseconds, start, end);
}

/* Host functions and values in memory */

API cuLaunchHostFunc(struct sim_stream *stream, void (*function)(void *), void *argument) {
  CALL(cuLaunchHostFunc, HANDLE);
  STREAM(stream);
  GIVEN(function);
  return sim_enqueue(stream, &(struct sim_op){.kind = SIM_OP_HOST, .host = {function, argument}}, NULL);
}

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
