/* The engine's classes, and where their slots are. */
#include "arguments.h"

#include <structmember.h>

Py_ssize_t slot_offsets[SLOT_COUNT];
struct engine engine;

/* Return the offset of a slot, by the descriptor that __slots__ made; -1 with an exception. */
static Py_ssize_t find_slot(PyTypeObject *type, const char *name) {
  PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
  if (!found) return -1;
  Py_ssize_t offset = -1;
  if (Py_TYPE(found) == &PyMemberDescr_Type) {
    const PyMemberDef *member = ((PyMemberDescrObject *)found)->d_member;
    if (member->type == T_OBJECT_EX) offset = member->offset;
  }
  Py_DECREF(found);
  if (offset < 0) PyErr_Format(PyExc_TypeError, "%s.%s is no slot", type->tp_name, name);
  return offset;
}

bool has_keywords(PyTypeObject *type, PyObject *keywords) {
  if (!keywords || !PyDict_GET_SIZE(keywords)) return false;
  PyErr_Format(PyExc_TypeError, "%s takes no keywords", type->tp_name);
  return true;
}

static PyObject *part(PyObject *parts, const char *name) {
  PyObject *found = PyDict_GetItemString(parts, name);
  if (!found) {
    PyErr_Format(PyExc_KeyError, "%s", name);
    return NULL;
  }
  return Py_NewRef(found);
}

static int long_part(PyObject *parts, const char *name, long *value) {
  PyObject *found = part(parts, name);
  if (!found) return -1;
  *value = PyLong_AsLong(found);
  Py_DECREF(found);
  return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Return a class by its name, a new reference, which is kept for good; NULL with an exception. */
static PyTypeObject *class_of(PyObject *classes, const char *name) {
  PyObject *found = PyDict_GetItemString(classes, name);
  if (found && PyType_Check(found)) return (PyTypeObject *)Py_NewRef(found);
  PyErr_Format(PyExc_TypeError, "the class %s is missing", name);
  return NULL;
}

#define SET(name)                                                                                  \
  if (!(engine.name = class_of(classes, #name))) return -1;
#define FIND(class, slot)                                                                          \
  if ((slot_offsets[class##_##slot] = find_slot(engine.class, #slot)) < 0) return -1;

#define SET_PART(name)                                                                             \
  if (!(engine.name = part(parts, #name))) return -1;
#define SET_NUMBER(name)                                                                           \
  if (long_part(parts, #name, &engine.name) < 0) return -1;

/* Take over hal.flow's classes (by name). Called once, if that is imported. */
int install_flow(PyObject *classes, PyObject *parts) {
  (void)parts;
  FLOW(SET, NO_SLOT)
  FLOW(NO_CLASS, FIND)
  engine.waiting = PyTuple_Pack(1, names_of.wait);
  return engine.waiting ? 0 : -1;
}

/* Take over hal.collectives' classes and functions (by name). Called once, if that is imported. */
int install_groups(PyObject *classes, PyObject *parts) {
  GROUP(SET, NO_SLOT)
  GROUP(NO_CLASS, FIND)
  if (!(engine.at_once = PyTuple_Pack(1, Py_False))) return -1;
  if (!(engine.settle = part(parts, "settle"))) return -1;
  return (engine.watched = part(parts, "watched")) ? 0 : -1;
}

/* Take over the engine's classes (by name) and other parts (by name). Called once. */
int install_engine(PyObject *classes, PyObject *parts) {
  if (intern_names() < 0 || set_codes(parts) < 0) return -1;
  CORE(SET, NO_SLOT)
  CORE(NO_CLASS, FIND)
  PARTS(SET_PART)
  NUMBERS(SET_NUMBER)
  if (!(engine.zero = PyLong_FromLong(0)) || !(engine.one = PyLong_FromLong(1))) return -1;
  if (!(engine.empty = PyTuple_New(0))) return -1;
  if (!(engine.append = PyUnicode_InternFromString("append"))) return -1;
  if (!(engine.popleft = PyUnicode_InternFromString("popleft"))) return -1;
  return recycle_objects();
}
