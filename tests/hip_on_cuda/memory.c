/* Memory: allocation, pools, host memory, copies and fills. */
#include "translate.h"

#include <string.h>

enum { HOST_FLAGS = 7, REGISTER_FLAGS = 15 }; /* the bits that CUDA has too */

FORWARD(hipMemGetInfo, cuMemGetInfo, (size_t *free, size_t *total), free, total)

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

FORWARD(hipHostGetDevicePointer, cuMemHostGetDevicePointer,
        (address *device, void *host, unsigned flags), device, host, flags)
FORWARD(hipHostRegister, cuMemHostRegister,
        (void *host, size_t size, unsigned flags), host, size, flags & REGISTER_FLAGS)
FORWARD(hipHostUnregister, cuMemHostUnregister, (void *host), host)

/* Handles for other processes are the same, too. */

FORWARD(hipIpcGetMemHandle, cuIpcGetMemHandle, (void *handle, address pointer), handle, pointer)
FORWARD(hipIpcOpenMemHandle, cuIpcOpenMemHandle,
        (address *pointer, ipc_handle handle, unsigned flags), pointer, handle, flags)
FORWARD(hipIpcCloseMemHandle, cuIpcCloseMemHandle, (address pointer), pointer)
FORWARD(hipMallocManaged, cuMemAllocManaged,
        (address *pointer, size_t size, unsigned flags), pointer, size, flags)

/* Stream-ordered allocation. */

HIP hipMallocAsync(address *pointer, size_t size, void *stream) {
  ENTER;
  *pointer = 0;
  if (!size) return SUCCESS;
  RETURN(cuMemAllocAsync, pointer, size, stream);
}

FORWARD(hipMallocFromPoolAsync, cuMemAllocFromPoolAsync,
        (address *pointer, size_t size, void *pool, void *stream), pointer, size, pool, stream)
FORWARD(hipFreeAsync, cuMemFreeAsync, (address pointer, void *stream), pointer, stream)

/* The structures of pools and their attributes are the same. */

FORWARD(hipMemPoolCreate, cuMemPoolCreate, (void **pool, const void *properties), pool, properties)
FORWARD(hipMemPoolDestroy, cuMemPoolDestroy, (void *pool), pool)
FORWARD(hipMemPoolSetAttribute, cuMemPoolSetAttribute,
        (void *pool, int number, void *value), pool, number, value)
FORWARD(hipMemPoolGetAttribute, cuMemPoolGetAttribute,
        (void *pool, int number, void *value), pool, number, value)
FORWARD(hipMemPoolSetAccess, cuMemPoolSetAccess,
        (void *pool, const void *descriptions, size_t count), pool, descriptions, count)
FORWARD(hipMemPoolTrimTo, cuMemPoolTrimTo, (void *pool, size_t keep), pool, keep)

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

FORWARD(hipMemsetD8Async, cuMemsetD8Async,
        (address target, unsigned char value, size_t count, void *stream), target, value, count, stream)
FORWARD(hipMemsetD16Async, cuMemsetD16Async,
        (address target, unsigned short value, size_t count, void *stream), target, value, count, stream)
FORWARD(hipMemsetD32Async, cuMemsetD32Async,
        (address target, int value, size_t count, void *stream), target, (unsigned)value, count, stream)

HIP hipMemsetAsync(address target, int value, size_t size, void *stream) {
  return hipMemsetD8Async(target, (unsigned char)value, size, stream);
}

HIP hipMemset(address target, int value, size_t size) {
  int error = hipMemsetAsync(target, value, size, NULL);
  if (error) return error;
  RETURN(cuStreamSynchronize, NULL);
}
