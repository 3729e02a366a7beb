/* Functions of both faces: streams, events, host functions. */

API FACE(StreamDestroy)(struct sim_stream *stream) {
  BEGIN(StreamDestroy, HANDLE);
  if ((uintptr_t)stream <= 2) END(SIM_INVALID_HANDLE);
  STREAM(stream);
  END(sim_stream_destroy(stream));
}

API FACE(StreamQuery)(struct sim_stream *stream) {
  BEGIN(StreamQuery, HANDLE | UNSAFE);
  STREAM(stream);
  END(sim_stream_query(stream));
}

API FACE(StreamSynchronize)(struct sim_stream *stream) {
  BEGIN(StreamSynchronize, HANDLE | UNSAFE);
  STREAM(stream);
  END(sim_stream_synchronize(stream));
}

API FACE(StreamWaitEvent)(struct sim_stream *stream, struct sim_event *event, unsigned flags) {
  BEGIN(StreamWaitEvent, HANDLE);
  STREAM(stream);
  if (flags > 1) END(SIM_INVALID_VALUE);
  ALIVE(event, SIM_EVENT);
  END(sim_event_wait(stream, event));
}

API FACE(StreamIsCapturing)(struct sim_stream *stream, unsigned *status) {
  BEGIN(StreamIsCapturing, HANDLE);
  STREAM(stream);
  GIVEN(status);
  END(sim_capture_status(status, stream));
}

API FACE(StreamBeginCapture)(struct sim_stream *stream, unsigned mode) {
  BEGIN(StreamBeginCapture, CONTEXT);
  STREAM(stream);
  END(sim_capture_begin(stream, mode));
}

API FACE(StreamEndCapture)(struct sim_stream *stream, struct sim_graph **graph) {
  BEGIN(StreamEndCapture, HANDLE);
  STREAM(stream);
  GIVEN(graph);
  END(sim_capture_end(graph, stream));
}

API FACE(ThreadExchangeStreamCaptureMode)(unsigned *mode) {
  BEGIN(ThreadExchangeStreamCaptureMode, ANY | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(mode);
  END(sim_capture_exchange(mode));
}

API FACE(EventDestroy)(struct sim_event *event) {
  BEGIN(EventDestroy, HANDLE);
  ALIVE(event, SIM_EVENT);
  END(sim_event_destroy(event));
}

API FACE(EventRecord)(struct sim_event *event, struct sim_stream *stream) {
  BEGIN(EventRecord, HANDLE);
  STREAM(stream);
  ALIVE(event, SIM_EVENT);
  END(sim_event_record(event, stream));
}

API FACE(EventQuery)(struct sim_event *event) {
  BEGIN(EventQuery, HANDLE);
  ALIVE(event, SIM_EVENT);
  END(sim_event_query(event));
}

API FACE(EventSynchronize)(struct sim_event *event) {
  BEGIN(EventSynchronize, HANDLE);
  ALIVE(event, SIM_EVENT);
  END(sim_event_synchronize(event));
}

API FACE(EventElapsedTime)(float *milliseconds, struct sim_event *start, struct sim_event *end) {
  BEGIN(EventElapsedTime, HANDLE);
  GIVEN(milliseconds);
  ALIVE(start, SIM_EVENT);
  ALIVE(end, SIM_EVENT);
  END(sim_event_elapsed(milliseconds, start, end));
}

API FACE(LaunchHostFunc)(struct sim_stream *stream, void (*function)(void *), void *argument) {
  BEGIN(LaunchHostFunc, HANDLE);
  STREAM(stream);
  GIVEN(function);
  END(sim_enqueue(stream, &(struct sim_op){.kind = SIM_OP_HOST, .host = {function, argument}}, NULL));
}
