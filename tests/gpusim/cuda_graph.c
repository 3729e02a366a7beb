/* The CUDA face: graphs. */

#include "cuda.h"

/* The operations behind the structs of parameters. */

static int kernel_op(struct sim_op *op, const struct cu_kernel_node *p) {
  GIVEN(p);
  if (p->extra) return SIM_NOT_SUPPORTED;
  *op = (struct sim_op){.kind = SIM_OP_KERNEL};
  return cu_launch_of(&op->launch, p->function, p->grid, p->block, p->shared, p->parameters);
}

static int copy_op(struct sim_op *op, const struct cu_memcpy3d *p) {
  bool device_side[2];
  GIVEN(p);
  *op = (struct sim_op){.kind = SIM_OP_COPY};
  if (!p->width || p->height != 1 || p->depth != 1) return SIM_INVALID_VALUE;
  int status = cu_copy_of(&op->copy, p, device_side);
  sim_lock();
  if (!status) status = sim_check_copy(&op->copy, device_side[0], device_side[1]);
  sim_unlock();
  return status;
}

static int set_op(struct sim_op *op, const struct cu_memset_node *p) {
  GIVEN(p);
  *op = (struct sim_op){.kind = SIM_OP_SET};
  op->set = (struct sim_set){(char *)(uintptr_t)p->target, p->value, p->element, p->width};
  if (!p->width || p->height != 1) return SIM_INVALID_VALUE;
  sim_lock();
  int status = sim_check_set(&op->set);
  sim_unlock();
  return status;
}

static int add(struct sim_node **node, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count, int status, const struct sim_op *op) {
  if (status) return status;
  if (node && (!count || dependencies) && sim_handle_alive(graph, SIM_GRAPH)) return sim_graph_add(node, graph, dependencies, count, op);
  sim_lock();
  sim_op_release(op);
  sim_unlock();
  return SIM_INVALID_VALUE;
}

API cuGraphCreate(struct sim_graph **graph, unsigned flags) {
  CALL(cuGraphCreate, INIT | SIM_ALLOWED_AFTER_ERROR);
  if (!graph || flags) return SIM_INVALID_VALUE;
  return sim_graph_create(graph, cu_device() < 0 ? 0 : cu_device());
}

API cuGraphDestroy(struct sim_graph *graph) {
  CALL(cuGraphDestroy, INIT | SIM_ALLOWED_AFTER_ERROR);
  if (!sim_handle_alive(graph, SIM_GRAPH)) return SIM_INVALID_VALUE;
  return sim_graph_destroy(graph);
}

API cuGraphAddKernelNode_v2(struct sim_node **node, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count, const struct cu_kernel_node *p) {
  CALL(cuGraphAddKernelNode, HANDLE);
  struct sim_op op;
  return add(node, graph, dependencies, count, kernel_op(&op, p), &op);
}
API cuGraphAddMemcpyNode(struct sim_node **node, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count, const struct cu_memcpy3d *p, struct cu_context *context) {
  CALL(cuGraphAddMemcpyNode, HANDLE);
  struct sim_op op;
  if (context && !cu_is_context(context)) return SIM_INVALID_VALUE;
  return add(node, graph, dependencies, count, copy_op(&op, p), &op);
}
API cuGraphAddMemsetNode(struct sim_node **node, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count, const struct cu_memset_node *p, struct cu_context *context) {
  CALL(cuGraphAddMemsetNode, HANDLE);
  struct sim_op op;
  if (context && !cu_is_context(context)) return SIM_INVALID_VALUE;
  return add(node, graph, dependencies, count, set_op(&op, p), &op);
}
API cuGraphAddEmptyNode(struct sim_node **node, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count) {
  CALL(cuGraphAddEmptyNode, HANDLE);
  const struct sim_op op = {.kind = SIM_OP_EMPTY};
  return add(node, graph, dependencies, count, SIM_OK, &op);
}
/* What is there. Arrays are filled as far as they go. */

API cuGraphGetNodes(struct sim_graph *graph, struct sim_node **nodes, size_t *count) {
  CALL(cuGraphGetNodes, INIT);
  if (!count || !sim_handle_alive(graph, SIM_GRAPH)) return SIM_INVALID_VALUE;
  for (size_t i = 0; nodes && i < *count; i++) nodes[i] = i < (size_t)graph->count ? graph->nodes[i] : NULL;
  if (!nodes || *count > (size_t)graph->count) *count = (size_t)graph->count;
  return SIM_OK;
}

/* Changing a node of an instance. */

static int change(struct sim_exec *exec, struct sim_node *node, int status, const struct sim_op *op) {
  if (status) return status;
  if (sim_handle_alive(node, SIM_NODE) && sim_handle_alive(exec, SIM_EXEC)) return sim_exec_set(exec, node, op);
  sim_lock();
  sim_op_release(op);
  sim_unlock();
  return SIM_INVALID_VALUE;
}

API cuGraphExecKernelNodeSetParams_v2(struct sim_exec *exec, struct sim_node *node, const struct cu_kernel_node *p) {
  CALL(cuGraphExecKernelNodeSetParams, HANDLE);
  struct sim_op op;
  return change(exec, node, kernel_op(&op, p), &op);
}
API cuGraphExecMemcpyNodeSetParams(struct sim_exec *exec, struct sim_node *node, const struct cu_memcpy3d *p, struct cu_context *context) {
  CALL(cuGraphExecMemcpyNodeSetParams, HANDLE);
  struct sim_op op;
  if (!cu_is_context(context)) return SIM_INVALID_VALUE;
  return change(exec, node, copy_op(&op, p), &op);
}
API cuGraphExecMemsetNodeSetParams(struct sim_exec *exec, struct sim_node *node, const struct cu_memset_node *p, struct cu_context *context) {
  CALL(cuGraphExecMemsetNodeSetParams, HANDLE);
  struct sim_op op;
  if (!cu_is_context(context)) return SIM_INVALID_VALUE;
  return change(exec, node, set_op(&op, p), &op);
}
API cuGraphNodeSetEnabled(struct sim_exec *exec, struct sim_node *node, unsigned is_on) {
  CALL(cuGraphNodeSetEnabled, HANDLE);
  if (!sim_handle_alive(node, SIM_NODE) || !sim_handle_alive(exec, SIM_EXEC)) return SIM_INVALID_VALUE;
  return sim_exec_enable(exec, node, is_on);
}
/* Instances */

API cuGraphInstantiateWithFlags(struct sim_exec **exec, struct sim_graph *graph, unsigned long long flags) {
  CALL(cuGraphInstantiateWithFlags, CONTEXT | UNSAFE);
  if (!exec || flags & ~15ull || !sim_handle_alive(graph, SIM_GRAPH)) return SIM_INVALID_VALUE;
  return sim_exec_create(exec, graph);
}
API cuGraphExecDestroy(struct sim_exec *exec) {
  CALL(cuGraphExecDestroy, INIT | SIM_ALLOWED_AFTER_ERROR | UNSAFE);
  if (!sim_handle_alive(exec, SIM_EXEC)) return SIM_INVALID_VALUE;
  return sim_exec_destroy(exec);
}
API cuGraphLaunch(struct sim_exec *exec, struct sim_stream *stream) {
  CALL(cuGraphLaunch, HANDLE);
  STREAM(stream);
  if (!sim_handle_alive(exec, SIM_EXEC)) return SIM_INVALID_VALUE;
  if (exec->device != stream->device) return SIM_INVALID_VALUE;
  return sim_exec_launch(exec, stream);
}
