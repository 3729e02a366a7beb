/* What every call of a face goes through: counting, faults on request, and the rules about where
 * a call may be made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sim.h"

struct planned {
  char name[64];
  unsigned long at; /* calls of that function still to come before the one that fails, plus 1 */
  int code;
};
#define PLANNED 32
static struct planned planned[PLANNED];
static int planned_count;
static unsigned long lose_at;
static int lose_code = SIM_LAUNCH_FAILED;
static struct sim_site *sites;
static bool environment_read;

__thread int sim_in_host_function;

static void plan(const char *name, unsigned long at, int code) {
  if (planned_count == PLANNED) return;
  snprintf(planned[planned_count].name, sizeof planned[0].name, "%s", name);
  planned[planned_count].at = at;
  planned[planned_count++].code = code;
}

/* GPUSIM_FAIL="cuMemAlloc:3:2,cuLaunchKernel:1:719" */
static void read_environment(void) {
  environment_read = true;
  const char *text = getenv("GPUSIM_FAIL");
  char name[64];
  unsigned long at;
  int code, length;
  while (text && sscanf(text, " %63[^:,]:%lu:%d%n", name, &at, &code, &length) == 3) {
    plan(name, at, code);
    text += length;
    if (*text == ',') text++;
  }
  lose_at = (unsigned long)sim_setting("GPUSIM_LOSE_AT", 0);
}

static int injected(const char *name) {
  int code = SIM_OK;
  for (int i = planned_count - 1; i >= 0; i--) {
    if (strcmp(planned[i].name, name) && strcmp(planned[i].name, "*")) continue;
    if (--planned[i].at) continue;
    code = planned[i].code;
    planned[i] = planned[--planned_count];
    sim_note("%s fails on request: %d", name, code);
  }
  return code;
}

/* Threads stop between two calls, as on a busy machine: most before one call in five, the first one, for which all wait,
 * before one in a hundred. */
static void pause_sometimes(void) {
  static __thread uint64_t calls;
  if (!sim.pause_us) return;
  const pid_t thread = (pid_t)syscall(SYS_gettid);
  const uint64_t chance = sim_hash((uint64_t)thread, ++calls, 6);
  if (chance % (thread == getpid() ? 100 : 5) == 0) usleep((unsigned)(chance / 100 % sim.pause_us));
}

int sim_enter(struct sim_site *site, int device, unsigned needs) {
  if (sim_in_host_function && !(needs & SIM_ALLOWED_IN_HOST)) {
    if (sim.strict) sim_abort(NULL, "%s is called inside a host function", site->name);
    return SIM_NOT_PERMITTED;
  }
  if (sim.forked) return SIM_NOT_INITIALIZED;
  pause_sometimes();
  sim_lock();
  if (!environment_read) read_environment();
  if (!site->listed) {
    site->listed = true;
    site->next = sites;
    sites = site;
  }
  int status = SIM_OK;
  site->calls++;
  sim.calls++;
  if ((needs & SIM_NEEDS_INIT) && !sim.initialized) status = SIM_NOT_INITIALIZED;
  if (!status && planned_count) status = injected(site->name);
  const unsigned contexts = sim.strict ? SIM_NEEDS_CONTEXT | SIM_WANTS_CONTEXT : SIM_NEEDS_CONTEXT;
  if (!status && (needs & contexts & ~SIM_NEEDS_INIT) && device < 0) status = SIM_INVALID_CONTEXT;
  if (lose_at && sim.initialized && device >= 0 && sim.calls >= lose_at) {
    lose_at = 0;
    sim_fail_device(device, lose_code, "lost on request");
  }
  if (!status && device >= 0 && !(needs & SIM_ALLOWED_AFTER_ERROR)) status = sim.devices[device].error;
  if (!status && needs & SIM_UNSAFE) status = sim_capture_unsafe();
  sim_unlock();
  return status;
}

/* Reached from tests through ctypes. */

/* The n-th call from now on, counted from 1, of the function `name` ("*": of any) returns `code`
 * and does nothing. Several may be asked for. */
SIM_EXPORT void gpusim_fail(const char *name, unsigned long n, int code) {
  sim_lock();
  if (n) plan(name, n, code);
  sim_unlock();
}

/* Whatever was asked for by gpusim_fail and has not happened yet falls away; returns how many. */
SIM_EXPORT int gpusim_fail_none(void) {
  sim_lock();
  int count = planned_count;
  planned_count = 0;
  sim_unlock();
  return count;
}

/* At the given number of all calls (gpusim_calls counts them) the device of the calling context is lost. */
SIM_EXPORT void gpusim_lose_device_at(unsigned long call, int code) {
  sim_lock();
  lose_at = call;
  lose_code = code ? code : SIM_LAUNCH_FAILED;
  sim_unlock();
}

SIM_EXPORT void gpusim_lose_device(int device, int code) {
  sim_lock();
  if (device >= 0 && device < sim.device_count) sim_fail_device(device, code ? code : SIM_LAUNCH_FAILED, "lost on request");
  sim_unlock();
}

/* Calls so far, of one function or, for NULL, of all. */
SIM_EXPORT unsigned long gpusim_calls(const char *name) {
  sim_lock();
  unsigned long calls = name ? 0 : sim.calls;
  for (struct sim_site *site = sites; name && site; site = site->next)
    if (!strcmp(site->name, name)) calls += site->calls;
  sim_unlock();
  return calls;
}

static void limit_memory(size_t bytes) {
  sim_lock();
  for (int i = 0; i < sim.device_count; i++) sim.devices[i].total = bytes ? bytes : (size_t)sim_setting("GPUSIM_MEMORY", 4l << 30);
  sim_unlock();
}

SIM_EXPORT void gpusim_limit_memory(size_t bytes) { limit_memory(bytes); }

/* Faults, limits and sticky errors end; objects stay. For between two tests. */
SIM_EXPORT void gpusim_reset(void) {
  limit_memory(0); /* the other face's library, loaded beside this one, exports the same names */
  sim_lock();
  planned_count = 0;
  lose_at = 0;
  for (int i = 0; i < sim.device_count; i++) sim.devices[i].error = 0;
  sim.launch_limit = (unsigned)sim_setting("GPUSIM_LAUNCH_LIMIT", 1024);
  sim.strict = sim_setting("GPUSIM_STRICT", 1) != 0;
  sim_changed();
  sim_unlock();
}
