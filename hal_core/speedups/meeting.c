/* Meeting: the collectives of one rank of several processes, on streams that are threads (rules G1, G3).
 *
 * `begin` has a stream call `run`, which exchanges one message with each other rank, over a library of messages
 * (MPI) whose functions are given by address. A message is a header, which says what the operation is, and behind it
 * the data of a small operation. So all have come, and agree, before data moves. The data of a large one follows in
 * messages from buffer to buffer. No call of the library waits for a rank: the library's own collectives would, and a
 * stream that makes one hangs if a rank dies meanwhile. Once the group has failed, `stop` has what is to come taken back.
 * To receive all data apart and copy it, so that no late message can write to a buffer, was rejected: it costs up to a
 * tenth, and half as much again in a large broadcast.
 * The stream of an operation that went wrong is held until `end`: by then the group has failed the operation, which
 * would count as done otherwise. No operation runs twice or beside another one: they come in turn. */
#include "speedups.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  LINE = 64,          /* bytes of the processor's cache line, and a multiple of every element's */
  BEFORE = 24,        /* bytes of a header in front of the number, and an end */
  AFTER = 52,         /* and behind it */
  HEADER = 96,        /* bytes, ended by zeros: both, and the digits */
  RECORDS = 16,       /* headers that are remembered */
  MOST_DATA = 16384,  /* bytes of an operation's data behind a header: with 65536 a broadcast of those takes 1.8 x */
  ALL_DATA = 131072,  /* and behind those of all ranks: one of many ranks sends as few as its algorithm can */
  MOST_ROOM = 524288, /* bytes that another rank sends to be reduced: more cost the cache, fewer more turns */
  ALL_ROOM = 4194304,  /* and all ranks together, but for LEAST_ROOM each */
  LEAST_ROOM = 16384,
  STATUS = 64,        /* bytes of a status, at least */
  EAGER_TURNS = 256,    /* looks at messages, some 30 us, before others may have the processor in between */
  QUICK_TURNS = 100000, /* and before it naps */
  NAP_NS = 500000,
  STOP_NAPS = 2000, /* at most, while a stream takes back what it would receive */
};

typedef int (*library_function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

/* What a rank does with the data of all. */
enum action { NOTHING, FOLD, PLACE, TAKE };

/* An operation but for its number and its buffers. */
struct plan {
  struct plan *next;
  char before[BEFORE], after[AFTER]; /* of the header, around the number */
  enum action action;
  int root;               /* that alone gets (FOLD) or gives (TAKE); -1: all do */
  size_t piece, stride;   /* bytes for each rank, and from one rank's to the next one's in the source */
  uintptr_t type, op;     /* to reduce with */
  int item;               /* bytes of an element */
  bool divides;           /* the sum, of floats, by the number of ranks */
};

struct meeting {
  PyObject_HEAD
  int (*call)(void *stream, void (*function)(void *), void *argument);
  library_function send, receive, test_all, cancel, reduce_local, probe;
  uintptr_t comm, byte, tag;            /* handles and constants of the library's */
  uintptr_t any, told_tag;              /* of what ranks tell each other, as that the group is broken */
  size_t request; /* bytes of a request */
  int rank, size;
  size_t most, room;     /* bytes of data behind a header, and of what may be received from a rank */
  size_t *bytes;         /* of data behind the header to each rank */
  int posted, receiving; /* requests, and those of them in front that receive */
  char *sent, *taken, *requests, *statuses;
  char records[RECORDS][HEADER];
  _Atomic uint64_t begun, agreed; /* operations that this rank has come to, and that all have */
  _Atomic int inside, status; /* `status` is the library's for a call that failed */
  _Atomic bool stopped, is_held, ended; /* nothing begins or comes any more; nor is anything to come; its stream goes on */
  _Atomic bool is_left; /* an operation that has begun in the library and not ended */
  _Atomic bool moves;   /* data between buffers is on its way */
  _Atomic bool differ, listens; /* it `listens` until Python has taken what others told */
  struct plan *plans;
};

/* An operation. */
struct run {
  struct meeting *meeting;
  const struct plan *plan;
  char *source, *target;
};

static void nap(void) { nanosleep(&(struct timespec){0, NAP_NS}, NULL); }

static char *message_to(const struct meeting *self, int rank) { return self->sent + (size_t)rank * (HEADER + self->most); }
static char *message_from(const struct meeting *self, int rank) { return self->taken + (size_t)rank * self->room; }

/* After a call that failed the library may still write to the messages. */
static bool note(struct meeting *self, int status) {
  if (!status) return true;
  self->is_left = true;
  atomic_store(&self->status, status);
  return false;
}

static uintptr_t word(const void *pointer) { return (uintptr_t)pointer; }

/* The `number`th of the other ranks, from 1 on: each rank has another first one. */
static int other(const struct meeting *self, int number) { return (self->rank + number) % self->size; }

static bool post(struct meeting *self, library_function function, const char *message, size_t length, int rank) {
  if (!length) return true;
  char *request = self->requests + (size_t)self->posted++ * self->request;
  return note(self, function(word(message), length, self->byte, (uintptr_t)rank, self->tag, self->comm, word(request)));
}

/* Begin to send a message. */
static bool send(struct meeting *self, const char *message, size_t length, int rank) {
  return post(self, self->send, message, length, rank);
}

/* Begin to receive one, before any is sent. */
static bool receive(struct meeting *self, char *message, size_t length, int rank) {
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

/* Wait for the messages; false if the library fails, or the meeting was stopped. `naps` after a while. */
static bool complete(struct meeting *self, bool naps) {
  int is_done = 0, turn = 0;
  for (;;) {
    uintptr_t count = (uintptr_t)self->posted;
    int status = self->test_all(count, word(self->requests), word(&is_done), word(self->statuses), 0, 0, 0);
    if (!note(self, status)) return false;
    if (is_done) break;
    if (atomic_load_explicit(&self->stopped, memory_order_relaxed)) {
      take_back(self);
      return false;
    }
    if (turn < QUICK_TURNS) turn++;
    if (turn == QUICK_TURNS && naps) nap();
    else if (turn > EAGER_TURNS) sched_yield();
  }
  self->posted = self->receiving = 0;
  return true;
}

/* Wait until Python has taken what the others have told, if they have: a rank that comes late must hear first that the
 * group is broken. Each call has the library take one message or so, and what a rank tells comes behind its header. */
static bool listen(struct meeting *self) {
  int is_told = 1;
  while (is_told && !atomic_load(&self->stopped)) {
    is_told = 0;
    for (int i = 0; !is_told && i <= self->size; i++) {
      int status = self->probe(self->any, self->told_tag, self->comm, word(&is_told), word(self->statuses), 0, 0);
      if (!note(self, status)) return false;
    }
    if (is_told) atomic_store(&self->listens, true);
    while (atomic_load(&self->listens) && !atomic_load(&self->stopped)) nap();
  }
  return !atomic_load(&self->stopped);
}

/* Exchange the messages. Returns whether all ranks have come and agree. */
static bool exchange(struct meeting *self, const char *header) {
  memcpy(self->records[atomic_load(&self->begun) % RECORDS], header, HEADER);
  atomic_fetch_add(&self->begun, 1);
  for (int i = 1; i < self->size; i++)
    if (!receive(self, message_from(self, other(self, i)), self->room, other(self, i))) return false;
  for (int i = 1; i < self->size; i++) {
    int rank = other(self, i);
    memcpy(message_to(self, rank), header, HEADER);
    if (!send(self, message_to(self, rank), HEADER + self->bytes[rank], rank)) return false;
  }
  if (self->posted && (!complete(self, true) || !listen(self))) return false;
  memcpy(message_from(self, self->rank), header, HEADER);
  for (int rank = 0; rank < self->size; rank++)
    if (memcmp(message_from(self, rank), header, HEADER)) {
      atomic_store(&self->differ, true);
      return false;
    }
  atomic_fetch_add(&self->agreed, 1);
  return true;
}

/* Reduce what another rank has sent, of some bytes, into a target. */
static bool reduce(struct meeting *self, const struct plan *plan, const char *data, char *target, size_t length) {
  return note(self, self->reduce_local(word(data), word(target), length / (size_t)plan->item, plan->type, plan->op, 0, 0));
}

static void divide(const struct meeting *self, const struct plan *plan, char *target, size_t length) {
  if (!plan->divides) return;
  for (size_t i = 0; i < length / (size_t)plan->item; i++) {
    if (plan->item == sizeof(float)) ((float *)target)[i] /= (float)self->size;
    if (plan->item == sizeof(double)) ((double *)target)[i] /= (double)self->size;
  }
}

/* Whether a rank gets a part of an operation's result. */
static bool gets(const struct plan *plan, int rank) {
  return plan->action != FOLD || plan->root < 0 || plan->root == rank;
}

/* Make the result of what the messages have brought. */
static bool use(struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  if (!plan->piece || !gets(plan, self->rank)) return true;
  if (plan->action == TAKE) {
    memcpy(run->target, message_from(self, plan->root) + HEADER, plan->piece);
    return true;
  }
  /* From rank 0 on, at every rank: each reduces all data itself, and in an order of its own its sums of floats would not
   * be those of the others. */
  for (int rank = 0; rank < self->size; rank++) {
    const char *data = message_from(self, rank) + HEADER;
    if (plan->action == PLACE) {
      memcpy(run->target + (size_t)rank * plan->piece, data, plan->piece);
    } else if (!rank) {
      memcpy(run->target, data, plan->piece);
    } else if (!reduce(self, plan, data, run->target, plan->piece)) {
      return false;
    }
  }
  divide(self, plan, run->target, plan->piece);
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

/* The most bytes of a part, of `parts` that make up some bytes and each have a rank of its own. */
static size_t part_of(size_t bytes, size_t parts) { return ((bytes + parts - 1) / parts + LINE - 1) / LINE * LINE; }

/* How many bytes of a piece a part has from a place on. */
static size_t length_of(const struct plan *plan, size_t begin, size_t part) {
  size_t left = begin < plan->piece ? plan->piece - begin : 0;
  return left < part ? left : part;
}

/* Reduce large data. Each rank makes a part of the result from what the others send it, and sends that part to those
 * that get it: as many bytes as any algorithm moves. It goes by rounds, because what is received has little room. */
static bool fold(struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  bool is_shared = !plan->stride; /* else each rank has a piece of its own, and keeps it */
  size_t size = (size_t)self->size, own = (size_t)self->rank, parts = is_shared ? size : 1, part;
  for (size_t begin = 0; begin < plan->piece; begin += parts * part) {
    part = part_of(plan->piece - begin, parts);
    if (part > self->room) part = self->room;
    const char *source = run->source + begin;
    size_t next = is_shared ? part : plan->stride, mine = is_shared ? begin + own * part : begin;
    size_t length = length_of(plan, mine, part);
    for (int i = 1; i < self->size; i++)
      if (!receive(self, message_from(self, other(self, i)), length, other(self, i))) return false;
    for (int i = 1; i < self->size; i++) {
      size_t rank = (size_t)other(self, i), bytes = length_of(plan, is_shared ? begin + rank * part : begin, part);
      if (!send(self, source + rank * next, bytes, (int)rank)) return false;
    }
    if (!complete(self, false)) return false;
    char *sum = gets(plan, self->rank) ? run->target + mine : message_from(self, self->rank);
    if (sum != source + own * next) memcpy(sum, source + own * next, length);
    /* In this rank's own order: nobody else makes this part, so all get the same sum. */
    for (int i = 1; i < self->size; i++)
      if (!reduce(self, plan, message_from(self, other(self, i)), sum, length)) return false;
    divide(self, plan, sum, length);
    if (!is_shared) continue;
    for (int i = 1; gets(plan, self->rank) && i < self->size; i++) {
      size_t rank = (size_t)other(self, i), place = begin + rank * part;
      if (!receive(self, run->target + place, length_of(plan, place, part), (int)rank)) return false;
    }
    for (int i = 1; i < self->size; i++)
      if (gets(plan, other(self, i)) && !send(self, sum, length, other(self, i))) return false;
    if (!complete(self, false)) return false;
  }
  return true;
}

/* Exchange large pieces. */
static bool place(struct meeting *self, const struct run *run) {
  size_t piece = run->plan->piece, stride = run->plan->stride, own = (size_t)self->rank;
  const char *source = run->source + own * stride;
  char *target = run->target + own * piece;
  for (int i = 1; i < self->size; i++)
    if (!receive(self, run->target + (size_t)other(self, i) * piece, piece, other(self, i))) return false;
  for (int i = 1; i < self->size; i++)
    if (!send(self, run->source + (size_t)other(self, i) * stride, piece, other(self, i))) return false;
  if (source != target) memcpy(target, source, piece);
  return complete(self, false);
}

/* Take large data from the root, which sends each rank a part: all send their part to each other. */
static bool take(struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  bool is_root = plan->root == self->rank;
  char *data = run->target;
  size_t part = part_of(plan->piece, (size_t)self->size), mine = (size_t)self->rank * part;
  size_t length = length_of(plan, mine, part);
  if (is_root && run->source != data) memcpy(data, run->source, plan->piece);
  for (int i = 1; is_root && i < self->size; i++) {
    size_t begin = (size_t)other(self, i) * part;
    if (!send(self, data + begin, length_of(plan, begin, part), other(self, i))) return false;
  }
  if (!is_root && (!receive(self, data + mine, length, plan->root) || !complete(self, false))) return false;
  for (int i = 1; !is_root && i < self->size; i++) {
    size_t begin = (size_t)other(self, i) * part;
    if (!receive(self, data + begin, length_of(plan, begin, part), other(self, i))) return false;
  }
  for (int i = 1; i < self->size; i++)
    if (other(self, i) != plan->root && !send(self, data + mine, length, other(self, i))) return false;
  return complete(self, false);
}

/* Move large data between the buffers; false if the library fails, or the meeting was stopped before. */
static bool move(struct meeting *self, const struct run *run) {
  enum action action = run->plan->action;
  atomic_store(&self->moves, true); /* before it looks: `stop` and `end` do both the other way round */
  bool is_over = atomic_load(&self->stopped);
  bool is_moved = !is_over && (action == FOLD ? fold(self, run) : action == TAKE ? take(self, run) : place(self, run));
  if (is_over || is_moved) atomic_store(&self->moves, false);
  return is_moved;
}

/* Run an operation; false if ranks differ, the library fails, or the meeting was stopped. */
static bool run(struct meeting *self, const struct run *run) {
  const struct plan *plan = run->plan;
  if (atomic_load(&self->stopped)) return false;
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
  if (!run(self, &given)) {
    atomic_store(&self->is_held, true);
    while (!atomic_load(&self->ended)) nap();
  }
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

/* Meeting(call, functions, (comm, byte, tag), (any, tag), request, rank, size): the functions send, receive, test
 * all, cancel, reduce locally and probe; handles and constants; those of what ranks tell each other; the bytes of a
 * request. */
static PyObject *meeting_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  unsigned long long call, functions[6], comm, byte, tag, told_tag;
  long long any;
  Py_ssize_t request;
  int rank, size;
  if (has_keywords(type, keywords)) return NULL;
  if (!PyArg_ParseTuple(args, "K(KKKKKK)(KKK)(LK)nii", &call, &functions[0], &functions[1], &functions[2],
                        &functions[3], &functions[4], &functions[5], &comm, &byte, &tag, &any, &told_tag,
                        &request, &rank, &size))
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
  size_t ranks = (size_t)size, most = ALL_DATA / ranks, room = ALL_ROOM / ranks;
  self->most = (most < MOST_DATA ? most : MOST_DATA) / LINE * LINE;
  self->room = (room < LEAST_ROOM ? LEAST_ROOM : room < MOST_ROOM ? room : MOST_ROOM) / LINE * LINE;
  self->sent = calloc(ranks, HEADER + self->most);
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
  void *const all[] = {self->sent, self->taken, self->requests, self->statuses, self->bytes};
  for (int i = 0; i < 5; i++) free(all[i]);
  Py_TYPE(object)->tp_free(object);
}

/* plan(before, after, action, root, piece, stride, type, op, item, divides): return the address of an operation's plan,
 * which the meeting keeps. */
static PyObject *meeting_plan(PyObject *object, PyObject *args) {
  struct meeting *self = (struct meeting *)object;
  const char *before, *after;
  int action, root, item, divides;
  Py_ssize_t piece, stride;
  unsigned long long type, op;
  if (!PyArg_ParseTuple(args, "ssiinnKKip", &before, &after, &action, &root, &piece, &stride, &type, &op, &item, &divides))
    return NULL;
  struct plan *plan = calloc(1, sizeof *plan);
  if (!plan) return PyErr_NoMemory();
  *plan = (struct plan){.next = self->plans, .action = (enum action)action, .root = root, .piece = (size_t)piece,
                        .stride = (size_t)stride, .type = type, .op = op, .item = item, .divides = divides};
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
