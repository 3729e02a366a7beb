/* The classes that C looks into, and their slots: every one that is read or written here. */
#ifndef HAL_SPEEDUPS_SLOTS_H
#define HAL_SPEEDUPS_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

/* X(class, slot): every slot that is read or written here. Those of hal.flow and of hal.collectives are
 * found when these are imported. */
#define SLOTS(X) CORE_SLOTS(X) FLOW_SLOTS(X) GROUP_SLOTS(X)
#define GROUP_SLOTS(X)                                                                             \
  X(Group, _batch)                                                                                 \
  X(Group, _broken)                                                                                \
  X(Group, _closed)                                                                                \
  X(Group, _device)                                                                                \
  X(Group, _direct)                                                                                \
  X(Group, _flights)                                                                               \
  X(Group, _records)                                                                               \
  X(Group, _refused)                                                                               \
  X(Group, _turn)                                                                                  \
  X(Group, _turns)                                                                                 \
  X(Group, lock)
#define CORE_SLOTS(X)                                                                                   \
  X(StreamQueue, _backlog)                                                                         \
  X(StreamQueue, _borrowed)                                                                        \
  X(StreamQueue, _calls)                                                                           \
  X(StreamQueue, _closed)                                                                          \
  X(StreamQueue, _context)                                                                         \
  X(StreamQueue, _domain)                                                                          \
  X(StreamQueue, _hosts)                                                                           \
  X(StreamQueue, _id)                                                                              \
  X(StreamQueue, _issuing)                                                                         \
  X(StreamQueue, _leader)                                                                          \
  X(StreamQueue, _limit)                                                                           \
  X(StreamQueue, _notifier)                                                                        \
  X(StreamQueue, _ordered)                                                                         \
  X(StreamQueue, _owner)                                                                           \
  X(StreamQueue, _pending)                                                                         \
  X(StreamQueue, _ring)                                                                            \
  X(StreamQueue, _seen)                                                                            \
  X(StreamQueue, _shown)                                                                           \
  X(StreamQueue, _stream)                                                                          \
  X(StreamQueue, _unanswered)                                                                      \
  X(StreamQueue, _wanted)                                                                          \
  X(StreamQueue, _watched)                                                                         \
  X(Notifier, armed)                                                                               \
  X(Operation, _arguments)                                                                         \
  X(Operation, _dependencies)                                                                      \
  X(Operation, _event)                                                                             \
  X(Operation, _function)                                                                          \
  X(Operation, _is_begun)                                                                          \
  X(Operation, _is_host)                                                                           \
  X(Operation, _kind)                                                                              \
  X(Operation, _launches)                                                                          \
  X(Operation, _private)                                                                           \
  X(Operation, _queue)                                                                             \
  X(Operation, _resources)                                                                         \
  X(Operation, _retired)                                                                           \
  X(Operation, _shared)                                                                            \
  X(Operation, _signals)                                                                           \
  X(Operation, _state)                                                                             \
  X(Operation, _stream_waits)                                                                      \
  X(Operation, _unresolved)                                                                        \
  X(Operation, _waits)                                                                             \
  X(Timeline, _failure)                                                                            \
  X(Timeline, _owner)                                                                              \
  X(Timeline, _points)                                                                             \
  X(Timeline, _reached)                                                                            \
  X(Timeline, _recorded)                                                                           \
  X(Timeline, _reserved)                                                                           \
  X(Timeline, _value)                                                                              \
  X(Timepoint, _semaphore)                                                                         \
  X(Timepoint, _value)                                                                             \
  X(Waiters, _keys)                                                                                \
  X(Waiters, _buckets)                                                                             \
  X(Doorbell, _flag)                                                                               \
  X(Doorbell, argument)                                                                            \
  X(HostWaiter, _bell)                                                                             \
  X(HostWaiter, _is_asleep)                                                                        \
  X(HostWaiter, _leads)                                                                            \
  X(HostWaiter, _missing)                                                                          \
  X(HostWaiter, _registered)                                                                       \
  X(Event, count)                                                                                  \
  X(Event, due)                                                                                    \
  X(Event, handle)                                                                                 \
  X(EventPool, _free)                                                                              \
  X(CommandBuffer, _device)                                                                        \
  X(CommandBuffer, _failed)                                                                        \
  X(CommandBuffer, _only)                                                                          \
  X(CommandBuffer, _playback)                                                                      \
  X(CommandBuffer, _runs)                                                                          \
  X(Playback, _plain)                                                                              \
  X(Instance, again)                                                                               \
  X(Instance, broken)                                                                              \
  X(Instance, graph)                                                                               \
  X(Instance, lease)                                                                               \
  X(Instance, rebinder)                                                                            \
  X(Instance, replica)                                                                             \
  X(Instance, stream)                                                                              \
  X(InstancePool, _instances)                                                                      \
  X(InstancePool, _lock)                                                                           \
  X(Replica, table)                                                                                \
  X(Handle, handle)                                                                                \
  X(Lease, instance)                                                                               \
  X(CopyStream, owner)                                                                             \
  X(CopyStream, stream)                                                                            \
  X(CopyStream, used)                                                                              \
  X(DeviceContext, _rotation)                                                                      \
  X(DeviceContext, direct)                                                                         \
  X(DeviceContext, epoch)                                                                          \
  X(DeviceContext, events)                                                                         \
  X(DeviceContext, lost)                                                                           \
  X(DeviceContext, provider)                                                                       \
  X(DeviceContext, queues)                                                                         \
  X(DeviceContext, starved)                                                                        \
  X(DeviceCore, _access)                                                                           \
  X(DeviceCore, _context)                                                                          \
  X(DeviceCore, _copy)                                                                             \
  X(DeviceCore, _copy_from_host)                                                                   \
  X(DeviceCore, _copy_to_host)                                                                     \
  X(DeviceCore, _fill)                                                                             \
  X(DeviceCore, _copy_streams)                                                                     \
  X(DeviceCore, _pageable)                                                                         \
  X(DeviceCore, _launch)                                                                           \
  X(DeviceCore, _closed)                                                                           \
  X(DeviceCore, _heap)                                                                             \
  X(Queue, _device)                                                                                \
  X(Extent, _allocation)                                                                           \
  X(Extent, _denied)                                                                               \
  X(Extent, _device)                                                                               \
  X(Extent, _dtype)                                                                                \
  X(Extent, _is_part)                                                                              \
  X(Extent, _offset)                                                                               \
  X(Extent, _shape)                                                                                \
  X(Extent, _size)                                                                                 \
  X(Extent, _storage)                                                                              \
  X(GroupLaunch, _signals)                                                                         \
  X(GroupLaunch, _storages)                                                                        \
  X(GroupLaunch, _waits)                                                                           \
  X(GroupLaunch, begun)                                                                            \
  X(GroupLaunch, ended)                                                                            \
  X(GroupLaunch, ordered)                                                                          \
  X(GroupLaunch, queue)                                                                            \
  X(GroupLaunch, step)                                                                             \
  X(GroupLaunch, submission)                                                                       \
  X(GroupLaunch, turn)                                                                             \
  X(GroupLaunch, work)                                                                             \
  X(Storage, _heap)                                                                                \
  X(Storage, _lease)                                                                               \
  X(Storage, address)                                                                              \
  X(Storage, host_address)                                                                         \
  X(Storage, memory)                                                                               \
  X(Storage, parts)                                                                                \
  X(Storage, size)                                                                                 \
  X(Storage, source)                                                                               \
  X(Transient, _most)                                                                              \
  X(Transient, asked)                                                                              \
  X(Transient, error)                                                                              \
  X(Transient, index)                                                                              \
  X(Transient, is_async)                                                                           \
  X(Transient, lent)                                                                               \
  X(Transient, pool)                                                                               \
  X(Transient, recordings)                                                                         \
  X(Transient, tried)                                                                              \
  X(Transient, uses)                                                                               \
  X(Block, address)                                                                                \
  X(Block, bucket)                                                                                 \
  X(Block, host_address)                                                                           \
  X(Block, index)                                                                                  \
  X(Block, memory)                                                                                 \
  X(Block, owner)                                                                                  \
  X(Block, place)                                                                                  \
  X(Block, size)                                                                                   \
  X(Block, lease)                                                                                  \
  X(Block, view)                                                                                   \
  X(Block, way)                                                                                    \
  X(Block, writable)                                                                               \
  X(BlockLease, block)                                                                             \
  X(BlockLease, since)                                                                             \
  X(BlockLease, size)                                                                              \
  X(Heap, _locks)                                                                                  \
  X(Heap, books)                                                                                   \
  X(Heap, driver)                                                                                  \
  X(Heap, reaper)                                                                                  \
  X(Books, _buckets)                                                                               \
  X(Books, _is_broken)                                                                             \
  X(Books, blocks)                                                                                 \
  X(Books, imports)                                                                                \
  X(Books, limit)                                                                                  \
  X(Books, lock)                                                                                   \
  X(Books, now)                                                                                    \
  X(Books, peak)                                                                                   \
  X(Books, peaks)                                                                                  \
  X(Books, pools)                                                                                  \
  X(Books, unused)                                                                                 \
  X(Piece, points)                                                                                 \
  X(Piece, segment)                                                                                \
  X(Segment, pool)                                                                                 \
  X(SegmentPool, _last)                                                                            \
  X(SegmentPool, larger)                                                                           \
  X(SegmentPool, recent)                                                                           \
  X(SegmentPool, taken)                                                                            \
  X(SegmentPool, unit)                                                                             \
  X(DriverMemory, at_hand)                                                                         \
  X(DriverMemory, is_closed)                                                                       \
  X(DriverMemory, is_async)                                                                        \
  X(Give, storages)                                                                                \
  X(DriverMemory, is_visible)                                                                      \
  X(Reaper, _loose)                                                                                \
  X(Reaper, doomed)                                                                                \
  X(Reaper, late)                                                                                  \
  X(Kernel, _allowed)                                                                              \
  X(Kernel, _blocks)                                                                               \
  X(Kernel, _device)                                                                               \
  X(Kernel, _function)                                                                             \
  X(Kernel, _module)                                                                               \
  X(Kernel, _packer)                                                                               \
  X(Kernel, shared_memory)
#define FLOW_SLOTS(X)                                                                              \
  X(Flow, _first)                                                                                  \
  X(Flow, _lanes)                                                                                  \
  X(Flow, _lock)                                                                                   \
  X(Flow, trace)                                                                                   \
  X(History, intervals)                                                                            \
  X(History, lanes)                                                                                \
  X(History, readers)                                                                              \
  X(History, special)                                                                              \
  X(History, writer)                                                                               \
  X(Lanes, compute)                                                                                \
  X(Lanes, device)                                                                                 \
  X(Lanes, download)                                                                               \
  X(Lanes, upload)                                                                                 \
  X(BufferSet, buffers)                                                                            \
  X(BufferSet, execution)                                                                          \
  X(BufferSet, is_doubtful)                                                                        \
  X(BufferSet, others)                                                                             \
  X(BufferSet, reads)                                                                              \
  X(BufferSet, uploads)                                                                            \
  X(Pipeline, _closed)                                                                             \
  X(Pipeline, _flow)                                                                               \
  X(Pipeline, _lanes)                                                                              \
  X(Pipeline, _most)                                                                               \
  X(Pipeline, _needed)                                                                             \
  X(Pipeline, _reads)                                                                              \
  X(Pipeline, _runs)                                                                               \
  X(Pipeline, _sets)                                                                               \
  X(Pipeline, recording)                                                                           \
  X(ReadsInFlight, _limit)                                                                         \
  X(ReadsInFlight, _lock)                                                                          \
  X(ReadsInFlight, _sizes)                                                                         \
  X(ReadsInFlight, _total)                                                                         \
  X(Recording, commands)                                                                           \
  X(Recording, direct)                                                                             \
  X(Recording, uses)                                                                               \
  X(Routine, _flow)                                                                                \
  X(Routine, _lanes)                                                                               \
  X(Routine, _plain)                                                                               \
  X(TrackedBuffer, flow)                                                                           \
  X(TrackedBuffer, history)                                                                        \
  X(TrackedBuffer, raw)                                                                            \
  X(TrackedBuffer, reading)                                                                        \
  X(TrackedBuffer, writing)

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

/* X(name): the classes, as the module's `install`, `install_flow` and `install_groups` take them. */
#define CLASSES(X) CORE_CLASSES(X) FLOW_CLASSES(X) GROUP_CLASSES(X)
#define GROUP_CLASSES(X) X(Group)
#define FLOW_CLASSES(X)                                                                            \
  X(BufferSet)                                                                                     \
  X(Flow)                                                                                          \
  X(History)                                                                                       \
  X(Lanes)                                                                                         \
  X(Pipeline)                                                                                      \
  X(ReadsInFlight)                                                                                 \
  X(Recording)                                                                                     \
  X(Routine)                                                                                       \
  X(TrackedBuffer)
#define CORE_CLASSES(X)                                                                                 \
  X(CommandBuffer)                                                                                 \
  X(CopyNode)                                                                                      \
  X(FillNode)                                                                                      \
  X(Handle)                                                                                        \
  X(HostCopyNode)                                                                                  \
  X(Instance)                                                                                      \
  X(InstancePool)                                                                                  \
  X(CopyStream)                                                                                    \
  X(LaunchNode)                                                                                    \
  X(Lease)                                                                                         \
  X(Playback)                                                                                      \
  X(Replica)                                                                                       \
  X(Block)                                                                                         \
  X(Books)                                                                                         \
  X(Buffer)                                                                                        \
  X(Deallocation)                                                                                  \
  X(DriverMemory)                                                                                  \
  X(Give)                                                                                          \
  X(Piece)                                                                                         \
  X(Reaper)                                                                                        \
  X(Segment)                                                                                       \
  X(SegmentPool)                                                                                   \
  X(BlockLease)                                                                                    \
  X(Heap)                                                                                          \
  X(DeviceContext)                                                                                 \
  X(DeviceCore)                                                                                    \
  X(Event)                                                                                         \
  X(EventPool)                                                                                     \
  X(Extent)                                                                                        \
  X(Doorbell)                                                                                      \
  X(GroupLaunch)                                                                                   \
  X(HostWaiter)                                                                                    \
  X(Kernel)                                                                                        \
  X(Notifier)                                                                                      \
  X(Operation)                                                                                     \
  X(Queue)                                                                                         \
  X(Semaphore)                                                                                     \
  X(CollectiveStep)                                                                                \
  X(Storage)                                                                                       \
  X(StreamQueue)                                                                                   \
  X(Submission)                                                                                    \
  X(Timeline)                                                                                      \
  X(Timepoint)                                                                                     \
  X(Transient)                                                                                     \
  X(Waiters)                                                                                       \
  X(ndarray)

#endif
