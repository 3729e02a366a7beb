/* The CUDA face: allocation, registration, pools, pointer attributes. */

#include "cuda.h"

#define cuIpcOpenMemHandle cuIpcOpenMemHandle_v2
#define cuMemGetInfo cuMemGetInfo_v2
#include "both_memory.h"

static int allocate(void **address, size_t size, enum sim_memory memory, unsigned flags) {
  struct sim_block *block;
  int status = sim_allocate(&block, size, memory, cu_device(), flags);
  if (!status) *address = block->base;
  return status;
}

API cuMemAlloc_v2(cu_address *address, size_t size) {
  CALL(cuMemAlloc, CONTEXT | UNSAFE);
  GIVEN(address);
  return allocate((void **)address, size, SIM_DEVICE, 0);
}

API cuMemAllocManaged(cu_address *address, size_t size, unsigned flags) {
  CALL(cuMemAllocManaged, CONTEXT | UNSAFE);
  if (!address || (flags != 1 && flags != 2)) return SIM_INVALID_VALUE;
  return allocate((void **)address, size, SIM_MANAGED, flags);
}

API cuMemFree_v2(cu_address address) {
  CALL(cuMemFree, HANDLE | UNSAFE);
  return address ? sim_free((void *)(uintptr_t)address, SIM_DEVICE, cu_device()) : SIM_OK;
}

API cuMemHostAlloc(void **address, size_t size, unsigned flags) {
  CALL(cuMemHostAlloc, CONTEXT | UNSAFE);
  if (!address || flags > 7) return SIM_INVALID_VALUE;
  return allocate(address, size, SIM_HOST, flags);
}

API cuMemFreeHost(void *address) {
  CALL(cuMemFreeHost, HANDLE | UNSAFE);
  return address ? sim_free(address, SIM_HOST, cu_device()) : SIM_OK;
}

API cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
  CALL(cuMemHostRegister, CONTEXT | UNSAFE);
  return flags > 15 ? SIM_INVALID_VALUE : sim_register(address, size, cu_device(), flags);
}

API cuMemHostUnregister(void *address) {
  CALL(cuMemHostUnregister, HANDLE | UNSAFE);
  return sim_unregister(address, cu_device());
}

API cuMemHostGetDevicePointer_v2(cu_address *device, void *host, unsigned flags) {
  CALL(cuMemHostGetDevicePointer, CONTEXT);
  if (!device || flags) return SIM_INVALID_VALUE;
  sim_lock();
  const struct sim_block *block = sim_find(host);
  bool known = block && (block->memory == SIM_HOST || block->memory == SIM_REGISTERED || block->memory == SIM_MANAGED);
  sim_unlock();
  if (known) *device = (cu_address)(uintptr_t)host;
  return known ? SIM_OK : SIM_INVALID_VALUE;
}

/* Pointer attributes */

static int pointer_attribute(void *out, unsigned which, const struct sim_block *block, cu_address address) {
  bool host = block->memory == SIM_HOST || block->memory == SIM_REGISTERED;
  switch (which) {
    case 1: *(struct cu_context **)out = block->pool ? NULL : &cu_contexts[block->device]; return SIM_OK;
    case 2: *(unsigned *)out = host ? 1 : 2; return SIM_OK;
    case 3: *(cu_address *)out = address; return SIM_OK;
    case 4:
      if (!host && block->memory != SIM_MANAGED) return SIM_INVALID_VALUE;
      *(cu_address *)out = address;
      return SIM_OK;
    case 6: *(unsigned *)out = 0; return SIM_OK;
    case 7: *(unsigned long long *)out = block->ordinal; return SIM_OK;
    case 8: *(unsigned *)out = block->memory == SIM_MANAGED; return SIM_OK;
    case 9: *(int *)out = block->device; return SIM_OK;
    case 10: *(unsigned *)out = 0; return SIM_OK;
    case 11: *(cu_address *)out = (cu_address)(uintptr_t)block->base; return SIM_OK;
    case 12: *(size_t *)out = block->size; return SIM_OK;
    case 13: *(unsigned *)out = 1; return SIM_OK;
    case 16: *(unsigned *)out = 3; return SIM_OK;
    case 17: *(struct sim_pool **)out = block->pool; return SIM_OK;
    default: return SIM_NOT_SUPPORTED;
  }
}

API cuPointerGetAttribute(void *out, unsigned which, cu_address address) {
  CALL(cuPointerGetAttribute, HANDLE | SIM_ALLOWED_AFTER_ERROR);
  GIVEN(out);
  sim_lock();
  const struct sim_block *block = sim_find((void *)(uintptr_t)address);
  int status = block ? pointer_attribute(out, which, block, address) : SIM_INVALID_VALUE;
  sim_unlock();
  return status;
}

/* Stream-ordered allocation and pools */

API cuMemAllocAsync(cu_address *address, size_t size, struct sim_stream *stream) {
  CALL(cuMemAllocAsync, HANDLE | UNSAFE);
  STREAM(stream);
  GIVEN(address);
  return sim_pool_allocate((void **)address, size, sim.devices[stream->device].pool, stream);
}

API cuMemAllocFromPoolAsync(cu_address *address, size_t size, struct sim_pool *pool, struct sim_stream *stream) {
  CALL(cuMemAllocFromPoolAsync, HANDLE | UNSAFE);
  STREAM(stream);
  GIVEN(address);
  ALIVE(pool, SIM_POOL);
  return sim_pool_allocate((void **)address, size, pool, stream);
}

API cuMemFreeAsync(cu_address address, struct sim_stream *stream) {
  CALL(cuMemFreeAsync, HANDLE | UNSAFE);
  STREAM(stream);
  if (!address) return SIM_OK;
  return sim_pool_free((void *)(uintptr_t)address, stream);
}

API cuDeviceGetDefaultMemPool(struct sim_pool **pool, int device) {
  CALL(cuDeviceGetDefaultMemPool, INIT);
  GIVEN(pool);
  if (!sim_is_device(device)) return SIM_INVALID_DEVICE;
  *pool = sim.devices[device].default_pool;
  return SIM_OK;
}
