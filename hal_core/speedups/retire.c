/* Retire what a stream has completed (`hal._engine.retiring`). */
#include "issue.h"

enum { MOST_DEPTH = 4 }; /* queues that wait for each other; longer chains are Python's, which needs no stack for them */

/* Return how many of the oldest operations have completed: a binary search, since a stream ends its
 * operations in order, from the index `next` on, and until `enough` are found. -1 if an event answers with an
 * error. */
static Py_ssize_t count_completed(struct calls *calls, PyObject *ring, Py_ssize_t length, Py_ssize_t next,
                                  Py_ssize_t enough) {
  Py_ssize_t low = 0, high = length; /* `low` have completed; that of index `high` has not */
  while (low < high && low < enough) {
    PyObject *operation = entry_of(ring, next);
    if (!operation) return -1;
    int status = ask(calls, operation);
    if (status == 0) {
      low = next + 1;
    } else if (status == calls->not_ready) {
      high = next;
    } else {
      return -1;
    }
    /* Both ends come before the middle: mostly nothing has ended, or all of it. */
    next = low == 1 && high == length ? length - 1 : low ? (low + high) / 2 : 0;
  }
  return low;
}

/* Raise a timeline's value; its passed points are dropped later. */
static bool advance(PyObject *timeline, PyObject *value, struct drops *drops) {
  if (!is_none(timeline, Timeline__failure)) return true;
  long long target = integer(value);
  if (target < number(timeline, Timeline__value)) return true;
  PyListObject *points = (PyListObject *)get(timeline, Timeline__points);
  Py_ssize_t count = Py_SIZE(points), passed = 0;
  while (passed < count && integer(PyTuple_GET_ITEM(points->ob_item[passed], 0)) <= target)
    passed++;
  if (drops->count + passed > MOST_DROPS / 2) return false;
  for (Py_ssize_t i = 0; i < passed; i++) drop_later(drops, points->ob_item[i]);
  memmove(points->ob_item, points->ob_item + passed, (size_t)(count - passed) * sizeof(PyObject *));
  Py_SET_SIZE(points, count - passed);
  if (target > number(timeline, Timeline__reserved)) put(timeline, Timeline__reserved, Py_NewRef(value));
  put(timeline, Timeline__value, Py_NewRef(value));
  tell(get(timeline, Timeline__recorded), target, drops);
  tell(get(timeline, Timeline__reached), target, drops);
  return true;
}

/* What is to be retired: a sequence, or one of these. */
enum { ALL = -1, SOME = 0 };

static bool retire_deep(PyObject *queue, struct drops *drops, long long wanted, bool is_known, int depth);

/* Return whether an operation is a dealloca that has given nothing back: `Deallocation._let_go` has it done. */
static bool is_late(PyObject *operation) {
  if (Py_TYPE(operation) != engine.Deallocation) return false;
  PyObject *storages = get(get(operation, Operation__resources), Give_storages);
  return !is_none(PyTuple_GET_ITEM(storages, 0), Storage__lease);
}

/* Return whether the oldest operation of a queue may retire, and nobody is to be told of it. */
static bool may_retire(PyObject *head, struct drops *drops, int depth) {
  if (get(head, Operation__state) != engine.issued || is_true(head, Operation__retired)) return false;
  if (number(head, Operation__unresolved) || is_late(head)) return false;
  PyObject *signals = get(head, Operation__signals);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(signals, i), *timeline = get(signal, Timepoint__semaphore);
    long long value = number(signal, Timepoint__value);
    if (!may_tell(get(timeline, Timeline__recorded), value, false)) return false;
    if (!may_tell(get(timeline, Timeline__reached), value, false)) return false;
  }
  PyObject *dependencies = get(head, Operation__dependencies);
  if (dependencies == Py_None) return true;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(dependencies); i++) {
    PyObject *other = PyList_GET_ITEM(dependencies, i);
    if (!is_true(other, Operation__retired)) {
      PyObject *queue = get(other, Operation__queue);
      if (get(queue, StreamQueue__context) !=
          get(get(head, Operation__queue), StreamQueue__context))
        return false; /* that device may be lost: the Python engine asks it */
      if (depth >= MOST_DEPTH) return false;
      retire_deep(queue, drops, of_operation(other)->sequence, false, depth + 1);
      if (!is_true(other, Operation__retired)) return false;
    }
    if (get(other, Operation__state) != engine.done) return false;
  }
  return true;
}

/* Set a slot, which mostly has that value. */
static void reset(PyObject *object, enum slot slot, PyObject *value, struct drops *drops) {
  if (get(object, slot) != value) drop_later(drops, swap(object, slot, Py_NewRef(value)));
}

static bool retire_head(PyObject *queue, PyObject *head, struct drops *drops) {
  PyObject *signals = get(head, Operation__signals);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(signals, i);
    if (!advance(get(signal, Timepoint__semaphore), get(signal, Timepoint__value), drops)) return false;
  }
  put(head, Operation__state, Py_NewRef(engine.done));
  of_queue(queue)->retired = of_operation(head)->launched;
  put(head, Operation__retired, Py_NewRef(Py_True));
  drop_later(drops, pop_first(get(queue, StreamQueue__ring)));
  /* What the event's holders held, and what the operation kept alive */
  release_event(get(queue, StreamQueue__context), get(head, Operation__event));
  reset(head, Operation__function, Py_None, drops);
  reset(head, Operation__resources, Py_None, drops);
  reset(head, Operation__arguments, engine.empty, drops);
  reset(head, Operation__waits, engine.empty, drops);
  reset(head, Operation__signals, engine.empty, drops);
  reset(head, Operation__dependencies, Py_None, drops);
  PyObject *private = get(head, Operation__private);
  if (private != Py_None)
    drop_later(drops, swap(get(private, Timepoint__semaphore), Timeline__owner, Py_NewRef(Py_None)));
  return true;
}

/* Retire what has completed; with `is_known` nobody asks whether what was `wanted` is complete, and what is behind it
 * may be left. */
static bool retire_deep(PyObject *queue, struct drops *drops, long long wanted, bool is_known, int depth) {
  PyObject *ring = get(queue, StreamQueue__ring), *context = get(queue, StreamQueue__context);
  Py_ssize_t length = PyObject_Length(ring);
  if (!length) return true;
  struct calls *calls = calls_of(queue);
  PyObject *pending = entry_of(get(queue, StreamQueue__backlog), 0);
  if (!calls || (pending && !is_held_back(pending))) return false; /* the room is for that one */
  if (!is_none(context, DeviceContext_lost) || PyDict_GET_SIZE(get(context, DeviceContext_starved)))
    return false;
  PyObject *head = entry_of(ring, 0);
  if (!head || is_true(head, Operation__retired)) return false; /* one was broken off */
  long long oldest = of_operation(head)->sequence;
  Py_ssize_t first = 0, enough = length;
  if (wanted == SOME) {
    /* Mostly the device is close behind the host, and a question costs as much as the work of several operations. */
    first = length - 1 - length / 4;
    enough = 2;
  } else if (wanted >= oldest && wanted < oldest + length) {
    first = (Py_ssize_t)(wanted - oldest);
    enough = first + 1;
  }
  bool is_there = is_known && wanted >= oldest && wanted < oldest + length;
  Py_ssize_t completed = is_there ? enough : count_completed(calls, ring, length, first, enough);
  if (completed < 0) return false;
  long long end = oldest + completed;
  bool is_done = true;
  while (is_done && (head = entry_of(ring, 0)) && of_operation(head)->sequence < end) {
    is_done = drops->count < MOST_DROPS / 2 && may_retire(head, drops, depth);
    /* A queue that it depends on may depend on this one, and have retired it. */
    if (is_done && !is_true(head, Operation__retired)) is_done = retire_head(queue, head, drops);
  }
  if (completed) {
    put(queue, StreamQueue__unanswered, Py_NewRef(engine.zero));
    PyObject *epoch = PyObject_New(PyObject, &PyBaseObject_Type);
    if (epoch) put(context, DeviceContext_epoch, epoch);
    else PyErr_Clear(); /* nothing starves here */
  }
  return is_done;
}

bool retire(PyObject *queue, struct drops *drops) { return retire_deep(queue, drops, ALL, false, 0); }

bool retire_some(PyObject *queue, struct drops *drops) { return retire_deep(queue, drops, SOME, false, 0); }

bool retire_completed(PyObject *operation, struct drops *drops) {
  return retire_deep(get(operation, Operation__queue), drops, of_operation(operation)->sequence, true, 0);
}

PyObject *retire_through(PyObject *module, PyObject *operation) {
  (void)module;
  struct drops drops;
  bool is_full = true;
  while (is_full && !is_true(operation, Operation__retired) && enter()) {
    drops.count = 0;
    retire_completed(operation, &drops);
    is_full = drops.count >= MOST_DROPS / 2;
    leave();
    drop_all(&drops);
  }
  return PyBool_FromLong(is_true(operation, Operation__retired));
}
