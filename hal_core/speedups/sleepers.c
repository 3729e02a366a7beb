/* Threads that sleep until timepoints are reached (rule S6): what `hal._engine.waiting.HostWaiter` does where a thread
 * is to signal one of them, or submit what does. It is told by the one that does, and then takes no step of Python's:
 * those took longer than the system takes to wake it.
 *
 * Between its steps the thread holds no lock, and nothing is half done, so signal handlers may run. Failures and
 * time-outs are left to Python, and so are waits for work that is on streams already: it has the driver ring. */
#include "arguments.h" /* Python.h comes before the system's headers */
#include "issue.h"

#include <math.h>

/* A wait for all of some timepoints. */
struct wait {
  PyObject *entries; /* a tuple */
  Py_ssize_t count;  /* those behind the first so many are reached */
  double end;        /* of its time, by the monotonic clock */
  double asked;      /* for so long since the last news it has asked or watched */
  PyObject *thread;  /* the HostWaiter, while it is registered */
};

/* What a wait finds. */
enum view { REACHED, RECORDED, OPEN, FAILED };

static PyObject *operation_of(PyObject *entry) {
  return covering(get(entry, Timepoint__semaphore), number(entry, Timepoint__value));
}

static enum view look(struct wait *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->entries); i++)
    if (!is_none(get(PyTuple_GET_ITEM(self->entries, i), Timepoint__semaphore), Timeline__failure)) return FAILED;
  while (self->count && is_reached(PyTuple_GET_ITEM(self->entries, self->count - 1))) self->count--;
  if (!self->count) return REACHED;
  for (Py_ssize_t i = self->count; i-- > 0;)
    if (is_unmet(PyTuple_GET_ITEM(self->entries, i))) return OPEN;
  return RECORDED;
}

/* Take a doorbell that nobody sleeps at; a new reference. */
static PyObject *take_bell(void) {
  Py_ssize_t count = PyList_GET_SIZE(engine.bells);
  if (!count) return PyObject_CallNoArgs((PyObject *)engine.Doorbell);
  PyObject *bell = Py_NewRef(PyList_GET_ITEM(engine.bells, count - 1));
  if (PyList_SetSlice(engine.bells, count - 1, count, NULL) < 0) Py_CLEAR(bell);
  return bell;
}

/* Make what stands for the thread in registers, asleep; false with an exception. */
static bool prepare(struct wait *self) {
  PyObject *thread = engine.HostWaiter->tp_alloc(engine.HostWaiter, 0);
  if (!(self->thread = thread)) return false;
  *slot_of(thread, HostWaiter__is_asleep) = Py_NewRef(Py_True);
  *slot_of(thread, HostWaiter__missing) = Py_NewRef(engine.one); /* registration; nobody wakes it before the end of that */
  *slot_of(thread, HostWaiter__registered) = PyList_New(0);
  *slot_of(thread, HostWaiter__leads) = PyList_New(0);
  *slot_of(thread, HostWaiter__bell) = take_bell();
  return get(thread, HostWaiter__registered) && get(thread, HostWaiter__leads) && get(thread, HostWaiter__bell);
}

/* Register for entries from `*next` on, for a while; false if that is not the plain case. One is awaited until an
 * operation that signals it is recorded, which the thread asks; several until they are reached, and the progress thread
 * retires what is recorded. Under the lock. */
static bool register_some(struct wait *self, Py_ssize_t *next, PyObject *unwatched) {
  enum { HOLD = 64 }; /* as hal._engine.waiting has it */
  enum slot until = self->count > 1 ? Timeline__reached : Timeline__recorded;
  for (Py_ssize_t last = *next + HOLD; *next < self->count && *next < last; (*next)++) {
    PyObject *entry = PyTuple_GET_ITEM(self->entries, *next), *operation = operation_of(entry);
    if (!is_none(get(entry, Timepoint__semaphore), Timeline__failure)) return false;
    if (is_reached(entry) || (operation && until == Timeline__recorded)) continue;
    if (!register_thread(self->thread, entry, until)) return false;
    if (operation && !want(operation) && PyList_Append(unwatched, operation) < 0) return false;
  }
  return true;
}

/* Register for all entries. */
static enum answer register_all(struct wait *self) {
  PyObject *unwatched = PyList_New(0);
  bool is_done = unwatched;
  for (Py_ssize_t next = 0; is_done && next < self->count;) {
    if (!(is_done = enter_at_last())) break;
    is_done = register_some(self, &next, unwatched);
    if (is_done && next >= self->count) count_down(self->thread);
    leave();
  }
  enum answer answer = is_done ? TAKEN : PyErr_Occurred() ? RAISED : NOT_MINE;
  for (Py_ssize_t i = 0; answer == TAKEN && i < PyList_GET_SIZE(unwatched); i++) {
    PyObject *operation = PyList_GET_ITEM(unwatched, i);
    bool is_wanted = false;
    if (enter()) {
      is_wanted = want(operation); /* Python has the queue watched since the first */
      leave();
    }
    if (!is_wanted) answer = leave_to_python(engine.want, operation, NULL);
  }
  Py_XDECREF(unwatched);
  return answer;
}

/* Call a method of the doorbell; false with an exception. */
static bool call(const struct wait *self, PyObject *method, PyObject *argument) {
  PyObject *bell = get(self->thread, HostWaiter__bell);
  PyObject *done = PyObject_CallMethodObjArgs(bell, method, argument, NULL);
  Py_XDECREF(done);
  return done;
}

/* Sleep until the thread is told; NOT_MINE if its time is up. */
static enum answer sleep_until_told(const struct wait *self) {
  /* What rings from now on is kept. A thread that rang before has cleared `_is_asleep` first. */
  bool is_fine = call(self, names_of.clear, NULL) && (self->asked || call(self, names_of.spin, NULL));
  while (is_fine && is_true(self->thread, HostWaiter__is_asleep)) {
    double left = self->end - seconds_of(CLOCK_MONOTONIC);
    if (left <= 0) return NOT_MINE;
    PyObject *seconds = PyFloat_FromDouble(left);
    is_fine = seconds && call(self, names_of.wait, seconds);
    Py_XDECREF(seconds);
  }
  return is_fine ? TAKEN : RAISED;
}

/* Register, sleep, and leave no registration behind. */
static enum answer sleep_for_news(struct wait *self) {
  /* Whatever a step does, it first repairs what this thread has left broken. */
  PyObject *resumed = PyObject_CallFunctionObjArgs(engine.act, engine.resume, Py_None, Py_None, NULL);
  Py_XDECREF(resumed);
  if (resumed == Py_True) return TAKEN; /* what it waits for may have been recorded */
  enum answer answer = resumed && prepare(self) ? register_all(self) : RAISED;
  if (answer == TAKEN) answer = sleep_until_told(self);
  self->asked = 0;
  PyObject *bell = self->thread ? get(self->thread, HostWaiter__bell) : NULL;
  bool has_one = self->count == 1;
  if (answer == TAKEN && (has_one || look(self) == REACHED)) { /* who told it has taken it from the registers */
    if (PyList_Append(engine.bells, bell) < 0) PyErr_Clear();
  } else if (bell && leave_to_python(engine.leave, self->thread, NULL) == RAISED) {
    answer = RAISED;
  }
  Py_CLEAR(self->thread);
  return answer;
}

/* Ask the operation that is to signal the last entry, which is retired with all that it comes after. */
static enum answer ask_last(struct wait *self) {
  double left = self->end - seconds_of(CLOCK_MONOTONIC);
  PyObject *operation = operation_of(PyTuple_GET_ITEM(self->entries, self->count - 1));
  if (self->asked || !operation) return NOT_MINE;
  return spin(operation, left < ASK_SECONDS ? left : ASK_SECONDS, &self->asked);
}

static enum answer wait_here(struct wait *self) {
  enum answer answer = TAKEN;
  while (answer == TAKEN) {
    enum view view = look(self);
    if (view == REACHED) return TAKEN;
    if (view == FAILED || seconds_of(CLOCK_MONOTONIC) >= self->end) return NOT_MINE;
    answer = view == OPEN ? sleep_for_news(self) : ask_last(self);
  }
  return answer;
}

enum answer wait_for_entries(PyObject *entries, PyObject *timeout, double seconds, double asked, double begun,
                             PyObject **result) {
  struct wait self = {.entries = entries, .count = PyTuple_GET_SIZE(entries), .end = begun + seconds, .asked = asked};
  enum answer answer = wait_here(&self);
  if (answer == TAKEN) *result = Py_NewRef(Py_None);
  if (answer != NOT_MINE) return answer;
  PyObject *late = PyFloat_FromDouble(self.asked), *since = PyFloat_FromDouble(begun);
  if (late && since) *result = PyObject_CallFunctionObjArgs(engine.wait_all, entries, timeout, late, since, NULL);
  Py_XDECREF(late);
  Py_XDECREF(since);
  return *result ? TAKEN : RAISED;
}

static bool are_timepoints(PyObject *entries) {
  if (!PyTuple_CheckExact(entries)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
    PyObject *entry = PyTuple_GET_ITEM(entries, i);
    if (Py_TYPE(entry) != engine.Timepoint || !get(entry, Timepoint__value)) return false;
    if (number(entry, Timepoint__value) > MOST_VALUE) return false;
  }
  return true;
}

/* wait_all(entries, timeout, *, asked, begun) */
enum answer wait_all_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  static const int known[] = {NAME_asked, NAME_begun};
  PyObject *options[] = {engine.zero, Py_None};
  double seconds, asked, begun;
  if (count != 2 || !read_options(args + count, names, known, options, 2)) return NOT_MINE;
  if (!is_ours(engine.lock)) return NOT_MINE;
  if (!are_timepoints(args[0]) || !read_seconds(args[1], INFINITY, &seconds)) return NOT_MINE;
  if (!read_seconds(options[0], INFINITY, &asked)) return NOT_MINE;
  if (!read_seconds(options[1], seconds_of(CLOCK_MONOTONIC), &begun)) return NOT_MINE;
  return wait_for_entries(args[0], args[1], seconds, asked, begun, result);
}
