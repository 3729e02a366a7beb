/* What the files of the translation share: the driver's functions, errors, the current device.
 *
 * All declarations are written from the public documentation of both interfaces; there is no vendor
 * header here.
 */
#ifndef HIP_ON_CUDA_TRANSLATE_H
#define HIP_ON_CUDA_TRANSLATE_H

#include <stddef.h>
#include <stdint.h>

#include "../gpusim/hip_types.h"

/* An entry point of HIP. Each returns a hipError_t. */
#define HIP __attribute__((visibility("default"))) int
#define HIP_TEXT __attribute__((visibility("default"))) const char *

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_MEMCPY_DIRECTION = 21,
  INSUFFICIENT_DRIVER = 35,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_HANDLE = 400,
  NOT_READY = 600,
  LAUNCH_FAILURE = 719,
  NOT_SUPPORTED = 801,
  UNKNOWN = 999,
};

typedef uint64_t address; /* CUdeviceptr */
typedef void (*host_function)(void *);

/* CUDA_KERNEL_NODE_PARAMS_v2, CUDA_MEMSET_NODE_PARAMS, CUDA_MEMCPY3D */
typedef struct {
  void *function;
  hip_extent grid, block;
  unsigned shared_memory;
  void **parameters, **extra;
  void *kernel, *context;
} cu_kernel_node;

typedef struct {
  address target;
  size_t pitch;
  unsigned value, element_size;
  size_t width, height;
} cu_memset_node;

typedef struct {
  size_t x, y, z, level;
  int type;
  const void *host;
  address device;
  void *array, *reserved;
  size_t pitch, height;
} cu_copy_side;
typedef struct {
  char bytes[64];
} ipc_handle;

typedef struct {
  cu_copy_side source, target;
  size_t width, height, depth;
} cu_copy3d;

_Static_assert(sizeof(cu_kernel_node) == 72 && offsetof(cu_kernel_node, parameters) == 40, "");
_Static_assert(sizeof(cu_memset_node) == 40 && offsetof(cu_memset_node, width) == 24, "");
_Static_assert(sizeof(cu_copy3d) == 200 && offsetof(cu_copy3d, target.type) == 120, "");

/* The driver's functions: name, the CUDA version that fixes the signature used here, signature.
 * In CUDA handles are pointers, and devices and enumerations ints. */
#define DRIVER_FUNCTIONS(F) \
  F(cuInit, 2000, (unsigned)) \
  F(cuDeviceGetCount, 2000, (int *)) \
  F(cuDeviceGetName, 2000, (char *, int, int)) \
  F(cuDeviceGetUuid, 11040, (void *, int)) \
  F(cuDeviceTotalMem, 3020, (size_t *, int)) \
  F(cuDeviceGetAttribute, 2000, (int *, int, int)) \
  F(cuDeviceCanAccessPeer, 4000, (int *, int, int)) \
  F(cuDevicePrimaryCtxRetain, 7000, (void **, int)) \
  F(cuDevicePrimaryCtxReset, 7000, (int)) \
  F(cuCtxGetCurrent, 4000, (void **)) \
  F(cuCtxSetCurrent, 4000, (void *)) \
  F(cuCtxSynchronize, 2000, (void)) \
  F(cuCtxEnablePeerAccess, 4000, (void *, unsigned)) \
  F(cuMemGetInfo, 3020, (size_t *, size_t *)) \
  F(cuMemAlloc, 3020, (address *, size_t)) \
  F(cuMemFree, 3020, (address)) \
  F(cuMemHostAlloc, 2020, (void **, size_t, unsigned)) \
  F(cuMemFreeHost, 2000, (void *)) \
  F(cuMemHostGetDevicePointer, 3020, (address *, void *, unsigned)) \
  F(cuMemHostRegister, 6050, (void *, size_t, unsigned)) \
  F(cuMemHostUnregister, 4000, (void *)) \
  F(cuIpcGetMemHandle, 4010, (void *, address)) \
  F(cuIpcOpenMemHandle, 11000, (address *, ipc_handle, unsigned)) \
  F(cuIpcCloseMemHandle, 4010, (address)) \
  F(cuMemAllocManaged, 6000, (address *, size_t, unsigned)) \
  F(cuMemAllocAsync, 11020, (address *, size_t, void *)) \
  F(cuMemFreeAsync, 11020, (address, void *)) \
  F(cuMemAllocFromPoolAsync, 11020, (address *, size_t, void *, void *)) \
  F(cuMemPoolCreate, 11020, (void **, const void *)) \
  F(cuMemPoolDestroy, 11020, (void *)) \
  F(cuMemPoolSetAttribute, 11020, (void *, int, void *)) \
  F(cuMemPoolGetAttribute, 11020, (void *, int, void *)) \
  F(cuMemPoolSetAccess, 11020, (void *, const void *, size_t)) \
  F(cuMemPoolTrimTo, 11020, (void *, size_t)) \
  F(cuPointerGetAttribute, 4000, (void *, int, address)) \
  F(cuMemcpyAsync, 4000, (address, address, size_t, void *)) \
  F(cuMemcpyHtoDAsync, 3020, (address, const void *, size_t, void *)) \
  F(cuMemcpyDtoHAsync, 3020, (void *, address, size_t, void *)) \
  F(cuMemcpyDtoDAsync, 3020, (address, address, size_t, void *)) \
  F(cuMemcpyPeerAsync, 4000, (address, void *, address, void *, size_t, void *)) \
  F(cuMemsetD8Async, 3020, (address, unsigned char, size_t, void *)) \
  F(cuMemsetD16Async, 3020, (address, unsigned short, size_t, void *)) \
  F(cuMemsetD32Async, 3020, (address, unsigned, size_t, void *)) \
  F(cuStreamCreate, 2000, (void **, unsigned)) \
  F(cuStreamDestroy, 4000, (void *)) \
  F(cuStreamQuery, 2000, (void *)) \
  F(cuStreamSynchronize, 2000, (void *)) \
  F(cuStreamWaitEvent, 3020, (void *, void *, unsigned)) \
  F(cuStreamGetCtx, 9020, (void *, void **)) \
  F(cuStreamWriteValue64, 11070, (void *, address, uint64_t, unsigned)) \
  F(cuStreamWaitValue64, 11070, (void *, address, uint64_t, unsigned)) \
  F(cuStreamBeginCapture, 10010, (void *, int)) \
  F(cuStreamEndCapture, 10000, (void *, void **)) \
  F(cuStreamIsCapturing, 10000, (void *, int *)) \
  F(cuThreadExchangeStreamCaptureMode, 10010, (int *)) \
  F(cuEventCreate, 2000, (void **, unsigned)) \
  F(cuEventDestroy, 4000, (void *)) \
  F(cuEventRecord, 2000, (void *, void *)) \
  F(cuEventQuery, 2000, (void *)) \
  F(cuEventSynchronize, 2000, (void *)) \
  F(cuEventElapsedTime, 2000, (float *, void *, void *)) \
  F(cuLaunchHostFunc, 10000, (void *, host_function, void *)) \
  F(cuModuleLoadData, 2000, (void **, const void *)) \
  F(cuModuleUnload, 2000, (void *)) \
  F(cuModuleGetFunction, 2000, (void **, void *, const char *)) \
  F(cuModuleGetGlobal, 3020, (address *, size_t *, void *, const char *)) \
  F(cuFuncGetAttribute, 2020, (int *, int, void *)) \
  F(cuLaunchKernel, 4000, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                           unsigned, void *, void **, void **)) \
  F(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, (int *, void *, int, size_t)) \
  F(cuGraphCreate, 10000, (void **, unsigned)) \
  F(cuGraphDestroy, 10000, (void *)) \
  F(cuGraphGetNodes, 10000, (void *, void **, size_t *)) \
  F(cuGraphAddKernelNode, 12000, (void **, void *, void *const *, size_t, const cu_kernel_node *)) \
  F(cuGraphAddMemcpyNode, 10000, \
    (void **, void *, void *const *, size_t, const cu_copy3d *, void *)) \
  F(cuGraphAddMemsetNode, 10000, \
    (void **, void *, void *const *, size_t, const cu_memset_node *, void *)) \
  F(cuGraphAddEmptyNode, 10000, (void **, void *, void *const *, size_t)) \
  F(cuGraphInstantiateWithFlags, 11040, (void **, void *, unsigned long long)) \
  F(cuGraphLaunch, 10000, (void *, void *)) \
  F(cuGraphExecDestroy, 10000, (void *)) \
  F(cuGraphExecKernelNodeSetParams, 12000, (void *, void *, const cu_kernel_node *)) \
  F(cuGraphExecMemcpyNodeSetParams, 10020, (void *, void *, const cu_copy3d *, void *)) \
  F(cuGraphExecMemsetNodeSetParams, 10020, (void *, void *, const cu_memset_node *, void *)) \
  F(cuGraphNodeSetEnabled, 11060, (void *, void *, unsigned)) \
  F(cuGetErrorString, 6000, (int, const char **))

#define MEMBER(name, version, signature) int(*name) signature;
extern struct driver { DRIVER_FUNCTIONS(MEMBER) } cu_driver;
#undef MEMBER

/* Call a function of the driver; a driver without it says that it is not supported. */
#define CU(name, ...) (cu_driver.name ? cu_driver.name(__VA_ARGS__) : NOT_SUPPORTED)

extern int cu_device_count;
/* This thread's device, as hipSetDevice left it; 0 on a thread that never called that. */
extern _Thread_local int hip_device;

/* Load the driver, once; return a hipError_t. */
int hip_start(void);
/* Make the current device's primary context current, as HIP does by itself; return a hipError_t. */
int hip_enter(void);
/* Translate a CUresult, keep it for hipGetLastError, and return it. */
int hip_result(int result);
/* Keep a hipError_t for hipGetLastError, and return it. */
int hip_fail(int error);
/* Return a device's primary context, or NULL with a hipError_t in *error. */
void *hip_context(int device, int *error);

/* Begin an entry point that needs a context, and end one with a driver's call. */
#define ENTER \
  do { \
    int entered = hip_enter(); \
    if (entered) return hip_fail(entered); \
  } while (0)
#define RETURN(...) return hip_result(CU(__VA_ARGS__))
/* An entry point that is a function of the driver's: both names, the parameters, the arguments. */
#define FORWARD(hip_name, cu_name, parameters, ...) \
  HIP hip_name parameters { \
    ENTER; \
    RETURN(cu_name, __VA_ARGS__); \
  }

#endif
