/* Modules, kernels, launches, occupancy. */
#include "translate.h"
#include "parameters.h"

FORWARD(hipModuleLoadData, cuModuleLoadData, (void **module, const void *image), module, image)
FORWARD(hipModuleUnload, cuModuleUnload, (void *module), module)
FORWARD(hipModuleGetFunction, cuModuleGetFunction,
        (void **function, void *module, const char *name), function, module, name)
FORWARD(hipModuleGetGlobal, cuModuleGetGlobal,
        (address *pointer, size_t *size, void *module, const char *name), pointer, size, module, name)

/* The attributes of functions have the same numbers. */
FORWARD(hipFuncGetAttribute, cuFuncGetAttribute,
        (int *value, int number, void *function), value, number, function)

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
