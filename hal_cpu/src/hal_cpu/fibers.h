/* Run the threads of a block with barriers, each on a stack of its own.
 *
 * Part of runtime.c.
 *
 * All of a block's threads live on one thread of the operating system and form
 * a ring; a barrier switches to the next in the ring. Since each runs until its
 * next barrier before the following one runs, a thread comes to run again
 * exactly when all others have arrived. They are counted only to tell whether all
 * have arrived at the same barrier. */
#ifndef HAL_CPU_FIBERS_H
#define HAL_CPU_FIBERS_H

#include "image.h"

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Elsewhere the C library switches, which takes two system calls each time. */
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(HAL_CPU_UCONTEXT)
#define HAL_SWITCH_BY_HAND
#else
#include <ucontext.h>
#endif

enum {
  STACK = 64 * 1024,        /* bytes of a kernel thread's own stack */
  SIGNAL_STACK = 64 * 1024, /* bytes of the stack that signal handlers run on */
};

struct fiber {
  void *top; /* the saved stack pointer while it does not run */
  struct fiber *next, *previous;
  unsigned int index;
  int over;                          /* it has returned */
  const struct hal_meeting *meeting; /* that it waits for, out of the ring */
#ifndef HAL_SWITCH_BY_HAND
  ucontext_t context;
#endif
};

struct thread_state {
  struct hal_worker worker; /* must come first: images get its address */
  uint32_t slot;            /* of the stream whose record the thread works on */
  const struct hal_kernel *kernel; /* that it runs, or ran last, and the launch of it */
  const struct hal_launch *launch;
  size_t shared_capacity;
  char *stacks; /* fiber_count of them, each with its struct fiber at the upper end */
  unsigned int fiber_count;
  struct fiber *current;
  struct fiber home; /* the thread's own stack */
  unsigned int living, arrived;  /* fibers that have not returned, and those of them at the barrier */
  const struct hal_place *place; /* that the first has arrived at */
  unsigned int count, parked;    /* fibers of the block, and those of them that wait for a meeting */
  size_t page;
  void *signal_stack;
  void (*entry)(void *, unsigned int);
  void *frame;
};

static _Noreturn void die(const char *what) {
  fprintf(stderr, "hal_cpu: %s\n", what);
  abort();
}

#ifdef HAL_SWITCH_BY_HAND
/* Save the callee-saved registers and the stack pointer, then go on from the other's. */
void hal_cpu_switch(void **save, void *load) __attribute__((visibility("hidden")));
void hal_cpu_enter(void) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".hidden hal_cpu_switch\n"
    ".globl hal_cpu_switch\n"
    ".type hal_cpu_switch,@function\n"
    "hal_cpu_switch:\n"
    "  .cfi_startproc\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size hal_cpu_switch,.-hal_cpu_switch\n"
    /* The first entry of a stack: rbx holds the function, r12 its argument. */
    ".hidden hal_cpu_enter\n"
    ".globl hal_cpu_enter\n"
    ".type hal_cpu_enter,@function\n"
    "hal_cpu_enter:\n"
    "  .cfi_startproc\n"
    "  .cfi_undefined rip\n"
    "  movq %r12, %rdi\n"
    "  callq *%rbx\n"
    "  ud2\n"
    "  .cfi_endproc\n"
    ".size hal_cpu_enter,.-hal_cpu_enter\n");
#else
__asm__(
    ".text\n"
    ".hidden hal_cpu_switch\n"
    ".globl hal_cpu_switch\n"
    ".type hal_cpu_switch,%function\n"
    "hal_cpu_switch:\n"
    "  .cfi_startproc\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size hal_cpu_switch,.-hal_cpu_switch\n"
    /* The first entry of a stack: x19 holds the function, x20 its argument. */
    ".hidden hal_cpu_enter\n"
    ".globl hal_cpu_enter\n"
    ".type hal_cpu_enter,%function\n"
    "hal_cpu_enter:\n"
    "  .cfi_startproc\n"
    "  .cfi_undefined x30\n"
    "  mov x0, x20\n"
    "  blr x19\n"
    "  brk #1\n"
    "  .cfi_endproc\n"
    ".size hal_cpu_enter,.-hal_cpu_enter\n");
#endif
static inline void switch_fiber(struct fiber *from, struct fiber *to) {
  hal_cpu_switch(&from->top, to->top);
}

/* Lay out a new stack so that the first switch to it calls function(argument). */
static void prepare_fiber(struct fiber *fiber, char *stack, void (*function)(void *), void *argument) {
  (void)stack;
  uintptr_t top = (uintptr_t)fiber & ~(uintptr_t)15;
#if defined(__x86_64__)
  /* After the six registers and the return address the stack pointer must be a multiple of 16. */
  void **frame = (void **)(top - 72);
  memset(frame, 0, 72);
  frame[3] = argument;               /* r12, after r15, r14 and r13 */
  frame[4] = (void *)function;       /* rbx */
  frame[6] = (void *)hal_cpu_enter;  /* where ret goes */
#else
  void **frame = (void **)(top - 160);
  memset(frame, 0, 160);
  frame[0] = (void *)function;       /* x19 */
  frame[1] = argument;               /* x20 */
  frame[11] = (void *)hal_cpu_enter; /* x30 */
#endif
  fiber->top = frame;
}
#else
static inline void switch_fiber(struct fiber *from, struct fiber *to) {
  swapcontext(&from->context, &to->context);
}

static void prepare_fiber(struct fiber *fiber, char *stack, void (*function)(void *), void *argument) {
  /* makecontext passes ints only: hand the pointer over in two halves. */
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = stack;
  fiber->context.uc_stack.ss_size = (size_t)((char *)fiber - stack);
  fiber->context.uc_link = NULL;
  (void)function;
  extern void hal_cpu_halves(unsigned int, unsigned int);
  makecontext(&fiber->context, (void (*)(void))hal_cpu_halves, 2, (unsigned int)((uintptr_t)argument >> 16 >> 16),
              (unsigned int)(uintptr_t)argument);
}
#endif

static void leave_lanes(struct thread_state *state, struct fiber *me);
static void after_arrival(struct thread_state *state);

static void run_fiber(void *argument) {
  struct thread_state *state = argument;
  struct fiber *me = state->current;
  state->entry(state->frame, me->index);
  me->over = 1;
  state->living--;
  leave_lanes(state, me);
  after_arrival(state);
  struct fiber *next = me->next;
  if (next == me) {
    next = &state->home;
  } else {
    next->previous = me->previous;
    me->previous->next = next;
  }
  state->current = next;
  switch_fiber(me, next);
  die("a finished thread was resumed");
}

#ifndef HAL_SWITCH_BY_HAND
__attribute__((visibility("hidden"))) void hal_cpu_halves(unsigned int high, unsigned int low) {
  run_fiber((void *)((uintptr_t)high << 16 << 16 | low));
}
#endif

static void free_fibers(struct thread_state *state) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (state->stacks) munmap(state->stacks, state->fiber_count * (STACK + page));
  state->stacks = NULL;
  state->fiber_count = 0;
}

/* Return where the struct of fiber i lies: next to what the fiber has on its
 * stack, for the sake of the cache. All stacks have the same offset in their
 * pages and would share a few sets of the cache: hence the stagger. */
static inline struct fiber *fiber_at(const struct thread_state *state, unsigned int i, size_t page) {
  size_t stagger = (size_t)(i % 30) * 128;
  return (struct fiber *)(state->stacks + (i + 1) * (STACK + page) - stagger) - 1;
}

static void need_fibers(struct thread_state *state, unsigned int count) {
  if (state->fiber_count >= count) return;
  free_fibers(state);
  size_t page = (size_t)sysconf(_SC_PAGESIZE), stride = STACK + page;
  state->stacks = mmap(NULL, count * stride, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (state->stacks == MAP_FAILED) die("no memory for the stacks of a block's threads");
  /* A page that cannot be touched below each stack turns an overflow into a
   * fault. The system limits how many it gives; going on without is better
   * than not running. */
  for (unsigned int i = 0; i < count; i++)
    if (mprotect(state->stacks + i * stride, page, PROT_NONE) != 0) break;
  state->fiber_count = count;
}

static void run_threads(struct hal_worker *worker, unsigned int count, void (*entry)(void *, unsigned int),
                        void *frame) {
  struct thread_state *state = (struct thread_state *)worker;
  if (count == 0) return;
  need_fibers(state, count);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  struct fiber *first = fiber_at(state, 0, page), *previous = first;
  for (unsigned int i = 0; i < count; i++) {
    struct fiber *fiber = fiber_at(state, i, page);
    fiber->index = i;
    fiber->over = 0;
    fiber->meeting = NULL;
    fiber->previous = previous;
    previous->next = fiber;
    previous = fiber;
    prepare_fiber(fiber, state->stacks + i * (STACK + page) + page, run_fiber, state);
  }
  previous->next = first;
  first->previous = previous;
  state->entry = entry;
  state->frame = frame;
  state->current = first;
  state->living = state->count = count;
  state->arrived = state->parked = 0;
  state->page = page;
  switch_fiber(&state->home, state->current);
  state->current = NULL;
}

static void diverged(struct hal_worker *worker, const struct hal_place *one, const struct hal_place *other);
static void meet_lanes(struct hal_worker *worker, const struct hal_meeting *meeting);
static void missed(struct hal_worker *worker, const struct hal_meeting *meeting, unsigned long long lanes,
                   const struct hal_meeting *other);

static void barrier(struct hal_worker *worker, const struct hal_place *place) {
  struct thread_state *state = (struct thread_state *)worker;
  struct fiber *me = state->current;
  if (!me) die("a kernel reached __syncthreads() that was not found in its source; write it plainly");
  if (state->arrived && state->place != place) {
    diverged(worker, state->place, place);
    switch_fiber(me, &state->home); /* the others are never resumed */
  }
  state->place = place;
  state->arrived++;
  after_arrival(state);
  struct fiber *next = me->next;
  if (next == me) return;
  state->current = next;
  switch_fiber(me, next);
}

static void start_worker(struct hal_worker *worker) {
  worker->run_threads = run_threads;
  worker->barrier = barrier;
  worker->diverged = diverged;
  worker->meet = meet_lanes;
  worker->missed = missed;
}

/* Make the calling thread's state. */
static void start_state(struct thread_state *state) {
  memset(state, 0, sizeof *state);
  /* A fault because a stack is full needs another stack to be told on. */
  stack_t alternate = {.ss_size = SIGNAL_STACK};
  alternate.ss_sp = state->signal_stack = malloc(SIGNAL_STACK);
  if (alternate.ss_sp) sigaltstack(&alternate, NULL);
  start_worker(&state->worker);
}

static void end_state(struct thread_state *state) {
  stack_t none = {.ss_flags = SS_DISABLE};
  sigaltstack(&none, NULL);
  free(state->signal_stack);
  free_fibers(state);
  free(state->worker.shared);
}

static void need_shared(struct thread_state *state, size_t size) {
  if (state->shared_capacity >= size) return;
  free(state->worker.shared);
  size = (size + 4095) & ~(size_t)4095;
  state->worker.shared = aligned_alloc(64, size);
  if (!state->worker.shared) die("no memory for a block's dynamic shared memory");
  state->shared_capacity = size;
}

#endif
