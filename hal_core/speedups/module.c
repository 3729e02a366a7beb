/* The extension module hal._speedups. Shortcuts for the engine's commonest calls; the Python engine
 * describes what they do, and does what they leave. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyMethodDef functions[] = {
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", 1);
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

PyMODINIT_FUNC PyInit__speedups(void)
{
    return PyModuleDef_Init(&definition);
}
