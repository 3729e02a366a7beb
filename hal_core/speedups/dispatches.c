/* Queue.dispatch: a launch whose grid and block are numbers, and whose arguments are buffers of the
 * device and plain numbers (rule C5). The driver copies the parameters during the launch, so they
 * stand on the stack. */
#include "arguments.h"
#include "tracking.h"

enum { MOST_PARAMETERS = 48 };

/* One parameter of a signature. */
struct parameter {
  char code;        /* of `struct`; 'P' is a pointer */
  PyObject *dtypes; /* that surely fit a pointer, a tuple; NULL if all do */
  uintptr_t mask;   /* the bits of its address that must be 0 */
  long denied;      /* the rights that its buffer needs */
};

struct packer {
  PyObject_HEAD
  Py_ssize_t count, pointers;
  PyObject *given; /* by what the block of the last dispatch was given, or NULL: a packer is one kernel's */
  unsigned block[3];
  struct parameter parameters[MOST_PARAMETERS];
};

/* Packer(((code, dtypes or None, mask, denied), ...)) */
static PyObject *packer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  PyObject *given;
  if (has_keywords(type, keywords)) return NULL;
  if (!PyArg_ParseTuple(args, "O!", &PyTuple_Type, &given)) return NULL;
  if (PyTuple_GET_SIZE(given) > MOST_PARAMETERS)
    return PyErr_Format(PyExc_ValueError, "at most %d parameters", MOST_PARAMETERS);
  struct packer *self = (struct packer *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++) {
    struct parameter *parameter = &self->parameters[i];
    const char *code;
    PyObject *dtypes;
    unsigned long long mask;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, i), "sOKl", &code, &dtypes, &mask, &parameter->denied)) {
      Py_DECREF(self);
      return NULL;
    }
    parameter->code = code[0];
    parameter->mask = (uintptr_t)mask;
    parameter->dtypes = PyTuple_CheckExact(dtypes) ? Py_NewRef(dtypes) : NULL;
    self->pointers += code[0] == 'P';
    self->count = i + 1;
  }
  return (PyObject *)self;
}

static void packer_dealloc(PyObject *object) {
  struct packer *self = (struct packer *)object;
  for (Py_ssize_t i = 0; i < self->count; i++) Py_XDECREF(self->parameters[i].dtypes);
  Py_XDECREF(self->given);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject packer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hal._speedups.Packer",
    .tp_basicsize = sizeof(struct packer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = PyDoc_STR("The parameters of a signature, as a dispatch packs them."),
    .tp_new = packer_new,
    .tp_dealloc = packer_dealloc,
};

/* The packed arguments of a launch. */
struct packed {
  uint64_t values[MOST_PARAMETERS];
  void *places[MOST_PARAMETERS];
};

/* Pack the arguments; their storages are added to `used`, and tracked buffers to the uses. */
static bool pack_all(const struct packer *packer, PyObject *device, PyObject *arguments,
                     struct packed *packed, PyObject *used, struct uses *uses) {
  PyObject **items = PyTuple_CheckExact(arguments) ? ((PyTupleObject *)arguments)->ob_item
                                                   : ((PyListObject *)arguments)->ob_item;
  Py_ssize_t pointers = 0;
  for (Py_ssize_t i = 0; i < packer->count; i++) {
    const struct parameter *parameter = &packer->parameters[i];
    PyObject *item = items[i];
    packed->places[i] = &packed->values[i];
    packed->values[i] = 0;
    if (parameter->code != 'P') {
      if (!pack_number(parameter->code, item, (unsigned char *)&packed->values[i])) return false;
    } else if (item != Py_None) {
      PyObject *storage;
      if (uses && !(item = raw_of(uses, item, parameter->denied == engine.denied_write))) return false;
      uintptr_t address = address_of(device, item, parameter->denied, &storage);
      if (!address || address & parameter->mask) return false;
      if (!is_among(get(item, Extent__dtype), parameter->dtypes)) return false;
      packed->values[i] = address;
      PyTuple_SET_ITEM(used, pointers++, Py_NewRef(storage));
    }
  }
  while (pointers < packer->pointers) PyTuple_SET_ITEM(used, pointers++, Py_NewRef(Py_None));
  return true;
}

bool read_grid(PyObject *given, unsigned *grid) {
  grid[0] = grid[1] = grid[2] = 1;
  long long value;
  if (!PyTuple_CheckExact(given)) {
    if (!small_int(given, &value) || value < 1 || value > engine.most_blocks) return false;
    grid[0] = (unsigned)value;
    return true;
  }
  Py_ssize_t count = PyTuple_GET_SIZE(given);
  if (count < 1 || count > 3) return false;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!small_int(PyTuple_GET_ITEM(given, i), &value)) return false;
    if (value < 1 || value > (i ? engine.most_blocks_yz : engine.most_blocks)) return false;
    grid[i] = (unsigned)value;
  }
  return true;
}

/* Read the shared memory, of which the kernel has been allowed as much (`hal._kernels.launch_shape`). */
static bool read_shared(PyObject *kernel, PyObject *given, unsigned *shared) {
  long long size;
  if (!given || given == Py_None) given = get(kernel, Kernel_shared_memory);
  if (!given || !small_int(given, &size) || size < 0 || size > number(kernel, Kernel__allowed)) return false;
  *shared = (unsigned)size;
  return true;
}

/* Look a block up among those that the kernel has been launched with: its limits hold. Mostly it is given by the same
 * object as last time. */
static bool read_block(struct packer *packer, PyObject *kernel, PyObject *given, unsigned *block) {
  if (!given) given = Py_None;
  if (given == packer->given) {
    memcpy(block, packer->block, sizeof packer->block);
    return true;
  }
  if (PyTuple_CheckExact(given)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); i++)
      if (!PyLong_CheckExact(PyTuple_GET_ITEM(given, i))) return false;
  } else if (given != Py_None && !PyLong_CheckExact(given)) {
    return false;
  }
  PyObject *known = PyDict_GetItemWithError(get(kernel, Kernel__blocks), given);
  if (!known) {
    PyErr_Clear();
    return false;
  }
  for (int i = 0; i < 3; i++) block[i] = (unsigned)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(known, i));
  memcpy(packer->block, block, sizeof packer->block);
  Py_XSETREF(packer->given, Py_NewRef(given));
  return true;
}

bool read_launch(PyObject *node, struct native_call *call) {
  call->kind = CALL_LAUNCH;
  call->launch.shared = (unsigned)PyLong_AsLong(PyTuple_GET_ITEM(node, 3));
  call->launch.function = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(node, 0));
  for (int i = 0; i < 3; i++) {
    call->launch.grid[i] = (unsigned)PyLong_AsLong(PyTuple_GET_ITEM(PyTuple_GET_ITEM(node, 1), i));
    call->launch.block[i] = (unsigned)PyLong_AsLong(PyTuple_GET_ITEM(PyTuple_GET_ITEM(node, 2), i));
  }
  call->launch.parameters = (void **)(uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(node, 4));
  return true;
}

enum answer dispatch(PyObject *queue, PyObject *kernel, const struct launch_options *options,
                     const struct order *order, PyObject **result) {
  PyObject *device = device_of(queue);
  if (!device || Py_TYPE(kernel) != engine.Kernel) return NOT_MINE;
  if (get(kernel, Kernel__device) != device || !options->grid) return NOT_MINE;
  /* An argument may be memory of another device then, which the operation has to visit: Python sees to that. */
  if (PyObject_Length(get(device, DeviceCore__access))) return NOT_MINE;
  PyObject *found = get(kernel, Kernel__packer);
  if (!found || Py_TYPE(found) != &packer_type) return NOT_MINE;
  struct packer *packer = (struct packer *)found;
  PyObject *arguments = options->args ? options->args : engine.empty;
  bool is_tuple = PyTuple_CheckExact(arguments);
  if (!is_tuple && !PyList_CheckExact(arguments)) return NOT_MINE;
  struct native_call call = {.kind = CALL_LAUNCH, .function = get(device, DeviceCore__launch)};
  if (!read_grid(options->grid, call.launch.grid)) return NOT_MINE;
  if (!read_block(packer, kernel, options->block, call.launch.block)) return NOT_MINE;
  if (!read_shared(kernel, options->shared_memory, &call.launch.shared)) return NOT_MINE;
  PyObject *used = PyTuple_New(packer->pointers + 1);
  if (!used) {
    PyErr_Clear();
    return NOT_MINE;
  }
  PyTuple_SET_ITEM(used, packer->pointers, Py_NewRef(get(kernel, Kernel__module)));
  struct packed packed;
  enum answer answer = NOT_MINE;
  /* Counted only now: the collector, which the tuple may have started, runs the user's code. */
  Py_ssize_t given = is_tuple ? PyTuple_GET_SIZE(arguments) : PyList_GET_SIZE(arguments);
  if (given == packer->count && pack_all(packer, device, arguments, &packed, used, order->uses)) {
    call.launch.function = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(get(kernel, Kernel__function));
    call.launch.parameters = packed.places;
    call.launch.count = packer->count;
    answer = submit(queue, names_of.dispatch, &call, used, order, result);
  }
  Py_DECREF(used);
  return answer;
}

/* dispatch(queue, kernel, *, grid, block, args, shared_memory, wait, signal) */
enum answer dispatch_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names,
                              PyObject **result) {
  enum { GRID, BLOCK, ARGS, SHARED_MEMORY, WAIT, SIGNAL, OPTIONS };
  static const int known[OPTIONS] = {NAME_grid, NAME_block, NAME_args, NAME_shared_memory,
                                     NAME_wait, NAME_signal};
  PyObject *options[OPTIONS] = {NULL};
  if (count != 2 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  return dispatch(args[0], args[1],
                  &(struct launch_options){options[GRID], options[BLOCK], options[ARGS], options[SHARED_MEMORY]},
                  &(struct order){options[WAIT], options[SIGNAL], NULL}, result);
}
