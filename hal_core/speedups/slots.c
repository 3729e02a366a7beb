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

/* Take over hal.flow's classes (by name). Called once, if that is imported. */
int install_flow(PyObject *classes) {
  FLOW_CLASSES(SET)
  FLOW_SLOTS(FIND)
  engine.waiting = PyTuple_Pack(1, names_of.wait);
  return engine.waiting ? 0 : -1;
}

/* Take over hal.collectives' classes and functions (by name). Called once, if that is imported. */
int install_groups(PyObject *classes, PyObject *parts) {
  GROUP_CLASSES(SET)
  GROUP_SLOTS(FIND)
  if (!(engine.at_once = PyTuple_Pack(1, Py_False))) return -1;
  if (!(engine.settle = part(parts, "settle"))) return -1;
  return (engine.watched = part(parts, "watched")) ? 0 : -1;
}

/* Take over the engine's classes (by name) and other parts (by name). Called once. */
int install_engine(PyObject *classes, PyObject *parts) {
  CORE_CLASSES(SET)
  CORE_SLOTS(FIND)
  PyObject *lock = part(parts, "lock");
  if (!lock || use_lock(lock) < 0) return -1;
  Py_DECREF(lock);
  if (!(engine.complete_issue = part(parts, "complete_issue"))) return -1;
  if (!(engine.take_back = part(parts, "take_back"))) return -1;
  if (!(engine.go_on = part(parts, "go_on"))) return -1;
  if (!(engine.harvest_some = part(parts, "harvest_some"))) return -1;
  if (!(engine.issue_ready = part(parts, "issue_ready"))) return -1;
  if (!(engine.release_again = part(parts, "release_again"))) return -1;
  if (!(engine.release_some = part(parts, "release_some"))) return -1;
  if (!(engine.want = part(parts, "want"))) return -1;
  if (!(engine.sleep = part(parts, "sleep"))) return -1;
  if (!(engine.wait_all = part(parts, "wait_all"))) return -1;
  if (!(engine.act = part(parts, "act"))) return -1;
  if (!(engine.put_last = part(parts, "put_last"))) return -1;
  if (!(engine.nothing = part(parts, "nothing"))) return -1;
  if (!(engine.leave = part(parts, "leave"))) return -1;
  if (!(engine.bells = part(parts, "bells"))) return -1;
  if (!(engine.prepare = part(parts, "prepare"))) return -1;
  if (!(engine.put_off = part(parts, "put_off"))) return -1;
  if (!(engine.heappop = part(parts, "heappop"))) return -1;
  if (!(engine.heappush = part(parts, "heappush"))) return -1;
  if (!(engine.issued = part(parts, "issued"))) return -1;
  if (!(engine.issuing = part(parts, "issuing"))) return -1;
  if (!(engine.done = part(parts, "done"))) return -1;
  if (!(engine.async_way = part(parts, "async_way"))) return -1;
  if (!(engine.cached_way = part(parts, "cached_way"))) return -1;
  if (!(engine.device_memory = part(parts, "device_memory"))) return -1;
  if (!(engine.host_memory = part(parts, "host_memory"))) return -1;
  if (!(engine.held = part(parts, "held"))) return -1;
  if (!(engine.no_bucket = part(parts, "no_bucket"))) return -1;
  if (!(engine.gone = part(parts, "gone"))) return -1;
  if (!(engine.many_uses = part(parts, "many_uses"))) return -1;
  if (!(engine.bytes = part(parts, "bytes"))) return -1;
  if (!(engine.deallocated = part(parts, "deallocated"))) return -1;
  if (!(engine.zero = PyLong_FromLong(0)) || !(engine.one = PyLong_FromLong(1))) return -1;
  if (!(engine.empty = PyTuple_New(0))) return -1;
  if (!(engine.append = PyUnicode_InternFromString("append"))) return -1;
  if (!(engine.popleft = PyUnicode_InternFromString("popleft"))) return -1;
  if (long_part(parts, "denied_read", &engine.denied_read) < 0) return -1;
  if (long_part(parts, "denied_write", &engine.denied_write) < 0) return -1;
  if (long_part(parts, "denied_source", &engine.denied_source) < 0) return -1;
  if (long_part(parts, "denied_target", &engine.denied_target) < 0) return -1;
  if (long_part(parts, "alignment", &engine.alignment) < 0) return -1;
  if (long_part(parts, "large", &engine.large) < 0) return -1;
  if (long_part(parts, "recent", &engine.recent) < 0) return -1;
  if (long_part(parts, "budget", &engine.budget) < 0) return -1;
  if (long_part(parts, "chunk", &engine.chunk) < 0) return -1;
  if (long_part(parts, "small", &engine.small) < 0) return -1;
  if (long_part(parts, "part", &engine.part) < 0) return -1;
  if (long_part(parts, "most_blocks", &engine.most_blocks) < 0) return -1;
  if (long_part(parts, "most_blocks_yz", &engine.most_blocks_yz) < 0) return -1;
  if (long_part(parts, "harvest_mask", &engine.harvest_mask) < 0) return -1;
  return recycle_objects();
}
