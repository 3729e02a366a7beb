/* Running one operation, with faults caught. */
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

struct frame {
  sigjmp_buf back;
  struct frame *outer;
  volatile uintptr_t address;
};
static __thread struct frame *frame;
static struct sigaction before[NSIG];
static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP};

static void on_fault(int number, siginfo_t *info, void *context) {
  if (frame) {
    frame->address = (uintptr_t)info->si_addr;
    siglongjmp(frame->back, number == SIGSEGV || number == SIGBUS ? 1 : 2);
  }
  const struct sigaction *old = &before[number]; /* not ours: whoever was there before */
  if (old->sa_flags & SA_SIGINFO) old->sa_sigaction(number, info, context);
  else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) old->sa_handler(number);
  else signal(number, SIG_DFL); /* and the instruction faults again */
}

void sim_guard_install(void) {
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    struct sigaction now;
    if (!sigaction(signals[i], NULL, &now) && now.sa_sigaction == on_fault) continue;
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&ours.sa_mask);
    before[signals[i]] = now;
    sigaction(signals[i], &ours, NULL);
  }
}

/* A thread of ours that runs out of stack needs another one for the handler; and it takes no signals
 * that are meant for the program. */
void sim_guard_thread(void) {
  sigset_t all;
  sigfillset(&all);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigdelset(&all, signals[i]);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  size_t size = 65536;
  void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack != MAP_FAILED) sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = size}, NULL);
}

int sim_guard(void (*body)(void *), void *argument, uintptr_t *address) {
  struct sigaction now;
  if (sigaction(SIGSEGV, NULL, &now) || now.sa_sigaction != on_fault) sim_guard_install(); /* somebody took it away */
  struct frame mine = {.outer = frame};
  int fault = sigsetjmp(mine.back, 0);
  if (!fault) {
    frame = &mine;
    body(argument);
  } else if (address) {
    *address = mine.address;
  }
  frame = mine.outer;
  return fault;
}

static void copy(void *argument) {
  const struct sim_copy *copy = argument;
  memmove(copy->target, copy->source, copy->size);
}

static void set(void *argument) {
  const struct sim_set *set = argument;
  if (set->element == 1) memset(set->target, (int)(set->value & 0xFF), set->count);
  else if (set->element == 2)
    for (size_t x = 0; x < set->count; x++) ((uint16_t *)(void *)set->target)[x] = (uint16_t)set->value;
  else
    for (size_t x = 0; x < set->count; x++) ((uint32_t *)(void *)set->target)[x] = set->value;
}

static void write_value(void *argument) {
  const struct sim_value *value = argument;
  if (value->width == 8) __atomic_store_n((uint64_t *)value->address, value->value, __ATOMIC_RELEASE);
  else __atomic_store_n((uint32_t *)value->address, (uint32_t)value->value, __ATOMIC_RELEASE);
}

/* A device has one thread for host functions: one that waits holds up those of other streams. */
static void call_host(const struct sim_op *op, int device) {
  static pthread_mutex_t turns[SIM_MAX_DEVICES] = {[0 ... SIM_MAX_DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER};
  pthread_mutex_lock(&turns[device]);
  sim_in_host_function = 1;
  op->host.function(op->host.argument);
  sim_in_host_function = 0;
  pthread_mutex_unlock(&turns[device]);
}

int sim_execute(const struct sim_op *op, struct sim_stream *stream) {
  int fault = 0;
  if (op->is_off) return SIM_OK;
  switch (op->kind) {
    case SIM_OP_COPY: fault = sim_guard(copy, (void *)&op->copy, NULL); break;
    case SIM_OP_SET: fault = sim_guard(set, (void *)&op->set, NULL); break;
    case SIM_OP_WRITE_VALUE: fault = sim_guard(write_value, (void *)&op->value, NULL); break;
    case SIM_OP_ALLOC: sim_poison(op->block); break;
    case SIM_OP_KERNEL: fault = sim_run_launch(op->launch, NULL); break;
    case SIM_OP_HOST: call_host(op, stream->device); break;
    default: break;
  }
  return fault == 0 ? SIM_OK : fault == 1 ? SIM_ILLEGAL_ADDRESS : fault == 2 ? SIM_LAUNCH_FAILED : fault;
}

void sim_op_hold(const struct sim_op *op) {
  if (op->kind == SIM_OP_KERNEL) op->launch->references++;
}

void sim_op_release(const struct sim_op *op) {
  if (op->kind == SIM_OP_KERNEL && !--op->launch->references) free(op->launch);
  if (op->kind == SIM_OP_GRAPH) sim_run_free(op->run);
}

int sim_op_refused(const struct sim_op *op, int status) {
  sim_lock();
  sim_op_release(op);
  sim_unlock();
  return status;
}
