/* A recording that is replayed on a stream, by a list of its nodes (rule C4). */
#include "arguments.h"

bool read_node(PyObject *node, struct native_call *call) {
  PyTypeObject *type = Py_TYPE(node);
  if (type == engine.FillNode) return read_fill(node, call);
  if (type == engine.CopyNode || type == engine.HostCopyNode) return read_copy(node, call);
  if (type != engine.LaunchNode) return false;
  read_launch(node, call);
  return call->launch.grid[0] && call->launch.grid[1] && call->launch.grid[2];
}

/* replay(stream, nodes, start, end): make the calls of nodes from `start` on, up to the first that has no function
 * here or fails, and return its place: Python makes that one. In parts, since the interpreter lock is let go. */
PyObject *replay(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  enum { STREAM, NODES, START, END, COUNT, PART = 32 };
  if (count != COUNT || !PyList_CheckExact(args[NODES])) {
    PyErr_SetString(PyExc_TypeError, "replay takes a stream, a list of nodes, a start and an end");
    return NULL;
  }
  void *stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(args[STREAM]);
  Py_ssize_t next = PyLong_AsSsize_t(args[START]), end = PyLong_AsSsize_t(args[END]);
  if (PyErr_Occurred()) return NULL;
  const struct calls *calls = usable_calls(object);
  struct native_call part[PART];
  int made = calls ? PART : 0;
  while (made == PART) {
    int length = 0;
    while (length < PART && next + length < end && next + length < PyList_GET_SIZE(args[NODES]) &&
           read_node(PyList_GET_ITEM(args[NODES], next + length), &part[length]))
      length++;
    made = 0;
    Py_BEGIN_ALLOW_THREADS
    while (made < length && !make_call(calls, &part[made], stream)) made++;
    Py_END_ALLOW_THREADS
    next += made;
  }
  return PyLong_FromSsize_t(next);
}
