/* Native functions by address (hal.native.CallTable). */
#include "speedups.h"

#include <structmember.h>

/* Calls(*table): the fields of a CallTable in their order, which the core has checked. */
static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  unsigned long long at[25];
  if (has_keywords(type, keywords)) return NULL;
  if (!PyArg_ParseTuple(args, "KKKKKKKKKKKKKKKKKKKKKKKKK", &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &at[6],
                        &at[7], &at[8], &at[9], &at[10], &at[11], &at[12], &at[13], &at[14], &at[15],
                        &at[16], &at[17], &at[18], &at[19], &at[20], &at[21], &at[22], &at[23], &at[24]))
    return NULL;
  struct calls *self = (struct calls *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  /* POSIX has data and function pointers convert into each other. */
  void **const places[] = {(void **)&self->record_event, (void **)&self->wait_event,
                           (void **)&self->query_event,  (void **)&self->fill_8,
                           (void **)&self->fill_16,      (void **)&self->fill_32,
                           (void **)&self->launch,       (void **)&self->launch_graph,
                           (void **)&self->current,      &self->context};
  for (int i = 0; i < 10; i++) *places[i] = (void *)(uintptr_t)at[i];
  self->not_ready = (int)at[10];
  *(void **)&self->exchange_capture_mode = (void *)(uintptr_t)at[11];
  self->most_launches = (int)at[12];
  *(void **)&self->allocate_async = (void *)(uintptr_t)at[13];
  *(void **)&self->free_async = (void *)(uintptr_t)at[14];
  self->pool = (void *)(uintptr_t)at[15];
  *(void **)&self->update_launch = (void *)(uintptr_t)at[16];
  *(void **)&self->write_value = (void *)(uintptr_t)at[17];
  *(void **)&self->wait_value = (void *)(uintptr_t)at[18];
  *(void **)&self->copy = (void *)(uintptr_t)at[19];
  *(void **)&self->synchronize_stream = (void *)(uintptr_t)at[20];
  *(void **)&self->make_current = (void *)(uintptr_t)at[21];
  *(void **)&self->query_stream = (void *)(uintptr_t)at[22];
  *(void **)&self->await_event = (void *)(uintptr_t)at[24]; /* 23 is for a group's library (meeting.c) */
  return (PyObject *)self;
}

static PyMethodDef methods[] = {
    {"replay", (PyCFunction)(void (*)(void))replay, METH_FASTCALL, PyDoc_STR("Make the calls of a recording's nodes.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"users", T_INT, offsetof(struct calls, users), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject calls_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hal._speedups.Calls",
    .tp_basicsize = sizeof(struct calls),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = PyDoc_STR("The native functions of a device, to be called by address."),
    .tp_members = members,
    .tp_methods = methods,
    .tp_new = calls_new,
};

struct calls *calls_of(PyObject *queue) { return usable_calls(get(queue, StreamQueue__calls)); }

struct calls *usable_calls(PyObject *found) {
  if (!found || Py_TYPE(found) != &calls_type) return NULL;
  struct calls *calls = (struct calls *)found;
  if (calls->current) {
    void *context = NULL;
    if (calls->current(&context)) return NULL;
    if (context != calls->context && (!calls->make_current || calls->make_current(calls->context))) return NULL;
  }
  return calls;
}

int begin_relaxed(const struct calls *calls) {
  enum { RELAXED = 2 };
  int mode = RELAXED;
  return calls->exchange_capture_mode && calls->exchange_capture_mode(&mode) ? -1 : mode;
}

void end_relaxed(const struct calls *calls, int mode) {
  if (calls->exchange_capture_mode) calls->exchange_capture_mode(&mode);
}

/* An event in memory (`hal._engine.memory_events`). */
struct words {
  uint64_t done; /* what the device has written */
  uint64_t last; /* the number of the last record, unless a native event has it */
  uint64_t native, is_native;
};

int record(const struct calls *calls, void *event, void *stream) {
  if (!calls->write_value) return calls->record_event(event, stream);
  struct words *words = event;
  if (words->is_native || __atomic_load_n(&words->done, __ATOMIC_ACQUIRE) < words->last)
    return -1; /* its last write is under way: Python records it natively */
  words->native = 0;
  int status = calls->write_value(stream, (uintptr_t)&words->done, words->last + 1, 0);
  if (!status) words->last++;
  return status;
}

int wait_for(const struct calls *calls, void *stream, void *event) {
  if (!calls->wait_value) return calls->wait_event(stream, event, 0);
  const struct words *words = event;
  if (words->native) return calls->wait_event(stream, (void *)(uintptr_t)words->native, 0);
  if (__atomic_load_n(&words->done, __ATOMIC_ACQUIRE) >= words->last) return 0;
  return calls->wait_value(stream, (uintptr_t)&words->done, words->last, 0, UINT64_MAX);
}

void *pointer(PyObject *object, enum slot slot) {
  return (void *)(uintptr_t)PyLong_AsUnsignedLongLong(get(object, slot));
}

/* No baton is taken: an event that is recorded later than it could be is late, and not wrong. */
bool settle(PyObject *event) {
  PyObject *queue = get(event, Event_due);
  if (queue == Py_None) return true;
  const struct calls *calls = calls_of(queue);
  if (!calls || record(calls, pointer(event, Event_handle), pointer(queue, StreamQueue__stream))) return false;
  put(event, Event_due, Py_NewRef(Py_None)); /* the operations on the event keep the queue */
  return true;
}

bool settle_all(PyObject *queues) {
  bool is_done = true;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(queues); i++) {
    PyObject *last = entry_of(get(PyList_GET_ITEM(queues, i), StreamQueue__ring), -1);
    is_done = (!last || settle(get(last, Operation__event))) && is_done;
  }
  return is_done;
}

/* Ask an event, or the stream. */
static int query(const struct calls *calls, int (*function)(void *), void *handle) {
  int mode = begin_relaxed(calls);
  if (mode < 0) return -1;
  int status = function(handle);
  end_relaxed(calls, mode);
  return status;
}

int ask_stream(const struct calls *calls, PyObject *event) {
  return query(calls, calls->query_stream, pointer(get(event, Event_due), StreamQueue__stream));
}

int ask(const struct calls *calls, PyObject *operation) {
  PyObject *found = get(operation, Operation__event);
  if (!is_none(found, Event_due)) return ask_stream(calls, found);
  void *event = pointer(found, Event_handle);
  if (calls->write_value) {
    const struct words *words = event;
    if (!words->native)
      return __atomic_load_n(&words->done, __ATOMIC_ACQUIRE) >= words->last ? 0 : calls->not_ready;
    event = (void *)(uintptr_t)words->native;
  }
  return query(calls, calls->query_event, event);
}
