/* The CUDA face: modules, functions, launches, occupancy. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"

/* Only what is for some device of this kind has no binary for this one. */
static int refusal(const unsigned char *image) {
  if (!memcmp(image, "//", 2) || !memcmp(image, ".ver", 4)) return CU_INVALID_PTX;
  bool cubin = !memcmp(image, "\x7f" "ELF", 4) && image[18] == 190 && !image[19];
  return cubin || !memcmp(image, "\x50\xed\x55\xba", 4) ? SIM_NO_BINARY : SIM_INVALID_IMAGE;
}

/* What was compiled for an architecture runs on later ones of the same generation, and as PTX on all later ones. */
static int check_architecture(int architecture) {
  if (architecture < 0) return -architecture > CU_ARCHITECTURE ? CU_INVALID_PTX : SIM_OK;
  bool fits = architecture / 10 == CU_ARCHITECTURE / 10 && architecture <= CU_ARCHITECTURE;
  return !architecture || fits ? SIM_OK : SIM_NO_BINARY;
}

/* Waits for the device, as the driver does. */
static int load(struct sim_module_handle **module, const void *image) {
  int status = sim_module_load(module, image, cu_device());
  if (status == SIM_NO_BINARY) status = refusal(image);
  if (!status && (status = check_architecture(sim_image_architecture((*module)->image)))) sim_module_unload(*module);
  if (!status) {
    sim_lock();
    status = sim_device_synchronize_locked(cu_device());
    sim_unlock();
  }
  return status;
}

API cuModuleLoadData(struct sim_module_handle **module, const void *image) {
  CALL(cuModuleLoadData, CONTEXT);
  GIVEN(module);
  return load(module, image);
}

API cuModuleLoadDataEx(struct sim_module_handle **module, const void *image, unsigned count, void *options, void **values) {
  CALL(cuModuleLoadDataEx, CONTEXT);
  if (!module || (count && (!options || !values))) return SIM_INVALID_VALUE;
  return load(module, image);
}

API cuModuleUnload(struct sim_module_handle *module) {
  CALL(cuModuleUnload, HANDLE | UNSAFE);
  ALIVE(module, SIM_MODULE);
  return sim_module_unload(module);
}

API cuModuleGetFunction(struct sim_kernel **function, struct sim_module_handle *module, const char *name) {
  CALL(cuModuleGetFunction, HANDLE);
  GIVEN(function);
  ALIVE(module, SIM_MODULE);
  if (name && !*name) return SIM_INVALID_VALUE;
  return sim_module_kernel(function, module, name);
}

API cuModuleGetFunctionCount(unsigned *count, struct sim_module_handle *module) {
  CALL(cuModuleGetFunctionCount, HANDLE);
  GIVEN(count);
  ALIVE(module, SIM_MODULE);
  *count = sim_image_function_count(module->image);
  return SIM_OK;
}

API cuModuleEnumerateFunctions(struct sim_kernel **functions, unsigned count, struct sim_module_handle *module) {
  CALL(cuModuleEnumerateFunctions, HANDLE);
  ALIVE(module, SIM_MODULE);
  if (!functions || !count) return SIM_INVALID_VALUE;
  unsigned there = sim_image_function_count(module->image);
  int status = SIM_OK;
  for (unsigned i = 0; i < count && i < there && !status; i++) status = sim_module_kernel_at(&functions[i], module, i);
  return status;
}

API cuModuleGetGlobal_v2(cu_address *address, size_t *size, struct sim_module_handle *module, const char *name) {
  CALL(cuModuleGetGlobal, HANDLE);
  ALIVE(module, SIM_MODULE);
  if (name && sim_image_function(module->image, name)) return SIM_INVALID_VALUE; /* no variable, but a kernel */
  return sim_module_global((void **)address, size, module, name);
}

/* Functions */

API cuFuncGetAttribute(int *value, unsigned which, struct sim_kernel *function) {
  CALL(cuFuncGetAttribute, HANDLE);
  GIVEN(value);
  ALIVE(function, SIM_KERNEL);
  switch (which) {
    case 0: *value = (int)sim_function_max_threads(function->function); return SIM_OK;
    case 1: *value = (int)sim_function_static_shared(function->function); return SIM_OK;
    case 8: *value = (int)function->dynamic_limit; return SIM_OK;
    default: *value = 0; return which < 16 ? SIM_OK : SIM_INVALID_VALUE;
  }
}
API cuFuncSetAttribute(struct sim_kernel *function, unsigned which, int value) {
  CALL(cuFuncSetAttribute, HANDLE);
  ALIVE(function, SIM_KERNEL);
  if (which != 8 || value < 0 || (unsigned)value + sim_function_static_shared(function->function) > 232448) return SIM_INVALID_VALUE;
  function->dynamic_limit = (unsigned)value;
  return SIM_OK;
}
API cuFuncGetParamInfo(struct sim_kernel *function, size_t index, size_t *offset, size_t *size) {
  CALL(cuFuncGetParamInfo, HANDLE);
  GIVEN(function);
  ALIVE(function, SIM_KERNEL);
  if (!offset || index >= function->parameters) return SIM_INVALID_VALUE;
  size_t bytes;
  sim_function_parameter(function->function, (unsigned)index, offset, &bytes);
  if (size) *size = bytes;
  return SIM_OK;
}
API cuFuncGetName(const char **name, struct sim_kernel *function) {
  CALL(cuFuncGetName, HANDLE);
  GIVEN(name);
  ALIVE(function, SIM_KERNEL);
  *name = function->name;
  return SIM_OK;
}
API cuFuncLoad(struct sim_kernel *function) {
  CALL(cuFuncLoad, CONTEXT);
  ALIVE(function, SIM_KERNEL);
  return SIM_OK;
}

/* Launches */

int cu_launch_of(struct sim_launch **out, struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                 unsigned shared, void **parameters) {
  ALIVE(kernel, SIM_KERNEL);
  return sim_launch_new(out, kernel, grid, block, shared, parameters);
}

API cuLaunchKernel(struct sim_kernel *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, struct sim_stream *stream, void **parameters, void **extra) {
  CALL(cuLaunchKernel, HANDLE);
  struct sim_op op = {.kind = SIM_OP_KERNEL};
  STREAM(stream);
  if (extra) return SIM_NOT_SUPPORTED;
  int status = cu_launch_of(&op.launch, function, (unsigned[3]){gx, gy, gz}, (unsigned[3]){bx, by, bz}, shared, parameters);
  if (status) return status;
  status = function->device == stream->device ? sim_enqueue(stream, &op, NULL) : SIM_INVALID_HANDLE;
  return status ? sim_op_refused(&op, status) : SIM_OK;
}

/* Occupancy */

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, struct sim_kernel *function, int threads, size_t shared) {
  CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, CONTEXT);
  if (!blocks || threads <= 0) return SIM_INVALID_VALUE;
  ALIVE(function, SIM_KERNEL);
  *blocks = sim_occupancy(function, (unsigned)threads, shared);
  return SIM_OK;
}
