/* Memory of the cache, for Heap.allocate (rule M1). Queue.alloca and Queue.dealloca (rule M3): what
 * `hal._memory.stream_order` does for an alloca that finds memory at once, and for a dealloca that may give back.
 *
 * Of segments only recent pieces are taken and given (`hal._memory.segment_pool`), with no native call: those
 * that the same queue has given back last, of just the size that is needed.
 *
 * A call to the pool with the interpreter lock kept must not wait. CUDA's do not block the host
 * (its programming guide, "Memory Management" of the stream-ordered allocator); to be sure, and
 * because a call to the operating system takes long, the pool is asked only for what it has at hand:
 * as much was in use before, and it keeps that (`DriverMemory.at_hand`). Whatever grows the pool, is
 * under a memory limit or finds no memory is the Python engine's. To let the interpreter lock go around the call
 * was rejected: the step would no longer be atomic, and would pay for switches of threads. */

#include "arguments.h"
#include "issue.h"

/* Errors tell since when memory is in use, in seconds; to look at this clock costs less. */
#ifdef CLOCK_MONOTONIC_COARSE
#define COARSE_CLOCK CLOCK_MONOTONIC_COARSE
#else
#define COARSE_CLOCK CLOCK_MONOTONIC
#endif

/* Numbers of the books that change, made before anything has changed; NULL for what stays. */
struct numbers {
  long long pooled;       /* more bytes of the driver's pool */
  PyObject *now, *unused; /* of other device memory: bytes in use, and those that are not */
  PyObject *most, *peak;  /* the most in use of device memory, and of all kinds together */
};

/* Make the sum of a number and `more`; false if that failed. */
static bool add(PyObject **sum, PyObject *number, long long more) {
  return !more || (*sum = PyLong_FromLongLong(integer(number) + more));
}

/* Count more bytes of the driver's pool, or more that are in use, and that many less `unused`, of segments. */
static bool count(struct numbers *self, PyObject *books, long long pooled, long long more, long long unused) {
  self->pooled = pooled;
  bool is_counted = add(&self->now, PyList_GET_ITEM(get(books, Books_now), 0), more) &&
                    add(&self->unused, get(books, Books_unused), unused);
  if (pooled + more <= 0) return is_counted; /* no new peak */
  PyObject *now = get(books, Books_now), *peak = get(books, Books_peak);
  PyObject *most = PyList_GET_ITEM(get(books, Books_peaks), 0);
  long long here = of_books(books)->pooled + pooled + integer(PyList_GET_ITEM(now, 0)) + more;
  long long total = here;
  for (Py_ssize_t i = 1; i < PyList_GET_SIZE(now); i++) total += integer(PyList_GET_ITEM(now, i));
  long long above = here - integer(most), above_all = total - integer(peak);
  return is_counted && add(&self->most, most, above > 0 ? above : 0) && add(&self->peak, peak, above_all > 0 ? above_all : 0);
}

static void forget(struct numbers *self) {
  Py_CLEAR(self->now);
  Py_CLEAR(self->unused);
  Py_CLEAR(self->most);
  Py_CLEAR(self->peak);
}

static void put_first(PyObject *list, PyObject *number) {
  PyObject *old = PyList_GET_ITEM(list, 0);
  PyList_SET_ITEM(list, 0, Py_NewRef(number));
  Py_DECREF(old);
}

static void publish(const struct numbers *self, PyObject *books) {
  of_books(books)->pooled += self->pooled;
  if (self->now) put_first(get(books, Books_now), self->now);
  if (self->unused) put(books, Books_unused, Py_NewRef(self->unused));
  if (self->most) put_first(get(books, Books_peaks), self->most);
  if (self->peak) put(books, Books_peak, Py_NewRef(self->peak));
}

/* Return whether the books are whole, and no limit counts; under their lock. */
static bool is_plain(PyObject *books, bool is_async) {
  return !is_true(books, Books__is_broken) && (!is_async || is_none(books, Books_limit));
}

/* Have the books rebuilt from what is in use, if something could not be noted. */
static void note(PyObject *books, bool is_noted) {
  if (is_noted) return;
  PyErr_Clear();
  put(books, Books__is_broken, Py_NewRef(Py_True));
}

/* Make room for a block in the list of the books, and note its place there; false if there is no memory for that. Not
 * when it is added: a block that is in use and has no place would take another one's with it when it is removed. */
static bool make_place(PyObject *books, PyObject *block) {
  PyObject *blocks = get(books, Books_blocks), *place = PyLong_FromSsize_t(PyList_GET_SIZE(blocks));
  if (!place) return false;
  put(block, Block_place, place);
  if (PyList_Append(blocks, Py_None) < 0) return false;
  Py_SET_SIZE(blocks, PyList_GET_SIZE(blocks) - 1);
  Py_DECREF(Py_None);
  return true;
}

/* Add a block to the list, which has room for it. */
static void register_block(PyObject *books, PyObject *block) {
  PyListObject *blocks = (PyListObject *)get(books, Books_blocks);
  Py_ssize_t count = Py_SIZE(blocks);
  blocks->ob_item[count] = Py_NewRef(block);
  Py_SET_SIZE(blocks, count + 1);
}

/* Remove a block from there: the last one takes its place. */
static void unregister_block(PyObject *books, PyObject *block, struct drops *drops) {
  PyObject *blocks = get(books, Books_blocks), *place = get(block, Block_place);
  Py_ssize_t end = PyList_GET_SIZE(blocks) - 1;
  PyObject *last = PyList_GET_ITEM(blocks, end);
  PyList_SET_ITEM(blocks, integer(place), last);
  put(last, Block_place, Py_NewRef(place));
  Py_SET_SIZE(blocks, end);
  drop_later(drops, block);
}

/* Return a size rounded up to a multiple of a power of two. */
static long long round_up(long long size, long long step) { return (size + step - 1) & -step; }

/* Have a storage and its lease use a block; the lease's reference to it is given. */
static void begin_use(PyObject *block, PyObject *lease, PyObject *storage) {
  *slot_of(lease, BlockLease_block) = block;
  put(block, Block_lease, Py_NewRef(lease));
  put(storage, Storage__lease, Py_NewRef(lease));
  put(storage, Storage_address, Py_NewRef(get(block, Block_address)));
  put(storage, Storage_host_address, Py_NewRef(get(block, Block_host_address)));
}

/* ---- recent pieces ---- */

/* The key of a queue's pieces of a size, a new reference; NULL, without an exception, if they have none. */
static PyObject *recent_key(PyObject *queue, long long size) {
  enum { MOST_QUEUES = 20 }; /* bits */
  long long id = number(queue, StreamQueue__id);
  if (id >> MOST_QUEUES || size >> engine.recent) return NULL;
  PyObject *key = PyLong_FromLongLong(id << engine.recent | size);
  if (!key) PyErr_Clear();
  return key;
}

/* The recent pieces of a queue and size, borrowed, or NULL. */
static PyObject *find_recent(PyObject *pool, PyObject *queue, long long size) {
  PyObject *key = recent_key(queue, size);
  PyObject *found = key ? PyDict_GetItemWithError(get(pool, SegmentPool_recent), key) : NULL;
  Py_XDECREF(key);
  return found && PyList_GET_SIZE(found) ? found : NULL;
}

/* The pool that device memory of a size is searched in first. */
static PyObject *pool_of(PyObject *books, long long size) {
  PyObject *pool = PyTuple_GET_ITEM(get(books, Books_pools), 0);
  return size <= number(pool, SegmentPool_unit) / 2 ? pool : get(pool, SegmentPool_larger);
}

/* ---- alloca ---- */

struct taking {
  struct effect effect;
  PyObject *heap, *buffer, *storage, *lease, *block; /* the heap is borrowed; a piece is the block once taken */
  PyObject *address;                                  /* made by the call */
  PyObject *queue, *pool;                             /* borrowed; without a pool it is the driver's */
  PyObject *recent;                                   /* borrowed: the pieces, the last of which is taken */
  long long size;
  struct numbers numbers;
};

static long long aligned(const struct taking *self) { return round_up(self->size, engine.alignment); }

/* Return whether the pool keeps as much memory as it takes, or has a recent piece. */
static bool is_at_hand(struct taking *self) {
  if (self->pool) return (self->recent = find_recent(self->pool, self->queue, aligned(self)));
  long long most = number(get(self->heap, Heap_driver), DriverMemory_at_hand);
  return of_books(get(self->heap, Heap_books))->pooled + self->size <= most;
}

static bool may_take(struct effect *effect, const struct issue *issue) {
  struct taking *self = (struct taking *)effect;
  (void)issue;
  PyObject *books = get(self->heap, Heap_books), *reaper = get(self->heap, Heap_reaper);
  if (!is_plain(books, !self->pool)) return false;
  if (PyObject_Length(get(reaper, Reaper_doomed)) || PyList_GET_SIZE(get(reaper, Reaper_late))) return false;
  if (!is_at_hand(self)) return false;
  if (self->pool) return count(&self->numbers, books, 0, self->size, -aligned(self));
  return make_place(books, self->block) && count(&self->numbers, books, self->size, 0, 0);
}

/* Take the latest recent piece; false without memory, and then nothing has changed. */
static bool take_piece(struct taking *self) {
  Py_ssize_t last = PyList_GET_SIZE(self->recent) - 1;
  PyObject *piece = PyList_GET_ITEM(self->recent, last);
  if (PyDict_SetItem(get(self->pool, SegmentPool_taken), piece, self->lease) < 0) return false;
  Py_SET_SIZE(self->recent, last);
  self->block = piece; /* the list's reference */
  return true;
}

static void take(struct effect *effect, PyObject *operation, struct drops *drops) {
  struct taking *self = (struct taking *)effect;
  (void)drops;
  PyObject *books = get(self->heap, Heap_books);
  put(self->storage, Storage_source, Py_NewRef(operation));
  put(self->buffer, Extent__allocation, Py_NewRef(operation));
  if (self->pool) {
    if (!take_piece(self)) {
      PyErr_Clear(); /* it is issued, and has no address: nothing can use it */
      return;
    }
  } else {
    bool is_visible = is_true(get(self->heap, Heap_driver), DriverMemory_is_visible);
    put(self->block, Block_address, Py_NewRef(self->address));
    put(self->block, Block_host_address, Py_NewRef(is_visible ? self->address : Py_None));
  }
  begin_use(Py_NewRef(self->block), self->lease, self->storage);
  publish(&self->numbers, books);
  if (!self->pool) register_block(books, self->block);
}

static bool prepare(struct taking *self, PyObject *device, PyObject *size, PyObject *dtype) {
  PyObject *since = PyFloat_FromDouble(seconds_of(COARSE_CLOCK));
  PyObject *uses = PyList_New(0);
  PyObject *length = dtype == engine.bytes ? Py_NewRef(size) : PyLong_FromLongLong(self->size / size_of(code_of(dtype)));
  PyObject *shape = length ? PyTuple_Pack(1, length) : NULL;
  Py_XDECREF(length);
  PyObject *lease = self->lease = make_object(NEW_BlockLease);
  PyObject *storage = self->storage = make_object(NEW_Transient);
  PyObject *buffer = self->buffer = make_object(NEW_Buffer);
  if (!self->pool && (self->block = make_object(NEW_Block))) set(self->block, Block_size, size);
  bool is_made = since && uses && shape && lease && storage && buffer && (self->pool || self->block);
  if (is_made) {
    set(lease, BlockLease_size, size);
    set(lease, BlockLease_since, since);
    set(storage, Storage__heap, self->heap);
    set(storage, Storage_size, size);
    set(storage, Transient_uses, uses);
    if (self->pool) {
      put(storage, Transient_is_async, Py_NewRef(Py_False));
      put(storage, Transient_pool, Py_NewRef(self->pool));
    }
    set(buffer, Extent__device, device);
    set(buffer, Extent__shape, shape);
    set(buffer, Extent__size, size);
    set(buffer, Extent__storage, storage);
    put(buffer, Extent__dtype, Py_NewRef(dtype));
  }
  Py_XDECREF(since);
  Py_XDECREF(uses);
  Py_XDECREF(shape);
  return is_made;
}

static bool is_device_memory(PyObject *memory) {
  if (!memory || memory == engine.device_memory) return true;
  return PyUnicode_CheckExact(memory) && !PyUnicode_CompareWithASCIIString(memory, "device");
}

/* alloca(queue, size, *, dtype, memory, wait, signal) */
enum answer alloca_shortcut(PyObject *const *args, Py_ssize_t given, PyObject *names, PyObject **result) {
  enum { DTYPE, MEMORY, WAIT, SIGNAL, OPTIONS };
  static const int known[OPTIONS] = {NAME_dtype, NAME_memory, NAME_wait, NAME_signal};
  PyObject *options[OPTIONS] = {NULL};
  if (given != 2 || !read_options(args + given, names, known, options, OPTIONS)) return NOT_MINE;
  PyObject *queue = args[0], *device = device_of(queue);
  struct taking self = {.effect = {NULL, may_take, take}, .queue = queue};
  if (!device || is_true(device, DeviceCore__closed) || !is_device_memory(options[MEMORY])) return NOT_MINE;
  if (!small_int(args[1], &self.size) || self.size <= 0 || self.size > MOST_VALUE) return NOT_MINE; /* sums fit */
  PyObject *dtype = options[DTYPE] ? plain_dtype(options[DTYPE]) : engine.bytes;
  if (!dtype || self.size % size_of(code_of(dtype))) return NOT_MINE;
  self.heap = get(device, DeviceCore__heap);
  if (!is_true(get(self.heap, Heap_driver), DriverMemory_is_async))
    self.pool = pool_of(get(self.heap, Heap_books), self.size);
  if (is_none(get(queue, StreamQueue__context), DeviceContext_provider)) return NOT_MINE;
  /* A first look, so that what grows the pool makes no objects here; the second one is the one that counts. */
  if (!is_at_hand(&self)) return NOT_MINE;
  self.effect.lock = get(get(self.heap, Heap_books), Books_lock);
  struct native_call call = {.kind = CALL_NONE};
  if (!self.pool) call = (struct native_call){.kind = CALL_ALLOCATE, .allocate = {(size_t)self.size, &self.address}};
  enum answer answer = NOT_MINE;
  PyObject *submission = NULL;
  if (prepare(&self, device, args[1], dtype))
    answer = submit_with(queue, names_of.alloca, &call, self.storage, &(struct order){options[WAIT], options[SIGNAL], NULL},
                         &self.effect, &submission);
  if (answer == NOT_MINE) PyErr_Clear();
  if (answer == TAKEN) *result = Py_NewRef(self.buffer);
  forget(&self.numbers);
  Py_XDECREF(submission);
  Py_XDECREF(self.address);
  Py_XDECREF(self.block);
  Py_XDECREF(self.lease);
  Py_XDECREF(self.storage);
  Py_XDECREF(self.buffer);
  return answer;
}

/* ---- dealloca ---- */

struct giving {
  struct effect effect;
  PyObject *books, *buffer, *storage; /* borrowed but for the storage */
  PyObject *denied;
  PyObject *key, *recent, *points; /* of a piece: where it is put, and a tuple with room for the operation */
  struct numbers numbers;
};

/* Return whether an operation runs before what is submitted now (`hal._engine.operation.is_behind`). */
static bool is_before(PyObject *operation, const struct issue *issue) {
  if (is_true(operation, Operation__retired)) return true;
  long long place = of_operation(operation)->sequence;
  if (!place) return false; /* it is not in its ring yet */
  PyObject *other = get(operation, Operation__queue);
  if (other == issue->queue) return true;
  PyObject *seen = PyDict_GetItemWithError(get(issue->queue, StreamQueue__seen), get(other, StreamQueue__id));
  if (seen && integer(seen) >= place) return true;
  for (int i = 0; i < issue->awaited_count; i++)
    if (get(issue->awaited[i], Operation__queue) == other &&
        of_operation(issue->awaited[i])->sequence >= place)
      return true;
  return false;
}

/* Return whether a piece is in the use of a lease. */
static bool is_taken(PyObject *piece, PyObject *lease) {
  if (Py_TYPE(piece) != engine.Piece) return false;
  PyObject *taken = get(get(get(piece, Piece_segment), Segment_pool), SegmentPool_taken);
  return PyDict_GetItemWithError(taken, piece) == lease;
}

static bool may_give(struct effect *effect, const struct issue *issue) {
  struct giving *self = (struct giving *)effect;
  PyObject *storage = self->storage, *lease = get(storage, Storage__lease);
  /* Looked at again: making the objects may have run code of the user's. */
  bool is_async = is_true(storage, Transient_is_async);
  if (get(self->buffer, Extent__storage) != storage || lease == Py_None || !is_plain(self->books, is_async)) return false;
  PyObject *block = get(lease, BlockLease_block), *uses = get(storage, Transient_uses);
  if (get(block, Block_lease) != lease || !is_none(block, Block_view) || uses == Py_None) return false;
  if (is_true(storage, Transient_lent) || !is_none(storage, Storage_parts) || !is_none(storage, Transient_recordings)) return false;
  if (number(block, Block_index)) return false; /* of device memory */
  if (!is_async && !is_taken(block, lease)) return false;
  PyObject *source = get(storage, Storage_source);
  PyObject *state = get(source, Operation__state);
  if ((state != engine.issued && state != engine.done) || !is_before(source, issue)) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(uses); i++)
    if (!is_before(PyList_GET_ITEM(uses, i), issue)) return false;
  long long size = number(block, Block_size), denied = number(self->buffer, Extent__denied);
  if (!(self->denied = denied ? PyLong_FromLongLong(denied | integer(engine.deallocated)) : Py_NewRef(engine.deallocated)))
    return false;
  if (is_async) return count(&self->numbers, self->books, -size, 0, 0);
  self->key = recent_key(issue->queue, size);
  return self->key && count(&self->numbers, self->books, 0, -number(lease, BlockLease_size), size);
}

/* Put a piece aside for its queue, behind the operation. */
static void give_piece(struct giving *self, PyObject *piece, PyObject *operation, struct drops *drops) {
  PyObject *pool = get(get(piece, Piece_segment), Segment_pool), *recent = get(pool, SegmentPool_recent);
  PyObject *last = get(pool, SegmentPool__last), *id = get(get(operation, Operation__queue), StreamQueue__id);
  PyTuple_SET_ITEM(self->points, 0, Py_NewRef(operation));
  drop_later(drops, swap(piece, Piece_points, Py_NewRef(self->points)));
  put(piece, Block_lease, Py_NewRef(Py_None)); /* the storage has the lease still */
  PyObject *found = PyDict_GetItemWithError(recent, self->key);
  bool is_noted = found || !PyDict_SetItem(recent, self->key, found = self->recent);
  is_noted = is_noted && !PyList_Append(found, piece);
  drop_later(drops, Py_XNewRef(PyDict_GetItemWithError(last, id)));
  is_noted = !PyDict_SetItem(last, id, operation) && is_noted;
  note(self->books, !PyDict_DelItem(get(pool, SegmentPool_taken), piece) && is_noted);
}

static void give(struct effect *effect, PyObject *operation, struct drops *drops) {
  struct giving *self = (struct giving *)effect;
  PyObject *block = get(get(self->storage, Storage__lease), BlockLease_block);
  publish(&self->numbers, self->books);
  if (self->key) {
    give_piece(self, block, operation, drops);
  } else {
    put(block, Block_lease, Py_NewRef(engine.gone)); /* the storage has the lease still */
    unregister_block(self->books, block, drops);
  }
  drop_later(drops, swap(self->storage, Storage__lease, Py_NewRef(Py_None)));
  drop_later(drops, swap(self->storage, Transient_uses, Py_NewRef(Py_None)));
  drop_later(drops, swap(self->buffer, Extent__storage, Py_NewRef(Py_None)));
  put(self->buffer, Extent__denied, Py_NewRef(self->denied));
}

/* dealloca(queue, buffer, *, wait, signal) */
enum answer dealloca_shortcut(PyObject *const *args, Py_ssize_t given, PyObject *names, PyObject **result) {
  enum { WAIT, SIGNAL, OPTIONS };
  static const int known[OPTIONS] = {NAME_wait, NAME_signal};
  PyObject *options[OPTIONS] = {NULL};
  if (given != 2 || !read_options(args + given, names, known, options, OPTIONS)) return NOT_MINE;
  PyObject *queue = args[0], *device = device_of(queue);
  struct giving self = {.effect = {NULL, may_give, give}, .buffer = args[1]};
  struct native_call call = {.kind = CALL_FREE};
  if (!device || !(call.free = address_of(device, self.buffer, 0, &self.storage))) return NOT_MINE;
  if (Py_TYPE(self.storage) != engine.Transient) return NOT_MINE;
  if (is_true(self.buffer, Extent__is_part) || is_none(self.storage, Storage_source)) return NOT_MINE;
  self.books = get(get(device, DeviceCore__heap), Heap_books);
  self.effect.lock = get(self.books, Books_lock);
  bool is_ready = true;
  if (!is_true(self.storage, Transient_is_async)) {
    call.kind = CALL_NONE;
    self.recent = PyList_New(0);
    self.points = PyTuple_New(1);
    is_ready = self.recent && self.points;
  }
  Py_INCREF(self.storage);
  enum answer answer = NOT_MINE;
  if (is_ready)
    answer = submit_with(queue, names_of.dealloca, &call, Py_None, &(struct order){options[WAIT], options[SIGNAL], NULL},
                         &self.effect, result);
  if (answer == NOT_MINE) PyErr_Clear();
  forget(&self.numbers);
  Py_XDECREF(self.key);
  Py_XDECREF(self.recent);
  Py_XDECREF(self.points);
  Py_XDECREF(self.denied);
  Py_DECREF(self.storage);
  return answer;
}

/* ---- a block of the cache ---- */

/* Return the size of the block for so many bytes (`hal._memory.blocks.block_size`); 0 if such are not cached. */
static long long block_size(long long size) {
  enum { FINE = 2048 };
  if (size <= FINE) return round_up(size, engine.alignment);
  if (size > engine.large) return 0;
  return round_up(size, 1LL << (60 - __builtin_clzll((unsigned long long)size - 1)));
}

/* Return whether all that finalisers have left is a few blocks of the cache's, or ended before. */
static bool may_work_off(PyObject *reaper) {
  enum { FEW = 8 };
  PyObject *doomed = get(reaper, Reaper_doomed), *lease;
  if (PyList_GET_SIZE(get(reaper, Reaper_late)) || PyObject_Length(doomed) > FEW) return false;
  for (Py_ssize_t i = 0; (lease = entry_of(doomed, i)); i++) {
    if (Py_TYPE(lease) != engine.BlockLease) return false;
    PyObject *block = get(lease, BlockLease_block);
    if (get(block, Block_lease) != lease) continue;
    bool is_cached = Py_TYPE(block) == engine.Block && get(block, Block_way) == engine.cached_way;
    if (!is_cached || number(block, Block_index)) return false;
  }
  return true;
}

/* Put these blocks into the cache; add up the bytes that were in use, and those that are unused now. */
static bool work_off(PyObject *reaper, long long *used, long long *unused, struct drops *drops) {
  PyObject *doomed = get(reaper, Reaper_doomed);
  bool is_noted = true;
  put(reaper, Reaper__loose, Py_NewRef(engine.zero));
  while (PyObject_Length(doomed)) {
    PyObject *lease = pop_first(doomed), *block = get(lease, BlockLease_block);
    drop_later(drops, lease);
    if (get(block, Block_lease) != lease) continue;
    put(block, Block_lease, Py_NewRef(Py_None)); /* the list has the lease still */
    is_noted = !PyList_Append(get(block, Block_bucket), block) && is_noted;
    *used += number(lease, BlockLease_size);
    *unused += number(block, Block_size);
  }
  return is_noted;
}

/* Give a storage the block that the cache has used last, if it has one. */
static PyObject *take_cached(PyObject *bucket, PyObject *storage, PyObject *lease) {
  Py_ssize_t last = bucket ? PyList_GET_SIZE(bucket) - 1 : -1;
  if (last < 0) return NULL;
  PyObject *block = PyList_GET_ITEM(bucket, last);
  Py_SET_SIZE(bucket, last);
  begin_use(block, lease, storage); /* the list's reference is the lease's now */
  return block;
}

/* Make a storage and a lease that have no block. */
static PyObject *new_storage(PyObject *heap, PyObject *size, PyObject **lease) {
  PyObject *since = PyFloat_FromDouble(seconds_of(COARSE_CLOCK));
  PyObject *storage = since && (*lease = make_object(NEW_BlockLease)) ? engine.Storage->tp_alloc(engine.Storage, 0) : NULL;
  if (storage) {
    set(*lease, BlockLease_since, since);
    set(*lease, BlockLease_size, size);
    set(storage, Storage__heap, heap);
    set(storage, Storage_size, size);
    set(storage, Storage_memory, engine.device_memory);
    static const enum slot unset[] = {Storage__lease, Storage_address, Storage_host_address, Storage_parts, Storage_source};
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) set(storage, unset[i], Py_None);
  }
  Py_XDECREF(since);
  return storage;
}

/* Return whether the caller has interrupted another call in the heap, and is to be refused. */
static bool is_within(PyObject *heap) {
  PyObject *locks = get(heap, Heap__locks);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(locks); i++)
    if (is_owned(PyTuple_GET_ITEM(locks, i))) return true;
  return false;
}

/* allocate(heap, size, index) */
enum answer allocate_shortcut(PyObject *const *args, Py_ssize_t given, PyObject *names, PyObject **result) {
  long long size, index, class_size, used = 0, unused = 0;
  if (given != 3 || names || Py_TYPE(args[0]) != engine.Heap) return NOT_MINE;
  if (!small_int(args[1], &size) || !small_int(args[2], &index)) return NOT_MINE;
  if (index || size <= 0 || !(class_size = block_size(size))) return NOT_MINE;
  PyObject *heap = args[0], *books = get(heap, Heap_books), *reaper = get(heap, Heap_reaper);
  PyObject *lease = NULL, *storage = new_storage(heap, args[1], &lease), *key = PyLong_FromLongLong(class_size);
  struct numbers numbers = {0};
  struct drops drops;
  drops.count = 0;
  bool is_taken = false;
  if (storage && key && !is_within(heap) && enter_lock(get(books, Books_lock))) {
    if (is_plain(books, false) && !is_true(get(heap, Heap_driver), DriverMemory_is_closed) && may_work_off(reaper)) {
      bool is_noted = work_off(reaper, &used, &unused, &drops);
      PyObject *block = take_cached(PyDict_GetItemWithError(get(books, Books__buckets), key), storage, lease);
      is_taken = block;
      long long more = (is_taken ? size : 0) - used;
      is_noted = count(&numbers, books, 0, more, unused - (is_taken ? number(block, Block_size) : 0)) && is_noted;
      if (is_noted) publish(&numbers, books);
      note(books, is_noted);
    }
    leave_lock(get(books, Books_lock));
  }
  if (!is_taken) PyErr_Clear();
  drop_all(&drops);
  forget(&numbers);
  Py_XDECREF(key);
  Py_XDECREF(lease);
  if (is_taken) {
    *result = storage;
    return TAKEN;
  }
  Py_XDECREF(storage);
  return NOT_MINE;
}
