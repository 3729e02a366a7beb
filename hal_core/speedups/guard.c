/* The engine's locks, taken only if nobody has them, and its deques. */
#include "speedups.h"

/* A lock is re-entrant, so it is asked first whether this thread holds it: a signal handler or a
 * finaliser that has interrupted the engine must not see what is half done there. Takes the answers'
 * references. */
static bool is_free(PyObject *is_owned) {
  Py_XDECREF(is_owned);
  if (!is_owned) PyErr_Clear(); /* in a forked child */
  return is_owned == Py_False;
}

static bool is_taken(PyObject *acquired) {
  Py_XDECREF(acquired);
  if (!acquired) PyErr_Clear();
  return acquired == Py_True;
}

bool enter(void) {
  return is_free(PyObject_CallNoArgs(engine.lock_is_owned)) &&
         is_taken(PyObject_Call(engine.lock_acquire, engine.without_waiting, NULL));
}

void leave(void) {
  PyObject *answer = PyObject_CallNoArgs(engine.lock_release);
  if (!answer) PyErr_Clear(); /* it is ours, so it cannot fail */
  Py_XDECREF(answer);
}

bool enter_lock(PyObject *lock) {
  return is_free(PyObject_CallMethodNoArgs(lock, engine.is_owned)) &&
         is_taken(PyObject_CallMethodOneArg(lock, engine.acquire, Py_False));
}

void leave_lock(PyObject *lock) {
  PyObject *answer = PyObject_CallMethodNoArgs(lock, engine.release);
  if (!answer) PyErr_Clear();
  Py_XDECREF(answer);
}

enum answer leave_to_python(PyObject *function, PyObject *first, PyObject *second) {
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  for (int i = 0; i < 2; i++) {
    PyObject *done = PyObject_CallFunctionObjArgs(function, first, second, NULL);
    if (done) {
      Py_DECREF(done);
      break;
    }
    if (type) {
      PyErr_Clear();
    } else {
      PyErr_Fetch(&type, &error, &trace);
    }
  }
  if (!type) return TAKEN;
  PyErr_Restore(type, error, trace);
  return RAISED;
}

void drop_all(struct drops *drops) {
  int count = drops->count;
  drops->count = 0;
  for (int i = 0; i < count; i++) Py_DECREF(drops->objects[i]);
}

PyObject *first_of(PyObject *deque) {
  if (!PyObject_Length(deque)) return NULL;
  PyObject *first = PySequence_GetItem(deque, 0);
  if (!first) PyErr_Clear();
  Py_XDECREF(first);
  return first;
}
