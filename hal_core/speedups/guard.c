/* The engine's locks, taken only if nobody has them, and its deques. */
#include "arguments.h"

/* A lock that knows its owner, in the place of `threading.RLock`. That has its arguments parsed and reads
 * the clock at each call, which took a fifth of hal's instructions in a dispatch. The interpreter lock
 * guards the fields. */
struct owned_lock {
  PyObject_HEAD
  unsigned long owner;     /* the thread; 0: nobody */
  int again;               /* how often the owner has taken it besides, as a finaliser may */
  int waiting;             /* threads in `wait_for_bell` */
  PyThread_type_lock bell; /* free if it was rung: one of them is to look again */
  bool is_rung;
};

/* OwnedLock() */
static PyObject *lock_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  if (has_keywords(type, keywords) || !PyArg_ParseTuple(args, "")) return NULL;
  struct owned_lock *self = (struct owned_lock *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  if ((self->bell = PyThread_allocate_lock())) {
    PyThread_acquire_lock(self->bell, NOWAIT_LOCK);
  } else {
    Py_CLEAR(self);
    PyErr_NoMemory();
  }
  return (PyObject *)self;
}

static void lock_dealloc(PyObject *object) {
  struct owned_lock *self = (struct owned_lock *)object;
  if (self->bell) PyThread_free_lock(self->bell);
  Py_TYPE(object)->tp_free(object);
}

/* Sleep until the bell is rung; false if the handler of a signal has raised. */
static bool wait_for_bell(struct owned_lock *self) {
  PyLockStatus status;
  self->waiting++;
  Py_BEGIN_ALLOW_THREADS
  status = PyThread_acquire_lock_timed(self->bell, -1, 1);
  Py_END_ALLOW_THREADS
  self->waiting--;
  if (status == PY_LOCK_ACQUIRED) self->is_rung = false;
  return status != PY_LOCK_INTR || !Py_MakePendingCalls();
}

static PyObject *lock_enter(PyObject *object, PyObject *unused) {
  (void)unused;
  struct owned_lock *self = (struct owned_lock *)object;
  unsigned long thread = PyThread_get_thread_ident();
  if (self->owner == thread) {
    self->again++;
    Py_RETURN_TRUE;
  }
  while (self->owner)
    if (!wait_for_bell(self)) return NULL;
  self->owner = thread;
  Py_RETURN_TRUE;
}

static PyObject *lock_exit(PyObject *object, PyObject *const *args, Py_ssize_t count) {
  (void)args, (void)count;
  struct owned_lock *self = (struct owned_lock *)object;
  if (self->again) {
    self->again--;
  } else {
    leave_lock(object);
  }
  Py_RETURN_NONE;
}

static PyObject *lock_is_owned(PyObject *object, PyObject *unused) {
  (void)unused;
  return PyBool_FromLong(((struct owned_lock *)object)->owner == PyThread_get_thread_ident());
}

static PyObject *lock_locked(PyObject *object, PyObject *unused) {
  (void)unused;
  return PyBool_FromLong(((struct owned_lock *)object)->owner != 0);
}

static PyMethodDef lock_methods[] = {
    {"__enter__", lock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))lock_exit, METH_FASTCALL, NULL},
    {"_is_owned", lock_is_owned, METH_NOARGS, NULL},
    {"locked", lock_locked, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyTypeObject owned_lock_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hal._speedups.OwnedLock",
    .tp_basicsize = sizeof(struct owned_lock),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_doc = PyDoc_STR("A lock that knows its owner, for `with`."),
    .tp_new = lock_new,
    .tp_dealloc = lock_dealloc,
    .tp_methods = lock_methods,
};

bool is_ours(PyObject *lock) { return PyObject_TypeCheck(lock, &owned_lock_type); }

int use_lock(PyObject *lock) {
  Py_XSETREF(engine.lock, Py_NewRef(lock));
  return 0;
}

/* Return whether the stack has room for what is called while a lock is held, and for the engine's functions
 * that publish or take back what C has begun (`leave_to_python`): nothing may fail there for want of it (O3).
 * Since Python 3.12 their frames are counted apart from the calls of C. */
static bool has_stack(void) {
  enum { FRAMES = 32 };
  const PyThreadState *thread = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030C0000
  if (thread->py_recursion_remaining < FRAMES) return false;
#else
  if (thread->recursion_remaining < FRAMES) return false;
#endif
  if (Py_EnterRecursiveCall(" in a lock")) {
    PyErr_Clear();
    return false;
  }
  Py_LeaveRecursiveCall();
  return true;
}

static bool own(PyObject *lock) {
  struct owned_lock *self = (struct owned_lock *)lock;
  if (!is_ours(lock) || self->owner) return false;
  self->owner = PyThread_get_thread_ident();
  return true;
}

bool enter_lock(PyObject *lock) { return has_stack() && own(lock); }

/* The lock is handed to nobody. A thread that is woken has to get the interpreter lock first, and if it owned this one
 * by then, every shortcut of the others would be declined meanwhile (`own`). */
void leave_lock(PyObject *lock) {
  struct owned_lock *self = (struct owned_lock *)lock;
  self->owner = 0;
  if (!self->waiting || self->is_rung) return;
  self->is_rung = true;
  PyThread_release_lock(self->bell);
}

bool enter(void) { return enter_lock(engine.lock); }

bool enter_behind(PyObject *lock) { return lock ? own(engine.lock) : enter(); }

bool enter_at_last(void) {
  struct owned_lock *self = (struct owned_lock *)engine.lock;
  if (!is_ours(engine.lock)) return false;
  while (self->owner)
    if (!wait_for_bell(self)) return false;
  return enter();
}

void leave(void) { leave_lock(engine.lock); }

enum answer call_for_sure(PyObject *function, PyObject *first, PyObject *second, PyObject *third) {
  enum { TRIES = 8 }; /* no loop without end: a signal's handler may raise each time */
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  for (int i = 0; i < TRIES; i++) {
    PyObject *done = PyObject_CallFunctionObjArgs(function, first, second, third, NULL);
    if (done) {
      Py_DECREF(done);
      break;
    }
    if (type) {
      PyErr_Clear();
    } else {
      PyErr_Fetch(&type, &error, &trace);
    }
  }
  if (!type) return TAKEN;
  PyErr_Restore(type, error, trace);
  return RAISED;
}

enum answer leave_to_python(PyObject *step, PyObject *first, PyObject *second) {
  return call_for_sure(engine.act_or_put_off, step, first, second ? second : Py_None);
}

void drop_all(struct drops *drops) {
  int count = drops->count;
  drops->count = 0;
  for (int i = 0; i < count; i++) Py_DECREF(drops->objects[i]);
}

PyObject *entry_of(PyObject *deque, Py_ssize_t index) {
  const PySequenceMethods *methods = Py_TYPE(deque)->tp_as_sequence;
  Py_ssize_t length = methods->sq_length(deque);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return NULL;
  PyObject *item = methods->sq_item(deque, index);
  if (!item) PyErr_Clear();
  Py_XDECREF(item); /* the deque holds it */
  return item;
}

PyCFunction function_of(PyTypeObject *type, const char *name, int flags) {
  PyCFunction found = NULL;
  PyObject *method = PyObject_GetAttrString((PyObject *)type, name);
  if (method && Py_TYPE(method) == &PyMethodDescr_Type) {
    const PyMethodDef *definition = ((PyMethodDescrObject *)method)->d_method;
    if (definition->ml_flags == flags) found = definition->ml_meth;
  }
  PyErr_Clear();
  Py_XDECREF(method); /* the type has it */
  return found;
}

/* The methods of the deques' type. Called by name they made a submission and its end a tenth dearer. */
static struct {
  PyTypeObject *type;
  PyCFunction append, popleft;
} deques;

static void know(PyTypeObject *type) {
  if (deques.type == type) return;
  deques.append = function_of(type, "append", METH_O);
  deques.popleft = function_of(type, "popleft", METH_NOARGS);
  deques.type = type;
}

bool append_to(PyObject *deque, PyObject *object) {
  know(Py_TYPE(deque));
  PyObject *done = deques.append ? deques.append(deque, object) : PyObject_CallMethodOneArg(deque, engine.append, object);
  Py_XDECREF(done);
  return done;
}

PyObject *pop_first(PyObject *deque) {
  know(Py_TYPE(deque));
  PyObject *first = deques.popleft ? deques.popleft(deque, NULL) : PyObject_CallMethodNoArgs(deque, engine.popleft);
  if (!first) PyErr_Clear(); /* nobody calls it for an empty one */
  return first;
}

/* A method of a type of locks, which called by name costs ten times as much. */
struct question {
  PyTypeObject *type;
  PyCFunction ask;
};

/* Ask a lock of Python's; true unless the answer is False. */
static bool ask_lock(struct question *question, PyObject *lock, const char *name) {
  if (Py_TYPE(lock) != question->type) {
    question->ask = function_of(Py_TYPE(lock), name, METH_NOARGS);
    question->type = Py_TYPE(lock);
  }
  PyObject *answer = question->ask ? question->ask(lock, NULL) : PyObject_CallMethod(lock, name, NULL);
  if (!answer) PyErr_Clear();
  Py_XDECREF(answer);
  return answer != Py_False;
}

bool is_locked(PyObject *lock) {
  static struct question question;
  return ask_lock(&question, lock, "locked");
}

bool is_owned(PyObject *lock) {
  static struct question question;
  if (is_ours(lock)) return ((struct owned_lock *)lock)->owner == PyThread_get_thread_ident();
  return ask_lock(&question, lock, "_is_owned");
}
