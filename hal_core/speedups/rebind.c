/* An execution with new bindings: what stands for the slots, checked and written into the launches of
 * a recording (rules C3, C4). hal._commands.rebinding describes the recording. */
#include "arguments.h"
#include "tracking.h"

#include <stddef.h>

/* MOST_FORMER: with what stands for the slots now, as many as a stream has instances (executions.c). */
enum { BUFFER = 'P', GRID = 'G', MOST_FORMER = 3 };

/* What a slot takes. */
struct slot_rule {
  char codes[MOST_FORMS + 1]; /* BUFFER, GRID, or a code of `struct` for each form of a scalar */
  PyObject *dtypes;           /* that surely fit a buffer, a tuple; NULL if all do */
  long long needed, alignment;
  long denied; /* the rights that its buffer needs */
  Py_ssize_t first, end; /* its patches */
};

/* A place for what stands for a slot. */
struct patch {
  Py_ssize_t launch;
  char *place; /* of a parameter's bytes; NULL for a grid */
  uint64_t add;
  unsigned size, form;
};

/* A launch that uses slots: a node of a graph, or one of the calls on a stream. */
struct launch {
  void *node;
  char *structure; /* what CallTable.update_launch takes; NULL on a stream */
  char *grid;      /* its three numbers, there or in the call */
  bool is_changed;
};

struct range {
  uint64_t start, stop;
};

struct rebinder {
  PyObject_HEAD
  PyObject *kept;    /* what owns the parameters' memory */
  PyObject *unknown; /* a None for each slot: in a replica's table it means that `now` is what counts */
  bool is_known, is_kept;
  long long used; /* when it launched last, in its own time */
  struct binding *now, *former[MOST_FORMER]; /* what stands for the slots, and what stood for them before */
  Py_ssize_t slot_count, patch_count, launch_count, call_count, range_count; /* range_count < 0: no check */
  struct slot_rule *slots;
  struct patch *patches;
  struct launch *launches;
  struct native_call *calls; /* of a recording on a stream, all of them */
  struct range *ranges; /* of memory that is used directly */
};

static void rebinder_dealloc(PyObject *object) {
  struct rebinder *self = (struct rebinder *)object;
  for (Py_ssize_t i = 0; self->slots && i < self->slot_count; i++) Py_XDECREF(self->slots[i].dtypes);
  for (Py_ssize_t i = 0; self->launches && i < self->launch_count; i++) PyMem_Free(self->launches[i].structure);
  PyMem_Free(self->slots);
  PyMem_Free(self->patches);
  PyMem_Free(self->launches);
  PyMem_Free(self->calls);
  PyMem_Free(self->ranges);
  PyMem_Free(self->now);
  for (int i = 0; i < MOST_FORMER; i++) PyMem_Free(self->former[i]);
  Py_XDECREF(self->kept);
  Py_XDECREF(self->unknown);
  Py_TYPE(object)->tp_free(object);
}

static void *room(Py_ssize_t count, size_t size) {
  void *found = PyMem_Calloc((size_t)(count > 0 ? count : 1), size);
  if (!found) PyErr_NoMemory();
  return found;
}

static bool read_slots(struct rebinder *self, PyObject *given) {
  self->slot_count = PyTuple_GET_SIZE(given);
  if (self->slot_count > MOST_SLOTS) {
    PyErr_Format(PyExc_ValueError, "at most %d slots", MOST_SLOTS);
    return false;
  }
  if (!(self->slots = room(self->slot_count, sizeof *self->slots))) return false;
  if (!(self->unknown = PyTuple_New(self->slot_count))) return false;
  if (!(self->now = room(self->slot_count, sizeof *self->now))) return false;
  for (int i = 0; i < MOST_FORMER; i++)
    if (!(self->former[i] = room(self->slot_count, sizeof *self->now))) return false;
  for (Py_ssize_t i = 0; i < self->slot_count; i++) {
    struct slot_rule *rule = &self->slots[i];
    const char *codes;
    PyObject *dtypes;
    PyTuple_SET_ITEM(self->unknown, i, Py_NewRef(Py_None));
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, i), "sOLLl", &codes, &dtypes, &rule->needed, &rule->alignment,
                          &rule->denied))
      return false;
    if (strlen(codes) > MOST_FORMS || rule->alignment < 1) {
      PyErr_SetString(PyExc_ValueError, "a slot has too many forms, or no alignment");
      return false;
    }
    strcpy(rule->codes, codes);
    rule->dtypes = PyTuple_CheckExact(dtypes) ? Py_NewRef(dtypes) : NULL;
  }
  return true;
}

/* (slot, launch, place, what to add, size, form), in the order of slots */
static bool read_patches(struct rebinder *self, PyObject *given) {
  self->patch_count = PyTuple_GET_SIZE(given);
  if (!(self->patches = room(self->patch_count, sizeof *self->patches))) return false;
  for (Py_ssize_t i = 0; i < self->patch_count; i++) {
    struct patch *patch = &self->patches[i];
    Py_ssize_t slot;
    unsigned long long place, add;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, i), "nnKKII", &slot, &patch->launch, &place, &add, &patch->size,
                          &patch->form))
      return false;
    if (slot < 0 || slot >= self->slot_count || patch->launch < 0 || patch->launch >= self->launch_count ||
        patch->form >= MOST_FORMS || patch->size > sizeof(uint64_t)) {
      PyErr_SetString(PyExc_ValueError, "a patch is out of range");
      return false;
    }
    patch->place = (char *)(uintptr_t)place;
    patch->add = add;
    if (!self->slots[slot].end) self->slots[slot].first = i;
    self->slots[slot].end = i + 1;
  }
  return true;
}

/* The nodes of a recording on a stream. A grid that is a slot's may be empty now. */
static bool read_replayed(struct rebinder *self, PyObject *given) {
  if (given == Py_None) return true;
  self->call_count = PyList_GET_SIZE(given);
  if (!(self->calls = room(self->call_count, sizeof *self->calls))) return false;
  for (Py_ssize_t i = 0; i < self->call_count; i++) {
    struct native_call *call = &self->calls[i];
    if (read_node(PyList_GET_ITEM(given, i), call) || call->kind == CALL_LAUNCH) continue;
    PyErr_SetString(PyExc_ValueError, "a node has no call");
    return false;
  }
  return true;
}

/* (node or index of the call, structure, place of the grid) */
static bool read_launches(struct rebinder *self, PyObject *given) {
  self->launch_count = PyTuple_GET_SIZE(given);
  if (!(self->launches = room(self->launch_count, sizeof *self->launches))) return false;
  for (Py_ssize_t i = 0; i < self->launch_count; i++) {
    struct launch *launch = &self->launches[i];
    unsigned long long node;
    const char *structure;
    Py_ssize_t size, grid;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, i), "Ky#n", &node, &structure, &size, &grid)) return false;
    bool is_inside = grid >= 0 && grid <= size - (Py_ssize_t)(3 * sizeof(unsigned));
    if (self->calls ? node >= (unsigned long long)self->call_count : !is_inside) {
      PyErr_SetString(PyExc_ValueError, "a grid is outside of its structure, or there is no such call");
      return false;
    }
    if (self->calls) {
      launch->grid = (char *)self->calls[node].launch.grid;
      continue;
    }
    launch->node = (void *)(uintptr_t)node;
    if (!(launch->structure = room(size, 1))) return false;
    memcpy(launch->structure, structure, (size_t)size);
    launch->grid = launch->structure + grid;
  }
  return true;
}

static bool read_ranges(struct rebinder *self, PyObject *given) {
  self->range_count = -1;
  if (given == Py_None) return true;
  self->range_count = PyTuple_GET_SIZE(given);
  if (!(self->ranges = room(self->range_count, sizeof *self->ranges))) return false;
  for (Py_ssize_t i = 0; i < self->range_count; i++) {
    unsigned long long start, stop;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, i), "KK", &start, &stop)) return false;
    self->ranges[i] = (struct range){start, stop};
  }
  return true;
}

/* Rebinder(slots, nodes on a stream or None, launches, patches, ranges or None, kept) */
static PyObject *rebinder_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  PyObject *slots, *nodes, *launches, *patches, *ranges, *kept;
  if (has_keywords(type, keywords)) return NULL;
  if (!PyArg_ParseTuple(args, "O!OO!O!OO", &PyTuple_Type, &slots, &nodes, &PyTuple_Type, &launches, &PyTuple_Type,
                        &patches, &ranges, &kept))
    return NULL;
  struct rebinder *self = (struct rebinder *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->kept = Py_NewRef(kept);
  if (!read_slots(self, slots) || !read_replayed(self, nodes) || !read_launches(self, launches) ||
      !read_patches(self, patches) || !read_ranges(self, ranges))
    Py_CLEAR(self);
  return (PyObject *)self;
}

PyTypeObject rebinder_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hal._speedups.Rebinder",
    .tp_basicsize = sizeof(struct rebinder),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = PyDoc_STR("The calls of a recording, and what stands for its slots now."),
    .tp_new = rebinder_new,
    .tp_dealloc = rebinder_dealloc,
};

/* As SlotRules.check does for one slot; `*size` is that of a buffer. */
static bool read_binding(const struct slot_rule *rule, PyObject *device, PyObject *given, struct binding *binding,
                         uint64_t *size, PyObject **storage) {
  if (rule->codes[0] == GRID) {
    unsigned grid[3];
    if (!read_grid(given, grid)) return false;
    for (int i = 0; i < 3; i++) binding->values[i] = grid[i];
    return true;
  }
  if (rule->codes[0] != BUFFER) {
    for (const char *code = rule->codes; *code; code++)
      if (!pack_number(*code, given, (unsigned char *)&binding->values[code - rule->codes])) return false;
    return true;
  }
  uintptr_t address = address_of(device, given, rule->denied, storage);
  if (!address || address % (uintptr_t)rule->alignment) return false;
  long long whole = number(given, Extent__size);
  if (whole < rule->needed || !is_among(get(given, Extent__dtype), rule->dtypes)) return false;
  binding->values[0] = address;
  *size = (uint64_t)whole;
  return true;
}

static bool meet(struct range one, struct range other) { return one.start < other.stop && other.start < one.stop; }

/* Return whether no two of the buffers share bytes, with each other or with what is used directly. */
static bool are_apart(const struct rebinder *self, const struct range *bound, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) {
    for (Py_ssize_t j = 0; j < i; j++)
      if (meet(bound[i], bound[j])) return false;
    for (Py_ssize_t j = 0; j < self->range_count; j++)
      if (meet(bound[i], self->ranges[j])) return false;
  }
  return true;
}

bool read_bindings(PyObject *rebinder, PyObject *device, PyObject *bindings, Py_ssize_t count,
                   struct binding *found, PyObject **used, struct uses *uses) {
  const struct rebinder *self = (struct rebinder *)rebinder;
  bool is_tuple = PyTuple_CheckExact(bindings);
  Py_ssize_t given = is_tuple ? PyTuple_GET_SIZE(bindings) : PyList_GET_SIZE(bindings);
  if (given != self->slot_count || given != count) return false; /* the collector may have changed a list */
  PyObject **items = is_tuple ? ((PyTupleObject *)bindings)->ob_item : ((PyListObject *)bindings)->ob_item;
  struct range bound[MOST_SLOTS];
  Py_ssize_t buffers = 0;
  for (Py_ssize_t i = 0; i < given; i++) {
    PyObject *item = uses && uses->of_slots ? bound_of(uses, i, items[i]) : items[i], *storage = NULL;
    uint64_t size = 0;
    found[i] = (struct binding){{0}};
    if (!item || !read_binding(&self->slots[i], device, item, &found[i], &size, &storage)) return false;
    if (!storage) continue;
    bound[buffers++] = (struct range){found[i].values[0], found[i].values[0] + size};
    Py_SETREF(used[i], Py_NewRef(storage)); /* that was None */
  }
  return self->range_count < 0 || are_apart(self, bound, buffers);
}

/* An entry of the engine's table: an address, a grid, or the bytes of a scalar in each of its forms. */
static PyObject *entry_of_table(const struct slot_rule *rule, const uint64_t *values) {
  if (rule->codes[0] == BUFFER) return PyLong_FromUnsignedLongLong(values[0]);
  if (rule->codes[0] == GRID)
    return Py_BuildValue("(KKK)", (unsigned long long)values[0], (unsigned long long)values[1],
                         (unsigned long long)values[2]);
  char bytes[MOST_FORMS * sizeof *values];
  Py_ssize_t size = 0;
  for (const char *code = rule->codes; *code; code++) {
    memcpy(bytes + size, values++, size_of(*code));
    size += size_of(*code);
  }
  return PyBytes_FromStringAndSize(bytes, size);
}

PyObject *table_of(PyObject *rebinder, const struct binding *bindings) {
  const struct rebinder *self = (struct rebinder *)rebinder;
  PyObject *table = PyTuple_New(self->slot_count);
  for (Py_ssize_t i = 0; table && i < self->slot_count; i++) {
    PyObject *entry = entry_of_table(&self->slots[i], bindings[i].values);
    if (entry) PyTuple_SET_ITEM(table, i, entry);
    if (!entry) Py_CLEAR(table);
  }
  return table;
}

static bool read_entry(const struct slot_rule *rule, PyObject *entry, uint64_t *values) {
  if (rule->codes[0] == BUFFER) {
    values[0] = PyLong_AsUnsignedLongLong(entry);
  } else if (rule->codes[0] == GRID) {
    for (int i = 0; i < 3; i++)
      if (!(values[i] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(entry, i)))) return false; /* it launches nothing */
  } else {
    const char *bytes = PyBytes_AS_STRING(entry);
    for (const char *code = rule->codes; *code; bytes += size_of(*code++)) memcpy(values++, bytes, size_of(*code));
  }
  return true;
}

bool read_table(PyObject *rebinder, PyObject *table, struct binding *found) {
  if (Py_TYPE(rebinder) != &rebinder_type || !PyTuple_CheckExact(table)) return false; /* some have no address yet */
  const struct rebinder *self = (struct rebinder *)rebinder;
  for (Py_ssize_t i = 0; i < self->slot_count; i++) {
    found[i] = (struct binding){{0}};
    if (!read_entry(&self->slots[i], PyTuple_GET_ITEM(table, i), found[i].values)) return false;
  }
  return true;
}

static void write_patch(struct rebinder *self, const struct patch *patch, const struct binding *binding) {
  struct launch *launch = &self->launches[patch->launch];
  launch->is_changed = true;
  if (!patch->place) {
    unsigned grid[3];
    for (int i = 0; i < 3; i++) grid[i] = (unsigned)binding->values[i];
    memcpy(launch->grid, grid, sizeof grid);
    return;
  }
  uint64_t value = binding->values[patch->form] + patch->add;
  memcpy(patch->place, &value, patch->size); /* little-endian */
}

/* Write what has changed into the launches. */
static void write_all(struct rebinder *self, const struct binding *bindings) {
  for (Py_ssize_t i = 0; i < self->slot_count; i++) {
    const struct slot_rule *rule = &self->slots[i];
    if (self->is_known && !memcmp(&self->now[i], &bindings[i], sizeof *bindings)) continue;
    self->now[i] = bindings[i];
    for (Py_ssize_t j = rule->first; j < rule->end; j++) write_patch(self, &self->patches[j], &bindings[i]);
  }
  self->is_known = true;
}

Py_ssize_t slots_of(PyObject *rebinder) { return ((struct rebinder *)rebinder)->slot_count; }

void read_calls(PyObject *rebinder, struct native_call *call) {
  const struct rebinder *self = (struct rebinder *)rebinder;
  call->kind = CALL_NODES;
  call->nodes.all = self->calls;
  call->nodes.count = self->call_count;
}

void keep_bound(PyObject *rebinder, bool is_kept) { ((struct rebinder *)rebinder)->is_kept = is_kept; }

static bool are_same(const struct rebinder *self, const struct binding *one, const struct binding *other) {
  return !memcmp(one, other, (size_t)self->slot_count * sizeof *one);
}

static bool knows(const struct rebinder *self, PyObject *instance) {
  return self->is_known && get(get(instance, Instance_replica), Replica_table) == self->unknown;
}

struct held what_is_held(PyObject *instance, const struct binding *bindings) {
  PyObject *found = get(instance, Instance_rebinder);
  if (Py_TYPE(found) != &rebinder_type) return (struct held){HELD_NOTHING, 0};
  const struct rebinder *self = (struct rebinder *)found;
  struct held held = {HELD_OTHER, self->used};
  if (!knows(self, instance)) {
    held.what = HELD_UNKNOWN;
  } else if (are_same(self, self->now, bindings)) {
    held.what = HELD_NOW;
  } else {
    for (int i = 0; i < MOST_FORMER; i++)
      if (are_same(self, self->former[i], bindings)) held.what = HELD_BEFORE;
  }
  return held;
}

/* Keep what stands for the slots among what has stood for them. */
static void keep_now(struct rebinder *self) {
  struct binding *oldest = self->former[MOST_FORMER - 1];
  for (int i = MOST_FORMER - 1; i > 0; i--) self->former[i] = self->former[i - 1];
  self->former[0] = oldest;
  memcpy(oldest, self->now, (size_t)self->slot_count * sizeof *oldest);
}

/* Update the nodes of a graph that have changed. */
static bool update(struct rebinder *self, const struct calls *calls, void *graph) {
  for (Py_ssize_t i = 0; i < self->launch_count; i++) {
    struct launch *launch = &self->launches[i];
    if (!launch->is_changed) continue;
    if (calls->update_launch(graph, launch->node, launch->structure)) return self->is_known = false;
    launch->is_changed = false;
  }
  return true;
}

bool bind_anew(const struct calls *calls, const struct native_call *call) {
  struct rebinder *self = (struct rebinder *)call->rebinder;
  PyObject *instance = call->graph.instance;
  if (call->kind == CALL_NODES) {
    if (!self->is_kept) write_all(self, call->bindings);
    return !self->is_kept;
  }
  if (!instance || get(instance, Instance_rebinder) != call->rebinder || is_true(instance, Instance_broken)) return false;
  static long long launches;
  self->used = ++launches;
  self->is_known = knows(self, instance);
  if (self->is_known && !are_same(self, self->now, call->bindings)) keep_now(self);
  write_all(self, call->bindings);
  /* Python's engine is to write all of it anew */
  put(get(instance, Instance_replica), Replica_table, Py_NewRef(self->unknown));
  return update(self, calls, call->graph.handle);
}
