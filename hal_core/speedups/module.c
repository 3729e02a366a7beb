/* The extension module hal._speedups: what hal._devices.shortcuts sets up.
 * HAL_SOURCES, the checksum of the sources, comes from hatch_build.py. */
#include "arguments.h"

static PyObject *install_by(PyObject *args, int (*install)(PyObject *classes, PyObject *parts)) {
  PyObject *classes, *parts;
  if (!PyArg_ParseTuple(args, "O!O!", &PyDict_Type, &classes, &PyDict_Type, &parts)) return NULL;
  if (install(classes, parts) < 0) return NULL;
  Py_RETURN_NONE;
}

/* install, install_flow and install_groups(classes, parts): take over classes, and the engine's lock and constants. */
#define INSTALL(name, what)                                                                        \
  static PyObject *name(PyObject *module, PyObject *args) {                                        \
    (void)module;                                                                                  \
    return install_by(args, what);                                                                 \
  }
INSTALL(install, install_engine)
INSTALL(install_tracking, install_flow)
INSTALL(install_gathering, install_groups)


/* use_lock(lock): use another timeline lock, that of a forked child. */
static PyObject *replace_lock(PyObject *module, PyObject *lock) {
  (void)module;
  if (use_lock(lock) < 0) return NULL;
  Py_RETURN_NONE;
}

/* settle(event): record an event that was put off; false if that failed. */
static PyObject *settle_one(PyObject *module, PyObject *event) {
  (void)module;
  return PyBool_FromLong(settle(event));
}

/* ask(event): whether the stream has ended all that an event was put off for; None if Python is to ask the event. */
static PyObject *ask_one(PyObject *module, PyObject *event) {
  (void)module;
  PyObject *queue = get(event, Event_due);
  const struct calls *calls = queue == Py_None ? NULL : calls_of(queue);
  int status = calls ? ask_stream(calls, event) : -1;
  if (!calls || (status && status != calls->not_ready)) Py_RETURN_NONE;
  return PyBool_FromLong(!status);
}

/* settle_all(queues): record those that were put off on queues. */
static PyObject *settle_each(PyObject *module, PyObject *queues) {
  (void)module;
  return PyBool_FromLong(settle_all(queues));
}

static PyMethodDef functions[] = {
    {"ask", ask_one, METH_O, PyDoc_STR("Ask the stream for an event that was put off.")},
    {"install", install, METH_VARARGS, PyDoc_STR("Take over the engine's classes and constants.")},
    {"install_flow", install_tracking, METH_VARARGS, PyDoc_STR("Take over hal.flow's classes.")},
    {"install_groups", install_gathering, METH_VARARGS, PyDoc_STR("Take over hal.collectives' classes.")},
    {"release", release_some, METH_VARARGS, PyDoc_STR("Issue what waits for a value.")},
    {"retire", retire_through, METH_O, PyDoc_STR("Retire an operation whose event is complete.")},
    {"settle", settle_one, METH_O, PyDoc_STR("Record an event that was put off.")},
    {"settle_all", settle_each, METH_O, PyDoc_STR("Record the events that were put off on queues.")},
    {"sleep_at", (PyCFunction)(void (*)(void))sleep_at, METH_FASTCALL, PyDoc_STR("Sleep at a POSIX semaphore.")},
    {"use_lock", replace_lock, METH_O, PyDoc_STR("Use another timeline lock.")},
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *module) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) { /* `engine` is the main one's */
    PyErr_SetString(PyExc_ImportError, "hal._speedups is for the main interpreter only");
    return -1;
  }
  if (PyModule_AddIntConstant(module, "sources", HAL_SOURCES) < 0) return -1;
  PyTypeObject *types[] = {&operation_numbers_type, &queue_numbers_type, &books_numbers_type, &calls_type, &meeting_type,
                           &owned_lock_type, &packer_type, &rebinder_type, &shortcut_type};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (PyModule_AddType(module, types[i]) < 0) return -1;
  return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, set_up},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "hal._speedups",
    .m_doc = "Shortcuts for the engine's commonest calls.",
    .m_size = 0,
    .m_methods = functions,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__speedups(void) { return PyModuleDef_Init(&definition); }
