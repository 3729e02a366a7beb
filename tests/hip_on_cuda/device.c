/* Devices: enumeration, attributes, properties, the current one, peers. */
#include "translate.h"

#include <stdio.h>
#include <string.h>

enum { VERSION = 70152633 }; /* HIP 7.1.52633: what the translation claims to be */

/* hipDeviceAttribute_t to CUdevice_attribute; hardly a number is the same. */
static const struct { short hip, cuda; } attributes[] = {
    {2, 40},   /* asynchronous engines */
    {3, 19},   /* can map host memory */
    {4, 91},   /* host pointer for registered memory */
    {5, 13},   /* clock rate */
    {6, 20},   /* compute mode */
    {7, 90},   /* compute preemption */
    {8, 31},   /* concurrent kernels */
    {9, 89},   /* concurrent managed access */
    {10, 95},  /* cooperative launch */
    {13, 101}, /* direct managed access from the host */
    {14, 79},  /* global L1 cache */
    {15, 86},  /* native host atomics */
    {16, 18},  /* integrated */
    {18, 17},  /* kernel time-out */
    {19, 38},  /* L2 cache size */
    {20, 80},  /* local L1 cache */
    {23, 75},  /* compute capability, major */
    {24, 83},  /* managed memory */
    {25, 106}, /* blocks per multiprocessor */
    {26, 2}, {27, 3}, {28, 4}, /* block dimensions */
    {29, 5}, {30, 6}, {31, 7}, /* grid dimensions */
    {56, 1},   /* threads per block */
    {57, 39},  /* threads per multiprocessor */
    {58, 11},  /* pitch */
    {59, 37},  /* memory bus width */
    {60, 36},  /* memory clock rate */
    {61, 76},  /* compute capability, minor */
    {62, 85},  /* multi-GPU board group */
    {63, 16},  /* multiprocessors */
    {65, 88},  /* pageable memory access */
    {66, 100}, /* ... through the host's page tables */
    {67, 33}, {68, 34}, {69, 50}, /* PCI bus, device, domain */
    {71, 12},  /* registers per block */
    {72, 82},  /* registers per multiprocessor */
    {74, 8},   /* shared memory per block */
    {75, 97},  /* shared memory per block, opt-in */
    {76, 81},  /* shared memory per multiprocessor */
    {77, 87},  /* single to double performance */
    {78, 78},  /* stream priorities */
    {79, 30}, {80, 35}, {81, 14}, {82, 51}, /* surface, TCC, texture, texture pitch */
    {83, 9},   /* constant memory */
    {85, 41},  /* unified addressing */
    {87, 10},  /* warp size */
    {88, 115}, /* memory pools */
    {89, 102}, /* virtual memory management */
    {90, 99},  /* host register */
    {10013, 122}, /* stream memory operations */
    {10002, 81}, /* shared memory per multiprocessor, AMD's number */
};

static int attribute(int number, int device) {
  int value = 0;
  CU(cuDeviceGetAttribute, &value, number, device);
  return value;
}

static int check_device(int device) {
  int error = hip_start();
  if (!error && (device < 0 || device >= cu_device_count)) error = INVALID_DEVICE;
  return hip_fail(error);
}

#define CHECK(device) \
  do { \
    int wrong = check_device(device); \
    if (wrong) return wrong; \
  } while (0)

HIP hipInit(unsigned flags) { return hip_fail(flags ? INVALID_VALUE : hip_start()); }

HIP hipRuntimeGetVersion(int *version) {
  *version = VERSION;
  return SUCCESS;
}

HIP hipGetDeviceCount(int *count) {
  int error = hip_start();
  *count = error ? 0 : cu_device_count;
  return hip_fail(error);
}

HIP hipSetDevice(int device) {
  CHECK(device);
  hip_device = device;
  return hip_fail(hip_enter());
}

HIP hipGetDevice(int *device) {
  CHECK(hip_device);
  *device = hip_device;
  return SUCCESS;
}

/* Sixteen letters, as AMD's devices have, and not what the cuda backend calls the same device. */
static int uuid_of(char *uuid, int device) {
  unsigned char bytes[16] = {0};
  int result = CU(cuDeviceGetUuid, bytes, device);
  for (int i = 0; i < 8; i++) {
    uuid[2 * i] = "0123456789abcdef"[(bytes[i] ^ bytes[i + 8]) >> 4];
    uuid[2 * i + 1] = "0123456789abcdef"[(bytes[i] ^ bytes[i + 8]) & 15];
  }
  return result;
}

HIP hipDeviceGetUuid(char *uuid, int device) {
  CHECK(device);
  return hip_result(uuid_of(uuid, device));
}

HIP hipDeviceGetAttribute(int *value, int number, int device) {
  CHECK(device);
  *value = 0;
  for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
    if (attributes[i].hip == number)
      RETURN(cuDeviceGetAttribute, value, attributes[i].cuda, device);
  return hip_fail(INVALID_VALUE);
}

/* hipDeviceProp_tR0600: 1472 bytes; the fields that have a meaning here, by offset. */
HIP hipGetDevicePropertiesR0600(char *properties, int device) {
  CHECK(device);
  memset(properties, 0, 1472);
  CU(cuDeviceGetName, properties, 256, device);
  uuid_of(properties + 256, device);
  CU(cuDeviceTotalMem, (size_t *)(properties + 288), device);
  static const struct { short offset, bytes, cuda; } fields[] = {
      {296, 8, 8},   {304, 4, 12},  {308, 4, 10},  {312, 8, 11},  {320, 4, 1},   {324, 4, 2},
      {328, 4, 3},   {332, 4, 4},   {336, 4, 5},   {340, 4, 6},   {344, 4, 7},   {348, 4, 13},
      {352, 8, 9},   {360, 4, 75},  {364, 4, 76},  {368, 8, 14},  {376, 8, 51},  {388, 4, 16},
      {392, 4, 17},  {396, 4, 18},  {400, 4, 19},  {404, 4, 20},  {568, 8, 30},  {576, 4, 31},
      {580, 4, 32},  {584, 4, 33},  {588, 4, 34},  {592, 4, 50},  {596, 4, 35},  {600, 4, 40},
      {604, 4, 41},  {608, 4, 36},  {612, 4, 37},  {616, 4, 38},  {624, 4, 39},  {628, 4, 78},
      {632, 4, 79},  {636, 4, 80},  {640, 8, 81},  {648, 4, 82},  {652, 4, 83},  {660, 4, 85},
      {664, 4, 86},  {668, 4, 87},  {672, 4, 88},  {676, 4, 89},  {680, 4, 90},  {684, 4, 91},
      {688, 4, 95},  {696, 8, 97},  {704, 4, 100}, {708, 4, 101}, {712, 4, 106}, {728, 4, 99},
      {744, 4, 115}, {1416, 8, 81},
  };
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    uint64_t value = (uint64_t)attribute(fields[i].cuda, device);
    memcpy(properties + fields[i].offset, &value, (size_t)fields[i].bytes);
  }
  int major = attribute(75, device), minor = attribute(76, device);
  /* What kernels are compiled for here: NVRTC's name, and no "gfx". */
  snprintf(properties + 1160, 256, "sm_%d%d", major, minor);
  return SUCCESS;
}

FORWARD(hipDeviceSynchronize, cuCtxSynchronize, (void))

HIP hipDeviceCanAccessPeer(int *can, int device, int peer) {
  CHECK(device);
  CHECK(peer);
  *can = 0;
  if (device == peer) return SUCCESS;
  RETURN(cuDeviceCanAccessPeer, can, device, peer);
}

HIP hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  int error;
  ENTER;
  void *context = hip_context(peer, &error);
  if (!context) return hip_fail(error);
  RETURN(cuCtxEnablePeerAccess, context, flags);
}
