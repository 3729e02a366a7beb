/* Meeting: the collectives of one rank of several processes, on streams that are threads (rules G1, G3).
 *
 * `begin` has a stream call `run`, which exchanges one message with each other rank, over a library of messages
 * (MPI) whose functions are given by address. A message is a header, which says what the operation is, and behind it
 * the data of a small operation. So all have come, and agree, before data moves. The data of a large one is moved by
 * one blocking call of the library, on a thread of the meeting's own: if a rank dies meanwhile, that thread hangs, and
 * no stream. The stream of an operation that went wrong is held until `end`: by then the group has failed the
 * operation, which would count as done otherwise. No operation runs twice or beside another one: they come in turn. */
#include "speedups.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  LINE = 64,          /* bytes of the processor's cache line */
  BEFORE = 24,        /* bytes of a header in front of the number, and an end */
  AFTER = 52,         /* and behind it */
  HEADER = 96,        /* bytes, ended by zeros: both, and the digits */
  RECORDS = 16,       /* headers that are remembered */
  MOST_DATA = 65536,  /* bytes of an operation's data in one message */
  ALL_DATA = 131072,  /* and in those of all ranks: one of many ranks sends as few as its algorithm can */
  STATUS = 64,        /* bytes of a status, at least */
  ARGUMENTS = 7,      /* of a function of the library */
  EAGER_TURNS = 256,    /* looks at messages, some 30 us, before others may have the processor in between */
  QUICK_TURNS = 100000, /* and before it naps */
  NAP_NS = 500000,
};

typedef int (*library_function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* What a rank does with the data of all. */
enum action { NOTHING, FOLD, PLACE, TAKE };

/* What stands for a word of the library's call. */
enum { WORD, SOURCE_WORD, TARGET_WORD };

/* An operation but for its number and its buffers. */
struct plan {
  struct plan *next;
  char before[BEFORE], after[AFTER]; /* of the header, around the number */
  enum action action;
  int root;               /* that alone gets (FOLD) or gives (TAKE); -1: all do */
  size_t piece, stride;   /* bytes for each rank, and from one rank's to the next one's in the source */
  uintptr_t type, op;     /* to reduce with */
  int elements, divide;   /* of a piece; the bytes of floats to be divided by the number of ranks, or 0 */
  library_function function;
  uintptr_t words[ARGUMENTS];
  uint8_t kinds[ARGUMENTS];
};

struct meeting {
  PyObject_HEAD
  pid_t process;
  int (*call)(void *stream, void (*function)(void *), void *argument);
  library_function send, receive, test_all, reduce_local, probe;
  uintptr_t comm, byte, tag, in_place;  /* handles and constants of the library's */
  uintptr_t any, told_tag, told_comm;   /* where ranks tell each other that the group is broken */
  size_t request; /* bytes of a request */
  int rank, size;
  size_t most, message; /* bytes of data in a message, and of a message */
  size_t *bytes;        /* of data in the message to each rank */
  char *sent, *taken, *requests, *statuses;
  char records[RECORDS][HEADER];
  _Atomic uint64_t begun, agreed; /* operations that this rank has come to, and that all have */
  _Atomic int inside, ended, status; /* `status` is the library's for a call that failed */
  _Atomic bool is_left; /* an operation that has begun in the library and not ended */
  _Atomic bool differ, listens; /* it `listens` until Python has taken what others told */
  struct plan *plans;
  /* The thread that moves large data */
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t thread;
  bool has_thread, is_leaving;
  enum { IDLE, ASKED, MOVED } state;
  library_function function;
  uintptr_t words[ARGUMENTS];
};

/* An operation. */
struct run {
  struct meeting *meeting;
  const struct plan *plan;
  char *source, *target;
};

static void nap(void) { nanosleep(&(struct timespec){0, NAP_NS}, NULL); }

static char *message_to(const struct meeting *self, int rank) { return self->sent + (size_t)rank * self->message; }
static char *message_from(const struct meeting *self, int rank) { return self->taken + (size_t)rank * self->message; }

/* After a call that failed the library may still write to the messages. */
static bool note(struct meeting *self, int status) {
  if (!status) return true;
  self->is_left = true;
  atomic_store(&self->status, status);
  return false;
}

static uintptr_t word(const void *pointer) { return (uintptr_t)pointer; }

/* Begin to send a message, or to receive one. */
static bool post(struct meeting *self, library_function function, char *message, size_t length, int rank, int request) {
  char *place = self->requests + (size_t)request * self->request;
  return note(self, function(word(message), length, self->byte, (uintptr_t)rank, self->tag, self->comm, word(place)));
}

/* Wait for messages; false if the library fails, or the meeting has ended. */
static bool complete(struct meeting *self, int count) {
  int is_done = 0;
  for (int turn = 0;; turn++) {
    int status = self->test_all((uintptr_t)count, word(self->requests), word(&is_done), word(self->statuses), 0, 0, 0);
    if (!note(self, status)) return false;
    if (is_done) return true;
    if (atomic_load_explicit(&self->ended, memory_order_relaxed)) {
      self->is_left = true;
      return false;
    }
    if (turn > QUICK_TURNS) nap();
    else if (turn > EAGER_TURNS) sched_yield();
  }
}

/* Wait until Python has taken what the others have told, if they have: a rank that comes late must hear first that the
 * group is broken. Each call has the library take one message or so, and what a rank tells comes behind its header. */
static bool listen(struct meeting *self) {
  int is_told = 1;
  while (is_told && !atomic_load(&self->ended)) {
    is_told = 0;
    for (int i = 0; !is_told && i <= self->size; i++) {
      int status = self->probe(self->any, self->told_tag, self->told_comm, word(&is_told), word(self->statuses), 0, 0);
      if (!note(self, status)) return false;
    }
    if (is_told) atomic_store(&self->listens, true);
    while (atomic_load(&self->listens) && !atomic_load(&self->ended)) nap();
  }
  return !atomic_load(&self->ended);
}

/* Exchange the messages. Returns whether all ranks have come and agree. */
static bool exchange(struct meeting *self, const char *header) {
  memcpy(self->records[atomic_load(&self->begun) % RECORDS], header, HEADER);
  atomic_fetch_add(&self->begun, 1);
  int others = self->size - 1, own = self->rank;
  for (int i = 0; i < others; i++) {
    int rank = (own + 1 + i) % self->size;
    if (!post(self, self->receive, message_from(self, rank), self->message, rank, i)) return false;
  }
  for (int i = 0; i < others; i++) {
    int rank = (own + 1 + i) % self->size;
    memcpy(message_to(self, rank), header, HEADER);
    if (!post(self, self->send, message_to(self, rank), HEADER + self->bytes[rank], rank, others + i)) return false;
  }
  if (others && (!complete(self, 2 * others) || !listen(self))) return false;
  memcpy(message_from(self, own), header, HEADER);
  for (int rank = 0; rank < self->size; rank++)
    if (memcmp(message_from(self, rank), header, HEADER)) {
      atomic_store(&self->differ, true);
      return false;
    }
  atomic_fetch_add(&self->agreed, 1);
  return true;
}

static void divide(const struct meeting *self, const struct plan *plan, char *target) {
  for (int i = 0; i < plan->elements; i++) {
    if (plan->divide == sizeof(float)) ((float *)target)[i] /= (float)self->size;
    if (plan->divide == sizeof(double)) ((double *)target)[i] /= (double)self->size;
  }
}

/* Whether this rank's part of an operation's result is not empty. */
static bool gets(const struct meeting *self, const struct plan *plan) {
  return plan->action == FOLD ? plan->root < 0 || plan->root == self->rank : true;
}

/* Make the result of what the messages have brought. */
static bool use(struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  if (!plan->piece || !gets(self, plan)) return true;
  if (plan->action == TAKE) {
    memcpy(run->target, message_from(self, plan->root) + HEADER, plan->piece);
    return true;
  }
  for (int rank = 0; rank < self->size; rank++) {
    const char *data = message_from(self, rank) + HEADER;
    if (plan->action == PLACE) {
      memcpy(run->target + (size_t)rank * plan->piece, data, plan->piece);
    } else if (!rank) {
      memcpy(run->target, data, plan->piece);
    } else {
      uintptr_t count = (uintptr_t)plan->elements;
      if (!note(self, self->reduce_local(word(data), word(run->target), count, plan->type, plan->op, 0, 0))) return false;
    }
  }
  divide(self, plan, run->target);
  return true;
}

/* Write the data into the messages: this rank's own, too, since the source may be the target. */
static void pack(const struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  for (int rank = 0; rank < self->size; rank++) {
    bool gives = plan->action == TAKE ? plan->root == self->rank : plan->root < 0 || plan->root == rank;
    self->bytes[rank] = gives ? plan->piece : 0;
    char *message = rank == self->rank ? message_from(self, rank) : message_to(self, rank);
    if (gives && plan->piece) memcpy(message + HEADER, run->source + (size_t)rank * plan->stride, plan->piece);
  }
}

static void *move_main(void *argument) {
  struct meeting *self = argument;
  pthread_mutex_lock(&self->lock);
  for (;;) {
    while (self->state != ASKED && !self->is_leaving) pthread_cond_wait(&self->changed, &self->lock);
    if (self->is_leaving) break;
    const uintptr_t *words = self->words;
    pthread_mutex_unlock(&self->lock);
    int status = self->function(words[0], words[1], words[2], words[3], words[4], words[5], words[6]);
    pthread_mutex_lock(&self->lock);
    note(self, status);
    self->state = MOVED;
    pthread_cond_broadcast(&self->changed);
  }
  pthread_mutex_unlock(&self->lock);
  return NULL;
}

static bool start_thread(struct meeting *self) {
  sigset_t all, old;
  if (self->has_thread) return true;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old); /* Python's signals stay where they belong */
  self->has_thread = !pthread_create(&self->thread, NULL, move_main, self);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return note(self, self->has_thread ? 0 : -1);
}

/* Have the library move the data; false if it fails, or the meeting has ended before. */
static bool move(struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  char *source = run->source, *target = run->target, *apart = NULL;
  size_t whole = plan->piece * (size_t)self->size;
  if (!start_thread(self)) return false;
  if (plan->action == TAKE && plan->root == self->rank && source != target) memcpy(target, source, plan->piece);
  /* No library takes a target inside of its source, but for the whole of it, or the other way round. */
  if (plan->action == FOLD && plan->stride && target >= source && target < source + whole) {
    if (!(apart = malloc(plan->piece))) return note(self, -1);
    target = apart;
  }
  const char *own = plan->action == PLACE ? target + (size_t)self->rank * plan->piece : target;
  bool is_in_place = !plan->stride && gets(self, plan) && source == own;
  pthread_mutex_lock(&self->lock);
  if (atomic_load(&self->ended)) {
    pthread_mutex_unlock(&self->lock);
    free(apart);
    return false;
  }
  self->function = plan->function;
  for (int i = 0; i < ARGUMENTS; i++) {
    self->words[i] = plan->words[i];
    if (plan->kinds[i] == SOURCE_WORD) self->words[i] = is_in_place ? self->in_place : word(source);
    if (plan->kinds[i] == TARGET_WORD) self->words[i] = word(target);
  }
  self->state = ASKED;
  pthread_cond_broadcast(&self->changed);
  while (self->state != MOVED && !atomic_load(&self->ended)) pthread_cond_wait(&self->changed, &self->lock);
  bool is_moved = self->state == MOVED && !atomic_load(&self->status);
  pthread_mutex_unlock(&self->lock);
  if (is_moved && gets(self, plan)) {
    divide(self, plan, target);
    if (apart) memcpy(run->target, apart, plan->piece);
  }
  if (!is_moved) self->is_left = true;
  if (is_moved) free(apart); /* else the library may still write to it */
  return is_moved;
}

/* Run an operation; false if ranks differ, the library fails, or the meeting has ended. */
static bool run(struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  if (atomic_load(&self->ended)) return false;
  char header[HEADER] = "";
  unsigned long long number = atomic_load(&self->begun) + 1;
  snprintf(header, sizeof header, "%s%llu%s", plan->before, number, plan->after);
  bool is_small = plan->piece <= self->most;
  memset(self->bytes, 0, (size_t)self->size * sizeof *self->bytes);
  if (is_small) pack(self, run);
  return exchange(self, header) && (is_small ? use(self, run) : move(self, run));
}

/* Run an operation, on the thread of a stream. */
static void run_on_stream(void *argument) {
  struct run given = *(struct run *)argument;
  struct meeting *self = given.meeting;
  free(argument);
  atomic_store(&self->inside, 1);
  if (!run(self, &given))
    while (!atomic_load(&self->ended)) nap();
  atomic_store(&self->inside, 0);
}

/* Put an operation on a stream: the function of a `GroupCall`. */
static int begin(struct meeting *self, const struct plan *plan, char *source, char *target, void *stream) {
  struct run *made = malloc(sizeof *made);
  if (!made) return -1;
  *made = (struct run){self, plan, source, target};
  int status = self->call(stream, run_on_stream, made);
  if (status) free(made);
  return status;
}

/* Meeting(call, functions, (comm, byte, tag, in place), (any, tag, comm), request, rank, size): the functions send,
 * receive, test all, reduce locally and probe; handles and constants; those of what ranks tell each other; the bytes of
 * a request. */
static PyObject *meeting_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  unsigned long long call, send, receive, test_all, reduce_local, probe, comm, byte, tag, in_place, told_tag, told_comm;
  long long any;
  Py_ssize_t request;
  int rank, size;
  if (has_keywords(type, keywords)) return NULL;
  if (!PyArg_ParseTuple(args, "K(KKKKK)(KKKK)(LKK)nii", &call, &send, &receive, &test_all, &reduce_local, &probe,
                        &comm, &byte, &tag, &in_place, &any, &told_tag, &told_comm, &request, &rank, &size))
    return NULL;
  struct meeting *self = (struct meeting *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  *(void **)&self->call = (void *)(uintptr_t)call;
  *(void **)&self->send = (void *)(uintptr_t)send;
  *(void **)&self->receive = (void *)(uintptr_t)receive;
  *(void **)&self->test_all = (void *)(uintptr_t)test_all;
  *(void **)&self->reduce_local = (void *)(uintptr_t)reduce_local;
  *(void **)&self->probe = (void *)(uintptr_t)probe;
  self->any = (uintptr_t)any, self->told_tag = told_tag, self->told_comm = told_comm;
  self->comm = comm, self->byte = byte, self->tag = tag, self->in_place = in_place;
  self->process = getpid();
  self->request = (size_t)request, self->rank = rank, self->size = size;
  pthread_mutex_init(&self->lock, NULL);
  pthread_cond_init(&self->changed, NULL);
  size_t ranks = (size_t)size, most = ALL_DATA / ranks;
  self->most = (most < MOST_DATA ? most : MOST_DATA) / LINE * LINE;
  self->message = HEADER + self->most;
  self->sent = calloc(ranks, self->message);
  self->taken = calloc(ranks, self->message);
  self->requests = calloc(2 * ranks, self->request);
  self->statuses = calloc(2 * ranks, STATUS);
  self->bytes = calloc(ranks, sizeof *self->bytes);
  if (self->sent && self->taken && self->requests && self->statuses && self->bytes) return (PyObject *)self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

static void meeting_free(PyObject *object) {
  struct meeting *self = (struct meeting *)object;
  if (self->process != getpid()) return; /* a forked child has no such thread */
  if (self->is_left) return; /* the library may still write to it, when it ends with the process at the latest */
  if (self->has_thread) {
    pthread_mutex_lock(&self->lock);
    self->is_leaving = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->thread, NULL);
  }
  for (struct plan *plan = self->plans, *next; plan; plan = next) {
    next = plan->next;
    free(plan);
  }
  void *const all[] = {self->sent, self->taken, self->requests, self->statuses, self->bytes};
  for (int i = 0; i < 5; i++) free(all[i]);
  pthread_cond_destroy(&self->changed);
  pthread_mutex_destroy(&self->lock);
  Py_TYPE(object)->tp_free(object);
}

/* plan(before, after, action, root, piece, stride, type, op, elements, divide, function, words, kinds): return the
 * address of an operation's plan, which the meeting keeps. */
static PyObject *meeting_plan(PyObject *object, PyObject *args) {
  struct meeting *self = (struct meeting *)object;
  const char *before, *after, *kinds;
  int action, root, elements, divided;
  Py_ssize_t piece, stride, count;
  unsigned long long type, op, function, at[ARGUMENTS];
  if (!PyArg_ParseTuple(args, "ssiinnKKiiK(KKKKKKK)y#", &before, &after, &action, &root, &piece, &stride, &type, &op,
                        &elements, &divided, &function, &at[0], &at[1], &at[2], &at[3], &at[4], &at[5], &at[6], &kinds,
                        &count))
    return NULL;
  struct plan *plan = calloc(1, sizeof *plan);
  if (!plan) return PyErr_NoMemory();
  *plan = (struct plan){.next = self->plans, .action = (enum action)action, .root = root, .piece = (size_t)piece,
                        .stride = (size_t)stride, .type = type, .op = op, .elements = elements, .divide = divided};
  strncpy(plan->before, before, BEFORE - 1);
  strncpy(plan->after, after, AFTER - 1);
  *(void **)&plan->function = (void *)(uintptr_t)function;
  for (int i = 0; i < ARGUMENTS; i++) plan->words[i] = at[i], plan->kinds[i] = i < count ? (uint8_t)kinds[i] : WORD;
  self->plans = plan;
  return PyLong_FromVoidPtr(plan);
}

/* run(plan, source, target): run an operation on this thread, as other ranks may run it on a stream; false if it went
 * wrong. */
static PyObject *meeting_run(PyObject *object, PyObject *args) {
  struct meeting *self = (struct meeting *)object;
  unsigned long long plan, source, target;
  if (!PyArg_ParseTuple(args, "KKK", &plan, &source, &target)) return NULL;
  const struct run given = {self, (struct plan *)(uintptr_t)plan, (char *)(uintptr_t)source, (char *)(uintptr_t)target};
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
    PyObject *text = text_of(message_from(self, i));
    if (text) PyList_SET_ITEM(found, i, text);
    else Py_CLEAR(found);
  }
  return found;
}

/* records(): how many operations this rank has come to, how many all have, and the last headers of this rank. */
static PyObject *meeting_records(PyObject *object, PyObject *unused) {
  struct meeting *self = (struct meeting *)object;
  unsigned long long agreed = atomic_load(&self->agreed), begun = atomic_load(&self->begun);
  unsigned long long count = begun < RECORDS ? begun : RECORDS;
  PyObject *found = PyList_New((Py_ssize_t)count);
  (void)unused;
  for (unsigned long long i = 0; found && i < count; i++) {
    PyObject *text = text_of(self->records[(begun - count + i) % RECORDS]);
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

/* end(): let the streams go on, without what they waited for; return whether data still moves, which nobody can stop. */
static PyObject *meeting_end(PyObject *object, PyObject *unused) {
  struct meeting *self = (struct meeting *)object;
  (void)unused;
  pthread_mutex_lock(&self->lock);
  atomic_store(&self->ended, 1);
  bool moves = self->state == ASKED;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
  return PyBool_FromLong(moves);
}

static PyMethodDef methods[] = {
    {"end", meeting_end, METH_NOARGS, PyDoc_STR("Let the streams go on.")},
    {"go_on", meeting_go_on, METH_NOARGS, PyDoc_STR("Let an operation begin that others have told of something.")},
    {"headers", meeting_headers, METH_NOARGS, PyDoc_STR("Return the headers of all ranks, once they differ.")},
    {"hold_on", meeting_hold_on, METH_NOARGS, PyDoc_STR("Let none begin before `go_on`.")},
    {"plan", meeting_plan, METH_VARARGS, PyDoc_STR("Return the address of an operation's plan.")},
    {"records", meeting_records, METH_NOARGS, PyDoc_STR("Return the last headers of this rank.")},
    {"run", meeting_run, METH_VARARGS, PyDoc_STR("Run an operation on this thread.")},
    {"state", meeting_state, METH_NOARGS, PyDoc_STR("Return how far it is.")},
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
