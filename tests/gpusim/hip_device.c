/* The HIP face: devices, which look like AMD's: a gfx name, 64 lanes, 64 KiB of local memory. */
#include <stdio.h>
#include <string.h>

#include "hip.h"

enum {
  VERSION = 70152633, /* 7.1.52633 */
  LANES = 64,
  LOCAL_MEMORY = 65536,
};
#define TARGET "gfx90a:sramecc+:xnack-"

API hipInit(unsigned flags) {
  CALL(hipInit, INIT | SIM_ALLOWED_AFTER_ERROR);
  END(flags ? SIM_INVALID_VALUE : sim.device_count ? SIM_OK : SIM_NO_DEVICE);
}

API hipRuntimeGetVersion(int *version) {
  GIVEN(version);
  *version = VERSION;
  return SIM_OK;
}

API hipGetDeviceCount(int *count) {
  CALL(hipGetDeviceCount, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(count);
  *count = sim.device_count;
  END(*count ? SIM_OK : SIM_NO_DEVICE);
}

API hipSetDevice(int device) {
  CALL(hipSetDevice, INIT | SIM_ALLOWED_AFTER_ERROR);
  DEVICE(device);
  hip_device = device;
  return SIM_OK;
}

API hipGetDevice(int *device) {
  CALL(hipGetDevice, CONTEXT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(device);
  *device = hip_device;
  return SIM_OK;
}

static void name_of(char *name, size_t size, int device) { snprintf(name, size, "gpusim (software, no GPU) %d", device); }

/* Sixteen letters, as AMD's devices have. */
static void uuid_of(char *uuid, int device) {
  char text[24];
  snprintf(text, sizeof text, "67707573696d%04d", device);
  memcpy(uuid, text, 16);
}

API hipDeviceGetUuid(char *uuid, int device) {
  CALL(hipDeviceGetUuid, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(uuid);
  DEVICE(device);
  uuid_of(uuid, device);
  return SIM_OK;
}

static int attribute(int which, int device) {
  switch (which) {
    case 2: return 2;                          /* copy engines */
    case 5: return 1700000;                    /* kHz */
    case 9: case 24: return 1;                 /* managed memory, also while kernels run */
    case 19: return 1 << 20;                   /* cache */
    case 56: return 1024;                      /* threads of a block */
    case 57: return 2048;                      /* threads of a compute unit */
    case 59: return 4096;                      /* bits of the memory's bus, and its kHz */
    case 60: return 1600000;
    case 63: return 2;                         /* compute units */
    case 67: return device;                    /* bus */
    case 69: return 0xffff;                    /* PCI domain */
    case 72: return 65536;                     /* registers of a compute unit */
    case 74: case 76: return LOCAL_MEMORY;     /* of a block, of a compute unit */
    case 87: return LANES;
    case 88: return 1;                         /* memory pools */
    case 10013: return 1;                      /* waits for numbers in memory */
    default: return 0;
  }
}

API hipDeviceGetAttribute(int *value, int which, int device) {
  CALL(hipDeviceGetAttribute, INIT | SIM_ALLOWED_AFTER_ERROR);
  if (!value || which < 0 || (which > 95 && (which < 10000 || which > 10022))) END(SIM_INVALID_VALUE);
  DEVICE(device);
  *value = attribute(which, device);
  return SIM_OK;
}

API hipGetDevicePropertiesR0600(char *out, int device) {
  CALL(hipGetDevicePropertiesR0600, INIT | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(out);
  DEVICE(device);
  memset(out, 0, HIP_PROPERTIES_SIZE);
  name_of(out, 256, device);
  uuid_of(out + 256, device);
  memcpy(out + 288, &sim.devices[device].total, 8);
  snprintf(out + 1160, 256, "%s", TARGET);
  static const struct { short offset, bytes, attribute; } fields[] = {
      {296, 8, 74}, {308, 4, 87}, {320, 4, 56}, {348, 4, 5},  {388, 4, 63}, {584, 4, 67}, {592, 4, 69}, {600, 4, 2},  {608, 4, 60},
      {612, 4, 59}, {616, 4, 19}, {624, 4, 57}, {640, 8, 76}, {648, 4, 72}, {652, 4, 24}, {676, 4, 9},  {744, 4, 88},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    int64_t value = attribute(fields[i].attribute, device);
    memcpy(out + fields[i].offset, &value, (size_t)fields[i].bytes);
  }
  return SIM_OK;
}

API hipDeviceSynchronize(void) {
  CALL(hipDeviceSynchronize, CONTEXT);
  END(sim_device_synchronize(hip_device));
}

API hipDeviceReset(void) {
  CALL(hipDeviceReset, CONTEXT | SIM_ALLOWED_AFTER_ERROR);
  sim_device_reset(hip_device);
  return SIM_OK;
}

#include "both_peers.h"

API hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  CALL(hipDeviceEnablePeerAccess, CONTEXT);
  if (flags) END(SIM_INVALID_VALUE);
  if (!sim_is_device(peer) || peer == hip_device) END(SIM_INVALID_DEVICE);
  END(enable_access(peer));
}
