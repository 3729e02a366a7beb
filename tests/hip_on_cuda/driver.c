/* Load libcuda, translate its errors, and keep each thread's current device. */
#define _GNU_SOURCE
#include "translate.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

enum { DEVICES_AT_MOST = 64 };

struct driver cu_driver;
int cu_device_count;
_Thread_local int hip_device;

static _Thread_local int last_error;
static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static pthread_mutex_t retaining = PTHREAD_MUTEX_INITIALIZER;
static int load_error = INSUFFICIENT_DRIVER;
static void *contexts[DEVICES_AT_MOST];

typedef int (*get_proc_address)(const char *, void **, int, uint64_t, int *);

static void load(void) {
  const char *path = getenv("HIP_ON_CUDA_DRIVER");
  void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return;
  get_proc_address find = (get_proc_address)dlsym(library, "cuGetProcAddress_v2");
  if (!find) return;
#define FIND(name, version, signature) \
  { \
    void *found = NULL; \
    if (find(#name, &found, version, 0, NULL) == 0) cu_driver.name = (int(*) signature)found; \
  }
  DRIVER_FUNCTIONS(FIND)
#undef FIND
  int result = CU(cuInit, 0);
  if (!result) result = CU(cuDeviceGetCount, &cu_device_count);
  if (cu_device_count > DEVICES_AT_MOST) cu_device_count = DEVICES_AT_MOST;
  load_error = result ? hip_result(result) : cu_device_count ? SUCCESS : NO_DEVICE;
}

int hip_start(void) {
  pthread_once(&loaded, load);
  return load_error;
}

void *hip_context(int device, int *error) {
  *error = hip_start();
  if (*error) return NULL;
  if (device < 0 || device >= cu_device_count) {
    *error = INVALID_DEVICE;
    return NULL;
  }
  void *context = __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE);
  if (context) return context;
  pthread_mutex_lock(&retaining);
  context = contexts[device];
  if (!context) {
    *error = hip_result(CU(cuDevicePrimaryCtxRetain, &context, device));
    if (*error) context = NULL;
    __atomic_store_n(&contexts[device], context, __ATOMIC_RELEASE);
  }
  pthread_mutex_unlock(&retaining);
  return context;
}

HIP hipDeviceReset(void) {
  int error = hip_start();
  if (error) return hip_fail(error);
  pthread_mutex_lock(&retaining);
  int result = CU(cuDevicePrimaryCtxReset, hip_device);
  __atomic_store_n(&contexts[hip_device], NULL, __ATOMIC_RELEASE); /* made again when it is needed */
  pthread_mutex_unlock(&retaining);
  return hip_result(result);
}

int hip_enter(void) {
  int error;
  void *wanted = hip_context(hip_device, &error), *current = NULL;
  if (!wanted) return error;
  /* Not remembered: others in the process may change the driver's current context. */
  CU(cuCtxGetCurrent, &current);
  return current == wanted ? SUCCESS : hip_result(CU(cuCtxSetCurrent, wanted));
}

int hip_fail(int error) {
  if (error != SUCCESS && error != NOT_READY) last_error = error;
  return error;
}

/* Most numbers are equal. HIP has none for some of CUDA's errors, and hip-python takes no number
 * that HIP lacks, so that each of those becomes the nearest. */
int hip_result(int result) {
  switch (result) {
    case 912: result = 1054; break; /* invalid cluster size */
    case 917: result = 916; break;  /* stream detached */
    case 708: result = 216; break;  /* primary context active: context already in use */
    case 711: result = 217; break;  /* too many peers: peer access unsupported */
    case 36: case 227: case 802: case 803: case 804: result = INSUFFICIENT_DRIVER; break;
    case 46: case 102: result = NO_DEVICE; break;
    case 221: case 222: case 223: result = 209; break; /* no PTX here: no binary for this device */
    case 800: case 811: case 812: case 224: case 225: result = NOT_SUPPORTED; break;
    case 909: result = 702; break; /* timeout */
    case 714: case 715: case 716: case 717: case 718: case 220: case 226: case 721:
      result = LAUNCH_FAILURE; /* the context is lost, which HIP says so */
      break;
    case 34: case 47: case 402: case 703: case 911: case 913: case 914: case 915: case 916:
    case 918: case 919:
      result = UNKNOWN;
      break;
    default:
      if (result >= 805 && result <= 810) result = UNKNOWN;
  }
  return hip_fail(result);
}

HIP hipGetLastError(void) {
  int error = last_error;
  last_error = SUCCESS;
  return error;
}

HIP hipPeekAtLastError(void) { return last_error; }

static const struct { int code; const char *name; } names[] = {
#define ERROR(code_, cuda_, hip_, text_) {code_, #hip_},
#include "../gpusim/both_errors.h"
    {9, "hipErrorInvalidConfiguration"},
    {17, "hipErrorInvalidDevicePointer"},
    {21, "hipErrorInvalidMemcpyDirection"},
    {35, "hipErrorInsufficientDriver"},
    {98, "hipErrorInvalidDeviceFunction"},
    {218, "hipErrorInvalidKernelFile"},
    {300, "hipErrorInvalidSource"},
    {301, "hipErrorFileNotFound"},
    {302, "hipErrorSharedObjectSymbolNotFound"},
    {303, "hipErrorSharedObjectInitFailed"},
    {304, "hipErrorOperatingSystem"},
    {720, "hipErrorCooperativeLaunchTooLarge"},
    {910, "hipErrorGraphExecUpdateFailure"},
    {1054, "hipErrorInvalidClusterSize"},
};

HIP_TEXT hipGetErrorName(int error) {
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].code == error) return names[i].name;
  return "hipErrorUnknown";
}

HIP_TEXT hipGetErrorString(int error) {
  const char *text = NULL;
  hip_start();
  if (CU(cuGetErrorString, error, &text) || !text) return hipGetErrorName(error);
  return text;
}

HIP hipGetProcAddress(const char *name, void **symbol, int version, uint64_t flags, int *result) {
  (void)version; /* no function here has two forms */
  if (!name || !symbol || flags) return hip_fail(INVALID_VALUE);
  Dl_info self;
  void *library = dladdr((void *)hip_fail, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
  *symbol = library ? dlsym(library, name) : NULL;
  if (library) dlclose(library);
  if (result) *result = *symbol ? 0 : 1;
  return *symbol ? SUCCESS : hip_fail(INVALID_VALUE);
}
