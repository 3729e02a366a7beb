/* Instances of graphs: a plan that launches hold, updated by copying it when a launch still does. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* Its nodes are the graph's, in the same places. Lock held. */
static struct sim_plan *plan_of(const struct sim_graph *graph) {
  struct sim_plan *plan = calloc(1, sizeof *plan);
  size_t count = (size_t)graph->count, edges = 0;
  plan->count = graph->count;
  plan->references = 1;
  plan->ops = malloc((count + 1) * sizeof *plan->ops);
  plan->ids = malloc((count + 1) * sizeof *plan->ids);
  plan->indegree = calloc(count + 1, sizeof *plan->indegree);
  plan->first = calloc(count + 2, sizeof *plan->first);
  for (int i = 0; i < plan->count; i++) {
    const struct sim_node *node = graph->nodes[i];
    plan->ops[i] = node->op;
    plan->ids[i] = node->id;
    sim_op_hold(&node->op);
    plan->indegree[i] = node->dependency_count;
    edges += (size_t)node->dependency_count;
    for (int j = 0; j < node->dependency_count; j++) plan->first[node->dependencies[j]->index + 2]++;
  }
  for (int i = 0; i < plan->count; i++) plan->first[i + 2] += plan->first[i + 1];
  plan->successors = malloc((edges + 1) * sizeof *plan->successors);
  for (int i = 0; i < plan->count; i++)
    for (int j = 0; j < graph->nodes[i]->dependency_count; j++)
      plan->successors[plan->first[graph->nodes[i]->dependencies[j]->index + 1]++] = i;
  return plan;
}

void sim_plan_release(struct sim_plan *plan) {
  if (--plan->references) return;
  for (int i = 0; i < plan->count; i++) sim_op_release(&plan->ops[i]);
  free(plan->ops);
  free(plan->ids);
  free(plan->indegree);
  free(plan->first);
  free(plan->successors);
  free(plan);
}

static void *copied(const void *bytes, size_t size) { return memcpy(malloc(size + 1), bytes, size); }

/* A plan that no launch holds, so that it may be changed. */
static struct sim_plan *writable(struct sim_exec *exec) {
  struct sim_plan *old = exec->plan;
  if (old->references == 1) return old;
  struct sim_plan *plan = copied(old, sizeof *old);
  size_t count = (size_t)old->count;
  plan->references = 1;
  plan->ops = copied(old->ops, count * sizeof *old->ops);
  plan->ids = copied(old->ids, count * sizeof *old->ids);
  plan->indegree = copied(old->indegree, count * sizeof *old->indegree);
  plan->first = copied(old->first, (count + 2) * sizeof *old->first);
  plan->successors = copied(old->successors, (size_t)old->first[count] * sizeof *old->successors);
  for (size_t i = 0; i < count; i++) sim_op_hold(&plan->ops[i]);
  sim_plan_release(old);
  return exec->plan = plan;
}

/* An instance is not thread-safe: its users lock it. */
static void begin_use(struct sim_exec *exec) {
  if (__atomic_fetch_add(&exec->using, 1, __ATOMIC_ACQ_REL) && sim.strict)
    sim_abort(NULL, "two threads use graph instance %u at once", exec->ordinal);
}

static void end_use(struct sim_exec *exec) { __atomic_fetch_sub(&exec->using, 1, __ATOMIC_ACQ_REL); }

int sim_exec_create(struct sim_exec **out, struct sim_graph *graph) {
  struct sim_exec *exec = calloc(1, sizeof *exec);
  sim_lock();
  exec->plan = plan_of(graph);
  exec->device = graph->device;
  exec->ordinal = ++sim.ordinals[SIM_EXEC];
  sim_unlock();
  sim_handle_add(exec, SIM_EXEC);
  *out = exec;
  return SIM_OK;
}

int sim_exec_destroy(struct sim_exec *exec) {
  sim_lock();
  if (exec->pending && sim_strict_about(&sim.devices[exec->device]))
    sim_abort(exec->last.stream, "graph instance %u is destroyed while a stream runs it (I4)", exec->ordinal);
  sim_handle_kill(exec);
  sim_plan_release(exec->plan);
  exec->plan = NULL;
  sim_unlock();
  return SIM_OK;
}

static bool host_side(const void *address) {
  const struct sim_block *block = sim_find(address);
  return !block || block->memory == SIM_HOST || block->memory == SIM_REGISTERED;
}

/* What the drivers refuse to change in an instance. */
static int check_change(const struct sim_op *old, const struct sim_op *now) {
  if (old->kind != now->kind) return SIM_INVALID_VALUE;
  switch (now->kind) {
    case SIM_OP_KERNEL:
      return old->launch->kernel->device == now->launch->kernel->device ? SIM_OK : SIM_INVALID_VALUE;
    case SIM_OP_SET:
      return now->set.count ? SIM_OK : SIM_INVALID_VALUE;
    case SIM_OP_COPY:
      return host_side(old->copy.target) == host_side(now->copy.target) && host_side(old->copy.source) == host_side(now->copy.source)
                 ? SIM_OK
                 : SIM_INVALID_VALUE;
    default: return SIM_OK;
  }
}

/* Where the instance has the node; the number of its nodes if it has it not. Lock held. */
static int index_of(const struct sim_exec *exec, const struct sim_node *node) {
  return node->index < exec->plan->count && exec->plan->ids[node->index] == node->id ? node->index : exec->plan->count;
}

int sim_exec_enable(struct sim_exec *exec, struct sim_node *node, bool is_on) {
  begin_use(exec);
  sim_lock();
  int index = index_of(exec, node), status = SIM_INVALID_VALUE;
  if (index < exec->plan->count) {
    enum sim_op_kind kind = exec->plan->ops[index].kind;
    if (kind == SIM_OP_KERNEL || kind == SIM_OP_COPY || kind == SIM_OP_SET) status = SIM_OK;
  }
  if (!status) writable(exec)->ops[index].is_off = !is_on;
  sim_unlock();
  end_use(exec);
  return status;
}

/* Takes over what the operation holds. */
int sim_exec_set(struct sim_exec *exec, struct sim_node *node, const struct sim_op *op) {
  begin_use(exec);
  sim_lock();
  int index = index_of(exec, node);
  int status = index < exec->plan->count ? check_change(&exec->plan->ops[index], op) : SIM_INVALID_VALUE;
  if (!status) {
    struct sim_plan *plan = writable(exec);
    bool is_off = plan->ops[index].is_off;
    sim_op_release(&plan->ops[index]);
    plan->ops[index] = *op;
    plan->ops[index].is_off = is_off;
  } else {
    sim_op_release(op);
  }
  sim_unlock();
  end_use(exec);
  return status;
}

int sim_exec_launch(struct sim_exec *exec, struct sim_stream *stream) {
  begin_use(exec);
  sim_lock();
  struct sim_plan *plan = exec->plan;
  for (int i = 0; i < plan->count; i++)
    if (plan->ops[i].kind == SIM_OP_KERNEL && plan->ops[i].launch->kernel->module->unloaded && sim_strict_about(&sim.devices[exec->device]))
      sim_abort(stream, "graph instance %u is launched after the module of its node %d was unloaded (I4)", exec->ordinal, i);
  struct sim_run *run = calloc(1, sizeof *run);
  run->exec = exec;
  run->plan = plan;
  plan->references++;
  exec->pending++;
  run->before = exec->last;
  bool blocks = false;
  for (int i = 0; i < plan->count; i++) blocks |= plan->ops[i].kind == SIM_OP_COPY && sim_is_between_hosts(&plan->ops[i].copy);
  struct sim_point point;
  int status = sim_enqueue_locked(stream, &(struct sim_op){.kind = SIM_OP_GRAPH, .run = run}, &point);
  if (status) sim_run_free(run);
  else exec->last = point;
  sim_unlock();
  end_use(exec);
  return !status && blocks ? sim_point_synchronize(point) : status;
}
