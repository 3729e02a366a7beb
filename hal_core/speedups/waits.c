/* Semaphore.at, Semaphore.wait and Submission.wait (rules S1, S6). */
#define _GNU_SOURCE /* CPU_COUNT, RTLD_DEFAULT */
#include "arguments.h" /* Python.h comes before the system's headers */
#include "issue.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <semaphore.h>

static double now(void) { return seconds_of(CLOCK_MONOTONIC); }

/* sem_clockwait of the C library, or NULL: glibc has it since 2.30, and musl has none. With the other clock, a sleep
 * becomes longer if that is set back. */
static int (*clockwait)(sem_t *, clockid_t, const struct timespec *);

/* sleep_at(semaphore, seconds): sleep at a POSIX semaphore until it is posted, or for a time, or until a signal
 * was handled; take all posts. Returns whether there was one. */
PyObject *sleep_at(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  sem_t *semaphore = count == 2 ? PyLong_AsVoidPtr(args[0]) : NULL;
  double seconds = semaphore ? PyFloat_AsDouble(args[1]) : 0;
  if (PyErr_Occurred()) return NULL;
  if (!semaphore) return PyErr_Format(PyExc_TypeError, "sleep_at takes a semaphore and a number");
  static bool has_looked;
  if (!has_looked) *(void **)&clockwait = dlsym(RTLD_DEFAULT, "sem_clockwait");
  has_looked = true;
  double end = seconds_of(clockwait ? CLOCK_MONOTONIC : CLOCK_REALTIME) + (seconds > 0 ? seconds : 0);
  struct timespec until = {.tv_sec = (time_t)end};
  until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
  int error;
  Py_BEGIN_ALLOW_THREADS
  error = clockwait ? clockwait(semaphore, CLOCK_MONOTONIC, &until) : sem_timedwait(semaphore, &until);
  if (error) error = errno;
  Py_END_ALLOW_THREADS
  if (error == EINTR && PyErr_CheckSignals()) return NULL;
  bool is_posted = !error;
  while (!sem_trywait(semaphore)) is_posted = true;
  return PyBool_FromLong(is_posted);
}

/* at(semaphore, value) */
enum answer at_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  long long value;
  if (count != 2 || names || !PyObject_TypeCheck(args[0], engine.Timeline)) return NOT_MINE;
  if (!small_int(args[1], &value) || value < 0) return NOT_MINE;
  PyObject *timepoint = make_object(NEW_Timepoint);
  if (!timepoint) return RAISED;
  *slot_of(timepoint, Timepoint__semaphore) = Py_NewRef(args[0]);
  *slot_of(timepoint, Timepoint__value) = Py_NewRef(args[1]);
  *result = timepoint;
  return TAKEN;
}

static const double nap_seconds = 10e-3;   /* how long a submission is asked, with naps between */
static const double crowded_seconds = 50e-6; /* as hal._engine.waiting._CROWDED_SECONDS */
static const double watch_seconds = 50e-6;  /* as hal._base.sync.Doorbell.spin */
enum { EAGER_TURNS = 4 };

/* How long to nap after so long a wait. A nap ends 50 microseconds late by itself, and what it costs is 5 per cent of
 * that. */
static double nap_after(double waited) {
  static const double shortest = 50e-6, part = 1.0 / 32;
  return waited * part > shortest ? waited * part : shortest;
}

static void nap(double seconds) {
  nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* After a millisecond, or 100 microseconds where others want the processor, there are naps between, if a driver's
 * notification of a sleeping thread comes later (130 to 300 microseconds on an H100); elsewhere it ends then. The
 * interpreter lock is let go between two questions, not while one is asked: then no other thread can destroy the
 * event meanwhile. */
enum answer spin(PyObject *operation, double seconds, double *late) {
  PyObject *queue = get(operation, Operation__queue);
  if (get(operation, Operation__state) != engine.issued) return NOT_MINE;
  if (!is_none(queue, StreamQueue__leader)) return NOT_MINE; /* another thread asks for all */
  enum answer answer = NOT_MINE;
  Py_INCREF(operation);
  double begun = 0, waited = 0, patience = ASK_SECONDS;
  for (int turn = 0;; turn++) {
    if (is_true(operation, Operation__retired)) {
      answer = TAKEN;
      break;
    }
    struct calls *calls = calls_of(queue);
    if (!calls || get(operation, Operation__state) != engine.issued) break;
    int status = ask(calls, operation);
    if (!status) {
      struct drops drops;
      drops.count = 0;
      if (!enter()) break;
      retire_completed(operation, &drops);
      leave();
      drop_all(&drops);
      if (is_true(operation, Operation__retired)) answer = TAKEN;
      break;
    }
    if (status != calls->not_ready) break;
    /* From now on the event is asked: a driver may do more to ask a stream. */
    if (!turn && !settle(get(operation, Operation__event))) break;
    double time = now();
    if (!turn) begun = time;
    if (time - begun - waited > crowded_seconds) patience = POLL_SECONDS;
    waited = time - begun;
    if (waited >= seconds || (waited >= patience && !calls->query_stream)) {
      *late = waited > 0 ? waited : POLL_SECONDS;
      break;
    }
    if (PyErr_CheckSignals()) {
      answer = RAISED;
      break;
    }
    double left = (waited >= patience || seconds < patience ? seconds : patience) - waited;
    void *event = pointer(get(operation, Operation__event), Event_handle);
    Py_BEGIN_ALLOW_THREADS
    if (waited >= patience) {
      double next = nap_after(waited);
      nap(next < left ? next : left);
    } else if (calls->await_event) {
      calls->await_event(event, (uint64_t)(left * 1e9));
    } else if (turn >= EAGER_TURNS || !calls->query_stream) {
      sched_yield(); /* at once where a thread does the work, which may have been woken on this processor */
    }
    Py_END_ALLOW_THREADS
  }
  Py_DECREF(operation);
  return answer;
}

/* For how long a watch pays, at most `seconds`: not at all on a single processor, nor where the last
 * watches were in vain, as on a machine with more threads than processors, where a thread that watches keeps the
 * other from running. There each eighth wait finds out whether that is still so, and watches for twice as
 * long, because the other thread sleeps by then. */
static double time_to_watch(unsigned *in_vain, double seconds) {
  enum { PATIENCE = 3, EACH = 8 };
  static int processors;
  cpu_set_t mine;
  if (!processors) processors = sched_getaffinity(0, sizeof mine, &mine) ? 1 : CPU_COUNT(&mine);
  if (processors == 1) return 0;
  if (*in_vain > PATIENCE) return (*in_vain)++ % EACH ? 0 : seconds;
  return seconds < watch_seconds ? seconds : watch_seconds;
}

/* Watch a timeline that a thread is to signal, for some 50 microseconds; true if the caller is to
 * sleep. A thread that sleeps is woken twice, by its own lock and by the interpreter's, and one that watches by
 * neither: it reads two slots without the interpreter lock. The value's object cannot come back as
 * another one's, because a reference is held. */
static bool watch(PyObject *timeline, long long value, double seconds) {
  enum { LOOKS = 16, REST = 64 };
  static unsigned in_vain;
  double most = time_to_watch(&in_vain, seconds);
  if (most <= 0) return true;
  PyObject **value_at = slot_of(timeline, Timeline__value), **failure_at = slot_of(timeline, Timeline__failure);
  double end = now() + most;
  bool is_late = false;
  while (!is_late && number(timeline, Timeline__value) < value && is_none(timeline, Timeline__failure)) {
    PyObject *seen = Py_NewRef(*value_at);
    Py_BEGIN_ALLOW_THREADS
    bool has_news = false;
    while (!has_news && !is_late) {
      for (int i = 0; i < LOOKS && !has_news; i++) {
        relax();
        has_news = __atomic_load_n(value_at, __ATOMIC_RELAXED) != seen ||
                   __atomic_load_n(failure_at, __ATOMIC_RELAXED) != Py_None;
      }
      is_late = !has_news && now() >= end;
    }
    /* The thread that signals still has the interpreter lock, and lets it go soon if it waits for an answer: a thread
     * that asked for it at once would sleep until then, and be woken late. */
    for (int i = 0; has_news && i < REST; i++) relax();
    Py_END_ALLOW_THREADS
    Py_DECREF(seen);
  }
  if (!is_late) in_vain = 0;
  if (is_late && seconds >= watch_seconds) in_vain++;
  return is_late;
}

bool read_seconds(PyObject *given, double most, double *seconds) {
  *seconds = most;
  if (!given || given == Py_None) return true;
  double value;
  long long whole;
  if (PyFloat_CheckExact(given)) {
    value = PyFloat_AS_DOUBLE(given);
  } else if (small_int(given, &whole)) {
    value = (double)whole;
  } else {
    return false;
  }
  if (!(value >= 0)) return false;
  if (value < *seconds) *seconds = value;
  return true;
}

/* Read (self[, value][, timeout]); the time-out is NULL if there is none. */
static bool read_wait(PyObject *const *args, Py_ssize_t count, PyObject *names, Py_ssize_t needed,
                      double most, PyObject **given, double *seconds) {
  PyObject *timeout = NULL;
  static const int known[] = {NAME_timeout};
  if (count < needed || count > needed + 1) return false;
  if (!read_options(args + count, names, known, &timeout, 1)) return false;
  if (count > needed) {
    if (timeout) return false;
    timeout = args[needed];
  }
  *given = timeout;
  return read_seconds(timeout, most, seconds);
}

/* spin_for_operation(operation, timeout), and spin_for(semaphore, value, timeout) */
enum answer spin_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  double seconds;
  long long value;
  double late = 0;
  if (names || count < 2 || count > 3 || !read_seconds(args[count - 1], POLL_SECONDS, &seconds)) return NOT_MINE;
  PyObject *operation = args[0];
  if (count == 3) {
    if (!PyObject_TypeCheck(args[0], engine.Timeline) || !small_int(args[1], &value) || value < 0) return NOT_MINE;
    operation = covering(args[0], value);
    if (!operation) {
      *result = Py_NewRef(Py_False);
      return TAKEN;
    }
  }
  if (Py_TYPE(operation) != engine.Submission) return NOT_MINE;
  enum answer answer = spin(operation, seconds, &late);
  *result = late || answer == TAKEN ? Py_NewRef(Py_True) : NULL;
  return late ? TAKEN : answer;
}

/* Have Python make a timepoint of a submission, and wait for that; it was asked for so many seconds. */
static enum answer sleep_for(PyObject *operation, PyObject *timeout, double late, PyObject **result) {
  PyObject *asked = PyFloat_FromDouble(late), *begun = PyFloat_FromDouble(now() - late);
  if (asked && begun)
    *result = PyObject_CallFunctionObjArgs(engine.sleep, operation, timeout ? timeout : Py_None, asked, begun, NULL);
  Py_XDECREF(asked);
  Py_XDECREF(begun);
  return *result ? TAKEN : RAISED;
}

/* Wait for the value of a semaphore, which was watched or asked for so many seconds since then. */
static enum answer sleep_at_value(PyObject *const *args, PyObject *timeout, double seconds, double late, double begun,
                                  PyObject **result) {
  PyObject *timepoint = NULL;
  if (at_shortcut(args, 2, NULL, &timepoint) != TAKEN) return RAISED;
  PyObject *entries = PyTuple_Pack(1, timepoint);
  Py_DECREF(timepoint);
  if (!entries) return RAISED;
  enum answer answer = wait_for_entries(entries, timeout ? timeout : Py_None, seconds, late, begun, result);
  Py_DECREF(entries);
  return answer;
}

/* wait(submission, timeout) */
enum answer submission_wait_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names,
                                     PyObject **result) {
  double seconds;
  PyObject *timeout;
  if (!read_wait(args, count, names, 1, nap_seconds, &timeout, &seconds)) return NOT_MINE;
  PyObject *operation = args[0];
  if (Py_TYPE(operation) != engine.Submission) return NOT_MINE;
  double late = 0;
  PyObject *state = get(operation, Operation__state);
  bool is_patient = !timeout || timeout == Py_None; /* a copy does not end in time */
  if (state == engine.sent && is_patient && copy_for(operation) == RAISED) return RAISED;
  if (state == engine.issued && spin(operation, seconds, &late) == RAISED) return RAISED;
  if (late) return sleep_for(operation, timeout, late, result);
  if (get(operation, Operation__state) != engine.done) return NOT_MINE;
  *result = Py_NewRef(Py_None);
  return TAKEN;
}

/* wait(semaphore, value, timeout) */
enum answer wait_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  double seconds;
  long long value;
  PyObject *timeline = args[0], *timeout;
  if (!read_wait(args, count, names, 2, INFINITY, &timeout, &seconds)) return NOT_MINE;
  if (!PyObject_TypeCheck(timeline, engine.Timeline)) return NOT_MINE;
  if (!small_int(args[1], &value) || value < 0 || !is_none(timeline, Timeline__failure)) return NOT_MINE;
  if (number(timeline, Timeline__value) < value) {
    PyObject *operation = covering(timeline, value);
    double late = 0, begun = now(), first = seconds < ASK_SECONDS ? seconds : ASK_SECONDS;
    if (operation && spin(operation, first, &late) == RAISED) return RAISED;
    first = seconds < POLL_SECONDS ? seconds : POLL_SECONDS;
    if (!operation && Py_TYPE(timeline) == engine.Semaphore && watch(timeline, value, first)) late = POLL_SECONDS;
    if (late) return sleep_at_value(args, timeout, seconds, late, begun, result);
    if (!is_none(timeline, Timeline__failure) || number(timeline, Timeline__value) < value) return NOT_MINE;
  }
  *result = Py_NewRef(Py_None);
  return TAKEN;
}
