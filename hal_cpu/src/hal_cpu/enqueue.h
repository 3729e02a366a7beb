/* How work gets into a stream: out of a mailbox, which is Python's way, or through a
 * function of the call table (`hal.native.CallTable`). And events.
 *
 * Part of runtime.c. Handles are numbers, and pointers in the call table only by type: a
 * stream's is its slot, an event's its place in `events`. */
#ifndef HAL_CPU_ENQUEUE_H
#define HAL_CPU_ENQUEUE_H

#include "faults.h"
#include "graph.h"

/* Any kind but KIND_JUMP and KIND_EXIT. Returns 0, or ENOMEM and nothing was enqueued. Never blocks. */
static inline int enqueue_order(uint64_t slot, const struct order *order) {
  struct stream *stream = streams[slot];
  struct record *record = reserve(stream, lines_of(order));
  if (!record) return ENOMEM;
  write_record(record, order);
  if (order->kind == KIND_GRAPH) start_launch(record);
  publish(stream, record);
  return 0;
}

/* Where Python writes what it wants, one mailbox for each slot. */
static _Alignas(LINE) struct order mailboxes[MAX_STREAMS];

/* Enqueue what the slot's mailbox says; as `enqueue_order`. */
EXPORT int hal_cpu_enqueue(int slot) { return enqueue_order((uint64_t)slot, &mailboxes[slot]); }

/* Return where the mailbox of slot 0 is; that of slot i is 64 * i bytes further. */
EXPORT void *hal_cpu_mailboxes(void) { return mailboxes; }

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
_Static_assert(MAX_STREAMS <= 1 << 12, "a slot must fit in its part of an event");

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
  uint64_t slot = (uintptr_t)stream;
  uint64_t count = atomic_load_explicit(&progress[slot].published, memory_order_relaxed);
  atomic_store_explicit(&events[(uintptr_t)event], count << 16 | slot << 4, memory_order_relaxed);
  return 0;
}

EXPORT int hal_cpu_wait_event(void *stream, void *event, unsigned flags) {
  uint64_t found = atomic_load_explicit(&events[(uintptr_t)event], memory_order_relaxed), slot = event_slot(found);
  if (flags || found == ENDED) return EINVAL;
  if (slot == (uintptr_t)stream || is_complete(found)) return 0;
  return enqueue_order((uintptr_t)stream, &(struct order){.kind = KIND_WAIT, .words = {slot, found >> 16}});
}

EXPORT int hal_cpu_query_event(void *event) {
  uint64_t found = atomic_load_explicit(&events[(uintptr_t)event], memory_order_relaxed);
  if (!is_complete(found)) return found == ENDED ? EINVAL : NOT_READY;
  return has_fault(event_slot(found), found >> 16) ? EFAULT : 0;
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

EXPORT int hal_cpu_launch_graph(void *instance, void *stream) {
  return enqueue_order((uintptr_t)stream, &(struct order){.kind = KIND_GRAPH, .words = {(uintptr_t)instance}});
}

#endif
