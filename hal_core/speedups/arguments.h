/* Users' arguments: options by name, numbers, and numbers as bytes. */
#ifndef HAL_ARGUMENTS_H
#define HAL_ARGUMENTS_H

#include "speedups.h"

/* X(name): the keywords that shortcuts know, and the names of methods. */
#define NAMES(X)                                                                                   \
  X(acquire) X(add) X(all_gather) X(all_reduce) X(all_to_all) X(alloca) X(args) X(asked)           \
  X(barrier) X(begun) X(bindings) X(block) X(broadcast) X(clear) X(copy) X(dealloca) X(dispatch)   \
  X(dtype) X(execute) X(fill) X(grid) X(group) X(memory) X(offset) X(op) X(peer)            \
  X(queue) X(read) X(reads) X(receive) X(reduce) X(reduce_scatter) X(release) X(root) X(send)      \
  X(shared_memory) X(signal) X(size) X(source_offset) X(spin) X(sum) X(target) X(target_offset)    \
  X(timeout) X(wait) X(write) X(writes) X(_download) X(_execute) X(_upload)

#define NAME_INDEX(name) NAME_##name,
#define NAME_FIELD(name) PyObject *name;
enum name { NAMES(NAME_INDEX) NAME_COUNT };
extern union names {
  struct {
    NAMES(NAME_FIELD)
  };
  PyObject *all[NAME_COUNT];
} names_of;
#undef NAME_FIELD
#undef NAME_INDEX

int intern_names(void);

/* Sort the keyword arguments by `known` names into `options`; false if there is another one. */
bool read_options(PyObject *const *values, PyObject *names, const int *known, PyObject **options,
                  int count);

/* Read an int that fits; false for anything else, bool included. */
bool small_int(PyObject *object, long long *value);

/* The type code of `struct` for a plain dtype, and for numpy's scalar types; 0 for others. */
int set_codes(PyObject *parts);
char code_of(PyObject *dtype);

/* The plain dtype that a dtype or a type of numpy's means, borrowed; NULL for others. */
PyObject *plain_dtype(PyObject *given);

/* Return whether an object is one of a tuple's; NULL stands for all objects. */
bool is_among(PyObject *object, PyObject *tuple);

unsigned size_of(char code);

/* Write a number as little-endian bytes of a type; false if it does not fit, or is no plain number
 * for that type. A float rounds once, to the nearest. */
bool pack_number(char code, PyObject *value, unsigned char *bytes);

/* Read one to three counts from 1 on, within the limits of a grid. */
bool read_grid(PyObject *given, unsigned *grid);

/* Read the arguments of a launch: (function, grid, block, shared memory, parameters). */
bool read_launch(PyObject *node, struct native_call *call);

/* The methods of a queue, once their arguments are told apart; NULL stands for one that is not given. */
struct launch_options {
  PyObject *grid, *block, *args, *shared_memory;
};
enum answer fill(PyObject *queue, PyObject *buffer, PyObject *value, PyObject *start, PyObject *length,
                 const struct order *order, PyObject **result);
enum answer dispatch(PyObject *queue, PyObject *kernel, const struct launch_options *options,
                     const struct order *order, PyObject **result);
enum answer execute(PyObject *queue, PyObject *commands, PyObject *given, const struct order *order,
                    PyObject **result);

/* Read the arguments of a fill: (address, pattern, width, count). */
bool read_fill(PyObject *node, struct native_call *call);

/* Read the arguments of a copy: (target, source, size). */
bool read_copy(PyObject *node, struct native_call *call);

/* Read the call of a recording's node; false for one that has none here, or launches nothing. */
bool read_node(PyObject *node, struct native_call *call);

/* Read the native call of an operation, whose function is one of the device's; false for others. */
bool read_call(PyObject *queue, PyObject *function, PyObject *arguments, PyObject *resources,
               struct native_call *call);

/* See fills.c. */
uintptr_t address_of(PyObject *device, PyObject *buffer, long denied, PyObject **storage);

#endif
