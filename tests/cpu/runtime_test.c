/* Exercises the CPU backend's runtime alone, from C, so that sanitizers see all of it.
 *
 * Built and run by test_runtime_c.py: this file includes the runtime's source. */
#include "runtime.c"

#include <semaphore.h>

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
      exit(1);                                                             \
    }                                                                      \
  } while (0)

enum { STREAMS = 5, ROUNDS = 300, WORDS = 4096 };

static int enqueue(int slot, uint64_t kind, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  mailboxes[slot].kind = kind;
  mailboxes[slot].words[0] = a;
  mailboxes[slot].words[1] = b;
  mailboxes[slot].words[2] = c;
  mailboxes[slot].words[3] = d;
  return hal_cpu_enqueue(slot);
}

static uint64_t published(int slot) { return atomic_load(&progress[slot].published); }

static void synchronize(int slot) { CHECK(hal_cpu_synchronize((uint32_t)slot, published(slot), -1) == 1); }

static uint32_t seed = 1;
static uint32_t roll(uint32_t limit) {
  seed = seed * 1664525u + 1013904223u;
  return (seed >> 8) % limit;
}

/* A kernel by hand: adds `value` to each word, one block for each 64 words. */
struct add_arguments {
  uint32_t *words;
  uint32_t value;
};
static const unsigned int add_sizes[] = {8, 4}, add_offsets[] = {0, 8};
static void add_run(const struct hal_launch *launch, struct hal_worker *worker, unsigned long long first,
                    unsigned long long last) {
  const struct add_arguments *arguments = launch->arguments;
  if (launch->shared_memory) memset(worker->shared, 1, launch->shared_memory);
  for (unsigned long long i = first * 64; i < last * 64; i++) {
    arguments->words[i] += arguments->value;
    for (volatile int delay = 0; delay < 20; delay++) {
    }
  }
}
static const struct hal_kernel add = {
    HAL_IMAGE_ABI, 0, "add", add_run, 1024, 0, 16, 2, add_sizes, add_offsets,
};

/* A kernel with barriers, of which thread 5 may take the wrong one: each thread adds its right neighbour's word as it was before. */
static const struct hal_place first_place = {"turn.c", 1}, second_place = {"turn.c", 2};
enum { PART = 0xffffff };
struct turn_frame {
  uint32_t *words;
  struct hal_worker *worker;
};
static void turn_thread(void *frame, unsigned int i) {
  struct turn_frame *turn = frame;
  if (i == 7) return; /* one that does not take part */
  uint32_t right = turn->words[(i + 1) % 64];
  turn->worker->barrier(turn->worker, &first_place);
  turn->words[i] += right;
  turn->worker->barrier(turn->worker, turn->words[63] == PART && i == 5 ? &first_place : &second_place);
}
static void turn_run(const struct hal_launch *launch, struct hal_worker *worker, unsigned long long first,
                     unsigned long long last) {
  for (unsigned long long block = first; block < last; block++) {
    struct turn_frame frame = {*(uint32_t *const *)launch->arguments + block * 64, worker};
    worker->run_threads(worker, 64, turn_thread, &frame);
  }
}
static const struct hal_kernel turn = {HAL_IMAGE_ABI, 0, "turn", turn_run, 1024, 0, 8, 1, add_sizes, add_offsets};

static int launch(int slot, const struct hal_kernel *kernel, uint32_t blocks, uint32_t shared, void *const *arguments) {
  struct order *mail = &mailboxes[slot];
  mail->kind = KIND_LAUNCH;
  mail->launch.kernel = kernel;
  mail->launch.arguments = arguments;
  for (int i = 0; i < 3; i++) mail->launch.grid[i] = mail->launch.block[i] = 1;
  mail->launch.grid[0] = blocks;
  mail->launch.block[0] = 64;
  mail->launch.shared_memory = shared;
  return hal_cpu_enqueue(slot);
}

static _Atomic int calls;
static void count(void *argument) {
  (void)argument;
  atomic_fetch_add(&calls, 1);
}

/* Several streams work on one array in turn, each ordered after the last by a wait. */
static void chain(void) {
  int slots[STREAMS];
  for (int i = 0; i < STREAMS; i++) CHECK((slots[i] = hal_cpu_stream_create(3)) > 0);
  uint32_t *words = hal_cpu_allocate(WORDS * 4), *other = hal_cpu_allocate(WORDS * 4);
  CHECK(words && other && (uintptr_t)words % 256 == 0);
  uint32_t expected = 0;
  int last = slots[0];
  uint64_t sequence = 0;
  for (int round = 0; round < ROUNDS; round++) {
    int slot = slots[roll(STREAMS)];
    if (slot != last) CHECK(enqueue(slot, KIND_WAIT, (uint64_t)last, sequence, 0, 0) == 0);
    uint32_t value = roll(1000);
    switch (roll(5)) {
      case 0:
        expected = value;
        CHECK(enqueue(slot, KIND_FILL, (uint64_t)(uintptr_t)words, value, 4, WORDS) == 0);
        break;
      case 1:
        CHECK(enqueue(slot, KIND_COPY, (uint64_t)(uintptr_t)other, (uint64_t)(uintptr_t)words, WORDS * 4, 0) == 0);
        CHECK(enqueue(slot, KIND_FILL, (uint64_t)(uintptr_t)words, 0x77, 1, WORDS * 4) == 0);
        CHECK(enqueue(slot, KIND_COPY, (uint64_t)(uintptr_t)words, (uint64_t)(uintptr_t)other, WORDS * 4, 0) == 0);
        break;
      case 2: CHECK(enqueue(slot, KIND_CALL, (uint64_t)(uintptr_t)count, 0, 0, 0) == 0); break;
      default: {
        void *arguments[] = {&words, &value};
        expected += value;
        CHECK(launch(slot, &add, WORDS / 64, roll(2) * 1000, arguments) == 0);
      }
    }
    last = slot;
    sequence = published(slot);
    if (roll(40) == 0) synchronize(slot);
  }
  synchronize(last);
  for (int i = 0; i < WORDS; i++) CHECK(words[i] == expected);
  for (int i = 0; i < STREAMS; i++) CHECK(hal_cpu_stream_destroy((uint32_t)slots[i]) == 0);
  hal_cpu_free(words);
  hal_cpu_free(other);
}

/* Threads that enqueue on streams of their own and wait for each other's. */
static int shared_slots[3];
static _Atomic uint64_t goals[3];
static void *party(void *argument) {
  int me = (int)(intptr_t)argument;
  for (int round = 0; round < 200; round++) {
    int other = (me + 1 + round % 2) % 3;
    uint64_t goal = atomic_load(&goals[other]);
    CHECK(enqueue(shared_slots[me], KIND_WAIT, (uint64_t)shared_slots[other], goal, 0, 0) == 0);
    CHECK(enqueue(shared_slots[me], KIND_CALL, (uint64_t)(uintptr_t)count, 0, 0, 0) == 0);
    atomic_store(&goals[me], published(shared_slots[me]));
    if (round % 16 == 0) CHECK(hal_cpu_synchronize((uint32_t)shared_slots[other], goal, -1) == 1);
  }
  return NULL;
}

static void parties(void) {
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) CHECK((shared_slots[i] = hal_cpu_stream_create(1)) > 0);
  for (int i = 0; i < 3; i++) goals[i] = published(shared_slots[i]);
  atomic_store(&calls, 0);
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, party, (void *)(intptr_t)i);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 3; i++) synchronize(shared_slots[i]);
  CHECK(atomic_load(&calls) == 600);
  for (int i = 0; i < 3; i++) CHECK(hal_cpu_stream_destroy((uint32_t)shared_slots[i]) == 0);
}

/* A queue that grows over many chunks while its worker is held up, and is used again. */
static sem_t gate;
static void hold(void *argument) {
  (void)argument;
  while (sem_wait(&gate) != 0) {
  }
}
static void backlog(void) {
  sem_init(&gate, 0, 0);
  int slot = hal_cpu_stream_create(1);
  uint32_t *words = hal_cpu_allocate(64 * 4);
  memset(words, 0, 64 * 4);
  for (int round = 0; round < 3; round++) {
    CHECK(enqueue(slot, KIND_CALL, (uint64_t)(uintptr_t)hold, 0, 0, 0) == 0);
    for (uint32_t i = 0; i < 20000; i++) {
      uint32_t one = 1;
      void *arguments[] = {&words, &one};
      if (i % 100 == 0)
        CHECK(launch(slot, &add, 1, 0, arguments) == 0);
      else
        CHECK(enqueue(slot, KIND_FILL, (uint64_t)(uintptr_t)(words + 1), i, 4, 1) == 0);
    }
    CHECK(hal_cpu_synchronize((uint32_t)slot, published(slot), 1000000) == 0);
    sem_post(&gate);
    synchronize(slot);
  }
  CHECK(words[0] == 600 && words[1] == 19999);
  CHECK(hal_cpu_stream_destroy((uint32_t)slot) == 0);
  hal_cpu_free(words);
}

/* Patterns of each width at each alignment, next to bytes that must stay. */
static void patterns(void) {
  int slot = hal_cpu_stream_create(2);
  unsigned char *bytes = hal_cpu_allocate(4096);
  for (uint32_t width = 1; width <= 4; width *= 2)
    for (uint32_t offset = 0; offset < 16; offset += width)
      for (uint32_t count = 1; count < 70; count += 17) {
        memset(bytes, 0xee, 4096);
        CHECK(enqueue(slot, KIND_FILL, (uint64_t)(uintptr_t)(bytes + offset), 0xa1b2c3d4, width, count) == 0);
        synchronize(slot);
        for (uint32_t i = 0; i < 4096; i++) {
          bool inside = i >= offset && i < offset + width * count;
          uint32_t shift = (i - offset) % width * 8;
          CHECK(bytes[i] == (inside ? (unsigned char)(0xa1b2c3d4u >> shift) : 0xee));
        }
      }
  CHECK(hal_cpu_stream_destroy((uint32_t)slot) == 0);
  hal_cpu_free(bytes);
}

/* Transfers that are shared out over the pool. */
static void large(void) {
  enum { BYTES = 9 * 1024 * 1024 + 12 };
  int slot = hal_cpu_stream_create(3);
  unsigned char *one = hal_cpu_allocate(BYTES), *two = hal_cpu_allocate(BYTES);
  CHECK(enqueue(slot, KIND_FILL, (uint64_t)(uintptr_t)one, 0x01020304, 4, BYTES / 4) == 0);
  CHECK(enqueue(slot, KIND_COPY, (uint64_t)(uintptr_t)two, (uint64_t)(uintptr_t)one, BYTES, 0) == 0);
  synchronize(slot);
  for (uint32_t i = 0; i < BYTES; i++) CHECK(two[i] == 4 - i % 4);
  CHECK(hal_cpu_stream_destroy((uint32_t)slot) == 0);
  hal_cpu_free(one);
  hal_cpu_free(two);
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
/* The sanitizers do not follow a thread from stack to stack without being told. */
static void barriers(void) {
  int slot = hal_cpu_stream_create(3);
  uint32_t *words = hal_cpu_allocate(WORDS * 4);
  for (uint32_t i = 0; i < WORDS; i++) words[i] = i;
  void *arguments[] = {&words};
  for (int round = 0; round < 20; round++) CHECK(launch(slot, &turn, WORDS / 64, 0, arguments) == 0);
  synchronize(slot);
  uint32_t expected[64], before[64];
  for (uint32_t i = 0; i < 64; i++) expected[i] = i;
  for (int round = 0; round < 20; round++) {
    memcpy(before, expected, sizeof before);
    for (uint32_t i = 0; i < 64; i++)
      if (i != 7) expected[i] += before[(i + 1) % 64];
  }
  for (uint32_t i = 0; i < 64; i++) CHECK(words[i] == expected[i]);
  void *event = (void *)(uintptr_t)1, *later = (void *)(uintptr_t)2, *stream = (void *)(uintptr_t)slot;
  memset(words, 0, 64 * 4);
  words[63] = PART;
  CHECK(launch(slot, &turn, 1, 0, arguments) == 0 && hal_cpu_record_event(event, stream) == 0);
  CHECK(launch(slot, &turn, 1, 0, arguments) == 0 && hal_cpu_record_event(later, stream) == 0);
  synchronize(slot);
  CHECK(hal_cpu_query_event(event) == EFAULT && hal_cpu_query_event(later) == EFAULT);
  uint64_t sequence = atomic_load(&progress[slot].fault);
  char text[1024];
  hal_cpu_fault((uint32_t)slot, sequence - 1, text, sizeof text);
  CHECK(!*text);
  hal_cpu_fault((uint32_t)slot, sequence, text, sizeof text);
  CHECK(strstr(text, "'turn', block (0, 0, 0): turn.c:2") && strstr(text, "line 1 of turn.c"));
  hal_cpu_forget_faults((uint32_t)slot, sequence);
  CHECK(hal_cpu_query_event(event) == 0 && hal_cpu_query_event(later) == EFAULT);
  CHECK(hal_cpu_stream_destroy((uint32_t)slot) == 0);
  CHECK(hal_cpu_query_event(later) == 0);
  hal_cpu_free(words);
}
#else
static void barriers(void) { (void)turn; }
#endif

#include "graph_test.h"

/* The functions of the call table: events order streams, and work is what a mailbox would ask for. */
static void *as_handle(uint64_t number) { return (void *)(uintptr_t)number; }

static void call_table(void) {
  int one = hal_cpu_stream_create(2), two = hal_cpu_stream_create(1);
  unsigned char *bytes = hal_cpu_allocate(4096);
  uint32_t *words = hal_cpu_allocate(4096);
  void *held = as_handle(one), *other = as_handle(two), *event = as_handle(7), *last = as_handle(8);
  events[7] = events[8] = 1;
  CHECK(hal_cpu_query_event(event) == 0 && hal_cpu_wait_event(other, event, 0) == 0);
  uint64_t before = published(two);
  memset(bytes, 0, 4096);
  memset(words, 0, 4096);
  CHECK(enqueue(one, KIND_CALL, (uint64_t)(uintptr_t)hold, 0, 0, 0) == 0);
  CHECK(hal_cpu_fill_8((uintptr_t)bytes, 0xa1, 5, held) == 0);
  CHECK(hal_cpu_fill_16((uintptr_t)bytes + 6, 0xb1b2, 3, held) == 0);
  CHECK(hal_cpu_fill_32((uintptr_t)bytes + 12, 0xc1c2c3c4, 2, held) == 0);
  CHECK(hal_cpu_fill_32((uintptr_t)words, 3, 256, held) == 0);
  CHECK(hal_cpu_record_event(event, held) == 0 && hal_cpu_query_event(event) == NOT_READY);
  CHECK(hal_cpu_wait_event(held, event, 0) == 0 && published(one) == events[7] >> 16); /* its own stream */
  CHECK(hal_cpu_wait_event(other, event, 0) == 0 && published(two) == before + 1);
  CHECK(hal_cpu_record_event(event, other) == 0); /* the wait has the record before */
  uint32_t value = 4;
  void *arguments[] = {&words, &value};
  CHECK(hal_cpu_launch((void *)&add, 4, 1, 1, 64, 1, 1, 100, other, arguments, NULL) == 0);
  value = 0; /* the arguments were copied */
  begin_graph();
  uint32_t more = 5;
  void *others[] = {&words, &more};
  set_launch(add_node(KIND_LAUNCH), &add, 4, others);
  struct instance *instance = end_graph(0);
  CHECK(hal_cpu_launch_graph(instance, other) == 0);
  CHECK(hal_cpu_record_event(last, other) == 0 && hal_cpu_query_event(last) == NOT_READY);
  CHECK(words[0] == 0);
  sem_post(&gate);
  synchronize(two);
  CHECK(hal_cpu_query_event(last) == 0 && hal_cpu_query_event(event) == 0);
  static const unsigned char expected[] = {0xa1, 0xa1, 0xa1, 0xa1, 0xa1, 0,    0xb2, 0xb1, 0xb2, 0xb1, 0xb2,
                                           0xb1, 0xc4, 0xc3, 0xc2, 0xc1, 0xc4, 0xc3, 0xc2, 0xc1, 0};
  CHECK(memcmp(bytes, expected, sizeof expected) == 0);
  for (int i = 0; i < 256; i++) CHECK(words[i] == 12);
  CHECK(hal_cpu_wait_event(other, event, 1) == EINVAL);
  CHECK(hal_cpu_launch((void *)&add, 1, 1, 1, 64, 1, 1, 0, other, arguments, arguments) == EINVAL);
  events[7] = ENDED;
  CHECK(hal_cpu_wait_event(other, event, 0) == EINVAL && hal_cpu_query_event(event) == EINVAL);
  CHECK(published(two) == before + 3);
  hal_cpu_graph_instance_destroy(instance);
  CHECK(hal_cpu_stream_destroy((uint32_t)one) == 0 && hal_cpu_stream_destroy((uint32_t)two) == 0);
  hal_cpu_free(bytes);
  hal_cpu_free(words);
}

/* A kernel whose blocks from the `from`-th on wait for the gate. */
static _Atomic bool is_open;
static void held_run(const struct hal_launch *launch, struct hal_worker *worker, unsigned long long first,
                     unsigned long long last) {
  const uint64_t from = *(const uint64_t *)launch->arguments;
  (void)worker;
  for (unsigned long long i = first; i < last; i++) {
    for (volatile int delay = 0; delay < 500; delay++) {
    }
    while (i >= from && !atomic_load(&is_open)) sched_yield();
  }
}
static const struct hal_kernel held = {HAL_IMAGE_ABI, 0, "held", held_run, 1024, 0, 8, 1, add_sizes, add_offsets};

/* A thread that awaits work for both processors sleeps; one that awaits work for one of them looks. */
static void awaited(bool is_wide) {
  enum { BLOCKS = 4096, NOBODY = 8 };
  int slot = hal_cpu_stream_create(2);
  void *event = (void *)NOBODY, *stream = (void *)(uintptr_t)slot;
  uint64_t from = is_wide ? BLOCKS / 2 : 0;
  void *arguments[] = {&from};
  atomic_store(&is_open, false);
  CHECK(hal_cpu_record_event(event, stream) == 0 && hal_cpu_await_event(event, 0) == 0);
  CHECK(hal_cpu_launch((void *)&held, is_wide ? BLOCKS : 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL) == 0);
  CHECK(hal_cpu_record_event(event, stream) == 0);
  while (is_wide && atomic_load(&pool.wide) == 0) sched_yield();
  CHECK(hal_cpu_await_event(event, 1000000) == NOT_READY);
  /* Who sleeps has said of which record it is to be told. */
  CHECK(atomic_load(&watches[slot].wake_at) == (is_wide ? published(slot) : UINT64_MAX));
  atomic_store(&is_open, true);
  synchronize(slot);
  CHECK(hal_cpu_await_event(event, 1000000) == 0 && atomic_load(&pool.wide) == 0);
  events[NOBODY] = ENDED;
  CHECK(hal_cpu_await_event(event, 1000000) == EINVAL);
  CHECK(hal_cpu_stream_destroy((uint32_t)slot) == 0);
}

/* What a stream's worker and a thread that waits run in turn: each once, and one after the other. */
static _Atomic uint64_t begun, ended;
static _Atomic int inside;
static uint64_t helped, refused;
static int shared(void *argument, int helps) {
  uint64_t number = (uint64_t)(uintptr_t)argument;
  CHECK(atomic_fetch_add(&inside, 1) == 0 && atomic_load(&ended) == number);
  bool is_first = atomic_load(&begun) == number;
  if (is_first) atomic_fetch_add(&begun, 1);
  bool is_done = !helps || number % 3; /* some the worker has to end */
  helped += helps && is_done, refused += !is_done;
  if (is_done) atomic_fetch_add(&ended, 1);
  atomic_fetch_sub(&inside, 1);
  return is_done;
}

static void helpers(void) {
  int slot = hal_cpu_stream_create(1);
  void *event = (void *)9, *stream = (void *)(uintptr_t)slot;
  atomic_store(&begun, 0), atomic_store(&ended, 0), helped = refused = 0;
  for (uint64_t count = 0; count < ROUNDS || !helped || !refused;) {
    for (uint32_t row = roll(5); row < 5; row++)
      CHECK(hal_cpu_call(stream, shared, (void *)(uintptr_t)count++) == 0);
    CHECK(hal_cpu_record_event(event, stream) == 0);
    if (roll(2)) CHECK(enqueue(slot, KIND_EMPTY, 0, 0, 0, 0) == 0);
    while (hal_cpu_await_event(event, 1000000)) continue;
    CHECK(atomic_load(&ended) == count && atomic_load(&begun) == count);
  }
  synchronize(slot);
  CHECK(hal_cpu_stream_destroy((uint32_t)slot) == 0);
}

int main(void) {
  hal_cpu_start(2);
  for (int i = 0; i < 3; i++) {
    chain();
    parties();
  }
  backlog();
  patterns();
  large();
  barriers();
  graphs();
  call_table();
  awaited(true);
  awaited(false);
  helpers();
  for (int i = 0; i < 3; i++) graph_parties();
  CHECK(hal_cpu_allocate(UINT64_MAX) == NULL);
  /* Ends with a stream that still has work. */
  int slot = hal_cpu_stream_create(1);
  CHECK(enqueue(slot, KIND_CALL, (uint64_t)(uintptr_t)hold, 0, 0, 0) == 0);
  puts("done");
  return 0;
}
