/* Memory: each allocation is a mapping of its own that ends at a guard page, so that going past its
 * end faults; freed ones stay inaccessible for a while, so that late uses fault as well. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#define PAGE 4096u
#define ALIGNMENT 256u
#define FRESH 0xCD       /* what new memory holds */
#define SLACK 0xFD       /* between the end of an allocation and its guard page, checked when it is freed */
#define POISONED (1u << 20) /* bytes poisoned at most at either end */
#define QUARANTINED 4096

static struct sim_block **blocks; /* sorted by address */
static size_t count, capacity;
static struct sim_block *quarantine, **quarantine_end = &quarantine;
static int quarantined;

static size_t position(const void *address) { /* of the first block that begins past the address */
  size_t low = 0, high = count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if ((const char *)address < blocks[middle]->base) high = middle;
    else low = middle + 1;
  }
  return low;
}

struct sim_block *sim_find(const void *address) {
  size_t at = position(address);
  if (!at) return NULL;
  struct sim_block *block = blocks[at - 1];
  return (const char *)address < block->base + block->size ? block : NULL;
}

struct sim_block *sim_find_freed(const void *address) {
  struct sim_block *block = quarantine;
  while (block && block->base != address) block = block->next;
  return block;
}

bool sim_within(const void *address, size_t size) {
  struct sim_block *block = sim_find(address);
  return block && !block->freeing && size <= (size_t)(block->base + block->size - (const char *)address);
}

bool sim_is_pageable(const void *address) { return !sim_find(address); }

bool sim_may_use(int device, const struct sim_block *block) {
  if (block->device == device || block->memory == SIM_HOST || block->memory == SIM_MANAGED || block->memory == SIM_REGISTERED) return true;
  if (block->pool) return block->pool->access >> device & 1;
  return sim.devices[device].peers >> block->device & 1;
}

struct sim_block *sim_next_global(const char *after, const struct sim_module_handle *module) {
  for (size_t i = after ? position(after) : 0; i < count; i++)
    if (blocks[i]->module == module) return blocks[i];
  return NULL;
}

void sim_block_add(struct sim_block *block) {
  if (count == capacity) {
    capacity = capacity ? 2 * capacity : 1024;
    blocks = realloc(blocks, capacity * sizeof *blocks);
  }
  size_t at = position(block->base);
  memmove(blocks + at + 1, blocks + at, (count - at) * sizeof *blocks);
  blocks[at] = block;
  block->ordinal = ++sim.ordinals[0];
  count++;
}

void sim_block_remove(struct sim_block *block) {
  size_t at = position(block->base);
  count--;
  memmove(blocks + at - 1, blocks + at, (count - at + 1) * sizeof *blocks);
}

int sim_map_block(struct sim_block *block, bool accessible) {
  size_t rounded = (block->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  size_t body = (rounded + PAGE - 1) / PAGE * PAGE;
  block->map_size = body + 2 * PAGE;
  block->map = mmap(NULL, block->map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block->map == MAP_FAILED) return SIM_OUT_OF_MEMORY;
  block->base = block->map + PAGE + (body - rounded);
  if (accessible) sim_poison(block);
  return SIM_OK;
}

/* Held while a block is opened or unmapped: another stream may free it before its allocation has run. */
static pthread_mutex_t mapping = PTHREAD_MUTEX_INITIALIZER;

static void open_block(struct sim_block *block) {
  block->opened = true;
  mprotect(block->map + PAGE, block->map_size - 2 * PAGE, PROT_READ | PROT_WRITE);
  if (block->size <= 2 * POISONED) {
    memset(block->base, FRESH, block->size);
  } else {
    memset(block->base, FRESH, POISONED);
    memset(block->base + block->size - POISONED, FRESH, POISONED);
  }
  memset(block->base + block->size, SLACK, (size_t)(block->map + block->map_size - PAGE - block->base) - block->size);
}

/* Opens the mapping, and fills it so that whoever reads before it writes, or writes past the end, shows. */
void sim_poison(struct sim_block *block) {
  pthread_mutex_lock(&mapping);
  if (!block->unmapped) open_block(block);
  pthread_mutex_unlock(&mapping);
}

static void check_slack(const struct sim_block *block) {
  if (!block->opened) return;
  const unsigned char *end = (const unsigned char *)block->map + block->map_size - PAGE;
  for (const unsigned char *p = (const unsigned char *)block->base + block->size; p < end; p++)
    if (*p != SLACK && sim_strict_about(&sim.devices[block->device]))
      sim_abort(NULL, "allocation %u of %zu bytes was written %zu bytes past its end", block->ordinal, block->size,
                (size_t)(p - (const unsigned char *)block->base) - block->size + 1);
}

void sim_unmap_block(struct sim_block *block) {
  pthread_mutex_lock(&mapping);
  block->unmapped = true;
  mmap(block->map, block->map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  pthread_mutex_unlock(&mapping);
  if (block->file) close(block->file);
  block->next = NULL;
  *quarantine_end = block;
  quarantine_end = &block->next;
  if (++quarantined <= QUARANTINED) return;
  struct sim_block *oldest = quarantine;
  quarantine = oldest->next;
  quarantined--;
  munmap(oldest->map, oldest->map_size);
  free(oldest);
}

int sim_reserve(int device, size_t size) {
  struct sim_device *owner = &sim.devices[device];
  if (size > owner->total || owner->used > owner->total - size) return SIM_OUT_OF_MEMORY;
  owner->used += size;
  return SIM_OK;
}

int sim_allocate(struct sim_block **out, size_t size, enum sim_memory memory, int device, unsigned flags) {
  bool counted = memory != SIM_HOST;
  if (!size) return SIM_INVALID_VALUE;
  if (size > (size_t)1 << 44) return SIM_OUT_OF_MEMORY;
  sim_lock();
  int status = counted ? sim_reserve(device, size) : SIM_OK;
  sim_unlock();
  if (status) return status;
  struct sim_block *block = calloc(1, sizeof *block);
  *block = (struct sim_block){.size = size, .memory = memory, .device = device, .flags = flags};
  status = sim_map_block(block, true);
  sim_lock();
  if (status) {
    if (counted) sim.devices[device].used -= size;
    free(block);
  } else {
    sim_block_add(block);
    *out = block;
  }
  sim_unlock();
  return status;
}

/* Waits for the device, as the drivers' frees do. */
int sim_free(void *address, enum sim_memory memory, int device) {
  sim_lock();
  struct sim_block *block = sim_find(address);
  bool host = memory == SIM_HOST;
  if (!block || block->base != address || block->freeing || (block->memory == SIM_HOST) != host ||
      block->memory == SIM_REGISTERED || block->memory == SIM_GLOBAL) {
    sim_unlock();
    return SIM_INVALID_VALUE;
  }
  (void)device;
  int owner = block->device;
  block->freeing = true; /* nobody else frees it while the lock is let go */
  int status = sim_device_synchronize_locked(owner);
  if (status) {
    block->freeing = false;
    sim_unlock();
    return status;
  }
  check_slack(block);
  sim_block_remove(block);
  if (block->pool) sim_pool_get_back(block, (struct sim_point){NULL, 0}), sim_pools_waited(owner, (struct sim_point){NULL, 0}, NULL);
  else if (block->memory != SIM_HOST && !block->is_foreign) sim.devices[owner].used -= block->size;
  sim_unmap_block(block);
  sim_unlock();
  return SIM_OK;
}

static bool is_mapped(const void *address, size_t size) {
  uintptr_t first = (uintptr_t)address & ~(uintptr_t)(PAGE - 1);
  return !msync((void *)first, (uintptr_t)address + size - first, MS_ASYNC); /* which does nothing else */
}

int sim_register(void *address, size_t size, int device, unsigned flags) {
  if (!address || !size || !is_mapped(address, size)) return SIM_INVALID_VALUE;
  sim_lock();
  int status = SIM_OK;
  /* No byte of it may be known already, registered or allocated. */
  size_t at = position(address);
  if (at && blocks[at - 1]->base + blocks[at - 1]->size > (char *)address)
    status = blocks[at - 1]->memory == SIM_REGISTERED ? SIM_ALREADY_REGISTERED : SIM_INVALID_VALUE;
  else if (at < count && blocks[at]->base < (char *)address + size)
    status = blocks[at]->memory == SIM_REGISTERED ? SIM_ALREADY_REGISTERED : SIM_INVALID_VALUE;
  if (!status) {
    struct sim_block *block = calloc(1, sizeof *block);
    *block = (struct sim_block){.base = address, .size = size, .memory = SIM_REGISTERED, .device = device, .flags = flags};
    sim_block_add(block);
  }
  sim_unlock();
  return status;
}

int sim_unregister(void *address, int device) {
  if (!address) return SIM_INVALID_VALUE;
  sim_lock();
  struct sim_block *block = sim_find(address);
  int status = SIM_OK;
  if (!block) status = SIM_NOT_REGISTERED;
  else if (block->base != address || block->memory != SIM_REGISTERED) status = SIM_INVALID_VALUE;
  if (!status) status = sim_device_synchronize_locked(device < 0 ? block->device : device);
  if (!status && (block = sim_find(address)) && block->memory == SIM_REGISTERED) {
    sim_block_remove(block);
    free(block);
  }
  sim_unlock();
  return status;
}

/* All memory of a device is given back at once, as when its context is destroyed. */
void sim_forget_memory(int device) {
  sim_lock();
  for (size_t i = count; i-- > 0;) {
    struct sim_block *block = blocks[i];
    if (block->device != device || block->memory == SIM_GLOBAL) continue;
    sim_block_remove(block);
    if (block->memory == SIM_REGISTERED) {
      free(block);
      continue;
    }
    if (block->memory != SIM_HOST && !block->pool && !block->is_foreign) sim.devices[device].used -= block->size;
    sim_unmap_block(block);
  }
  sim_pools_forget(device);
  sim_unlock();
}

/* What is still there of a device (-1: of all): its objects and memory, in words; returns how many. */
SIM_EXPORT int gpusim_leaks(int device, char *text, size_t size) {
  sim_lock();
  int total = sim_live_handles(text, size, device), found = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    const struct sim_block *block = blocks[i];
    if (block->memory == SIM_GLOBAL || (device >= 0 && block->device != device) || sim.devices[block->device].error) continue;
    found++;
    bytes += block->size;
  }
  size_t at = size ? strlen(text) : 0;
  if (found && at < size) snprintf(text + at, size - at, "%s%d allocation%s of %zu bytes", at ? ", " : "", found, found > 1 ? "s" : "", bytes);
  sim_unlock();
  return total + found;
}
