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

static int volume_copy(cu_copy3d *copy, const hip_copy3d *hip) {
  if (hip->source_array || hip->target_array) return NOT_SUPPORTED;
  int error = copy_node(copy, hip->target.pointer, hip->source.pointer, hip->kind);
  copy->source.x = hip->source_position.x;
  copy->source.y = hip->source_position.y;
  copy->source.z = hip->source_position.z;
  copy->source.pitch = hip->source.pitch;
  copy->source.height = hip->source.height;
  copy->target.x = hip->target_position.x;
  copy->target.y = hip->target_position.y;
  copy->target.z = hip->target_position.z;
  copy->target.pitch = hip->target.pitch;
  copy->target.height = hip->target.height;
  copy->width = hip->extent.x;
  copy->height = hip->extent.y;
  copy->depth = hip->extent.z;
  return error;
}

HIP hipGraphCreate(void **graph, unsigned flags) {
  ENTER;
  RETURN(cuGraphCreate, graph, flags);
}

HIP hipGraphDestroy(void *graph) {
  ENTER;
  RETURN(cuGraphDestroy, graph);
}

HIP hipGraphClone(void **clone, void *graph) {
  ENTER;
  RETURN(cuGraphClone, clone, graph);
}

HIP hipGraphGetNodes(void *graph, void **nodes, size_t *count) {
  ENTER;
  RETURN(cuGraphGetNodes, graph, nodes, count);
}

HIP hipGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t count) {
  ENTER;
  RETURN(cuGraphAddDependencies, graph, from, to, count);
}

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

HIP hipGraphAddMemcpyNode(PLACE, const hip_copy3d *parameters) {
  cu_copy3d copy;
  ENTER;
  int error = volume_copy(&copy, parameters);
  if (error) return hip_fail(error);
  RETURN(cuGraphAddMemcpyNode, node, graph, dependencies, count, &copy, current_context());
}

HIP hipGraphAddMemsetNode(PLACE, const hip_memset_node *parameters) {
  ENTER;
  cu_memset_node set = memset_node(parameters);
  RETURN(cuGraphAddMemsetNode, node, graph, dependencies, count, &set, current_context());
}

/* A host node's two fields are the same in both. */
HIP hipGraphAddHostNode(PLACE, const void *parameters) {
  ENTER;
  RETURN(cuGraphAddHostNode, node, graph, dependencies, count, parameters);
}

HIP hipGraphAddEmptyNode(PLACE) {
  ENTER;
  RETURN(cuGraphAddEmptyNode, node, graph, dependencies, count);
}

HIP hipGraphAddChildGraphNode(PLACE, void *child) {
  ENTER;
  RETURN(cuGraphAddChildGraphNode, node, graph, dependencies, count, child);
}

HIP hipGraphAddEventRecordNode(PLACE, void *event) {
  ENTER;
  RETURN(cuGraphAddEventRecordNode, node, graph, dependencies, count, event);
}

HIP hipGraphAddEventWaitNode(PLACE, void *event) {
  ENTER;
  RETURN(cuGraphAddEventWaitNode, node, graph, dependencies, count, event);
}

HIP hipGraphInstantiateWithFlags(void **instance, void *graph, unsigned long long flags) {
  ENTER;
  RETURN(cuGraphInstantiateWithFlags, instance, graph, flags);
}

HIP hipGraphInstantiate(void **instance, void *graph, void **error_node, char *log, size_t size) {
  if (error_node) *error_node = NULL;
  if (log && size) *log = 0;
  return hipGraphInstantiateWithFlags(instance, graph, 0);
}

HIP hipGraphLaunch(void *instance, void *stream) {
  ENTER;
  RETURN(cuGraphLaunch, instance, stream);
}

HIP hipGraphUpload(void *instance, void *stream) {
  ENTER;
  RETURN(cuGraphUpload, instance, stream);
}

HIP hipGraphExecDestroy(void *instance) {
  ENTER;
  RETURN(cuGraphExecDestroy, instance);
}

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

HIP hipGraphExecMemcpyNodeSetParams(void *instance, void *node, const hip_copy3d *parameters) {
  cu_copy3d copy;
  ENTER;
  int error = volume_copy(&copy, parameters);
  if (error) return hip_fail(error);
  RETURN(cuGraphExecMemcpyNodeSetParams, instance, node, &copy, current_context());
}

HIP hipGraphExecMemsetNodeSetParams(void *instance, void *node, const hip_memset_node *parameters) {
  ENTER;
  cu_memset_node set = memset_node(parameters);
  RETURN(cuGraphExecMemsetNodeSetParams, instance, node, &set, current_context());
}

HIP hipGraphExecHostNodeSetParams(void *instance, void *node, const void *parameters) {
  ENTER;
  RETURN(cuGraphExecHostNodeSetParams, instance, node, parameters);
}
