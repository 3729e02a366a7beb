/* The timeline lock, taken only if nobody has it. */
#include "speedups.h"

/* The lock is re-entrant, so it is asked first whether this thread holds it: a signal handler or a
 * finaliser that has interrupted the engine must not see what is half done there. */
bool enter(void) {
  PyObject *answer = PyObject_CallNoArgs(engine.lock_is_owned);
  bool is_free = answer == Py_False;
  Py_XDECREF(answer);
  if (is_free) {
    answer = PyObject_CallOneArg(engine.lock_acquire, Py_False);
    is_free = answer == Py_True;
    Py_XDECREF(answer);
  }
  if (!is_free) PyErr_Clear();
  return is_free;
}

void leave(void) {
  PyObject *answer = PyObject_CallNoArgs(engine.lock_release);
  if (!answer) PyErr_Clear(); /* it is ours, so it cannot fail */
  Py_XDECREF(answer);
}

void drop_all(struct drops *drops) {
  int count = drops->count;
  drops->count = 0;
  for (int i = 0; i < count; i++) Py_DECREF(drops->objects[i]);
}
