/* The CUDA face: graphs. */
#include "cuda.h"

/* The operations behind the structs of parameters */

static int kernel_op(struct sim_op *op, const kernel_node *p) {
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

#define cuGraphAddKernelNode cuGraphAddKernelNode_v2
#define cuGraphExecKernelNodeSetParams cuGraphExecKernelNodeSetParams_v2
#include "both_graphs.h"

API cuGraphCreate(struct sim_graph **graph, unsigned flags) {
  CALL(cuGraphCreate, INIT | SIM_ALLOWED_AFTER_ERROR);
  if (!graph || flags) return SIM_INVALID_VALUE;
  return sim_graph_create(graph, cu_device() < 0 ? 0 : cu_device());
}

API cuGraphAddMemcpyNode(PLACE, const struct cu_memcpy3d *p, struct cu_context *context) {
  CALL(cuGraphAddMemcpyNode, HANDLE);
  struct sim_op op;
  if (context && !cu_is_context(context)) return SIM_INVALID_VALUE;
  return add(node, graph, dependencies, count, copy_op(&op, p), &op);
}

API cuGraphAddMemsetNode(PLACE, const memset_node *p, struct cu_context *context) {
  CALL(cuGraphAddMemsetNode, HANDLE);
  struct sim_op op;
  if (context && !cu_is_context(context)) return SIM_INVALID_VALUE;
  return add(node, graph, dependencies, count, set_op(&op, p), &op);
}

API cuGraphExecMemcpyNodeSetParams(struct sim_exec *exec, struct sim_node *node, const struct cu_memcpy3d *p, struct cu_context *context) {
  CALL(cuGraphExecMemcpyNodeSetParams, HANDLE);
  struct sim_op op;
  if (!cu_is_context(context)) return SIM_INVALID_VALUE;
  return change(exec, node, copy_op(&op, p), &op);
}

API cuGraphExecMemsetNodeSetParams(struct sim_exec *exec, struct sim_node *node, const memset_node *p, struct cu_context *context) {
  CALL(cuGraphExecMemsetNodeSetParams, HANDLE);
  struct sim_op op;
  if (!cu_is_context(context)) return SIM_INVALID_VALUE;
  return change(exec, node, set_op(&op, p), &op);
}

API cuGraphInstantiateWithFlags(struct sim_exec **exec, struct sim_graph *graph, unsigned long long flags) {
  CALL(cuGraphInstantiateWithFlags, CONTEXT | UNSAFE);
  if (!exec || flags & ~15ull || !sim_handle_alive(graph, SIM_GRAPH)) return SIM_INVALID_VALUE;
  return sim_exec_create(exec, graph);
}
