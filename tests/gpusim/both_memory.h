/* Functions of both faces: memory of other processes, pools. */

API FACE(IpcGetMemHandle)(void *handle, void *address) {
  BEGIN(IpcGetMemHandle, CONTEXT | UNSAFE);
  END(sim_ipc_export(handle, address));
}

struct ipc_handle {
  char bytes[SIM_IPC_BYTES];
};

API FACE(IpcOpenMemHandle)(void **address, struct ipc_handle handle, unsigned flags) {
  BEGIN(IpcOpenMemHandle, CONTEXT | UNSAFE);
  END(flags == 1 ? sim_ipc_open(address, &handle, CURRENT_DEVICE) : SIM_INVALID_VALUE);
}

API FACE(IpcCloseMemHandle)(void *address) {
  BEGIN(IpcCloseMemHandle, HANDLE | UNSAFE);
  END(sim_ipc_close(address, CURRENT_DEVICE));
}

API FACE(MemGetInfo)(size_t *free, size_t *total) {
  BEGIN(MemGetInfo, CONTEXT);
  sim_lock();
  const struct sim_device *device = &sim.devices[CURRENT_DEVICE];
  if (free) *free = device->total > device->used ? device->total - device->used : 0;
  if (total) *total = device->total;
  sim_unlock();
  return SIM_OK;
}

/* Pools */

API FACE(MemPoolCreate)(struct sim_pool **pool, const pool_props *props) {
  BEGIN(MemPoolCreate, INIT | UNSAFE);
  if (!pool || !props || props->allocation_type != 1 || props->location.type != 1) END(SIM_INVALID_VALUE);
  if (!sim_is_device(props->location.id)) END(SIM_INVALID_VALUE);
  if (props->handle_types) END(SIM_NOT_SUPPORTED);
  sim_lock();
  *pool = sim_pool_new(props->location.id, false);
  sim_unlock();
  return SIM_OK;
}

API FACE(MemPoolDestroy)(struct sim_pool *pool) {
  BEGIN(MemPoolDestroy, INIT | UNSAFE);
  END(sim_handle_alive(pool, SIM_POOL) ? sim_pool_destroy(pool) : SIM_INVALID_VALUE);
}

enum { FIRST_NUMBER = 4, RESERVED = 5, USED = 7, LAST_ATTRIBUTE = 8 };

API FACE(MemPoolGetAttribute)(struct sim_pool *pool, unsigned which, void *value) {
  BEGIN(MemPoolGetAttribute, INIT);
  if (!value || which < 1 || which > LAST_ATTRIBUTE || !sim_handle_alive(pool, SIM_POOL)) END(SIM_INVALID_VALUE);
  sim_lock();
  if (which < FIRST_NUMBER) *(int *)value = (int)pool->attributes[which];
  else *(uint64_t *)value = pool->attributes[which];
  sim_unlock();
  return SIM_OK;
}

API FACE(MemPoolSetAttribute)(struct sim_pool *pool, unsigned which, void *value) {
  BEGIN(MemPoolSetAttribute, INIT | UNSAFE);
  if (!value || which < 1 || which > LAST_ATTRIBUTE || which == RESERVED || which == USED) END(SIM_INVALID_VALUE);
  if (!sim_handle_alive(pool, SIM_POOL)) END(SIM_INVALID_VALUE);
  if (which > FIRST_NUMBER && *(uint64_t *)value) END(SIM_INVALID_VALUE); /* a high mark can only be reset */
  sim_lock();
  if (which > FIRST_NUMBER) pool->attributes[which] = pool->attributes[which - 1];
  else pool->attributes[which] = which < FIRST_NUMBER ? (uint64_t)(*(int *)value != 0) : *(uint64_t *)value;
  sim_unlock();
  return SIM_OK;
}

API FACE(MemPoolTrimTo)(struct sim_pool *pool, size_t keep) {
  BEGIN(MemPoolTrimTo, INIT | UNSAFE);
  if (!sim_handle_alive(pool, SIM_POOL)) END(SIM_INVALID_VALUE);
  sim_pool_trim(pool, keep);
  return SIM_OK;
}

API FACE(MemPoolSetAccess)(struct sim_pool *pool, const pool_access *access, size_t count) {
  BEGIN(MemPoolSetAccess, INIT | UNSAFE);
  if (!sim_handle_alive(pool, SIM_POOL) || (count && !access)) END(SIM_INVALID_VALUE);
  for (size_t i = 0; i < count; i++) {
    if (access[i].location.type != 1 || !sim_is_device(access[i].location.id)) END(SIM_INVALID_VALUE);
    if (access[i].location.id == pool->device && access[i].flags != 3) END(SIM_INVALID_DEVICE);
  }
  sim_lock();
  for (size_t i = 0; i < count; i++) {
    unsigned bit = 1u << access[i].location.id;
    pool->access = access[i].flags == 3 ? pool->access | bit : pool->access & ~bit;
  }
  sim_unlock();
  return SIM_OK;
}
