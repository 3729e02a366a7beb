/* Stream-ordered allocation: the address is given at once, the memory opens when the stream gets to
 * the allocation and closes when it gets to the free, so that unordered uses fault. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { REUSE_EVENTS = 1, REUSE_OPPORTUNISTIC, REUSE_INTERNAL, THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

struct sim_pool *sim_pool_new(int device, bool is_default) {
  struct sim_pool *pool = calloc(1, sizeof *pool);
  pool->device = device;
  pool->is_default = is_default;
  pool->access = 1u << device;
  pool->attributes[REUSE_EVENTS] = pool->attributes[REUSE_OPPORTUNISTIC] = pool->attributes[REUSE_INTERNAL] = 1;
  sim_handle_add(pool, SIM_POOL);
  return pool;
}

static void raise_to(uint64_t *high, uint64_t value) {
  if (*high < value) *high = value;
}

int sim_pool_allocate(void **address, size_t size, struct sim_pool *pool, struct sim_stream *stream) {
  if (!size) return SIM_INVALID_VALUE;
  if (size > (size_t)1 << 44) return SIM_OUT_OF_MEMORY;
  sim_lock();
  int status = sim.devices[stream->device].error;
  /* Memory that an earlier operation of the same stream gives back is as good as there. */
  if (!status) status = sim_reserve(pool->device, size, stream->freeing);
  sim_unlock();
  if (status) return status;
  struct sim_block *block = calloc(1, sizeof *block);
  *block = (struct sim_block){.size = size, .memory = SIM_DEVICE, .device = pool->device, .pool = pool};
  status = sim_map_block(block, false);
  sim_lock();
  if (!status) {
    sim_block_add(block);
    pool->attributes[RESERVED] += size;
    pool->attributes[USED] += size;
    raise_to(&pool->attributes[RESERVED_HIGH], pool->attributes[RESERVED]);
    raise_to(&pool->attributes[USED_HIGH], pool->attributes[USED]);
    *address = block->base;
    status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_ALLOC, .block = block}, NULL);
  } else {
    sim.devices[pool->device].used -= size;
    free(block);
  }
  sim_unlock();
  return status;
}

int sim_pool_free(void *address, struct sim_stream *stream) {
  sim_lock();
  struct sim_block *block = sim_find(address);
  bool valid = block && block->base == address && block->memory == SIM_DEVICE && !block->freeing; /* of a pool or not */
  int status = valid ? sim.devices[stream->device].error : SIM_INVALID_VALUE;
  if (!status) {
    block->freeing = true;
    stream->freeing += block->size;
    if (block->pool) block->pool->attributes[USED] -= block->size;
    status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_FREE, .block = block}, NULL);
  }
  sim_unlock();
  return status;
}

/* Runs an ALLOC or FREE; opening a mapping needs no lock, and is done by sim_execute. */
void sim_pool_ran(const struct sim_op *op, struct sim_stream *stream) {
  struct sim_block *block = op->block;
  if (op->kind != SIM_OP_FREE) return;
  stream->freeing -= block->size;
  sim.devices[block->device].used -= block->size;
  if (block->pool) block->pool->attributes[RESERVED] -= block->size;
  sim_block_remove(block);
  sim_unmap_block(block);
}

int sim_pool_destroy(struct sim_pool *pool) {
  if (pool->is_default) return SIM_INVALID_VALUE;
  sim_lock();
  if (sim.devices[pool->device].pool == pool) sim.devices[pool->device].pool = sim.devices[pool->device].default_pool;
  sim_unlock();
  sim_handle_kill(pool);
  return SIM_OK;
}
