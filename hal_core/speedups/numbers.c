/* Bases of the engine's classes whose commonest numbers are C's: a Python integer for each cost a pair of alloca and
 * dealloca a sixth of its time. Python sees them as attributes. */
#include "speedups.h"

#include <structmember.h>

#define NUMBER(type, field, name) {name, T_LONGLONG, offsetof(struct type, field), 0, NULL}

/* Return a base whose objects are made with zeros. */
#define BASE(type, python_name, doc, members)                                                      \
  {                                                                                                \
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hal._speedups." python_name,                         \
    .tp_basicsize = sizeof(struct type), .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,     \
    .tp_doc = PyDoc_STR(doc), .tp_members = members, .tp_new = PyType_GenericNew,                  \
  }

static PyMemberDef operation_members[] = {
    NUMBER(operation_numbers, sequence, "_sequence"),
    NUMBER(operation_numbers, launched, "_launched"),
    {0},
};

static PyMemberDef queue_members[] = {
    NUMBER(queue_numbers, sequence, "_sequence"),
    NUMBER(queue_numbers, launched, "_launched"),
    NUMBER(queue_numbers, retired, "_retired"),
    {0},
};

static PyMemberDef books_members[] = {NUMBER(books_numbers, pooled, "pooled"), {0}};

PyTypeObject operation_numbers_type = BASE(operation_numbers, "OperationNumbers", "Numbers of operations.", operation_members);
PyTypeObject queue_numbers_type = BASE(queue_numbers, "QueueNumbers", "Numbers of queues.", queue_members);
PyTypeObject books_numbers_type = BASE(books_numbers, "BooksNumbers", "Numbers of books.", books_members);
