/* The issue of an operation; see issue.h. */
#include "issue.h"

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

bool make_room(struct issue *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *value = get(PyTuple_GET_ITEM(self->signals, i), Timepoint__value);
    if (!(self->points[i] = PyTuple_Pack(2, value, self->operation))) return false;
  }
  if (PyTuple_GET_SIZE(self->waits)) {
    /* Its items stay NULL until its length is known; no collector runs meanwhile. */
    if (!(self->dependencies = PyList_New(PyTuple_GET_SIZE(self->waits)))) return false;
    Py_SET_SIZE(self->dependencies, 0);
  }
  return true;
}

void let_go(struct issue *self) {
  for (int i = 0; i < MOST_SIGNALS; i++) Py_CLEAR(self->points[i]);
  Py_CLEAR(self->operation);
  Py_CLEAR(self->signals);
  Py_CLEAR(self->waits);
  Py_CLEAR(self->dependencies);
}

/* How many launches may be in flight on a queue when another one keeps the interpreter lock: its part
 * of what all may have together, and some for each of many. */
static long long most_in_flight(const struct issue *self) {
  enum { EACH = 16 };
  long long limit = number(self->queue, StreamQueue__limit), most = self->calls->most_launches;
  if (!most || (self->is_empty && !PyTuple_GET_SIZE(self->waits))) return limit;
  Py_ssize_t queues = PyList_GET_SIZE(get(self->context, DeviceContext_queues));
  most = queues > most / EACH ? EACH : most / (queues ? queues : 1);
  return most < limit ? most : limit;
}

static long long in_flight(PyObject *queue) {
  return number(queue, StreamQueue__launched) - number(queue, StreamQueue__retired);
}

bool has_room(const struct issue *self, Py_ssize_t length, struct drops *drops) {
  PyObject *queue = self->queue, *context = self->context;
  if (PyDict_GET_SIZE(engine.put_off)) return false;
  if (is_true(queue, StreamQueue__closed) || !is_none(context, DeviceContext_lost)) return false;
  if (is_true(queue, StreamQueue__shown) || !is_none(queue, StreamQueue__issuing)) return false;
  if (PyObject_Length(get(queue, StreamQueue__backlog)) != length) return false;
  if (is_true(queue, StreamQueue__ordered) && PyDict_GET_SIZE(get(queue, StreamQueue__hosts)))
    return false;
  if (PyDict_GET_SIZE(get(context, DeviceContext_starved))) return false;
  long long most = most_in_flight(self) - 1 - PyTuple_GET_SIZE(self->waits);
  if (in_flight(queue) > most) retire(queue, drops);
  return in_flight(queue) <= most;
}

/* Return whether a queue of another device has events in memory, or this one has: no stream of the one
 * waits for those of the other without more ado. */
static bool has_other_events(const struct issue *self, PyObject *other) {
  if (get(other, StreamQueue__context) == self->context) return false;
  const struct calls *theirs = (struct calls *)get(other, StreamQueue__calls);
  return Py_TYPE(theirs) != &calls_type || theirs->write_value || self->calls->write_value;
}

bool resolve(struct issue *self) {
  PyObject *queue = self->queue;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->waits); i++) {
    PyObject *wait = PyTuple_GET_ITEM(self->waits, i), *operation = wait;
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
    if (has_other_events(self, other)) return false;
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

bool may_signal(const struct issue *self) {
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

/* Take memory of the driver's pool; an address that no object can be made for is given back. */
static int allocate(const struct calls *calls, const struct native_call *call, void *stream) {
  uintptr_t address = 0;
  int status = calls->allocate_async(&address, call->allocate.size, calls->pool, stream);
  if (status || (*call->allocate.address = PyLong_FromUnsignedLongLong(address))) return status;
  PyErr_Clear();
  calls->free_async(address, stream);
  return -1;
}

static int change_pool(const struct calls *calls, const struct native_call *call, void *stream) {
  int mode = begin_relaxed(calls);
  if (mode < 0) return -1;
  int status = call->kind == CALL_FREE ? calls->free_async(call->free, stream) : allocate(calls, call, stream);
  end_relaxed(calls, mode);
  return status;
}

static int make_call(struct calls *calls, const struct native_call *call, void *stream) {
  if (call->kind == CALL_NONE) return 0;
  if (call->kind == CALL_ALLOCATE || call->kind == CALL_FREE) return change_pool(calls, call, stream);
  if (call->kind == CALL_GRAPH) return calls->launch_graph(call->graph, stream);
  if (call->kind == CALL_REBOUND) {
    if (!call->rebound.instance)
      return launch_rebound(calls, call->rebound.rebinder, call->rebound.bindings, stream);
    return launch_updated(calls, call->rebound.rebinder, call->rebound.instance, call->rebound.bindings, stream);
  }
  if (call->kind == CALL_LAUNCH)
    return calls->launch(call->launch.function, call->launch.grid[0], call->launch.grid[1],
                         call->launch.grid[2], call->launch.block[0], call->launch.block[1],
                         call->launch.block[2], call->launch.shared, stream, call->launch.parameters,
                         NULL);
  if (call->kind == CALL_COPY) return calls->copy(call->copy.target, call->copy.source, call->copy.size, stream);
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

/* Reserve the signals' values (S1). */
static void reserve(const struct issue *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(self->signals, i);
    put(get(signal, Timepoint__semaphore), Timeline__reserved, Py_NewRef(get(signal, Timepoint__value)));
  }
}

/* The event of the operation before an operation with no native call, borrowed, if it ends with that one. */
static PyObject *shared_event(const struct issue *self) {
  PyObject *ring = get(self->queue, StreamQueue__ring);
  if (!self->is_empty || self->awaited_count || !PyObject_Length(ring)) return NULL;
  PyObject *last = PySequence_GetItem(ring, -1);
  if (!last) PyErr_Clear();
  Py_XDECREF(last); /* the ring holds it */
  return last ? get(last, Operation__event) : NULL;
}

enum answer issue(struct issue *self, const struct native_call *call, bool *is_complete) {
  PyObject *queue = self->queue, *operation = self->operation;
  PyObject *pool = get(get(self->context, DeviceContext_events), EventPool__free);
  PyObject *shared = shared_event(self);
  Py_ssize_t last = PyList_GET_SIZE(pool) - 1;
  if (last < 0 && !shared) return NOT_MINE;
  void *stream = pointer(queue, StreamQueue__stream);
  long long sequence = number(queue, StreamQueue__sequence) + 1;
  long long launched = number(queue, StreamQueue__launched) + 1 + self->awaited_count;
  PyObject *sequence_object = PyLong_FromLongLong(sequence);
  PyObject *launched_object = PyLong_FromLongLong(launched);
  if (!sequence_object || !launched_object) goto refuse;
  for (int i = 0; i < self->awaited_count; i++) {
    PyObject *other = self->awaited[i];
    if (wait_for(self->calls, stream, pointer(get(other, Operation__event), Event_handle)))
      goto refuse;
    if (PyDict_SetItem(get(queue, StreamQueue__seen), get(get(other, Operation__queue), StreamQueue__id),
                       get(other, Operation__sequence)) < 0)
      goto refuse;
  }
  if (make_call(self->calls, call, stream)) goto refuse;

  /* From here on it is issued, whatever comes. */
  put(operation, Operation__is_begun, Py_NewRef(Py_True));
  put(operation, Operation__unresolved, Py_NewRef(engine.zero));
  put(operation, Operation__launches, PyLong_FromLong(1 + self->awaited_count));
  put(operation, Operation__stream_waits, Py_NewRef(Py_None));
  if (self->dependencies && PyList_GET_SIZE(self->dependencies)) {
    put(operation, Operation__dependencies, self->dependencies);
    self->dependencies = NULL;
  }
  reserve(self);
  PyObject *event = shared ? shared : PyList_GET_ITEM(pool, last);
  if (!shared && record(self->calls, pointer(event, Event_handle), stream)) {
    *is_complete = false;
    put(operation, Operation__function, Py_NewRef(Py_None)); /* it is called: only the device's are */
    put(operation, Operation__arguments, Py_NewRef(engine.empty));
    put(operation, Operation__state, Py_NewRef(engine.issuing));
    put(queue, StreamQueue__issuing, Py_NewRef(operation));
    Py_DECREF(sequence_object);
    Py_DECREF(launched_object);
    return TAKEN;
  }
  *is_complete = true;
  if (shared) {
    put(event, Event_count, PyLong_FromLongLong(number(event, Event_count) + 1));
    Py_INCREF(event);
  } else {
    Py_SET_SIZE(pool, last); /* its reference goes to the operation */
    put(event, Event_count, Py_NewRef(engine.one));
  }
  put(operation, Operation__event, event);
  put(operation, Operation__sequence, sequence_object);
  put(operation, Operation__launched, launched_object);
  put(operation, Operation__state, Py_NewRef(engine.issued));
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
