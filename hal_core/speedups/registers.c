/* Those who wait for a timeline's values (`hal._engine.timelines.Waiters`). All of it under the timeline lock.
 *
 * The keys are 2 * value for threads and callbacks, and 1 more for operations. Threads are told here, operations are
 * found by `find_waiting`, and everything else is left to Python. */
#include "issue.h"

#include <semaphore.h>

/* A key of the heap, which may be twice as large as a value: then no value here reaches it. */
static long long key_at(PyObject *keys, Py_ssize_t index) {
  int overflow;
  long long key = PyLong_AsLongLongAndOverflow(PyList_GET_ITEM(keys, index), &overflow);
  return overflow ? LLONG_MAX : key;
}

static PyObject *bucket_at(PyObject *waiters, Py_ssize_t index) {
  return PyDict_GetItemWithError(get(waiters, Waiters__buckets), PyList_GET_ITEM(get(waiters, Waiters__keys), index));
}

/* Remove the first key of the heap. */
static void pop_key(PyObject *waiters) {
  PyObject *key = PyObject_CallOneArg(engine.heappop, get(waiters, Waiters__keys));
  if (!key) PyErr_Clear();
  Py_XDECREF(key);
}

/* Return the first key whose bucket is there: the others linger. LLONG_MAX if there is none. */
static long long first_key(PyObject *waiters) {
  if (waiters == Py_None) return LLONG_MAX;
  PyObject *keys = get(waiters, Waiters__keys);
  while (PyList_GET_SIZE(keys) && !bucket_at(waiters, 0)) pop_key(waiters);
  return PyList_GET_SIZE(keys) ? key_at(keys, 0) : LLONG_MAX;
}

static bool are_threads(PyObject *bucket) {
  Py_ssize_t position = 0;
  PyObject *watcher, *index;
  while (PyDict_Next(bucket, &position, &watcher, &index))
    if (Py_TYPE(watcher) != engine.HostWaiter) return false;
  return true;
}

/* How many keys are told of one value. Each may be dropped later, and `struct drops` has room for so many. */
enum { MOST_TOLD = 64 };
_Static_assert(MOST_DROPS / 2 > (MOST_SIGNALS + 2) * MOST_TOLD + 128, "an operation tells more than can be dropped");

/* `may_tell` in the heap from `index` down, where at most `*room` keys are left to tell: there may be many keys above
 * `last`. */
static bool may_tell_below(PyObject *waiters, Py_ssize_t index, long long last, bool with_operations, int *room) {
  PyObject *keys = get(waiters, Waiters__keys), *bucket;
  if (index >= PyList_GET_SIZE(keys) || key_at(keys, index) > last) return true;
  if (!(*room)--) return false;
  if (key_at(keys, index) & 1 ? !with_operations : (bucket = bucket_at(waiters, index)) && !are_threads(bucket))
    return false;
  return may_tell_below(waiters, 2 * index + 1, last, with_operations, room) &&
         may_tell_below(waiters, 2 * index + 2, last, with_operations, room);
}

bool may_tell(PyObject *waiters, long long value, bool with_operations) {
  if (waiters == Py_None || !PyDict_GET_SIZE(get(waiters, Waiters__buckets))) return true;
  int room = MOST_TOLD;
  return value <= MOST_VALUE && may_tell_below(waiters, 0, 2 * value + 1, with_operations, &room);
}

/* What `Doorbell.ring` does. It blocks nobody, and runs no code. */
static void ring(PyObject *bell) {
  PyObject *mark = PyBytes_FromStringAndSize("x", 1);
  if (!mark || PySequence_SetItem(get(bell, Doorbell__flag), 0, mark) < 0) PyErr_Clear();
  Py_XDECREF(mark);
  sem_post(pointer(bell, Doorbell_argument));
}

static void tell_below(PyObject *waiters, Py_ssize_t index, long long last, struct drops *drops) {
  PyObject *keys = get(waiters, Waiters__keys);
  if (index >= PyList_GET_SIZE(keys) || key_at(keys, index) > last) return;
  PyObject *bucket = key_at(keys, index) & 1 ? NULL : bucket_at(waiters, index), *watcher, *number_of;
  Py_ssize_t position = 0;
  while (bucket && PyDict_Next(bucket, &position, &watcher, &number_of)) {
    long long missing = number(watcher, HostWaiter__missing) - 1;
    put(watcher, HostWaiter__missing, PyLong_FromLongLong(missing));
    if (missing > 0 || !is_true(watcher, HostWaiter__is_asleep)) continue;
    put(watcher, HostWaiter__is_asleep, Py_NewRef(Py_False));
    ring(get(watcher, HostWaiter__bell));
  }
  if (bucket) {
    drop_later(drops, Py_NewRef(bucket));
    if (PyDict_DelItem(get(waiters, Waiters__buckets), PyList_GET_ITEM(keys, index)) < 0) PyErr_Clear();
  }
  tell_below(waiters, 2 * index + 1, last, drops);
  tell_below(waiters, 2 * index + 2, last, drops);
}

void tell(PyObject *waiters, long long value, struct drops *drops) {
  if (waiters == Py_None || !PyDict_GET_SIZE(get(waiters, Waiters__buckets))) return;
  tell_below(waiters, 0, 2 * value + 1, drops);
  first_key(waiters); /* none lingers before the others */
}

bool is_wanted(PyObject *timeline, long long value) {
  return first_key(get(timeline, Timeline__reached)) <= 2 * value + 1;
}

bool want(PyObject *operation) {
  PyObject *queue = get(operation, Operation__queue);
  long long armed = number(get(queue, StreamQueue__notifier), Notifier_armed);
  if (!is_true(queue, StreamQueue__watched) || of_operation(operation)->sequence < armed) return false;
  PyObject *sequence = PyLong_FromLongLong(of_operation(operation)->sequence);
  int status = sequence ? PySet_Add(get(queue, StreamQueue__wanted), sequence) : -1;
  Py_XDECREF(sequence);
  if (!status) return true;
  PyErr_Clear();
  return false;
}

PyObject *new_register(void) {
  PyObject *made = engine.Waiters->tp_alloc(engine.Waiters, 0);
  if (!made) return NULL;
  *slot_of(made, Waiters__buckets) = PyDict_New();
  *slot_of(made, Waiters__keys) = PyList_New(0);
  if (!get(made, Waiters__buckets) || !get(made, Waiters__keys)) Py_CLEAR(made);
  return made;
}

PyObject *new_bucket(PyObject *waiter, Py_ssize_t index) {
  PyObject *bucket = PyDict_New(), *position = PyLong_FromSsize_t(index);
  if (!bucket || !position || PyDict_SetItem(bucket, waiter, position) < 0) Py_CLEAR(bucket);
  Py_XDECREF(position);
  return bucket;
}

bool add_bucket(PyObject *waiters, PyObject *key, PyObject *bucket) {
  if (PyDict_SetItem(get(waiters, Waiters__buckets), key, bucket) < 0) return false;
  PyObject *done = PyObject_CallFunctionObjArgs(engine.heappush, get(waiters, Waiters__keys), key, NULL);
  Py_XDECREF(done);
  return done;
}

/* Register a thread that counts what it waits for, unless it is there; false if that is not the plain case. */
static bool watch(PyObject *thread, PyObject *timepoint) {
  PyObject *timeline = get(timepoint, Timepoint__semaphore), *registered = get(thread, HostWaiter__registered);
  long long value = number(timepoint, Timepoint__value);
  if (!is_none(timeline, Timeline__failure) || number(timeline, Timeline__value) >= value || value > MOST_VALUE)
    return false;
  if (covering(timeline, value)) return false; /* the thread asks that */
  if (is_none(timeline, Timeline__reached)) {
    PyObject *made = new_register();
    if (!made) return false;
    put(timeline, Timeline__reached, made);
  }
  PyObject *waiters = get(timeline, Timeline__reached), *key = PyLong_FromLongLong(2 * value);
  PyObject *bucket = key ? PyDict_GetItemWithError(get(waiters, Waiters__buckets), key) : NULL;
  bool is_there = bucket && PyDict_GetItemWithError(bucket, thread);
  if (key && !bucket && (bucket = new_bucket(thread, PyList_GET_SIZE(registered)))) {
    is_there = !PyList_Append(registered, timepoint) && add_bucket(waiters, key, bucket);
    if (is_there) put(thread, HostWaiter__missing, PyLong_FromLongLong(number(thread, HostWaiter__missing) + 1));
    Py_DECREF(bucket);
  }
  Py_XDECREF(key);
  return is_there;
}

PyObject *watch_each(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *thread, *entries;
  Py_ssize_t next, end;
  if (!PyArg_ParseTuple(args, "O!O!nn", engine.HostWaiter, &thread, &PyList_Type, &entries, &next, &end)) return NULL;
  while (next < end && next < PyList_GET_SIZE(entries) && watch(thread, PyList_GET_ITEM(entries, next))) next++;
  PyErr_Clear();
  return PyLong_FromSsize_t(next);
}

bool find_waiting(PyObject *timeline, long long value, struct waiting *found) {
  PyObject *waiters = get(timeline, Timeline__recorded), *index;
  Py_ssize_t position = 0;
  long long key = first_key(waiters);
  if (key > 2 * value + 1) return false;
  *found = (struct waiting){.waiters = waiters, .key = PyList_GET_ITEM(get(waiters, Waiters__keys), 0)};
  found->bucket = bucket_at(waiters, 0);
  if (key & 1 && PyDict_Next(found->bucket, &position, &found->operation, &index))
    found->bit = integer(index) < MOST_BITS ? 1LL << integer(index) : 0;
  return true;
}

void leave_register(const struct waiting *found) {
  PyObject *bucket = Py_NewRef(found->bucket);
  if (PyDict_DelItem(bucket, found->operation) < 0) PyErr_Clear();
  if (!PyDict_GET_SIZE(bucket)) {
    if (PyDict_DelItem(get(found->waiters, Waiters__buckets), found->key) < 0) PyErr_Clear();
    pop_key(found->waiters);
  }
  Py_DECREF(bucket);
}
