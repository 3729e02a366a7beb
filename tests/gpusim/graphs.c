/* Graphs while they are built: nodes and edges. */
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
  sim_lock();
  for (int i = 0; i < graph->count; i++) drop(graph->nodes[i]);
  sim_unlock();
  free(graph->nodes);
  graph->nodes = NULL;
  graph->count = graph->capacity = 0;
  return SIM_OK;
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
