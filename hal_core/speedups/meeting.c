/* Meeting: the collectives of one rank of several processes, on streams that are threads (rules G1, G3).
 *
 * `begin` has a stream call `run`, or a thread that waits for the stream `help`. Either shows the others a header,
 * which says what the operation is, and behind it the data of a small operation: in memory that all of them map, if
 * they are of one host (sheets.c), else in one message to each, over a library of messages (MPI) whose functions are given
 * by address. So all have come, and agree, before data moves. The data of a large one follows, in further steps or in
 * messages from buffer to buffer (moves.c). Nobody writes to another rank's memory, so one that comes late, or dies, harms none. Once the
 * group has failed, `stop` has what is to come taken back.
 *
 * No call of the library waits for a rank: the library's own collectives would, and a stream that makes one hangs if a
 * rank dies meanwhile. (They were made on a thread of the group's own: to hand over to it and back took up to half of
 * the time from 128 KiB to 4 MiB.) Memory of MPI's own (MPI_Win_allocate_shared) was rejected: all ranks must free it
 * together, so a rank that died would keep the others. To receive all data apart and copy it, so that no late message
 * can write to a buffer, was rejected, too: it costs up to a tenth, and half as much again in a large broadcast.
 *
 * The stream of an operation that went wrong is held until `end`: by then the group has failed the operation, which
 * would count as done otherwise. No operation runs twice or beside another one: they come in turn. */
#include "meeting.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum {
  MOST_DATA = 16384,  /* bytes of an operation's data behind a header: with 65536 a broadcast of those takes 1.8 x */
  ALL_DATA = 131072,  /* and behind those of all ranks: one of many ranks sends as few as its algorithm can */
  MOST_ROOM = 524288, /* bytes that another rank sends to be reduced: more cost the cache, fewer more turns */
  ALL_ROOM = 4194304,  /* and all ranks together, but for LEAST_ROOM each */
  LEAST_ROOM = 16384,
  STATUS = 64,        /* bytes of a status, at least */
  LOOKS = 4,          /* at the others' sheets, before one whether the group has failed */
  EAGER_TURNS = 256,    /* looks at messages, some 30 us, before others may have the processor in between */
  QUICK_TURNS = 100000, /* and before it naps */
  MOST_HELPED = 1048576, /* bytes of a rank's data that a thread moves which waits for it */
  NAP_NS = 500000,
  STOP_NAPS = 2000, /* at most, while a stream takes back what it would receive */
  HEARD_NS = 1000000, /* how long small operations go without a look at what the others have told */
};

static void nap(void) { nanosleep(&(struct timespec){0, NAP_NS}, NULL); }

/* After a call that failed the library may still write to the messages. */
bool note(struct meeting *self, int status) {
  if (!status) return true;
  self->is_left = true;
  atomic_store(&self->status, status);
  return false;
}

static bool post(struct meeting *self, library_function function, const char *message, size_t length, int rank) {
  if (!length) return true;
  char *request = self->requests + (size_t)self->posted++ * self->request;
  return note(self, function(word(message), length, self->byte, (uintptr_t)rank, self->tag, self->comm, word(request)));
}

bool send_message(struct meeting *self, const char *message, size_t length, int rank) {
  return post(self, self->send, message, length, rank);
}

bool receive_message(struct meeting *self, char *message, size_t length, int rank) {
  bool is_posted = post(self, self->receive, message, length, rank);
  self->receiving = self->posted;
  return is_posted;
}

/* Take back what it would receive: no rank that comes later writes to a buffer. */
static void take_back(struct meeting *self) {
  self->is_left = true;
  for (int i = 0; i < self->receiving; i++)
    self->cancel(word(self->requests + (size_t)i * self->request), 0, 0, 0, 0, 0, 0);
}

static _Atomic uint64_t *shown_by(const struct meeting *self, int rank, size_t place) {
  return (_Atomic uint64_t *)((char *)sheet_of(self, rank) + place);
}

void show(struct meeting *self, size_t place) {
  /* Release: who sees the number sees the sheet behind it, and knows that this rank is done with the sheets before:
   * their ranks may write to them again. */
  atomic_store_explicit(shown_by(self, self->rank, place), self->step, memory_order_release);
  self->shown = self->size > 1 ? place : 0;
}

/* Whether all show what is awaited. */
static bool have_shown(const struct meeting *self) {
  for (int i = 1; i < self->size; i++)
    if (atomic_load_explicit(shown_by(self, other(self, i), self->shown), memory_order_acquire) != self->step) return false;
  return true;
}

/* Whether the messages are there, WRONG if the library fails, or the meeting was stopped. */
static enum stage are_there(struct meeting *self) {
  int is_done = 0;
  if (self->shown) {
    for (int look = 0; look < LOOKS && !(is_done = have_shown(self)); look++) relax();
    if (is_done) self->shown = 0;
  } else {
    uintptr_t count = (uintptr_t)self->posted;
    int status = self->test_all(count, word(self->requests), word(&is_done), word(self->statuses), 0, 0, 0);
    if (!note(self, status)) return WRONG;
    if (is_done) self->posted = self->receiving = 0;
  }
  if (is_done) return OVER;
  if (!atomic_load_explicit(&self->stopped, memory_order_relaxed)) return SENT;
  if (self->posted) take_back(self);
  return WRONG;
}

static bool is_on_the_way(const struct meeting *self) { return self->posted || self->shown; }

/* Wait for the messages; false if that went wrong. `naps` after a while. */
static bool complete(struct meeting *self, bool naps) {
  int turn = 0;
  for (;;) {
    enum stage stage = are_there(self);
    if (stage != SENT) return stage == OVER;
    if (turn < QUICK_TURNS) turn++;
    if (turn == QUICK_TURNS && naps) nap();
    else if (turn > EAGER_TURNS) sched_yield();
  }
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Whether others have told something that Python has not taken: a rank that comes late must hear first that the group
 * is broken. Each call has the library take one message or so, and what a rank tells comes behind its header. These
 * calls are a third of a small operation, so those that follow each other closely share one look. */
static bool is_told(struct meeting *self, const struct plan *plan) {
  int64_t now = now_ns();
  if (atomic_load(&self->listens)) return true;
  if (plan->piece <= self->most && now - self->heard < HEARD_NS) return false;
  int is_there = 0;
  for (int i = 0; !is_there && i <= self->size; i++) {
    int status = self->probe(self->any, self->told_tag, self->comm, word(&is_there), word(self->statuses), 0, 0);
    if (!note(self, status)) return true;
  }
  if (is_there) atomic_store(&self->listens, true);
  else self->heard = now;
  return is_there;
}

/* Wait until Python has taken what the others have told, if they have; false if the group is broken. */
static bool listen(struct meeting *self, const struct plan *plan) {
  while (!atomic_load(&self->stopped) && is_told(self, plan)) {
    if (atomic_load(&self->status)) return false;
    nap();
  }
  return !atomic_load(&self->stopped);
}

/* Begin the exchange of messages, or show what there is. */
static bool begin_exchange(struct meeting *self, const char *header) {
  memcpy(header_of(self, self->rank), header, HEADER);
  if (self->length) {
    show(self, offsetof(struct sheet, number));
    return true;
  }
  for (int i = 1; i < self->size; i++)
    if (!receive_message(self, message_from(self, other(self, i)), self->room, other(self, i))) return false;
  for (int i = 1; i < self->size; i++) {
    int rank = other(self, i);
    memcpy(message_to(self, rank), header, HEADER);
    if (!send_message(self, message_to(self, rank), HEADER + self->bytes[rank], rank)) return false;
  }
  return true;
}

/* Whether all ranks, which have come, agree. */
static bool agree(struct meeting *self) {
  const char *header = header_of(self, self->rank);
  for (int rank = 0; rank < self->size; rank++)
    if (memcmp(header_of(self, rank), header, HEADER)) {
      atomic_store(&self->differ, true);
      return false;
    }
  atomic_fetch_add(&self->agreed, 1);
  return true;
}

/* By hand: the C library takes a fifth of a microsecond. */
static void write_header(const struct plan *plan, uint64_t number, char *header) {
  char digits[20], *digit = digits + sizeof digits, *place = stpcpy(header, plan->before);
  do *--digit = (char)('0' + number % 10);
  while (number /= 10);
  size_t count = (size_t)(digits + sizeof digits - digit);
  memcpy(place, digit, count);
  strcpy(place + count, plan->after);
}

/* Begin an operation; false if the library fails, or the meeting was stopped. */
static bool start(struct meeting *self, struct run *run) {
  const struct plan *plan = run->plan;
  if (atomic_load(&self->stopped)) return false;
  run->stage = SENT;
  char header[HEADER] = "";
  write_header(plan, atomic_load(&self->begun) + 1, header);
  memcpy(self->records[atomic_load(&self->begun) % RECORDS], header, HEADER);
  atomic_fetch_add(&self->begun, 1);
  self->step++;
  memset(self->bytes, 0, (size_t)self->size * sizeof *self->bytes);
  if (run->by_sheets) fill_sheet(self, run);
  else if (run->is_small) pack(self, run);
  return begin_exchange(self, header);
}

/* What comes once the messages are there; false if ranks differ, the library fails, or the meeting was stopped. */
static bool go_on(struct meeting *self, struct run *run) {
  if (!run->has_agreed) {
    if (!agree(self)) return false;
    run->has_agreed = true;
  }
  if (run->by_sheets) return use_sheets(self, run);
  if (run->is_small) {
    run->stage = OVER;
    return use(self, run->plan, run->target, run->plan->piece);
  }
  if (!run->turn) {
    atomic_store(&self->moves, true); /* before it looks: `stop` and `end` do both the other way round */
    if (atomic_load(&self->stopped)) {
      atomic_store(&self->moves, false);
      return false;
    }
  }
  if (!move_on(self, run)) return false;
  if (run->stage == OVER) atomic_store(&self->moves, false);
  return true;
}

/* Run an operation; false if ranks differ, the library fails, or the meeting was stopped. */
static bool run(struct meeting *self, struct run *run) {
  if (run->stage == FRESH && !start(self, run)) return false;
  while (run->stage == SENT) {
    if (is_on_the_way(self) && !complete(self, !run->has_agreed)) return false;
    if (!run->has_agreed && self->size > 1 && !listen(self, run->plan)) return false;
    if (!go_on(self, run)) return false;
  }
  return run->stage == OVER;
}

/* Run an operation on a thread that waits for it, while the others come soon and its data takes no long time. The
 * stream's thread does the rest, also what ends with a failure. */
static enum stage help(struct meeting *self, struct run *run) {
  if (run->plan->piece > MOST_HELPED || run->stage == WRONG) return run->stage;
  if (run->stage == FRESH && !start(self, run)) return WRONG;
  for (int turn = 0; run->stage == SENT;) {
    enum stage stage = is_on_the_way(self) ? are_there(self) : OVER;
    if (stage == WRONG) return WRONG;
    if (stage == SENT && ++turn == EAGER_TURNS) return SENT;
    if (stage == SENT) continue;
    if (!run->has_agreed && (atomic_load(&self->stopped) || (self->size > 1 && is_told(self, run->plan)))) return SENT;
    if (!go_on(self, run)) return WRONG;
    turn = 0;
  }
  return run->stage;
}

/* Run an operation that is on a stream; 0 if it is the stream's thread to go on. */
static int run_on_stream(void *argument, int helps) {
  struct run *given = argument;
  struct meeting *self = given->meeting;
  /* Before it looks whether the meeting was stopped: `stop` does both the other way round, so that one of the two sees
   * the other. That takes a total order, which only the default of C's atomics has. */
  atomic_store(&self->inside, 1);
  if (helps && (given->stage = help(self, given)) != OVER) return 0;
  if (!helps && !run(self, given)) {
    atomic_store(&self->is_held, true);
    while (!atomic_load(&self->ended)) nap();
  }
  atomic_store(&self->inside, 0);
  free(argument);
  return 1;
}

static struct run new_run(struct meeting *self, const struct plan *plan, char *source, char *target) {
  bool by_sheets = self->length && goes_by_sheets(self, plan), is_small = !self->length && plan->piece <= self->most;
  return (struct run){.meeting = self, .plan = plan, .source = source, .target = target, .by_sheets = by_sheets, .is_small = is_small};
}

/* Put an operation on a stream: the function of a `GroupCall`. */
static int begin(struct meeting *self, const struct plan *plan, char *source, char *target, void *stream) {
  struct run *made = malloc(sizeof *made);
  if (!made) return -1;
  *made = new_run(self, plan, source, target);
  int status = self->call(stream, run_on_stream, made);
  if (status) free(made);
  return status;
}

/* Map the regions of the ranks: this rank writes to its own. From the start of the files, since a page may be longer
 * than the offset. */
static bool map_regions(struct meeting *self, PyObject *files) {
  self->regions = calloc((size_t)self->size, sizeof *self->regions);
  if (!self->regions) return false;
  for (int rank = 0; rank < self->size; rank++) {
    int file = (int)PyLong_AsLong(PyTuple_GET_ITEM(files, rank)), may = rank == self->rank ? PROT_READ | PROT_WRITE : PROT_READ;
    char *start = mmap(NULL, self->offset + self->length, may, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) return false;
    self->regions[rank] = start + self->offset;
  }
  return true;
}

/* Meeting(call, functions, (comm, byte, tag), (any, tag), request, rank, size[, (files, length, offset)]): the functions
 * send, receive, test all, cancel, reduce locally and probe; handles and constants; those of what ranks tell each other;
 * the bytes of a request; the files of the ranks' shared memory. */
static PyObject *meeting_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  unsigned long long call, functions[6], comm, byte, tag, told_tag;
  long long any;
  Py_ssize_t request;
  int rank, size;
  PyObject *files = NULL;
  Py_ssize_t length = 0, offset = 0;
  if (has_keywords(type, keywords)) return NULL;
  if (!PyArg_ParseTuple(args, "K(KKKKKK)(KKK)(LK)nii|(O!nn)", &call, &functions[0], &functions[1], &functions[2],
                        &functions[3], &functions[4], &functions[5], &comm, &byte, &tag, &any, &told_tag,
                        &request, &rank, &size, &PyTuple_Type, &files, &length, &offset))
    return NULL;
  struct meeting *self = (struct meeting *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  *(void **)&self->call = (void *)(uintptr_t)call;
  library_function *const places[] = {&self->send,   &self->receive,      &self->test_all,
                                      &self->cancel, &self->reduce_local, &self->probe};
  for (int i = 0; i < 6; i++) *(void **)places[i] = (void *)(uintptr_t)functions[i];
  self->any = (uintptr_t)any, self->told_tag = told_tag;
  self->comm = comm, self->byte = byte, self->tag = tag;
  self->request = (size_t)request, self->rank = rank, self->size = size;
  self->offset = (size_t)offset, self->length = (size_t)length;
  if (files && !map_regions(self, files)) {
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
  }
  size_t ranks = (size_t)size, most = ALL_DATA / ranks, room = ALL_ROOM / ranks;
  self->most = (most < MOST_DATA ? most : MOST_DATA) / LINE * LINE;
  if (self->length) self->most = self->length / 2 - sizeof(struct sheet);
  self->room = (room < LEAST_ROOM ? LEAST_ROOM : room < MOST_ROOM ? room : MOST_ROOM) / LINE * LINE;
  self->sent = calloc(ranks, HEADER + (self->length ? 0 : self->most));
  self->taken = calloc(ranks, self->room);
  self->requests = calloc(2 * ranks, self->request);
  self->statuses = calloc(2 * ranks, STATUS);
  self->bytes = calloc(ranks, sizeof *self->bytes);
  if (self->sent && self->taken && self->requests && self->statuses && self->bytes) return (PyObject *)self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

static void meeting_free(PyObject *object) {
  struct meeting *self = (struct meeting *)object;
  if (self->is_left) return; /* the library may still write to it, when it ends with the process at the latest */
  for (struct plan *plan = self->plans, *next; plan; plan = next) {
    next = plan->next;
    free(plan);
  }
  for (int rank = 0; self->regions && rank < self->size; rank++)
    if (self->regions[rank]) munmap(self->regions[rank] - self->offset, self->offset + self->length);
  void *const all[] = {self->sent, self->taken, self->requests, self->statuses, self->bytes, self->regions};
  for (int i = 0; i < 6; i++) free(all[i]);
  Py_TYPE(object)->tp_free(object);
}

/* plan(before, after, action, root, piece, stride, type, op, item, way): return the address of an operation's plan,
 * which the meeting keeps. */
static PyObject *meeting_plan(PyObject *object, PyObject *args) {
  struct meeting *self = (struct meeting *)object;
  const char *before, *after;
  int action, root, item, way;
  Py_ssize_t piece, stride;
  unsigned long long type, op;
  if (!PyArg_ParseTuple(args, "ssiinnKKii", &before, &after, &action, &root, &piece, &stride, &type, &op, &item, &way))
    return NULL;
  struct plan *plan = calloc(1, sizeof *plan);
  if (!plan) return PyErr_NoMemory();
  *plan = (struct plan){.next = self->plans, .action = (enum action)action, .root = root, .piece = (size_t)piece,
                        .stride = (size_t)stride, .type = type, .op = op, .item = item, .way = (enum way)way};
  strncpy(plan->before, before, BEFORE - 1);
  strncpy(plan->after, after, AFTER - 1);
  self->plans = plan;
  return PyLong_FromVoidPtr(plan);
}

/* run(plan, source, target): run an operation on this thread, as other ranks may run it on a stream; false if it went
 * wrong. */
static PyObject *meeting_run(PyObject *object, PyObject *args) {
  struct meeting *self = (struct meeting *)object;
  unsigned long long plan, source, target;
  if (!PyArg_ParseTuple(args, "KKK", &plan, &source, &target)) return NULL;
  const struct plan *known = (struct plan *)(uintptr_t)plan;
  struct run given = new_run(self, known, (char *)(uintptr_t)source, (char *)(uintptr_t)target);
  bool is_done;
  Py_BEGIN_ALLOW_THREADS
  is_done = run(self, &given);
  Py_END_ALLOW_THREADS
  return PyBool_FromLong(is_done);
}

static PyObject *text_of(const char *header) {
  return PyUnicode_DecodeUTF8(header, (Py_ssize_t)strnlen(header, HEADER), "replace");
}

/* state(): whether an operation runs on a stream, whether the ranks differ, and the status of a call that failed. */
static PyObject *meeting_state(PyObject *object, PyObject *unused) {
  struct meeting *self = (struct meeting *)object;
  (void)unused;
  int inside = atomic_load(&self->inside), differ = atomic_load(&self->differ), status = atomic_load(&self->status);
  return Py_BuildValue("iii", inside, differ, status);
}

/* headers(): those of all ranks, once they differ. */
static PyObject *meeting_headers(PyObject *object, PyObject *unused) {
  struct meeting *self = (struct meeting *)object;
  PyObject *found = PyList_New(self->size);
  (void)unused;
  for (int i = 0; found && i < self->size; i++) {
    PyObject *text = text_of(header_of(self, i));
    if (text) PyList_SET_ITEM(found, i, text);
    else Py_CLEAR(found);
  }
  return found;
}

/* records(): how many operations this rank has come to, how many all have, and the last headers of this rank. A stream
 * may run operations meanwhile: what it may have written over is left out, and so is the place of its next one. */
static PyObject *meeting_records(PyObject *object, PyObject *unused) {
  struct meeting *self = (struct meeting *)object;
  unsigned long long agreed = atomic_load(&self->agreed), begun = atomic_load(&self->begun);
  char records[RECORDS][HEADER];
  (void)unused;
  memcpy(records, self->records, sizeof records);
  atomic_thread_fence(memory_order_acquire); /* `begun` is read again only once all is copied */
  unsigned long long next = atomic_load(&self->begun) + 1, first = next < RECORDS ? 0 : next - RECORDS;
  unsigned long long count = first < begun ? begun - first : 0;
  PyObject *found = PyList_New((Py_ssize_t)count);
  for (unsigned long long i = 0; found && i < count; i++) {
    PyObject *text = text_of(records[(begun - count + i) % RECORDS]);
    if (text) PyList_SET_ITEM(found, (Py_ssize_t)i, text);
    else Py_CLEAR(found);
  }
  return found ? Py_BuildValue("KKN", begun, agreed, found) : NULL;
}

/* hold_on(): Python is about to take what others told, which no operation sees any longer. */
static PyObject *meeting_hold_on(PyObject *object, PyObject *unused) {
  (void)unused;
  atomic_store(&((struct meeting *)object)->listens, true);
  Py_RETURN_NONE;
}

/* go_on(): Python has taken what others told, and the group is not broken. */
static PyObject *meeting_go_on(PyObject *object, PyObject *unused) {
  (void)unused;
  atomic_store(&((struct meeting *)object)->listens, false);
  Py_RETURN_NONE;
}

/* stop(): let nothing begin, and nothing come any more; return once the stream has taken back what would. */
static PyObject *meeting_stop(PyObject *object, PyObject *unused) {
  struct meeting *self = (struct meeting *)object;
  (void)unused;
  atomic_store(&self->stopped, true);
  Py_BEGIN_ALLOW_THREADS
  for (int i = 0; i < STOP_NAPS && atomic_load(&self->inside) && !atomic_load(&self->is_held); i++) nap();
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

/* end(): let the streams go on, without what they waited for; return whether the library may still use a buffer. */
static PyObject *meeting_end(PyObject *object, PyObject *unused) {
  struct meeting *self = (struct meeting *)object;
  (void)unused;
  atomic_store(&self->stopped, true);
  atomic_store(&self->ended, true);
  return PyBool_FromLong(atomic_load(&self->moves));
}

/* settle(): once it has ended, return whether the library is done with all messages. */
static PyObject *meeting_settle(PyObject *object, PyObject *unused) {
  struct meeting *self = (struct meeting *)object;
  int is_done = 0, status = atomic_load(&self->status);
  (void)unused;
  if (atomic_load(&self->inside) || status) Py_RETURN_FALSE;
  Py_BEGIN_ALLOW_THREADS
  status = self->test_all((uintptr_t)self->posted, word(self->requests), word(&is_done), word(self->statuses), 0, 0, 0);
  Py_END_ALLOW_THREADS
  if (!note(self, status) || !is_done) Py_RETURN_FALSE;
  self->posted = self->receiving = 0;
  self->is_left = false;
  Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"end", meeting_end, METH_NOARGS, PyDoc_STR("Let the streams go on.")},
    {"go_on", meeting_go_on, METH_NOARGS, PyDoc_STR("Let an operation begin that others have told of something.")},
    {"headers", meeting_headers, METH_NOARGS, PyDoc_STR("Return the headers of all ranks, once they differ.")},
    {"hold_on", meeting_hold_on, METH_NOARGS, PyDoc_STR("Let none begin before `go_on`.")},
    {"plan", meeting_plan, METH_VARARGS, PyDoc_STR("Return the address of an operation's plan.")},
    {"records", meeting_records, METH_NOARGS, PyDoc_STR("Return the last headers of this rank.")},
    {"run", meeting_run, METH_VARARGS, PyDoc_STR("Run an operation on this thread.")},
    {"settle", meeting_settle, METH_NOARGS, PyDoc_STR("Return whether the library is done with all messages.")},
    {"state", meeting_state, METH_NOARGS, PyDoc_STR("Return how far it is.")},
    {"stop", meeting_stop, METH_NOARGS, PyDoc_STR("Take back what would come.")},
    {NULL, NULL, 0, NULL},
};

static PyObject *meeting_address(PyObject *object, void *unused) {
  (void)unused;
  return PyLong_FromVoidPtr(object);
}

static PyObject *meeting_begin(PyObject *object, void *unused) {
  (void)object, (void)unused;
  int (*function)(struct meeting *, const struct plan *, char *, char *, void *) = begin;
  return PyLong_FromVoidPtr(*(void **)&function);
}

static PyGetSetDef attributes[] = {
    {"address", meeting_address, NULL, PyDoc_STR("What `begin` takes first."), NULL},
    {"begin", meeting_begin, NULL, PyDoc_STR("The address of the function that begins an operation."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject meeting_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hal._speedups.Meeting",
    .tp_basicsize = sizeof(struct meeting),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = PyDoc_STR("One rank's end of a group over a library of messages."),
    .tp_new = meeting_new,
    .tp_dealloc = meeting_free,
    .tp_methods = methods,
    .tp_getset = attributes,
};
