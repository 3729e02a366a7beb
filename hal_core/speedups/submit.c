/* Submit an operation that can be issued at once (design section 5, "submit"). */
#include "issue.h"
#include "tracking.h"

/* Return a list of the user's as a tuple, a new reference, whose items are of the given types; NULL
 * for anything else, such as items that were never initialized. A tuple, because the collector may
 * run code that changes a list. */
static PyObject *read_list(PyObject *given, Py_ssize_t most, PyTypeObject *first, PyTypeObject *second) {
  PyObject *items;
  if (!given || given == Py_None) {
    items = Py_NewRef(engine.empty);
  } else if (PyTuple_CheckExact(given)) {
    items = Py_NewRef(given);
  } else {
    items = PyList_CheckExact(given) ? PyList_AsTuple(given) : PyTuple_Pack(1, given);
  }
  if (!items) return NULL;
  bool is_plain = PyTuple_GET_SIZE(items) <= most;
  for (Py_ssize_t i = 0; is_plain && i < PyTuple_GET_SIZE(items); i++) {
    PyObject *item = PyTuple_GET_ITEM(items, i);
    PyTypeObject *type = Py_TYPE(item);
    is_plain = type == first ? get(item, Timepoint__value) && get(get(item, Timepoint__semaphore), Timeline__reached)
                             : type == second && get(item, Operation__dependencies);
  }
  if (!is_plain) Py_CLEAR(items);
  return items;
}

/* Make the objects; false if one of the lists has anything but timepoints and submissions. */
static bool prepare(struct issue *self, PyObject *kind, PyObject *resources, const struct order *order) {
  if (!(self->waits = read_list(order->wait, MOST_WAITS, engine.Timepoint, engine.Submission))) return false;
  if (!(self->signals = read_list(order->signal, MOST_SIGNALS, engine.Timepoint, engine.Timepoint))) return false;
  if (!(self->operation = make_object(NEW_Submission))) return false;
  set(self->operation, Operation__queue, self->queue);
  set(self->operation, Operation__kind, kind);
  set(self->operation, Operation__signals, self->signals);
  put(self->operation, Operation__resources, Py_NewRef(resources));
  if (order->uses && !add_waits(order->uses, self->operation, &self->waits)) return false;
  return make_room(self) && (self->calls = calls_of(self->queue));
}

/* Return whether the native call of an operation may let the interpreter lock go: no Python object and
 * no other lock goes with it. Work of a flow keeps it: a thread that looked now what its own work comes
 * after would miss this one, whose uses are noted behind the call. */
static bool may_let_go(const struct native_call *call, const struct order *order, const struct effect *effect) {
  if (effect->lock || order->uses) return false;
  return call->kind != CALL_ALLOCATE && call->kind != CALL_FREE;
}

/* Retire now and then, as the Python engine does, so that memory comes back. */
static enum answer harvest(PyObject *queue, PyObject *context) {
  struct drops drops;
  drops.count = 0;
  bool is_done = false;
  if (enter()) {
    is_done = retire_some(queue, &drops);
    PyObject *queues = get(context, DeviceContext_queues);
    long long rotation = number(context, DeviceContext__rotation) + 1;
    PyObject *rotated = PyLong_FromLongLong(rotation);
    if (rotated) put(context, DeviceContext__rotation, rotated);
    else PyErr_Clear();
    Py_ssize_t count = PyList_GET_SIZE(queues);
    if (count) {
      PyObject *other = PyList_GET_ITEM(queues, rotation % count);
      if (other != queue) is_done = retire_some(other, &drops) && is_done;
    }
    leave();
    drop_all(&drops);
  }
  return is_done ? TAKEN : leave_to_python(engine.harvest_some, queue, NULL);
}

enum answer submit_with(PyObject *queue, PyObject *kind, const struct native_call *call,
                        PyObject *resources, const struct order *order, struct effect *effect,
                        PyObject **result) {
  struct issue self;
  clear(&self);
  self.queue = queue;
  self.context = get(queue, StreamQueue__context);
  self.is_empty = call->kind == CALL_NONE;
  self.blocks = call->kind == CALL_GATHER;
  self.is_kept = order->uses;
  if (call->kind == CALL_NODES) self.more = call->nodes.count - 1;
  PyObject *lock = effect->lock;
  /* Two locks at once, both of them leaves: neither is waited for, so no order of the two can lock threads up. */
  if (!prepare(&self, kind, resources, order) ||
      (may_let_go(call, order, effect) && !prepare_to_let_go(&self)) || (lock && !enter_lock(lock))) {
    PyErr_Clear();
    let_go(&self);
    return NOT_MINE;
  }
  enum answer answer = NOT_MINE;
  struct drops drops;
  drops.count = 0;
  if ((self.has_lock = enter_behind(lock))) {
    if ((!order->uses || are_current(order->uses)) && has_room(&self, 0, &drops) && resolve(&self) &&
        may_signal(&self) && (!effect->may || effect->may(effect, &self)))
      answer = issue(&self, call, &drops);
    if (effect->apply && answer == TAKEN) effect->apply(effect, self.operation, &drops);
    if (order->uses && answer == TAKEN) remember(order->uses, self.operation, &drops);
    if (self.has_lock) leave();
  }
  if (lock) leave_lock(lock);
  answer = finish(&self, answer);
  if (self.has_followers) answer = release_behind(&self, answer);
  drop_all(&drops); /* only now: code of the user's runs, which may wait for the queue */
  if (answer == TAKEN) {
    if (!(of_queue(queue)->sequence & engine.harvest_mask)) answer = harvest(queue, self.context);
  } else if (answer == NOT_MINE && !self.rest && (call->function || call->playback) && !order->uses && is_early(&self)) {
    answer = stand_in_line(&self, call, resources, effect);
  }
  if (answer == TAKEN) *result = Py_NewRef(self.operation);
  let_go(&self);
  return answer;
}

/* The uses of memory of allocas, which it notes (M3). */
struct noting {
  struct effect effect;
  Py_ssize_t count;
  PyObject **storages; /* those that an operation uses, and other resources */
};

static bool may_note(struct effect *effect, const struct issue *issue) {
  (void)issue;
  const struct noting *self = (struct noting *)effect;
  for (Py_ssize_t i = 0; i < self->count; i++) {
    if (Py_TYPE(self->storages[i]) != engine.Transient) continue;
    PyObject *uses = get(self->storages[i], Transient_uses);
    if (uses == Py_None || PyList_GET_SIZE(uses) + self->count > number(self->storages[i], Transient__most))
      return false; /* it was given back, or the list is to be purged */
  }
  return true;
}

static void note(struct effect *effect, PyObject *operation, struct drops *drops) {
  (void)drops;
  const struct noting *self = (struct noting *)effect;
  for (Py_ssize_t i = 0; i < self->count; i++)
    if (Py_TYPE(self->storages[i]) == engine.Transient)
      PyList_Append(get(self->storages[i], Transient_uses), operation);
}

enum answer submit(PyObject *queue, PyObject *kind, const struct native_call *call,
                   PyObject *resources, const struct order *order, PyObject **result) {
  struct noting self = {.count = 1, .storages = &resources};
  if (PyTuple_CheckExact(resources)) {
    self.count = PyTuple_GET_SIZE(resources);
    self.storages = ((PyTupleObject *)resources)->ob_item;
  }
  for (Py_ssize_t i = 0; i < self.count && !self.effect.lock; i++)
    if (Py_TYPE(self.storages[i]) == engine.Transient)
      self.effect = (struct effect){get(get(get(self.storages[i], Storage__heap), Heap_books), Books_lock), may_note, note};
  return submit_with(queue, kind, call, resources, order, &self.effect, result);
}
