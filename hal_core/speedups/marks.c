/* How the end of an operation is marked: by an event of its own, by that of another one, or by one that is put off
 * (`Event.due`). */
#include "issue.h"

static bool has(PyObject *resources, PyObject *storage) {
  bool is_found = resources == storage;
  if (!PyTuple_CheckExact(resources)) return is_found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(resources); i++) is_found |= PyTuple_GET_ITEM(resources, i) == storage;
  return is_found;
}

/* Return whether nobody sees that an operation seems to end only with the next one: it signals nothing, and its
 * handle is gone, or it is the alloca of what the next one uses, whose handle the buffer has. What waits for another
 * stream may take for ever: memory of what is in front of it comes back before (M1). */
static bool is_unobserved(PyObject *operation, const struct issue *self) {
  if (PyTuple_GET_SIZE(get(operation, Operation__signals))) return false;
  if (self->awaited_count && !is_none(operation, Operation__resources)) return false;
  Py_ssize_t known = 1; /* the ring's reference */
  PyObject *storage = get(operation, Operation__resources);
  if (Py_TYPE(storage) == engine.Transient && get(storage, Storage_source) == operation) {
    if (has(get(self->operation, Operation__resources), storage)) return true;
    known++;
  }
  return Py_REFCNT(operation) == known;
}

/* Return whether an operation ends with the one before it. */
static bool takes_no_time(const struct issue *self, const struct native_call *call) {
  if (self->awaited_count) return false;
  return call->kind == CALL_NONE || call->kind == CALL_ALLOCATE || call->kind == CALL_FREE;
}

/* Return whether an event that was put off may be recorded behind the next operation, too. Few share one, and fewer
 * where a stream takes few: they give their room back together, and nobody can tell how far the stream is among
 * them. Allocas and deallocas that filled the room with one event had Python make the next, at 20 times the cost. */
static bool may_lie_behind(PyObject *event, const struct issue *self, const struct native_call *call) {
  enum { MOST = 8, MOST_AT_ONCE = 32 };
  bool is_at_once = takes_no_time(self, call);
  long long count = number(event, Event_count); /* of operations: others that count have it recorded (`Event.hold`) */
  if (count >= (is_at_once ? MOST_AT_ONCE : MOST) || (count + 1) * MOST > number(self->queue, StreamQueue__limit))
    return false;
  for (Py_ssize_t i = 1; i <= count && !is_at_once; i++) {
    PyObject *operation = entry_of(get(self->queue, StreamQueue__ring), -i);
    if (!operation || !is_unobserved(operation, self)) return false;
  }
  return true;
}

/* Return whether an operation keeps so much memory that it has an event of its own, by which that comes back as soon
 * as it can (M1). What an alloca has taken comes back by its dealloca. */
static bool keeps_much(PyObject *operation) {
  enum { MUCH = 1 << 20 };
  PyObject *resources = get(operation, Operation__resources), **all = &resources;
  Py_ssize_t count = 1;
  if (PyTuple_CheckExact(resources)) {
    count = PyTuple_GET_SIZE(resources);
    all = ((PyTupleObject *)resources)->ob_item;
  }
  long long bytes = 0;
  for (Py_ssize_t i = 0; i < count && bytes < MUCH; i++)
    if (Py_TYPE(all[i]) == engine.Storage) bytes += number(all[i], Storage_size);
  return bytes >= MUCH;
}

/* Return whether the event of an operation may be put off. Not where only events can be asked: on the CPU they tell
 * of work that fails alone. */
static bool may_put_off(const struct issue *self, const struct native_call *call) {
  if (!self->calls->query_stream) return false;
  if (call->kind == CALL_NODES && call->nodes.count > 1) return false; /* one event for many launches */
  switch (call->kind) {
    case CALL_NONE: case CALL_ALLOCATE: case CALL_FREE: return true;
    case CALL_GATHER: return false; /* it may block */
    default: /* others can see its end */
      return !self->is_kept && !PyTuple_GET_SIZE(self->signals) && !keeps_much(self->operation);
  }
}

bool choose_mark(const struct issue *self, const struct native_call *call, struct mark *mark) {
  bool is_shown = is_true(self->queue, StreamQueue__shown); /* work of others may stand in between */
  PyObject *last = is_shown ? NULL : entry_of(get(self->queue, StreamQueue__ring), -1);
  PyObject *event = last ? get(last, Operation__event) : NULL;
  bool is_due = event && !is_none(event, Event_due);
  bool is_behind = is_due && !self->lets_go && may_lie_behind(event, self, call);
  bool is_same = event && self->is_empty && !self->awaited_count && (is_behind || !is_due);
  if (is_same || is_behind) mark->event = event;
  mark->is_recorded = !is_same && (is_shown || self->lets_go || !may_put_off(self, call));
  return mark->event || !is_due || settle(event);
}
