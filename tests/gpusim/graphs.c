/* Graphs while they are built: nodes, edges, and clones. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static unsigned long ids;

int sim_graph_create(struct sim_graph **out, int device) {
  struct sim_graph *graph = calloc(1, sizeof *graph);
  graph->device = device;
  sim_lock();
  graph->ordinal = ++sim.ordinals[SIM_GRAPH];
  sim_unlock();
  sim_handle_add(graph, SIM_GRAPH);
  *out = graph;
  return SIM_OK;
}

static void drop(struct sim_node *node) {
  sim_handle_kill(node);
  sim_op_release(&node->op);
  free(node->dependencies);
  node->dependencies = NULL;
  node->dependency_count = 0;
}

int sim_graph_destroy(struct sim_graph *graph) {
  sim_handle_kill(graph);
  for (int i = 0; i < graph->count; i++) {
    struct sim_node *node = graph->nodes[i];
    if (node->op.kind == SIM_OP_CHILD) { /* takes the lock itself */
      sim_graph_destroy(node->op.child);
      node->op = (struct sim_op){.kind = SIM_OP_EMPTY};
    }
    sim_lock();
    drop(node);
    sim_unlock();
  }
  free(graph->nodes);
  graph->nodes = NULL;
  graph->count = graph->capacity = 0;
  return SIM_OK;
}

static bool depends(const struct sim_node *node, const struct sim_node *on) {
  for (int i = 0; i < node->dependency_count; i++)
    if (node->dependencies[i] == on) return true;
  return false;
}

/* The node takes over what the operation holds, also when it cannot be added. */
int sim_graph_add_locked(struct sim_node **out, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count,
                         const struct sim_op *op) {
  int status = SIM_OK;
  for (size_t i = 0; i < count && !status; i++) {
    if (!sim_handle_alive(dependencies[i], SIM_NODE) || dependencies[i]->graph != graph) status = SIM_INVALID_VALUE;
    for (size_t j = 0; j < i && !status; j++)
      if (dependencies[i] == dependencies[j]) status = SIM_INVALID_VALUE;
  }
  if (status) {
    sim_op_release(op);
    return status;
  }
  struct sim_node *node = calloc(1, sizeof *node);
  node->graph = graph;
  node->id = ++ids;
  node->device = graph->device;
  node->op = *op;
  node->dependency_count = (int)count;
  if (count) {
    node->dependencies = malloc(count * sizeof *node->dependencies);
    memcpy(node->dependencies, dependencies, count * sizeof *node->dependencies);
  }
  if (graph->count == graph->capacity) {
    graph->capacity = graph->capacity ? 2 * graph->capacity : 16;
    graph->nodes = realloc(graph->nodes, (size_t)graph->capacity * sizeof *graph->nodes);
  }
  node->index = graph->count;
  graph->nodes[graph->count++] = node;
  sim_handle_add(node, SIM_NODE);
  *out = node;
  return SIM_OK;
}

int sim_graph_add(struct sim_node **out, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count,
                  const struct sim_op *op) {
  sim_lock();
  int status = sim_graph_add_locked(out, graph, dependencies, count, op);
  sim_unlock();
  return status;
}

int sim_graph_depend(struct sim_graph *graph, struct sim_node *const *from, struct sim_node *const *to, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!sim_handle_alive(from[i], SIM_NODE) || !sim_handle_alive(to[i], SIM_NODE)) return SIM_INVALID_VALUE;
    if (from[i]->graph != graph || to[i]->graph != graph || from[i] == to[i] || depends(to[i], from[i])) return SIM_INVALID_VALUE;
  }
  sim_lock();
  for (size_t i = 0; i < count; i++) {
    struct sim_node *node = to[i];
    node->dependencies = realloc(node->dependencies, (size_t)(node->dependency_count + 1) * sizeof *node->dependencies);
    node->dependencies[node->dependency_count++] = from[i];
  }
  sim_unlock();
  return SIM_OK;
}

int sim_graph_clone(struct sim_graph **out, struct sim_graph *graph) {
  struct sim_graph *clone;
  sim_graph_create(&clone, graph->device);
  for (int i = 0; i < graph->count; i++) {
    struct sim_op op = graph->nodes[i]->op;
    struct sim_node *node;
    if (op.kind == SIM_OP_CHILD) sim_graph_clone(&op.child, graph->nodes[i]->op.child);
    sim_lock();
    sim_op_hold(&op);
    sim_unlock();
    sim_graph_add(&node, clone, NULL, 0, &op);
  }
  for (int i = 0; i < graph->count; i++)
    for (int j = 0; j < graph->nodes[i]->dependency_count; j++)
      sim_graph_depend(clone, &clone->nodes[graph->nodes[i]->dependencies[j]->index], &clone->nodes[i], 1);
  *out = clone;
  return SIM_OK;
}

/* Takes over what the operation holds. */
int sim_node_set(struct sim_node *node, const struct sim_op *op) {
  sim_lock();
  int status = node->op.kind == op->kind ? SIM_OK : SIM_INVALID_VALUE;
  struct sim_op old = status ? *op : node->op;
  if (!status) node->op = *op;
  sim_op_release(&old);
  sim_unlock();
  return status;
}

int sim_node_destroy(struct sim_node *node) {
  struct sim_graph *graph = node->graph;
  if (node->op.kind == SIM_OP_CHILD) sim_graph_destroy(node->op.child);
  sim_lock();
  for (int i = 0; i < graph->count; i++) { /* what depended on it keeps no edge */
    struct sim_node *other = graph->nodes[i];
    int kept = 0;
    for (int j = 0; j < other->dependency_count; j++)
      if (other->dependencies[j] != node) other->dependencies[kept++] = other->dependencies[j];
    other->dependency_count = kept;
  }
  graph->count--;
  for (int i = node->index; i < graph->count; i++) {
    graph->nodes[i] = graph->nodes[i + 1];
    graph->nodes[i]->index = i;
  }
  drop(node);
  sim_unlock();
  return SIM_OK;
}
