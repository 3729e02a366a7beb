/* What work of a flow comes after, by the memory that it uses (hal.flow.tracking): `collect` and `note`
 * for memory that is used as a whole, and which only submissions have used.
 *
 * A flow's lock makes finding the waits, submitting and noting the uses one step. Here the timeline lock
 * does, if nobody has the flow's: `add_waits` finds the waits before it is taken, and `are_current`
 * finds them again. */
#include "tracking.h"

#include "issue.h"

enum { MOST_READERS = 8 }; /* beyond that Python looks which readers count */

enum { HISTORY, PART, IS_WRITTEN }; /* of an access */

static PyObject *history_of(const struct uses *self, Py_ssize_t index) {
  return PyTuple_GET_ITEM(self->accesses[index], HISTORY);
}

static bool is_writing(const struct uses *self, Py_ssize_t index) {
  return PyTuple_GET_ITEM(self->accesses[index], IS_WRITTEN) == Py_True;
}

bool add_use(struct uses *self, PyObject *access) {
  if (!access || !PyTuple_CheckExact(access) || self->count == MOST_USES) return false;
  self->readers[self->count] = NULL;
  self->accesses[self->count++] = Py_NewRef(access);
  return true;
}

void let_uses_go(struct uses *self) {
  while (self->count--) {
    Py_DECREF(self->accesses[self->count]);
    Py_XDECREF(self->readers[self->count]);
  }
}

PyObject *raw_of(struct uses *self, PyObject *buffer, bool is_written) {
  if (Py_TYPE(buffer) != engine.TrackedBuffer) return self->takes_raw ? buffer : NULL;
  if (get(buffer, TrackedBuffer_flow) != self->flow) return NULL;
  PyObject *access = get(buffer, is_written ? TrackedBuffer_writing : TrackedBuffer_reading);
  return add_use(self, access) ? get(buffer, TrackedBuffer_raw) : NULL;
}

PyObject *bound_of(struct uses *self, Py_ssize_t slot, PyObject *given) {
  enum { NUMBER = -1, UNUSED, READ, WRITTEN }; /* as hal.flow.recordings has it */
  if (slot >= PyList_GET_SIZE(self->of_slots)) return NULL;
  switch (PyLong_AsLong(PyList_GET_ITEM(self->of_slots, slot))) {
    case NUMBER: return Py_TYPE(given) == engine.TrackedBuffer ? NULL : given;
    case READ: return raw_of(self, given, false);
    case WRITTEN: return raw_of(self, given, true);
    default: return NULL;
  }
}

/* Submissions that work comes after, borrowed. */
struct found {
  Py_ssize_t count;
  PyObject *waits[MOST_WAITS];
};

/* Add a user of memory, unless it has ended successfully. */
static bool add_user(struct found *found, PyObject *user) {
  if (Py_TYPE(user) != engine.Submission) return false; /* such as a timestamp */
  if (get(user, Operation__state) == engine.done) return true;
  for (Py_ssize_t i = 0; i < found->count; i++)
    if (found->waits[i] == user) return true;
  if (found->count == MOST_WAITS) return false;
  found->waits[found->count++] = user;
  return true;
}

static bool find(const struct uses *self, Py_ssize_t index, struct found *found) {
  PyObject *history = history_of(self, index);
  if (PyTuple_GET_ITEM(self->accesses[index], PART) != Py_None || !is_none(history, History_intervals)) return false;
  if (is_true(history, History_special)) return false;
  PyObject *writer = get(history, History_writer), *readers = get(history, History_readers);
  bool is_read = readers != Py_None && PyDict_GET_SIZE(readers);
  if (is_read && PyDict_GET_SIZE(readers) > MOST_READERS) return false;
  if (!is_read || !is_writing(self, index)) return writer == Py_None || add_user(found, writer);
  Py_ssize_t position = 0;
  PyObject *queue, *reader;
  while (PyDict_Next(readers, &position, &queue, &reader))
    if (!add_user(found, reader)) return false;
  return true;
}

static bool find_all(const struct uses *self, struct found *found) {
  found->count = 0;
  for (Py_ssize_t i = 0; i < self->count; i++)
    if (!find(self, i, found)) return false;
  return true;
}

/* Return whether an access before has the same memory, which one of the two writes. */
static bool is_used_twice(const struct uses *self, Py_ssize_t index) {
  for (Py_ssize_t i = 0; i < index; i++)
    if (history_of(self, i) == history_of(self, index) && (is_writing(self, i) || is_writing(self, index))) return true;
  return false;
}

bool add_waits(struct uses *self, PyObject **waits) {
  Py_ssize_t given = PyTuple_GET_SIZE(*waits);
  for (Py_ssize_t i = 0; i < self->count; i++) {
    if (is_used_twice(self, i)) return false;
    if (is_writing(self, i) || !is_none(history_of(self, i), History_readers)) continue;
    if (!(self->readers[i] = PyDict_New())) return false;
  }
  struct found found;
  if (!find_all(self, &found) || found.count + given > MOST_WAITS) return false;
  self->found = found.count;
  if (!found.count) return true;
  for (Py_ssize_t i = 0; i < found.count; i++) Py_INCREF(found.waits[i]); /* the collector may run code */
  PyObject *all = PyTuple_New(found.count + given);
  for (Py_ssize_t i = 0; i < found.count; i++) {
    if (all) {
      PyTuple_SET_ITEM(all, i, found.waits[i]);
    } else {
      Py_DECREF(found.waits[i]);
    }
  }
  for (Py_ssize_t i = 0; all && i < given; i++)
    PyTuple_SET_ITEM(all, found.count + i, Py_NewRef(PyTuple_GET_ITEM(*waits, i)));
  if (all) Py_SETREF(*waits, all);
  return all;
}

bool are_current(const struct uses *self, PyObject *waits) {
  PyObject *locked = PyObject_CallNoArgs(get(self->flow, Flow__is_busy));
  if (!locked) PyErr_Clear();
  Py_XDECREF(locked);
  struct found found;
  if (locked != Py_False || !find_all(self, &found) || found.count != self->found) return false;
  for (Py_ssize_t i = 0; i < found.count; i++)
    if (found.waits[i] != PyTuple_GET_ITEM(waits, i)) return false;
  for (Py_ssize_t i = 0; i < self->count; i++)
    if (!is_writing(self, i) && !self->readers[i] && is_none(history_of(self, i), History_readers)) return false;
  return true;
}

/* Remember a reader of a history that has a dict for it. */
static void add_reader(PyObject *history, PyObject *queue, PyObject *operation, struct drops *drops) {
  PyObject *readers = get(history, History_readers);
  drop_later(drops, Py_XNewRef(PyDict_GetItemWithError(readers, queue)));
  if (!PyDict_SetItem(readers, queue, operation)) return;
  PyErr_Clear(); /* no memory: come after everything the next time */
  put(history, History_is_doubtful, Py_NewRef(Py_True));
  put(history, History_special, Py_NewRef(Py_True));
}

/* Forget the readers. The dict of a single one is kept, empty: the next reader mostly has its queue. */
static void forget_readers(PyObject *history, PyObject *queue, struct drops *drops) {
  PyObject *readers = get(history, History_readers);
  if (readers == Py_None || !PyDict_GET_SIZE(readers)) return;
  PyObject *reader = PyDict_GET_SIZE(readers) == 1 ? PyDict_GetItemWithError(readers, queue) : NULL;
  drop_later(drops, Py_XNewRef(reader));
  if (reader && !PyDict_DelItem(readers, queue)) return;
  drop_later(drops, swap(history, History_readers, Py_NewRef(Py_None)));
}

void remember(const struct uses *self, PyObject *operation, PyObject *queue, struct drops *drops) {
  for (Py_ssize_t i = 0; i < self->count; i++) {
    PyObject *history = history_of(self, i);
    if (is_writing(self, i)) {
      drop_later(drops, swap(history, History_writer, Py_NewRef(operation)));
      forget_readers(history, queue, drops);
      continue;
    }
    if (is_none(history, History_readers)) put(history, History_readers, Py_NewRef(self->readers[i]));
    add_reader(history, queue, operation, drops);
  }
}
