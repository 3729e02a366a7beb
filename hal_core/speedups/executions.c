/* Queue.execute: a recording without slots and temporaries, of one launch or fill, or as a graph (rule
 * C4). */
#include "arguments.h"

/* Return the instance that a stream launched last, borrowed; NULL if there is none. Only that one:
 * the Python engine knows when another stream may have it. */
static PyObject *instance_of(PyObject *pool, PyObject *stream) {
  PyObject *locked = PyObject_CallMethodNoArgs(get(pool, InstancePool__lock), names_of.locked);
  bool is_free = locked == Py_False; /* else a thread is just choosing one */
  Py_XDECREF(locked);
  PyObject *instances = get(pool, InstancePool__instances);
  for (Py_ssize_t i = 0; is_free && i < PyTuple_GET_SIZE(instances); i++) {
    PyObject *instance = PyTuple_GET_ITEM(instances, i);
    int same = PyObject_RichCompareBool(get(instance, Instance_stream), stream, Py_EQ); /* ints */
    if (same == 1 && !is_true(instance, Instance_broken))
      return instance;
  }
  return NULL;
}

/* Return what a weak reference refers to, a new reference; NULL if that is gone. */
static PyObject *referent(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject *found;
  if (PyWeakref_GetRef(reference, &found) < 0) PyErr_Clear();
  return found;
#else
  PyObject *found = PyWeakref_GetObject(reference); /* borrowed */
  return found == Py_None ? NULL : Py_XNewRef(found);
#endif
}

/* Return the lease of an instance, a new reference: it lives until all executions that hold it have
 * retired. The instance knows it weakly. */
static PyObject *lease_of(PyObject *instance, PyObject *fresh, PyObject *reference) {
  PyObject *known = referent(get(instance, Instance_lease));
  if (known) return known;
  put(fresh, Lease_instance, Py_NewRef(instance));
  PyObject *old = swap(instance, Instance_lease, Py_NewRef(reference));
  Py_XDECREF(old); /* a dead reference without a callback */
  return Py_NewRef(fresh);
}

/* Launch a graph: the lease stands among the operation's resources. */
static enum answer launch(PyObject *queue, PyObject *pool, PyObject *playback, PyObject *wait,
                          PyObject *signal, PyObject **result) {
  struct native_call call = {.kind = CALL_GRAPH};
  PyObject *fresh = engine.Lease->tp_alloc(engine.Lease, 0);
  PyObject *reference = fresh ? PyWeakref_NewRef(fresh, NULL) : NULL;
  PyObject *resources = PyTuple_New(2);
  enum answer answer = NOT_MINE;
  PyObject *instance = NULL;
  if (reference && resources) {
    *slot_of(fresh, Lease_instance) = Py_NewRef(Py_None);
    instance = instance_of(pool, get(queue, StreamQueue__stream));
  }
  if (instance) {
    PyTuple_SET_ITEM(resources, 0, Py_NewRef(playback));
    PyObject *lease = lease_of(instance, fresh, reference);
    PyTuple_SET_ITEM(resources, 1, lease);
    PyObject *handle = get(get(instance, Instance_graph), Handle_handle);
    call.graph = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(handle);
    answer = submit(queue, names_of.execute, &call, resources, wait, signal, result);
  }
  if (answer == NOT_MINE) PyErr_Clear();
  Py_XDECREF(resources);
  Py_XDECREF(reference);
  Py_XDECREF(fresh);
  return answer;
}

/* execute(queue, commands, *, bindings, wait, signal) */
enum answer execute_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  enum { BINDINGS, WAIT, SIGNAL, OPTIONS };
  static const int known[OPTIONS] = {NAME_bindings, NAME_wait, NAME_signal};
  PyObject *options[OPTIONS] = {NULL};
  if (count != 2 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  PyObject *queue = args[0], *commands = args[1];
  PyObject *device = device_of(queue);
  if (!device || !PyObject_TypeCheck(commands, engine.CommandBuffer)) return NOT_MINE;
  if (get(commands, CommandBuffer__device) != device || is_true(device, DeviceCore__closed)) return NOT_MINE;
  if (options[BINDINGS] && options[BINDINGS] != Py_None) return NOT_MINE;
  if (!is_none(commands, CommandBuffer__runs) || is_true(commands, CommandBuffer__failed)) return NOT_MINE;
  if (PyObject_Length(get(device, DeviceCore__access))) return NOT_MINE;
  PyObject *playback = get(commands, CommandBuffer__playback);
  if (playback == Py_None) return NOT_MINE;
  PyObject *plain = get(playback, Playback__plain);
  Py_INCREF(playback);
  enum answer answer = NOT_MINE;
  struct native_call call = {.kind = CALL_LAUNCH};
  if (Py_TYPE(plain) == engine.InstancePool) {
    answer = launch(queue, plain, playback, options[WAIT], options[SIGNAL], result);
  } else if ((Py_TYPE(plain) == engine.LaunchNode && read_launch(plain, &call)) ||
             (Py_TYPE(plain) == engine.FillNode && read_fill(plain, &call))) {
    answer = submit(queue, names_of.execute, &call, playback, options[WAIT], options[SIGNAL], result);
  }
  Py_DECREF(playback);
  return answer;
}
