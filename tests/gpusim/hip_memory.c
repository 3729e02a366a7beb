/* The HIP face: allocation, registration, pools, what a pointer points to. */
#include <string.h>

#include "hip.h"

enum { HOST_FLAGS = 7, COHERENCE = 0xc0000000u, NUMA_USER = 0x20000000u, REGISTER_FLAGS = 15 };

static int allocate(void **address, size_t size, enum sim_memory memory, unsigned flags) {
  struct sim_block *block;
  GIVEN(address);
  *address = NULL;
  if (!size) return SIM_OK; /* HIP gives NULL, and no error */
  int status = sim_allocate(&block, size, memory, hip_device, flags);
  if (!status) *address = block->base;
  FAIL(status);
}

API hipMalloc(void **address, size_t size) {
  CALL(hipMalloc, CURRENT | UNSAFE);
  return allocate(address, size, SIM_DEVICE, 0);
}

API hipMallocManaged(void **address, size_t size, unsigned flags) {
  CALL(hipMallocManaged, CURRENT | UNSAFE);
  if (flags != 1 && flags != 2) FAIL(SIM_INVALID_VALUE);
  return allocate(address, size, SIM_MANAGED, flags);
}

API hipFree(void *address) {
  CALL(hipFree, CURRENT | UNSAFE);
  FAIL(address ? sim_free(address, SIM_DEVICE, hip_device) : SIM_OK);
}

API hipHostMalloc(void **address, size_t size, unsigned flags) {
  CALL(hipHostMalloc, CURRENT | UNSAFE);
  if (flags & ~(HOST_FLAGS | COHERENCE | NUMA_USER)) FAIL(SIM_INVALID_VALUE);
  return allocate(address, size, SIM_HOST, flags & HOST_FLAGS);
}

API hipHostFree(void *address) {
  CALL(hipHostFree, CURRENT | UNSAFE);
  FAIL(address ? sim_free(address, SIM_HOST, hip_device) : SIM_OK);
}

API hipHostRegister(void *address, size_t size, unsigned flags) {
  CALL(hipHostRegister, CURRENT | UNSAFE);
  FAIL(flags > REGISTER_FLAGS ? SIM_INVALID_VALUE : sim_register(address, size, hip_device, flags));
}

API hipHostUnregister(void *address) {
  CALL(hipHostUnregister, CURRENT | UNSAFE);
  FAIL(sim_unregister(address, hip_device));
}

API hipIpcGetMemHandle(void *handle, void *address) {
  CALL(hipIpcGetMemHandle, CURRENT | UNSAFE);
  FAIL(sim_ipc_export(handle, address));
}

struct hip_ipc_handle {
  char bytes[SIM_IPC_BYTES];
};

API hipIpcOpenMemHandle(void **address, struct hip_ipc_handle handle, unsigned flags) {
  CALL(hipIpcOpenMemHandle, CURRENT | UNSAFE);
  FAIL(flags == 1 ? sim_ipc_open(address, &handle, hip_device) : SIM_INVALID_VALUE);
}

API hipIpcCloseMemHandle(void *address) {
  CALL(hipIpcCloseMemHandle, CURRENT | UNSAFE);
  FAIL(sim_ipc_close(address, hip_device));
}

API hipHostGetDevicePointer(void **device, void *host, unsigned flags) {
  CALL(hipHostGetDevicePointer, CURRENT);
  if (!device || flags) FAIL(SIM_INVALID_VALUE);
  sim_lock();
  const struct sim_block *block = sim_find(host);
  bool known = block && (block->memory == SIM_HOST || block->memory == SIM_REGISTERED || block->memory == SIM_MANAGED);
  sim_unlock();
  if (known) *device = host;
  FAIL(known ? SIM_OK : SIM_INVALID_VALUE);
}

API hipMemGetInfo(size_t *free, size_t *total) {
  CALL(hipMemGetInfo, CURRENT);
  sim_lock();
  const struct sim_device *device = &sim.devices[hip_device];
  if (free) *free = device->total > device->used ? device->total - device->used : 0;
  if (total) *total = device->total;
  sim_unlock();
  return SIM_OK;
}

API hipPointerGetAttributes(hip_pointer_attributes *out, void *address) {
  CALL(hipPointerGetAttributes, CURRENT);
  GIVEN(out);
  memset(out, 0, sizeof *out);
  out->device = -2;
  sim_lock();
  const struct sim_block *block = sim_find(address);
  if (block) {
    bool host = block->memory == SIM_HOST || block->memory == SIM_REGISTERED;
    out->managed = block->memory == SIM_MANAGED;
    out->type = out->managed ? HIP_MANAGED : host ? HIP_ON_HOST : HIP_ON_DEVICE;
    out->device = block->device;
    out->device_pointer = address;
    out->host_pointer = host || out->managed ? address : NULL;
    out->flags = block->flags;
  }
  sim_unlock();
  return SIM_OK;
}

/* Stream-ordered allocation and pools */

API hipMallocAsync(void **address, size_t size, struct sim_stream *stream) {
  CALL(hipMallocAsync, CURRENT | UNSAFE);
  STREAM(stream);
  GIVEN(address);
  *address = NULL;
  FAIL(size ? sim_pool_allocate(address, size, sim.devices[stream->device].pool, stream) : SIM_OK);
}

API hipMallocFromPoolAsync(void **address, size_t size, struct sim_pool *pool, struct sim_stream *stream) {
  CALL(hipMallocFromPoolAsync, CURRENT | UNSAFE);
  STREAM(stream);
  GIVEN(address);
  if (!sim_handle_alive(pool, SIM_POOL)) FAIL(SIM_INVALID_VALUE);
  *address = NULL;
  FAIL(size ? sim_pool_allocate(address, size, pool, stream) : SIM_OK);
}

API hipFreeAsync(void *address, struct sim_stream *stream) {
  CALL(hipFreeAsync, CURRENT | UNSAFE);
  STREAM(stream);
  FAIL(sim_pool_free(address, stream));
}

API hipMemPoolCreate(struct sim_pool **pool, const hip_pool_props *props) {
  CALL(hipMemPoolCreate, ANY | UNSAFE);
  if (!pool || !props || props->allocation_type != 1 || props->location.type != 1) FAIL(SIM_INVALID_VALUE);
  if (!hip_is_device(props->location.id)) FAIL(SIM_INVALID_VALUE);
  if (props->handle_types) FAIL(SIM_NOT_SUPPORTED);
  sim_lock();
  *pool = sim_pool_new(props->location.id, false);
  sim_unlock();
  return SIM_OK;
}

API hipMemPoolDestroy(struct sim_pool *pool) {
  CALL(hipMemPoolDestroy, ANY | UNSAFE);
  FAIL(sim_handle_alive(pool, SIM_POOL) ? sim_pool_destroy(pool) : SIM_INVALID_VALUE);
}

enum { FIRST_NUMBER = 4, RESERVED = 5, USED = 7, LAST_ATTRIBUTE = 8 };

API hipMemPoolGetAttribute(struct sim_pool *pool, int which, void *value) {
  CALL(hipMemPoolGetAttribute, ANY);
  if (!value || which < 1 || which > LAST_ATTRIBUTE || !sim_handle_alive(pool, SIM_POOL)) FAIL(SIM_INVALID_VALUE);
  sim_lock();
  if (which < FIRST_NUMBER) *(int *)value = (int)pool->attributes[which];
  else *(uint64_t *)value = pool->attributes[which];
  sim_unlock();
  return SIM_OK;
}

API hipMemPoolSetAttribute(struct sim_pool *pool, int which, void *value) {
  CALL(hipMemPoolSetAttribute, ANY | UNSAFE);
  if (!value || which < 1 || which > LAST_ATTRIBUTE || which == RESERVED || which == USED) FAIL(SIM_INVALID_VALUE);
  if (!sim_handle_alive(pool, SIM_POOL)) FAIL(SIM_INVALID_VALUE);
  if (which > FIRST_NUMBER && *(uint64_t *)value) FAIL(SIM_INVALID_VALUE); /* a high mark can only be reset */
  sim_lock();
  if (which > FIRST_NUMBER) pool->attributes[which] = pool->attributes[which - 1];
  else pool->attributes[which] = which < FIRST_NUMBER ? (uint64_t)(*(int *)value != 0) : *(uint64_t *)value;
  sim_unlock();
  return SIM_OK;
}

API hipMemPoolTrimTo(struct sim_pool *pool, size_t keep) {
  CALL(hipMemPoolTrimTo, ANY | UNSAFE);
  if (!sim_handle_alive(pool, SIM_POOL)) FAIL(SIM_INVALID_VALUE);
  sim_pool_trim(pool, keep);
  return SIM_OK;
}

API hipMemPoolSetAccess(struct sim_pool *pool, const hip_access *access, size_t count) {
  CALL(hipMemPoolSetAccess, ANY | UNSAFE);
  if (!sim_handle_alive(pool, SIM_POOL) || (count && !access)) FAIL(SIM_INVALID_VALUE);
  for (size_t i = 0; i < count; i++) {
    if (access[i].location.type != 1 || !hip_is_device(access[i].location.id)) FAIL(SIM_INVALID_VALUE);
    if (access[i].location.id == pool->device && access[i].flags != 3) FAIL(SIM_INVALID_DEVICE);
  }
  sim_lock();
  for (size_t i = 0; i < count; i++) {
    unsigned bit = 1u << access[i].location.id;
    pool->access = access[i].flags == 3 ? pool->access | bit : pool->access & ~bit;
  }
  sim_unlock();
  return SIM_OK;
}
