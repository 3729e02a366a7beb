/* The CUDA face: the driver, its devices, contexts and peers. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"

struct cu_context cu_contexts[SIM_MAX_DEVICES] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
static __thread struct cu_context *current;

int cu_device(void) { return current ? current->device : -1; }
bool cu_is_context(const struct cu_context *context) {
  return context >= cu_contexts && context < cu_contexts + SIM_MAX_DEVICES && sim_is_device(context->device) &&
         sim.devices[context->device].retained;
}

/* A context stays current on a thread when its last user has released it, and is of no use any more. */
static bool was_reset[SIM_MAX_DEVICES];
static bool is_gone(int device) { return !sim.devices[device].retained || was_reset[device]; }

int cu_enter(struct sim_site *site, unsigned needs) {
  int device = cu_device(), status = sim_enter(site, device, needs);
  if (status || device < 0 || needs & SIM_ALLOWED_AFTER_ERROR) return status;
  return (needs & SIM_NEEDS_CONTEXT) == SIM_NEEDS_CONTEXT || needs & SIM_WANTS_CONTEXT & ~SIM_NEEDS_INIT
             ? is_gone(device) ? CU_CONTEXT_IS_DESTROYED : SIM_OK
             : SIM_OK;
}

API cuInit(unsigned flags) {
  CALL(cuInit, ANY | SIM_ALLOWED_AFTER_ERROR);
  return flags ? SIM_INVALID_VALUE : sim_initialize();
}

API cuDriverGetVersion(int *version) {
  CALL(cuDriverGetVersion, ANY | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(version);
  *version = 13000;
  return SIM_OK;
}

API cuDeviceGetCount(int *count) {
  CALL(cuDeviceGetCount, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(count);
  *count = sim.device_count;
  return SIM_OK;
}

API cuDeviceGet(int *device, int ordinal) {
  CALL(cuDeviceGet, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(device);
  DEVICE(ordinal);
  *device = ordinal;
  return SIM_OK;
}

API cuDeviceGetName(char *name, int length, int device) {
  CALL(cuDeviceGetName, INIT | SIM_ALLOWED_AFTER_ERROR);
  if (!name || length <= 0) return SIM_INVALID_VALUE;
  DEVICE(device);
  snprintf(name, (size_t)length, "gpusim (software, no GPU) %d", device);
  return SIM_OK;
}

API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  CALL(cuDeviceGetUuid, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(uuid);
  DEVICE(device);
  memcpy(uuid, "gpusim-software", 15);
  uuid[15] = (unsigned char)device;
  return SIM_OK;
}

API cuDeviceTotalMem_v2(size_t *bytes, int device) {
  CALL(cuDeviceTotalMem, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(bytes);
  DEVICE(device);
  *bytes = sim.devices[device].total;
  return SIM_OK;
}

static int attribute(int which, int device) {
  switch (which) {
    case 1: return 1024;                      /* threads of a block */
    case 8: return 49152;                     /* shared memory of a block */
    case 10: return 32;                       /* warp */
    case 13: case 36: return 1000000;         /* kHz, of the memory too */
    case 16: return 2;                        /* multiprocessors */
    case 33: return device;                   /* bus */
    case 37: return 64;                       /* bits of the memory's bus */
    case 38: return 1 << 20;                  /* cache */
    case 39: return 2048;                     /* threads of a multiprocessor */
    case 40: return 2;                        /* copy engines */
    case 50: return 0xFFFF;                   /* PCI domain */
    case 75: return CU_ARCHITECTURE / 10;
    case 76: return CU_ARCHITECTURE % 10;
    case 81: return 233472;                   /* shared memory and registers of a multiprocessor */
    case 82: return 65536;
    case 83: case 89: return 1;               /* managed memory, also while kernels run */
    case 97: return 232448;                   /* shared memory of a block, on request */
    case 115: return 1;                       /* memory pools */
    case 122: return 1;                       /* 64-bit stream memory operations */
    default: return 0;
  }
}

API cuDeviceGetAttribute(int *value, int which, int device) {
  CALL(cuDeviceGetAttribute, INIT | SIM_ALLOWED_AFTER_ERROR);
  if (!value || which < 1 || which > 200) return SIM_INVALID_VALUE;
  DEVICE(device);
  *value = attribute(which, device);
  return SIM_OK;
}

/* Contexts: one for each device, the primary one. */

API cuDevicePrimaryCtxRetain(struct cu_context **context, int device) {
  CALL(cuDevicePrimaryCtxRetain, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(context);
  DEVICE(device);
  sim_lock();
  int status = sim.devices[device].retained ? SIM_OK : sim.devices[device].error; /* a lost one is not had afresh */
  if (!status) {
    sim.devices[device].retained++;
    was_reset[device] = false;
    *context = &cu_contexts[device];
  }
  sim_unlock();
  return status;
}

int gpusim_leaks(int device, char *text, size_t size);

static void last_release(int device) {
  char text[512];
  const long quiet = sim_setting("GPUSIM_QUIET", 0);
  if (!gpusim_leaks(device, text, sizeof text)) return;
  if (!quiet) fprintf(stderr, "gpusim: device %d is released with live objects (I7): %s\n", device, text);
  if (sim_setting("GPUSIM_ABORT_ON_LEAKS", 0)) sim_abort(NULL, "device %d is released with live objects (I7): %s", device, text);
}

API cuDevicePrimaryCtxRelease_v2(int device) {
  CALL(cuDevicePrimaryCtxRelease, INIT | SIM_ALLOWED_AFTER_ERROR);
  DEVICE(device);
  sim_lock();
  bool held = sim.devices[device].retained > 0, last = sim.devices[device].retained == 1;
  if (last) sim_device_synchronize_locked(device);
  if (held) sim.devices[device].retained--;
  bool fails = sim.devices[device].error != SIM_OK;
  sim_unlock();
  if (last) last_release(device);
  if (last && fails && sim_setting("GPUSIM_RECOVERS", 0)) sim_device_reset(device);
  else if (last && !sim.strict) sim_forget_memory(device);
  return held ? SIM_OK : SIM_INVALID_CONTEXT;
}

API cuDevicePrimaryCtxReset_v2(int device) {
  CALL(cuDevicePrimaryCtxReset, INIT | SIM_ALLOWED_AFTER_ERROR);
  DEVICE(device);
  sim_device_synchronize(device); /* its error is nothing to a reset, and no reset ends it */
  was_reset[device] = sim.devices[device].retained > 0;
  sim_forget_memory(device);
  return SIM_OK;
}

API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  CALL(cuDevicePrimaryCtxGetState, INIT | SIM_ALLOWED_AFTER_ERROR);
  DEVICE(device);
  if (flags) *flags = 0;
  if (active) *active = !is_gone(device);
  return SIM_OK;
}

API cuCtxSetCurrent(struct cu_context *context) {
  CALL(cuCtxSetCurrent, INIT | SIM_ALLOWED_AFTER_ERROR);
  if (context && !cu_is_context(context)) return SIM_INVALID_CONTEXT;
  current = context;
  return SIM_OK;
}

API cuCtxGetCurrent(struct cu_context **context) {
  CALL(cuCtxGetCurrent, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(context);
  *context = current;
  return SIM_OK;
}

API cuCtxGetDevice(int *device) {
  CALL(cuCtxGetDevice, CONTEXT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(device);
  *device = cu_device();
  return SIM_OK;
}

API cuCtxGetDevice_v2(int *device, struct cu_context *context) {
  CALL(cuCtxGetDevice, INIT | SIM_ALLOWED_AFTER_ERROR);
  if (!context) context = current;
  GIVEN(device);
  if (!cu_is_context(context)) return SIM_INVALID_CONTEXT;
  *device = context->device;
  return SIM_OK;
}

API cuCtxSynchronize(void) {
  CALL(cuCtxSynchronize, CONTEXT);
  return sim_device_synchronize(cu_device());
}

API cuCtxSynchronize_v2(struct cu_context *context) {
  CALL(cuCtxSynchronize, INIT);
  if (!context) context = current;
  if (!cu_is_context(context)) return SIM_INVALID_CONTEXT;
  return sim_device_synchronize(context->device);
}

#include "both_peers.h"

API cuCtxEnablePeerAccess(struct cu_context *peer, unsigned flags) {
  CALL(cuCtxEnablePeerAccess, CONTEXT);
  if (flags) return SIM_INVALID_VALUE;
  if (!cu_is_context(peer) || peer->device == cu_device()) return SIM_INVALID_CONTEXT;
  return enable_access(peer->device);
}

API cuCtxDisablePeerAccess(struct cu_context *peer) {
  CALL(cuCtxDisablePeerAccess, CONTEXT);
  if (!cu_is_context(peer) || peer->device == cu_device()) return SIM_INVALID_CONTEXT;
  struct sim_device *device = &sim.devices[cu_device()];
  sim_lock();
  bool enabled = device->peers >> peer->device & 1;
  device->peers &= ~(1u << peer->device);
  sim_unlock();
  return enabled ? SIM_OK : SIM_PEER_NOT_ENABLED;
}
