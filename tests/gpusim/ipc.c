/* Memory that another process opens: at the first export a block's pages become those of a memory file, which the other maps
 * through /proc. Its handle has the size of the drivers'. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#define PAGE 4096u
#define MAGIC 0x67707573696d6970ull

struct handle {
  unsigned long long magic;
  int process, file, device;
  size_t size, offset, body; /* of the allocation, its place in the file, and the file's */
  char rest[SIM_IPC_BYTES - 8 - 16 - 24];
};

_Static_assert(sizeof(struct handle) == SIM_IPC_BYTES, "");

/* The pages move while nothing runs on the device, and keep their addresses. */
static int move_to_file(struct sim_block *block) {
  size_t body = block->map_size - 2 * PAGE;
  int file = memfd_create("gpusim", MFD_CLOEXEC);
  if (file < 0) return SIM_OUT_OF_MEMORY;
  char *pages = ftruncate(file, (off_t)body) ? MAP_FAILED : mmap(NULL, body, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (pages == MAP_FAILED) {
    close(file);
    return SIM_OUT_OF_MEMORY;
  }
  memcpy(pages, block->map + PAGE, body);
  mmap(block->map + PAGE, body, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  munmap(pages, body);
  block->file = file;
  return SIM_OK;
}

int sim_ipc_export(void *out, const void *address) {
  if (!out) return SIM_INVALID_VALUE;
  sim_lock();
  struct sim_block *block = sim_find(address);
  int status = block && block->memory == SIM_DEVICE && !block->pool && !block->is_foreign && !block->freeing ? SIM_OK : SIM_INVALID_VALUE;
  if (!status && !block->file) status = sim_device_synchronize_locked(block->device);
  if (!status && !block->file) status = move_to_file(block);
  if (!status) {
    struct handle handle = {.magic = MAGIC, .process = getpid(), .file = block->file, .device = block->device, .size = block->size};
    handle.offset = (size_t)(block->base - block->map) - PAGE;
    handle.body = block->map_size - 2 * PAGE;
    memcpy(out, &handle, sizeof handle);
  }
  sim_unlock();
  return status;
}

int sim_ipc_open(void **address, const void *given, int device) {
  struct handle handle;
  char path[64];
  memcpy(&handle, given, sizeof handle);
  if (!address || handle.magic != MAGIC || handle.device != device) return SIM_INVALID_VALUE;
  if (handle.process == getpid()) return SIM_INVALID_CONTEXT; /* as the drivers, which open none of their own */
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return SIM_INVALID_VALUE;
  struct sim_block *block = calloc(1, sizeof *block);
  *block = (struct sim_block){.size = handle.size, .memory = SIM_DEVICE, .device = device, .is_foreign = true, .opened = true};
  int status = sim_map_block(block, false);
  if (!status && mmap(block->map + PAGE, handle.body, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
    status = SIM_OUT_OF_MEMORY;
  close(file);
  if (status) {
    free(block);
    return status;
  }
  sim_lock();
  sim_block_add(block);
  sim_unlock();
  *address = block->base;
  return SIM_OK;
}

int sim_ipc_close(void *address, int device) {
  sim_lock();
  struct sim_block *block = sim_find(address);
  bool is_it = block && block->base == address && block->is_foreign;
  sim_unlock();
  return is_it ? sim_free(address, SIM_DEVICE, device) : SIM_INVALID_VALUE;
}
