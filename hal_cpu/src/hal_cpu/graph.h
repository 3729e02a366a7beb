/* Graphs: records with dependencies, of which several threads run what is ready.
 *
 * Part of runtime.c. A graph has a shape (how its nodes depend on each other),
 * which never changes, and a version of their records. An instance has both too,
 * and what a running launch needs. Shapes and versions are counted: a launch
 * keeps the version that was the instance's when it was enqueued, and an update
 * replaces a version that anybody else still has by a copy. So an update never
 * touches a launch that was enqueued before, and costs a copy only once after
 * each launch that is still to end.
 *
 * Who may call what: one thread at a time uses one instance; one launch of an
 * instance runs at a time. */
#ifndef HAL_CPU_GRAPH_H
#define HAL_CPU_GRAPH_H

#include "work.h"

#include <errno.h>

/* ------------------------------------------------------------------- objects */

struct shape {
  _Atomic uint32_t users;
  uint32_t count, roots;
  uint32_t *line;         /* where in the version a node's record begins */
  uint32_t *predecessors; /* of each node, how many */
  uint32_t *root;         /* the nodes without any */
  uint32_t *begin;        /* where a node's successors begin, and after the last node's */
  uint32_t *successors;
  uint32_t words[];
};

struct version {
  _Atomic uint32_t users;
  uint32_t lines;
  struct record records[];
};

struct graph {
  struct shape *shape;
  struct version *version;
};

struct instance {
  struct graph graph; /* must come first */
  uint64_t launches;
  uint64_t seed;                /* of the order of ready nodes; 0: see do_graph */
  uint32_t *ready;              /* a stack of the nodes that can begin */
  _Atomic uint32_t remaining[]; /* of each node, predecessors that have not ended */
};

static void drop_shape(struct shape *shape) {
  if (atomic_fetch_sub_explicit(&shape->users, 1, memory_order_acq_rel) == 1) free(shape);
}

static void drop_version(struct version *version) {
  if (atomic_fetch_sub_explicit(&version->users, 1, memory_order_acq_rel) == 1) free(version);
}

static struct version *new_version(uint32_t lines) {
  struct version *version = aligned_alloc(LINE, sizeof *version + (size_t)lines * LINE);
  if (!version) return NULL;
  version->users = 1;
  version->lines = lines;
  return version;
}

/* Return the shape of nodes that depend on those in `dependencies`, `degrees[i]`
 * entries for node i, or NULL when memory ended. */
static struct shape *new_shape(uint32_t count, uint32_t edges, const uint32_t *degrees, const uint32_t *dependencies) {
  struct shape *shape = malloc(sizeof *shape + (4 * (size_t)count + 1 + edges) * sizeof(uint32_t));
  if (!shape) return NULL;
  shape->users = 1;
  shape->count = count;
  shape->roots = 0;
  shape->line = shape->words;
  shape->predecessors = shape->line + count;
  shape->root = shape->predecessors + count;
  shape->begin = shape->root + count;
  shape->successors = shape->begin + count + 1;
  uint32_t *begin = shape->begin;
  memset(begin, 0, ((size_t)count + 1) * sizeof *begin);
  for (uint32_t i = 0; i < count; i++) {
    shape->predecessors[i] = degrees[i];
    if (degrees[i] == 0) shape->root[shape->roots++] = i;
  }
  /* Count, sum up, and hand out from the end. */
  for (uint32_t i = 0; i < edges; i++) begin[dependencies[i]]++;
  for (uint32_t i = 1; i <= count; i++) begin[i] += begin[i - 1];
  for (uint32_t node = count, edge = edges; node-- > 0;)
    for (uint32_t i = degrees[node]; i-- > 0;) shape->successors[--begin[dependencies[--edge]]] = node;
  return shape;
}

/* Create a graph of `count` nodes; `degrees[i]` is how many entries of
 * `dependencies` are node i's, all below i. Returns it, or NULL and an errno in
 * *error: ENOMEM, or EINVAL for what is no graph. */
EXPORT struct graph *hal_cpu_graph_create(uint32_t count, const struct order *orders, const uint32_t *degrees,
                                          const uint32_t *dependencies, int *error) {
  uint64_t edges = 0, lines = 0;
  *error = EINVAL;
  for (uint32_t i = 0; i < count; i++) {
    if (orders[i].kind != KIND_FILL && orders[i].kind != KIND_COPY && orders[i].kind != KIND_EMPTY &&
        !is_launch(orders[i].kind))
      return NULL;
    for (uint32_t k = 0; k < degrees[i]; k++)
      if (dependencies[edges++] >= i) return NULL;
    lines += lines_of(&orders[i]);
  }
  *error = ENOMEM;
  if (edges > UINT32_MAX || lines > UINT32_MAX) return NULL;
  struct graph *graph = malloc(sizeof *graph);
  struct shape *shape = new_shape(count, (uint32_t)edges, degrees, dependencies);
  struct version *version = new_version((uint32_t)lines);
  if (!graph || !shape || !version) {
    free(graph);
    free(shape);
    free(version);
    return NULL;
  }
  uint32_t line = 0;
  for (uint32_t i = 0; i < count; i++) {
    struct record *record = &version->records[line];
    shape->line[i] = line;
    line += record->lines = lines_of(&orders[i]);
    write_record(record, &orders[i]);
  }
  *graph = (struct graph){shape, version};
  *error = 0;
  return graph;
}

EXPORT void hal_cpu_graph_destroy(struct graph *graph) {
  drop_shape(graph->shape);
  drop_version(graph->version);
  free(graph);
}

/* Create an instance of a graph, or return NULL when memory ended. */
EXPORT struct instance *hal_cpu_graph_instantiate(const struct graph *graph, uint64_t seed) {
  struct shape *shape = graph->shape;
  struct instance *instance = malloc(sizeof *instance + 2 * (size_t)shape->count * sizeof(uint32_t));
  if (!instance) return NULL;
  atomic_fetch_add_explicit(&shape->users, 1, memory_order_relaxed);
  atomic_fetch_add_explicit(&graph->version->users, 1, memory_order_relaxed);
  instance->graph = *graph;
  instance->launches = 0;
  instance->seed = seed;
  instance->ready = (uint32_t *)&instance->remaining[shape->count];
  for (uint32_t i = 0; i < shape->count; i++) instance->remaining[i] = shape->predecessors[i];
  return instance;
}

/* Destroy an instance that no stream has anything to do with. */
EXPORT void hal_cpu_graph_instance_destroy(struct instance *instance) {
  drop_shape(instance->graph.shape);
  drop_version(instance->graph.version);
  free(instance);
}

struct update { /* known to Python */
  struct order order;
  struct instance *instance;
  uint32_t index;
  uint32_t copy; /* whether all parameters may be copied */
};

/* Replace a node's parameters for launches from now on. Returns 0, EINVAL for
 * what the node is not, ENOMEM, or EBUSY where all parameters have to be copied. */
EXPORT int hal_cpu_graph_update(const struct update *update) {
  const struct order *order = &update->order;
  struct instance *instance = update->instance;
  struct shape *shape = instance->graph.shape;
  uint32_t index = update->index;
  struct version *version = instance->graph.version;
  if (index >= shape->count) return EINVAL;
  uint32_t line = shape->line[index];
  const struct record *old = &version->records[line];
  if (order->kind != old->kind) return EINVAL;
  if (is_launch(order->kind) && order->launch.kernel != old->launch.kernel) return EINVAL;
  /* Nobody else can come to have it: a graph gives away its own, and the instance is ours. */
  if (atomic_load_explicit(&version->users, memory_order_acquire) > 1) {
    if (!update->copy) return EBUSY;
    struct version *fresh = new_version(version->lines);
    if (!fresh) return ENOMEM;
    memcpy(fresh->records, version->records, (size_t)version->lines * LINE);
    for (uint32_t i = 0; i < shape->count; i++) {
      struct record *record = &fresh->records[shape->line[i]];
      if (is_launch(record->kind)) record->launch.launch.arguments = record + 1;
    }
    instance->graph.version = fresh;
    drop_version(version);
    version = fresh;
  }
  write_record(&version->records[line], order);
  return 0;
}

/* Turn a record that names an instance into a launch of it as it is now. */
static void start_launch(struct record *record) {
  struct instance *instance = record->graph.instance;
  record->graph.version = instance->graph.version;
  record->graph.number = instance->launches++;
  atomic_fetch_add_explicit(&record->graph.version->users, 1, memory_order_relaxed);
}

/* -------------------------------------------------------------------- running */

enum { NONE = UINT32_MAX, OVER = UINT32_MAX - 1 }; /* no node */
enum { BUSY, WATCHING, ASLEEP };                   /* what the owner, which offered the run, does */

#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
#define RUN_LOCK PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP /* held for nanoseconds: look again before sleeping */
#else
#define RUN_LOCK PTHREAD_MUTEX_INITIALIZER
#endif

struct run {
  struct job job; /* must come first */
  const struct shape *shape;
  struct instance *instance;
  struct version *version;
  uint32_t threads;
  bool offered; /* the owner's */
  bool shuffle; /* draw lots among ready nodes; else take the newest */
  pthread_mutex_t lock;
  uint64_t random;        /* under lock */
  uint32_t left;          /* under lock: nodes that have not ended, as far as is known here */
  _Atomic uint32_t ready; /* how many are on the stack; written under lock */
  _Atomic uint32_t owner; /* leaves BUSY under lock only */
};

/* A thread that works alone needs no lock. */
static inline void lock_run(struct run *run) {
  if (run->job.limit) pthread_mutex_lock(&run->lock);
}

static inline void unlock_run(struct run *run) {
  if (run->job.limit) pthread_mutex_unlock(&run->lock);
}

static inline uint32_t ready_count(struct run *run) { return atomic_load_explicit(&run->ready, memory_order_relaxed); }

static inline void push_node(struct run *run, uint32_t node) {
  uint32_t count = ready_count(run);
  run->instance->ready[count] = node;
  atomic_store_explicit(&run->ready, count + 1, memory_order_relaxed);
}

static inline uint32_t pop_node(struct run *run) {
  uint32_t *ready = run->instance->ready, last = ready_count(run) - 1, index = last;
  if (run->shuffle) {
    run->random ^= run->random << 13;
    run->random ^= run->random >> 7;
    run->random ^= run->random << 17;
    index = (uint32_t)((run->random >> 32) % (last + 1));
  }
  uint32_t node = ready[index];
  ready[index] = ready[last];
  atomic_store_explicit(&run->ready, last, memory_order_relaxed);
  return node;
}

static bool run_open(struct job *job) { return atomic_load(&((struct run *)job)->ready) > 0; }

/* Let others know that there are nodes for them, or for the owner that all is over. */
static void call_others(struct run *run) {
  uint32_t count = ready_count(run);
  if (atomic_load_explicit(&run->owner, memory_order_relaxed) != BUSY &&
      atomic_exchange(&run->owner, BUSY) == ASLEEP)
    futex_wake(&run->owner, 1);
  if (count == 0) return;
  if (!run->offered) {
    run->offered = true;
    offer(&run->job);
  }
  /* A helper that leaves looks for ready nodes once more after it was counted
   * out: either it sees them, or this load sees it gone. */
  atomic_thread_fence(memory_order_seq_cst);
  uint32_t users = atomic_load(&run->job.users), limit = run->job.limit;
  if (users < limit) call_helpers(count < limit - users ? count : limit - users);
}

/* Take a node to run; NONE if there is none now, OVER if none will come. Tells
 * first, if it has to, how many nodes the caller has run. */
static uint32_t take_node(struct run *run, uint32_t *done, bool owner) {
  bool over = false;
  uint32_t node = NONE;
  lock_run(run);
  if (ready_count(run) > 0) {
    node = pop_node(run);
  } else {
    run->left -= *done;
    *done = 0;
    over = run->left == 0;
    if (owner && !over) atomic_store_explicit(&run->owner, WATCHING, memory_order_relaxed);
  }
  unlock_run(run);
  if (!over) return node;
  if (!owner) call_others(run);
  return OVER;
}

/* End a node; returns one that can begin now, if there is one, and leaves others to others. */
static uint32_t end_node(struct run *run, uint32_t node) {
  const struct shape *shape = run->shape;
  _Atomic uint32_t *remaining = run->instance->remaining;
  uint32_t next = NONE;
  bool locked = false;
  /* As the next launch wants it. */
  atomic_store_explicit(&remaining[node], shape->predecessors[node], memory_order_relaxed);
  for (uint32_t i = shape->begin[node]; i < shape->begin[node + 1]; i++) {
    uint32_t successor = shape->successors[i];
    if (atomic_fetch_sub_explicit(&remaining[successor], 1, memory_order_acq_rel) != 1) continue;
    if (next != NONE) {
      if (!locked) lock_run(run);
      locked = true;
      push_node(run, next);
    }
    next = successor;
  }
  if (next == NONE) return NONE;
  if (run->shuffle && (locked || ready_count(run) > 0)) {
    if (!locked) lock_run(run);
    locked = true;
    push_node(run, next);
    next = pop_node(run);
  }
  if (locked) {
    unlock_run(run);
    if (run->job.limit) call_others(run);
  }
  return next;
}

/* Sleep until there may be nodes, or all is over. */
static void await_nodes(struct run *run) {
  int64_t end = may_spin() ? now_ns() + WAIT_SPIN_NS : 0;
  while (end && atomic_load_explicit(&run->owner, memory_order_relaxed) == WATCHING) {
    SPIN(atomic_load_explicit(&run->owner, memory_order_relaxed) != WATCHING);
    if (now_ns() >= end) break;
  }
  uint32_t watching = WATCHING;
  atomic_compare_exchange_strong(&run->owner, &watching, ASLEEP);
  while (atomic_load(&run->owner) == ASLEEP) futex_wait(&run->owner, ASLEEP, -1);
}

static void run_nodes(struct run *run, struct thread_state *state, bool owner) {
  uint32_t done = 0;
  for (;;) {
    uint32_t node = take_node(run, &done, owner);
    if (node == OVER || (node == NONE && !owner)) return;
    if (node == NONE) {
      await_nodes(run);
      continue;
    }
    if (owner && !run->offered && run->job.limit && ready_count(run) > 0) call_others(run);
    do {
      /* As between a stream's records. */
      while (atomic_load_explicit(&halting, memory_order_relaxed)) pause();
      do_work(&run->version->records[run->shape->line[node]], run->threads, state);
      done++;
      node = end_node(run, node);
    } while (node != NONE);
  }
}

static void help_run(struct job *job, struct thread_state *state) { run_nodes((struct run *)job, state, false); }

/* Run a launch of an instance, with up to threads - 1 helpers, and drop its version.
 *
 * Whoever recorded the graph must not come to rely on an order that no
 * dependency asks for. The first launch takes the newest ready node, which is
 * about the reverse of the recorded order; each further one draws lots. With a
 * seed of the user's all draw lots, and on one thread draw the same again. */
static void do_graph(struct record *record, uint32_t threads, struct thread_state *state) {
  struct instance *instance = record->graph.instance;
  const struct shape *shape = instance->graph.shape;
  uint64_t number = record->graph.number;
  struct run run = {
      .job = {.open = run_open, .work = help_run, .limit = threads - 1, .first = true, .slot = state->slot},
      .shape = shape,
      .instance = instance,
      .version = record->graph.version,
      .threads = threads,
      .shuffle = instance->seed || number,
      .random = (instance->seed + number) * 0x9e3779b97f4a7c15u | 1,
      .lock = RUN_LOCK,
      .left = shape->count,
      .ready = shape->roots,
  };
  memcpy(instance->ready, shape->root, shape->roots * sizeof *shape->root);
  run_nodes(&run, state, true);
  if (run.offered) withdraw(&run.job);
  drop_version(run.version);
}

#endif
