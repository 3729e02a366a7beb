/* Modules, kernels, launches, occupancy. */
#include "translate.h"
#include "parameters.h"

HIP hipModuleLoadData(void **module, const void *image) {
  ENTER;
  RETURN(cuModuleLoadData, module, image);
}

HIP hipModuleUnload(void *module) {
  ENTER;
  RETURN(cuModuleUnload, module);
}

HIP hipModuleGetFunction(void **function, void *module, const char *name) {
  ENTER;
  RETURN(cuModuleGetFunction, function, module, name);
}

HIP hipModuleGetGlobal(address *pointer, size_t *size, void *module, const char *name) {
  ENTER;
  RETURN(cuModuleGetGlobal, pointer, size, module, name);
}

/* The attributes of functions have the same numbers. */
HIP hipFuncGetAttribute(int *value, int number, void *function) {
  ENTER;
  RETURN(cuFuncGetAttribute, value, number, function);
}

HIP hipModuleLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_memory, void *stream, void **parameters, void **extra) {
  void *rewritten[EXTRA_WORDS];
  ENTER;
  RETURN(cuLaunchKernel, function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
         shared_memory, stream, parameters, rewrite_extra(extra, rewritten));
}

HIP hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int block_size,
                                                       size_t shared_memory) {
  ENTER;
  RETURN(cuOccupancyMaxActiveBlocksPerMultiprocessor, blocks, function, block_size, shared_memory);
}
