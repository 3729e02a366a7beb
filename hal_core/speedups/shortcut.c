/* The callable that stands in for a method: the shortcut first, then the Python function.
 *
 * It behaves like a function in a class: it binds, it has the function's name, text and signature,
 * and `__wrapped__` is the function. */
#include "speedups.h"

#include <structmember.h>

struct shortcut {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  shortcut_function take;
  PyObject *function;
  PyObject *weak_references;
};

#define ENTRY(name) {#name, name##_shortcut},
static const struct {
  const char *name;
  shortcut_function take;
} known[] = {SHORTCUTS(ENTRY)};

static PyObject *call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names) {
  struct shortcut *self = (struct shortcut *)callable;
  PyObject *result = NULL;
  switch (self->take(args, PyVectorcall_NARGS(flags), names, &result)) {
    case TAKEN: return result;
    case RAISED: return NULL;
    case NOT_MINE: break;
  }
  return PyObject_Vectorcall(self->function, args, flags, names);
}

shortcut_function taken_by(PyObject *callable) {
  return Py_TYPE(callable) == &shortcut_type ? ((struct shortcut *)callable)->take : NULL;
}

/* Shortcut(name, function) */
static PyObject *shortcut_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  const char *name;
  PyObject *function;
  if (has_keywords(type, keywords)) return NULL;
  if (!PyArg_ParseTuple(args, "sO", &name, &function)) return NULL;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strcmp(known[i].name, name)) continue;
    struct shortcut *self = (struct shortcut *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->vectorcall = call;
    self->take = known[i].take;
    self->function = Py_NewRef(function);
    return (PyObject *)self;
  }
  return PyErr_Format(PyExc_ValueError, "there is no shortcut %s", name);
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(((struct shortcut *)object)->function);
  return 0;
}

static int clear(PyObject *object) {
  Py_CLEAR(((struct shortcut *)object)->function);
  return 0;
}

static void dealloc(PyObject *object) {
  PyObject_GC_UnTrack(object);
  if (((struct shortcut *)object)->weak_references) PyObject_ClearWeakRefs(object);
  clear(object);
  Py_TYPE(object)->tp_free(object);
}

static PyObject *bind(PyObject *self, PyObject *instance, PyObject *type) {
  (void)type;
  if (!instance || instance == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

/* What it has not of its own it takes from the function: __name__, __doc__, __class__ ... */
static PyObject *find(PyObject *self, PyObject *name) {
  static const char *const own[] = {"__wrapped__", "__get__", "__call__", "__reduce_ex__"};
  const char *text = PyUnicode_AsUTF8(name);
  if (!text) return NULL;
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    if (!strcmp(text, own[i])) return PyObject_GenericGetAttr(self, name);
  }
  return PyObject_GetAttr(((struct shortcut *)self)->function, name);
}

/* pydoc looks the docstring up as `object` does, past `find`. */
static PyObject *docstring(PyObject *self, void *unused) {
  (void)unused;
  return PyObject_GetAttrString(((struct shortcut *)self)->function, "__doc__");
}

static PyGetSetDef computed[] = {{"__doc__", docstring, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyObject *repr(PyObject *self) {
  return PyObject_Repr(((struct shortcut *)self)->function);
}

/* Pickled and copied by its name, as the function is. */
static PyObject *reduce(PyObject *self, PyObject *protocol) {
  (void)protocol;
  return PyObject_GetAttrString(((struct shortcut *)self)->function, "__qualname__");
}

static PyMethodDef methods[] = {
    {"__reduce_ex__", reduce, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"__wrapped__", T_OBJECT, offsetof(struct shortcut, function), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject shortcut_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hal._speedups.Shortcut",
    .tp_basicsize = sizeof(struct shortcut),
    .tp_vectorcall_offset = offsetof(struct shortcut, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_doc = PyDoc_STR("A method with a shortcut in C."),
    .tp_new = shortcut_new,
    .tp_dealloc = dealloc,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_descr_get = bind,
    .tp_getattro = find,
    .tp_repr = repr,
    .tp_members = members,
    .tp_methods = methods,
    .tp_getset = computed,
    .tp_weaklistoffset = offsetof(struct shortcut, weak_references),
};
