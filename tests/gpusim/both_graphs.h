/* Functions of both faces: graphs. The face has a `kernel_op`, which reads its own struct. */

#define PLACE struct sim_node **node, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count

static int set_op(struct sim_op *op, const memset_node *p) {
  if (!p || !p->width || p->height != 1) return SIM_INVALID_VALUE;
  *op = (struct sim_op){.kind = SIM_OP_SET};
  op->set = (struct sim_set){(char *)(uintptr_t)p->target, p->value, p->element_size, p->width};
  sim_lock();
  int status = sim_check_set(&op->set);
  sim_unlock();
  return status;
}

static int add(PLACE, int status, const struct sim_op *op) {
  if (status) END(status);
  if (node && (!count || dependencies) && sim_handle_alive(graph, SIM_GRAPH))
    END(sim_graph_add(node, graph, dependencies, count, op));
  END(sim_op_refused(op, SIM_INVALID_VALUE));
}

static int change(struct sim_exec *exec, struct sim_node *node, int status, const struct sim_op *op) {
  if (status) END(status);
  if (sim_handle_alive(node, SIM_NODE) && sim_handle_alive(exec, SIM_EXEC)) END(sim_exec_set(exec, node, op));
  END(sim_op_refused(op, SIM_INVALID_VALUE));
}

API FACE(GraphDestroy)(struct sim_graph *graph) {
  BEGIN(GraphDestroy, DESTROYS);
  END(sim_handle_alive(graph, SIM_GRAPH) ? sim_graph_destroy(graph) : SIM_INVALID_VALUE);
}

API FACE(GraphAddKernelNode)(PLACE, const kernel_node *p) {
  BEGIN(GraphAddKernelNode, HANDLE);
  struct sim_op op;
  return add(node, graph, dependencies, count, kernel_op(&op, p), &op);
}

API FACE(GraphAddEmptyNode)(PLACE) {
  BEGIN(GraphAddEmptyNode, HANDLE);
  const struct sim_op op = {.kind = SIM_OP_EMPTY};
  return add(node, graph, dependencies, count, SIM_OK, &op);
}

/* The array is filled as far as it goes. */
API FACE(GraphGetNodes)(struct sim_graph *graph, struct sim_node **nodes, size_t *count) {
  BEGIN(GraphGetNodes, INIT);
  if (!count || !sim_handle_alive(graph, SIM_GRAPH)) END(SIM_INVALID_VALUE);
  for (size_t i = 0; nodes && i < *count; i++) nodes[i] = i < (size_t)graph->count ? graph->nodes[i] : NULL;
  if (!nodes || *count > (size_t)graph->count) *count = (size_t)graph->count;
  return SIM_OK;
}

/* Instances */

API FACE(GraphExecDestroy)(struct sim_exec *exec) {
  BEGIN(GraphExecDestroy, DESTROYS | UNSAFE);
  END(sim_handle_alive(exec, SIM_EXEC) ? sim_exec_destroy(exec) : SIM_INVALID_VALUE);
}

API FACE(GraphLaunch)(struct sim_exec *exec, struct sim_stream *stream) {
  BEGIN(GraphLaunch, HANDLE);
  STREAM(stream);
  if (!sim_handle_alive(exec, SIM_EXEC) || exec->device != stream->device) END(SIM_INVALID_VALUE);
  END(sim_exec_launch(exec, stream));
}

API FACE(GraphExecKernelNodeSetParams)(struct sim_exec *exec, struct sim_node *node, const kernel_node *p) {
  BEGIN(GraphExecKernelNodeSetParams, HANDLE);
  struct sim_op op;
  return change(exec, node, kernel_op(&op, p), &op);
}

API FACE(GraphNodeSetEnabled)(struct sim_exec *exec, struct sim_node *node, unsigned is_on) {
  BEGIN(GraphNodeSetEnabled, HANDLE);
  bool is_known = sim_handle_alive(node, SIM_NODE) && sim_handle_alive(exec, SIM_EXEC);
  END(is_known ? sim_exec_enable(exec, node, is_on) : SIM_INVALID_VALUE);
}
