/* The HIP face: modules, kernels, launches, occupancy. */
#include "hip.h"

enum { LOCAL_MEMORY = 65536, LANES = 64 };

API hipModuleLoadData(struct sim_module_handle **module, const void *image) {
  CALL(hipModuleLoadData, CONTEXT);
  GIVEN(module);
  END(sim_module_load(module, image, hip_device));
}

API hipModuleUnload(struct sim_module_handle *module) {
  CALL(hipModuleUnload, CONTEXT | UNSAFE);
  ALIVE(module, SIM_MODULE);
  END(sim_module_unload(module));
}

API hipModuleGetFunction(struct sim_kernel **kernel, struct sim_module_handle *module, const char *name) {
  CALL(hipModuleGetFunction, CONTEXT);
  GIVEN(kernel);
  ALIVE(module, SIM_MODULE);
  int status = sim_module_kernel(kernel, module, name);
  /* All local memory may be asked for in a launch. */
  if (!status) (*kernel)->dynamic_limit = LOCAL_MEMORY - sim_function_static_shared((*kernel)->function);
  END(status);
}

API hipModuleGetGlobal(void **address, size_t *size, struct sim_module_handle *module, const char *name) {
  CALL(hipModuleGetGlobal, CONTEXT);
  ALIVE(module, SIM_MODULE);
  END(sim_module_global(address, size, module, name));
}

API hipFuncGetAttribute(int *value, int which, struct sim_kernel *kernel) {
  CALL(hipFuncGetAttribute, CONTEXT);
  GIVEN(value);
  ALIVE(kernel, SIM_KERNEL);
  switch (which) {
    case 0: *value = (int)sim_function_max_threads(kernel->function); return SIM_OK;
    case 1: *value = (int)sim_function_static_shared(kernel->function); return SIM_OK;
    default: END(SIM_NOT_SUPPORTED);
  }
}

/* Launches */

int hip_launch_of(struct sim_launch **out, struct sim_kernel *kernel, hip_extent grid, hip_extent block, unsigned shared,
                  void **parameters) {
  if (!sim_handle_alive(kernel, SIM_KERNEL)) return SIM_INVALID_HANDLE;
  uint64_t width = (uint64_t)grid.x * block.x;
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z || width > UINT32_MAX) return HIP_INVALID_CONFIGURATION;
  return sim_launch_new(out, kernel, (unsigned[3]){grid.x, grid.y, grid.z}, (unsigned[3]){block.x, block.y, block.z}, shared,
                        parameters);
}

API hipModuleLaunchKernel(struct sim_kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, struct sim_stream *stream, void **parameters, void **extra) {
  CALL(hipModuleLaunchKernel, CONTEXT);
  struct sim_op op = {.kind = SIM_OP_KERNEL};
  STREAM(stream);
  if (extra) END(SIM_NOT_SUPPORTED);
  int status = hip_launch_of(&op.launch, kernel, (hip_extent){gx, gy, gz}, (hip_extent){bx, by, bz}, shared, parameters);
  if (status) END(status);
  status = kernel->device == stream->device ? sim_enqueue(stream, &op, NULL) : SIM_INVALID_HANDLE;
  END(status ? sim_op_refused(&op, status) : SIM_OK);
}

/* Occupancy: 32 waves of 64 lanes on a compute unit, and 64 KiB of local memory. */

static int occupancy(const struct sim_kernel *kernel, int threads, size_t shared) {
  enum { WAVES = 32, BLOCKS = 16 };
  if ((unsigned)threads > sim_function_max_threads(kernel->function)) return 0;
  int waves = (threads + LANES - 1) / LANES, blocks = WAVES / waves < BLOCKS ? WAVES / waves : BLOCKS;
  size_t bytes = shared + sim_function_static_shared(kernel->function);
  if (bytes && LOCAL_MEMORY / bytes < (size_t)blocks) blocks = (int)(LOCAL_MEMORY / bytes);
  return blocks;
}

API hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct sim_kernel *kernel, int threads, size_t shared) {
  CALL(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, CONTEXT);
  if (!blocks || threads <= 0) END(SIM_INVALID_VALUE);
  ALIVE(kernel, SIM_KERNEL);
  *blocks = occupancy(kernel, threads, shared);
  return SIM_OK;
}
