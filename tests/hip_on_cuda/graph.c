/* Graphs: HIP's node parameters become CUDA's; graphs, nodes and instances pass through. */
#include "translate.h"
#include "parameters.h"

#include <string.h>

#define PLACE void **node, void *graph, void *const *dependencies, size_t count

static void *current_context(void) {
  int error;
  return hip_context(hip_device, &error);
}

static cu_kernel_node kernel_node(const hip_kernel_node *hip, void **extra) {
  return (cu_kernel_node){
      .function = hip->function,
      .grid = hip->grid,
      .block = hip->block,
      .shared_memory = hip->shared_memory,
      .parameters = hip->parameters,
      .extra = rewrite_extra(hip->extra, extra),
  };
}

static cu_memset_node memset_node(const hip_memset_node *hip) {
  return (cu_memset_node){
      .target = (address)hip->target,
      .pitch = hip->pitch,
      .value = hip->value,
      .element_size = hip->element_size,
      .width = hip->width,
      .height = hip->height,
  };
}

/* A side of a copy; unified lets the driver find out by the address. */
static void copy_side(cu_copy_side *side, const void *pointer, int on_host, int unified) {
  enum { HOST = 1, DEVICE = 2, UNIFIED = 4 };
  side->type = unified ? UNIFIED : on_host ? HOST : DEVICE;
  side->host = pointer;
  side->device = (address)pointer;
}

static int copy_node(cu_copy3d *copy, const void *target, const void *source, int kind) {
  if (kind < 0 || kind > 4) return INVALID_MEMCPY_DIRECTION;
  memset(copy, 0, sizeof *copy);
  copy_side(&copy->source, source, kind == 0 || kind == 1, kind == 4);
  copy_side(&copy->target, target, kind == 0 || kind == 2, kind == 4);
  return SUCCESS;
}

static int line_copy(cu_copy3d *copy, const void *target, const void *source, size_t size,
                     int kind) {
  int error = copy_node(copy, target, source, kind);
  copy->width = size;
  copy->height = copy->depth = 1;
  return error;
}

FORWARD(hipGraphCreate, cuGraphCreate, (void **graph, unsigned flags), graph, flags)
FORWARD(hipGraphDestroy, cuGraphDestroy, (void *graph), graph)
FORWARD(hipGraphGetNodes, cuGraphGetNodes, (void *graph, void **nodes, size_t *count), graph, nodes, count)

HIP hipGraphAddKernelNode(PLACE, const hip_kernel_node *parameters) {
  void *extra[EXTRA_WORDS];
  ENTER;
  cu_kernel_node kernel = kernel_node(parameters, extra);
  RETURN(cuGraphAddKernelNode, node, graph, dependencies, count, &kernel);
}

HIP hipGraphAddMemcpyNode1D(PLACE, void *target, const void *source, size_t size, int kind) {
  cu_copy3d copy;
  ENTER;
  int error = line_copy(&copy, target, source, size, kind);
  if (error) return hip_fail(error);
  RETURN(cuGraphAddMemcpyNode, node, graph, dependencies, count, &copy, current_context());
}

HIP hipGraphAddMemsetNode(PLACE, const hip_memset_node *parameters) {
  ENTER;
  cu_memset_node set = memset_node(parameters);
  RETURN(cuGraphAddMemsetNode, node, graph, dependencies, count, &set, current_context());
}

FORWARD(hipGraphAddEmptyNode, cuGraphAddEmptyNode, (PLACE), node, graph, dependencies, count)
FORWARD(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,
        (void **instance, void *graph, unsigned long long flags), instance, graph, flags)
FORWARD(hipGraphLaunch, cuGraphLaunch, (void *instance, void *stream), instance, stream)
FORWARD(hipGraphExecDestroy, cuGraphExecDestroy, (void *instance), instance)

HIP hipGraphExecKernelNodeSetParams(void *instance, void *node, const hip_kernel_node *parameters) {
  void *extra[EXTRA_WORDS];
  ENTER;
  cu_kernel_node kernel = kernel_node(parameters, extra);
  RETURN(cuGraphExecKernelNodeSetParams, instance, node, &kernel);
}

HIP hipGraphExecMemcpyNodeSetParams1D(void *instance, void *node, void *target, const void *source,
                                      size_t size, int kind) {
  cu_copy3d copy;
  ENTER;
  int error = line_copy(&copy, target, source, size, kind);
  if (error) return hip_fail(error);
  RETURN(cuGraphExecMemcpyNodeSetParams, instance, node, &copy, current_context());
}

HIP hipGraphExecMemsetNodeSetParams(void *instance, void *node, const hip_memset_node *parameters) {
  ENTER;
  cu_memset_node set = memset_node(parameters);
  RETURN(cuGraphExecMemsetNodeSetParams, instance, node, &set, current_context());
}

FORWARD(hipGraphNodeSetEnabled, cuGraphNodeSetEnabled,
        (void *instance, void *node, unsigned is_on), instance, node, is_on)
