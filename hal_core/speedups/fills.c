/* Queue.fill: a number or bytes into a whole buffer or a part of one (rule C1). */
#include "speedups.h"

#include <math.h>

#include "arguments.h"

/* Make a pattern of up to 4 bytes of a number's bytes; a longer one must repeat itself. */
static bool shorten(uint64_t bits, unsigned size, unsigned *pattern, unsigned *width) {
  if (size == 8 && (uint32_t)bits != bits >> 32) return false;
  *width = size == 8 ? 4 : size;
  *pattern = (unsigned)bits;
  return true;
}

/* Make the pattern of a value for a buffer of a dtype. */
static bool pattern_of(PyObject *value, PyObject *dtype, unsigned *pattern, unsigned *width) {
  uint64_t bits = 0;
  if (PyBytes_CheckExact(value)) {
    Py_ssize_t size = PyBytes_GET_SIZE(value);
    if (size != 1 && size != 2 && size != 4) return false;
    memcpy(&bits, PyBytes_AS_STRING(value), (size_t)size);
    return shorten(bits, (unsigned)size, pattern, width);
  }
  if (!PyLong_CheckExact(value) && !PyFloat_CheckExact(value)) return false;
  char code = code_of(dtype);
  if (!code || code == '?' || code == 'e') return false;
  unsigned char bytes[8] = {0};
  if (!pack_number(code, value, bytes)) return false;
  memcpy(&bits, bytes, 8);
  return shorten(bits, size_of(code), pattern, width);
}

/* Return the address of a buffer that a device may use so, whose storage is given then, borrowed;
 * 0 if that is not the plain case. */
uintptr_t address_of(PyObject *device, PyObject *buffer, long denied, PyObject **storage) {
  if (!PyObject_TypeCheck(buffer, engine.Extent) || get(buffer, Extent__device) != device) return 0;
  if (number(buffer, Extent__denied) & denied || is_true(device, DeviceCore__closed)) return 0;
  *storage = get(buffer, Extent__storage);
  if (*storage == Py_None) return 0;
  PyObject *base = get(*storage, Storage_address);
  if (base == Py_None) return 0;
  return (uintptr_t)PyLong_AsUnsignedLongLong(base) + (uintptr_t)number(buffer, Extent__offset);
}

bool read_fill(PyObject *node, struct native_call *call) {
  call->kind = CALL_FILL;
  call->fill.address = (uintptr_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(node, 0));
  call->fill.pattern = (unsigned)PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(node, 1));
  call->fill.width = (unsigned)PyLong_AsLong(PyTuple_GET_ITEM(node, 2));
  call->fill.count = (size_t)PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(node, 3));
  return call->fill.width <= 4;
}

enum answer fill(PyObject *queue, PyObject *buffer, PyObject *value, PyObject *start, PyObject *length,
                 const struct order *order, PyObject **result) {
  PyObject *device = device_of(queue), *storage;
  if (!device) return NOT_MINE;
  uintptr_t address = address_of(device, buffer, engine.denied_target, &storage);
  if (!address) return NOT_MINE;
  long long whole = number(buffer, Extent__size), offset = 0;
  if (start && !small_int(start, &offset)) return NOT_MINE;
  if (offset < 0 || offset > whole) return NOT_MINE;
  long long size = whole - offset;
  if (length && length != Py_None && !small_int(length, &size)) return NOT_MINE;
  if (size <= 0 || size > whole - offset || size > engine.chunk) return NOT_MINE;
  struct native_call call = {.kind = CALL_FILL, .function = get(device, DeviceCore__fill)};
  if (!pattern_of(value, get(buffer, Extent__dtype), &call.fill.pattern, &call.fill.width))
    return NOT_MINE;
  address += (uintptr_t)offset;
  unsigned mask = call.fill.width - 1;
  if (address & mask || size & mask) return NOT_MINE;
  call.fill.address = address;
  call.fill.count = (size_t)size / call.fill.width;
  Py_INCREF(storage);
  enum answer answer = submit(queue, names_of.fill, &call, storage, order, result);
  Py_DECREF(storage);
  return answer;
}

/* fill(queue, buffer, value, *, offset, size, wait, signal) */
enum answer fill_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  enum { OFFSET, SIZE, WAIT, SIGNAL, OPTIONS };
  PyObject *options[OPTIONS] = {NULL};
  static const int known[OPTIONS] = {NAME_offset, NAME_size, NAME_wait, NAME_signal};
  if (count != 3 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  return fill(args[0], args[1], args[2], options[OFFSET], options[SIZE],
              &(struct order){options[WAIT], options[SIGNAL], NULL}, result);
}
