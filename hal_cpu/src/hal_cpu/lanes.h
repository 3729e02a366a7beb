/* Let threads of one warp meet, wherever the warp's other threads are.
 *
 * Part of runtime.c. A thread that comes to a meeting before the others leaves the ring and is
 * parked; the last one does what they came for, and puts them back behind itself. So from the thread
 * that runs on, the ring has those that can run, and then those that wait at a barrier. */
#ifndef HAL_CPU_LANES_H
#define HAL_CPU_LANES_H

#include "fibers.h"

/* Makes the launch fail because of a thread's meeting. */
static void misled(struct hal_worker *worker, const struct hal_meeting *meeting, const char *what);

/* Let a parked thread go on, after the one that runs. */
static void unpark(struct thread_state *state, struct fiber *fiber) {
  struct fiber *me = state->current;
  fiber->meeting = NULL;
  state->parked--;
  if (fiber == me) return; /* it has not left the ring */
  fiber->previous = me;
  fiber->next = me->next;
  me->next->previous = fiber;
  me->next = fiber;
}

/* Return the thread of a lane of a fiber's warp that has not returned, or NULL. */
static struct fiber *lane_of(const struct thread_state *state, const struct fiber *fiber, unsigned int width,
                             unsigned int lane) {
  unsigned int index = fiber->index / width * width + lane;
  if (index >= state->count) return NULL;
  struct fiber *found = fiber_at(state, index, state->page);
  return found->over ? NULL : found;
}

static int is_same(const struct hal_meeting *one, const struct hal_meeting *other) {
  if (!other || one->together != other->together || one->open != other->open || strcmp(one->name, other->name)) return 0;
  return one->open ? one->place == other->place : one->lanes == other->lanes;
}

/* Hold a fiber's meeting if all have come, or with those that have if it is open. */
static int hold_meeting(struct thread_state *state, struct fiber *fiber) {
  const struct hal_meeting meeting = *fiber->meeting;
  void *arguments[64] = {NULL};
  uint64_t lanes = 0;
  for (unsigned int lane = meeting.width; lane-- > 0;) {
    struct fiber *other = meeting.open || meeting.lanes >> lane & 1 ? lane_of(state, fiber, meeting.width, lane) : NULL;
    if (!other) continue;
    if (!is_same(&meeting, other->meeting)) {
      if (meeting.open) continue;
      return 0;
    }
    lanes |= (uint64_t)1 << lane;
    arguments[lane] = other->meeting->argument;
  }
  meeting.together(lanes, arguments);
  for (unsigned int lane = meeting.width; lane-- > 0;)
    if (lanes >> lane & 1) unpark(state, lane_of(state, fiber, meeting.width, lane));
  return 1;
}

/* Lanes do not come to a meeting that names them, or one comes that it does not name. */
static void missed(struct hal_worker *worker, const struct hal_meeting *meeting, unsigned long long lanes,
                   const struct hal_meeting *other) {
  char where[256] = "a __syncthreads()", text[400];
  const int digits = meeting->width == 64 ? 16 : 8;
  if (lanes & ~meeting->lanes) {
    snprintf(text, sizeof text,
             "its mask 0x%0*llx leaves out lane %u, which calls it; a mask names every thread that comes here",
             digits, meeting->lanes, (unsigned int)__builtin_ctzll(lanes));
    misled(worker, meeting, text);
    return;
  }
  if (other)
    snprintf(where, sizeof where, "%s() in line %u of %s", other->name, other->place->line, other->place->file);
  snprintf(text, sizeof text,
           "its mask 0x%0*llx names the lanes 0x%0*llx, which do not come: they wait at %s; name only threads that "
           "come here, all with one mask",
           digits, meeting->lanes, digits, lanes, where);
  misled(worker, meeting, text);
}

/* No thread can run, and some are parked: hold the open meetings. If there is none, the block ends. */
static void settle(struct thread_state *state) {
  int held = 0;
  for (unsigned int i = state->count; i-- > 0;) {
    struct fiber *fiber = fiber_at(state, i, state->page);
    if (!fiber->over && fiber->meeting && fiber->meeting->open) held = hold_meeting(state, fiber);
  }
  if (held) return;
  struct fiber *first = NULL;
  for (unsigned int i = state->count; i-- > 0;) {
    struct fiber *fiber = fiber_at(state, i, state->page);
    if (!fiber->over && fiber->meeting) first = fiber;
  }
  const struct hal_meeting *meeting = first->meeting;
  uint64_t missing = 0;
  const struct hal_meeting *where = NULL;
  for (unsigned int lane = meeting->width; lane-- > 0;) {
    struct fiber *other = meeting->lanes >> lane & 1 ? lane_of(state, first, meeting->width, lane) : NULL;
    if (!other || is_same(meeting, other->meeting)) continue;
    missing |= (uint64_t)1 << lane;
    if (other->meeting) where = other->meeting;
  }
  missed(&state->worker, meeting, missing, where);
  switch_fiber(state->current, &state->home); /* the others are never resumed */
}

/* To be called when the thread that runs waits or has returned. */
static void after_arrival(struct thread_state *state) {
  if (state->arrived + state->parked < state->living) return;
  if (state->parked)
    settle(state);
  else
    state->arrived = 0;
}

/* A thread has returned: those that meet need not wait for it any longer. */
static void leave_lanes(struct thread_state *state, struct fiber *me) {
  if (!state->parked) return;
  for (unsigned int lane = 64; lane-- > 0;) {
    struct fiber *other = lane_of(state, me, 64, lane);
    if (other && other->meeting && !other->meeting->open) hold_meeting(state, other);
  }
}

static void meet_lanes(struct hal_worker *worker, const struct hal_meeting *meeting) {
  struct thread_state *state = (struct thread_state *)worker;
  struct fiber *me = state->current;
  if (!me) die("a kernel reached a function of warps that was not found in its source; write its name plainly");
  unsigned int lane = me->index % meeting->width;
  if (!meeting->open && !(meeting->lanes >> lane & 1)) {
    missed(worker, meeting, 1ull << lane, NULL);
    switch_fiber(me, &state->home); /* the others are never resumed */
  }
  me->meeting = meeting;
  state->parked++;
  if (!meeting->open && hold_meeting(state, me)) return;
  after_arrival(state);
  if (!me->meeting) return;
  struct fiber *next = me->next;
  next->previous = me->previous;
  me->previous->next = next;
  state->current = next;
  switch_fiber(me, next);
}

#endif
