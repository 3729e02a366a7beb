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
  PyObject *keys = get(waiters, Waiters__keys), *key;
  if (PyList_GET_SIZE(keys) == 1) { /* mostly: each step of a program has a semaphore of its own */
    key = PyList_GET_ITEM(keys, 0);
    Py_SET_SIZE(keys, 0);
  } else if (!(key = PyObject_CallOneArg(engine.heappop, keys))) {
    PyErr_Clear();
  }
  Py_XDECREF(key);
}

/* Return the bucket of the first key that has one, borrowed: other keys linger. NULL if there is none. */
static PyObject *first_bucket(PyObject *waiters) {
  PyObject *bucket = NULL;
  if (waiters == Py_None) return NULL;
  while (PyList_GET_SIZE(get(waiters, Waiters__keys)) && !(bucket = bucket_at(waiters, 0))) pop_key(waiters);
  return bucket;
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

/* Tell in the heap from `index` down; whether there was somebody. */
static bool tell_below(PyObject *waiters, Py_ssize_t index, long long last, struct drops *drops) {
  PyObject *keys = get(waiters, Waiters__keys);
  if (index >= PyList_GET_SIZE(keys) || key_at(keys, index) > last) return false;
  PyObject *bucket = key_at(keys, index) & 1 ? NULL : bucket_at(waiters, index), *watcher, *number_of;
  Py_ssize_t position = 0;
  while (bucket && PyDict_Next(bucket, &position, &watcher, &number_of)) count_down(watcher);
  if (bucket) {
    drop_later(drops, Py_NewRef(bucket));
    if (PyDict_DelItem(get(waiters, Waiters__buckets), PyList_GET_ITEM(keys, index)) < 0) PyErr_Clear();
  }
  bool has_left = tell_below(waiters, 2 * index + 1, last, drops);
  return tell_below(waiters, 2 * index + 2, last, drops) || has_left || bucket;
}

void tell(PyObject *waiters, long long value, struct drops *drops) {
  if (waiters == Py_None || !PyDict_GET_SIZE(get(waiters, Waiters__buckets))) return;
  if (tell_below(waiters, 0, 2 * value + 1, drops)) first_bucket(waiters); /* none lingers before the others */
}

bool is_wanted(PyObject *timeline, long long value) {
  PyObject *waiters = get(timeline, Timeline__reached);
  return first_bucket(waiters) && key_at(get(waiters, Waiters__keys), 0) <= 2 * value + 1;
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
  /* A bucket whose key is not in the heap would be told of nothing. */
  if (!done && PyDict_DelItem(get(waiters, Waiters__buckets), key) < 0) PyErr_Clear();
  return done;
}

bool register_thread(PyObject *thread, PyObject *timepoint, enum slot until) {
  PyObject *timeline = get(timepoint, Timepoint__semaphore), *registered = get(thread, HostWaiter__registered);
  if (is_none(timeline, until)) {
    PyObject *made = new_register();
    if (!made) return false;
    put(timeline, until, made);
  }
  PyObject *waiters = get(timeline, until), *key = PyLong_FromLongLong(2 * number(timepoint, Timepoint__value));
  PyObject *bucket = key ? PyDict_GetItemWithError(get(waiters, Waiters__buckets), key) : NULL;
  bool is_there = bucket && PyDict_GetItemWithError(bucket, thread);
  if (!key || is_there || PyErr_Occurred()) {
    Py_XDECREF(key);
    return is_there;
  }
  PyObject *position = PyLong_FromSsize_t(PyList_GET_SIZE(registered));
  PyObject *missing = PyLong_FromLongLong(number(thread, HostWaiter__missing) + 1);
  bool is_done = position && missing && !PyList_Append(registered, timepoint);
  if (is_done && bucket) is_done = !PyDict_SetItem(bucket, thread, position);
  if (is_done && !bucket) {
    is_done = (bucket = new_bucket(thread, PyList_GET_SIZE(registered) - 1)) && add_bucket(waiters, key, bucket);
    Py_XDECREF(bucket);
  }
  if (is_done) put(thread, HostWaiter__missing, Py_NewRef(missing));
  Py_XDECREF(missing);
  Py_XDECREF(position);
  Py_DECREF(key);
  return is_done;
}

void count_down(PyObject *thread) {
  long long missing = number(thread, HostWaiter__missing) - 1;
  PyObject *left = PyLong_FromLongLong(missing);
  if (left) {
    put(thread, HostWaiter__missing, left);
  } else {
    PyErr_Clear();
    missing = 0; /* it is woken, and registers again */
  }
  if (missing > 0 || !is_true(thread, HostWaiter__is_asleep)) return;
  put(thread, HostWaiter__is_asleep, Py_NewRef(Py_False));
  ring(get(thread, HostWaiter__bell));
}

/* Return the entry that was put into a bucket first, as PyDict_Next does. */
static bool first_of(PyObject *bucket, PyObject **waiter, PyObject **index) {
  /* A bucket that is worked off has only holes in front of what was found last, and they are not gone through again:
   * 50,000 operations would take 50,000 times as long as one, squared. Nothing relies on the order, if it is of another
   * bucket that stood in the same place. */
  static PyObject *last; /* not kept */
  static Py_ssize_t place;
  Py_ssize_t next = bucket == last ? place : 0;
  if (!PyDict_Next(bucket, &next, waiter, index) && next) {
    next = 0;
    PyDict_Next(bucket, &next, waiter, index);
  }
  last = bucket;
  place = next ? next - 1 : 0;
  return next;
}

bool find_waiting(PyObject *timeline, long long value, struct waiting *found) {
  PyObject *waiters = get(timeline, Timeline__recorded), *bucket = first_bucket(waiters), *index;
  long long key = bucket ? key_at(get(waiters, Waiters__keys), 0) : LLONG_MAX;
  if (key > 2 * value + 1) return false;
  *found = (struct waiting){
      .waiters = waiters, .key = PyList_GET_ITEM(get(waiters, Waiters__keys), 0), .bucket = bucket};
  if (key & 1 && first_of(found->bucket, &found->operation, &index))
    found->bit = integer(index) < MOST_BITS ? 1LL << integer(index) : 0;
  return true;
}

void leave_register(const struct waiting *found) {
  if (PyDict_GET_SIZE(found->bucket) > 1) {
    if (PyDict_DelItem(found->bucket, found->operation) < 0) PyErr_Clear();
    return;
  }
  if (PyDict_DelItem(get(found->waiters, Waiters__buckets), found->key) < 0) PyErr_Clear();
  pop_key(found->waiters);
}
