/* Stream-ordered allocation: the address is given at once, the memory opens when the stream gets to
 * the allocation and closes when it gets to the free, so that unordered uses fault.
 *
 * A pool counts bytes. What was freed is there again for the same stream at once; for another one
 * where the pool's attributes allow it: when it is ordered behind the free, when the free happens to
 * have run, or, when the device has no more, with a wait put in. What the host has waited for is there
 * for all. Each allocation has an address of its own all the same. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { REUSE_EVENTS = 1, REUSE_OPPORTUNISTIC, REUSE_INTERNAL, THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

struct sim_spare { /* bytes of a pool that were freed */
  size_t size;
  struct sim_point freed;
  bool seen; /* by the host, which has waited */
  struct sim_spare *next;
};

struct sim_pool *sim_pool_new(int device, bool is_default) {
  struct sim_pool *pool = calloc(1, sizeof *pool);
  pool->device = device;
  pool->is_default = is_default;
  pool->access = 1u << device;
  pool->attributes[REUSE_EVENTS] = pool->attributes[REUSE_OPPORTUNISTIC] = pool->attributes[REUSE_INTERNAL] = 1;
  pool->next = sim.pools;
  sim.pools = pool;
  sim_handle_add(pool, SIM_POOL);
  return pool;
}

static void count(struct sim_pool *pool, int which, size_t more) {
  pool->attributes[which] += more;
  if (pool->attributes[which + 1] < pool->attributes[which]) pool->attributes[which + 1] = pool->attributes[which];
}

static void give_to_device(struct sim_pool *pool, size_t size) {
  pool->attributes[RESERVED] -= size;
  sim.devices[pool->device].used -= size;
}

/* Takes bytes of a spare; it goes when it has none left. */
static size_t take(struct sim_spare **link, size_t wanted) {
  struct sim_spare *spare = *link;
  size_t taken = spare->size < wanted ? spare->size : wanted;
  spare->size -= taken;
  if (!spare->size) {
    *link = spare->next;
    free(spare);
  }
  return taken;
}

static bool is_there(const struct sim_pool *pool, const struct sim_spare *spare, const struct sim_stream *stream) {
  if (spare->seen || spare->freed.stream == stream) return true;
  if (pool->attributes[REUSE_EVENTS] && sim_is_known_before(spare->freed, stream)) return true;
  return pool->attributes[REUSE_OPPORTUNISTIC] && sim_done(spare->freed);
}

/* AMD's pools give a freed block whole, to what is as large or up to an eighth smaller. */
static int reserve_whole(struct sim_pool *pool, size_t size, struct sim_stream *stream, size_t *held) {
  for (struct sim_spare **link = &pool->spares; *link; link = &(*link)->next) {
    if ((*link)->size < size || (*link)->size > size / 8 * 9 || !is_there(pool, *link, stream)) continue;
    *held = (*link)->size;
    take(link, *held);
    return SIM_OK;
  }
  *held = size;
  int status = sim_reserve(pool->device, size);
  if (!status) count(pool, RESERVED, size);
  return status;
}

static int wait_for(struct sim_stream *stream, struct sim_point point) {
  int status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_WAIT, .wait = point}, NULL);
  if (!status) sim_order_wait(stream, point, NULL);
  return status;
}

static int reserve(struct sim_pool *pool, size_t size, struct sim_stream *stream) {
  const struct sim_device *device = &sim.devices[pool->device];
  size_t room = device->total > device->used ? device->total - device->used : 0, there = 0, later = 0;
  for (struct sim_spare *spare = pool->spares; spare; spare = spare->next)
    *(is_there(pool, spare, stream) ? &there : &later) += spare->size;
  if (!pool->attributes[REUSE_INTERNAL]) later = 0;
  if (size > there && size - there > room && size - there - room > later) return SIM_OUT_OF_MEMORY;
  struct sim_spare **link = &pool->spares;
  while (size && *link) {
    struct sim_spare *spare = *link;
    if (is_there(pool, spare, stream)) size -= take(link, size);
    if (*link == spare) link = &spare->next;
  }
  size_t grown = size < room ? size : room;
  if (grown) sim_reserve(pool->device, grown), count(pool, RESERVED, grown), size -= grown;
  int status = SIM_OK;
  while (size && pool->spares && !status) { /* what other streams will have freed */
    struct sim_point freed = pool->spares->freed;
    size -= take(&pool->spares, size);
    status = wait_for(stream, freed);
  }
  return status;
}

int sim_pool_allocate(void **address, size_t size, struct sim_pool *pool, struct sim_stream *stream) {
  if (!size) return SIM_INVALID_VALUE;
  if (size > (size_t)1 << 44) return SIM_OUT_OF_MEMORY;
  sim_lock();
  size_t held = size;
  int status = sim.devices[stream->device].error;
  if (!status && stream->capture) status = sim_capture_op(stream, &(struct sim_op){.kind = SIM_OP_ALLOC});
  if (!status) status = sim.whole_blocks ? reserve_whole(pool, size, stream, &held) : reserve(pool, size, stream);
  sim_unlock();
  if (status) return status;
  struct sim_block *block = calloc(1, sizeof *block);
  *block = (struct sim_block){.size = size, .held = held, .memory = SIM_DEVICE, .device = pool->device, .pool = pool};
  status = sim_map_block(block, false);
  sim_lock();
  if (!status) {
    sim_block_add(block);
    status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_ALLOC, .block = block}, &block->born);
    if (status) sim_block_remove(block);
  }
  if (!status) {
    count(pool, USED, held);
    sim.pooled = true;
    *address = block->base;
  } else { /* the device is lost, or the machine out of addresses */
    give_to_device(pool, held);
  }
  sim_unlock();
  return status;
}

/* The bytes of a block are the pool's again, from a place of a stream on, or at once. */
void sim_pool_get_back(struct sim_block *block, struct sim_point freed) {
  struct sim_pool *pool = block->pool;
  struct sim_spare *spare = calloc(1, sizeof *spare), **end = &pool->spares;
  *spare = (struct sim_spare){block->held, freed, !freed.stream, NULL};
  while (*end) end = &(*end)->next;
  *end = spare;
  pool->attributes[USED] -= block->held;
}

int sim_pool_free(void *address, struct sim_stream *stream) {
  sim_lock();
  struct sim_block *block = sim_find(address);
  bool valid = block && block->base == address && block->memory == SIM_DEVICE && !block->freeing; /* of a pool or not */
  const struct sim_block *before = valid ? NULL : block ? block : sim_find_freed(address);
  if (before && before->pool && before->base == address && sim_strict_about(&sim.devices[stream->device]))
    sim_abort(stream, "allocation %u is freed twice (M3)", before->ordinal);
  int status = valid ? sim.devices[stream->device].error : SIM_INVALID_VALUE;
  if (!status && stream->capture) status = sim_capture_op(stream, &(struct sim_op){.kind = SIM_OP_FREE});
  if (!status) {
    sim_check_free(stream, block);
    struct sim_point freed;
    status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_FREE, .block = block}, &freed);
    if (!status) block->freeing = true;
    if (!status && block->pool) sim_pool_get_back(block, freed);
  }
  sim_unlock();
  return status;
}

/* Gives to the device what is over, of what may go. */
static void release(struct sim_pool *pool, uint64_t keep, bool unseen) {
  struct sim_spare **link = &pool->spares;
  while (*link && pool->attributes[RESERVED] > keep) {
    struct sim_spare *spare = *link;
    size_t over = pool->attributes[RESERVED] - keep;
    if (sim.whole_blocks) over = spare->size;
    if (spare->seen || (unseen && sim_done(spare->freed))) give_to_device(pool, take(link, over));
    if (*link == spare) link = &spare->next;
  }
}

/* Runs a FREE; opening a mapping for an ALLOC needs no lock, and is done by sim_execute. */
void sim_pool_ran(const struct sim_op *op) {
  struct sim_block *block = op->block;
  sim_block_remove(block);
  if (!block->pool) sim.devices[block->device].used -= block->size;
  sim_unmap_block(block);
}

/* After that: its place is complete. */
void sim_pool_completed(const struct sim_op *op) {
  if (op->block->pool && op->block->pool->destroyed) release(op->block->pool, 0, true);
}

/* The host has waited for a place, and so for all that came before that; without a stream, for all of
 * the device. */
void sim_pools_waited(int device, struct sim_point point, const struct sim_order *before) {
  for (struct sim_pool *pool = sim.pools; pool; pool = pool->next) {
    for (struct sim_spare *spare = pool->spares; spare; spare = spare->next) {
      if (spare->seen || !sim_done(spare->freed)) continue;
      bool seen = point.stream ? spare->freed.stream == point.stream && spare->freed.sequence <= point.sequence
                               : spare->freed.stream->device == device;
      for (int i = 0; before && i < before->count; i++)
        seen |= before->points[i].stream == spare->freed.stream && before->points[i].by_events >= spare->freed.sequence;
      spare->seen = seen || spare->freed.stream->destroyed;
    }
    if (pool->device == device) release(pool, pool->attributes[THRESHOLD], sim.whole_blocks);
  }
}

void sim_pool_trim(struct sim_pool *pool, size_t keep) {
  sim_lock();
  release(pool, keep, sim.whole_blocks);
  sim_unlock();
}

int sim_pool_destroy(struct sim_pool *pool) {
  if (pool->is_default) return SIM_INVALID_VALUE;
  sim_lock();
  if (sim.devices[pool->device].pool == pool) sim.devices[pool->device].pool = sim.devices[pool->device].default_pool;
  pool->destroyed = true;
  release(pool, 0, true);
  sim_unlock();
  sim_handle_kill(pool);
  return SIM_OK;
}

/* Nothing of a device's pools is there any more. */
void sim_pools_forget(int device) {
  for (struct sim_pool *pool = sim.pools; pool; pool = pool->next) {
    if (pool->device != device) continue;
    while (pool->spares) take(&pool->spares, SIZE_MAX);
    give_to_device(pool, pool->attributes[RESERVED]);
    pool->attributes[USED] = 0;
  }
}
