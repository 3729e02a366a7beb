/* The issue of an operation; see issue.h. */
#include "issue.h"

#include "arguments.h"

PyObject *covering(PyObject *timeline, long long value) {
  PyObject *points = get(timeline, Timeline__points);
  Py_ssize_t low = 0, high = PyList_GET_SIZE(points);
#define POINT(i) integer(PyTuple_GET_ITEM(PyList_GET_ITEM(points, i), 0))
  if (!high || POINT(high - 1) < value) return NULL;
  if (high == 1 || POINT(high - 2) < value) low = --high; /* as in a chain */
  while (low < high) {
    Py_ssize_t middle = (low + high) / 2;
    if (POINT(middle) < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
#undef POINT
  return PyTuple_GET_ITEM(PyList_GET_ITEM(points, low), 1);
}

/* Return an empty list with room for `most` items. They stay NULL until its length is set; no collector
 * runs meanwhile. */
static PyObject *new_list(Py_ssize_t most) {
  PyObject *list = PyList_New(most);
  if (list) Py_SET_SIZE(list, 0);
  return list;
}

static void add(PyObject *list, PyObject *item) {
  Py_ssize_t count = PyList_GET_SIZE(list);
  ((PyListObject *)list)->ob_item[count] = Py_NewRef(item);
  Py_SET_SIZE(list, count + 1);
}

bool make_room(struct issue *self) {
  for (; self->signal_count < PyTuple_GET_SIZE(self->signals); self->signal_count++) {
    int i = self->signal_count;
    PyObject *value = get(PyTuple_GET_ITEM(self->signals, i), Timepoint__value);
    if (!(self->points[i] = PyTuple_Pack(2, value, self->operation))) return false;
    self->reserved[i] = NULL;
  }
  Py_ssize_t waits = PyTuple_GET_SIZE(self->waits);
  return !waits || (self->dependencies = new_list(waits));
}

void let_go(struct issue *self) {
  for (int i = 0; i < self->signal_count; i++) {
    Py_XDECREF(self->points[i]);
    Py_XDECREF(self->reserved[i]);
  }
  Py_XDECREF(self->operation);
  Py_XDECREF(self->signals);
  Py_XDECREF(self->waits);
  Py_XDECREF(self->dependencies);
  Py_XDECREF(self->held);
}

static long long in_flight(PyObject *queue) {
  return of_queue(queue)->launched - of_queue(queue)->retired;
}

/* How many launches an operation is, with its waits for streams. */
static long long launches_of(const struct issue *self) { return 1 + self->more + self->awaited_count; }

/* How many launches are in flight on an operation's queue with it, at most. */
static long long with_it(const struct issue *self) {
  return in_flight(self->queue) + 1 + self->more + PyTuple_GET_SIZE(self->waits);
}

/* Return whether so few launches are in flight that another one may keep the interpreter lock. Half of what all
 * queues may have together is divided among them, and each of many has some. The other half is for those that
 * come first, because mostly few of them are at work. */
static bool is_low(const struct issue *self) {
  enum { EACH = 16, MANY = 32 };
  long long half = self->calls->most_launches / 2, needed = with_it(self);
  if (needed > number(self->queue, StreamQueue__limit)) return false;
  if (!half || (self->is_empty && !PyTuple_GET_SIZE(self->waits)) || needed <= EACH) return true;
  PyObject *queues = get(self->context, DeviceContext_queues);
  Py_ssize_t count = PyList_GET_SIZE(queues);
  if (!count || count > MANY) return false; /* none: it is closed */
  if (needed * count <= half) return true;
  long long others = -in_flight(self->queue);
  for (Py_ssize_t i = 0; i < count; i++) others += in_flight(PyList_GET_ITEM(queues, i));
  return needed <= half - others;
}

/* Whether a native call may block: others fill the stream, too, or it is full enough. */
static bool may_block(const struct issue *self, bool low) {
  return self->blocks || !low || is_true(self->queue, StreamQueue__shown);
}

bool prepare_to_let_go(struct issue *self) {
  if (!may_block(self, is_low(self))) return true;
  if (!is_none(self->queue, StreamQueue__borrowed)) return false; /* its owner may be capturing it (O1) */
  self->held = new_list(PyTuple_GET_SIZE(self->waits));
  return self->held;
}

bool has_room(struct issue *self, Py_ssize_t length, struct drops *drops) {
  enum { EACH_SO_MANY = 15 }; /* a bit mask: to ask an event costs more than to let the lock go */
  PyObject *queue = self->queue, *context = self->context;
  if (PyDict_GET_SIZE(engine.put_off)) return false;
  if (is_true(queue, StreamQueue__closed) || !is_none(context, DeviceContext_lost)) return false;
  if (!is_none(queue, StreamQueue__issuing)) return false;
  if (PyObject_Length(get(queue, StreamQueue__backlog)) != length) return false;
  if (is_true(queue, StreamQueue__ordered) && PyDict_GET_SIZE(get(queue, StreamQueue__hosts)))
    return false;
  if (PyDict_GET_SIZE(get(context, DeviceContext_starved))) return false;
  long long limit = number(queue, StreamQueue__limit);
  bool low = is_low(self);
  bool is_due = !self->held || !(of_queue(queue)->sequence & EACH_SO_MANY) || with_it(self) > limit;
  if (is_due && !low) {
    retire_some(queue, drops);
    low = is_low(self);
  }
  self->lets_go = may_block(self, low);
  return (low || with_it(self) <= limit) && (self->held || !self->lets_go);
}

/* Return whether a queue of another device has events in memory, or this one has: no stream of the one
 * waits for those of the other without more ado. */
static bool has_other_events(const struct issue *self, PyObject *other) {
  if (get(other, StreamQueue__context) == self->context) return false;
  const struct calls *theirs = (struct calls *)get(other, StreamQueue__calls);
  return Py_TYPE(theirs) != &calls_type || theirs->write_value || self->calls->write_value;
}

bool waits_for_itself(const struct issue *self, PyObject *timeline, long long value) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(self->signals, i);
    if (get(signal, Timepoint__semaphore) == timeline && number(signal, Timepoint__value) <= value) return true;
  }
  return false;
}

bool resolve(struct issue *self) {
  PyObject *queue = self->queue;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->waits); i++) {
    PyObject *wait = PyTuple_GET_ITEM(self->waits, i), *operation = wait;
    bool is_timepoint = Py_TYPE(wait) == engine.Timepoint;
    PyObject *timepoint = is_timepoint ? wait : get(wait, Operation__private);
    PyObject *timeline = NULL;
    long long value = 0;
    if (timepoint != Py_None) {
      timeline = get(timepoint, Timepoint__semaphore);
      value = number(timepoint, Timepoint__value);
    }
    if (timeline && waits_for_itself(self, timeline, value)) return false;
    if (is_timepoint) {
      if (!is_none(timeline, Timeline__failure)) return false;
      if (number(timeline, Timeline__value) >= value) continue;
      if (!(operation = covering(timeline, value))) return false;
    } else {
      if (get(operation, Operation__state) == engine.done) continue;
      if (get(operation, Operation__state) != engine.issued) return false;
      if (is_true(operation, Operation__is_host)) return false;
    }
    PyObject *other = get(operation, Operation__queue);
    if (get(other, StreamQueue__domain) != get(queue, StreamQueue__domain)) return false;
    if (has_other_events(self, other)) return false;
    add(self->dependencies, operation);
    if (other == queue) continue;
    PyObject *seen = PyDict_GetItemWithError(get(queue, StreamQueue__seen), get(other, StreamQueue__id));
    if (seen && integer(seen) >= of_operation(operation)->sequence) continue;
    int i = 0; /* the newest of each queue, as `hal._engine.backlog.claim` has it */
    while (i < self->awaited_count && get(self->awaited[i], Operation__queue) != other) i++;
    if (i == self->awaited_count) self->awaited[self->awaited_count++] = operation;
    if (of_operation(self->awaited[i])->sequence < of_operation(operation)->sequence) self->awaited[i] = operation;
  }
  return true;
}

/* Return whether signals can be published. */
static bool may_be_told(const struct issue *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(self->signals, i);
    PyObject *timeline = get(signal, Timepoint__semaphore);
    long long value = number(signal, Timepoint__value);
    if (value > MOST_VALUE || !is_none(timeline, Timeline__failure)) return false;
    if (!may_tell(get(timeline, Timeline__recorded), value, true)) return false;
    /* Two queues may publish in another order than they reserved in. */
    PyObject *points = get(timeline, Timeline__points);
    Py_ssize_t count = PyList_GET_SIZE(points);
    if (count && integer(PyTuple_GET_ITEM(PyList_GET_ITEM(points, count - 1), 0)) >= value) return false;
  }
  return true;
}

bool may_reserve(const struct issue *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(self->signals, i);
    PyObject *timeline = get(signal, Timepoint__semaphore);
    for (Py_ssize_t j = 0; j < i; j++)
      if (get(PyTuple_GET_ITEM(self->signals, j), Timepoint__semaphore) == timeline) return false;
    if (!is_none(timeline, Timeline__failure)) return false;
    if (number(signal, Timepoint__value) <= number(timeline, Timeline__reserved)) return false;
  }
  return true;
}

bool may_signal(const struct issue *self) { return may_reserve(self) && may_be_told(self); }

/* Take memory of the driver's pool; an address that no object can be made for is given back. */
static int allocate(const struct calls *calls, const struct native_call *call, void *stream) {
  uintptr_t address = 0;
  int status = calls->allocate_async(&address, call->allocate.size, calls->pool, stream);
  if (status || (*call->allocate.address = PyLong_FromUnsignedLongLong(address))) return status;
  PyErr_Clear();
  calls->free_async(address, stream);
  return -1;
}

static int change_pool(const struct calls *calls, const struct native_call *call, void *stream) {
  int mode = begin_relaxed(calls);
  if (mode < 0) return -1;
  int status = call->kind == CALL_FREE ? calls->free_async(call->free, stream) : allocate(calls, call, stream);
  end_relaxed(calls, mode);
  return status;
}

/* Make the calls of a recording until one fails. */
static int make_calls(const struct calls *calls, const struct native_call *call, void *stream) {
  int status = 0;
  for (Py_ssize_t i = 0; !status && i < call->nodes.count; i++) {
    status = make_call(calls, &call->nodes.all[i], stream);
    *call->nodes.made += !status;
  }
  return status;
}

/* Make a call of a group's library. */
static int gather(const struct native_call *call, void *stream) {
  uintptr_t words[MOST_WORDS];
  memcpy(words, call->gather.words, sizeof words);
  words[call->gather.stream] = (uintptr_t)stream;
  int status = call->gather.function(words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]);
  return *call->gather.status = status == call->gather.fine ? 0 : status;
}

int make_call(const struct calls *calls, const struct native_call *call, void *stream) {
  if (call->kind == CALL_NONE) return 0;
  if (call->kind == CALL_ALLOCATE || call->kind == CALL_FREE) return change_pool(calls, call, stream);
  if (call->kind == CALL_GRAPH) return calls->launch_graph(call->graph.handle, stream);
  if (call->kind == CALL_GATHER) return gather(call, stream);
  if (call->kind == CALL_NODES) return make_calls(calls, call, stream);
  if (call->kind == CALL_LAUNCH)
    return calls->launch(call->launch.function, call->launch.grid[0], call->launch.grid[1],
                         call->launch.grid[2], call->launch.block[0], call->launch.block[1],
                         call->launch.block[2], call->launch.shared, stream, call->launch.parameters,
                         NULL);
  if (call->kind == CALL_COPY)
    return calls->copy ? calls->copy(call->copy.target, call->copy.source, call->copy.size, stream) : -1;
  uintptr_t address = call->fill.address;
  size_t count = call->fill.count;
  switch (call->fill.width) {
    case 1: return calls->fill_8(address, (unsigned char)call->fill.pattern, count, stream);
    case 2: return calls->fill_16(address, (unsigned short)call->fill.pattern, count, stream);
    default: return calls->fill_32(address, call->fill.pattern, count, stream);
  }
}

/* Reserve the signals' values (S1). */
static void reserve(const struct issue *self) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++) {
    PyObject *signal = PyTuple_GET_ITEM(self->signals, i);
    put(get(signal, Timepoint__semaphore), Timeline__reserved, Py_NewRef(get(signal, Timepoint__value)));
  }
}

/* What is put on a stream: no Python objects, but for calls that keep the interpreter lock. */
struct work {
  struct calls *calls;
  const struct native_call *call;
  void *stream, *waits[MOST_WAITS], *event; /* NULL: the event is there */
  int count, waited;                        /* waits: all, and those that are on the stream */
  bool is_called, is_recorded;
};

static void enqueue(struct work *self) {
  for (; self->waited < self->count; self->waited++)
    if (wait_for(self->calls, self->stream, self->waits[self->waited])) return;
  int status = make_call(self->calls, self->call, self->stream);
  self->is_called = !status || (self->call->kind == CALL_NODES && *self->call->nodes.made);
  if (!status) self->is_recorded = !self->event || !record(self->calls, self->event, self->stream);
}

/* Change what the claim of an operation changes. */
static void begin(struct issue *self) {
  PyObject *operation = self->operation;
  long long launches = launches_of(self);
  put(operation, Operation__is_begun, Py_NewRef(Py_True));
  if (launches != number(operation, Operation__launches)) {
    PyObject *all = PyLong_FromLongLong(launches);
    if (all) put(operation, Operation__launches, all);
    else PyErr_Clear(); /* Python counts one, if it publishes */
  }
  if (self->is_pending) {
    put(operation, Operation__unresolved, Py_NewRef(engine.zero));
    put(operation, Operation__stream_waits, Py_NewRef(Py_None));
  }
  if (self->dependencies && PyList_GET_SIZE(self->dependencies)) {
    put(operation, Operation__dependencies, self->dependencies);
    self->dependencies = NULL;
  }
  reserve(self);
  if (self->is_pending) leave_line(self);
}

static void count(PyObject *event, long long change) {
  put(event, Event_count, PyLong_FromLongLong(number(event, Event_count) + change));
}

/* Take the baton. It is no step's: the step that had it last would take it for its own. */
static void take_baton(const struct issue *self) {
  put(self->operation, Operation__state, Py_NewRef(engine.issuing));
  put(self->queue, StreamQueue__owner, Py_NewRef(Py_None)); /* a thread's step, which lives as long as that */
  put(self->queue, StreamQueue__issuing, Py_NewRef(self->operation));
}

/* Make the native calls without the interpreter lock and the timeline lock, but with the baton. To keep the timeline
 * lock was rejected: every thread would wait for a full stream, and a Python function that the stream waits for may
 * want that lock (hardware/full_streams.py). */
static void enqueue_alone(struct issue *self, struct work *work) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->signals); i++)
    self->reserved[i] = Py_NewRef(get(get(PyTuple_GET_ITEM(self->signals, i), Timepoint__semaphore), Timeline__reserved));
  begin(self);
  for (int i = 0; i < self->awaited_count; i++) {
    add(self->held, self->awaited[i]);
    count(get(self->awaited[i], Operation__event), 1);
  }
  put(self->operation, Operation__stream_waits, Py_NewRef(self->held));
  take_baton(self);
  if (work->call->rebinder) keep_bound(work->call->rebinder, true);
  leave();
  Py_BEGIN_ALLOW_THREADS
  enqueue(work);
  Py_END_ALLOW_THREADS
  if (work->call->rebinder) keep_bound(work->call->rebinder, false);
  self->has_lock = enter();
}

/* Leave an operation to `complete_issue`: all of it is on the stream but an event, if that is NULL, and the rest of
 * a recording's calls. */
static void hand_over(struct issue *self, const struct native_call *call, PyObject *event) {
  bool has_rest = call->kind == CALL_NODES && *call->nodes.made < call->nodes.count;
  if (has_rest) Py_SETREF(PyTuple_GET_ITEM(call->nodes.rest, 1), PyLong_FromSsize_t(*call->nodes.made));
  put(self->operation, Operation__function, Py_NewRef(has_rest ? engine.go_on : Py_None)); /* only the device's are */
  put(self->operation, Operation__arguments, Py_NewRef(has_rest ? call->nodes.rest : engine.empty));
  if (event) put(self->operation, Operation__shared, Py_NewRef(event));
  take_baton(self);
  self->rest = engine.complete_issue;
  self->rest_of = self->operation;
}

/* Return whether an operation can be published after the lock was let go. Somebody may have asked for a timepoint of
 * its own meanwhile, if it was pending. */
static bool may_publish(const struct issue *self) {
  return self->has_lock && get(self->operation, Operation__signals) == self->signals &&
         is_none(self->context, DeviceContext_lost) && !PyDict_GET_SIZE(get(self->context, DeviceContext_starved)) && may_be_told(self);
}

static PyObject *points_of(const struct issue *self, Py_ssize_t signal) {
  return get(get(PyTuple_GET_ITEM(self->signals, signal), Timepoint__semaphore), Timeline__points);
}

/* Publish an operation; false without memory, and then nothing has changed. */
static bool publish(struct issue *self, PyObject *event, struct drops *drops) {
  PyObject *queue = self->queue, *operation = self->operation;
  Py_ssize_t count = PyTuple_GET_SIZE(self->signals), added = 0;
  while (added < count && !PyList_Append(points_of(self, added), self->points[added])) added++;
  if (added < count || !append_to(get(queue, StreamQueue__ring), operation)) {
    while (added--) {
      PyObject *points = points_of(self, added);
      Py_SET_SIZE(points, PyList_GET_SIZE(points) - 1);
      Py_DECREF(self->points[added]);
    }
    PyErr_Clear();
    return false;
  }
  put(operation, Operation__event, Py_NewRef(event));
  of_operation(operation)->sequence = ++of_queue(queue)->sequence;
  of_operation(operation)->launched = of_queue(queue)->launched += launches_of(self);
  put(operation, Operation__state, Py_NewRef(engine.issued));
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *signal = PyTuple_GET_ITEM(self->signals, i), *timeline = get(signal, Timepoint__semaphore);
    long long value = number(signal, Timepoint__value);
    struct waiting found;
    tell(get(timeline, Timeline__recorded), value, drops);
    if (find_waiting(timeline, value, &found)) self->has_followers = true;
    if (is_wanted(timeline, value) && !want(operation)) self->is_wanted = true;
  }
  return true;
}

void release_event(PyObject *context, PyObject *event) {
  count(event, -1);
  if (number(event, Event_count)) return;
  put(event, Event_due, Py_NewRef(Py_None)); /* the stream has told, and the event need not be recorded any more */
  PyObject *pool = get(get(context, DeviceContext_events), EventPool__free);
  if (PyList_Append(pool, event) < 0) PyErr_Clear(); /* one event less */
}

/* Release the baton, behind an operation that is published. */
static void release_baton(struct issue *self) {
  put(self->operation, Operation__stream_waits, Py_NewRef(Py_None));
  for (int i = 0; i < self->awaited_count; i++)
    release_event(self->context, get(self->awaited[i], Operation__event));
  put(self->queue, StreamQueue__issuing, Py_NewRef(Py_None));
  PyObject *first = entry_of(get(self->queue, StreamQueue__backlog), 0);
  if (!first || is_held_back(first)) return;
  self->rest = engine.issue_ready; /* others have come meanwhile, and left theirs to this thread */
  self->rest_of = self->queue;
}

/* Return whether the events to wait for are of the queue's own context. */
static bool are_own(const struct issue *self) {
  for (int i = 0; i < self->awaited_count; i++)
    if (get(get(self->awaited[i], Operation__queue), StreamQueue__context) != self->context) return false;
  return true;
}

static bool put_on_stream(struct issue *self, const struct native_call *call, PyObject *event, bool is_marked,
                          bool *is_recorded) {
  struct work work; /* its array is set as far as it is read */
  work.calls = self->calls;
  work.call = call;
  work.stream = pointer(self->queue, StreamQueue__stream);
  work.event = is_marked ? pointer(event, Event_handle) : NULL;
  work.count = work.waited = 0;
  work.is_called = work.is_recorded = false;
  while (work.count < self->awaited_count) {
    PyObject *awaited = get(self->awaited[work.count], Operation__event);
    /* What is recorded may be another device's, whose context is current then. Where the lock is let go all is recorded:
     * nothing has to be taken back before the claim. */
    if (!is_none(awaited, Event_due) && !(settle(awaited) && calls_of(self->queue))) return false;
    work.waits[work.count++] = pointer(awaited, Event_handle);
  }
  if (self->lets_go) {
    enqueue_alone(self, &work);
  } else {
    enqueue(&work);
    if (work.is_called) begin(self);
  }
  for (int i = 0; i < work.waited; i++) {
    PyObject *other = self->awaited[i], *seen = get(self->queue, StreamQueue__seen);
    PyObject *sequence = PyLong_FromLongLong(of_operation(other)->sequence);
    if (!sequence || PyDict_SetItem(seen, get(get(other, Operation__queue), StreamQueue__id), sequence) < 0)
      PyErr_Clear(); /* it waits for it once more */
    Py_XDECREF(sequence);
  }
  *is_recorded = work.is_recorded;
  return work.is_called;
}

enum answer issue(struct issue *self, const struct native_call *call, struct drops *drops) {
  PyObject *queue = self->queue;
  PyObject *pool = get(get(self->context, DeviceContext_events), EventPool__free);
  struct mark mark = {NULL, false};
  bool is_recorded = false;
  if (self->lets_go && !(are_own(self) && settle_all(get(self->context, DeviceContext_queues)))) return NOT_MINE;
  if ((call->bindings && !bind_anew(self->calls, call)) || !choose_mark(self, call, &mark)) return NOT_MINE;
  PyObject *event = mark.event;
  Py_ssize_t last = PyList_GET_SIZE(pool) - 1;
  if (last < 0 && !event) return NOT_MINE;
  if (event) {
    Py_INCREF(event);
    count(event, 1);
  } else {
    event = PyList_GET_ITEM(pool, last);
    Py_SET_SIZE(pool, last); /* its reference is this one now */
    put(event, Event_count, Py_NewRef(engine.one));
    put(event, Event_due, Py_NewRef(Py_None));
  }
  enum answer answer = NOT_MINE;
  if (put_on_stream(self, call, event, mark.is_recorded, &is_recorded)) {
    /* From here on it is issued, whatever comes. */
    answer = TAKEN;
    if (is_recorded && (mark.is_recorded || !mark.event))
      put(event, Event_due, Py_NewRef(mark.is_recorded ? Py_None : queue));
    if (is_recorded && (!self->lets_go || may_publish(self)) && publish(self, event, drops)) {
      if (self->lets_go) release_baton(self);
    } else {
      hand_over(self, call, is_recorded ? event : NULL);
    }
  } else if (self->lets_go) {
    bool is_claimed = self->is_pending && get(self->operation, Operation__state) == engine.issuing;
    if (is_claimed) answer = TAKEN;
    self->rest = is_claimed ? engine.complete_issue : engine.take_back;
    self->rest_of = self->operation;
  }
  if (!is_recorded) release_event(self->context, event);
  if (answer == NOT_MINE) PyErr_Clear();
  Py_DECREF(event);
  return answer;
}

enum answer finish(struct issue *self, enum answer answer) {
  if (self->is_wanted) answer = leave_to_python(engine.want, self->operation, NULL);
  if (!self->rest) return answer;
  PyObject *reserved = NULL;
  if (answer == NOT_MINE) {
    Py_ssize_t count = PyTuple_GET_SIZE(self->signals);
    reserved = PyTuple_New(count);
    for (Py_ssize_t i = 0; reserved && i < count; i++)
      PyTuple_SET_ITEM(reserved, i, Py_NewRef(self->reserved[i]));
    PyErr_Clear();
  }
  enum answer done = leave_to_python(self->rest, self->rest_of, reserved);
  Py_XDECREF(reserved);
  return done == TAKEN ? answer : done;
}
