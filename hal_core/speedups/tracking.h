/* The memory that an operation of a flow uses, and what it comes after therefore. */
#ifndef HAL_TRACKING_H
#define HAL_TRACKING_H

#include "speedups.h"

enum { MOST_USES = 32 };

/* Return whether an object is a flow that nobody traces. */
bool is_untraced(PyObject *flow);

struct uses {
  PyObject *flow, *of_slots; /* borrowed: a list of what is done with each slot of a recording */
  bool takes_raw;            /* other buffers, too: their uses are there already */
  Py_ssize_t count;
  struct use {
    PyObject *access;           /* as hal.flow.tracking.TrackedAccess */
    PyObject *writer, *readers; /* of its history, as `add_waits` has found them */
    PyObject *later;            /* the readers with the operation, if it reads */
  } all[MOST_USES];
};

/* Begin with no use. An initializer would clear a kibibyte. */
static inline void begin_uses(struct uses *self, PyObject *flow) {
  self->flow = flow;
  self->of_slots = NULL;
  self->takes_raw = false;
  self->count = 0;
}
void let_uses_go(struct uses *self);

/* Add an access; false for too many. */
bool add_use(struct uses *self, PyObject *access);

/* Add the accesses of a list. */
bool use_directly(struct uses *self, PyObject *accesses);

/* Add the use of a tracked buffer of the flow; return the raw one, borrowed, or NULL for anything else. */
PyObject *raw_of(struct uses *self, PyObject *buffer, bool is_written);

/* The same for what a slot takes, which may be a number. */
PyObject *bound_of(struct uses *self, Py_ssize_t slot, PyObject *given);

/* Replace a tuple of the user's waits by one that also has what the uses by an operation come after; false
 * if that is not the plain case. */
bool add_waits(struct uses *self, PyObject *operation, PyObject **waits);

/* Return whether nobody has used the memory since, and no other thread is about to. */
bool are_current(const struct uses *self);

/* Remember the uses by the operation, which is issued. Both under the timeline lock. */
void remember(struct uses *self, PyObject *operation, struct drops *drops);

#endif
