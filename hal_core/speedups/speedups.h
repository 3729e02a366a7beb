/* hal._speedups: shortcuts for the commonest cases of hot calls.
 *
 * The Python engine (hal/_engine) describes the algorithm. A shortcut takes a call of a user's,
 * looks whether it is one of the common cases, and if so brings the engine's objects into the
 * state that the Python code would have brought them into. Otherwise it changes nothing, and the
 * Python function runs from its beginning.
 *
 * From its first look at shared state to its last change a shortcut is one atomic step. It
 * - holds the timeline lock, which it takes only if nobody holds it (`enter`),
 * - keeps the interpreter lock, also in native calls,
 * - runs no Python code: it allocates what the collector tracks before it takes the lock, and
 *   drops references after it has released it.
 * So no other thread, signal handler or finaliser ever sees it half done, and there is nothing to
 * recover.
 *
 * A native call that blocks with the interpreter lock kept is a dead-lock if the device waits for
 * Python code, such as a host function of CuPy's. A launch blocks when about 1,000 wait in the
 * stream, or in others that share its hardware channel, which nobody can ask about. So the lock is
 * kept only on streams that nobody else fills, and only while few of ours wait there
 * (`most_launches`). Elsewhere a submission is two steps (`issue.c`): it takes the queue's baton,
 * makes its native calls without either lock, and publishes the operation. The baton keeps others
 * from the stream meanwhile, as it does while the Python engine makes native calls.
 *
 * The objects are instances of Python classes with __slots__. `slots.c` finds out where the slots
 * are, so that a shortcut reads and writes them as fields.
 */
#ifndef HAL_SPEEDUPS_H
#define HAL_SPEEDUPS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "slots.h"

#if PY_VERSION_HEX < 0x030B0000
#error "Python 3.11 or later"
#endif

/* What a shortcut answers */
enum answer {
  NOT_MINE, /* nothing has changed; the Python function is to run */
  TAKEN,    /* the result is there */
  RAISED,   /* a Python exception is set */
};

/* ---- slots.c: the classes and their slots ---- */

/* Return whether a type is called with keywords, which none here takes; then an exception is set. */
bool has_keywords(PyTypeObject *type, PyObject *keywords);

/* The objects that `install` is given besides classes, and the numbers. */
#define PARTS(X)                                                                                            \
  X(lock)                                         /* the timeline lock */                                   \
  X(act) X(act_or_put_off) X(put_last) X(resume)  /* call a step's function, at once or later; one of these */ \
  X(complete_issue)                               /* records the missing event, and publishes */            \
  X(take_back)                                    /* takes back a claim */                                  \
  X(go_on)                                        /* makes the rest of a recording's calls */               \
  X(launch_graph)                                 /* Playback's method that launches it */                  \
  X(harvest_some)                                 /* retires what C cannot */                               \
  X(issue_ready)                                  /* issues what is ready */                                \
  X(release_again) X(release_some)                /* release those that wait, here or later */              \
  X(want)                                         /* has an operation retired as it ends */                 \
  X(sleep) X(wait_all)                            /* wait for what was watched or asked in vain */          \
  X(leave)                                        /* takes a thread's registrations back */                 \
  X(prepare)                                      /* records an operation of a group */                     \
  X(put_off)                                      /* a dict of calls that later ones must not overtake */   \
  X(bells)                                        /* a list of doorbells that nobody sleeps at */           \
  X(heappop) X(heappush)                                                                                    \
  X(complete) X(send_again)                       /* end a host operation, or leave it to the pool */       \
  X(issued) X(issuing) X(sent) X(running) X(done) /* states, small numbers */                               \
  X(cached_way) X(async_way) X(device_memory)     /* parts of what an alloca makes */                       \
  X(no_bucket) X(gone) X(many_uses) X(bytes)                                                                \
  X(deallocated)                                  /* the bit of a buffer that was given back */             \
  X(host_memory)                                                                                            \
  X(held)                                         /* a step that never ends: owns a copy stream in these hands */
#define NUMBERS(X)                                                                                          \
  X(denied_write) X(denied_read)                  /* bits of a buffer's rights that a dispatch needs */     \
  X(denied_target) X(denied_source)               /* and a fill; and a copy, of what it reads */            \
  X(large)                                        /* the most bytes of a block of the cache */              \
  X(alignment) X(recent)                          /* of memory, in bytes; of sizes in keys of recent pieces, in bits */ \
  X(harvest_mask)                                                                                           \
  X(budget)                                       /* operations that one signal issues itself */            \
  X(chunk)                                        /* the most bytes of one native fill */                   \
  X(small)                                        /* of a write, which captures them */                     \
  X(part)                                         /* and of a copy that blocks, which no Ctrl-C ends */     \
  X(most_blocks) X(most_blocks_yz)                /* of a grid: in x, and in each of the others */

#define CLASS_FIELD(name) PyTypeObject *name;
#define PART_FIELD(name) PyObject *name;
#define NUMBER_FIELD(name) long name;

/* What `install` was given, and what is made of it. */
extern struct engine {
  CLASSES(CLASS_FIELD)
  PARTS(PART_FIELD)
  NUMBERS(NUMBER_FIELD)
  PyObject *settle;                                       /* Python: watches over an operation of a group */
  PyObject *watched;                                      /* the set of the groups that are watched over */
  PyObject *zero, *one;
  PyObject *append, *popleft;                             /* names of methods of a deque */
  PyObject *empty, *at_once;                              /* (), (False,) */
  PyObject *waiting;                                      /* ("wait",) */
} engine;
#undef CLASS_FIELD
#undef PART_FIELD
#undef NUMBER_FIELD

/* What a clock shows. */
static inline double seconds_of(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The device of a queue, borrowed; NULL for what is no queue, or one whose __init__ never ended. */
static inline PyObject *device_of(PyObject *queue) {
  return PyObject_TypeCheck(queue, engine.Queue) ? get(queue, Queue__device) : NULL;
}

int install_engine(PyObject *classes, PyObject *parts);
int install_flow(PyObject *classes, PyObject *parts);
int install_groups(PyObject *classes, PyObject *parts);
int use_lock(PyObject *lock);

/* ---- numbers.c: bases of the engine's classes, with their commonest numbers (`hal._base.numbers`) ---- */

struct operation_numbers {
  PyObject_HEAD
  long long sequence, launched;
};
struct queue_numbers {
  PyObject_HEAD
  long long sequence, launched, retired;
};
struct books_numbers {
  PyObject_HEAD
  long long pooled;
};
extern PyTypeObject operation_numbers_type, queue_numbers_type, books_numbers_type;

static inline struct operation_numbers *of_operation(PyObject *operation) { return (struct operation_numbers *)operation; }
static inline struct queue_numbers *of_queue(PyObject *queue) { return (struct queue_numbers *)queue; }
static inline struct books_numbers *of_books(PyObject *books) { return (struct books_numbers *)books; }

/* ---- recycle.c: objects of the commonest classes, made of those that have ended ---- */

#define RECYCLED(X) X(Submission) X(Transient) X(Buffer) X(Block) X(BlockLease) X(Timepoint)

enum recycled {
#define NAME_IT(class) NEW_##class,
  RECYCLED(NAME_IT)
#undef NAME_IT
  RECYCLED_COUNT
};

/* Make an object whose slots have the defaults of its class, which stand in recycle.c; others are empty. */
PyObject *make_object(enum recycled class);

/* Take over the classes. */
int recycle_objects(void);

/* ---- calls.c: native functions by address ---- */

/* The functions of one native device, see hal.native.CallTable. */
struct calls {
  PyObject_HEAD
  int (*record_event)(void *event, void *stream);
  int (*wait_event)(void *stream, void *event, unsigned flags);
  int (*query_event)(void *event);
  int (*fill_8)(uintptr_t address, unsigned char value, size_t count, void *stream);
  int (*fill_16)(uintptr_t address, unsigned short value, size_t count, void *stream);
  int (*fill_32)(uintptr_t address, unsigned value, size_t count, void *stream);
  int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                unsigned bz, unsigned shared, void *stream, void **parameters, void **extra);
  int (*launch_graph)(void *instance, void *stream);
  int (*current)(void **context);
  void *context;
  int not_ready;
  int (*exchange_capture_mode)(int *mode);
  int most_launches;
  int (*allocate_async)(uintptr_t *address, size_t size, void *pool, void *stream);
  int (*free_async)(uintptr_t address, void *stream);
  void *pool;
  int (*update_launch)(void *instance, void *node, const void *parameters);
  /* Both, or neither: events are numbers in memory. */
  int (*write_value)(void *stream, uintptr_t address, uint64_t value, unsigned flags);
  int (*wait_value)(void *stream, uintptr_t address, uint64_t value, unsigned flags, uint64_t mask);
  int (*copy)(uintptr_t target, uintptr_t source, size_t size, void *stream);
  int (*synchronize_stream)(void *stream);
  int (*make_current)(void *context);
  int (*query_stream)(void *stream); /* no event is put off without */
  int (*await_event)(void *event, uint64_t nanoseconds);
  int users; /* threads that are in one of them without the interpreter lock */
};
extern PyTypeObject calls_type;
extern PyTypeObject meeting_type; /* meeting.c: groups of processes, on streams that are threads */

/* Wait for some ten cycles. */
static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* The table of a queue, if the calling thread may use it now; else NULL. The same of what may be one. */
struct calls *calls_of(PyObject *queue);
struct calls *usable_calls(PyObject *found);

/* Make calls that a capture of another library's forbids, which they would end (O1): with the mode
 * that `begin_relaxed` returns, -1 for an error, given to `end_relaxed`. */
int begin_relaxed(const struct calls *calls);
void end_relaxed(const struct calls *calls, int mode);

/* Record an event, have a stream wait for one, and ask whether an operation that has not retired is complete;
 * the status is the driver's, or -1. */
int record(const struct calls *calls, void *event, void *stream);
int wait_for(const struct calls *calls, void *stream, void *event);
int ask(const struct calls *calls, PyObject *operation);

/* The event behind an operation is *put off* (`Event.due`): later work on the stream has it recorded behind itself,
 * or code that has something wait for it has it recorded where the stream is then. To record an event costs as much as
 * to allocate. Only the last operations of a ring have one that is put off, and only while few launches are in
 * flight, so that to record it with the interpreter lock kept does not block. Whether such an operation is complete
 * is asked of the stream: an event that was recorded only for the question would not be complete yet. */

/* Record an event that was put off, which may be done at any time; false if that failed. */
bool settle(PyObject *event);

/* The same for the last operations of queues, before something that may fill streams. */
bool settle_all(PyObject *queues);

/* Ask the stream for an event that was put off, as `ask` does. */
int ask_stream(const struct calls *calls, PyObject *event);

/* A handle of the driver's, from a slot. */
void *pointer(PyObject *object, enum slot slot);

/* ---- guard.c: the timeline lock ---- */

/* Return whether a lock is an `OwnedLock`, or of Python 3.14's subclass (`hal._base.with_locks`). That of a forked child is
 * neither: it refuses all. */
bool is_ours(PyObject *lock);

/* Take the timeline lock if nobody has it. To wait for it would let the interpreter lock go, and what the shortcut has
 * looked at by then could change. */
bool enter(void);

/* Take it, and wait for that without the interpreter lock; false, mostly with an exception, if that cannot be. */
bool enter_at_last(void);

void leave(void);

/* The same for another lock of the engine, of the same kind. It is taken first: this allocates. */
bool enter_lock(PyObject *lock);
void leave_lock(PyObject *lock);

/* Take the timeline lock while that other one is held; NULL: none is. */
bool enter_behind(PyObject *lock);

/* Return whether somebody has a lock of Python's, and whether this thread has one that knows its owner. */
bool is_locked(PyObject *lock);
bool is_owned(PyObject *lock);

/* Call the engine for what is left to do, again if an interrupt ends the call, a few times: nobody else would do it.
 * The engine keeps what it has begun, but not a call that ends as it begins. RAISED if it raised, or if an exception
 * was set before, which stays. No lock held. The third argument may be NULL. */
enum answer call_for_sure(PyObject *function, PyObject *first, PyObject *second, PyObject *third);

/* The same, for a function that `hal._engine.progress.act` calls with its step; the second object may be NULL. */
enum answer leave_to_python(PyObject *step, PyObject *first, PyObject *second);

/* Objects whose references are dropped once the lock is released. */
enum { MOST_DROPS = 2048 };
struct drops {
  int count;
  PyObject *objects[MOST_DROPS];
};
static inline void drop_later(struct drops *drops, PyObject *object) {
  if (object) drops->objects[drops->count++] = object;
}
void drop_all(struct drops *drops);

/* Return an object of a deque, borrowed, by its place; a negative one counts from the end. NULL if there is none. */
PyObject *entry_of(PyObject *deque, Py_ssize_t index);

/* What a method of a type is in C; NULL if it is not of that kind. */
PyCFunction function_of(PyTypeObject *type, const char *name, int flags);

/* Append to a deque, false without memory; or remove its first object and return that. */
bool append_to(PyObject *deque, PyObject *object);
PyObject *pop_first(PyObject *deque);

/* ---- submit.c ---- */

/* Return the operation of the smallest recorded point that covers a value, borrowed, or NULL. */
PyObject *covering(PyObject *timeline, long long value);

/* Drop one count of an event. */
void release_event(PyObject *context, PyObject *event);

enum { MOST_WORDS = 8 };

/* A native call that an operation consists of. */
struct native_call {
  enum {
    CALL_FILL, CALL_COPY, CALL_LAUNCH, CALL_GRAPH, CALL_NODES, CALL_ALLOCATE, CALL_FREE, CALL_GATHER, CALL_NONE,
  } kind;
  /* For what may stand in line, borrowed: the engine's function, or the recording. Else NULL. */
  PyObject *function, *playback;
  /* What stands for a recording's slots, and the object that writes it into the launches; or NULL. */
  const struct binding *bindings;
  PyObject *rebinder;
  union {
    struct {
      uintptr_t address;
      unsigned pattern, width;
      size_t count;
    } fill;
    struct {
      uintptr_t target, source;
      size_t size;
    } copy;
    struct {
      void *function;
      unsigned grid[3], block[3], shared;
      void **parameters;
      Py_ssize_t count; /* of parameters that stand on the caller's stack, of 8 bytes each */
    } launch;
    struct {
      void *handle;
      PyObject *instance;
    } graph;
    struct {
      const struct native_call *all;
      Py_ssize_t count, *made;
      PyObject *rest; /* what `go_on` takes: (playback, how many are made, table), set if it is needed; NULL for one */
    } nodes;
    struct {
      size_t size;
      PyObject **address; /* set to a new reference */
    } allocate;
    uintptr_t free;
    struct { /* of a group of ranks */
      int (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);
      uintptr_t words[MOST_WORDS]; /* more than it takes are ignored, as C's calling conventions have it */
      int stream;                  /* the word that is the stream */
      int fine;                    /* a status that is success, too */
      int *status;
    } gather;
  };
};

/* Make a native call; the status is the driver's, or -1. */
int make_call(const struct calls *calls, const struct native_call *call, void *stream);

/* Calls.replay */
PyObject *replay(PyObject *calls, PyObject *const *args, Py_ssize_t count);

/* What an operation comes after and signals: the user's arguments, or NULL, and the uses of tracked
 * memory (tracking.c), or NULL. */
struct order {
  PyObject *wait, *signal;
  struct uses *uses;
};

/* Submit an operation on a queue. `kind` is the name of the queue's method; `resources` is what it
 * keeps alive, whose reference is taken if TAKEN. */
enum answer submit(PyObject *queue, PyObject *kind, const struct native_call *call,
                   PyObject *resources, const struct order *order, PyObject **result);

/* ---- rebind.c: executions with new bindings ---- */

enum { MOST_SLOTS = 32, MOST_FORMS = 4 };

struct uses;

/* What stands for a slot: an address, the bytes of a scalar in each of its forms, or a grid. */
struct binding {
  uint64_t values[MOST_FORMS];
};

/* Check a list or a tuple of bindings; false if they are not the plain case. `used` has `count` Nones
 * at first, in whose place a buffer's storage comes; `uses` are those of tracked ones, or NULL. */
bool read_bindings(PyObject *rebinder, PyObject *device, PyObject *bindings, Py_ssize_t count,
                   struct binding *found, PyObject **used, struct uses *uses);

/* What an instance holds, compared with bindings, and when its rebinder launched it last. */
struct held {
  enum {
    HELD_NOTHING, /* it has no rebinder */
    HELD_UNKNOWN, /* the Python engine has bound it last */
    HELD_OTHER,
    HELD_BEFORE, /* it held them not long ago */
    HELD_NOW,
  } what;
  long long used;
};
struct held what_is_held(PyObject *instance, const struct binding *bindings);

/* Return the engine's table of bindings, a new reference; and read one: false if it is not the plain case. */
PyObject *table_of(PyObject *rebinder, const struct binding *bindings);
bool read_table(PyObject *rebinder, PyObject *table, struct binding *found);

/* How many slots a recording has; and read its calls, if it is run on a stream. */
Py_ssize_t slots_of(PyObject *rebinder);
void read_calls(PyObject *rebinder, struct native_call *call);

/* Write an execution's bindings into the calls of its recording, or into the nodes of its graph. False if one cannot be
 * written, or if they may not be touched now: the Python engine writes all of them elsewhere, or anew. */
bool bind_anew(const struct calls *calls, const struct native_call *call);

/* Have nobody write into the calls of a recording while these are made without the interpreter lock. A graph's
 * instance is the stream's alone. */
void keep_bound(PyObject *rebinder, bool is_kept);

/* ---- retire.c ---- */

/* Retire what has completed on a queue, in its order; under the lock. Returns false if something
 * is left for the Python engine to look at. */
bool retire(PyObject *queue, struct drops *drops);

/* The same, with as few questions as will do for room: the newest that have completed may be left. */
bool retire_some(PyObject *queue, struct drops *drops);

/* The same up to an operation whose event has just answered that it is complete. */
bool retire_completed(PyObject *operation, struct drops *drops);

/* ---- the shortcuts, one file for each kind of call ---- */

/* The arguments as a vector call has them; keyword names may be NULL. */
typedef enum answer (*shortcut_function)(PyObject *const *args, Py_ssize_t count, PyObject *names,
                                         PyObject **result);

/* X(name): each shortcut by the name that Python asks for it, the function `name_shortcut`. */
#define SHORTCUTS(X)                                                                               \
  X(fill) X(copy) X(dispatch) X(execute) X(submit) X(queue_read) X(queue_write)                    \
  X(alloca) X(dealloca) X(allocate) X(read) X(write) X(wait_before)                                \
  X(at) X(signal) X(wait) X(wait_all) X(submission_wait) X(spin)                                   \
  X(all_gather) X(all_reduce) X(all_to_all) X(barrier) X(broadcast)                                \
  X(receive) X(reduce) X(reduce_scatter) X(send)                                                   \
  X(flow_fill) X(flow_dispatch) X(flow_execute) X(pipeline_run) X(routine)                         \
  X(reads_add) X(reads_check)
#define DECLARE(name)                                                                              \
  enum answer name##_shortcut(PyObject *const *, Py_ssize_t, PyObject *, PyObject **);
SHORTCUTS(DECLARE)
#undef DECLARE

/* Make the copy of a host operation that no thread has begun, and end the operation. TAKEN if it has ended; RAISED if a
 * signal handler raises. */
enum answer copy_for(PyObject *operation);

PyObject *sleep_at(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* release(semaphore, value): issue operations that wait for a value that is recorded or reached. */
PyObject *release_some(PyObject *module, PyObject *args);

/* retire(operation): retire an operation whose event is complete; false if the Python engine is to. */
PyObject *retire_through(PyObject *module, PyObject *operation);

/* ---- shortcut.c: the callable that stands in for a method ---- */

/* The function of C that it tries first; NULL for anything else. */
shortcut_function taken_by(PyObject *callable);

extern PyTypeObject owned_lock_type, packer_type, rebinder_type, shortcut_type;

#endif
