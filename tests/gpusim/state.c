/* The engine's state: set-up from the environment, devices, sticky errors. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

struct sim_state sim = {.lock = PTHREAD_MUTEX_INITIALIZER};

void sim_lock(void) { pthread_mutex_lock(&sim.lock); }
void sim_unlock(void) { pthread_mutex_unlock(&sim.lock); }

uint64_t sim_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* A fixed function of the seed and of what is asked, and of nothing that happened between: a choice
 * stays the same when an unrelated one is added or falls away. */
uint64_t sim_hash(uint64_t a, uint64_t b, uint64_t c) {
  return mix(mix(mix(mix(sim.seed + 0x9e3779b97f4a7c15u) + a) + b) + c);
}

long sim_setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtol(text, NULL, 0) : otherwise;
}

static void forked(void) { sim.forked = true; }

static void configure(void) {
  const char *mode = getenv("GPUSIM_MODE");
  sim.stepped = mode && !strcmp(mode, "stepped");
  if (mode && *mode && !sim.stepped && strcmp(mode, "free"))
    fprintf(stderr, "gpusim: GPUSIM_MODE is 'free' or 'stepped', not '%s'; taken for 'free'\n", mode);
  sim.seed = (uint64_t)sim_setting("GPUSIM_SEED", 1);
  sim.strict = sim_setting("GPUSIM_STRICT", 1) != 0;
  sim.launch_limit = (unsigned)sim_setting("GPUSIM_LAUNCH_LIMIT", 1024);
  sim.abort_on_blocked = sim_setting("GPUSIM_ABORT_ON_BLOCKED", 0) != 0;
  sim.tick_ms = (unsigned)sim_setting("GPUSIM_TICK_MS", 2);
  sim.jitter_us = (unsigned)sim_setting("GPUSIM_JITTER_US", 0);
  sim.pause_us = (unsigned)sim_setting("GPUSIM_PAUSE_US", 0);
  sim.long_ms = (unsigned)sim_setting("GPUSIM_LONG_MS", 20);
  sim.stuck_s = (unsigned)sim_setting("GPUSIM_STUCK_S", 30);
  long devices = sim_setting("GPUSIM_DEVICES", 2);
  sim.device_count = devices < 0 ? 0 : devices > SIM_MAX_DEVICES ? SIM_MAX_DEVICES : (int)devices;
  for (int i = 0; i < sim.device_count; i++) {
    sim.devices[i].total = (size_t)sim_setting("GPUSIM_MEMORY", 4l << 30);
    sim.devices[i].default_pool = sim.devices[i].pool = sim_pool_new(i, true);
  }
}

bool sim_is_device(int device) { return device >= 0 && device < sim.device_count; }

int sim_initialize(void) {
  sim_lock();
  if (!sim.initialized) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&sim.changed, &monotonic);
    configure();
    sim_guard_install();
    pthread_atfork(NULL, NULL, forked);
    sim.initialized = true;
    sim_start_tick();
  }
  sim_unlock();
  return sim.device_count ? SIM_OK : SIM_NO_DEVICE;
}

bool sim_strict_about(const struct sim_device *device) { return sim.strict && !(device && device->error); }

void sim_fail_device(int device, int code, const char *why) {
  struct sim_device *failed = &sim.devices[device];
  if (failed->error) return;
  failed->error = code;
  sim_note("device %d fails with %d: %s", device, code, why);
  if (sim_setting("GPUSIM_QUIET", 0) == 0)
    fprintf(stderr, "gpusim: device %d fails with %d for good: %s (%s, seed %llu)\n", device, code, why,
            sim.stepped ? "stepped" : "free", (unsigned long long)sim.seed);
  sim_changed();
}

static bool is_idle(void *device) {
  for (struct sim_stream *stream = sim.streams; stream; stream = stream->next)
    if (stream->device == *(int *)device && stream->head) return false;
  return true;
}

void sim_device_reset(int device) {
  sim_lock();
  sim_wait(is_idle, &device, -1);
  sim_handles_forget(device);
  sim.devices[device].error = SIM_OK;
  sim_note("device %d is reset", device);
  sim_unlock();
  sim_forget_memory(device);
}

/* Reached from tests through ctypes. */

SIM_EXPORT void gpusim_strict(int strict) {
  sim_lock();
  sim.strict = strict != 0;
  sim_unlock();
}

SIM_EXPORT void gpusim_launch_limit(unsigned operations) {
  sim_lock();
  sim.launch_limit = operations ? operations : 1;
  sim_changed();
  sim_unlock();
}

/* Launches that had to wait because their stream was full. */
SIM_EXPORT unsigned long gpusim_blocked(void) {
  sim_lock();
  unsigned long blocked = sim.blocked;
  sim_unlock();
  return blocked;
}
