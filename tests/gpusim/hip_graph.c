/* The HIP face: graphs. */
#include "hip.h"

#define PLACE struct sim_node **node, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count

/* The operations behind the structs of parameters */

static int kernel_op(struct sim_op *op, const hip_kernel_node *p) {
  if (!p) return SIM_INVALID_VALUE;
  if (p->extra) return SIM_NOT_SUPPORTED;
  *op = (struct sim_op){.kind = SIM_OP_KERNEL};
  return hip_launch_of(&op->launch, p->function, p->grid, p->block, p->shared_memory, p->parameters);
}

static int checked_copy(struct sim_op *op, int kind) {
  bool known[2];
  op->kind = SIM_OP_COPY;
  int status = hip_check_kind(kind, known);
  if (status) return status;
  if (!op->copy.size) return SIM_INVALID_VALUE;
  sim_lock();
  status = sim_check_copy(&op->copy, known[0], known[1]);
  sim_unlock();
  return status;
}

static int line_op(struct sim_op *op, void *target, const void *source, size_t size, int kind) {
  *op = (struct sim_op){.copy = hip_line(target, source, size)};
  return checked_copy(op, kind);
}

static int set_op(struct sim_op *op, const hip_memset_node *p) {
  if (!p || !p->width || p->height != 1) return SIM_INVALID_VALUE;
  *op = (struct sim_op){.kind = SIM_OP_SET};
  op->set = (struct sim_set){p->target, p->value, p->element_size, p->width};
  sim_lock();
  int status = sim_check_set(&op->set);
  sim_unlock();
  return status;
}

static void give_up(const struct sim_op *op) {
  sim_lock();
  sim_op_release(op);
  sim_unlock();
}

static int add(PLACE, int status, const struct sim_op *op) {
  if (status) FAIL(status);
  if (node && (!count || dependencies) && sim_handle_alive(graph, SIM_GRAPH))
    FAIL(sim_graph_add(node, graph, dependencies, count, op));
  give_up(op);
  FAIL(SIM_INVALID_VALUE);
}

API hipGraphCreate(struct sim_graph **graph, unsigned flags) {
  CALL(hipGraphCreate, CURRENT);
  if (!graph || flags) FAIL(SIM_INVALID_VALUE);
  FAIL(sim_graph_create(graph, hip_device));
}

API hipGraphDestroy(struct sim_graph *graph) {
  CALL(hipGraphDestroy, ANY);
  FAIL(sim_handle_alive(graph, SIM_GRAPH) ? sim_graph_destroy(graph) : SIM_INVALID_VALUE);
}

API hipGraphAddKernelNode(PLACE, const hip_kernel_node *p) {
  CALL(hipGraphAddKernelNode, CURRENT);
  struct sim_op op;
  return add(node, graph, dependencies, count, kernel_op(&op, p), &op);
}

API hipGraphAddMemcpyNode1D(PLACE, void *target, const void *source, size_t size, int kind) {
  CALL(hipGraphAddMemcpyNode1D, CURRENT);
  struct sim_op op;
  return add(node, graph, dependencies, count, line_op(&op, target, source, size, kind), &op);
}

API hipGraphAddMemsetNode(PLACE, const hip_memset_node *p) {
  CALL(hipGraphAddMemsetNode, CURRENT);
  struct sim_op op;
  return add(node, graph, dependencies, count, set_op(&op, p), &op);
}

API hipGraphAddEmptyNode(PLACE) {
  CALL(hipGraphAddEmptyNode, CURRENT);
  const struct sim_op op = {.kind = SIM_OP_EMPTY};
  return add(node, graph, dependencies, count, SIM_OK, &op);
}

API hipGraphGetNodes(struct sim_graph *graph, struct sim_node **nodes, size_t *count) {
  CALL(hipGraphGetNodes, ANY);
  if (!count || !sim_handle_alive(graph, SIM_GRAPH)) FAIL(SIM_INVALID_VALUE);
  for (size_t i = 0; nodes && i < *count; i++) nodes[i] = i < (size_t)graph->count ? graph->nodes[i] : NULL;
  if (!nodes || *count > (size_t)graph->count) *count = (size_t)graph->count;
  return SIM_OK;
}

/* Instances */

API hipGraphInstantiateWithFlags(struct sim_exec **exec, struct sim_graph *graph, unsigned long long flags) {
  CALL(hipGraphInstantiateWithFlags, CURRENT | UNSAFE);
  if (!exec || flags || !sim_handle_alive(graph, SIM_GRAPH)) FAIL(SIM_INVALID_VALUE);
  FAIL(sim_exec_create(exec, graph));
}

API hipGraphExecDestroy(struct sim_exec *exec) {
  CALL(hipGraphExecDestroy, ANY | UNSAFE);
  FAIL(sim_handle_alive(exec, SIM_EXEC) ? sim_exec_destroy(exec) : SIM_INVALID_VALUE);
}

API hipGraphLaunch(struct sim_exec *exec, struct sim_stream *stream) {
  CALL(hipGraphLaunch, CURRENT);
  STREAM(stream);
  if (!sim_handle_alive(exec, SIM_EXEC) || exec->device != stream->device) FAIL(SIM_INVALID_VALUE);
  FAIL(sim_exec_launch(exec, stream));
}

static int change(struct sim_exec *exec, struct sim_node *node, int status, const struct sim_op *op) {
  if (status) FAIL(status);
  if (sim_handle_alive(node, SIM_NODE) && sim_handle_alive(exec, SIM_EXEC)) FAIL(sim_exec_set(exec, node, op));
  give_up(op);
  FAIL(SIM_INVALID_VALUE);
}

API hipGraphExecKernelNodeSetParams(struct sim_exec *exec, struct sim_node *node, const hip_kernel_node *p) {
  CALL(hipGraphExecKernelNodeSetParams, CURRENT);
  struct sim_op op;
  return change(exec, node, kernel_op(&op, p), &op);
}

API hipGraphExecMemcpyNodeSetParams1D(struct sim_exec *exec, struct sim_node *node, void *target, const void *source, size_t size, int kind) {
  CALL(hipGraphExecMemcpyNodeSetParams1D, CURRENT);
  struct sim_op op;
  return change(exec, node, line_op(&op, target, source, size, kind), &op);
}

API hipGraphExecMemsetNodeSetParams(struct sim_exec *exec, struct sim_node *node, const hip_memset_node *p) {
  CALL(hipGraphExecMemsetNodeSetParams, CURRENT);
  struct sim_op op;
  return change(exec, node, set_op(&op, p), &op);
}

API hipGraphNodeSetEnabled(struct sim_exec *exec, struct sim_node *node, unsigned is_on) {
  CALL(hipGraphNodeSetEnabled, CURRENT);
  bool is_known = sim_handle_alive(node, SIM_NODE) && sim_handle_alive(exec, SIM_EXEC);
  FAIL(is_known ? sim_exec_enable(exec, node, is_on) : SIM_INVALID_VALUE);
}
