/* Queue.all_reduce and its siblings: an operation of a group of ranks that is one call of its library's
 * (rules G1, G3).
 *
 * The first operation of its kind, sizes and types is checked in Python, which leaves a record of the
 * call with the group (`hal._transfers.collectives.prepare`). Those after it are lined up here as
 * `hal.collectives.group` does it, with the group's lock held meanwhile. Batches, groups that are closed
 * or broken, turns that wait for another queue and what the library refuses are left to Python. */
#include "arguments.h"
#include "issue.h"


/* The arguments of `Queue._gather`. */
enum { QUEUE, KIND, GROUP, SOURCE, TARGET, OP, ROOT, ARGUMENTS };

/* What the bytes of a record are. */
struct prepared {
  uint64_t function, words[MOST_WORDS];
  uint8_t kinds[MOST_WORDS]; /* of the words: 0 for a constant */
  int64_t denied[2];         /* the rights that the source and the target need; 0: it has no part */
  int64_t fine;              /* a status that is success, too */
};
enum { WORD_SOURCE = 1, WORD_TARGET, WORD_STREAM };

/* What an operation's record depends on. The record keeps the objects, so that no other has their address. */
struct key {
  const PyObject *kind, *op, *types[2];
  long long root, sizes[2], distance;
};

/* Make the key of an operation's record, a string of bytes; NULL if it cannot have one. */
static PyObject *key_of(PyObject *device, PyObject *const *args) {
  struct key key = {.kind = args[KIND], .op = args[OP], .root = -1, .sizes = {-1, -1}, .distance = LLONG_MIN};
  if (args[OP] != Py_None && !PyUnicode_CheckExact(args[OP])) return NULL;
  if (args[ROOT] != Py_None && !small_int(args[ROOT], &key.root)) return NULL;
  for (int i = 0; i < 2; i++) {
    PyObject *buffer = args[SOURCE + i];
    if (buffer == Py_None) continue;
    if (!PyObject_TypeCheck(buffer, engine.Extent) || get(buffer, Extent__device) != device) return NULL;
    key.types[i] = get(buffer, Extent__dtype);
    key.sizes[i] = number(buffer, Extent__size);
  }
  PyObject *source = args[SOURCE], *target = args[TARGET];
  if (source != Py_None && target != Py_None && get(source, Extent__storage) == get(target, Extent__storage))
    key.distance = number(target, Extent__offset) - number(source, Extent__offset);
  return PyBytes_FromStringAndSize((const char *)&key, sizeof key);
}

/* Return an operation's record, a new reference, or None for one that Python makes; NULL with an exception. */
static PyObject *record_of(PyObject *const *args, PyObject *key) {
  enum { MOST = 1024 }; /* of a group: operations of other kinds, sizes or types */
  PyObject *known = get(args[GROUP], Group__direct);
  PyObject *record = PyDict_GetItemWithError(known, key);
  if (record) return Py_NewRef(record);
  if (PyErr_Occurred()) return NULL;
  record = PyObject_CallFunctionObjArgs(engine.prepare, args[GROUP], args[KIND], args[SOURCE], args[TARGET],
                                        args[OP], args[ROOT], NULL);
  if (record && PyDict_GET_SIZE(known) >= MOST) PyDict_Clear(known);
  if (record && PyDict_SetItem(known, key, record) < 0) Py_CLEAR(record);
  return record;
}

/* What an operation changes of its group. */
struct turn {
  struct effect effect;
  PyObject *group, *launch, *step, *line; /* the line has the last number */
  PyObject *number, *turns, *begun; /* new references */
};

/* Return whether a group's last operation comes before a queue's next one without more ado. */
static bool is_before(PyObject *group, PyObject *queue) {
  PyObject *last = entry_of(get(group, Group__flights), -1);
  if (!last) return true;
  if (Py_TYPE(last) != engine.GroupLaunch) return false;
  if (get(last, GroupLaunch_queue) == queue && is_true(last, GroupLaunch_ordered)) return true;
  return get(get(last, GroupLaunch_submission), Operation__state) == engine.done;
}

static PyObject *monotonic(void) { return PyFloat_FromDouble(seconds_of(CLOCK_MONOTONIC)); }

static bool may_line_up(struct effect *effect, const struct issue *issue) {
  struct turn *self = (struct turn *)effect;
  PyObject *group = self->group;
  if (is_true(group, Group__closed) || !is_none(group, Group__broken) || !is_none(group, Group__batch)) return false;
  long long turns = number(group, Group__turns);
  if (number(group, Group__turn) != turns || !is_before(group, issue->queue)) return false;
  self->number = PyLong_FromLongLong(integer(PyList_GET_ITEM(self->line, 0)) + 1);
  self->turns = PyLong_FromLongLong(turns + 1);
  self->begun = monotonic();
  return self->number && self->turns && self->begun;
}

static void line_up(struct effect *effect, PyObject *operation, struct drops *drops) {
  struct turn *self = (struct turn *)effect;
  PyObject *group = self->group, *launch = self->launch, *flights = get(group, Group__flights), *first;
  while (drops->count < MOST_DROPS / 2 && (first = entry_of(flights, 0)) && Py_TYPE(first) == engine.GroupLaunch &&
         get(get(first, GroupLaunch_submission), Operation__state) == engine.done)
    drop_later(drops, pop_first(flights));
  Py_SETREF(((PyListObject *)self->line)->ob_item[0], Py_NewRef(self->number));
  Py_SETREF(((PyTupleObject *)self->step)->ob_item[1], Py_NewRef(self->number));
  append_to(get(group, Group__records), self->step);
  *slot_of(launch, GroupLaunch_begun) = Py_NewRef(self->begun);
  *slot_of(launch, GroupLaunch_submission) = Py_NewRef(operation);
  *slot_of(launch, GroupLaunch_turn) = Py_NewRef(get(group, Group__turns));
  append_to(flights, launch);
  put(group, Group__turns, Py_NewRef(self->turns));
  put(group, Group__turn, Py_NewRef(self->turns));
}

/* Make a step without its number, and a launch of it. */
static bool make_launch(struct turn *self, PyObject *queue, PyObject *step) {
  Py_ssize_t length = PyTuple_GET_SIZE(step);
  if (!(self->step = engine.CollectiveStep->tp_alloc(engine.CollectiveStep, length))) return false;
  for (Py_ssize_t i = 0; i < length; i++)
    PyTuple_SET_ITEM(self->step, i, Py_NewRef(i == 1 ? Py_None : PyTuple_GET_ITEM(step, i)));
  PyObject *launch = self->launch = engine.GroupLaunch->tp_alloc(engine.GroupLaunch, 0);
  if (!launch) return false;
  *slot_of(launch, GroupLaunch__signals) = Py_NewRef(engine.empty);
  *slot_of(launch, GroupLaunch__storages) = Py_NewRef(engine.empty);
  *slot_of(launch, GroupLaunch__waits) = Py_NewRef(engine.empty);
  *slot_of(launch, GroupLaunch_ended) = Py_NewRef(Py_None);
  *slot_of(launch, GroupLaunch_ordered) = Py_NewRef(get(queue, StreamQueue__ordered));
  *slot_of(launch, GroupLaunch_queue) = Py_NewRef(queue);
  *slot_of(launch, GroupLaunch_step) = Py_NewRef(self->step);
  *slot_of(launch, GroupLaunch_work) = Py_NewRef(engine.empty);
  return true;
}

/* Read the call, whose buffers' storages are put into `used`; false if that is not the plain case. */
static bool read_gather(PyObject *device, PyObject *const *args, const struct prepared *prepared,
                        struct native_call *call, PyObject **used) {
  uintptr_t addresses[2] = {0, 0};
  for (int i = 0; i < 2; i++) {
    if (!prepared->denied[i]) continue;
    addresses[i] = address_of(device, args[SOURCE + i], (long)prepared->denied[i], &used[i]);
    /* Memory of an alloca notes its uses with a lock, which no native call may let go. */
    if (!addresses[i] || Py_TYPE(used[i]) != engine.Storage) return false;
  }
  *(void **)&call->gather.function = (void *)(uintptr_t)prepared->function;
  for (int i = 0; i < MOST_WORDS; i++) {
    call->gather.words[i] = (uintptr_t)prepared->words[i];
    if (prepared->kinds[i] == WORD_SOURCE) call->gather.words[i] = addresses[0];
    if (prepared->kinds[i] == WORD_TARGET) call->gather.words[i] = addresses[1];
    if (prepared->kinds[i] == WORD_STREAM) call->gather.stream = i;
  }
  call->gather.fine = (int)prepared->fine;
  return true;
}

/* Line an operation up and submit it, with the group's lock. */
static enum answer enter_turn(PyObject *const *args, PyObject *record, const struct prepared *prepared,
                              const struct order *order, PyObject **result) {
  PyObject *queue = args[QUEUE], *group = args[GROUP], *used[2] = {Py_None, Py_None};
  struct native_call call = {.kind = CALL_GATHER};
  int status = 0; /* other than success */
  if (!read_gather(device_of(queue), args, prepared, &call, used)) return NOT_MINE;
  call.gather.status = &status;
  struct turn self = {.effect = {NULL, may_line_up, line_up}, .group = group, .line = PyTuple_GET_ITEM(record, 1)};
  for (int i = 0; i < 2; i++) Py_INCREF(used[i]); /* the collector may run code that closes the buffers */
  PyObject *resources = PyTuple_Pack(2, used[0], used[1]);
  enum answer answer = NOT_MINE;
  if (resources && make_launch(&self, queue, PyTuple_GET_ITEM(record, 0)))
    answer = submit_with(queue, args[KIND], &call, resources, order, &self.effect, result);
  if (status) put(group, Group__refused, PyLong_FromLong(status));
  /* An interrupt may have ended the call once the operation was lined up. */
  if (self.launch && get(self.launch, GroupLaunch_turn) &&
      (!is_none(group, Group__broken) || PySet_Contains(engine.watched, group) != 1) &&
      call_for_sure(engine.settle, group, self.launch, NULL) != TAKEN)
    answer = RAISED;
  if (answer == NOT_MINE) PyErr_Clear();
  if (answer == RAISED) Py_CLEAR(*result);
  for (int i = 0; i < 2; i++) Py_DECREF(used[i]);
  Py_XDECREF(resources);
  Py_XDECREF(self.step);
  Py_XDECREF(self.launch);
  Py_XDECREF(self.number);
  Py_XDECREF(self.turns);
  Py_XDECREF(self.begun);
  return answer;
}

/* threading's locks, one of which a group has because it is held across native calls: by name they cost a tenth of
 * an operation. */
static struct {
  PyTypeObject *type;
  PyCFunctionWithKeywords acquire;
  PyCFunction release, is_owned;
} locks;

/* Not what this thread holds: a signal handler's operation would come before the one that it has interrupted. */
static bool acquire(PyObject *lock) {
  if (locks.type != Py_TYPE(lock)) {
    locks.acquire = (PyCFunctionWithKeywords)(void (*)(void))function_of(Py_TYPE(lock), "acquire", METH_VARARGS | METH_KEYWORDS);
    locks.release = function_of(Py_TYPE(lock), "release", METH_NOARGS);
    locks.is_owned = function_of(Py_TYPE(lock), "_is_owned", METH_NOARGS);
    locks.type = Py_TYPE(lock);
  }
  PyObject *owned = locks.is_owned ? locks.is_owned(lock, NULL) : PyObject_CallMethod(lock, "_is_owned", NULL);
  Py_XDECREF(owned); /* a bool, or NULL */
  if (owned != Py_False) return false;
  PyObject *taken = locks.acquire ? locks.acquire(lock, engine.at_once, NULL)
                                  : PyObject_CallMethodOneArg(lock, names_of.acquire, Py_False);
  Py_XDECREF(taken); /* a bool, or NULL */
  return taken == Py_True;
}

static void release(PyObject *lock) {
  Py_XDECREF(locks.release ? locks.release(lock, NULL) : PyObject_CallMethodNoArgs(lock, names_of.release));
}

static enum answer gather(PyObject *const *args, PyObject *record, const struct order *order, PyObject **result) {
  struct prepared prepared;
  PyObject *bytes = PyTuple_GET_ITEM(record, 2), *lock = get(args[GROUP], Group_lock);
  if (PyBytes_GET_SIZE(bytes) != sizeof prepared) return NOT_MINE;
  memcpy(&prepared, PyBytes_AS_STRING(bytes), sizeof prepared);
  if (!acquire(lock)) {
    PyErr_Clear();
    return NOT_MINE;
  }
  enum answer answer = enter_turn(args, record, &prepared, order, result);
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  release(lock);
  PyErr_Restore(type, error, trace);
  return answer;
}

/* How a method's arguments are those of `_gather`. */
struct form {
  int kind;                   /* its name */
  bool has_buffer, has_target; /* by place; the target by its name, too */
  int op, rank;               /* the names of keywords; NAME_wait, which is another one, for none */
};

/* METHOD(queue, buffer, target, *, group, op, root or peer, wait, signal) */
static enum answer gather_by(const struct form *form, PyObject *const *given, Py_ssize_t count, PyObject *names,
                             PyObject **result) {
  enum { WAIT, SIGNAL, OF, INTO, BY, RANK, OPTIONS };
  const int known[OPTIONS] = {NAME_wait, NAME_signal, NAME_group, form->has_target ? NAME_target : NAME_wait,
                              form->op, form->rank};
  PyObject *options[OPTIONS] = {NULL};
  if (count <= form->has_buffer || count > 1 + form->has_buffer + form->has_target) return NOT_MINE;
  if (!read_options(given + count, names, known, options, OPTIONS) || !options[OF]) return NOT_MINE;
  PyObject *args[ARGUMENTS] = {given[0], names_of.all[form->kind], options[OF], Py_None, Py_None, Py_None, Py_None};
  if (form->has_buffer) args[form->kind == NAME_receive ? TARGET : SOURCE] = given[1];
  if (count > 2) args[TARGET] = given[2];
  if (options[INTO]) args[TARGET] = options[INTO];
  if (form->op == NAME_op) args[OP] = options[BY] ? options[BY] : names_of.sum;
  if (form->rank != NAME_wait) args[ROOT] = options[RANK] ? options[RANK] : engine.zero;
  PyObject *group = args[GROUP], *device = device_of(args[QUEUE]);
  if (!device || Py_TYPE(group) != engine.Group || get(group, Group__device) != device) return NOT_MINE;
  if (!PyDict_CheckExact(get(group, Group__direct)) || is_true(device, DeviceCore__closed)) return NOT_MINE;
  PyObject *key = key_of(device, args), *record = key ? record_of(args, key) : NULL;
  enum answer answer = NOT_MINE;
  if (record && record != Py_None) {
    answer = gather(args, record, &(struct order){options[WAIT], options[SIGNAL], NULL}, result);
  } else if (!record && PyErr_Occurred()) {
    answer = PyErr_ExceptionMatches(PyExc_Exception) ? NOT_MINE : RAISED; /* an error Python raises anew */
    if (answer == NOT_MINE) PyErr_Clear();
  }
  Py_XDECREF(record);
  Py_XDECREF(key);
  return answer;
}

#define METHOD(name, ...)                                                                                       \
  enum answer name##_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {    \
    return gather_by(&(struct form){NAME_##name, __VA_ARGS__}, args, count, names, result);                    \
  }
METHOD(all_gather, true, true, NAME_wait, NAME_wait)
METHOD(all_reduce, true, true, NAME_op, NAME_wait)
METHOD(all_to_all, true, true, NAME_wait, NAME_wait)
METHOD(barrier, false, false, NAME_wait, NAME_wait)
METHOD(broadcast, true, true, NAME_wait, NAME_root)
METHOD(receive, true, false, NAME_wait, NAME_peer)
METHOD(reduce, true, true, NAME_op, NAME_root)
METHOD(reduce_scatter, true, true, NAME_op, NAME_wait)
METHOD(send, true, false, NAME_wait, NAME_peer)
