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

/* What a method of the locks' type is in C; NULL if it is not of that kind. */
static PyCFunction function_of(PyTypeObject *type, const char *name, int flags) {
  PyCFunction found = NULL;
  PyObject *method = PyObject_GetAttrString((PyObject *)type, name);
  if (method && Py_TYPE(method) == &PyMethodDescr_Type) {
    const PyMethodDef *definition = ((PyMethodDescrObject *)method)->d_method;
    if (definition->ml_flags == flags) found = definition->ml_meth;
  }
  PyErr_Clear();
  Py_XDECREF(method); /* the type has it */
  return found;
}

/* The methods of a `threading.RLock`. Called by name they made a pair of alloca and dealloca, which takes
 * two locks twice, a tenth dearer. */
static struct {
  PyTypeObject *type;
  PyCFunctionWithKeywords acquire;
  PyCFunction release, is_owned;
} locks;

int use_lock(PyObject *lock) {
  PyTypeObject *type = Py_TYPE(lock);
  locks.acquire = (PyCFunctionWithKeywords)(void (*)(void))function_of(type, "acquire", METH_VARARGS | METH_KEYWORDS);
  locks.release = function_of(type, "release", METH_NOARGS);
  locks.is_owned = function_of(type, "_is_owned", METH_NOARGS);
  locks.type = locks.acquire && locks.release && locks.is_owned ? type : NULL;
  Py_XSETREF(engine.lock, Py_NewRef(lock));
  return 0;
}

/* Return whether the stack has room for what is called while a lock is held: nothing may fail there for
 * want of it (O3). A call by name would look, too. */
static bool has_stack(void) {
  if (Py_EnterRecursiveCall(" in a lock")) {
    PyErr_Clear();
    return false;
  }
  Py_LeaveRecursiveCall();
  return true;
}

bool enter_lock(PyObject *lock) {
  if (Py_TYPE(lock) == locks.type)
    return has_stack() && is_free(locks.is_owned(lock, NULL)) &&
           is_taken(locks.acquire(lock, engine.without_waiting, NULL));
  return is_free(PyObject_CallMethodNoArgs(lock, engine.is_owned)) &&
         is_taken(PyObject_CallMethodOneArg(lock, engine.acquire, Py_False));
}

void leave_lock(PyObject *lock) {
  PyObject *answer = Py_TYPE(lock) == locks.type ? locks.release(lock, NULL)
                                                 : PyObject_CallMethodNoArgs(lock, engine.release);
  if (!answer) PyErr_Clear(); /* it is ours, so it cannot fail */
  Py_XDECREF(answer);
}

bool enter(void) { return enter_lock(engine.lock); }

void leave(void) { leave_lock(engine.lock); }

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
