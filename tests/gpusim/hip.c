/* The HIP face: how a call begins and ends, errors and their names. */
#include <dlfcn.h>

#include "hip.h"

__thread int hip_device;
static __thread int last_error;

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
#define ERROR(code_, cuda_, hip_, text_) {code_, #hip_, text_},
#include "both_errors.h"
    {9, "hipErrorInvalidConfiguration", "invalid configuration argument"},
    {17, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {21, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
};

static const char *look_up(int code, bool name) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) return name ? errors[i].name : errors[i].text;
  return look_up(HIP_UNKNOWN, name);
}

SIM_EXPORT const char *hipGetErrorName(int code) { return look_up(code, true); }
SIM_EXPORT const char *hipGetErrorString(int code) { return look_up(code, false); }

API hipGetProcAddress(const char *name, void **symbol, int version, uint64_t flags, int *result) {
  CALL(hipGetProcAddress, INIT | SIM_ALLOWED_AFTER_ERROR);
  (void)version; /* no function of this face has two forms */
  GIVEN(name && symbol);
  if (flags) END(SIM_INVALID_VALUE);
  Dl_info self;
  void *library = dladdr((void *)&hip_result, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
  *symbol = library ? dlsym(library, name) : NULL;
  if (library) dlclose(library);
  if (result) *result = *symbol ? 0 : 1;
  END(*symbol ? SIM_OK : SIM_INVALID_VALUE);
}
