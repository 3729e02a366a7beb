/* Semaphore.at, Semaphore.wait and Submission.wait (rules S1, S6). */
#define _GNU_SOURCE /* CPU_COUNT */
#include "arguments.h" /* Python.h comes before the system's headers */

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <time.h>

/* sleep_at(semaphore, seconds): sleep at a POSIX semaphore until it is posted, or for a time, or until a signal
 * was handled; take all posts. Returns whether there was one. */
PyObject *sleep_at(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  sem_t *semaphore = count == 2 ? PyLong_AsVoidPtr(args[0]) : NULL;
  double seconds = semaphore ? PyFloat_AsDouble(args[1]) : 0;
  if (PyErr_Occurred()) return NULL;
  if (!semaphore) return PyErr_Format(PyExc_TypeError, "sleep_at takes a semaphore and a number");
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  double nanoseconds = (double)end.tv_nsec + 1e9 * (seconds > 0 ? seconds : 0);
  end.tv_sec += (time_t)(nanoseconds / 1e9);
  end.tv_nsec = (long)(nanoseconds - 1e9 * (double)(time_t)(nanoseconds / 1e9));
  int error;
  Py_BEGIN_ALLOW_THREADS
  error = sem_timedwait(semaphore, &end) ? errno : 0;
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
  PyObject *timepoint = engine.Timepoint->tp_alloc(engine.Timepoint, 0);
  if (!timepoint) return RAISED;
  *slot_of(timepoint, Timepoint__semaphore) = Py_NewRef(args[0]);
  *slot_of(timepoint, Timepoint__value) = Py_NewRef(args[1]);
  *result = timepoint;
  return TAKEN;
}

static const double poll_seconds = 100e-6; /* as hal._engine.waiting has it */
static const double watch_seconds = 50e-6;  /* as hal._base.sync.Gate.spin */
enum { EAGER_TURNS = 4 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Ask an operation's event until it is complete and retired, for 100 microseconds at the most; `*is_late` if
 * that was in vain. The interpreter lock is let go between two questions, not while one is asked: then no
 * other thread can destroy the event meanwhile. RAISED if a signal handler raises. */
static enum answer spin(PyObject *operation, double seconds, bool *is_late) {
  PyObject *queue = get(operation, Operation__queue);
  if (get(operation, Operation__state) != engine.issued) return NOT_MINE;
  if (!is_none(queue, StreamQueue__leader)) return NOT_MINE; /* another thread asks for all */
  enum answer answer = NOT_MINE;
  Py_INCREF(operation);
  double end = 0;
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
    if (!turn) end = time + seconds;
    *is_late = time >= end;
    if (*is_late) break;
    if (PyErr_CheckSignals()) {
      answer = RAISED;
      break;
    }
    Py_BEGIN_ALLOW_THREADS
    if (turn >= EAGER_TURNS) sched_yield();
    Py_END_ALLOW_THREADS
  }
  Py_DECREF(operation);
  return answer;
}

/* For how long a watch pays, at most `seconds`: not at all on a single processor, nor where the last
 * watches were in vain, as on a machine with more threads than processors, where who watches keeps the
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

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Watch a timeline that a thread is to signal, for some 50 microseconds; true if the caller is to
 * sleep. Who sleeps is woken twice, by its own lock and by the interpreter's, and who watches by
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
    /* Who signals has the interpreter lock yet, and lets it go soon if it waits for an answer then:
     * whoever asks for it before sleeps. */
    for (int i = 0; has_news && i < REST; i++) relax();
    Py_END_ALLOW_THREADS
    Py_DECREF(seen);
  }
  if (!is_late) in_vain = 0;
  if (is_late && seconds >= watch_seconds) in_vain++;
  return is_late;
}

/* Read a time-out: at most 100 microseconds of it are spent here. */
static bool read_timeout(PyObject *given, double *seconds) {
  *seconds = poll_seconds;
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
                      PyObject **given, double *seconds) {
  PyObject *timeout = NULL;
  static const int known[] = {NAME_timeout};
  if (count < needed || count > needed + 1) return false;
  if (!read_options(args + count, names, known, &timeout, 1)) return false;
  if (count > needed) {
    if (timeout) return false;
    timeout = args[needed];
  }
  *given = timeout;
  return read_timeout(timeout, seconds);
}

/* spin_for_operation(operation, timeout), and spin_for(semaphore, value, timeout) */
enum answer spin_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  double seconds;
  long long value;
  bool is_late = false;
  if (names || count < 2 || count > 3 || !read_timeout(args[count - 1], &seconds)) return NOT_MINE;
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
  enum answer answer = spin(operation, seconds, &is_late);
  *result = is_late || answer == TAKEN ? Py_NewRef(Py_True) : NULL;
  return is_late ? TAKEN : answer;
}

/* Have Python wait for a semaphore or a submission, without asking or watching again. */
static enum answer sleep_for(PyObject *waited, PyObject *value, PyObject *timeout, PyObject **result) {
  *result = PyObject_CallFunctionObjArgs(engine.sleep, waited, value, timeout ? timeout : Py_None, NULL);
  return *result ? TAKEN : RAISED;
}

/* wait(submission, timeout) */
enum answer submission_wait_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names,
                                     PyObject **result) {
  double seconds;
  PyObject *timeout;
  if (!read_wait(args, count, names, 1, &timeout, &seconds)) return NOT_MINE;
  PyObject *operation = args[0];
  if (Py_TYPE(operation) != engine.Submission) return NOT_MINE;
  bool is_late = false;
  if (get(operation, Operation__state) != engine.done && spin(operation, seconds, &is_late) == RAISED) return RAISED;
  if (is_late) return sleep_for(operation, engine.zero, timeout, result);
  if (get(operation, Operation__state) != engine.done) return NOT_MINE;
  *result = Py_NewRef(Py_None);
  return TAKEN;
}

/* wait(semaphore, value, timeout) */
enum answer wait_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  double seconds;
  long long value;
  PyObject *timeline = args[0], *timeout;
  if (!read_wait(args, count, names, 2, &timeout, &seconds)) return NOT_MINE;
  if (!PyObject_TypeCheck(timeline, engine.Timeline)) return NOT_MINE;
  if (!small_int(args[1], &value) || value < 0 || !is_none(timeline, Timeline__failure)) return NOT_MINE;
  if (number(timeline, Timeline__value) < value) {
    PyObject *operation = covering(timeline, value);
    bool is_late = false;
    if (operation && spin(operation, seconds, &is_late) == RAISED) return RAISED;
    if (!operation && Py_TYPE(timeline) == engine.Semaphore) is_late = watch(timeline, value, seconds);
    if (is_late) return sleep_for(timeline, args[1], timeout, result);
    if (!is_none(timeline, Timeline__failure) || number(timeline, Timeline__value) < value) return NOT_MINE;
  }
  *result = Py_NewRef(Py_None);
  return TAKEN;
}
