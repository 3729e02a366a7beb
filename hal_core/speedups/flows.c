/* Flow.fill, Flow.dispatch, Flow.execute and calls of routines, on the compute queue: what that queue's
 * methods do, behind what the uses of tracked buffers require. */
#include "arguments.h"
#include "tracking.h"

static bool is_given(PyObject *option, PyObject *usual) { return option && option != usual; }

/* The compute queue of a device of a flow's, borrowed, or NULL. */
static PyObject *lane_of(PyObject *flow, PyObject *device) {
  PyObject *lanes = get(flow, Flow__first); /* mostly the only one */
  if (get(lanes, Lanes_device) != device) lanes = PyDict_GetItemWithError(get(flow, Flow__lanes), device);
  if (!lanes) PyErr_Clear();
  return lanes ? get(lanes, Lanes_compute) : NULL;
}

bool is_untraced(PyObject *flow) { return Py_TYPE(flow) == engine.Flow && is_none(flow, Flow_trace); }

/* fill(flow, buffer, value, *, queue, wait, signal) */
enum answer flow_fill_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  enum { WAIT, SIGNAL, QUEUE, OPTIONS };
  static const int known[OPTIONS] = {NAME_wait, NAME_signal, NAME_queue};
  PyObject *options[OPTIONS] = {NULL};
  if (count != 3 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  PyObject *flow = args[0], *buffer = args[1];
  if (!is_untraced(flow) || Py_TYPE(buffer) != engine.TrackedBuffer || is_given(options[QUEUE], Py_None)) return NOT_MINE;
  struct uses uses;
  begin_uses(&uses, flow);
  PyObject *raw = raw_of(&uses, buffer, true), *history = get(buffer, TrackedBuffer_history);
  enum answer answer = NOT_MINE;
  /* Another history refuses kernels that write: Python knows whether fills may. */
  if (raw && PyTuple_GET_ITEM(uses.all[0].access, 0) == history)
    answer = fill(get(get(history, History_lanes), Lanes_compute), raw, args[2], NULL, NULL,
                  &(struct order){options[WAIT], options[SIGNAL], &uses}, result);
  let_uses_go(&uses);
  return answer;
}

/* dispatch(flow, kernel, *, grid, block, args, shared_memory, reads, writes, queue, wait, signal) */
enum answer flow_dispatch_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  enum { GRID, BLOCK, ARGS, SHARED_MEMORY, WAIT, SIGNAL, READS, WRITES, QUEUE, OPTIONS };
  static const int known[OPTIONS] = {NAME_grid,   NAME_block, NAME_args,   NAME_shared_memory, NAME_wait,
                                     NAME_signal, NAME_reads, NAME_writes, NAME_queue};
  PyObject *options[OPTIONS] = {NULL};
  if (count != 2 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  PyObject *flow = args[0], *kernel = args[1];
  if (!is_untraced(flow) || Py_TYPE(kernel) != engine.Kernel || is_given(options[QUEUE], Py_None)) return NOT_MINE;
  if (is_given(options[READS], engine.empty) || is_given(options[WRITES], engine.empty)) return NOT_MINE;
  PyObject *lane = lane_of(flow, get(kernel, Kernel__device));
  if (!lane) return NOT_MINE;
  struct uses uses;
  begin_uses(&uses, flow);
  enum answer answer =
      dispatch(lane, kernel,
               &(struct launch_options){options[GRID], options[BLOCK], options[ARGS], options[SHARED_MEMORY]},
               &(struct order){options[WAIT], options[SIGNAL], &uses}, result);
  let_uses_go(&uses);
  return answer;
}

bool use_directly(struct uses *self, PyObject *accesses) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(accesses); i++)
    if (!add_use(self, PyList_GET_ITEM(accesses, i))) return false;
  return true;
}

/* execute(flow, recording, *, bindings, reads, writes, queue, wait, signal) */
enum answer flow_execute_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  enum { BINDINGS, WAIT, SIGNAL, READS, WRITES, QUEUE, OPTIONS };
  static const int known[OPTIONS] = {NAME_bindings, NAME_wait, NAME_signal, NAME_reads, NAME_writes, NAME_queue};
  PyObject *options[OPTIONS] = {NULL};
  if (count != 2 || !read_options(args + count, names, known, options, OPTIONS)) return NOT_MINE;
  PyObject *flow = args[0], *recording = args[1];
  if (!is_untraced(flow) || Py_TYPE(recording) != engine.Recording || is_given(options[QUEUE], Py_None)) return NOT_MINE;
  if (is_given(options[READS], engine.empty) || is_given(options[WRITES], engine.empty)) return NOT_MINE;
  PyObject *commands = get(recording, Recording_commands);
  if (!PyObject_TypeCheck(commands, engine.CommandBuffer)) return NOT_MINE;
  PyObject *lane = lane_of(flow, get(commands, CommandBuffer__device)), *bindings = options[BINDINGS];
  if (bindings && (PyTuple_CheckExact(bindings) || PyList_CheckExact(bindings)) && !PySequence_Fast_GET_SIZE(bindings))
    bindings = NULL;
  struct uses uses;
  begin_uses(&uses, flow);
  uses.of_slots = get(recording, Recording_uses);
  enum answer answer = NOT_MINE;
  if (lane && use_directly(&uses, get(recording, Recording_direct)))
    answer = execute(lane, commands, bindings, &(struct order){options[WAIT], options[SIGNAL], &uses}, result);
  let_uses_go(&uses);
  return answer;
}

/* What a routine that takes only numbers and buffers runs (`Routine._plain`): a kernel or a recording, the
 * options of a launch, the arguments, those among them that calls give (the index, the name, and whether
 * that is written, read, or None for a number), and the uses of the others. */
enum { WHAT, PLAIN_GRID, PLAIN_BLOCK, PLAIN_SHARED_MEMORY, ARGUMENTS, LATE, ACCESSES };

/* Return the value of a name, borrowed, or NULL. */
static PyObject *value_of(PyObject *name, PyObject *const *values, PyObject *names) {
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++)
    if (PyTuple_GET_ITEM(names, i) == name) return values[i]; /* interned */
  return NULL;
}

/* Return whether each of the names given is among those that are taken. */
static bool are_known(PyObject *names, PyObject *late) {
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
    Py_ssize_t j = 0, count = PyTuple_GET_SIZE(late);
    while (j < count && PyTuple_GET_ITEM(PyTuple_GET_ITEM(late, j), 1) != PyTuple_GET_ITEM(names, i)) j++;
    if (j == count) return false;
  }
  return true;
}

/* Put what a call gives into the arguments, and add the uses of it. */
static bool fill_in(struct uses *uses, PyObject *arguments, PyObject *late, PyObject *const *values, PyObject *names) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(late); i++) {
    PyObject *each = PyTuple_GET_ITEM(late, i), *use = PyTuple_GET_ITEM(each, 2);
    PyObject *value = value_of(PyTuple_GET_ITEM(each, 1), values, names);
    if (value && use != Py_None) value = raw_of(uses, value, use == Py_True);
    if (!value) return false;
    Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(each, 0));
    Py_SETREF(((PyTupleObject *)arguments)->ob_item[index], Py_NewRef(value)); /* that was None */
  }
  return true;
}

static PyObject *copy_of(PyObject *tuple) {
  PyObject *copy = PyTuple_New(PyTuple_GET_SIZE(tuple));
  if (!copy) PyErr_Clear();
  for (Py_ssize_t i = 0; copy && i < PyTuple_GET_SIZE(tuple); i++)
    PyTuple_SET_ITEM(copy, i, Py_NewRef(PyTuple_GET_ITEM(tuple, i)));
  return copy;
}

/* routine(self, **arguments) */
enum answer routine_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  if (count != 1 || Py_TYPE(args[0]) != engine.Routine) return NOT_MINE;
  PyObject *flow = get(args[0], Routine__flow), *plain = get(args[0], Routine__plain);
  if (!plain || plain == Py_None || !is_untraced(flow)) return NOT_MINE;
  Py_INCREF(plain);
  PyObject *what = PyTuple_GET_ITEM(plain, WHAT), *late = PyTuple_GET_ITEM(plain, LATE);
  PyObject *accesses = PyTuple_GET_ITEM(plain, ACCESSES), *lane = get(get(args[0], Routine__lanes), Lanes_compute);
  PyObject *arguments = are_known(names, late) ? copy_of(PyTuple_GET_ITEM(plain, ARGUMENTS)) : NULL;
  struct uses uses;
  begin_uses(&uses, flow);
  bool is_ready = arguments && fill_in(&uses, arguments, late, args + count, names);
  for (Py_ssize_t i = 0; is_ready && i < PyTuple_GET_SIZE(accesses); i++)
    is_ready = add_use(&uses, PyTuple_GET_ITEM(accesses, i));
  uses.takes_raw = true;
  struct order order = {NULL, NULL, &uses};
  enum answer answer = NOT_MINE;
  if (is_ready && Py_TYPE(what) == engine.Kernel) {
    struct launch_options options = {PyTuple_GET_ITEM(plain, PLAIN_GRID), PyTuple_GET_ITEM(plain, PLAIN_BLOCK),
                                     arguments, PyTuple_GET_ITEM(plain, PLAIN_SHARED_MEMORY)};
    answer = dispatch(lane, what, &options, &order, result);
  } else if (is_ready) {
    answer = execute(lane, what, PyTuple_GET_SIZE(arguments) ? arguments : NULL, &order, result);
  }
  let_uses_go(&uses);
  Py_XDECREF(arguments);
  Py_DECREF(plain);
  return answer;
}
