/* Semaphore.signal, and the issue of the operations that waited for it, or for what those signal (rules S2, Q1). */
#include "arguments.h"
#include "issue.h"

/* The timelines whose operations are released, up to a value each, and how many operations still may be. Each
 * operation adds its signals at most. A list and no recursion: what is released releases others in its turn, and a
 * chain of those may be longer than the stack is deep. */
enum { MOST_RELEASED = 64, MOST_TIMELINES = (1 + MOST_RELEASED) * MOST_SIGNALS };
struct releases {
  int count, budget;
  struct {
    PyObject *timeline, *value; /* the user's int: to leave the rest to Python takes no memory */
  } all[MOST_TIMELINES];
};

static void begin_releases(struct releases *self) {
  self->count = 0;
  self->budget = engine.budget < MOST_RELEASED ? (int)engine.budget : MOST_RELEASED;
}

static void add_release(struct releases *self, PyObject *timeline, PyObject *value) {
  self->all[self->count].timeline = Py_NewRef(timeline);
  self->all[self->count++].value = Py_NewRef(value);
}

static void add_signals(struct releases *self, PyObject *signals) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(signals, i);
    add_release(self, get(signal, Timepoint__semaphore), get(signal, Timepoint__value));
  }
}

/* Read the native call of a pending operation. */
static bool read_pending(PyObject *operation, struct run *run, struct native_call *call) {
  PyObject *function = get(operation, Operation__function), *arguments = get(operation, Operation__arguments);
  if (function == Py_None) {
    call->kind = CALL_NONE; /* else it takes or gives memory */
    return Py_TYPE(operation) == engine.Submission && arguments == engine.empty;
  }
  PyObject *queue = get(operation, Operation__queue);
  return read_call(queue, function, arguments, get(operation, Operation__resources), call) || read_run(queue, run, call);
}

/* What becomes of an operation that is released. */
enum turn { NOBODY, UNUSUAL, STANDS, NEXT };

/* Find the next operation that a timeline releases; under the lock. */
static enum turn look(PyObject *timeline, long long value, struct waiting *found) {
  if (!find_waiting(timeline, value, found)) return NOBODY;
  PyObject *operation = found->operation;
  if (!operation || get(operation, Operation__state) != engine.zero) return UNUSUAL;
  if (PyTuple_GET_SIZE(get(operation, Operation__waits)) > MOST_BITS) return UNUSUAL;
  PyObject *queue = get(operation, Operation__queue);
  long long unresolved = number(operation, Operation__unresolved), wanted = integer(found->key) >> 1;
  if (!(unresolved & found->bit) || !is_none(timeline, Timeline__failure)) return UNUSUAL;
  if (number(timeline, Timeline__value) < wanted) {
    PyObject *point = covering(timeline, wanted);
    if (!point || get(get(point, Operation__queue), StreamQueue__domain) != get(queue, StreamQueue__domain))
      return UNUSUAL;
  }
  if (unresolved != found->bit) return STANDS;
  PyObject *backlog = get(queue, StreamQueue__backlog);
  if (is_true(queue, StreamQueue__ordered)) return entry_of(backlog, 0) == operation ? NEXT : STANDS;
  return PyObject_Length(backlog) ? UNUSUAL : NEXT;
}

/* Return the operation that is first in a queue's line, borrowed, if it is not held back; NULL if there is none. It may
 * have ended: then Python removes it. */
static PyObject *first_ready(PyObject *queue) {
  if (!is_true(queue, StreamQueue__ordered) || !is_none(queue, StreamQueue__issuing)) return NULL;
  PyObject *first = entry_of(get(queue, StreamQueue__backlog), 0);
  return first && !is_held_back(first) ? first : NULL;
}

/* Return whether it is still an operation's turn: to make objects may have run code of the user's. The timeline is NULL
 * for an operation that was found in its queue's line. */
static bool is_next(struct issue *self, PyObject *timeline, long long value) {
  PyObject *operation = self->operation;
  /* Somebody may have asked for a timepoint of its own. */
  if (get(operation, Operation__signals) != self->signals || get(operation, Operation__state) != engine.zero)
    return false;
  if (!timeline) return first_ready(self->queue) == operation;
  return look(timeline, value, &self->waiting) == NEXT && self->waiting.operation == operation;
}

/* Issue a pending operation whose turn it is, and which is released by a timeline, if one is given. `*has_more` if the
 * next in its line is ready. */
static enum answer issue_pending(struct releases *all, PyObject *operation, PyObject *timeline, long long value,
                                 bool *has_more) {
  *has_more = false;
  struct issue self;
  clear(&self);
  self.operation = Py_NewRef(operation);
  self.is_pending = true;
  struct native_call call = {.kind = CALL_FILL};
  struct drops drops;
  drops.count = 0;
  self.queue = get(operation, Operation__queue);
  self.context = get(self.queue, StreamQueue__context);
  self.waits = Py_NewRef(get(operation, Operation__waits));
  self.signals = Py_NewRef(get(operation, Operation__signals));
  self.is_empty = is_none(operation, Operation__function);
  struct run run;
  bool is_ready = prepare_run(operation, &run);
  if (run.count) self.more = run.count - 1;
  enum answer answer = NOT_MINE;
  bool is_small = PyTuple_GET_SIZE(self.waits) <= MOST_WAITS && PyTuple_GET_SIZE(self.signals) <= MOST_SIGNALS;
  if (is_ready && is_small && make_room(&self) && (self.calls = calls_of(self.queue)) && prepare_to_let_go(&self) &&
      (self.has_lock = enter())) {
    Py_ssize_t length = PyObject_Length(get(self.queue, StreamQueue__backlog));
    if (is_next(&self, timeline, value) && has_room(&self, length, &drops) && read_pending(operation, &run, &call) &&
        resolve(&self) && may_signal(&self))
      answer = issue(&self, &call, &drops);
    if (self.has_lock) *has_more = answer == TAKEN && !self.rest && first_ready(self.queue);
    if (self.has_lock) leave();
  }
  PyErr_Clear();
  answer = finish(&self, answer);
  if (self.has_followers) add_signals(all, self.signals);
  drop_all(&drops); /* only now: code of the user's runs, which may wait for the queue */
  let_go(&self);
  drop_run(&run);
  return answer;
}

/* Issue what is ready in a queue's line. */
static enum answer go_through(struct releases *all, PyObject *queue) {
  enum answer answer = TAKEN;
  bool has_more = true;
  while (has_more && answer == TAKEN && all->budget > 0 && enter()) {
    PyObject *first = Py_XNewRef(first_ready(queue));
    leave();
    if (!first) return TAKEN;
    all->budget--;
    answer = issue_pending(all, first, NULL, 0, &has_more);
    Py_DECREF(first);
  }
  return has_more || answer == NOT_MINE ? leave_to_python(engine.issue_ready, queue, NULL) : answer;
}

/* Release the next operation of the last timeline. NOT_MINE if that is not the plain case; `*is_over` if there is none. */
static enum answer release_one(struct releases *all, bool *is_over) {
  PyObject *timeline = all->all[all->count - 1].timeline, *operation = NULL;
  long long value = integer(all->all[all->count - 1].value);
  struct waiting found;
  if (!enter()) return NOT_MINE;
  enum turn turn = look(timeline, value, &found);
  if (turn == NEXT) operation = Py_NewRef(found.operation);
  if (turn == STANDS) {
    PyObject *unresolved = PyLong_FromLongLong(number(found.operation, Operation__unresolved) & ~found.bit);
    if (unresolved) {
      put(found.operation, Operation__unresolved, unresolved);
      leave_register(&found);
    } else {
      PyErr_Clear();
      turn = UNUSUAL; /* Python repeats it */
    }
  }
  leave();
  *is_over = turn == NOBODY;
  if (turn == UNUSUAL) return NOT_MINE;
  if (*is_over) return TAKEN;
  all->budget--;
  if (turn == STANDS) return TAKEN;
  bool has_more = false;
  enum answer answer = issue_pending(all, operation, timeline, value, &has_more);
  PyObject *queue = get(operation, Operation__queue);
  if (has_more) answer = answer == TAKEN ? go_through(all, queue) : leave_to_python(engine.issue_ready, queue, NULL);
  Py_DECREF(operation);
  return answer;
}

/* Release what there is, up to the budget, unless an exception is set; the progress thread does the rest. */
static enum answer release_all(struct releases *self, enum answer answer) {
  while (self->count) {
    PyObject *rest = engine.release_some;
    bool is_over = true;
    int last = self->count - 1;
    if (self->budget > 0 && answer == TAKEN) {
      is_over = false;
      answer = release_one(self, &is_over);
      if (answer == TAKEN && !is_over) continue;
      rest = answer == NOT_MINE ? engine.release_again : is_over ? NULL : rest;
    }
    /* It may have added others, which are behind it. */
    PyObject *timeline = self->all[last].timeline, *value = self->all[last].value;
    self->all[last] = self->all[--self->count];
    PyObject *how = rest == engine.release_some ? engine.put_last : engine.act_or_put_off;
    if (rest) answer = call_for_sure(how, rest, timeline, value);
    Py_DECREF(timeline);
    Py_DECREF(value);
  }
  return answer;
}

enum answer release_behind(const struct issue *issue, enum answer answer) {
  struct releases all;
  begin_releases(&all);
  add_signals(&all, issue->signals);
  return release_all(&all, answer);
}

PyObject *release_some(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *timeline, *value;
  if (!PyArg_ParseTuple(args, "O!O!", engine.Semaphore, &timeline, &PyLong_Type, &value)) return NULL;
  struct releases all;
  begin_releases(&all);
  add_release(&all, timeline, value);
  if (release_all(&all, TAKEN) == RAISED) return NULL;
  Py_RETURN_NONE;
}

/* Raise the value; false if that is not the plain case. Under the lock. */
static bool raise_value(PyObject *timeline, PyObject *value, long long to, struct drops *drops) {
  PyObject *recorded = get(timeline, Timeline__recorded), *reached = get(timeline, Timeline__reached);
  if (!is_none(timeline, Timeline__failure) || PyDict_GET_SIZE(engine.put_off)) return false;
  if (to <= number(timeline, Timeline__reserved)) return false;
  if (PyList_GET_SIZE(get(timeline, Timeline__points))) return false;
  if (!may_tell(recorded, to, true) || !may_tell(reached, to, false)) return false;
  put(timeline, Timeline__reserved, Py_NewRef(value));
  put(timeline, Timeline__value, Py_NewRef(value));
  tell(recorded, to, drops);
  tell(reached, to, drops);
  return true;
}

/* signal(semaphore, value) */
enum answer signal_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  long long value;
  if (count != 2 || names || !PyObject_TypeCheck(args[0], engine.Semaphore)) return NOT_MINE;
  if (!small_int(args[1], &value) || value < 0 || value > MOST_VALUE) return NOT_MINE;
  PyObject *timeline = args[0];
  struct drops drops;
  drops.count = 0;
  if (!enter()) return NOT_MINE;
  bool is_raised = raise_value(timeline, args[1], value, &drops);
  bool has_operations = is_raised && !is_none(timeline, Timeline__recorded);
  leave();
  drop_all(&drops);
  if (!is_raised) return NOT_MINE;
  struct releases all;
  begin_releases(&all);
  if (has_operations) add_release(&all, timeline, args[1]);
  if (release_all(&all, TAKEN) == RAISED) return RAISED;
  *result = Py_NewRef(Py_None);
  return TAKEN;
}
