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
 * last, else the one that was used longest ago. NULL if these bindings take turns with others: then one is `asking`
 * the Python engine to make one more, so that none of them has to be updated. */
static PyObject *choose(PyObject *pool, PyObject *stream, const struct binding *bindings, PyObject **asking) {
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
  *asking = oldest;
  return NULL;
}

static void ask_for_more(PyObject *asking) {
  if (asking) put(asking, Instance_again, Py_NewRef(Py_True));
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

static PyObject *new_lease(void) {
  PyObject *lease = engine.Lease->tp_alloc(engine.Lease, 0);
  if (lease) set(lease, Lease_instance, Py_None);
  return lease;
}

/* Make sure that there is a spare lease. */
static bool have_spare(void) {
  if (spare.lease) return true;
  PyObject *lease = new_lease(), *reference = lease ? PyWeakref_NewRef(lease, NULL) : NULL;
  if (reference && !spare.lease) { /* else the collector has run code that came here */
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

static bool is_rebinder(PyObject *object) { return object && Py_TYPE(object) == &rebinder_type; }

/* Check the bindings by a rebinder of the recording's. */
static bool check(const struct execution *self, PyObject *rebinder, PyObject *resources, Py_ssize_t first,
                  struct binding *found) {
  if (!is_rebinder(rebinder)) return false;
  PyObject **used = ((PyTupleObject *)resources)->ob_item + first;
  return read_bindings(rebinder, self->device, self->bindings, PyTuple_GET_SIZE(resources) - first, found, used,
                       self->order->uses);
}

/* The resources of an execution: LEASE is only a graph's. */
enum { PLAYBACK, LEASE };

static void read_graph(PyObject *instance, struct native_call *call) {
  call->kind = CALL_GRAPH;
  call->graph.instance = instance;
  if (instance)
    call->graph.handle = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(get(get(instance, Instance_graph), Handle_handle));
}

/* Launch a graph: the lease stands among the operation's resources. */
static enum answer launch(const struct execution *self, PyObject *pool, PyObject **result) {
  enum { FIRST = LEASE + 1 };
  PyObject *resources = make_resources(self, FIRST);
  PyObject *stream = get(self->queue, StreamQueue__stream), *instance = NULL, *asking = NULL;
  struct binding found[MOST_SLOTS];
  if (resources && have_spare()) instance = instance_of(pool, stream);
  if (instance && self->bindings) {
    bool is_plain = check(self, get(instance, Instance_rebinder), resources, FIRST, found);
    instance = is_plain ? choose(pool, stream, found, &asking) : NULL;
  } else if (instance && PyTuple_GET_SIZE(get(get(instance, Instance_replica), Replica_table))) {
    instance = NULL; /* its slots want bindings */
  }
  enum answer answer = NOT_MINE;
  PyObject *known = Py_XNewRef(instance ? instance : asking); /* without an instance it may stand in line */
  if (known) {
    struct native_call call = {.playback = self->playback};
    PyTuple_SET_ITEM(resources, PLAYBACK, Py_NewRef(self->playback));
    PyTuple_SET_ITEM(resources, LEASE, lease_of(known));
    read_graph(instance, &call);
    if (self->bindings) {
      call.bindings = found;
      call.rebinder = Py_NewRef(get(known, Instance_rebinder));
    }
    answer = submit(self->queue, names_of.execute, &call, resources, self->order, result);
    Py_XDECREF(call.rebinder);
  }
  if (answer == NOT_MINE) {
    ask_for_more(asking);
    PyErr_Clear();
  }
  Py_XDECREF(known);
  Py_XDECREF(resources);
  return answer;
}

/* Take the calls of a recording on a stream, with what stands for its slots. One needs nothing to go on with. */
static bool prepare_calls(struct run *self, PyObject *playback, PyObject *rebinder) {
  struct native_call call;
  read_calls(rebinder, &call);
  self->rebinder = Py_NewRef(rebinder);
  self->count = call.nodes.count;
  if (self->count == 1) return true;
  if (slots_of(rebinder) && !self->table && !(self->table = table_of(rebinder, self->found))) return false;
  return (self->rest = PyTuple_Pack(3, playback, engine.zero, self->table ? self->table : Py_None));
}

static void read_all(struct run *self, struct native_call *call) {
  read_calls(self->rebinder, call);
  call->nodes.made = &self->made;
  call->nodes.rest = self->rest;
  if (!slots_of(self->rebinder)) return;
  call->rebinder = self->rebinder;
  call->bindings = self->found;
}

static void begin_run(struct run *self) { memset(self, 0, offsetof(struct run, found)); }

void drop_run(struct run *self) {
  Py_XDECREF(self->rebinder);
  Py_XDECREF(self->rest);
  Py_XDECREF(self->pool);
  Py_XDECREF(self->lease);
  Py_XDECREF(self->reference);
  Py_XDECREF(self->table);
}

/* Make the calls of a recording on the stream. */
static enum answer replay_all(const struct execution *self, PyObject *rebinder, PyObject **result) {
  enum { FIRST = PLAYBACK + 1 };
  struct run run;
  struct native_call call = {.playback = self->playback};
  begin_run(&run);
  PyObject *resources = self->bindings ? make_resources(self, FIRST) : Py_NewRef(self->playback);
  enum answer answer = NOT_MINE;
  if (resources && self->bindings) PyTuple_SET_ITEM(resources, PLAYBACK, Py_NewRef(self->playback));
  bool is_fine = self->bindings ? resources && check(self, rebinder, resources, FIRST, run.found) : !slots_of(rebinder);
  if (resources && is_fine && prepare_calls(&run, self->playback, rebinder)) {
    read_all(&run, &call);
    answer = submit(self->queue, names_of.execute, &call, resources, self->order, result);
  }
  if (answer == NOT_MINE) PyErr_Clear();
  Py_XDECREF(resources);
  drop_run(&run);
  return answer;
}

/* As `StreamReplay` makes one. */
static PyObject *new_replay(PyObject *playback, PyObject *table, Py_ssize_t count) {
  PyObject *left = PyLong_FromSsize_t(count);
  PyObject *replay = left ? engine.StreamReplay->tp_alloc(engine.StreamReplay, 0) : NULL;
  if (replay) {
    set(replay, StreamReplay_left, left);
    set(replay, StreamReplay__done, engine.zero);
    set(replay, StreamReplay_is_starved, Py_False);
    set(replay, StreamReplay_visits, engine.empty);
    set(replay, StreamReplay__playback, playback);
    set(replay, StreamReplay_replica, Py_None);
    set(replay, StreamReplay_table, table);
  }
  Py_XDECREF(left);
  return replay;
}

/* As `Playback.payload` does. */
bool make_payload(const struct native_call *call, PyObject *resources, struct payload *made) {
  PyObject *none = call->kind == CALL_GRAPH ? engine.empty : Py_None;
  PyObject *table = call->bindings ? table_of(call->rebinder, call->bindings) : Py_NewRef(none);
  if (table && call->kind == CALL_GRAPH) {
    PyObject *lease = new_lease(); /* its instance is chosen when it is issued */
    if (lease) Py_SETREF(PyTuple_GET_ITEM(resources, LEASE), Py_NewRef(lease));
    if (lease) made->arguments = PyTuple_Pack(3, get(call->playback, Playback__lowering), table, lease);
    made->function = PyMethod_New(engine.launch_graph, call->playback);
    Py_XDECREF(lease);
  } else if (table) {
    made->arguments = Py_NewRef(engine.empty);
    made->function = new_replay(call->playback, table, call->nodes.count);
  }
  made->resources = Py_NewRef(resources);
  Py_XDECREF(table);
  return made->function && made->arguments;
}

bool prepare_run(PyObject *operation, struct run *self) {
  begin_run(self);
  PyObject *function = get(operation, Operation__function), *arguments = get(operation, Operation__arguments);
  if (Py_TYPE(function) == engine.StreamReplay) {
    PyObject *playback = get(function, StreamReplay__playback), *plain = get(playback, Playback__plain);
    if (!is_rebinder(plain) || PyTuple_GET_SIZE(get(function, StreamReplay_visits))) return true; /* Python's */
    if (slots_of(plain)) self->table = Py_NewRef(get(function, StreamReplay_table));
    return prepare_calls(self, playback, plain);
  }
  if (!PyMethod_Check(function) || PyMethod_GET_FUNCTION(function) != engine.launch_graph) return true;
  enum { LOWERING, TABLE, TO_LEASE };
  if (PyTuple_GET_ITEM(arguments, TABLE) != engine.empty) self->table = Py_NewRef(PyTuple_GET_ITEM(arguments, TABLE));
  self->pool = Py_NewRef(get(PyMethod_GET_SELF(function), Playback__pool));
  self->lease = Py_NewRef(PyTuple_GET_ITEM(arguments, TO_LEASE));
  return (self->reference = PyWeakref_NewRef(self->lease, NULL));
}

bool read_run(PyObject *queue, struct run *self, struct native_call *call) {
  if (self->rebinder) {
    read_all(self, call);
    return !self->table || read_table(self->rebinder, self->table, self->found);
  }
  PyObject *stream = get(queue, StreamQueue__stream), *instance = self->pool ? instance_of(self->pool, stream) : NULL;
  if (!instance || !is_none(self->lease, Lease_instance)) return false; /* a lease may free the last one that it holds */
  if (self->table) {
    PyObject *asking = NULL;
    bool is_plain = read_table(get(instance, Instance_rebinder), self->table, self->found);
    instance = is_plain ? choose(self->pool, stream, self->found, &asking) : NULL;
    ask_for_more(asking);
    if (!instance) return false;
    call->bindings = self->found;
    call->rebinder = get(instance, Instance_rebinder);
  }
  /* As InstancePool.take: the operation's own lease holds it, the newest of its stream, which ends last. */
  put(self->lease, Lease_instance, Py_NewRef(instance));
  put(instance, Instance_lease, Py_NewRef(self->reference));
  read_graph(instance, call);
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
  PyObject *plain = Py_NewRef(get(playback, Playback__plain)); /* two threads may each make a rebinder */
  struct execution self = {queue, device, Py_NewRef(playback), bindings, order};
  enum answer answer = NOT_MINE;
  if (Py_TYPE(plain) == engine.InstancePool) {
    answer = launch(&self, plain, result);
  } else if (is_rebinder(plain)) {
    answer = replay_all(&self, plain, result);
  }
  Py_DECREF(plain);
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
