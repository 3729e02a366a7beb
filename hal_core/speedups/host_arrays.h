/* Host arrays: what queues copy from and to them, and the reads that fill them. */
#ifndef HAL_HOST_ARRAYS_H
#define HAL_HOST_ARRAYS_H

#include "arguments.h"

/* Get the memory of a numpy array without gaps, which can be written if asked for; false for anything else. */
bool view_of(PyObject *array, bool is_written, Py_buffer *view);

/* Return whether an array's elements are those of a buffer, or bytes. */
bool is_alike(PyObject *array, PyObject *buffer);

/* Queue.write, which captures the bytes, and Queue.read, from `start` bytes of a buffer on. */
enum answer write_bytes(PyObject *queue, PyObject *buffer, long long start, const Py_buffer *host,
                        const struct order *order, PyObject **result);
enum answer read_bytes(PyObject *queue, PyObject *buffer, long long start, const Py_buffer *host,
                       const struct order *order, PyObject **result);

/* Return whether a read that may not have ended fills some of these bytes. */
bool may_be_filled(PyObject *reads, const Py_buffer *view);

/* Note a read that fills these bytes; false if that is left to Python. */
bool note_read(PyObject *reads, const Py_buffer *view, PyObject *submission);

#endif
