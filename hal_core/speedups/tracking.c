/* What work of a flow comes after, by the memory that it uses (hal.flow.tracking): `collect` and `note`
 * for memory that is used as a whole, and which only submissions have used.
 *
 * A flow's lock makes finding the waits, submitting and noting the uses one step. Here the timeline lock
 * does, if nobody has the flow's: `add_waits` finds the waits before it is taken, and `are_current`
 * looks whether anything has changed. To take the flow's lock, too, was two thirds of what tracking cost.
 *
 * Readers are a tuple, which is replaced and never changed: the same tuple and the same writer tell that
 * nothing has changed, and the waits need not be found again under the lock. */
#include "tracking.h"

#include "issue.h"

enum { MOST_READERS = 8 }; /* beyond that Python looks which readers count */

enum { HISTORY, PART, IS_WRITTEN }; /* of an access */

static PyObject *history_of(const struct use *use) { return PyTuple_GET_ITEM(use->access, HISTORY); }

static bool is_writing(const struct use *use) { return PyTuple_GET_ITEM(use->access, IS_WRITTEN) == Py_True; }

bool add_use(struct uses *self, PyObject *access) {
  if (!access || !PyTuple_CheckExact(access) || self->count == MOST_USES) return false;
  self->all[self->count++] = (struct use){.access = Py_NewRef(access)};
  return true;
}

void let_uses_go(struct uses *self) {
  while (self->count--) {
    struct use *use = &self->all[self->count];
    Py_DECREF(use->access);
    Py_XDECREF(use->writer);
    Py_XDECREF(use->readers);
    Py_XDECREF(use->later);
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

/* Submissions that work comes after, borrowed from the uses. */
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

/* Find out what one use comes after. */
static bool find(struct use *use, struct found *found) {
  PyObject *history = history_of(use);
  if (PyTuple_GET_ITEM(use->access, PART) != Py_None || !is_none(history, History_intervals)) return false;
  if (is_true(history, History_special)) return false;
  use->writer = Py_NewRef(get(history, History_writer));
  use->readers = Py_NewRef(get(history, History_readers));
  Py_ssize_t readers = PyTuple_GET_SIZE(use->readers);
  if (readers > MOST_READERS) return false;
  if (!readers || !is_writing(use)) return use->writer == Py_None || add_user(found, use->writer);
  for (Py_ssize_t i = 0; i < readers; i++)
    if (!add_user(found, PyTuple_GET_ITEM(use->readers, i))) return false;
  return true;
}

/* Return whether a use before has the same memory, which one of the two writes. */
static bool is_used_twice(const struct uses *self, const struct use *use) {
  for (const struct use *each = self->all; each < use; each++)
    if (history_of(each) == history_of(use) && (is_writing(each) || is_writing(use))) return true;
  return false;
}

/* Return readers with another one added, which stands for the one before it on its queue. */
static PyObject *with_reader(PyObject *readers, PyObject *operation) {
  PyObject *others[MOST_READERS], *queue = get(operation, Operation__queue);
  Py_ssize_t count = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(readers); i++)
    if (get(PyTuple_GET_ITEM(readers, i), Operation__queue) != queue) others[count++] = PyTuple_GET_ITEM(readers, i);
  PyObject *all = PyTuple_New(count + 1);
  if (!all) return NULL;
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(all, i, Py_NewRef(others[i]));
  PyTuple_SET_ITEM(all, count, Py_NewRef(operation));
  return all;
}

bool add_waits(struct uses *self, PyObject *operation, PyObject **waits) {
  Py_ssize_t given = PyTuple_GET_SIZE(*waits);
  struct found found;
  found.count = 0;
  for (Py_ssize_t i = 0; i < self->count; i++)
    if (is_used_twice(self, &self->all[i]) || !find(&self->all[i], &found)) return false;
  if (found.count + given > MOST_WAITS) return false;
  for (Py_ssize_t i = 0; i < self->count; i++) { /* the collector may run code from here on */
    struct use *use = &self->all[i];
    if (!is_writing(use) && !(use->later = with_reader(use->readers, operation))) return false;
  }
  if (!found.count) return true;
  PyObject *all = PyTuple_New(found.count + given);
  if (!all) return false;
  for (Py_ssize_t i = 0; i < found.count; i++) PyTuple_SET_ITEM(all, i, Py_NewRef(found.waits[i]));
  for (Py_ssize_t i = 0; i < given; i++)
    PyTuple_SET_ITEM(all, found.count + i, Py_NewRef(PyTuple_GET_ITEM(*waits, i)));
  Py_SETREF(*waits, all);
  return true;
}

bool are_current(const struct uses *self) {
  if (is_true(self->flow, Flow__is_busy)) return false;
  for (Py_ssize_t i = 0; i < self->count; i++) {
    const struct use *use = &self->all[i];
    PyObject *history = history_of(use);
    if (get(history, History_writer) != use->writer || get(history, History_readers) != use->readers) return false;
    if (is_true(history, History_special) || !is_none(history, History_intervals)) return false;
  }
  return true;
}

void remember(struct uses *self, PyObject *operation, struct drops *drops) {
  for (Py_ssize_t i = 0; i < self->count; i++) {
    struct use *use = &self->all[i];
    PyObject *history = history_of(use);
    if (is_writing(use)) drop_later(drops, swap(history, History_writer, Py_NewRef(operation)));
    PyObject *readers = use->later ? use->later : Py_NewRef(engine.empty);
    use->later = NULL;
    drop_later(drops, swap(history, History_readers, readers));
  }
}
