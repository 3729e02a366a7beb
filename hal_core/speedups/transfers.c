/* Copies: those that a queue submits, and those that the calling thread makes and waits for (rules Q4, M1). */
#include "host_arrays.h" /* Python.h comes before the system's headers */

/* Whether copies from and to a storage never block while the interpreter lock is kept: it is memory of
 * hal's own, pinned or the device's. None stands for memory that was pinned for the copy. */
static bool is_own(PyObject *storage) {
  if (storage == Py_None) return true;
  if (Py_TYPE(storage) != engine.Storage && Py_TYPE(storage) != engine.Transient) return false;
  PyObject *memory = get(storage, Storage_memory);
  return memory == engine.device_memory || memory == engine.host_memory;
}

bool read_copy(PyObject *node, struct native_call *call) {
  call->kind = CALL_COPY;
  call->copy.target = (uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(node, 0));
  call->copy.source = (uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(node, 1));
  call->copy.size = (size_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(node, 2));
  return true;
}

/* Return whether the resources of a copy, which begin with the two storages, let it keep the interpreter lock. */
static bool never_blocks(PyObject *device, PyObject *resources) {
  if (!PyTuple_CheckExact(resources) || PyTuple_GET_SIZE(resources) != 3) return false;
  for (int i = 0; i < 2 && !is_true(device, DeviceCore__pageable); i++)
    if (!is_own(PyTuple_GET_ITEM(resources, i))) return false;
  return true;
}

/* Whether a queue's table has a function that copies. */
static bool can_copy(PyObject *queue) {
  PyObject *found = get(queue, StreamQueue__calls);
  return found && Py_TYPE(found) == &calls_type && ((struct calls *)found)->copy;
}

static bool is_copy(PyObject *device, PyObject *function) {
  return function == get(device, DeviceCore__copy) || function == get(device, DeviceCore__copy_from_host) ||
         function == get(device, DeviceCore__copy_to_host);
}

bool read_call(PyObject *queue, PyObject *function, PyObject *arguments, PyObject *resources,
               struct native_call *call) {
  PyObject *device = device_of(queue);
  if (!device) return false;
  if (function == get(device, DeviceCore__launch)) return read_launch(arguments, call);
  if (function == get(device, DeviceCore__fill)) return read_fill(arguments, call);
  return can_copy(queue) && is_copy(device, function) && never_blocks(device, resources) && read_copy(arguments, call);
}

/* Read how much of a copy's source goes where; false if that is not the plain case. */
static bool read_range(PyObject *source, PyObject *target, PyObject *const *options, long long *first,
                       long long *into, long long *size) {
  *first = *into = 0;
  if (options[0] && !small_int(options[0], first)) return false;
  if (options[1] && !small_int(options[1], into)) return false;
  long long of = number(source, Extent__size), to = number(target, Extent__size);
  if (*first < 0 || *first > of || *into < 0 || *into > to) return false;
  *size = of - *first;
  if (options[2] && options[2] != Py_None && !small_int(options[2], size)) return false;
  return *size > 0 && *size <= of - *first && *size <= to - *into && *size <= engine.chunk;
}

/* Whether a copy between two storages never blocks (hal._transfers.host_copies). */
static bool is_plain(PyObject *device, PyObject *target, PyObject *source) {
  if (is_true(device, DeviceCore__pageable)) return true;
  return is_own(target) && is_own(source) &&
         (get(target, Storage_memory) == engine.device_memory || get(source, Storage_memory) == engine.device_memory);
}

/* copy(queue, source, target, *, source_offset, target_offset, size, wait, signal) */
enum answer copy_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  enum { WAIT = 3, SIGNAL, OPTIONS };
  PyObject *options[OPTIONS] = {NULL};
  static const int known[OPTIONS] = {NAME_source_offset, NAME_target_offset, NAME_size, NAME_wait, NAME_signal};
  if (count != 3 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  PyObject *queue = args[0], *device = device_of(queue), *source = NULL, *target = NULL;
  if (!device || !can_copy(queue)) return NOT_MINE;
  uintptr_t from = address_of(device, args[1], engine.denied_source, &source);
  uintptr_t to = address_of(device, args[2], engine.denied_target, &target);
  long long first, into, size;
  if (!from || !to || !is_plain(device, target, source)) return NOT_MINE;
  if (!read_range(args[1], args[2], options, &first, &into, &size)) return NOT_MINE;
  from += (uintptr_t)first;
  to += (uintptr_t)into;
  if (from < to + (uintptr_t)size && to < from + (uintptr_t)size) return NOT_MINE; /* the same, or refused */
  struct native_call call = {
      .kind = CALL_COPY, .function = get(device, DeviceCore__copy), .copy = {to, from, (size_t)size}};
  Py_INCREF(target); /* the collector may run code that closes the buffers */
  Py_INCREF(source);
  PyObject *resources = PyTuple_Pack(3, target, source, Py_None);
  enum answer answer = RAISED;
  struct order order = {options[WAIT], options[SIGNAL], NULL};
  if (resources) answer = submit(queue, names_of.copy, &call, resources, &order, result);
  Py_XDECREF(resources);
  Py_DECREF(source);
  Py_DECREF(target);
  return answer;
}

bool view_of(PyObject *array, bool is_written, Py_buffer *view) {
  if (Py_TYPE(array) != engine.ndarray) return false;
  if (!PyObject_GetBuffer(array, view, is_written ? PyBUF_WRITABLE : PyBUF_SIMPLE)) return true;
  PyErr_Clear(); /* it has gaps, or is read-only */
  return false;
}

bool is_alike(PyObject *array, PyObject *buffer) {
  PyObject *dtype = PyObject_GetAttr(array, names_of.dtype);
  if (!dtype) PyErr_Clear();
  Py_XDECREF(dtype); /* the array has it */
  return dtype && (dtype == get(buffer, Extent__dtype) || dtype == engine.bytes);
}

/* Return whether a copy of host memory to or from a buffer, from `start` bytes on, is the plain case. */
static bool is_plain_move(PyObject *queue, PyObject *buffer, long long start, size_t size) {
  long long rest = number(buffer, Extent__size) - start;
  return can_copy(queue) && is_true(device_of(queue), DeviceCore__pageable) && size && start >= 0 &&
         rest >= (long long)size && (long long)size <= engine.chunk;
}

enum answer write_bytes(PyObject *queue, PyObject *buffer, long long start, const Py_buffer *host,
                        const struct order *order, PyObject **result) {
  PyObject *device = device_of(queue), *storage;
  uintptr_t address = device ? address_of(device, buffer, engine.denied_target, &storage) : 0;
  size_t size = (size_t)host->len;
  if (!address || (long)size > engine.small || !is_plain_move(queue, buffer, start, size)) return NOT_MINE;
  Py_INCREF(storage); /* the collector may run code that closes the buffer */
  PyObject *captured = PyBytes_FromStringAndSize(host->buf, host->len);
  PyObject *resources = captured ? PyTuple_Pack(3, storage, Py_None, captured) : NULL;
  enum answer answer = RAISED;
  if (resources) {
    uintptr_t source = (uintptr_t)PyBytes_AS_STRING(captured);
    struct native_call call = {.kind = CALL_COPY,
                               .function = get(device, DeviceCore__copy_from_host),
                               .copy = {address + (uintptr_t)start, source, size}};
    answer = submit(queue, names_of.write, &call, resources, order, result);
  }
  Py_XDECREF(resources);
  Py_XDECREF(captured);
  Py_DECREF(storage);
  return answer;
}

enum answer read_bytes(PyObject *queue, PyObject *buffer, long long start, const Py_buffer *host,
                       const struct order *order, PyObject **result) {
  PyObject *device = device_of(queue), *storage;
  uintptr_t address = device ? address_of(device, buffer, engine.denied_source, &storage) : 0;
  size_t size = (size_t)host->len;
  if (!address || !is_plain_move(queue, buffer, start, size)) return NOT_MINE;
  Py_INCREF(storage); /* as above */
  PyObject *resources = PyTuple_Pack(3, Py_None, storage, host->obj);
  enum answer answer = RAISED;
  struct native_call call = {.kind = CALL_COPY,
                             .function = get(device, DeviceCore__copy_to_host),
                             .copy = {(uintptr_t)host->buf, address + (uintptr_t)start, size}};
  if (resources) answer = submit(queue, names_of.read, &call, resources, order, result);
  Py_XDECREF(resources);
  Py_DECREF(storage);
  return answer;
}

/* write and read(queue, buffer, array, *, offset, wait, signal) */
static enum answer transfer(PyObject *const *args, Py_ssize_t count, PyObject *names, bool to_host, PyObject **result) {
  enum { OFFSET, WAIT, SIGNAL, OPTIONS };
  static const int known[OPTIONS] = {NAME_offset, NAME_wait, NAME_signal};
  PyObject *options[OPTIONS] = {NULL};
  long long start = 0;
  Py_buffer host;
  if (count != 3 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  if (options[OFFSET] && !small_int(options[OFFSET], &start)) return NOT_MINE;
  if (!PyObject_TypeCheck(args[1], engine.Extent) || !view_of(args[2], to_host, &host)) return NOT_MINE;
  struct order order = {options[WAIT], options[SIGNAL], NULL};
  enum answer answer = NOT_MINE;
  if (is_alike(args[2], args[1]))
    answer = (to_host ? read_bytes : write_bytes)(args[0], args[1], start, &host, &order, result);
  PyBuffer_Release(&host);
  return answer;
}

enum answer queue_write_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  return transfer(args, count, names, false, result);
}

enum answer queue_read_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  return transfer(args, count, names, true, result);
}

/* submit(queue, kind, (function, arguments, resources), wait, signal, is_host): for barriers, which have no
 * function, and for the copies of other methods, which Python has checked. Fills, launches and others that
 * come here have been declined. */
enum answer submit_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  if (count < 5 || count > 6 || names || (count == 6 && args[5] != Py_False)) return NOT_MINE;
  PyObject *queue = args[0], *payload = args[2];
  if (args[1] == names_of.copy) return NOT_MINE;
  if (!PyTuple_CheckExact(payload) || PyTuple_GET_SIZE(payload) != 3) return NOT_MINE;
  PyObject *resources = PyTuple_GET_ITEM(payload, 2), *device = device_of(queue);
  PyObject *function = PyTuple_GET_ITEM(payload, 0);
  struct native_call call = {.kind = CALL_NONE, .function = function};
  if (!device) return NOT_MINE;
  if (function != Py_None && (!can_copy(queue) || !is_copy(device, function) ||
                              !(never_blocks(device, resources) && read_copy(PyTuple_GET_ITEM(payload, 1), &call))))
    return NOT_MINE;
  return submit(queue, args[1], &call, resources, &(struct order){args[3], args[4], NULL}, result);
}

/* Return whether nothing is left to do on a queue; under the lock. */
static bool is_idle(PyObject *queue, struct drops *drops) {
  PyObject *ring = get(queue, StreamQueue__ring);
  if (!is_none(queue, StreamQueue__issuing) || PyDict_GET_SIZE(get(queue, StreamQueue__hosts))) return false;
  if (PyObject_Length(get(queue, StreamQueue__backlog)) || PyDict_GET_SIZE(get(queue, StreamQueue__pending)))
    return false;
  if (PyObject_Length(ring)) retire(queue, drops);
  return !PyObject_Length(ring);
}

/* wait_before(context, timeout, what): if there is nothing to wait for */
enum answer wait_before_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  if (count != 3 || names || args[1] != Py_None || Py_TYPE(args[0]) != engine.DeviceContext) return NOT_MINE;
  if (!enter()) return NOT_MINE;
  struct drops drops;
  drops.count = 0;
  PyObject *queues = Py_NewRef(get(args[0], DeviceContext_queues));
  bool is_over = true;
  for (Py_ssize_t i = 0; is_over && i < PyList_GET_SIZE(queues); i++)
    is_over = is_idle(PyList_GET_ITEM(queues, i), &drops);
  leave();
  drop_all(&drops);
  Py_DECREF(queues);
  if (!is_over) return NOT_MINE;
  *result = Py_NewRef(Py_None);
  return TAKEN;
}

/* A host operation that the calling thread waits for, and whether this thread has begun it. */
struct awaited {
  PyObject *operation;
  bool is_begun;
};

/* A copy between the device and an array of the host's. */
struct move {
  PyObject *device, *storage;
  uintptr_t start; /* in the storage */
  char *host;
  size_t size;
  bool to_host, is_operation; /* a host operation, which a close waits for */
  struct awaited *awaited;    /* NULL: the caller has begun the operation, or there is none */
};

/* What the processor copies in microseconds, with the interpreter lock. */
enum { AT_ONCE = 64 << 10 };

/* Begin to copy, if the device is open and no other thread has begun the operation; under the lock. */
static bool begin(const struct move *self) {
  if (!self->is_operation && is_true(self->device, DeviceCore__closed)) return false;
  if (!is_none(get(self->device, DeviceCore__context), DeviceContext_lost)) return false;
  if (!self->awaited) return true;
  PyObject *operation = self->awaited->operation;
  if (get(operation, Operation__state) != engine.sent) return false;
  put(operation, Operation__state, Py_NewRef(engine.running));
  return self->awaited->is_begun = true;
}

/* Copy from or to memory that the host sees. */
static enum answer copy_here(const struct move *self, uintptr_t base) {
  if (self->size > AT_ONCE || !enter()) return NOT_MINE;
  bool may_copy = begin(self);
  char *there = (char *)(base + self->start);
  if (may_copy) memcpy(self->to_host ? self->host : there, self->to_host ? there : self->host, self->size);
  leave();
  return may_copy ? TAKEN : NOT_MINE;
}

/* Return a copy stream that nobody has and that needs no repair, borrowed; NULL if there is none. */
static PyObject *free_copy_stream(PyObject *device) {
  PyObject *streams = get(device, DeviceCore__copy_streams);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(streams); i++) {
    PyObject *ours = PyList_GET_ITEM(streams, i);
    if (is_none(ours, CopyStream_owner) && is_none(ours, CopyStream_used) && number(ours, CopyStream_stream)) return ours;
  }
  return NULL;
}

/* Have the driver copy, and wait without the interpreter lock. Nobody else takes the stream meanwhile, and
 * a close of the device waits (`Calls.users`). After an error the Python engine copies again. */
static enum answer copy_natively(const struct move *self, uintptr_t base) {
  PyObject *direct = get(get(self->device, DeviceCore__context), DeviceContext_direct);
  struct calls *calls = usable_calls(direct);
  if (!calls || !calls->copy || !calls->synchronize_stream) return NOT_MINE;
  /* An imported array must stay pinned: Python sees to that. */
  PyObject *imports = get(get(get(self->device, DeviceCore__heap), Heap_books), Books_imports);
  if (PyDict_GET_SIZE(imports) || !enter()) return NOT_MINE;
  PyObject *ours = free_copy_stream(self->device);
  if (ours && !begin(self)) ours = NULL;
  if (ours) {
    put(ours, CopyStream_owner, Py_NewRef(engine.held));
    calls->users++;
  }
  leave();
  if (!ours) return NOT_MINE;
  void *stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(get(ours, CopyStream_stream));
  uintptr_t there = base + self->start, here = (uintptr_t)self->host;
  int status = -1;
  Py_INCREF(ours);
  Py_INCREF(calls);
  Py_BEGIN_ALLOW_THREADS
  int mode = begin_relaxed(calls);
  if (mode >= 0) {
    status = calls->copy(self->to_host ? here : there, self->to_host ? there : here, self->size, stream);
    if (!status) status = calls->synchronize_stream(stream);
    end_relaxed(calls, mode);
  }
  Py_END_ALLOW_THREADS
  calls->users--;
  put(ours, CopyStream_owner, Py_NewRef(Py_None));
  Py_DECREF(calls);
  Py_DECREF(ours);
  return status ? NOT_MINE : TAKEN;
}

/* read and write(device, storage, start, array, is_operation=False) */
static enum answer move(PyObject *const *args, Py_ssize_t count, PyObject *names, bool to_host, struct awaited *awaited,
                        PyObject **result) {
  if (count < 4 || count > 5 || names || !PyObject_TypeCheck(args[0], engine.DeviceCore)) return NOT_MINE;
  PyObject *device = args[0], *storage = args[1];
  long long start;
  if (Py_TYPE(storage) != engine.Storage || !small_int(args[2], &start)) return NOT_MINE;
  PyObject *address = get(storage, Storage_address), *seen = get(storage, Storage_host_address);
  if (address == Py_None) return NOT_MINE;
  Py_buffer host;
  if (PyObject_GetBuffer(args[3], &host, to_host ? PyBUF_WRITABLE : PyBUF_SIMPLE)) {
    PyErr_Clear();
    return NOT_MINE;
  }
  bool is_operation = count == 5 && args[4] == Py_True;
  struct move self = {device,  storage,      (uintptr_t)start, host.buf, (size_t)host.len,
                      to_host, is_operation, awaited};
  bool is_seen = is_true(device, DeviceCore__pageable) || get(storage, Storage_memory) == engine.host_memory;
  enum answer answer = NOT_MINE;
  if (seen != Py_None && is_seen) {
    answer = copy_here(&self, (uintptr_t)PyLong_AsUnsignedLongLong(seen));
  } else if (host.len <= engine.part) {
    answer = copy_natively(&self, (uintptr_t)PyLong_AsUnsignedLongLong(address));
  }
  PyBuffer_Release(&host);
  if (answer == TAKEN) *result = Py_NewRef(Py_None);
  return answer;
}

enum answer read_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  return move(args, count, names, true, NULL, result);
}

enum answer write_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  return move(args, count, names, false, NULL, result);
}

/* No code of Python's runs between the beginning and the end, so no signal handler finds the operation half done on its
 * own thread, where it could wait for it, and a Ctrl-C comes behind the copy. */
enum answer copy_for(PyObject *operation) {
  PyObject *arguments = get(operation, Operation__arguments), *result = NULL;
  shortcut_function take = taken_by(get(operation, Operation__function));
  if (take != read_shortcut && take != write_shortcut) return NOT_MINE;
  Py_INCREF(arguments); /* another thread may end the operation */
  PyObject *const *args = PySequence_Fast_ITEMS(arguments);
  struct awaited awaited = {operation, false};
  enum answer answer = move(args, PyTuple_GET_SIZE(arguments), NULL, take == read_shortcut, &awaited, &result);
  Py_XDECREF(result);
  Py_DECREF(arguments);
  if (answer == TAKEN) return leave_to_python(engine.complete, operation, engine.empty);
  if (!awaited.is_begun) return NOT_MINE;
  return leave_to_python(engine.send_again, operation, NULL) == RAISED ? RAISED : NOT_MINE;
}
