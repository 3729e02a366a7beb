/* The HIP face: how a call begins and ends, errors and their names. */
#include <dlfcn.h>

#include "hip.h"

__thread int hip_device;
static __thread int last_error;

bool hip_is_device(int device) { return device >= 0 && device < sim.device_count; }

int hip_enter(struct sim_site *site, unsigned needs) {
  if (!sim.initialized && !sim.forked) sim.whole_blocks = true, sim_initialize();
  if (sim.initialized && !sim.device_count && (needs & SIM_NEEDS_CONTEXT) == SIM_NEEDS_CONTEXT) return SIM_NO_DEVICE;
  /* Only what works on the thread's device meets that one's sticky error. */
  bool current = (needs & SIM_NEEDS_CONTEXT) == SIM_NEEDS_CONTEXT || !(needs & SIM_ALLOWED_AFTER_ERROR);
  return sim_enter(site, current && sim.device_count ? hip_device : -1, needs);
}

/* HIP has no number for what CUDA calls "not permitted". */
int hip_result(int status) {
  if (status == SIM_NOT_PERMITTED) status = HIP_ILLEGAL_STATE;
  if (status != SIM_OK && status != SIM_NOT_READY) last_error = status;
  return status;
}

API hipGetLastError(void) {
  int status = last_error;
  last_error = SIM_OK;
  return status;
}

API hipPeekAtLastError(void) { return last_error; }

static const struct { int code; const char *name, *text; } errors[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "invalid argument"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "initialization error"},
    {4, "hipErrorDeinitialized", "driver shutting down"},
    {9, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {17, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {21, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {100, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {101, "hipErrorInvalidDevice", "invalid device ordinal"},
    {200, "hipErrorInvalidImage", "device kernel image is invalid"},
    {201, "hipErrorInvalidContext", "invalid device context"},
    {209, "hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"},
    {214, "hipErrorECCNotCorrectable", "uncorrectable ECC error encountered"},
    {217, "hipErrorPeerAccessUnsupported", "peer access is not supported between these two devices"},
    {400, "hipErrorInvalidHandle", "invalid resource handle"},
    {401, "hipErrorIllegalState", "the operation cannot be performed in the present state"},
    {500, "hipErrorNotFound", "named symbol not found"},
    {600, "hipErrorNotReady", "device not ready"},
    {700, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {701, "hipErrorLaunchOutOfResources", "out of resources"},
    {702, "hipErrorLaunchTimeOut", "the launch timed out and was terminated"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "hipErrorPeerAccessNotEnabled", "peer access has not been enabled"},
    {709, "hipErrorContextIsDestroyed", "context is destroyed"},
    {710, "hipErrorAssert", "device-side assert triggered"},
    {712, "hipErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
    {713, "hipErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {719, "hipErrorLaunchFailure", "unspecified launch failure"},
    {801, "hipErrorNotSupported", "operation not supported"},
    {900, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {902, "hipErrorStreamCaptureMerge", "operation would result in a merge of separate capture sequences"},
    {903, "hipErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {904, "hipErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {905, "hipErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"},
    {906, "hipErrorStreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "hipErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "hipErrorStreamCaptureWrongThread", "attempt to terminate a thread-local capture sequence from another thread"},
    {999, "hipErrorUnknown", "unknown error"},
};

static const char *look_up(int code, bool name) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return name ? errors[i].name : errors[i].text;
  return look_up(HIP_UNKNOWN, name);
}

SIM_EXPORT const char *hipGetErrorName(int code) { return look_up(code, true); }
SIM_EXPORT const char *hipGetErrorString(int code) { return look_up(code, false); }

API hipGetProcAddress(const char *name, void **symbol, int version, uint64_t flags, int *result) {
  CALL(hipGetProcAddress, ANY | SIM_ALLOWED_AFTER_ERROR);
  (void)version; /* no function of this face has two forms */
  GIVEN(name && symbol);
  if (flags) FAIL(SIM_INVALID_VALUE);
  Dl_info self;
  void *library = dladdr((void *)&hip_result, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
  *symbol = library ? dlsym(library, name) : NULL;
  if (library) dlclose(library);
  if (result) *result = *symbol ? 0 : 1;
  FAIL(*symbol ? SIM_OK : SIM_INVALID_VALUE);
}
