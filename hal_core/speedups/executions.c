/* Queue.execute: a recording without temporaries, of launches and fills, or as a graph (rule C4). What
 * stands for slots is checked in rebind.c. */
#include "arguments.h"
#include "issue.h"

/* Return whether a stream has launched an instance last. Only such are taken: the Python engine knows
 * when another stream may have one. */
static bool is_of(PyObject *instance, PyObject *stream) {
  int same = PyObject_RichCompareBool(get(instance, Instance_stream), stream, Py_EQ); /* ints */
  return same == 1 && !is_true(instance, Instance_broken);
}

/* Return an instance that a stream launched last, borrowed; NULL if there is none. */
static PyObject *instance_of(PyObject *pool, PyObject *stream) {
  bool is_free = !is_locked(get(pool, InstancePool__lock)); /* else a thread is just choosing one */
  PyObject *instances = get(pool, InstancePool__instances);
  for (Py_ssize_t i = 0; is_free && i < PyTuple_GET_SIZE(instances); i++) {
    PyObject *instance = PyTuple_GET_ITEM(instances, i);
    if (is_of(instance, stream)) return instance;
  }
  return NULL;
}

enum { MOST_INSTANCES = 4 }; /* of a stream */

/* Choose among a stream's instances for bindings: one that holds them, else one that Python has bound
 * last, else the one that was used longest ago. NULL if these bindings take turns with others: then
 * the Python engine is told to make one more, so that none of them has to be updated. */
static PyObject *choose(PyObject *pool, PyObject *stream, const struct binding *bindings) {
  PyObject *instances = get(pool, InstancePool__instances), *oldest = NULL, *unknown = NULL;
  long long used = 0;
  int count = 0;
  bool comes_again = false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(instances); i++) {
    PyObject *instance = PyTuple_GET_ITEM(instances, i);
    if (!is_of(instance, stream)) continue;
    struct held held = what_is_held(instance, bindings);
    count++;
    if (held.what == HELD_NOW) return instance;
    if (held.what == HELD_NOTHING) continue;
    comes_again = comes_again || held.what == HELD_BEFORE;
    if (held.what == HELD_UNKNOWN) unknown = instance;
    if (!oldest || held.used < used) {
      oldest = instance;
      used = held.used;
    }
  }
  if (unknown || !oldest) return unknown;
  if (!comes_again || count >= MOST_INSTANCES) return oldest;
  put(oldest, Instance_again, Py_NewRef(Py_True));
  return NULL;
}

/* Return what a weak reference refers to, a new reference; NULL if that is gone. */
static PyObject *referent(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *found;
  if (PyWeakref_GetRef(reference, &found) < 0) PyErr_Clear();
  return found;
#else
  PyObject *found = PyWeakref_GetObject(reference); /* borrowed */
  return found == Py_None ? NULL : Py_XNewRef(found);
#endif
}

/* A lease and a weak reference to it, for the next instance without one. Most have one, while they run. */
static struct {
  PyObject *lease, *reference;
} spare;

/* Make sure that there is a spare lease. */
static bool have_spare(void) {
  if (spare.lease) return true;
  PyObject *lease = engine.Lease->tp_alloc(engine.Lease, 0);
  PyObject *reference = lease ? PyWeakref_NewRef(lease, NULL) : NULL;
  if (reference && !spare.lease) { /* else the collector has run code that came here */
    *slot_of(lease, Lease_instance) = Py_NewRef(Py_None);
    spare.lease = Py_NewRef(lease);
    spare.reference = Py_NewRef(reference);
  }
  Py_XDECREF(reference);
  Py_XDECREF(lease);
  return spare.lease;
}

/* Return the lease of an instance, a new reference: it lives until all executions that hold it have
 * retired. The instance knows it weakly. */
static PyObject *lease_of(PyObject *instance) {
  PyObject *known = referent(get(instance, Instance_lease));
  if (known) return known;
  PyObject *lease = spare.lease;
  put(lease, Lease_instance, Py_NewRef(instance));
  PyObject *old = swap(instance, Instance_lease, spare.reference);
  spare.lease = spare.reference = NULL;
  Py_XDECREF(old); /* a dead reference without a callback */
  return lease;
}

/* What a user has given. */
struct execution {
  PyObject *queue, *device, *playback, *bindings; /* NULL: no bindings */
  const struct order *order;
};

/* Make a tuple of resources: some that are set later, and a None for each of the bindings. */
static PyObject *make_resources(const struct execution *self, Py_ssize_t first) {
  Py_ssize_t count = 0;
  if (self->bindings)
    count = PyTuple_CheckExact(self->bindings) ? PyTuple_GET_SIZE(self->bindings) : PyList_GET_SIZE(self->bindings);
  if (count > MOST_SLOTS) return NULL;
  PyObject *resources = PyTuple_New(first + count);
  for (Py_ssize_t i = 0; resources && i < count; i++) PyTuple_SET_ITEM(resources, first + i, Py_NewRef(Py_None));
  return resources;
}

/* Check the bindings by a rebinder of the recording's. */
static bool check(const struct execution *self, PyObject *rebinder, PyObject *resources, Py_ssize_t first,
                  struct binding *found) {
  if (!rebinder || Py_TYPE(rebinder) != &rebinder_type) return false;
  PyObject **used = ((PyTupleObject *)resources)->ob_item + first;
  return read_bindings(rebinder, self->device, self->bindings, PyTuple_GET_SIZE(resources) - first, found, used,
                       self->order->uses);
}

/* Submit a launch with bindings, of an instance if there is one. */
static enum answer submit_rebound(const struct execution *self, PyObject *rebinder, PyObject *instance,
                                  PyObject *resources, const struct binding *found, PyObject **result) {
  struct native_call call = {.kind = CALL_REBOUND, .playback = self->playback, .bindings = self->bindings};
  call.rebound.rebinder = Py_NewRef(rebinder);
  call.rebound.instance = instance;
  call.rebound.bindings = found;
  enum answer answer = submit(self->queue, names_of.execute, &call, resources, self->order, result);
  Py_DECREF(rebinder);
  return answer;
}

/* Launch a graph: the lease stands among the operation's resources. */
static enum answer launch(const struct execution *self, PyObject *pool, PyObject **result) {
  enum { PLAYBACK, LEASE, FIRST };
  PyObject *resources = make_resources(self, FIRST);
  PyObject *stream = get(self->queue, StreamQueue__stream), *instance = NULL;
  struct binding found[MOST_SLOTS];
  if (resources && have_spare()) instance = instance_of(pool, stream);
  if (instance && self->bindings) {
    bool is_plain = check(self, get(instance, Instance_rebinder), resources, FIRST, found);
    instance = is_plain ? choose(pool, stream, found) : NULL;
  } else if (instance && PyTuple_GET_SIZE(get(get(instance, Instance_replica), Replica_table))) {
    instance = NULL; /* its slots want bindings */
  }
  enum answer answer = NOT_MINE;
  if (instance) {
    PyTuple_SET_ITEM(resources, PLAYBACK, Py_NewRef(self->playback));
    PyTuple_SET_ITEM(resources, LEASE, lease_of(instance));
    if (self->bindings) {
      answer = submit_rebound(self, get(instance, Instance_rebinder), instance, resources, found, result);
    } else {
      struct native_call call = {.kind = CALL_GRAPH, .playback = self->playback};
      call.graph = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(get(get(instance, Instance_graph), Handle_handle));
      answer = submit(self->queue, names_of.execute, &call, resources, self->order, result);
    }
  }
  if (answer == NOT_MINE) PyErr_Clear();
  Py_XDECREF(resources);
  return answer;
}

/* Launch a recording of one launch that uses slots. */
static enum answer launch_one(const struct execution *self, PyObject *rebinder, PyObject **result) {
  enum { PLAYBACK, FIRST };
  struct binding found[MOST_SLOTS];
  PyObject *resources = make_resources(self, FIRST);
  enum answer answer = NOT_MINE;
  if (resources) {
    PyTuple_SET_ITEM(resources, PLAYBACK, Py_NewRef(self->playback));
    if (check(self, rebinder, resources, FIRST, found))
      answer = submit_rebound(self, rebinder, NULL, resources, found, result);
  }
  if (answer == NOT_MINE) PyErr_Clear();
  Py_XDECREF(resources);
  return answer;
}

/* A recording's launches and fills. One is what most replayed recordings have, and takes no array. */
static bool prepare_nodes(struct run *self, PyObject *playback, PyObject *nodes) {
  self->nodes = Py_NewRef(nodes);
  self->count = PyList_GET_SIZE(nodes);
  if (self->count == 1) return true;
  self->rest = PyTuple_Pack(2, playback, engine.zero);
  self->all = PyMem_Malloc((size_t)self->count * sizeof *self->all);
  return self->rest && self->all;
}

static bool read_nodes(struct run *self, struct native_call *call) {
  if (self->count == 1) return read_node(PyList_GET_ITEM(self->nodes, 0), call);
  for (Py_ssize_t i = 0; i < self->count; i++)
    if (!read_node(PyList_GET_ITEM(self->nodes, i), &self->all[i])) return false;
  call->kind = CALL_NODES;
  call->nodes.all = self->all;
  call->nodes.count = self->count;
  call->nodes.made = &self->made;
  call->nodes.rest = self->rest;
  return true;
}

void drop_run(struct run *self) {
  Py_XDECREF(self->nodes);
  Py_XDECREF(self->rest);
  Py_XDECREF(self->pool);
  Py_XDECREF(self->lease);
  Py_XDECREF(self->reference);
  PyMem_Free(self->all);
}

static enum answer launch_nodes(const struct execution *self, PyObject *nodes, PyObject **result) {
  struct run run = {NULL};
  struct native_call call = {.playback = self->playback};
  enum answer answer = NOT_MINE;
  if (prepare_nodes(&run, self->playback, nodes) && read_nodes(&run, &call))
    answer = submit(self->queue, names_of.execute, &call, self->playback, self->order, result);
  if (answer == NOT_MINE) PyErr_Clear();
  drop_run(&run);
  return answer;
}

bool prepare_run(PyObject *operation, struct run *self) {
  memset(self, 0, sizeof *self);
  PyObject *function = get(operation, Operation__function), *arguments = get(operation, Operation__arguments);
  if (Py_TYPE(function) == engine.StreamReplay) {
    PyObject *playback = get(function, StreamReplay__playback), *nodes = get(playback, Playback__plain);
    if (!PyList_CheckExact(nodes) || PyTuple_GET_SIZE(get(function, StreamReplay_visits))) return true; /* Python's */
    return prepare_nodes(self, playback, nodes);
  }
  if (!PyMethod_Check(function) || PyMethod_GET_FUNCTION(function) != engine.launch_graph) return true;
  enum { LOWERING, TABLE, LEASE };
  if (PyTuple_GET_ITEM(arguments, TABLE) != engine.empty) return true; /* its slots are bound by Python */
  self->pool = Py_NewRef(get(PyMethod_GET_SELF(function), Playback__pool));
  self->lease = Py_NewRef(PyTuple_GET_ITEM(arguments, LEASE));
  return (self->reference = PyWeakref_NewRef(self->lease, NULL));
}

bool read_run(PyObject *queue, struct run *self, struct native_call *call) {
  if (self->nodes) return read_nodes(self, call);
  PyObject *instance = self->pool ? instance_of(self->pool, get(queue, StreamQueue__stream)) : NULL;
  if (!instance || !is_none(self->lease, Lease_instance)) return false; /* a lease may free the last one that it holds */
  /* As InstancePool.take: the operation's own lease holds it, the newest of its stream, which ends last. */
  put(self->lease, Lease_instance, Py_NewRef(instance));
  put(instance, Instance_lease, Py_NewRef(self->reference));
  call->kind = CALL_GRAPH;
  call->graph = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(get(get(instance, Instance_graph), Handle_handle));
  return true;
}

enum answer execute(PyObject *queue, PyObject *commands, PyObject *given, const struct order *order,
                    PyObject **result) {
  PyObject *device = device_of(queue);
  if (!device || !PyObject_TypeCheck(commands, engine.CommandBuffer)) return NOT_MINE;
  if (get(commands, CommandBuffer__device) != device || is_true(device, DeviceCore__closed)) return NOT_MINE;
  PyObject *bindings = given == Py_None ? NULL : given;
  if (bindings && !PyTuple_CheckExact(bindings) && !PyList_CheckExact(bindings)) return NOT_MINE;
  if (bindings && !Py_SIZE(bindings)) bindings = NULL; /* a compiler's call for a recording without slots */
  if (!is_none(commands, CommandBuffer__runs) || is_true(commands, CommandBuffer__failed)) return NOT_MINE;
  if (PyObject_Length(get(device, DeviceCore__access))) return NOT_MINE; /* as in `dispatch` */
  PyObject *playback = get(commands, CommandBuffer__playback), *only = get(commands, CommandBuffer__only);
  if (playback == Py_None || (only != Py_None && only != queue)) return NOT_MINE;
  PyObject *plain = get(playback, Playback__plain);
  struct execution self = {queue, device, Py_NewRef(playback), bindings, order};
  enum answer answer = NOT_MINE;
  if (Py_TYPE(plain) == engine.InstancePool) {
    answer = launch(&self, plain, result);
  } else if (Py_TYPE(plain) == &rebinder_type) {
    if (bindings) answer = launch_one(&self, plain, result);
  } else if (!bindings && PyList_CheckExact(plain)) {
    answer = launch_nodes(&self, plain, result);
  }
  Py_DECREF(playback);
  return answer;
}

/* execute(queue, commands, *, bindings, wait, signal) */
enum answer execute_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  enum { BINDINGS, WAIT, SIGNAL, OPTIONS };
  static const int known[OPTIONS] = {NAME_bindings, NAME_wait, NAME_signal};
  PyObject *options[OPTIONS] = {NULL};
  if (count != 2 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  return execute(args[0], args[1], options[BINDINGS], &(struct order){options[WAIT], options[SIGNAL], NULL}, result);
}
