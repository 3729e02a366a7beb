/* What happened, for whoever has to find out why: a ring of entries without addresses, so that two
 * runs can be compared. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

#define ENTRIES 16384

struct entry {
  unsigned stream; /* ordinal; 0 for a note */
  int device;
  uint64_t sequence;
  int node;
  char phase; /* '+' enqueued, '>' begins, '.' ended, '#' a note */
  enum sim_op_kind kind;
  uint64_t detail[2];
  char name[40];
};
static struct entry ring[ENTRIES];
static uint64_t written;

const char *sim_op_name(enum sim_op_kind kind) {
  static const char *const names[] = {"empty", "copy",  "set",  "host function", "kernel",      "wait",      "record",
                                      "graph", "alloc", "free", "write value",   "wait value"};
  return names[kind];
}

void sim_log(const struct sim_stream *stream, uint64_t sequence, int node, char phase, const struct sim_op *op) {
  struct entry *entry = &ring[written++ % ENTRIES];
  entry->stream = stream->ordinal;
  entry->device = stream->device;
  entry->sequence = sequence;
  entry->node = node;
  entry->phase = phase;
  entry->kind = op->kind;
  entry->detail[0] = entry->detail[1] = 0;
  entry->name[0] = 0;
  switch (op->kind) {
    case SIM_OP_COPY: entry->detail[0] = op->copy.size; break;
    case SIM_OP_SET: entry->detail[0] = op->set.element * op->set.count, entry->detail[1] = op->set.value; break;
    case SIM_OP_KERNEL:
      if (phase != '.') strncpy(entry->name, op->launch->kernel->name, sizeof entry->name - 1);
      break;
    case SIM_OP_WAIT: entry->detail[0] = op->wait.stream ? op->wait.stream->ordinal : 0, entry->detail[1] = op->wait.sequence; break;
    case SIM_OP_RECORD: entry->detail[0] = op->record.event->ordinal; break;
    case SIM_OP_GRAPH: entry->detail[0] = op->run->exec->ordinal; break;
    case SIM_OP_ALLOC:
    case SIM_OP_FREE: entry->detail[0] = op->block->size, entry->detail[1] = op->block->ordinal; break;
    case SIM_OP_WRITE_VALUE:
    case SIM_OP_WAIT_VALUE: entry->detail[0] = op->value.value; break;
    default: break;
  }
}

void sim_note(const char *format, ...) {
  struct entry *entry = &ring[written++ % ENTRIES];
  *entry = (struct entry){.phase = '#'};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(entry->name, sizeof entry->name, format, arguments);
  va_end(arguments);
}

static int format_entry(const struct entry *entry, char *text, size_t size) {
  if (entry->phase == '#') return snprintf(text, size, "# %s\n", entry->name);
  char detail[96] = "", node[24] = "";
  const unsigned long long a = entry->detail[0], b = entry->detail[1];
  switch (entry->kind) {
    case SIM_OP_COPY: snprintf(detail, sizeof detail, " %llu bytes", a); break;
    case SIM_OP_SET: snprintf(detail, sizeof detail, " %llu bytes to %#llx", a, b); break;
    case SIM_OP_KERNEL: snprintf(detail, sizeof detail, " %s", entry->name); break;
    case SIM_OP_WAIT: snprintf(detail, sizeof detail, " for stream %llu op %llu", a, b); break;
    case SIM_OP_RECORD: snprintf(detail, sizeof detail, " event %llu", a); break;
    case SIM_OP_GRAPH: snprintf(detail, sizeof detail, " instance %llu", a); break;
    case SIM_OP_ALLOC:
    case SIM_OP_FREE: snprintf(detail, sizeof detail, " %llu bytes, allocation %llu", a, b); break;
    case SIM_OP_WRITE_VALUE:
    case SIM_OP_WAIT_VALUE: snprintf(detail, sizeof detail, " %llu", a); break;
    default: break;
  }
  if (entry->node >= 0) snprintf(node, sizeof node, " node %d", entry->node);
  const char *phase = entry->phase == '+' ? "takes " : entry->phase == '>' ? "begins" : "ended ";
  return snprintf(text, size, "device %d stream %u %s op %llu%s: %s%s\n", entry->device, entry->stream, phase,
                  (unsigned long long)entry->sequence, node, sim_op_name(entry->kind), detail);
}

size_t sim_history(const struct sim_stream *stream, int last, char *text, size_t size) {
  uint64_t from = written > ENTRIES ? written - ENTRIES : 0;
  int wanted = 0;
  uint64_t begin = written;
  while (begin > from && wanted < last) {
    begin--;
    if (!stream || ring[begin % ENTRIES].stream == stream->ordinal) wanted++;
  }
  size_t at = 0;
  for (uint64_t i = begin; i < written; i++) {
    const struct entry *entry = &ring[i % ENTRIES];
    if (stream && entry->stream != stream->ordinal) continue;
    char line[256];
    int length = format_entry(entry, line, sizeof line);
    if (at + (size_t)length < size) memcpy(text + at, line, (size_t)length + 1);
    at += (size_t)length;
  }
  return at + 1;
}

/* May be called with or without the engine's lock: nothing goes on after it. */
void sim_abort(const struct sim_stream *stream, const char *format, ...) {
  static char text[1 << 16];
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  fprintf(stderr, "\ngpusim: ABORT: %s\ngpusim: mode %s, seed %llu, %lu calls, %lu steps\n", message,
          sim.stepped ? "stepped" : "free", (unsigned long long)sim.seed, sim.calls, sim.steps);
  if (stream) {
    text[0] = 0;
    sim_history(stream, 40, text, sizeof text);
    fprintf(stderr, "gpusim: the history of stream %u:\n%s", stream->ordinal, text);
  }
  text[0] = 0;
  sim_history(NULL, 40, text, sizeof text);
  fprintf(stderr, "gpusim: the last of all streams:\n%s", text);
  fflush(stderr);
  abort();
}

/* The whole history as text; returns the room that it needs, and fills in what fits, whole lines. */
SIM_EXPORT size_t gpusim_history(char *text, size_t size) {
  if (size) text[0] = 0;
  sim_lock();
  size_t needed = sim_history(NULL, ENTRIES, text, size);
  sim_unlock();
  return needed;
}

SIM_EXPORT void gpusim_clear_history(void) {
  sim_lock();
  written = 0;
  sim_unlock();
}
