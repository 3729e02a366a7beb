/* The issue of an operation, fresh or pending (design section 5, "issue" and "publish").
 *
 * What `hal._engine.backlog.claim` and `hal._engine.issuing` do for an operation in front of which
 * nothing stands: waits that are reached or recorded on streams of the same driver, signals that
 * only threads and operations wait for, room in the stream. */
#ifndef HAL_ISSUE_H
#define HAL_ISSUE_H

#include "speedups.h"

enum { MOST_WAITS = 16, MOST_SIGNALS = 8, MOST_BITS = 62 };

/* Values whose keys in a register fit. */
#define MOST_VALUE (LLONG_MAX / 2 - 1)

/* The operation that waits longest for the lowest value of a timeline, as a register has it. All are borrowed. */
struct waiting {
  PyObject *waiters, *key, *bucket;
  PyObject *operation; /* NULL: others wait there */
  long long bit;       /* of the wait among the operation's, if it is one of the first MOST_BITS; else 0 */
};

/* What is made before the lock is taken, and what is found out under it. */
struct issue {
  PyObject *queue, *context;
  struct calls *calls;
  PyObject *operation;            /* the handle */
  PyObject *waits, *signals;      /* tuples */
  PyObject *dependencies;         /* a list with room for all waits, or NULL */
  int signal_count, awaited_count; /* of the entries below that are set */
  Py_ssize_t more; /* native launches besides one, and waits */
  bool is_empty; /* nothing is enqueued but waits and an event */
  bool has_lock; /* the timeline lock is held */
  bool blocks;   /* its native call may block on any stream */
  bool is_kept;  /* tracked memory will refer to the operation */
  bool is_pending; /* it stands in line, first in its turn */
  struct waiting waiting; /* and there, if it is released by a timeline */
  bool has_followers; /* operations wait for its signals */
  bool is_wanted;     /* Python is to have it retired as it ends */

  /* For native calls that may block, and let the interpreter lock go */
  bool lets_go;
  PyObject *held;                   /* a list with room for the awaited, whose events are held; else NULL */

  /* A function of the engine's and its argument, for what is left to do without the lock; or NULL */
  PyObject *rest, *rest_of;

  PyObject *points[MOST_SIGNALS];   /* (value, operation) for each signal */
  PyObject *reserved[MOST_SIGNALS]; /* what was reserved of their timelines before; for calls that let the lock go */
  PyObject *awaited[MOST_WAITS];    /* operations on other streams to wait for, borrowed */
};

/* Clear all but the arrays: most submissions have no entry in these, and to clear them takes as long as 50 other
 * instructions. */
static inline void clear(struct issue *self) { memset(self, 0, offsetof(struct issue, points)); }

/* What an operation does besides its native call: to memory of allocas, or to its group. */
struct effect {
  PyObject *lock; /* the heap's, held meanwhile; NULL: there is none */
  bool (*may)(struct effect *self, const struct issue *issue);          /* it changes nothing */
  void (*apply)(struct effect *self, PyObject *operation, struct drops *drops); /* once it is issued */
};

/* `submit` with another effect than to note the uses of its resources. */
enum answer submit_with(PyObject *queue, PyObject *kind, const struct native_call *call,
                        PyObject *resources, const struct order *order, struct effect *effect,
                        PyObject **result);

/* What the calls of an execution take, made before the lock is taken; empty for another operation than one that is
 * pending. */
struct run {
  PyObject *rebinder;      /* of a recording that is replayed on the stream */
  Py_ssize_t count, made;
  PyObject *rest;          /* what `go_on` takes */
  PyObject *pool, *lease, *reference; /* the instances of one that is a graph, and the operation's lease */
  PyObject *table;         /* of what stands for the slots; NULL: there are none */
  struct binding found[MOST_SLOTS];
};
bool prepare_run(PyObject *operation, struct run *self);
void drop_run(struct run *self);

/* Read its native calls, and lease the instance; false if Python has to. Under the lock. */
bool read_run(PyObject *queue, struct run *self, struct native_call *call);

/* Make the points and the list of dependencies of an operation, which has its signals by now. */
bool make_room(struct issue *self);
void let_go(struct issue *self);

/* Have the native calls let the interpreter lock go, if they may block. Without it an operation whose
 * calls may block has no room. Before the lock is taken; false if it cannot be. */
bool prepare_to_let_go(struct issue *self);

/* Return whether the queue and its context take an operation now, whose backlog may have `length`
 * operations; this and what follows under the lock. Retires what has completed if that makes room. */
bool has_room(struct issue *self, Py_ssize_t length, struct drops *drops);

/* Find out what the waits stand for; false if one is not recorded on a stream of the driver. */
bool resolve(struct issue *self);

/* Return whether an operation that waits for a value would wait for itself. */
bool waits_for_itself(const struct issue *self, PyObject *timeline, long long value);

/* Return whether the signals can be reserved (S1). */
bool may_reserve(const struct issue *self);

/* Return whether the signals can be reserved and published: only threads and operations wait for them. */
bool may_signal(const struct issue *self);

/* Make the native calls and the changes. NOT_MINE if a call failed, and nothing is on the stream.
 *
 * Calls that may block are made with the queue's baton, without the interpreter lock and the timeline
 * lock; the latter is held again afterwards only if it was free, see `has_lock`. The baton passes to
 * the Python engine if it has to publish the operation, or to record its event; also if a pending one's call fails. */
enum answer issue(struct issue *self, const struct native_call *call, struct drops *drops);

/* Return whether a timepoint is reached, and whether it is neither that nor recorded on a stream. */
static inline bool is_reached(PyObject *timepoint) {
  return number(get(timepoint, Timepoint__semaphore), Timeline__value) >= number(timepoint, Timepoint__value);
}
static inline bool is_unmet(PyObject *timepoint) {
  return !is_reached(timepoint) &&
         !covering(get(timepoint, Timepoint__semaphore), number(timepoint, Timepoint__value));
}

/* ---- backlog.c ---- */

/* Return whether an operation is likely to stand in line. No lock held, so this is a guess. */
bool is_early(const struct issue *self);

/* What the engine issues, and keeps until it has ended. */
struct payload {
  PyObject *function, *arguments, *resources;
};

/* Make that of an execution (executions.c), whose resources get a lease of their own. */
bool make_payload(const struct native_call *call, PyObject *resources, struct payload *made);

/* Have a fresh operation stand in line. `call` has the engine's function; `effect` has no drops. */
enum answer stand_in_line(struct issue *self, const struct native_call *call, PyObject *resources,
                          struct effect *effect);

/* Remove an operation that is claimed from its line, and from the register that has released it. */
void leave_line(const struct issue *self);

/* Return whether an operation of a backlog waits for more than its turn. */
static inline bool is_held_back(PyObject *operation) {
  return get(operation, Operation__state) == engine.zero && get(operation, Operation__unresolved) != engine.zero;
}

/* ---- registers.c: under the lock ---- */

/* Make a register, or a bucket of one waiter, and add that. NULL or false with an exception. */
PyObject *new_register(void);
PyObject *new_bucket(PyObject *waiter, Py_ssize_t index);
bool add_bucket(PyObject *waiters, PyObject *key, PyObject *bucket);

/* Return whether only threads wait for at most a value, and with `with_operations` operations; and tell the threads. */
bool may_tell(PyObject *waiters, long long value, bool with_operations);
void tell(PyObject *waiters, long long value, struct drops *drops);

/* Return whether somebody waits until a value is reached. */
bool is_wanted(PyObject *timeline, long long value);

/* Have the progress thread retire an operation as soon as it ends; false if Python is to. */
bool want(PyObject *operation);

/* Find who waits first until at most a value is recorded; false if nobody does. */
bool find_waiting(PyObject *timeline, long long value, struct waiting *found);
void leave_register(const struct waiting *found);

/* Register a thread for a timepoint, unless it is there: in `_reached` or in `_recorded`. False if that failed. */
bool register_thread(PyObject *thread, PyObject *timepoint, enum slot until);

/* Tell a thread that one of the things that it waits for is there, which wakes it if that was the last. */
void count_down(PyObject *thread);

/* ---- waits.c ---- */

/* How long a waiter asks without a pause, as hal._engine.waiting has it. */
#define POLL_SECONDS 100e-6
#define ASK_SECONDS 1e-3

/* Ask an operation's event until it is complete and retired, for so many seconds; `*late` is how long if that was in
 * vain. RAISED if a signal handler raises. */
enum answer spin(PyObject *operation, double seconds, double *late);

/* Read a time-out, of which at most so much is spent. */
bool read_seconds(PyObject *given, double most, double *seconds);

/* ---- sleepers.c ---- */

/* Wait for a tuple of timepoints, for `seconds` from `begun` on; the caller has `asked` or watched them for so long. */
enum answer wait_for_entries(PyObject *entries, PyObject *timeout, double seconds, double asked, double begun,
                             PyObject **result);

/* ---- signals.c ---- */

/* Issue operations that wait for the signals of one that is issued, with that answer. No lock held. */
enum answer release_behind(const struct issue *issue, enum answer answer);

/* Have the Python engine do what is left, once the lock is released. */
enum answer finish(struct issue *self, enum answer answer);

/* ---- marks.c ---- */

/* The event of an operation. */
struct mark {
  PyObject *event;  /* that of the operation before, borrowed, if both have the same, or NULL */
  bool is_recorded; /* behind this operation, now */
};

/* Find out how the end of an operation is marked. One that enqueues nothing ends with the operation before; an alloca
 * does not, since its pool may have put a wait of its own on the stream, which others are to come after. An event
 * that was put off is recorded behind this one, or later, if nobody sees that; else it is recorded before. False if
 * that failed. */
bool choose_mark(const struct issue *self, const struct native_call *call, struct mark *mark);

#endif
