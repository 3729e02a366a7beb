/* The HIP face: streams, events, host functions, values in memory. */
#include "hip.h"

struct sim_stream *hip_stream(struct sim_stream *handle) {
  uintptr_t number = (uintptr_t)handle;
  if (number <= 2) return sim_default_stream(hip_device, number == 2);
  return sim_handle_alive(handle, SIM_STREAM) ? handle : NULL;
}

API hipStreamCreateWithFlags(struct sim_stream **stream, unsigned flags) {
  CALL(hipStreamCreateWithFlags, CURRENT);
  if (!stream || flags > 1) FAIL(SIM_INVALID_VALUE);
  FAIL(sim_stream_create(stream, hip_device, !(flags & 1)));
}

API hipStreamCreate(struct sim_stream **stream) {
  CALL(hipStreamCreate, CURRENT);
  GIVEN(stream);
  FAIL(sim_stream_create(stream, hip_device, true));
}

API hipStreamDestroy(struct sim_stream *stream) {
  CALL(hipStreamDestroy, CURRENT);
  if ((uintptr_t)stream <= 2) FAIL(SIM_INVALID_HANDLE);
  STREAM(stream);
  FAIL(sim_stream_destroy(stream));
}

API hipStreamQuery(struct sim_stream *stream) {
  CALL(hipStreamQuery, CURRENT | UNSAFE);
  STREAM(stream);
  FAIL(sim_stream_query(stream));
}

API hipStreamSynchronize(struct sim_stream *stream) {
  CALL(hipStreamSynchronize, CURRENT | UNSAFE);
  STREAM(stream);
  FAIL(sim_stream_synchronize(stream));
}

API hipStreamWaitEvent(struct sim_stream *stream, struct sim_event *event, unsigned flags) {
  CALL(hipStreamWaitEvent, CURRENT);
  STREAM(stream);
  if (flags > 1) FAIL(SIM_INVALID_VALUE);
  ALIVE(event, SIM_EVENT);
  FAIL(sim_event_wait(stream, event));
}

API hipStreamGetDevice(struct sim_stream *stream, int *device) {
  CALL(hipStreamGetDevice, CURRENT);
  STREAM(stream);
  GIVEN(device);
  *device = stream->device;
  return SIM_OK;
}

API hipStreamIsCapturing(struct sim_stream *stream, int *status) {
  CALL(hipStreamIsCapturing, CURRENT);
  STREAM(stream);
  GIVEN(status);
  unsigned found;
  int result = sim_capture_status(&found, stream);
  *status = (int)found;
  FAIL(result);
}

API hipStreamBeginCapture(struct sim_stream *stream, int mode) {
  CALL(hipStreamBeginCapture, CURRENT);
  STREAM(stream);
  FAIL(sim_capture_begin(stream, (unsigned)mode));
}

API hipStreamEndCapture(struct sim_stream *stream, struct sim_graph **graph) {
  CALL(hipStreamEndCapture, CURRENT);
  STREAM(stream);
  GIVEN(graph);
  FAIL(sim_capture_end(graph, stream));
}

API hipThreadExchangeStreamCaptureMode(unsigned *mode) {
  CALL(hipThreadExchangeStreamCaptureMode, ANY | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(mode);
  FAIL(sim_capture_exchange(mode));
}

/* Events */

enum { EVENT_FLAGS = 7, EVENT_NO_TIMING = 2 };

API hipEventCreateWithFlags(struct sim_event **event, unsigned flags) {
  CALL(hipEventCreateWithFlags, CURRENT);
  if (!event || (flags & 0x1fffffffu) > EVENT_FLAGS) FAIL(SIM_INVALID_VALUE);
  FAIL(sim_event_create(event, hip_device, !(flags & EVENT_NO_TIMING)));
}

API hipEventDestroy(struct sim_event *event) {
  CALL(hipEventDestroy, CURRENT);
  ALIVE(event, SIM_EVENT);
  FAIL(sim_event_destroy(event));
}

API hipEventRecord(struct sim_event *event, struct sim_stream *stream) {
  CALL(hipEventRecord, CURRENT);
  STREAM(stream);
  ALIVE(event, SIM_EVENT);
  FAIL(sim_event_record(event, stream));
}

API hipEventQuery(struct sim_event *event) {
  CALL(hipEventQuery, CURRENT);
  ALIVE(event, SIM_EVENT);
  FAIL(sim_event_query(event));
}

API hipEventSynchronize(struct sim_event *event) {
  CALL(hipEventSynchronize, CURRENT);
  ALIVE(event, SIM_EVENT);
  FAIL(sim_event_synchronize(event));
}

API hipEventElapsedTime(float *milliseconds, struct sim_event *start, struct sim_event *end) {
  CALL(hipEventElapsedTime, CURRENT);
  GIVEN(milliseconds);
  ALIVE(start, SIM_EVENT);
  ALIVE(end, SIM_EVENT);
  FAIL(sim_event_elapsed(milliseconds, start, end));
}

/* Host functions and values in memory */

API hipLaunchHostFunc(struct sim_stream *stream, void (*function)(void *), void *argument) {
  CALL(hipLaunchHostFunc, CURRENT);
  STREAM(stream);
  GIVEN(function);
  FAIL(sim_enqueue(stream, &(struct sim_op){.kind = SIM_OP_HOST, .host = {function, argument}}, NULL));
}

static int value_op(struct sim_stream *stream, enum sim_op_kind kind, void *address, uint64_t value, unsigned width,
                    unsigned condition) {
  STREAM(stream);
  const struct sim_value wanted = {address, value, width, condition};
  FAIL(sim_value_op(stream, kind, &wanted));
}

API hipStreamWriteValue64(struct sim_stream *stream, void *address, uint64_t value, unsigned flags) {
  CALL(hipStreamWriteValue64, CURRENT);
  (void)flags;
  return value_op(stream, SIM_OP_WRITE_VALUE, address, value, 8, 0);
}

API hipStreamWaitValue64(struct sim_stream *stream, void *address, uint64_t value, unsigned flags, uint64_t mask) {
  CALL(hipStreamWaitValue64, CURRENT);
  if (mask != UINT64_MAX) FAIL(SIM_NOT_SUPPORTED);
  return value_op(stream, SIM_OP_WAIT_VALUE, address, value, 8, flags);
}
