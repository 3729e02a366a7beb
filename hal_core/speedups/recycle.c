/* The making and the end of the objects that every submission makes, for their classes.
 *
 * `__slots__` gives a class `PyType_GenericAlloc` and a destructor that suits every class. For the objects of a
 * pair of alloca and dealloca these two take as many instructions as all that hal does. So a few objects that have
 * ended are kept, as Python keeps tuples and floats, and the next ones are made of them: as many as a step of a program
 * has at once, since each new one brings the collector's next run nearer. A kept object has the values that most
 * objects of its class begin and end with, so nobody clears those slots and sets them again. A subclass has
 * an allocator and a destructor of its own, and Python calls the destructor here for the part that it inherits.
 *
 * The rejected alternative, classes in C, would have every method and docstring of theirs here, too. */
#include "speedups.h"

enum { MOST_KEPT = 1024, MOST_PLACES = 32 };

/* Where the slots of a class are, counted in words behind an object's head. In front of them are numbers. */
struct places {
  int first, end;
};

/* A class, and objects of it that have ended: they are untracked, and their slots have the defaults. */
static struct shelf {
  PyTypeObject *type;
  struct places places;
  PyObject *defaults[MOST_PLACES];
  int count;
  PyObject *kept[MOST_KEPT];
} shelves[RECYCLED_COUNT];

static PyObject *const nothing[MOST_PLACES];

static struct shelf *shelf_of(PyTypeObject *type) {
  for (int i = 0; i < RECYCLED_COUNT; i++)
    if (shelves[i].type == type) return &shelves[i];
  return NULL;
}

static int place_at(Py_ssize_t offset) {
  return (int)((offset - (Py_ssize_t)sizeof(PyObject)) / (Py_ssize_t)sizeof(PyObject *));
}

static struct places places_of(PyTypeObject *type) {
  const PyTypeObject *base = type;
  while (base->tp_flags & Py_TPFLAGS_HEAPTYPE) base = base->tp_base; /* of `numbers.c`, or object */
  return (struct places){place_at(base->tp_basicsize), place_at(type->tp_basicsize)};
}

/* Set the slots of an object to other values, NULL for none, and its numbers to 0. */
static void fill(PyObject *self, struct places places, PyObject *const *values) {
  PyObject **slots = (PyObject **)(self + 1);
  if (places.first) of_operation(self)->sequence = of_operation(self)->launched = 0; /* no other class has numbers */
  for (int i = places.first; i < places.end; i++) {
    PyObject *old = slots[i];
    if (old == values[i]) continue;
    slots[i] = Py_XNewRef(values[i]);
    Py_XDECREF(old);
  }
}

PyObject *make_object(enum recycled class) {
  struct shelf *shelf = &shelves[class];
  PyObject *self;
  if (shelf->count) {
    self = PyObject_Init(shelf->kept[--shelf->count], shelf->type);
    PyObject_GC_Track(self);
  } else if ((self = PyType_GenericAlloc(shelf->type, 0))) {
    fill(self, shelf->places, shelf->defaults);
  }
  return self;
}

/* The same for Python, whose __init__ sets the slots. */
static PyObject *allocate(PyTypeObject *type, Py_ssize_t items) {
  struct shelf *shelf = shelf_of(type);
  if (!shelf) return PyType_GenericAlloc(type, items);
  PyObject *self = make_object((enum recycled)(shelf - shelves));
  if (self) fill(self, shelf->places, nothing);
  return self;
}

/* Run the finaliser of an object, unless it has nothing to do; false if the object lives on. */
static bool finalize(PyObject *self, const struct shelf *shelf) {
  if (!Py_TYPE(self)->tp_finalize) return true;
  if (shelf && get(self, Storage__lease) == Py_None) return true; /* among these classes, only Transient has one */
  PyObject_GC_Track(self); /* as Python's own destructor does: the finaliser may show it to others */
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return false;
  PyObject_GC_UnTrack(self);
  return true;
}

/* End an untracked object of a class, which may be that of a base. */
static void end_base(PyObject *self, PyTypeObject *base) {
  PyTypeObject *type = Py_TYPE(self);
  struct shelf *shelf = shelf_of(type); /* NULL for a subclass, and for the classes of an earlier import */
  if (base != type || finalize(self, shelf)) { /* Python has done so for a subclass */
    PyObject **references = base->tp_weaklistoffset ? (PyObject **)((char *)self + base->tp_weaklistoffset) : NULL;
    if (references && *references) PyObject_ClearWeakRefs(self);
    /* Python runs the finaliser of an object once: whatever is made of this one would end without. */
    bool is_kept = shelf && shelf->count < MOST_KEPT && !(type->tp_finalize && PyObject_GC_IsFinalized(self));
    struct places places = shelf ? shelf->places : places_of(base);
    fill(self, places, is_kept ? shelf->defaults : nothing);
    if (is_kept && shelf->count < MOST_KEPT) { /* others may have ended meanwhile */
      shelf->kept[shelf->count++] = self;
    } else {
      fill(self, places, nothing);
      type->tp_free(self);
    }
    Py_DECREF(type);
  }
}

static void end(PyObject *self) {
  PyTypeObject *base = Py_TYPE(self);
  while (base->tp_dealloc != end) base = base->tp_base;
  PyObject_GC_UnTrack(self);
  end_base(self, base);
}

/* The same for submissions, one of which is in every long chain: it ends without a deep stack. */
static void end_link(PyObject *self) {
  PyTypeObject *base = Py_TYPE(self);
  while (base->tp_dealloc != end_link) base = base->tp_base;
  PyObject_GC_UnTrack(self);
  Py_TRASHCAN_BEGIN(self, end_link)
  end_base(self, base);
  Py_TRASHCAN_END
}

/* Take over a class. If hal is imported again, objects of the classes of before may be alive; those that are kept are
 * dropped. */
static int take_over(struct shelf *shelf, PyTypeObject *type) {
  if (type->tp_alloc != PyType_GenericAlloc || type->tp_itemsize || type->tp_dictoffset || !PyType_IS_GC(type) ||
      place_at(type->tp_basicsize) > MOST_PLACES) {
    PyErr_Format(PyExc_TypeError, "%s has more than slots, or more than %d", type->tp_name, MOST_PLACES);
    return -1;
  }
  while (shelf->count) {
    PyObject *kept = shelf->kept[--shelf->count];
    fill(kept, shelf->places, nothing);
    shelf->type->tp_free(kept);
  }
  for (int i = 0; i < MOST_PLACES; i++) Py_CLEAR(shelf->defaults[i]);
  shelf->type = type;
  shelf->places = places_of(type);
  type->tp_alloc = allocate;
  type->tp_dealloc = shelf == &shelves[NEW_Submission] ? end_link : end;
  return 0;
}

int recycle_objects(void) {
#define TAKE_OVER(class)                                                                           \
  if (take_over(&shelves[NEW_##class], engine.class) < 0) return -1;
  RECYCLED(TAKE_OVER)
#undef TAKE_OVER
  const struct { enum recycled class; enum slot slot; PyObject *value; } defaults[] = {
      {NEW_Submission, Operation__function, Py_None},
      {NEW_Submission, Operation__arguments, engine.empty},
      {NEW_Submission, Operation__resources, Py_None},
      {NEW_Submission, Operation__waits, engine.empty},
      {NEW_Submission, Operation__state, engine.zero},
      {NEW_Submission, Operation__is_host, Py_False},
      {NEW_Submission, Operation__is_begun, Py_False},
      {NEW_Submission, Operation__launches, engine.one},
      {NEW_Submission, Operation__unresolved, engine.zero},
      {NEW_Submission, Operation__retired, Py_False},
      {NEW_Submission, Operation__private, Py_None},
      {NEW_Submission, Operation__shared, Py_None},
      {NEW_Submission, Operation__stream_waits, Py_None},
      {NEW_Submission, Operation__dependencies, Py_None},
      {NEW_Transient, Storage__lease, Py_None},
      {NEW_Transient, Storage_address, Py_None},
      {NEW_Transient, Storage_host_address, Py_None},
      {NEW_Transient, Storage_memory, engine.device_memory},
      {NEW_Transient, Storage_parts, Py_None},
      {NEW_Transient, Storage_source, Py_None},
      {NEW_Transient, Transient__most, engine.many_uses},
      {NEW_Transient, Transient_asked, Py_None},
      {NEW_Transient, Transient_error, Py_None},
      {NEW_Transient, Transient_index, engine.zero},
      {NEW_Transient, Transient_is_async, Py_True},
      {NEW_Transient, Transient_lent, Py_False},
      {NEW_Transient, Transient_pool, Py_None},
      {NEW_Transient, Transient_recordings, Py_None},
      {NEW_Transient, Transient_tried, Py_None},
      {NEW_Buffer, Extent__allocation, Py_None},
      {NEW_Buffer, Extent__denied, engine.zero},
      {NEW_Buffer, Extent__dtype, engine.bytes},
      {NEW_Buffer, Extent__is_part, Py_False},
      {NEW_Buffer, Extent__offset, engine.zero},
      {NEW_Block, Block_address, engine.zero},
      {NEW_Block, Block_memory, engine.device_memory},
      {NEW_Block, Block_index, engine.zero},
      {NEW_Block, Block_host_address, Py_None},
      {NEW_Block, Block_way, engine.async_way},
      {NEW_Block, Block_bucket, engine.no_bucket},
      {NEW_Block, Block_owner, Py_None},
      {NEW_Block, Block_lease, Py_None},
      {NEW_Block, Block_place, engine.zero},
      {NEW_Block, Block_view, Py_None},
      {NEW_Block, Block_writable, Py_True},
  };
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
    shelves[defaults[i].class].defaults[place_at(slot_offsets[defaults[i].slot])] = Py_NewRef(defaults[i].value);
  return 0;
}
