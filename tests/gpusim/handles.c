/* A table of all handles ever given out, living and dead. */
#include <stdio.h>
#include <stdlib.h>

#include "sim.h"

struct entry {
  const void *handle;
  enum sim_type type;
  bool alive;
};
static struct entry *table;
static size_t capacity, used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf */

static const char *const names[] = {"nothing", "stream", "event", "graph", "graph node", "graph instance", "module", "function", "memory pool"};

static struct entry *slot(const void *handle) {
  uintptr_t x = (uintptr_t)handle;
  size_t i = (size_t)((x >> 4) * 0x9e3779b97f4a7c15u) & (capacity - 1);
  while (table[i].handle && table[i].handle != handle) i = (i + 1) & (capacity - 1);
  return &table[i];
}

void sim_handle_add(void *handle, enum sim_type type) {
  pthread_mutex_lock(&lock);
  if (2 * used >= capacity) {
    struct entry *old = table;
    size_t count = capacity;
    capacity = capacity ? 2 * capacity : 4096;
    table = calloc(capacity, sizeof *table);
    for (size_t i = 0; i < count; i++)
      if (old[i].handle) *slot(old[i].handle) = old[i];
    free(old);
  }
  *slot(handle) = (struct entry){handle, type, true};
  used++;
  pthread_mutex_unlock(&lock);
}

void sim_handle_kill(void *handle) {
  pthread_mutex_lock(&lock);
  slot(handle)->alive = false;
  pthread_mutex_unlock(&lock);
}

bool sim_handle_alive(const void *handle, enum sim_type type) {
  if (!handle) return false;
  pthread_mutex_lock(&lock);
  struct entry found = capacity ? *slot(handle) : (struct entry){0};
  pthread_mutex_unlock(&lock);
  if (!found.handle || found.type != type) return false;
  if (!found.alive && sim.strict) {
    bool excused = false; /* what a lost device had may have gone in any order */
    for (int i = 0; i < sim.device_count; i++) excused |= sim.devices[i].error != 0;
    if (!excused) sim_abort(NULL, "a %s is used after its destruction", names[type]);
  }
  return found.alive;
}

bool sim_handle_was(const void *handle, enum sim_type type) {
  pthread_mutex_lock(&lock);
  bool found = handle && capacity && slot(handle)->handle == handle && slot(handle)->type == type;
  pthread_mutex_unlock(&lock);
  return found;
}

static int device_of(const struct entry *entry) {
  switch (entry->type) {
    case SIM_STREAM: return ((const struct sim_stream *)entry->handle)->internal ? -1 : ((const struct sim_stream *)entry->handle)->device;
    case SIM_EVENT: return ((const struct sim_event *)entry->handle)->device;
    case SIM_GRAPH: return ((const struct sim_graph *)entry->handle)->device;
    case SIM_EXEC: return ((const struct sim_exec *)entry->handle)->device;
    case SIM_MODULE: return ((const struct sim_module_handle *)entry->handle)->device;
    case SIM_POOL: return ((const struct sim_pool *)entry->handle)->is_default ? -1 : ((const struct sim_pool *)entry->handle)->device;
    default: return -1; /* nodes and functions go with what owns them */
  }
}

void sim_handles_forget(int device) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < capacity; i++)
    if (table[i].handle && table[i].alive && device_of(&table[i]) == device) table[i].alive = false;
  pthread_mutex_unlock(&lock);
}

int sim_live_handles(char *text, size_t size, int device) {
  int counts[16] = {0}, total = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < capacity; i++)
    if (table[i].handle && table[i].alive) {
      int owner = device_of(&table[i]);
      if (owner >= 0 && (device < 0 || owner == device) && !sim.devices[owner].error) counts[table[i].type]++, total++;
    }
  pthread_mutex_unlock(&lock);
  size_t at = 0;
  if (size) text[0] = 0;
  for (int type = 1; type <= SIM_POOL; type++)
    if (counts[type] && at < size)
      at += (size_t)snprintf(text + at, size - at, "%s%d %s%s", at ? ", " : "", counts[type], names[type], counts[type] > 1 ? "s" : "");
  return total;
}
