/* The host arrays that reads of buffers are filling (hal.flow.host_arrays.ReadsInFlight): noting one, and
 * looking whether any fills some bytes. Python does both where another thread has the lock. */
#include "host_arrays.h"

enum { START, STOP, SUBMISSION }; /* of what is noted */

/* Whether the __init__ of some reads has ended. */
static bool is_made(PyObject *reads) {
  return Py_TYPE(reads) == engine.ReadsInFlight && get(reads, ReadsInFlight__limit);
}

static bool is_free(PyObject *reads) { return !is_true(reads, ReadsInFlight__is_busy); }

static uintptr_t address_in(PyObject *read, int field) {
  return (uintptr_t)PyLong_AsSsize_t(PyTuple_GET_ITEM(read, field)); /* the unsigned one goes by way of bytes */
}

static bool is_over(PyObject *read) { return is_true(PyTuple_GET_ITEM(read, SUBMISSION), Operation__retired); }

/* Return the index of the first of some reads, in order, that begins at an address or behind it. */
static Py_ssize_t first_from(PyObject *reads, uintptr_t address) {
  Py_ssize_t low = 0, high = PyList_GET_SIZE(reads);
  while (low < high) {
    Py_ssize_t middle = (low + high) / 2;
    if (address_in(PyList_GET_ITEM(reads, middle), START) < address) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bool may_be_filled(PyObject *reads, const Py_buffer *view) {
  uintptr_t begin = (uintptr_t)view->buf, end = begin + (uintptr_t)view->len;
  if (!number(reads, ReadsInFlight__total)) return false;
  if (!is_free(reads)) return true;
  Py_ssize_t position = 0;
  PyObject *bits, *alike;
  while (PyDict_Next(get(reads, ReadsInFlight__sizes), &position, &bits, &alike)) {
    uintptr_t most = (uintptr_t)1 << PyLong_AsLong(bits);
    for (Py_ssize_t i = first_from(alike, begin > most ? begin - most : 0); i < PyList_GET_SIZE(alike); i++) {
      PyObject *read = PyList_GET_ITEM(alike, i);
      if (address_in(read, START) >= end) break;
      if (begin < address_in(read, STOP) && !is_over(read)) return true;
    }
  }
  return false;
}

/* check(reads, host, what): if no read may fill it */
enum answer reads_check_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  Py_buffer view;
  if (count != 3 || names || !is_made(args[0]) || !view_of(args[1], false, &view)) return NOT_MINE;
  bool is_over = !may_be_filled(args[0], &view);
  PyBuffer_Release(&view);
  if (!is_over) return NOT_MINE;
  *result = Py_NewRef(Py_None);
  return TAKEN;
}

/* Put a read among others, in the place of one that has ended and filled the same. */
static bool insert(PyObject *reads, PyObject *alike, uintptr_t start, uintptr_t stop, PyObject *submission) {
  long long total = number(reads, ReadsInFlight__total);
  Py_ssize_t index = first_from(alike, start);
  PyObject *same = index < PyList_GET_SIZE(alike) ? PyList_GET_ITEM(alike, index) : NULL;
  if (same && address_in(same, START) == start && address_in(same, STOP) == stop && is_over(same)) {
    if (Py_REFCNT(same) == 1) { /* nobody else sees the tuple change */
      Py_SETREF(((PyTupleObject *)same)->ob_item[SUBMISSION], Py_NewRef(submission));
      return true;
    }
    PyObject *read = PyTuple_Pack(3, PyTuple_GET_ITEM(same, START), PyTuple_GET_ITEM(same, STOP), submission);
    return read && !PyList_SetItem(alike, index, read);
  }
  if (total >= number(reads, ReadsInFlight__limit)) return false;
  PyObject *first = PyLong_FromSize_t(start), *last = PyLong_FromSize_t(stop), *grown = PyLong_FromLongLong(total + 1);
  PyObject *read = first && last && grown ? PyTuple_Pack(3, first, last, submission) : NULL;
  bool is_in = read && !PyList_Insert(alike, index, read);
  if (is_in) put(reads, ReadsInFlight__total, Py_NewRef(grown));
  Py_XDECREF(read);
  Py_XDECREF(grown);
  Py_XDECREF(last);
  Py_XDECREF(first);
  return is_in;
}

bool note_read(PyObject *reads, const Py_buffer *view, PyObject *submission) {
  uintptr_t start = (uintptr_t)view->buf;
  if (!view->len || !is_free(reads)) return false;
  PyObject *bits = PyLong_FromLong(64 - __builtin_clzll((size_t)view->len)); /* int.bit_length */
  PyObject *alike = bits ? PyDict_GetItemWithError(get(reads, ReadsInFlight__sizes), bits) : NULL;
  bool is_noted = alike && insert(reads, alike, start, start + (size_t)view->len, submission);
  Py_XDECREF(bits);
  if (!is_noted) PyErr_Clear();
  return is_noted;
}

/* add(reads, target, submission): if there is a list that has room for it */
enum answer reads_add_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  Py_buffer view;
  if (count != 3 || names || !is_made(args[0]) || !view_of(args[1], true, &view)) return NOT_MINE;
  bool is_noted = note_read(args[0], &view, args[2]);
  PyBuffer_Release(&view);
  if (!is_noted) return NOT_MINE;
  *result = Py_NewRef(Py_None);
  return TAKEN;
}
