/* Pipeline.run for arrays in all slots that are uploaded. Not one step but one for each operation, as in
 * Python: one thread runs a pipeline, and after an error the set is doubtful. */
#include "host_arrays.h"
#include "tracking.h"

/* What a run is given, and the set that it takes. */
struct run {
  PyObject *pipeline, *set;
};

/* Return which item of a list, one for each slot, is a slot's; -1 for what is no slot. */
static Py_ssize_t index_of(const struct run *self, PyObject *slot) {
  long long index;
  if (!small_int(slot, &index) || index < 0 || index >= PyList_GET_SIZE(get(self->set, BufferSet_buffers))) return -1;
  return (Py_ssize_t)index;
}

static PyObject *item_of(const struct run *self, enum slot list, PyObject *slot) {
  return PyList_GET_ITEM(get(self->set, list), index_of(self, slot));
}

static PyObject *lane_of(const struct run *self, enum slot lane) {
  return get(get(self->pipeline, Pipeline__lanes), lane);
}

/* Whether a run has only memory of its set and of the recording, which nobody traces, and that nothing stands
 * in the way of. */
static bool is_plain(const struct run *self, PyObject *inputs, PyObject *outputs) {
  PyObject *direct = get(get(self->pipeline, Pipeline_recording), Recording_direct), *slot, *array;
  PyObject *buffers = get(self->set, BufferSet_buffers), *needed = get(self->pipeline, Pipeline__needed);
  if (is_true(self->pipeline, Pipeline__closed) || !is_untraced(get(self->pipeline, Pipeline__flow))) return false;
  if (is_true(self->set, BufferSet_is_doubtful) || PyList_GET_SIZE(get(self->set, BufferSet_others))) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(direct); i++)
    if (is_true(PyTuple_GET_ITEM(PyList_GET_ITEM(direct, i), 0), History_special)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(buffers); i++)
    if (PyList_GET_ITEM(buffers, i) == Py_None) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(needed); i++)
    if (PyDict_Contains(inputs, PyTuple_GET_ITEM(needed, i)) != 1) return false;
  for (Py_ssize_t position = 0; PyDict_Next(inputs, &position, &slot, &array);)
    if (index_of(self, slot) < 0 || Py_TYPE(array) != engine.ndarray) return false;
  for (Py_ssize_t position = 0; PyDict_Next(outputs, &position, &slot, &array);)
    if (index_of(self, slot) < 0) return false;
  return true;
}

/* Have a queue copy an array whole. */
static PyObject *copied(PyObject *lane, PyObject *buffer, const Py_buffer *host, PyObject *wait, bool to_host) {
  PyObject *args[] = {lane, buffer, host->obj, wait}, *method = to_host ? names_of.read : names_of.write, *copy = NULL;
  struct order order = {wait, NULL, NULL};
  enum answer answer = (to_host ? read_bytes : write_bytes)(lane, buffer, 0, host, &order, &copy);
  return answer == NOT_MINE ? PyObject_VectorcallMethod(method, args, 3, engine.waiting) : copy;
}

/* Upload an array behind what used its buffer last. */
static bool upload(const struct run *self, PyObject *slot, PyObject *array) {
  PyObject *buffer = item_of(self, BufferSet_buffers, slot), *done = NULL;
  Py_buffer host;
  bool is_seen = view_of(array, false, &host);
  if (is_seen && is_alike(array, buffer) && host.len <= number(self->pipeline, Pipeline__most) &&
      host.len <= number(buffer, Extent__size) && !may_be_filled(get(self->pipeline, Pipeline__reads), &host)) {
    PyObject *read = item_of(self, BufferSet_reads, slot);
    PyObject *wait = Py_NewRef(read != Py_None ? read : get(self->set, BufferSet_execution));
    done = copied(lane_of(self, Lanes_upload), buffer, &host, wait, false);
    Py_DECREF(wait);
    if (done && PyList_Append(get(self->set, BufferSet_uploads), done)) Py_CLEAR(done);
  } else {
    done = PyObject_CallMethodObjArgs(self->pipeline, names_of._upload, self->set, slot, array, NULL);
  }
  if (is_seen) PyBuffer_Release(&host);
  Py_XDECREF(done);
  return done;
}

/* Return what an execution comes after: the uploads and the reads of the set, or the last execution. */
static PyObject *before_execution(PyObject *set) {
  PyObject *uploads = get(set, BufferSet_uploads), *reads = get(set, BufferSet_reads);
  Py_ssize_t count = PyList_GET_SIZE(uploads), all = count;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(reads); i++) all += PyList_GET_ITEM(reads, i) != Py_None;
  PyObject *found = all ? PyTuple_New(all) : Py_NewRef(get(set, BufferSet_execution));
  if (!found || !all) return found;
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(found, i, Py_NewRef(PyList_GET_ITEM(uploads, i)));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(reads); i++)
    if (PyList_GET_ITEM(reads, i) != Py_None) PyTuple_SET_ITEM(found, count++, Py_NewRef(PyList_GET_ITEM(reads, i)));
  return found;
}

/* Note an execution, behind which all uses of the set before are. */
static bool note_execution(PyObject *set, PyObject *execution) {
  PyObject *only = PyTuple_Pack(1, execution), *uploads = get(set, BufferSet_uploads);
  if (!only || PyList_SetSlice(uploads, 0, PyList_GET_SIZE(uploads), NULL)) {
    Py_XDECREF(only);
    return false;
  }
  Py_DECREF(swap(set, BufferSet_execution, only));
  PyObject *reads = Py_NewRef(get(set, BufferSet_reads)); /* dropping one may run code */
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(reads); i++) PyList_SetItem(reads, i, Py_NewRef(Py_None));
  Py_DECREF(reads);
  return true;
}

/* Execute the recording behind all uses of the set, and of what was recorded directly. */
static PyObject *execute_once(const struct run *self) {
  PyObject *recording = get(self->pipeline, Pipeline_recording), *direct = get(recording, Recording_direct);
  PyObject *buffers = get(self->set, BufferSet_buffers), *wait = before_execution(self->set), *execution = NULL;
  if (!wait) return NULL;
  struct uses uses;
  begin_uses(&uses, get(self->pipeline, Pipeline__flow));
  struct order order = {wait, NULL, PyList_GET_SIZE(direct) ? &uses : NULL};
  uses.takes_raw = true;
  enum answer answer = NOT_MINE;
  if (use_directly(&uses, direct))
    answer = execute(lane_of(self, Lanes_compute), get(recording, Recording_commands), buffers, &order, &execution);
  let_uses_go(&uses);
  Py_DECREF(wait);
  if (answer == NOT_MINE)
    return PyObject_CallMethodObjArgs(self->pipeline, names_of._execute, self->set, buffers, direct, NULL);
  if (execution && !note_execution(self->set, execution)) Py_CLEAR(execution);
  return execution;
}

/* Read a buffer of the set behind its last execution. */
static PyObject *download(const struct run *self, PyObject *slot, PyObject *array) {
  PyObject *buffer = item_of(self, BufferSet_buffers, slot), *reads = get(self->pipeline, Pipeline__reads), *read = NULL;
  Py_buffer host;
  if (!view_of(array, true, &host))
    return PyObject_CallMethodObjArgs(self->pipeline, names_of._download, self->set, slot, array, NULL);
  if (is_alike(array, buffer)) {
    PyObject *wait = Py_NewRef(get(self->set, BufferSet_execution));
    read = copied(lane_of(self, Lanes_download), buffer, &host, wait, true);
    Py_DECREF(wait);
    if (read) PyList_SetItem(get(self->set, BufferSet_reads), index_of(self, slot), Py_NewRef(read));
    if (read && !note_read(reads, &host, read)) {
      PyObject *noted = PyObject_CallMethodObjArgs(reads, names_of.add, array, read, NULL);
      if (!noted) Py_CLEAR(read);
      Py_XDECREF(noted);
    }
  } else {
    read = PyObject_CallMethodObjArgs(self->pipeline, names_of._download, self->set, slot, array, NULL);
  }
  PyBuffer_Release(&host);
  return read;
}

/* Submit all of it; return the downloads, or if there are none the execution, or NULL with an exception. */
static PyObject *submit_all(const struct run *self, PyObject *inputs, PyObject *outputs) {
  PyObject *slot, *array;
  bool is_done = true;
  for (Py_ssize_t position = 0; is_done && PyDict_Next(inputs, &position, &slot, &array);) {
    Py_INCREF(slot); /* Python code might take them out */
    Py_INCREF(array);
    is_done = upload(self, slot, array);
    Py_DECREF(array);
    Py_DECREF(slot);
  }
  PyObject *ends = is_done ? PyList_New(0) : NULL, *end = ends ? execute_once(self) : NULL;
  is_done = end && (PyDict_GET_SIZE(outputs) || !PyList_Append(ends, end));
  Py_XDECREF(end);
  for (Py_ssize_t position = 0; is_done && PyDict_Next(outputs, &position, &slot, &array);) {
    Py_INCREF(slot);
    Py_INCREF(array);
    end = download(self, slot, array);
    is_done = end && !PyList_Append(ends, end);
    Py_XDECREF(end);
    Py_DECREF(array);
    Py_DECREF(slot);
  }
  if (!is_done) Py_CLEAR(ends);
  return ends;
}

/* run(pipeline, inputs, outputs) */
enum answer pipeline_run_shortcut(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **result) {
  if (count != 3 || names || Py_TYPE(args[0]) != engine.Pipeline || !get(args[0], Pipeline__closed)) return NOT_MINE;
  if (!PyDict_CheckExact(args[1]) || !PyDict_CheckExact(args[2])) return NOT_MINE;
  PyObject *sets = get(args[0], Pipeline__sets);
  long long done = number(args[0], Pipeline__runs);
  struct run self = {args[0], Py_NewRef(PyList_GET_ITEM(sets, done % PyList_GET_SIZE(sets)))};
  PyObject *runs = is_plain(&self, args[1], args[2]) ? PyLong_FromLongLong(done + 1) : NULL;
  enum answer answer = NOT_MINE;
  if (runs) {
    put(args[0], Pipeline__runs, runs);
    *result = submit_all(&self, args[1], args[2]);
    answer = *result ? TAKEN : RAISED;
    if (!*result) put(self.set, BufferSet_is_doubtful, Py_NewRef(Py_True));
  }
  if (answer == NOT_MINE) PyErr_Clear();
  Py_DECREF(self.set);
  return answer;
}
