/* Semaphore.signal, and the issue of the operations that waited for it (rules S2, Q1). */
#include "arguments.h"
#include "issue.h"

/* Read the native call of a pending operation. */
static bool read_pending(PyObject *operation, struct native_call *call) {
  return read_call(get(operation, Operation__queue), get(operation, Operation__function),
                   get(operation, Operation__arguments), get(operation, Operation__resources), call);
}

/* The operation that waits longest for the lowest value, as a register has it. */
struct waiting {
  PyObject *key, *bucket, *operation; /* borrowed */
  long long index;                    /* of the wait among the operation's */
};

/* A key of the heap, which may be twice as large as a value: then no value here reaches it. */
static long long key_at(PyObject *keys, Py_ssize_t index) {
  int overflow;
  long long key = PyLong_AsLongLongAndOverflow(PyList_GET_ITEM(keys, index), &overflow);
  return overflow ? LLONG_MAX : key;
}

/* Look at who waits first for at most `last`; false if nobody does, or something is unusual, as
 * `*is_usual` tells. The keys are 2 * value for threads and callbacks, and 1 more for operations. */
static bool look(PyObject *waiters, long long last, struct waiting *found, bool *is_usual) {
  PyObject *keys = get(waiters, Waiters__keys);
  *is_usual = true;
  if (!PyList_GET_SIZE(keys)) return false;
  found->key = PyList_GET_ITEM(keys, 0);
  long long key = key_at(keys, 0);
  if (key > last) return false;
  Py_ssize_t position = 0;
  PyObject *index;
  found->bucket = PyDict_GetItemWithError(get(waiters, Waiters__buckets), found->key);
  *is_usual = key & 1 && found->bucket && PyDict_Next(found->bucket, &position, &found->operation, &index);
  if (*is_usual) found->index = integer(index);
  return *is_usual;
}

/* Return whether an operation waits for nothing else, and stands first in its queue; the lock. */
static bool is_next(struct issue *self, long long index, struct drops *drops) {
  PyObject *operation = self->operation, *queue = self->queue;
  if (get(operation, Operation__state) != engine.zero) return false; /* pending */
  /* Somebody may have asked for a timepoint of its own meanwhile. */
  if (get(operation, Operation__signals) != self->signals) return false;
  if (index > 61 || number(operation, Operation__unresolved) != 1LL << index) return false;
  PyObject *backlog = get(queue, StreamQueue__backlog);
  Py_ssize_t length = PyObject_Length(backlog);
  if (is_true(queue, StreamQueue__ordered)) {
    if (entry_of(backlog, 0) != operation) return false;
  } else if (length) {
    return false;
  }
  return has_room(self, length, drops);
}

/* Remove an operation that is issued from the register and from its queue; under the lock. */
static void remove_from(PyObject *waiters, const struct waiting *found, const struct issue *self,
                        struct drops *drops) {
  PyObject *queue = self->queue;
  if (PyDict_DelItem(found->bucket, self->operation) < 0) PyErr_Clear();
  if (!PyDict_GET_SIZE(found->bucket)) {
    drop_later(drops, Py_NewRef(found->bucket));
    if (PyDict_DelItem(get(waiters, Waiters__buckets), found->key) < 0) PyErr_Clear();
    PyObject *key = PyObject_CallOneArg(engine.heappop, get(waiters, Waiters__keys));
    if (!key) PyErr_Clear();
    drop_later(drops, key);
  }
  if (is_true(queue, StreamQueue__ordered)) {
    drop_later(drops, pop_first(get(queue, StreamQueue__backlog)));
  } else if (PyDict_DelItem(get(queue, StreamQueue__pending), self->operation) < 0) {
    PyErr_Clear();
  }
}

/* Return whether the first operation of a queue's backlog waits for nothing more. */
static bool is_ready(PyObject *queue) {
  PyObject *first = entry_of(get(queue, StreamQueue__backlog), 0);
  return first && !number(first, Operation__unresolved);
}

/* Issue the next operation that waits for at most `last`. NOT_MINE if the Python engine is to go on;
 * `*is_over` if there is none. */
static enum answer release_one(PyObject *waiters, long long last, bool *is_over) {
  struct waiting found, again;
  bool is_usual;
  *is_over = false;
  if (!look(waiters, last, &found, &is_usual)) {
    *is_over = is_usual;
    return is_usual ? TAKEN : NOT_MINE;
  }
  struct issue self = {.operation = Py_NewRef(found.operation)};
  struct drops drops;
  drops.count = 0;
  self.queue = get(self.operation, Operation__queue);
  self.context = get(self.queue, StreamQueue__context);
  self.waits = Py_NewRef(get(self.operation, Operation__waits));
  self.signals = Py_NewRef(get(self.operation, Operation__signals));
  enum answer answer = NOT_MINE;
  bool has_more = false;
  struct native_call call = {.kind = CALL_FILL};
  bool is_small = PyTuple_GET_SIZE(self.waits) <= MOST_WAITS && PyTuple_GET_SIZE(self.signals) <= MOST_SIGNALS;
  if (is_small && make_room(&self) && (self.calls = calls_of(self.queue)) && (self.has_lock = enter())) {
    /* Looked at again: making room may have run code of the user's. */
    if (look(waiters, last, &again, &is_usual) && again.operation == self.operation &&
        is_next(&self, again.index, &drops) && read_pending(self.operation, &call) && resolve(&self) &&
        may_signal(&self))
      answer = issue(&self, &call);
    if (answer == TAKEN) {
      remove_from(waiters, &again, &self, &drops);
      has_more = is_ready(self.queue);
    }
    leave();
  }
  PyErr_Clear();
  answer = finish(&self, answer);
  if (has_more) answer = leave_to_python(engine.pump, self.queue, NULL);
  drop_all(&drops); /* only now: code of the user's runs, which may wait for the queue */
  let_go(&self);
  return answer;
}

/* Return whether nobody but operations waits for at most `last`, in the heap from `index` down: there
 * may be many keys above it. */
static bool has_no_watcher(PyObject *keys, Py_ssize_t index, long long last) {
  if (index >= PyList_GET_SIZE(keys) || key_at(keys, index) > last) return true;
  return key_at(keys, index) & 1 && has_no_watcher(keys, 2 * index + 1, last) &&
         has_no_watcher(keys, 2 * index + 2, last);
}

/* Raise the value; false if that is not the plain case. Under the lock. */
static bool raise_value(PyObject *timeline, PyObject *value, long long last) {
  if (!is_none(timeline, Timeline__failure) || PyDict_GET_SIZE(engine.put_off)) return false;
  if (integer(value) <= number(timeline, Timeline__reserved)) return false;
  if (PyList_GET_SIZE(get(timeline, Timeline__points))) return false;
  PyObject *reached = get(timeline, Timeline__reached), *recorded = get(timeline, Timeline__recorded);
  if (reached != Py_None && PyDict_GET_SIZE(get(reached, Waiters__buckets))) return false;
  if (recorded != Py_None && !has_no_watcher(get(recorded, Waiters__keys), 0, last))
    return false;
  put(timeline, Timeline__reserved, Py_NewRef(value));
  put(timeline, Timeline__value, Py_NewRef(value));
  return true;
}

/* Issue operations that wait for a reached value, up to the budget. NOT_MINE if the Python engine is
 * to go on; `*is_over` if none is left. */
static enum answer release(PyObject *timeline, long long value, bool *is_over) {
  PyObject *waiters = get(timeline, Timeline__recorded);
  enum answer answer = TAKEN;
  *is_over = waiters == Py_None;
  for (int i = 0; !*is_over && answer == TAKEN && i < engine.budget; i++)
    answer = release_one(waiters, 2 * value + 1, is_over);
  return answer;
}

PyObject *release_some(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *timeline;
  long long value;
  bool is_over;
  if (!PyArg_ParseTuple(args, "O!L", engine.Semaphore, &timeline, &value)) return NULL;
  switch (release(timeline, value, &is_over)) {
    case RAISED: return NULL;
    case NOT_MINE: Py_RETURN_NONE;
    default: return PyBool_FromLong(!is_over);
  }
}

/* signal(semaphore, value) */
enum answer signal_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  long long value;
  if (count != 2 || names || !PyObject_TypeCheck(args[0], engine.Semaphore)) return NOT_MINE;
  if (!small_int(args[1], &value) || value < 0 || value > LLONG_MAX / 2 - 1) return NOT_MINE;
  PyObject *timeline = args[0];
  if (!enter()) return NOT_MINE;
  bool is_raised = raise_value(timeline, args[1], 2 * value + 1);
  leave();
  if (!is_raised) return NOT_MINE;
  bool is_over;
  enum answer answer = release(timeline, value, &is_over);
  if (!is_over) { /* what is left, and what is unusual, is released as if the signal was repeated */
    PyObject *rest = answer == NOT_MINE ? engine.signal_again : engine.signal_later;
    answer = leave_to_python(rest, timeline, args[1]);
  }
  if (answer == RAISED) return RAISED;
  *result = Py_NewRef(Py_None);
  return TAKEN;
}
