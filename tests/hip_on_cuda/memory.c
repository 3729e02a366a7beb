/* Memory: allocation, pools, host memory, copies and fills. */
#include "translate.h"

#include <string.h>

enum { HOST_FLAGS = 7, REGISTER_FLAGS = 15 }; /* the bits that CUDA has too */

HIP hipMemGetInfo(size_t *free, size_t *total) {
  ENTER;
  RETURN(cuMemGetInfo, free, total);
}

HIP hipMalloc(address *pointer, size_t size) {
  ENTER;
  *pointer = 0;
  if (!size) return SUCCESS; /* an error in CUDA */
  RETURN(cuMemAlloc, pointer, size);
}

HIP hipFree(address pointer) {
  ENTER;
  if (!pointer) return SUCCESS;
  RETURN(cuMemFree, pointer);
}

HIP hipHostMalloc(void **pointer, size_t size, unsigned flags) {
  ENTER;
  *pointer = NULL;
  if (!size) return SUCCESS;
  RETURN(cuMemHostAlloc, pointer, size, flags & HOST_FLAGS);
}

HIP hipHostFree(void *pointer) {
  ENTER;
  if (!pointer) return SUCCESS;
  RETURN(cuMemFreeHost, pointer);
}

HIP hipHostGetDevicePointer(address *device, void *host, unsigned flags) {
  ENTER;
  RETURN(cuMemHostGetDevicePointer, device, host, flags);
}

HIP hipHostRegister(void *host, size_t size, unsigned flags) {
  ENTER;
  RETURN(cuMemHostRegister, host, size, flags & REGISTER_FLAGS);
}

HIP hipHostUnregister(void *host) {
  ENTER;
  RETURN(cuMemHostUnregister, host);
}

/* Handles for other processes are the same, too. */

HIP hipIpcGetMemHandle(void *handle, address pointer) {
  ENTER;
  RETURN(cuIpcGetMemHandle, handle, pointer);
}

HIP hipIpcOpenMemHandle(address *pointer, ipc_handle handle, unsigned flags) {
  ENTER;
  RETURN(cuIpcOpenMemHandle, pointer, handle, flags);
}

HIP hipIpcCloseMemHandle(address pointer) {
  ENTER;
  RETURN(cuIpcCloseMemHandle, pointer);
}

HIP hipMallocManaged(address *pointer, size_t size, unsigned flags) {
  ENTER;
  RETURN(cuMemAllocManaged, pointer, size, flags);
}

/* Stream-ordered allocation. */

HIP hipMallocAsync(address *pointer, size_t size, void *stream) {
  ENTER;
  *pointer = 0;
  if (!size) return SUCCESS;
  RETURN(cuMemAllocAsync, pointer, size, stream);
}

HIP hipMallocFromPoolAsync(address *pointer, size_t size, void *pool, void *stream) {
  ENTER;
  RETURN(cuMemAllocFromPoolAsync, pointer, size, pool, stream);
}

HIP hipFreeAsync(address pointer, void *stream) {
  ENTER;
  RETURN(cuMemFreeAsync, pointer, stream);
}

/* The structures of pools and their attributes are the same. */

HIP hipMemPoolCreate(void **pool, const void *properties) {
  ENTER;
  RETURN(cuMemPoolCreate, pool, properties);
}

HIP hipMemPoolDestroy(void *pool) {
  ENTER;
  RETURN(cuMemPoolDestroy, pool);
}

HIP hipMemPoolSetAttribute(void *pool, int number, void *value) {
  ENTER;
  RETURN(cuMemPoolSetAttribute, pool, number, value);
}

HIP hipMemPoolGetAttribute(void *pool, int number, void *value) {
  ENTER;
  RETURN(cuMemPoolGetAttribute, pool, number, value);
}

HIP hipMemPoolSetAccess(void *pool, const void *descriptions, size_t count) {
  ENTER;
  RETURN(cuMemPoolSetAccess, pool, descriptions, count);
}

HIP hipMemPoolTrimTo(void *pool, size_t keep) {
  ENTER;
  RETURN(cuMemPoolTrimTo, pool, keep);
}

HIP hipPointerGetAttributes(hip_pointer_attributes *found, address pointer) {
  enum { MEMORY_TYPE = 2, DEVICE_POINTER = 3, HOST_POINTER = 4, IS_MANAGED = 8, ORDINAL = 9 };
  unsigned type = 0, managed = 0;
  ENTER;
  memset(found, 0, sizeof *found);
  /* Memory that the driver does not know is unregistered in HIP, and no error. */
  if (CU(cuPointerGetAttribute, &type, MEMORY_TYPE, pointer)) {
    found->device = -2;
    return SUCCESS;
  }
  CU(cuPointerGetAttribute, &managed, IS_MANAGED, pointer);
  CU(cuPointerGetAttribute, &found->device, ORDINAL, pointer);
  CU(cuPointerGetAttribute, &found->device_pointer, DEVICE_POINTER, pointer);
  if (type == HIP_ON_HOST || (managed & 0xff))
    CU(cuPointerGetAttribute, &found->host_pointer, HOST_POINTER, pointer);
  found->managed = (managed & 0xff) != 0;
  found->type = found->managed ? HIP_MANAGED : type == 4 ? HIP_UNIFIED : (int)type;
  return SUCCESS;
}

/* Copies. HIP's take any pointer and a kind. */

HIP hipMemcpyHtoDAsync(address target, const void *source, size_t size, void *stream) {
  ENTER;
  if (!size) return SUCCESS;
  RETURN(cuMemcpyHtoDAsync, target, source, size, stream);
}

HIP hipMemcpyDtoHAsync(void *target, address source, size_t size, void *stream) {
  ENTER;
  if (!size) return SUCCESS;
  RETURN(cuMemcpyDtoHAsync, target, source, size, stream);
}

HIP hipMemcpyDtoDAsync(address target, address source, size_t size, void *stream) {
  ENTER;
  if (!size) return SUCCESS;
  RETURN(cuMemcpyDtoDAsync, target, source, size, stream);
}

HIP hipMemcpyAsync(address target, address source, size_t size, int kind, void *stream) {
  switch (kind) {
    case HIP_HOST_TO_DEVICE: return hipMemcpyHtoDAsync(target, (const void *)source, size, stream);
    case HIP_DEVICE_TO_HOST: return hipMemcpyDtoHAsync((void *)target, source, size, stream);
    case HIP_DEVICE_TO_DEVICE: return hipMemcpyDtoDAsync(target, source, size, stream);
    case HIP_HOST_TO_HOST:
    case HIP_ANY_KIND: break;
    default: return hip_fail(INVALID_MEMCPY_DIRECTION);
  }
  ENTER;
  if (!size) return SUCCESS;
  RETURN(cuMemcpyAsync, target, source, size, stream);
}

HIP hipMemcpy(address target, address source, size_t size, int kind) {
  int error = hipMemcpyAsync(target, source, size, kind, NULL);
  if (error) return error;
  RETURN(cuStreamSynchronize, NULL);
}

HIP hipMemcpyPeerAsync(address target, int target_device, address source, int source_device,
                       size_t size, void *stream) {
  int error;
  ENTER;
  void *to = hip_context(target_device, &error);
  if (!to) return hip_fail(error);
  void *from = hip_context(source_device, &error);
  if (!from) return hip_fail(error);
  if (!size) return SUCCESS;
  RETURN(cuMemcpyPeerAsync, target, to, source, from, size, stream);
}

/* Fills. */

HIP hipMemsetD8Async(address target, unsigned char value, size_t count, void *stream) {
  ENTER;
  RETURN(cuMemsetD8Async, target, value, count, stream);
}

HIP hipMemsetD16Async(address target, unsigned short value, size_t count, void *stream) {
  ENTER;
  RETURN(cuMemsetD16Async, target, value, count, stream);
}

HIP hipMemsetD32Async(address target, int value, size_t count, void *stream) {
  ENTER;
  RETURN(cuMemsetD32Async, target, (unsigned)value, count, stream);
}

HIP hipMemsetAsync(address target, int value, size_t size, void *stream) {
  return hipMemsetD8Async(target, (unsigned char)value, size, stream);
}

HIP hipMemset(address target, int value, size_t size) {
  int error = hipMemsetAsync(target, value, size, NULL);
  if (error) return error;
  RETURN(cuStreamSynchronize, NULL);
}
