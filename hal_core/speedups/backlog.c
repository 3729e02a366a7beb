/* Have an operation stand in line whose waits are not all recorded (`hal._engine.backlog`, "stand_in_line"). */
#include "arguments.h"
#include "issue.h"

/* What an operation takes to stand in line, made before the lock is taken. */
struct place {
  struct payload payload;
  PyObject *keys[MOST_WAITS];                            /* of each wait's bucket */
  PyObject *registers[MOST_WAITS], *buckets[MOST_WAITS]; /* of waits whose timelines have none; else NULL */
};

bool is_early(const struct issue *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->waits); i++) {
    PyObject *wait = PyTuple_GET_ITEM(self->waits, i);
    if (Py_TYPE(wait) == engine.Timepoint && is_unmet(wait)) return true;
  }
  return is_true(self->queue, StreamQueue__ordered) && PyObject_Length(get(self->queue, StreamQueue__backlog));
}

/* Return the bucket of those that wait for a value, borrowed; NULL if there is none. */
static PyObject *bucket_of(PyObject *timepoint, PyObject *key) {
  PyObject *waiters = get(get(timepoint, Timepoint__semaphore), Timeline__recorded);
  return waiters == Py_None ? NULL : PyDict_GetItemWithError(get(waiters, Waiters__buckets), key);
}

static PyObject *tuple_of(const unsigned long long *numbers, Py_ssize_t count) {
  PyObject *made = PyTuple_New(count);
  for (Py_ssize_t i = 0; made && i < count; i++) {
    PyObject *number = PyLong_FromUnsignedLongLong(numbers[i]);
    if (number) PyTuple_SET_ITEM(made, i, number);
    if (!number) Py_CLEAR(made);
  }
  return made;
}

/* Return a launch's arguments. Its parameters, which stand on the caller's stack, are copied to `*kept`. */
static PyObject *launch_arguments(const struct native_call *call, PyObject **kept) {
  Py_ssize_t count = call->launch.count;
  if (!(*kept = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)(sizeof(void *) + sizeof(uint64_t))))) return NULL;
  void **places = (void **)PyBytes_AS_STRING(*kept);
  uint64_t *values = (uint64_t *)(places + count);
  for (Py_ssize_t i = 0; i < count; i++) {
    memcpy(&values[i], call->launch.parameters[i], sizeof *values);
    places[i] = &values[i];
  }
  const unsigned *grid = call->launch.grid, *block = call->launch.block;
  return Py_BuildValue("K(III)(III)IK", (unsigned long long)(uintptr_t)call->launch.function, grid[0], grid[1],
                       grid[2], block[0], block[1], block[2], call->launch.shared,
                       (unsigned long long)(uintptr_t)places);
}

/* Return a call's arguments as the engine's function takes them, and what to keep for them besides, or NULL. */
static PyObject *arguments_of(const struct native_call *call, PyObject **kept) {
  switch (call->kind) {
    case CALL_LAUNCH: return launch_arguments(call, kept);
    case CALL_FILL:
      return tuple_of((unsigned long long[]){call->fill.address, call->fill.pattern, call->fill.width,
                                             call->fill.count}, 4);
    case CALL_COPY:
      return tuple_of((unsigned long long[]){call->copy.target, call->copy.source, call->copy.size}, 3);
    default: return Py_NewRef(engine.empty);
  }
}

/* Return resources, a tuple, and one more. */
static PyObject *and_one(PyObject *resources, PyObject *more) {
  Py_ssize_t count = PyTuple_GET_SIZE(resources);
  PyObject *all = PyTuple_New(count + 1);
  for (Py_ssize_t i = 0; all && i < count; i++) PyTuple_SET_ITEM(all, i, Py_NewRef(PyTuple_GET_ITEM(resources, i)));
  if (all) PyTuple_SET_ITEM(all, count, Py_NewRef(more));
  return all;
}

static bool make_call_of(struct payload *made, const struct native_call *call, PyObject *resources) {
  PyObject *kept = NULL;
  made->function = Py_NewRef(call->function);
  made->arguments = arguments_of(call, &kept);
  if (made->arguments) made->resources = kept ? and_one(resources, kept) : Py_NewRef(resources);
  Py_XDECREF(kept);
  return made->resources;
}

static bool make(struct place *place, const struct issue *self, const struct native_call *call, PyObject *resources) {
  bool is_made = call->playback ? make_payload(call, resources, &place->payload)
                                : make_call_of(&place->payload, call, resources);
  for (Py_ssize_t i = 0; is_made && i < PyTuple_GET_SIZE(self->waits); i++) {
    PyObject *wait = PyTuple_GET_ITEM(self->waits, i);
    if (Py_TYPE(wait) != engine.Timepoint) return false; /* a submission's semaphore is made when it is needed */
    if (number(wait, Timepoint__value) > MOST_VALUE) return false;
    PyObject *key = place->keys[i] = PyLong_FromLongLong(2 * number(wait, Timepoint__value) + 1);
    if (!key) return false;
    if (!is_unmet(wait) || bucket_of(wait, key)) continue;
    place->buckets[i] = new_bucket(self->operation, i);
    is_made = place->buckets[i];
    if (is_made && is_none(get(wait, Timepoint__semaphore), Timeline__recorded))
      is_made = (place->registers[i] = new_register());
  }
  return is_made;
}

static void drop(struct place *place) {
  Py_XDECREF(place->payload.function);
  Py_XDECREF(place->payload.arguments);
  Py_XDECREF(place->payload.resources);
  for (int i = 0; i < MOST_WAITS; i++) {
    Py_XDECREF(place->keys[i]);
    Py_XDECREF(place->registers[i]);
    Py_XDECREF(place->buckets[i]);
  }
}

/* Return whether an operation can be registered for a wait, or need not be: `*is_held` tells. */
static bool may_register(const struct issue *self, const struct place *place, Py_ssize_t index, bool *is_held) {
  PyObject *wait = PyTuple_GET_ITEM(self->waits, index), *timeline = get(wait, Timepoint__semaphore);
  long long value = number(wait, Timepoint__value);
  if (!is_none(timeline, Timeline__failure) || waits_for_itself(self, timeline, value)) return false;
  for (Py_ssize_t i = 0; i < index; i++)
    if (get(PyTuple_GET_ITEM(self->waits, i), Timepoint__semaphore) == timeline) return false;
  *is_held = is_unmet(wait);
  bool has_register = place->registers[index] || !is_none(timeline, Timeline__recorded);
  if (*is_held) return bucket_of(wait, place->keys[index]) || (place->buckets[index] && has_register);
  if (number(timeline, Timeline__value) >= value) return true;
  PyObject *other = get(covering(timeline, value), Operation__queue);
  return get(other, StreamQueue__domain) == get(self->queue, StreamQueue__domain);
}

/* Return whether an operation that waits for nothing is to be issued by the thread that issues those before it. */
static bool is_behind(PyObject *queue) {
  if (!is_true(queue, StreamQueue__ordered)) return false;
  if (!is_none(queue, StreamQueue__issuing)) return true; /* the thread that has the baton looks again */
  PyObject *first = entry_of(get(queue, StreamQueue__backlog), 0);
  return first && is_held_back(first);
}

/* Register an operation for a wait; false without memory. */
static bool register_for(PyObject *operation, PyObject *wait, struct place *place, Py_ssize_t index) {
  PyObject *timeline = get(wait, Timepoint__semaphore), *bucket = bucket_of(wait, place->keys[index]);
  if (bucket) {
    PyObject *position = PyLong_FromSsize_t(index);
    bool is_done = position && !PyDict_SetItem(bucket, operation, position);
    Py_XDECREF(position);
    return is_done;
  }
  if (is_none(timeline, Timeline__recorded)) {
    put(timeline, Timeline__recorded, place->registers[index]);
    place->registers[index] = NULL;
  }
  return add_bucket(get(timeline, Timeline__recorded), place->keys[index], place->buckets[index]);
}

/* Take back a registration, if there is one. */
static void forget(PyObject *operation, PyObject *wait, PyObject *key) {
  PyObject *bucket = bucket_of(wait, key);
  if (!bucket) return;
  if (PyDict_DelItem(bucket, operation) < 0) PyErr_Clear();
  PyObject *buckets = get(get(get(wait, Timepoint__semaphore), Timeline__recorded), Waiters__buckets);
  if (!PyDict_GET_SIZE(bucket) && PyDict_DelItem(buckets, key) < 0) PyErr_Clear(); /* the key lingers in the heap */
}

/* Register for the waits whose bits are set, and take a place in the queue's line; false without memory, and then
 * nothing is left. */
static bool take_place(const struct issue *self, struct place *place, long long unresolved) {
  PyObject *queue = self->queue, *operation = self->operation;
  Py_ssize_t count = PyTuple_GET_SIZE(self->waits);
  bool is_done = true;
  for (Py_ssize_t i = 0; is_done && i < count; i++)
    if (unresolved >> i & 1) is_done = register_for(operation, PyTuple_GET_ITEM(self->waits, i), place, i);
  if (is_done)
    is_done = is_true(queue, StreamQueue__ordered) ? append_to(get(queue, StreamQueue__backlog), operation)
                                                   : !PyDict_SetItem(get(queue, StreamQueue__pending), operation, Py_None);
  if (is_done) return true;
  /* Python submits another operation: this one, half registered, would wait in its line for ever. */
  PyErr_Clear();
  for (Py_ssize_t i = 0; i < count; i++) forget(operation, PyTuple_GET_ITEM(self->waits, i), place->keys[i]);
  return false;
}

/* Join the line; false if that is not the plain case. Under the lock. */
static bool join(struct issue *self, struct place *place) {
  PyObject *queue = self->queue, *operation = self->operation;
  if (PyDict_GET_SIZE(engine.put_off) || is_true(queue, StreamQueue__closed)) return false;
  if (!is_none(self->context, DeviceContext_lost) || !may_reserve(self)) return false;
  long long unresolved = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->waits); i++) {
    bool is_held = false;
    if (!may_register(self, place, i, &is_held)) return false;
    if (is_held) unresolved |= 1LL << i;
  }
  if (!unresolved && !is_behind(queue)) return false;
  PyObject *bits = PyLong_FromLongLong(unresolved);
  if (!bits) return false;
  put(operation, Operation__unresolved, bits);
  if (!take_place(self, place, unresolved)) return false;
  put(operation, Operation__function, Py_NewRef(place->payload.function));
  put(operation, Operation__arguments, Py_NewRef(place->payload.arguments));
  put(operation, Operation__waits, Py_NewRef(self->waits));
  PyObject *old = swap(operation, Operation__resources, Py_NewRef(place->payload.resources));
  Py_DECREF(old); /* the caller has it, too */
  return true;
}

void leave_line(const struct issue *self) {
  PyObject *queue = self->queue;
  if (self->waiting.operation) leave_register(&self->waiting);
  if (is_true(queue, StreamQueue__ordered)) {
    Py_XDECREF(pop_first(get(queue, StreamQueue__backlog))); /* the caller has it, too */
  } else if (PyDict_DelItem(get(queue, StreamQueue__pending), self->operation) < 0) {
    PyErr_Clear();
  }
}

enum answer stand_in_line(struct issue *self, const struct native_call *call, PyObject *resources,
                          struct effect *effect) {
  struct place place = {NULL};
  enum answer answer = NOT_MINE;
  if (make(&place, self, call, resources) && (!effect->lock || enter_lock(effect->lock))) {
    if (enter()) {
      if ((!effect->may || effect->may(effect, self)) && join(self, &place)) {
        answer = TAKEN;
        if (effect->apply) effect->apply(effect, self->operation, NULL);
      }
      leave();
    }
    if (effect->lock) leave_lock(effect->lock);
  }
  PyErr_Clear();
  drop(&place);
  return answer;
}
