/* Streams, events, and functions of the host's. Handles pass through. */
#include "translate.h"

enum { EVENT_FLAGS = 7 }; /* the bits that CUDA has too */

FORWARD(hipStreamCreate, cuStreamCreate, (void **stream), stream, 0)
FORWARD(hipStreamCreateWithFlags, cuStreamCreate, (void **stream, unsigned flags), stream, flags)

HIP hipStreamDestroy(void *stream) {
  ENTER;
  if (!stream) return hip_fail(INVALID_HANDLE);
  RETURN(cuStreamDestroy, stream);
}

FORWARD(hipStreamQuery, cuStreamQuery, (void *stream), stream)
FORWARD(hipStreamSynchronize, cuStreamSynchronize, (void *stream), stream)

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

FORWARD(hipStreamWriteValue64, cuStreamWriteValue64,
        (void *stream, address target, uint64_t value, unsigned flags), stream, target, value, flags)

HIP hipStreamWaitValue64(void *stream, address source, uint64_t value, unsigned flags,
                         uint64_t mask) {
  ENTER;
  if (mask != UINT64_MAX) return hip_fail(NOT_SUPPORTED);
  RETURN(cuStreamWaitValue64, stream, source, value, flags);
}

FORWARD(hipStreamBeginCapture, cuStreamBeginCapture, (void *stream, int mode), stream, mode)
FORWARD(hipStreamEndCapture, cuStreamEndCapture, (void *stream, void **graph), stream, graph)
FORWARD(hipStreamIsCapturing, cuStreamIsCapturing, (void *stream, int *status), stream, status)
FORWARD(hipThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int *mode), mode)
FORWARD(hipEventCreateWithFlags, cuEventCreate, (void **event, unsigned flags), event, flags & EVENT_FLAGS)

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

FORWARD(hipEventElapsedTime, cuEventElapsedTime,
        (float *milliseconds, void *start, void *end), milliseconds, start, end)
FORWARD(hipLaunchHostFunc, cuLaunchHostFunc,
        (void *stream, host_function function, void *argument), stream, function, argument)
