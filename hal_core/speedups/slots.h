/* The classes that C looks into, and their slots: every one that is read or written here. */
#ifndef HAL_SPEEDUPS_SLOTS_H
#define HAL_SPEEDUPS_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

/* EACH(X, class, a, b): X(class, a) X(class, b). A macro is not expanded in itself, so each step leaves the next one
 * to another scan, of which AGAIN makes more than there are slots. */
#define EACH(X, class, ...) __VA_OPT__(AGAIN(NEXT(X, class, __VA_ARGS__)))
#define NEXT(X, class, slot, ...) X(class, slot) __VA_OPT__(LATER PARENTHESES(X, class, __VA_ARGS__))
#define LATER() NEXT
#define PARENTHESES ()
#define AGAIN(...) AGAIN_16(AGAIN_16(AGAIN_16(AGAIN_16(__VA_ARGS__))))
#define AGAIN_16(...) AGAIN_4(AGAIN_4(AGAIN_4(AGAIN_4(__VA_ARGS__))))
#define AGAIN_4(...) AGAIN_1(AGAIN_1(AGAIN_1(AGAIN_1(__VA_ARGS__))))
#define AGAIN_1(...) __VA_ARGS__

/* Each class: C(class), and S(class, slot) for each of its slots that is read or written here. Those of hal.flow and of
 * hal.collectives are found when these are imported, as the module's `install_flow` and `install_groups` take them. */
#define OF(C, S, class, ...) C(class) EACH(S, class, __VA_ARGS__)
#define CORE(C, S)                                                                                  \
  OF(C, S, StreamQueue, _backlog, _borrowed, _calls, _closed, _context, _domain, _hosts, _id,       \
     _issuing, _leader, _limit, _notifier, _ordered, _owner, _pending, _ring, _seen, _shown,        \
     _stream, _unanswered, _wanted, _watched)                                                       \
  OF(C, S, Notifier, armed)                                                                         \
  OF(C, S, Operation, _arguments, _dependencies, _event, _function, _is_begun, _is_host, _kind,     \
     _launches, _private, _queue, _resources, _retired, _shared, _signals, _state,                  \
     _stream_waits, _unresolved, _waits)                                                            \
  OF(C, S, Timeline, _failure, _owner, _points, _reached, _recorded, _reserved, _value)             \
  OF(C, S, Timepoint, _semaphore, _value)                                                           \
  OF(C, S, Waiters, _buckets, _keys)                                                                \
  OF(C, S, Doorbell, argument, _flag)                                                               \
  OF(C, S, HostWaiter, _bell, _is_asleep, _leads, _missing, _registered)                            \
  OF(C, S, Event, count, due, handle)                                                               \
  OF(C, S, EventPool, _free)                                                                        \
  OF(C, S, CommandBuffer, _device, _failed, _only, _playback, _runs)                                \
  OF(C, S, Playback, _lowering, _plain, _pool)                                                                 \
  OF(C, S, StreamReplay, _done, is_starved, left, _playback, replica, table, visits)                 \
  OF(C, S, Instance, again, broken, graph, lease, rebinder, replica, stream)                        \
  OF(C, S, InstancePool, _instances, _lock)                                                         \
  OF(C, S, Replica, table)                                                                          \
  OF(C, S, Handle, handle)                                                                          \
  OF(C, S, Lease, instance)                                                                         \
  OF(C, S, CopyStream, owner, stream, used)                                                         \
  OF(C, S, DeviceContext, direct, epoch, events, lost, provider, queues, _rotation, starved)        \
  OF(C, S, DeviceCore, _access, _closed, _context, _copy, _copy_from_host, _copy_streams,           \
     _copy_to_host, _fill, _heap, _launch, _pageable)                                               \
  OF(C, S, Queue, _device)                                                                          \
  OF(C, S, Extent, _allocation, _denied, _device, _dtype, _is_part, _offset, _shape, _size,         \
     _storage)                                                                                      \
  OF(C, S, GroupLaunch, begun, ended, ordered, queue, _signals, step, _storages, submission,        \
     turn, _waits, work)                                                                            \
  OF(C, S, Storage, address, _heap, host_address, _lease, memory, parts, size, source)              \
  OF(C, S, Transient, asked, error, index, is_async, lent, _most, pool, recordings, tried, uses)    \
  OF(C, S, Block, address, bucket, host_address, index, lease, memory, owner, place, size, view,    \
     way, writable)                                                                                 \
  OF(C, S, BlockLease, block, since, size)                                                          \
  OF(C, S, Heap, books, driver, _locks, reaper)                                                     \
  OF(C, S, Books, blocks, _buckets, imports, _is_broken, limit, lock, now, peak, peaks, pools,      \
     unused)                                                                                        \
  OF(C, S, Piece, points, segment)                                                                  \
  OF(C, S, Segment, pool)                                                                           \
  OF(C, S, SegmentPool, larger, _last, recent, taken, unit)                                         \
  OF(C, S, DriverMemory, at_hand, is_async, is_closed, is_visible)                                  \
  OF(C, S, Give, storages)                                                                          \
  OF(C, S, Reaper, doomed, late, _loose)                                                            \
  OF(C, S, Kernel, _allowed, _blocks, _device, _function, _module, _packer, shared_memory)          \
  OF(C, S, Buffer)                                                                                  \
  OF(C, S, CollectiveStep)                                                                          \
  OF(C, S, CopyNode)                                                                                \
  OF(C, S, Deallocation)                                                                            \
  OF(C, S, FillNode)                                                                                \
  OF(C, S, HostCopyNode)                                                                            \
  OF(C, S, LaunchNode)                                                                              \
  OF(C, S, Semaphore)                                                                               \
  OF(C, S, Submission)                                                                              \
  OF(C, S, ndarray)
#define FLOW(C, S)                                                                                  \
  OF(C, S, Flow, _first, _is_busy, _lanes, trace)                                                   \
  OF(C, S, History, intervals, lanes, readers, special, writer)                                     \
  OF(C, S, Lanes, compute, device, download, upload)                                                \
  OF(C, S, BufferSet, buffers, execution, is_doubtful, others, reads, uploads)                      \
  OF(C, S, Pipeline, _closed, _flow, _lanes, _most, _needed, _reads, recording, _runs, _sets)       \
  OF(C, S, ReadsInFlight, _is_busy, _limit, _sizes, _total)                                         \
  OF(C, S, Recording, commands, direct, uses)                                                       \
  OF(C, S, Routine, _flow, _lanes, _plain)                                                          \
  OF(C, S, TrackedBuffer, flow, history, raw, reading, writing)
#define GROUP(C, S)                                                                                 \
  OF(C, S, Group, _batch, _broken, _closed, _device, _direct, _flights, lock, _records,             \
     _refused, _turn, _turns)
#define NO_CLASS(class)
#define NO_SLOT(class, slot)
#define SLOTS(X) CORE(NO_CLASS, X) FLOW(NO_CLASS, X) GROUP(NO_CLASS, X)
#define CLASSES(X) CORE(X, NO_SLOT) FLOW(X, NO_SLOT) GROUP(X, NO_SLOT)

#define SLOT_NAME(class, slot) class##_##slot,
enum slot { SLOTS(SLOT_NAME) SLOT_COUNT };
#undef SLOT_NAME

extern Py_ssize_t slot_offsets[SLOT_COUNT];

/* The place of a slot in an object, which is of the slot's class. */
static inline PyObject **slot_of(PyObject *object, enum slot slot) {
  return (PyObject **)((char *)object + slot_offsets[slot]);
}

/* A slot's object, borrowed; NULL if it was never set. */
static inline PyObject *get(PyObject *object, enum slot slot) { return *slot_of(object, slot); }

/* Put an object, whose reference is given, into a slot. Only where what it replaces is no more
 * than a number, None or a tuple of such, or nothing at all: dropping that runs no code. */
static inline void put(PyObject *object, enum slot slot, PyObject *value) {
  PyObject **place = slot_of(object, slot), *old = *place;
  *place = value;
  Py_XDECREF(old);
}

/* Put an object into an empty slot. */
static inline void set(PyObject *object, enum slot slot, PyObject *value) { *slot_of(object, slot) = Py_NewRef(value); }

/* Exchange a slot's object for another, and return the old one, to be dropped later. */
static inline PyObject *swap(PyObject *object, enum slot slot, PyObject *value) {
  PyObject **place = slot_of(object, slot), *old = *place;
  *place = value;
  return old;
}

static inline bool is_none(PyObject *object, enum slot slot) {
  return get(object, slot) == Py_None;
}

static inline bool is_true(PyObject *object, enum slot slot) {
  return get(object, slot) == Py_True;
}

/* The value of an integer of the engine's, which always fits. Most are of one digit, which needs no call. */
static inline long long integer(PyObject *number) {
  const PyLongObject *value = (PyLongObject *)number;
#if PY_VERSION_HEX >= 0x030C0000
  if (PyUnstable_Long_IsCompact(value)) return PyUnstable_Long_CompactValue(value);
#else
  if ((size_t)Py_SIZE(value) <= 1) return Py_SIZE(value) ? value->ob_digit[0] : 0;
#endif
  return PyLong_AsLongLong(number);
}

static inline long long number(PyObject *object, enum slot slot) { return integer(get(object, slot)); }

#endif
