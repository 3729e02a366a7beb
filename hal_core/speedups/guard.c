/* The engine's locks, taken only if nobody has them. */
#include "speedups.h"

/* A lock is re-entrant, so it is asked first whether this thread holds it: a signal handler or a
 * finaliser that has interrupted the engine must not see what is half done there. Takes the answers'
 * references. */
static bool is_free(PyObject *is_owned) {
  Py_XDECREF(is_owned);
  return is_owned == Py_False;
}

static bool is_taken(PyObject *acquired) {
  Py_XDECREF(acquired);
  if (!acquired) PyErr_Clear();
  return acquired == Py_True;
}

bool enter(void) {
  return is_free(PyObject_CallNoArgs(engine.lock_is_owned)) &&
         is_taken(PyObject_CallOneArg(engine.lock_acquire, Py_False));
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

void drop_all(struct drops *drops) {
  int count = drops->count;
  drops->count = 0;
  for (int i = 0; i < count; i++) Py_DECREF(drops->objects[i]);
}
