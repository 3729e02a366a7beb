/* The making and the end of the objects that every submission makes, for their classes.
 *
 * `__slots__` gives a class `PyType_GenericAlloc` and a destructor that suits every class. For the objects of a
 * pair of alloca and dealloca these two take as many instructions as all that hal does. So a few objects that have
 * ended are kept, as Python keeps tuples and floats, and the next ones are made of them: as many as a step of a program
 * has at once, since each new one brings the collector's next run nearer. A subclass has
 * an allocator and a destructor of its own, and Python calls the destructor here for the part that it inherits.
 *
 * The rejected alternative, classes in C, would have every method and docstring of theirs here, too. */
#include "speedups.h"

enum { CLASS_COUNT = 6, MOST_KEPT = 1024 };

/* A class, and objects of it that have ended: they are untracked, and all their slots are empty. */
static struct shelf {
  PyTypeObject *type;
  enum slot released; /* while it is None, the finaliser has nothing to do; SLOT_COUNT if there is none */
  int count;
  PyObject *kept[MOST_KEPT];
} shelves[CLASS_COUNT];

static struct shelf *shelf_of(PyTypeObject *type) {
  for (int i = 0; i < CLASS_COUNT; i++)
    if (shelves[i].type == type) return &shelves[i];
  return NULL;
}

static PyObject *make(PyTypeObject *type, Py_ssize_t items) {
  struct shelf *shelf = shelf_of(type);
  if (!shelf || !shelf->count) return PyType_GenericAlloc(type, items);
  PyObject *self = PyObject_Init(shelf->kept[--shelf->count], type);
  PyObject_GC_Track(self);
  return self;
}

/* Run the finaliser of an object, unless it has nothing to do; false if the object lives on. */
static bool finalize(PyObject *self, const struct shelf *shelf) {
  if (shelf->released == SLOT_COUNT) return true;
  PyObject *held = get(self, shelf->released);
  if (held == Py_None) return true;
  PyObject_GC_Track(self); /* as Python's own destructor does: the finaliser may show it to others */
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return false;
  PyObject_GC_UnTrack(self);
  return true;
}

static void end(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self), *base = type;
  struct shelf *shelf;
  while (!(shelf = shelf_of(base))) base = base->tp_base;
  PyObject_GC_UnTrack(self);
  Py_TRASHCAN_BEGIN(self, end)
  if (base != type || finalize(self, shelf)) { /* Python has done so for a subclass */
    if (base->tp_weaklistoffset) PyObject_ClearWeakRefs(self);
    PyObject **slot = (PyObject **)(self + 1), **last = (PyObject **)((char *)self + base->tp_basicsize);
    for (; slot < last; slot++) Py_CLEAR(*slot);
    /* Python runs the finaliser of an object once: whatever is made of this one would end without. */
    if (base == type && shelf->count < MOST_KEPT && !PyObject_GC_IsFinalized(self)) {
      shelf->kept[shelf->count++] = self;
    } else {
      type->tp_free(self);
    }
    Py_DECREF(type);
  }
  Py_TRASHCAN_END
}

static int take_over(int index, PyTypeObject *type, enum slot released) {
  if (type->tp_alloc != PyType_GenericAlloc || type->tp_itemsize || type->tp_dictoffset || !PyType_IS_GC(type)) {
    PyErr_Format(PyExc_TypeError, "%s has more than slots", type->tp_name);
    return -1;
  }
  shelves[index] = (struct shelf){.type = type, .released = released};
  type->tp_alloc = make;
  type->tp_dealloc = end;
  return 0;
}

int recycle_objects(void) {
  const struct { PyTypeObject *type; enum slot released; } classes[CLASS_COUNT] = {
      {engine.Submission, SLOT_COUNT}, {engine.Transient, Storage__lease}, {engine.Buffer, SLOT_COUNT},
      {engine.Block, SLOT_COUNT},      {engine.BlockLease, SLOT_COUNT},         {engine.Timepoint, SLOT_COUNT},
  };
  if (shelves[0].type) return 0; /* hal is imported again: objects of the first classes may be alive */
  for (int i = 0; i < CLASS_COUNT; i++)
    if (take_over(i, classes[i].type, classes[i].released) < 0) return -1;
  return 0;
}
