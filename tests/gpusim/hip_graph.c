/* The HIP face: graphs. */
#include "hip.h"

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

#include "both_graphs.h"

API hipGraphCreate(struct sim_graph **graph, unsigned flags) {
  CALL(hipGraphCreate, CONTEXT);
  if (!graph || flags) END(SIM_INVALID_VALUE);
  END(sim_graph_create(graph, hip_device));
}

API hipGraphAddMemcpyNode1D(PLACE, void *target, const void *source, size_t size, int kind) {
  CALL(hipGraphAddMemcpyNode1D, CONTEXT);
  struct sim_op op;
  return add(node, graph, dependencies, count, line_op(&op, target, source, size, kind), &op);
}

API hipGraphAddMemsetNode(PLACE, const hip_memset_node *p) {
  CALL(hipGraphAddMemsetNode, CONTEXT);
  struct sim_op op;
  return add(node, graph, dependencies, count, set_op(&op, p), &op);
}

API hipGraphInstantiateWithFlags(struct sim_exec **exec, struct sim_graph *graph, unsigned long long flags) {
  CALL(hipGraphInstantiateWithFlags, CONTEXT | UNSAFE);
  if (!exec || flags || !sim_handle_alive(graph, SIM_GRAPH)) END(SIM_INVALID_VALUE);
  END(sim_exec_create(exec, graph));
}

API hipGraphExecMemcpyNodeSetParams1D(struct sim_exec *exec, struct sim_node *node, void *target, const void *source, size_t size, int kind) {
  CALL(hipGraphExecMemcpyNodeSetParams1D, CONTEXT);
  struct sim_op op;
  return change(exec, node, line_op(&op, target, source, size, kind), &op);
}

API hipGraphExecMemsetNodeSetParams(struct sim_exec *exec, struct sim_node *node, const hip_memset_node *p) {
  CALL(hipGraphExecMemsetNodeSetParams, CONTEXT);
  struct sim_op op;
  return change(exec, node, set_op(&op, p), &op);
}
