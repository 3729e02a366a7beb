/* Streams, events, and functions of the host's. Handles pass through. */
#include "translate.h"

enum { EVENT_FLAGS = 7 }; /* the bits that CUDA has too */

HIP hipStreamCreate(void **stream) {
  ENTER;
  RETURN(cuStreamCreate, stream, 0);
}

HIP hipStreamCreateWithFlags(void **stream, unsigned flags) {
  ENTER;
  RETURN(cuStreamCreate, stream, flags);
}

HIP hipStreamDestroy(void *stream) {
  ENTER;
  if (!stream) return hip_fail(INVALID_HANDLE);
  RETURN(cuStreamDestroy, stream);
}

HIP hipStreamQuery(void *stream) {
  ENTER;
  RETURN(cuStreamQuery, stream);
}

HIP hipStreamSynchronize(void *stream) {
  ENTER;
  RETURN(cuStreamSynchronize, stream);
}

HIP hipStreamWaitEvent(void *stream, void *event, unsigned flags) {
  ENTER;
  if (!event) return hip_fail(INVALID_HANDLE);
  RETURN(cuStreamWaitEvent, stream, event, flags);
}

HIP hipStreamGetDevice(void *stream, int *device) {
  void *context = NULL;
  int error;
  ENTER;
  *device = hip_device;
  if (!stream) return SUCCESS;
  int result = CU(cuStreamGetCtx, stream, &context);
  if (result) return hip_result(result);
  for (int i = 0; i < cu_device_count; i++)
    if (hip_context(i, &error) == context) {
      *device = i;
      return SUCCESS;
    }
  return hip_fail(INVALID_HANDLE);
}

HIP hipStreamWriteValue64(void *stream, address target, uint64_t value, unsigned flags) {
  ENTER;
  RETURN(cuStreamWriteValue64, stream, target, value, flags);
}

HIP hipStreamWaitValue64(void *stream, address source, uint64_t value, unsigned flags,
                         uint64_t mask) {
  ENTER;
  if (mask != UINT64_MAX) return hip_fail(NOT_SUPPORTED);
  RETURN(cuStreamWaitValue64, stream, source, value, flags);
}

HIP hipStreamBeginCapture(void *stream, int mode) {
  ENTER;
  RETURN(cuStreamBeginCapture, stream, mode);
}

HIP hipStreamEndCapture(void *stream, void **graph) {
  ENTER;
  RETURN(cuStreamEndCapture, stream, graph);
}

HIP hipStreamIsCapturing(void *stream, int *status) {
  ENTER;
  RETURN(cuStreamIsCapturing, stream, status);
}

HIP hipThreadExchangeStreamCaptureMode(int *mode) {
  ENTER;
  RETURN(cuThreadExchangeStreamCaptureMode, mode);
}

HIP hipEventCreateWithFlags(void **event, unsigned flags) {
  ENTER;
  RETURN(cuEventCreate, event, flags & EVENT_FLAGS);
}

HIP hipEventDestroy(void *event) {
  ENTER;
  if (!event) return hip_fail(INVALID_HANDLE);
  RETURN(cuEventDestroy, event);
}

HIP hipEventRecord(void *event, void *stream) {
  ENTER;
  if (!event) return hip_fail(INVALID_HANDLE);
  RETURN(cuEventRecord, event, stream);
}

HIP hipEventQuery(void *event) {
  ENTER;
  if (!event) return hip_fail(INVALID_HANDLE);
  RETURN(cuEventQuery, event);
}

HIP hipEventSynchronize(void *event) {
  ENTER;
  if (!event) return hip_fail(INVALID_HANDLE);
  RETURN(cuEventSynchronize, event);
}

HIP hipEventElapsedTime(float *milliseconds, void *start, void *end) {
  ENTER;
  RETURN(cuEventElapsedTime, milliseconds, start, end);
}

HIP hipLaunchHostFunc(void *stream, host_function function, void *argument) {
  ENTER;
  RETURN(cuLaunchHostFunc, stream, function, argument);
}
