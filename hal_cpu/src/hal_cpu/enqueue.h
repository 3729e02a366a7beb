/* How work gets into a stream: out of a mailbox, which is Python's way, or through a
 * function of the call table (`hal.native.CallTable`). And events.
 *
 * Part of runtime.c. Handles are numbers, and pointers in the call table only by type: a
 * stream's is its slot, or more where it was adopted, an event's its place in `events`. */
#ifndef HAL_CPU_ENQUEUE_H
#define HAL_CPU_ENQUEUE_H

#include "faults.h"
#include "graph.h"

enum {
  SLOTS = 1 << 12, /* a handle is a slot, and SLOTS times the number of its mailbox */
  MAILBOXES = 64,  /* of each stream: its maker's, and one for each who has adopted it */
};
_Static_assert((int)MAX_STREAMS <= (int)SLOTS, "a slot must fit in its part of a handle and of an event");

static inline uint64_t slot_of(uint64_t handle) { return handle % SLOTS; }

/* Any kind but KIND_JUMP and KIND_EXIT. Returns 0, or ENOMEM and nothing was enqueued. Never blocks: others
 * who enqueue, for a queue or a device that has adopted the stream, leave soon. */
static inline int enqueue_order(uint64_t handle, const struct order *order) {
  struct stream *stream = streams[slot_of(handle)];
  while (atomic_exchange_explicit(&stream->is_entered, true, memory_order_acquire)) sched_yield();
  struct record *record = reserve(stream, lines_of(order));
  if (record) {
    write_record(record, order);
    if (order->kind == KIND_GRAPH) start_launch(record);
    publish(stream, record);
  }
  atomic_store_explicit(&stream->is_entered, false, memory_order_release);
  return record ? 0 : ENOMEM;
}

/* Where Python writes what it wants, one mailbox for each handle: two threads may be about to enqueue. */
static _Alignas(LINE) struct order mailboxes[MAILBOXES * SLOTS];

/* Enqueue what the handle's mailbox says; as `enqueue_order`. */
EXPORT int hal_cpu_enqueue(int handle) { return enqueue_order((uint64_t)handle, &mailboxes[handle]); }

/* Return where the mailbox of handle 0 is, and their number; that of handle i is 64 * i bytes further. */
EXPORT void *hal_cpu_mailboxes(int *count) {
  *count = MAILBOXES * SLOTS;
  return mailboxes;
}

/* ------------------------------------------------------------------- events */

enum {
  MAX_EVENTS = 1 << 22, /* that live at the same time */
  NOT_READY = EAGAIN,
};

/* The last record of each event: the count of the stream's records in the upper 48 bits, and
 * 16 * slot, the place of `completed` among the words that Python sees, in the lower 16. Both in
 * one word, so that nobody sees half of a record. Python makes and ends events. */
static _Atomic uint64_t events[MAX_EVENTS];
static const uint64_t ENDED = UINT64_MAX; /* in the place of an event that was destroyed */

/* Return where the word of event 0 is, and their number. */
EXPORT void *hal_cpu_events(int *count) {
  *count = MAX_EVENTS;
  return events;
}

static inline uint64_t event_slot(uint64_t event) { return (event & 0xffff) >> 4; }

static inline bool is_complete(uint64_t event) {
  return atomic_load_explicit(&progress[event_slot(event)].completed, memory_order_acquire) >= event >> 16;
}

EXPORT int hal_cpu_record_event(void *event, void *stream) {
  uint64_t slot = slot_of((uintptr_t)stream);
  uint64_t count = atomic_load_explicit(&progress[slot].published, memory_order_relaxed);
  atomic_store_explicit(&events[(uintptr_t)event], count << 16 | slot << 4, memory_order_relaxed);
  return 0;
}

EXPORT int hal_cpu_wait_event(void *stream, void *event, unsigned flags) {
  uint64_t found = atomic_load_explicit(&events[(uintptr_t)event], memory_order_relaxed), slot = event_slot(found);
  if (flags || found == ENDED) return EINVAL;
  if (slot == slot_of((uintptr_t)stream) || is_complete(found)) return 0;
  return enqueue_order((uintptr_t)stream, &(struct order){.kind = KIND_WAIT, .words = {slot, found >> 16}});
}

EXPORT int hal_cpu_query_event(void *event) {
  uint64_t found = atomic_load_explicit(&events[(uintptr_t)event], memory_order_relaxed);
  if (!is_complete(found)) return found == ENDED ? EINVAL : NOT_READY;
  return has_fault(event_slot(found), found >> 16) ? EFAULT : 0;
}

/* As hal_cpu_query_event, but the thread helps first. One that would take a processor from the work sleeps then, and
 * any other yields. */
EXPORT int hal_cpu_await_event(void *event, uint64_t nanoseconds) {
  uint64_t found = atomic_load_explicit(&events[(uintptr_t)event], memory_order_relaxed);
  if (found != ENDED && !is_complete(found)) help((uint32_t)event_slot(found), found >> 16);
  if (found != ENDED && !is_complete(found)) {
    if (atomic_load_explicit(&pool.wide, memory_order_relaxed) > 0)
      sleep_for((uint32_t)event_slot(found), found >> 16, now_ns() + (int64_t)nanoseconds);
    else
      sched_yield();
  }
  return hal_cpu_query_event(event);
}

/* Have a plain function called when the event's last record has completed. It must not call this runtime. */
EXPORT int hal_cpu_notify_event(uint64_t event, void (*function)(void *), void *argument) {
  uint64_t found = atomic_load_explicit(&events[event], memory_order_relaxed);
  return notify_at((uint32_t)event_slot(found), found >> 16, function, argument);
}

/* --------------------------------------------------------------------- work */

EXPORT int hal_cpu_fill_8(uintptr_t address, unsigned char value, size_t count, void *stream) {
  return enqueue_order((uintptr_t)stream, &(struct order){.kind = KIND_FILL, .words = {address, value, 1, count}});
}

EXPORT int hal_cpu_fill_16(uintptr_t address, unsigned short value, size_t count, void *stream) {
  return enqueue_order((uintptr_t)stream, &(struct order){.kind = KIND_FILL, .words = {address, value, 2, count}});
}

EXPORT int hal_cpu_fill_32(uintptr_t address, unsigned value, size_t count, void *stream) {
  return enqueue_order((uintptr_t)stream, &(struct order){.kind = KIND_FILL, .words = {address, value, 4, count}});
}

EXPORT int hal_cpu_copy(uintptr_t target, uintptr_t source, size_t size, void *stream) {
  return enqueue_order((uintptr_t)stream, &(struct order){.kind = KIND_COPY, .words = {target, source, size}});
}

EXPORT int hal_cpu_call(void *stream, int (*function)(void *, int), void *argument) {
  atomic_store_explicit(&progress[slot_of((uintptr_t)stream)].is_shared, true, memory_order_relaxed);
  struct order order = {.kind = KIND_SHARED, .words = {(uintptr_t)function, (uintptr_t)argument}};
  return enqueue_order((uintptr_t)stream, &order);
}

EXPORT int hal_cpu_launch(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared_memory, void *stream, void **parameters, void **extra) {
  if (extra) return EINVAL;
  struct order order = {.kind = KIND_LAUNCH};
  order.launch.kernel = function;
  order.launch.arguments = parameters;
  order.launch.grid[0] = gx, order.launch.grid[1] = gy, order.launch.grid[2] = gz;
  order.launch.block[0] = bx, order.launch.block[1] = by, order.launch.block[2] = bz;
  order.launch.shared_memory = shared_memory;
  return enqueue_order((uintptr_t)stream, &order);
}

/* Its update says which node of which instance it is. */
EXPORT int hal_cpu_update_launch(void *instance, void *node, const struct update *update) {
  (void)node;
  return instance == update->instance ? hal_cpu_graph_update(update) : EINVAL;
}

EXPORT int hal_cpu_launch_graph(void *instance, void *stream) {
  return enqueue_order((uintptr_t)stream, &(struct order){.kind = KIND_GRAPH, .words = {(uintptr_t)instance}});
}

#endif
