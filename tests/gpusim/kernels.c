/* Modules, kernels, and launches with a copy of their arguments. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MAX_THREADS 1024u
#define STATIC_SHARED 49152u  /* what a block may have without asking */
#define OPT_IN_SHARED 232448u /* and with */

int sim_module_load(struct sim_module_handle **out, const void *image, int device) {
  char why[256];
  int status;
  if (!image) return SIM_INVALID_VALUE;
  struct sim_module *loaded = sim_image_load(image, &status, why, sizeof why);
  if (!loaded) {
    sim_lock();
    sim_note("image refused: %s", why);
    sim_unlock();
    return status == SIM_IMAGE_FOREIGN ? SIM_NO_BINARY : SIM_INVALID_IMAGE;
  }
  struct sim_module_handle *module = calloc(1, sizeof *module);
  module->image = loaded;
  module->device = device;
  sim_handle_add(module, SIM_MODULE);
  *out = module;
  return SIM_OK;
}

int sim_module_unload(struct sim_module_handle *module) {
  sim_lock();
  if (module->pending && sim_strict_about(&sim.devices[module->device]))
    sim_abort(NULL, "a module is unloaded while %d kernel(s) of it are queued (I4)", module->pending);
  sim_device_synchronize_locked(module->device);
  module->unloaded = true;
  sim_handle_kill(module);
  for (struct sim_kernel *kernel = module->kernels; kernel; kernel = kernel->next) sim_handle_kill(kernel);
  /* Its globals are no memory any more. */
  for (const char *at = NULL;;) {
    struct sim_block *block = sim_next_global(at, module);
    if (!block) break;
    at = block->base;
    sim_block_remove(block);
    free(block);
  }
  bool idle = !module->pending;
  sim_unlock();
  if (idle) sim_image_unload(module->image);
  return SIM_OK;
}

static int find_kernel(struct sim_kernel **out, struct sim_module_handle *module, struct sim_function *function) {
  if (!function) return SIM_NOT_FOUND;
  sim_lock();
  struct sim_kernel *kernel = module->kernels;
  while (kernel && kernel->function != function) kernel = kernel->next;
  if (!kernel) {
    kernel = calloc(1, sizeof *kernel);
    kernel->function = function;
    kernel->module = module;
    kernel->name = strdup(sim_function_name(function));
    kernel->device = module->device;
    unsigned own = sim_function_static_shared(function);
    kernel->dynamic_limit = own < STATIC_SHARED ? STATIC_SHARED - own : 0;
    kernel->parameters = sim_function_parameter_count(function);
    kernel->argument_bytes = sim_function_argument_bytes(function);
    kernel->next = module->kernels;
    module->kernels = kernel;
    sim_handle_add(kernel, SIM_KERNEL);
  }
  sim_unlock();
  *out = kernel;
  return SIM_OK;
}

int sim_module_kernel(struct sim_kernel **out, struct sim_module_handle *module, const char *name) {
  return name ? find_kernel(out, module, sim_image_function(module->image, name)) : SIM_INVALID_VALUE;
}

int sim_module_kernel_at(struct sim_kernel **out, struct sim_module_handle *module, unsigned index) {
  return find_kernel(out, module, sim_image_function_at(module->image, index));
}

int sim_module_global(void **address, size_t *size, struct sim_module_handle *module, const char *name) {
  void *found;
  size_t bytes;
  if (!name) return SIM_INVALID_VALUE;
  if (sim_image_global(module->image, name, &found, &bytes)) return SIM_NOT_FOUND;
  sim_lock();
  if (bytes && !sim_find(found)) { /* from now on copies may name it */
    struct sim_block *block = calloc(1, sizeof *block);
    *block = (struct sim_block){.base = found, .size = bytes, .memory = SIM_GLOBAL, .device = module->device, .module = module};
    sim_block_add(block);
  }
  sim_unlock();
  if (address) *address = found;
  if (size) *size = bytes;
  return SIM_OK;
}

static int check_shape(const struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3], unsigned shared) {
  for (int i = 0; i < 3; i++)
    if (!grid[i] || !block[i]) return SIM_INVALID_VALUE;
  if (grid[0] > 0x7fffffffu || grid[1] > 65535 || grid[2] > 65535) return SIM_INVALID_VALUE;
  if (block[0] > 1024 || block[1] > 1024 || block[2] > 64) return SIM_INVALID_VALUE;
  uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
  if (threads > MAX_THREADS || threads > sim_function_max_threads(kernel->function)) return SIM_INVALID_VALUE;
  return shared > kernel->dynamic_limit ? SIM_INVALID_VALUE : SIM_OK;
}

int sim_launch_new(struct sim_launch **out, struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                   unsigned shared, void **parameters) {
  int status = check_shape(kernel, grid, block, shared);
  if (status) return status;
  if (kernel->parameters && !parameters) return SIM_INVALID_VALUE;
  size_t head = (sizeof(struct sim_launch) + 63) & ~(size_t)63;
  struct sim_launch *launch = aligned_alloc(64, (head + kernel->argument_bytes + 64) & ~(size_t)63);
  *launch = (struct sim_launch){.references = 1, .kernel = kernel, .shared = shared, .arguments = (char *)launch + head};
  memcpy(launch->grid, grid, sizeof launch->grid);
  memcpy(launch->block, block, sizeof launch->block);
  for (unsigned i = 0; i < kernel->parameters; i++) {
    size_t offset, size;
    sim_function_parameter(kernel->function, i, &offset, &size);
    memcpy((char *)launch->arguments + offset, parameters[i], size);
  }
  *out = launch;
  return SIM_OK;
}

void sim_launch_pointers(const struct sim_launch *launch, void (*look)(void *, const void *), void *context) {
  for (unsigned i = 0; i < launch->kernel->parameters; i++) {
    size_t offset, size;
    void *pointer;
    sim_function_parameter(launch->kernel->function, i, &offset, &size);
    if (size != sizeof pointer) continue;
    memcpy(&pointer, (const char *)launch->arguments + offset, sizeof pointer);
    look(context, pointer);
  }
}

struct access {
  int device;
  bool forbidden;
};

static void look_at_access(void *context, const void *pointer) {
  struct access *access = context;
  const struct sim_block *block = sim_find(pointer);
  if (block && !sim_may_use(access->device, block)) access->forbidden = true;
}

/* Whether an argument looks like a pointer to a peer's memory that this device may not use: the
 * program has one address space, so that nothing else would fault. */
static bool forbidden(const struct sim_launch *launch) {
  struct access access = {launch->kernel->device, false};
  if (sim.device_count < 2) return false;
  sim_lock();
  sim_launch_pointers(launch, look_at_access, &access);
  sim_unlock();
  return access.forbidden;
}

struct call {
  const struct sim_launch *launch;
  int result;
};

static void run(void *argument) {
  struct call *call = argument;
  const struct sim_launch *launch = call->launch;
  call->result = sim_kernel_run(launch->kernel->function, launch->grid, launch->block, launch->shared, launch->arguments);
}

int sim_run_launch(const struct sim_launch *launch, uintptr_t *address) {
  struct call call = {launch, 0};
  if (forbidden(launch)) return 1;
  int fault = sim_guard(run, &call, address);
  return fault ? fault : call.result >= SIM_ILLEGAL_ADDRESS ? call.result : call.result ? 2 : 0;
}

int sim_occupancy(const struct sim_kernel *kernel, unsigned threads, size_t shared) {
  if (!threads || threads > sim_function_max_threads(kernel->function)) return 0;
  unsigned warps = (threads + 31) / 32;
  size_t bytes = shared + sim_function_static_shared(kernel->function);
  unsigned blocks = 64 / warps < 32 ? 64 / warps : 32;
  if (bytes > OPT_IN_SHARED) return 0;
  if (bytes && 233472 / (bytes + 1024) < blocks) blocks = (unsigned)(233472 / (bytes + 1024));
  return (int)blocks;
}
