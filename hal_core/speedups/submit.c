/* Submit an operation that can be issued at once (design section 5, "submit" and "issue").
 *
 * What `hal._engine.submitting`, `backlog.claim` and `issuing` do for an operation in front of which
 * nothing stands: not a host operation, no memory of an alloca, waits that are reached or recorded
 * on streams of the same driver, signals that nobody waits for yet, room in the stream. */
#include "speedups.h"

enum { MOST_WAITS = 16, MOST_SIGNALS = 8 };

/* A list of the user's: a tuple, a list or a single object. */
struct list {
  PyObject **items;
  Py_ssize_t count;
  PyObject *single;
};

static bool open_list(PyObject *given, struct list *list, Py_ssize_t most) {
  list->single = given;
  list->items = &list->single;
  list->count = 0;
  if (!given || given == Py_None) return true;
  if (PyTuple_CheckExact(given)) {
    list->items = ((PyTupleObject *)given)->ob_item;
    list->count = PyTuple_GET_SIZE(given);
  } else if (PyList_CheckExact(given)) {
    list->items = ((PyListObject *)given)->ob_item;
    list->count = PyList_GET_SIZE(given);
  } else {
    list->count = 1;
  }
  return list->count <= most;
}

static bool has_none(PyObject *waiters) {
  return waiters == Py_None || !PyDict_GET_SIZE(get(waiters, Waiters__buckets));
}

bool is_unwatched(PyObject *timeline) {
  return has_none(get(timeline, Timeline__recorded)) && has_none(get(timeline, Timeline__reached));
}

PyObject *covering(PyObject *timeline, long long value) {
  PyObject *points = get(timeline, Timeline__points);
  Py_ssize_t low = 0, high = PyList_GET_SIZE(points);
#define POINT(i) PyLong_AsLongLong(PyTuple_GET_ITEM(PyList_GET_ITEM(points, i), 0))
  if (!high || POINT(high - 1) < value) return NULL;
  if (high == 1 || POINT(high - 2) < value) low = --high; /* as in a chain */
  while (low < high) {
    Py_ssize_t middle = (low + high) / 2;
    if (POINT(middle) < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
#undef POINT
  return PyTuple_GET_ITEM(PyList_GET_ITEM(points, low), 1);
}

/* What is made before the lock is taken, and what is found out under it. */
struct submission {
  PyObject *queue, *context;
  struct calls *calls;
  PyObject *operation;            /* the handle */
  PyObject *signals;              /* a tuple */
  PyObject *points[MOST_SIGNALS]; /* (value, operation) for each signal */
  PyObject *dependencies;         /* a list with room for all waits, or NULL */
  struct list wait;
  PyObject *awaited[MOST_WAITS]; /* operations on other streams to wait for, borrowed */
  int awaited_count;
};

static void let_go(struct submission *self) {
  for (int i = 0; i < MOST_SIGNALS; i++) Py_CLEAR(self->points[i]);
  Py_CLEAR(self->operation);
  Py_CLEAR(self->signals);
  Py_CLEAR(self->dependencies);
}

/* Make the objects; false if one of the lists has anything but timepoints and submissions. */
static bool prepare(struct submission *self, PyObject *wait, PyObject *signal) {
  struct list signals;
  if (!open_list(wait, &self->wait, MOST_WAITS) || !open_list(signal, &signals, MOST_SIGNALS))
    return false;
  for (Py_ssize_t i = 0; i < self->wait.count; i++) {
    PyTypeObject *type = Py_TYPE(self->wait.items[i]);
    if (type != engine.Timepoint && type != engine.Submission) return false;
  }
  for (Py_ssize_t i = 0; i < signals.count; i++)
    if (Py_TYPE(signals.items[i]) != engine.Timepoint) return false;
  if (signals.count && PyTuple_CheckExact(signal)) {
    self->signals = Py_NewRef(signal);
  } else if (signals.count) {
    if (!(self->signals = PyTuple_New(signals.count))) return false;
    for (Py_ssize_t i = 0; i < signals.count; i++)
      PyTuple_SET_ITEM(self->signals, i, Py_NewRef(signals.items[i]));
  } else {
    self->signals = Py_NewRef(engine.empty);
  }
  if (!(self->operation = engine.Submission->tp_alloc(engine.Submission, 0))) return false;
  for (Py_ssize_t i = 0; i < signals.count; i++) {
    PyObject *value = get(PyTuple_GET_ITEM(self->signals, i), Timepoint__value);
    if (!(self->points[i] = PyTuple_Pack(2, value, self->operation))) return false;
  }
  if (self->wait.count) {
    /* Its items stay NULL until its length is known; no collector runs meanwhile. */
    if (!(self->dependencies = PyList_New(self->wait.count))) return false;
    Py_SET_SIZE(self->dependencies, 0);
  }
  /* The collector may have run the user's code, which may have changed the lists. */
  return open_list(wait, &self->wait, MOST_WAITS);
}

static bool is_empty(PyObject *object, enum slot slot) {
  return PyObject_Length(get(object, slot)) == 0;
}

/* Return whether nothing stands before the operation; the lock is held. */
static bool is_next(struct submission *self) {
  PyObject *queue = self->queue, *context = self->context;
  if (is_true(queue, StreamQueue__closed) || !is_none(context, DeviceContext_lost)) return false;
  if (is_true(queue, StreamQueue__shown) || !is_none(queue, StreamQueue__issuing)) return false;
  if (!is_empty(queue, StreamQueue__backlog)) return false;
  if (is_true(queue, StreamQueue__ordered) && PyDict_GET_SIZE(get(queue, StreamQueue__hosts)))
    return false;
  if (PyDict_GET_SIZE(get(context, DeviceContext_starved))) return false;
  long long in_flight = number(queue, StreamQueue__launched) - number(queue, StreamQueue__retired);
  return in_flight + 1 + self->wait.count <= number(queue, StreamQueue__limit);
}

/* Find out what the waits stand for; false if one is not recorded on a stream of the driver. */
static bool resolve(struct submission *self) {
  PyObject *queue = self->queue;
  for (Py_ssize_t i = 0; i < self->wait.count; i++) {
    PyObject *wait = self->wait.items[i], *operation = wait;
    bool is_timepoint = Py_TYPE(wait) == engine.Timepoint;
    PyObject *timepoint = is_timepoint ? wait : get(wait, Operation__private);
    PyObject *timeline = NULL;
    long long value = 0;
    if (timepoint != Py_None) {
      timeline = get(timepoint, Timepoint__semaphore);
      value = number(timepoint, Timepoint__value);
    }
    for (Py_ssize_t j = 0; timeline && j < PyTuple_GET_SIZE(self->signals); j++) {
      PyObject *signal = PyTuple_GET_ITEM(self->signals, j);
      if (get(signal, Timepoint__semaphore) == timeline && number(signal, Timepoint__value) <= value)
        return false; /* it would wait for itself */
    }
    if (is_timepoint) {
      if (!is_none(timeline, Timeline__failure)) return false;
      if (number(timeline, Timeline__value) >= value) continue;
      if (!(operation = covering(timeline, value))) return false;
    } else {
      if (get(operation, Operation__state) == engine.done) continue;
      if (get(operation, Operation__state) != engine.issued) return false;
      if (is_true(operation, Operation__is_host)) return false;
    }
    PyObject *other = get(operation, Operation__queue);
    if (get(other, StreamQueue__domain) != get(queue, StreamQueue__domain)) return false;
    Py_ssize_t count = PyList_GET_SIZE(self->dependencies);
    ((PyListObject *)self->dependencies)->ob_item[count] = Py_NewRef(operation);
    Py_SET_SIZE(self->dependencies, count + 1);
    if (other == queue) continue;
    PyObject *seen = PyDict_GetItemWithError(get(queue, StreamQueue__seen), get(other, StreamQueue__id));
    if (seen && PyLong_AsLongLong(seen) >= number(operation, Operation__sequence)) continue;
    self->awaited[self->awaited_count++] = operation;
  }
  return true;
}

/* Return whether the signals can be reserved and published without anybody to wake. */
static bool may_signal(struct submission *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(self->signals, i);
    PyObject *timeline = get(signal, Timepoint__semaphore);
    for (Py_ssize_t j = 0; j < i; j++)
      if (get(PyTuple_GET_ITEM(self->signals, j), Timepoint__semaphore) == timeline) return false;
    if (!is_none(timeline, Timeline__failure)) return false;
    if (number(signal, Timepoint__value) <= number(timeline, Timeline__reserved)) return false;
    if (!is_unwatched(timeline)) return false;
    /* Two queues may publish in another order than they reserved in. */
    PyObject *points = get(timeline, Timeline__points);
    Py_ssize_t count = PyList_GET_SIZE(points);
    if (count && PyLong_AsLongLong(PyTuple_GET_ITEM(PyList_GET_ITEM(points, count - 1), 0)) >=
                     number(signal, Timepoint__value))
      return false;
  }
  return true;
}

static int make_call(struct calls *calls, const struct native_call *call, void *stream) {
  if (call->kind == CALL_GRAPH) return calls->launch_graph(call->graph, stream);
  if (call->kind == CALL_LAUNCH)
    return calls->launch(call->launch.function, call->launch.grid[0], call->launch.grid[1],
                         call->launch.grid[2], call->launch.block[0], call->launch.block[1],
                         call->launch.block[2], call->launch.shared, stream, call->launch.parameters,
                         NULL);
  uintptr_t address = call->fill.address;
  size_t count = call->fill.count;
  switch (call->fill.width) {
    case 1: return calls->fill_8(address, (unsigned char)call->fill.pattern, count, stream);
    case 2: return calls->fill_16(address, (unsigned short)call->fill.pattern, count, stream);
    default: return calls->fill_32(address, call->fill.pattern, count, stream);
  }
}

static void *pointer(PyObject *object, enum slot slot) {
  return (void *)(uintptr_t)PyLong_AsUnsignedLongLong(get(object, slot));
}

/* Set all slots of the operation that its __init__ sets; takes the dependencies. */
static void fill_in(struct submission *self, PyObject *kind, PyObject *resources) {
  PyObject *operation = self->operation;
  *slot_of(operation, Operation__queue) = Py_NewRef(self->queue);
  *slot_of(operation, Operation__kind) = Py_NewRef(kind);
  *slot_of(operation, Operation__function) = Py_NewRef(Py_None);
  *slot_of(operation, Operation__arguments) = Py_NewRef(engine.empty);
  *slot_of(operation, Operation__resources) = Py_NewRef(resources);
  *slot_of(operation, Operation__waits) = Py_NewRef(engine.empty);
  *slot_of(operation, Operation__signals) = Py_NewRef(self->signals);
  *slot_of(operation, Operation__is_host) = Py_NewRef(Py_False);
  *slot_of(operation, Operation__is_begun) = Py_NewRef(Py_True);
  *slot_of(operation, Operation__launches) = PyLong_FromLong(1 + self->awaited_count);
  *slot_of(operation, Operation__unresolved) = Py_NewRef(engine.zero);
  *slot_of(operation, Operation__retired) = Py_NewRef(Py_False);
  *slot_of(operation, Operation__private) = Py_NewRef(Py_None);
  *slot_of(operation, Operation__shared) = Py_NewRef(Py_None);
  *slot_of(operation, Operation__stream_waits) = Py_NewRef(Py_None);
  PyObject *dependencies = self->dependencies;
  if (dependencies && PyList_GET_SIZE(dependencies)) {
    *slot_of(operation, Operation__dependencies) = dependencies;
    self->dependencies = NULL;
  } else {
    *slot_of(operation, Operation__dependencies) = Py_NewRef(Py_None);
  }
}

/* Reserve the signals' values (S1). */
static void reserve(struct submission *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(self->signals, i);
    put(get(signal, Timepoint__semaphore), Timeline__reserved, Py_NewRef(get(signal, Timepoint__value)));
  }
}

/* Make the native calls and the changes; under the lock. `*is_complete` tells whether the event is
 * recorded: if not, all that is left to do is to record one. */
static enum answer issue(struct submission *self, PyObject *kind, const struct native_call *call,
                         PyObject *resources, bool *is_complete) {
  PyObject *queue = self->queue, *operation = self->operation;
  PyObject *pool = get(get(self->context, DeviceContext_events), EventPool__free);
  Py_ssize_t last = PyList_GET_SIZE(pool) - 1;
  if (last < 0) return NOT_MINE;
  void *stream = pointer(queue, StreamQueue__stream);
  long long sequence = number(queue, StreamQueue__sequence) + 1;
  long long launched = number(queue, StreamQueue__launched) + 1 + self->awaited_count;
  PyObject *sequence_object = PyLong_FromLongLong(sequence);
  PyObject *launched_object = PyLong_FromLongLong(launched);
  if (!sequence_object || !launched_object) goto refuse;
  for (int i = 0; i < self->awaited_count; i++) {
    PyObject *other = self->awaited[i];
    if (self->calls->wait_event(stream, pointer(get(other, Operation__event), Event_handle), 0))
      goto refuse;
    if (PyDict_SetItem(get(queue, StreamQueue__seen), get(get(other, Operation__queue), StreamQueue__id),
                       get(other, Operation__sequence)) < 0)
      goto refuse;
  }
  if (make_call(self->calls, call, stream)) goto refuse;

  /* From here on it is issued, whatever comes. */
  fill_in(self, kind, resources);
  reserve(self);
  PyObject *event = PyList_GET_ITEM(pool, last);
  if (self->calls->record_event(pointer(event, Event_handle), stream)) {
    *is_complete = false;
    *slot_of(operation, Operation__state) = Py_NewRef(engine.issuing);
    put(queue, StreamQueue__issuing, Py_NewRef(operation));
    Py_DECREF(sequence_object);
    Py_DECREF(launched_object);
    return TAKEN;
  }
  *is_complete = true;
  Py_SET_SIZE(pool, last); /* its reference goes to the operation */
  put(event, Event_count, Py_NewRef(engine.one));
  *slot_of(operation, Operation__event) = event;
  *slot_of(operation, Operation__sequence) = sequence_object;
  *slot_of(operation, Operation__launched) = launched_object;
  *slot_of(operation, Operation__state) = Py_NewRef(engine.issued);
  PyObject *appended = PyObject_CallMethodOneArg(get(queue, StreamQueue__ring), engine.append, operation);
  Py_XDECREF(appended);
  put(queue, StreamQueue__sequence, Py_NewRef(sequence_object));
  put(queue, StreamQueue__launched, Py_NewRef(launched_object));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *timeline = get(PyTuple_GET_ITEM(self->signals, i), Timepoint__semaphore);
    PyList_Append(get(timeline, Timeline__points), self->points[i]);
  }
  return TAKEN;

refuse:
  PyErr_Clear();
  Py_XDECREF(sequence_object);
  Py_XDECREF(launched_object);
  return NOT_MINE;
}

/* Retire now and then, as the Python engine does, so that memory comes back. */
static void harvest(PyObject *queue, PyObject *context) {
  struct drops drops = {0};
  bool is_done = false;
  if (enter()) {
    is_done = retire(queue, &drops);
    PyObject *queues = get(context, DeviceContext_queues);
    long long rotation = number(context, DeviceContext__rotation) + 1;
    PyObject *rotated = PyLong_FromLongLong(rotation);
    if (rotated) put(context, DeviceContext__rotation, rotated);
    Py_ssize_t count = PyList_GET_SIZE(queues);
    if (count) {
      PyObject *other = PyList_GET_ITEM(queues, rotation % count);
      if (other != queue) is_done = retire(other, &drops) && is_done;
    }
    leave();
    drop_all(&drops);
  }
  if (is_done) return;
  PyObject *done = PyObject_CallOneArg(engine.harvest_some, queue);
  if (!done) PyErr_WriteUnraisable(queue);
  Py_XDECREF(done);
}

enum answer submit(PyObject *queue, PyObject *kind, const struct native_call *call,
                   PyObject *resources, PyObject *wait, PyObject *signal, PyObject **result) {
  struct submission self = {.queue = queue, .context = get(queue, StreamQueue__context)};
  if (!prepare(&self, wait, signal) || !(self.calls = calls_of(queue)) || !enter()) {
    PyErr_Clear();
    let_go(&self);
    return NOT_MINE;
  }
  enum answer answer = NOT_MINE;
  bool is_complete = true;
  if (is_next(&self) && resolve(&self) && may_signal(&self))
    answer = issue(&self, kind, call, resources, &is_complete);
  leave();
  if (answer == TAKEN) {
    *result = Py_NewRef(self.operation);
    if (!is_complete) {
      PyObject *done = PyObject_CallOneArg(engine.complete_issue, self.operation);
      if (!done) {
        Py_CLEAR(*result);
        answer = RAISED;
      }
      Py_XDECREF(done);
    } else if (!(number(queue, StreamQueue__sequence) & engine.harvest_mask)) {
      harvest(queue, self.context);
    }
  }
  let_go(&self);
  return answer;
}
