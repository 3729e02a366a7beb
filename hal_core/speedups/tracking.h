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
  Py_ssize_t count, found;
  PyObject *accesses[MOST_USES]; /* as hal.flow.tracking.TrackedAccess */
  PyObject *readers[MOST_USES];  /* a dict for each history that gets its first reader, or NULL */
};
void let_uses_go(struct uses *self);

/* Add an access; false for too many. */
bool add_use(struct uses *self, PyObject *access);

/* Add the accesses of a list. */
bool use_directly(struct uses *self, PyObject *accesses);

/* Add the use of a tracked buffer of the flow; return the raw one, borrowed, or NULL for anything else. */
PyObject *raw_of(struct uses *self, PyObject *buffer, bool is_written);

/* The same for what a slot takes, which may be a number. */
PyObject *bound_of(struct uses *self, Py_ssize_t slot, PyObject *given);

/* Replace a tuple of the user's waits by one that also has what the uses come after; false if that is
 * not the plain case. */
bool add_waits(struct uses *self, PyObject **waits);

/* Return whether these are still the waits, and no other thread is about to use the memory. */
bool are_current(const struct uses *self, PyObject *waits);

/* Remember the uses by an operation that is issued. Both under the timeline lock. */
void remember(const struct uses *self, PyObject *operation, PyObject *queue, struct drops *drops);

#endif
