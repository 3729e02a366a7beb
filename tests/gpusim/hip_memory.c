/* The HIP face: allocation, registration, pools, what a pointer points to. */
#include <string.h>

#include "hip.h"

#include "both_memory.h"

enum { HOST_FLAGS = 7, COHERENCE = 0xc0000000u, NUMA_USER = 0x20000000u, REGISTER_FLAGS = 15 };

static int allocate(void **address, size_t size, enum sim_memory memory, unsigned flags) {
  struct sim_block *block;
  GIVEN(address);
  *address = NULL;
  if (!size) return SIM_OK; /* HIP gives NULL, and no error */
  int status = sim_allocate(&block, size, memory, hip_device, flags);
  if (!status) *address = block->base;
  END(status);
}

API hipMalloc(void **address, size_t size) {
  CALL(hipMalloc, CONTEXT | UNSAFE);
  return allocate(address, size, SIM_DEVICE, 0);
}

API hipMallocManaged(void **address, size_t size, unsigned flags) {
  CALL(hipMallocManaged, CONTEXT | UNSAFE);
  if (flags != 1 && flags != 2) END(SIM_INVALID_VALUE);
  return allocate(address, size, SIM_MANAGED, flags);
}

API hipFree(void *address) {
  CALL(hipFree, CONTEXT | UNSAFE);
  END(address ? sim_free(address, SIM_DEVICE, hip_device) : SIM_OK);
}

API hipHostMalloc(void **address, size_t size, unsigned flags) {
  CALL(hipHostMalloc, CONTEXT | UNSAFE);
  if (flags & ~(HOST_FLAGS | COHERENCE | NUMA_USER)) END(SIM_INVALID_VALUE);
  return allocate(address, size, SIM_HOST, flags & HOST_FLAGS);
}

API hipHostFree(void *address) {
  CALL(hipHostFree, CONTEXT | UNSAFE);
  END(address ? sim_free(address, SIM_HOST, hip_device) : SIM_OK);
}

API hipHostRegister(void *address, size_t size, unsigned flags) {
  CALL(hipHostRegister, CONTEXT | UNSAFE);
  END(flags > REGISTER_FLAGS ? SIM_INVALID_VALUE : sim_register(address, size, hip_device, flags));
}

API hipHostUnregister(void *address) {
  CALL(hipHostUnregister, CONTEXT | UNSAFE);
  END(sim_unregister(address, hip_device));
}

API hipHostGetDevicePointer(void **device, void *host, unsigned flags) {
  CALL(hipHostGetDevicePointer, CONTEXT);
  if (!device || flags) END(SIM_INVALID_VALUE);
  sim_lock();
  const struct sim_block *block = sim_find(host);
  bool known = block && (block->memory == SIM_HOST || block->memory == SIM_REGISTERED || block->memory == SIM_MANAGED);
  sim_unlock();
  if (known) *device = host;
  END(known ? SIM_OK : SIM_INVALID_VALUE);
}

API hipPointerGetAttributes(hip_pointer_attributes *out, void *address) {
  CALL(hipPointerGetAttributes, CONTEXT);
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
  CALL(hipMallocAsync, CONTEXT | UNSAFE);
  STREAM(stream);
  GIVEN(address);
  *address = NULL;
  END(size ? sim_pool_allocate(address, size, sim.devices[stream->device].pool, stream) : SIM_OK);
}

API hipMallocFromPoolAsync(void **address, size_t size, struct sim_pool *pool, struct sim_stream *stream) {
  CALL(hipMallocFromPoolAsync, CONTEXT | UNSAFE);
  STREAM(stream);
  GIVEN(address);
  if (!sim_handle_alive(pool, SIM_POOL)) END(SIM_INVALID_VALUE);
  *address = NULL;
  END(size ? sim_pool_allocate(address, size, pool, stream) : SIM_OK);
}

API hipFreeAsync(void *address, struct sim_stream *stream) {
  CALL(hipFreeAsync, CONTEXT | UNSAFE);
  STREAM(stream);
  END(sim_pool_free(address, stream));
}
