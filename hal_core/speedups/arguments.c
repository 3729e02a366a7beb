/* Users' arguments: options by name, numbers, and numbers as bytes. */
#include "arguments.h"

#include <math.h>

union names names_of;

static const char *const name_texts[] = {
#define TEXT(name) #name,
    NAMES(TEXT)
#undef TEXT
};

int intern_names(void) {
  for (int i = 0; i < NAME_COUNT; i++)
    if (!(names_of.all[i] = PyUnicode_InternFromString(name_texts[i]))) return -1;
  return 0;
}

bool read_options(PyObject *const *values, PyObject *names, const int *known, PyObject **options,
                  int count) {
  Py_ssize_t given = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < given; i++) {
    int j = 0;
    while (j < count && PyTuple_GET_ITEM(names, i) != names_of.all[known[j]]) j++; /* interned */
    if (j == count) return false;
    options[j] = values[i];
  }
  return true;
}

bool small_int(PyObject *object, long long *value) {
  if (!PyLong_CheckExact(object)) return false;
  int overflow;
  *value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return !overflow;
}

enum { MOST_CODES = 16 };
static struct coded {
  PyObject *type;
  char code;
} dtypes[MOST_CODES], scalars[MOST_CODES], types[MOST_CODES];

/* Keep (object, code) pairs for good. */
static int set_some(PyObject *parts, const char *name, struct coded *kept) {
  PyObject *pairs = PyDict_GetItemString(parts, name);
  if (!pairs || !PyTuple_Check(pairs) || PyTuple_GET_SIZE(pairs) > MOST_CODES) {
    PyErr_Format(PyExc_TypeError, "%s: a short tuple of pairs is needed", name);
    return -1;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); i++) {
    const char *code;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, i), "Os", &kept[i].type, &code)) return -1;
    Py_INCREF(kept[i].type);
    kept[i].code = code[0];
  }
  return 0;
}

int set_codes(PyObject *parts) {
  if (set_some(parts, "dtypes", dtypes) < 0 || set_some(parts, "types", types) < 0) return -1;
  return set_some(parts, "scalars", scalars);
}

char code_of(PyObject *dtype) {
  for (int i = 0; i < MOST_CODES; i++)
    if (dtypes[i].type == dtype) return dtypes[i].code;
  return 0;
}

bool is_among(PyObject *object, PyObject *tuple) {
  if (!tuple) return true;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
    if (PyTuple_GET_ITEM(tuple, i) == object) return true;
  return false;
}

PyObject *plain_dtype(PyObject *given) {
  if (code_of(given)) return given;
  for (int i = 0; i < MOST_CODES && types[i].type; i++) {
    if (types[i].type != given) continue;
    for (int j = 0; j < MOST_CODES; j++)
      if (dtypes[j].code == types[i].code) return dtypes[j].type;
  }
  return NULL;
}

/* The code of a numpy scalar's type: "i" for an integer, "f" for a float, "?"; 0 for others. */
static char scalar_kind(PyTypeObject *type) {
  for (int i = 0; i < MOST_CODES; i++)
    if (scalars[i].type == (PyObject *)type) return scalars[i].code;
  return 0;
}

unsigned size_of(char code) {
  switch (code) {
    case 'b': case 'B': case '?': return 1;
    case 'h': case 'H': case 'e': return 2;
    case 'i': case 'I': case 'f': return 4;
    default: return 8;
  }
}

static bool is_float_code(char code) { return code == 'e' || code == 'f' || code == 'd'; }

static bool pack_integer(char code, PyObject *value, unsigned char *bytes) {
  uint64_t bits;
  if (code == 'Q') {
    bits = PyLong_AsUnsignedLongLong(value);
    if (bits == (uint64_t)-1 && PyErr_Occurred()) return false;
  } else {
    int overflow;
    long long given = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow || (given == -1 && PyErr_Occurred())) return false;
    int width = 8 * (int)size_of(code);
    if (code >= 'a') { /* signed */
      if (width < 64 && (given < -(1LL << (width - 1)) || given >= 1LL << (width - 1))) return false;
    } else if (given < 0 || given >= 1LL << width) {
      return false;
    }
    bits = (uint64_t)given;
  }
  memcpy(bytes, &bits, size_of(code));
  return true;
}

static bool pack_float(char code, double value, unsigned char *bytes) {
  if (code == 'd') {
    memcpy(bytes, &value, 8);
    return true;
  }
  if (code == 'e') return PyFloat_Pack2(value, (char *)bytes, 1) == 0;
  float single = (float)value;
  if (isfinite(value) && !isfinite(single)) return false;
  memcpy(bytes, &single, 4);
  return true;
}

static bool pack(char code, PyObject *value, unsigned char *bytes) {
  if (PyFloat_CheckExact(value))
    return is_float_code(code) && pack_float(code, PyFloat_AS_DOUBLE(value), bytes);
  if (PyLong_CheckExact(value)) {
    if (code == '?') return false;
    if (!is_float_code(code)) return pack_integer(code, value, bytes);
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    /* Beyond that a double rounds, and rounding twice may differ from rounding once. */
    if (overflow || number > 1LL << 53 || number < -(1LL << 53)) return false;
    return pack_float(code, (double)number, bytes);
  }
  if (PyBool_Check(value)) {
    bytes[0] = value == Py_True;
    return code == '?';
  }
  switch (scalar_kind(Py_TYPE(value))) {
    case 'i': {
      PyObject *number = code == '?' ? NULL : PyNumber_Index(value);
      bool is_packed = number && PyLong_CheckExact(number) && pack(code, number, bytes);
      Py_XDECREF(number);
      return is_packed;
    }
    case 'f': {
      PyObject *number = is_float_code(code) ? PyNumber_Float(value) : NULL;
      bool is_packed = number && pack_float(code, PyFloat_AsDouble(number), bytes);
      Py_XDECREF(number);
      return is_packed;
    }
    case '?': {
      bytes[0] = PyObject_IsTrue(value) == 1;
      return code == '?';
    }
    default: return false;
  }
}

bool pack_number(char code, PyObject *value, unsigned char *bytes) {
  bool is_packed = pack(code, value, bytes);
  if (!is_packed) PyErr_Clear();
  return is_packed;
}
