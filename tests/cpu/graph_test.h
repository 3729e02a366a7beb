/* Exercises graphs from C; part of runtime_test.c. */

/* Building */

enum { MAX_NODES = 20002, MAX_EDGES = 40004 };
static struct order orders[MAX_NODES];
static uint32_t degrees[MAX_NODES], edges[MAX_EDGES], node_count, edge_count;

static void begin_graph(void) { node_count = edge_count = 0; }

static struct order *add_node(uint64_t kind) {
  struct order *order = &orders[node_count];
  memset(order, 0, sizeof *order);
  order->kind = kind;
  degrees[node_count++] = 0;
  return order;
}

static void add_fill(uint32_t *target, uint32_t value, uint64_t count) {
  uint64_t words[] = {(uint64_t)(uintptr_t)target, value, 4, count};
  memcpy(add_node(KIND_FILL)->words, words, sizeof words);
}

static void add_copy(uint32_t *target, const uint32_t *source, uint64_t size) {
  uint64_t words[] = {(uint64_t)(uintptr_t)target, (uint64_t)(uintptr_t)source, size};
  memcpy(add_node(KIND_COPY)->words, words, sizeof words);
}

static void set_launch(struct order *order, const struct hal_kernel *kernel, uint32_t blocks, void *const *arguments) {
  *order = (struct order){.kind = KIND_LAUNCH};
  order->launch.kernel = kernel;
  order->launch.arguments = arguments;
  for (int i = 0; i < 3; i++) order->launch.grid[i] = order->launch.block[i] = 1;
  order->launch.grid[0] = blocks;
  order->launch.block[0] = 64;
}

static void set_indirect(struct order *order, const struct hal_kernel *kernel, const uint32_t *counts,
                         void *const *arguments) {
  set_launch(order, kernel, 1, arguments);
  order->kind = KIND_INDIRECT;
  order->launch.counts = counts;
}

static void after(uint32_t node) { /* lets the newest node depend on another */
  edges[edge_count++] = node;
  degrees[node_count - 1]++;
}

static struct instance *end_graph(uint64_t order_seed) {
  int error = -1;
  struct graph *graph = hal_cpu_graph_create(node_count, orders, degrees, edges, &error);
  CHECK(graph && error == 0);
  struct instance *instance = hal_cpu_graph_instantiate(graph, order_seed);
  CHECK(instance);
  hal_cpu_graph_destroy(graph);
  return instance;
}

static void launch_graph(int slot, struct instance *instance) {
  CHECK(enqueue(slot, KIND_GRAPH, (uint64_t)(uintptr_t)instance, 0, 0, 0) == 0);
}

static int update_node(struct instance *instance, uint32_t index, const struct order *order, bool copy) {
  struct update update = {*order, instance, index, copy};
  return hal_cpu_graph_update(&update);
}

/* Kernels by hand */

struct mix_arguments {
  uint32_t *target;
  const uint32_t *source;
  uint32_t value;
};
static const unsigned int mix_sizes[] = {8, 8, 4}, mix_offsets[] = {0, 8, 16};
static void mix_run(const struct hal_launch *launch, struct hal_worker *worker, unsigned long long first,
                    unsigned long long last) {
  const struct mix_arguments *mix = launch->arguments;
  (void)worker;
  for (unsigned long long i = first; i < last; i++)
    mix->target[i] = mix->target[i] * 3 + mix->source[i] + mix->value;
}
static const struct hal_kernel mix = {HAL_IMAGE_ABI, 0, "mix", mix_run, 1024, 0, 20, 3, mix_sizes, mix_offsets};

/* Raises one flag and waits for another, for a while. */
struct meet_arguments {
  _Atomic uint32_t *mine, *theirs;
  uint32_t *met;
};
static const unsigned int meet_sizes[] = {8, 8, 8}, meet_offsets[] = {0, 8, 16};
static void meet_run(const struct hal_launch *launch, struct hal_worker *worker, unsigned long long first,
                     unsigned long long last) {
  const struct meet_arguments *meet = launch->arguments;
  (void)worker, (void)first, (void)last;
  atomic_store(meet->mine, 1);
  int64_t end = now_ns() + 10000000000;
  while (!atomic_load(meet->theirs) && now_ns() < end) sched_yield();
  *meet->met = atomic_load(meet->theirs);
}
static const struct hal_kernel meet = {HAL_IMAGE_ABI, 0, "meet", meet_run, 1024, 0, 24, 3, meet_sizes, meet_offsets};

/* Random graphs over a few rows, ordered by what they read and write and by
 * nothing else; what they must come to is computed one node after another.
 * Parameters change between launches, some of which still wait or run. */
enum { ROWS = 8, WIDE = 16, NODES = 120, LAUNCHES = 25 };
static void random_graphs(int slot) {
  static uint32_t model[ROWS][WIDE], values[NODES];
  static int targets[NODES], sources[NODES], kinds[NODES];
  static uint32_t *pointers[NODES][2];
  static void *arguments[NODES][3];
  uint32_t(*rows)[WIDE] = hal_cpu_allocate(sizeof model);
  for (int round = 0; round < 4; round++) {
    memset(rows, 0, sizeof model);
    memset(model, 0, sizeof model);
    begin_graph();
    for (int i = 0; i < NODES; i++) {
      int to = targets[i] = (int)roll(ROWS), from = sources[i] = (to + 1 + (int)roll(ROWS - 1)) % ROWS;
      values[i] = roll(1000);
      pointers[i][0] = rows[to], pointers[i][1] = rows[from];
      arguments[i][0] = &pointers[i][0], arguments[i][1] = &pointers[i][1], arguments[i][2] = &values[i];
      switch (kinds[i] = (int)roll(4)) {
        case 0: add_fill(rows[to], values[i], WIDE); break;
        case 1: add_copy(rows[to], rows[from], sizeof *rows); break;
        default: set_launch(add_node(KIND_LAUNCH), &mix, WIDE, arguments[i]);
      }
      for (int k = 0; k < i; k++)
        if (targets[k] == to || sources[k] == to || targets[k] == from) after((uint32_t)k);
    }
    struct instance *instance = end_graph(round == 3 ? 77 : 0);
    memset(orders, 0xee, sizeof *orders * NODES);
    for (int turn = 0; turn < LAUNCHES; turn++) {
      launch_graph(slot, instance);
      for (int i = 0; i < NODES; i++)
        for (int w = 0; w < WIDE; w++) {
          uint32_t *to = &model[targets[i]][w], from = model[sources[i]][w];
          *to = kinds[i] == 0 ? values[i] : kinds[i] == 1 ? from : *to * 3 + from + values[i];
        }
      for (uint32_t updates = roll(6); updates > 0; updates--) {
        uint32_t i = roll(NODES);
        if (kinds[i] == 1) continue;
        values[i] = roll(1000);
        struct order order = {.kind = KIND_FILL, .words = {(uint64_t)(uintptr_t)rows[targets[i]], values[i], 4, WIDE}};
        if (kinds[i] > 1) set_launch(&order, &mix, WIDE, arguments[i]);
        int error = update_node(instance, i, &order, false);
        if (error == EBUSY) error = update_node(instance, i, &order, true);
        CHECK(error == 0);
      }
      if (roll(5) == 0) synchronize(slot);
    }
    synchronize(slot);
    CHECK(memcmp(rows, model, sizeof model) == 0);
    hal_cpu_graph_instance_destroy(instance);
  }
  hal_cpu_free(rows);
}

/* Many that depend on one, and one that depends on many. */
static void fans(int slot) {
  enum { FAN = 10000 };
  uint32_t *words = hal_cpu_allocate((FAN + 1) * 4), *copies = hal_cpu_allocate((FAN + 1) * 4);
  memset(words, 0, (FAN + 1) * 4);
  begin_graph();
  add_fill(words, 5, FAN);
  for (uint32_t i = 0; i < FAN; i++) {
    add_copy(&copies[i], &words[i], 4);
    after(0);
  }
  add_copy(words, copies, FAN * 4);
  for (uint32_t i = 0; i < FAN; i++) after(i + 1);
  for (uint32_t i = 0; i < FAN; i++) { /* and once more, without a middle */
    add_fill(&words[i], i, 1);
    after(FAN + 1);
  }
  struct instance *instance = end_graph(0);
  for (int round = 0; round < 3; round++) {
    launch_graph(slot, instance);
    synchronize(slot);
    for (uint32_t i = 0; i < FAN; i++) CHECK(words[i] == i && copies[i] == 5);
    memset(words, 0, FAN * 4);
    memset(copies, 0, FAN * 4);
  }
  hal_cpu_graph_instance_destroy(instance);
  hal_cpu_free(words);
  hal_cpu_free(copies);
}

/* Two nodes that only end well if they run at the same time: alone, or behind a
 * third and before a fourth. */
static void meetings(int slot) {
  static _Atomic uint32_t flags[2];
  uint32_t met[2], both[2];
  _Atomic uint32_t *one = &flags[0], *two = &flags[1];
  uint32_t *met_one = &met[0], *met_two = &met[1];
  void *first[] = {&one, &two, &met_one}, *second[] = {&two, &one, &met_two};
  for (int round = 0; round < 40; round++) {
    bool alone = round % 2;
    atomic_store(one, 0);
    atomic_store(two, 0);
    memset(met, 0, sizeof met);
    memset(both, 0, sizeof both);
    begin_graph();
    if (!alone) add_fill((uint32_t *)flags, 0, 2);
    set_launch(add_node(KIND_LAUNCH), &meet, 1, first);
    if (!alone) after(0);
    set_launch(add_node(KIND_LAUNCH), &meet, 1, second);
    if (!alone) after(0);
    if (!alone) {
      add_copy(both, met, sizeof both);
      after(1);
      after(2);
    }
    struct instance *instance = end_graph((uint64_t)round);
    launch_graph(slot, instance);
    if (!alone) launch_graph(slot, instance);
    synchronize(slot);
    uint32_t *result = alone ? met : both;
    CHECK(result[0] == 1 && result[1] == 1);
    hal_cpu_graph_instance_destroy(instance);
  }
}

/* Forks so short that helpers come and go all the time, and nodes that are shared out themselves. */
static void forks(int slot) {
  enum { DEEP = 300, LARGE = 3 * 1024 * 1024 };
  uint32_t *words = hal_cpu_allocate(4 * 4), *large = hal_cpu_allocate(LARGE * 4), zero = 0, one = 1;
  memset(words, 0, 16);
  void *arguments[] = {&words, &words, &zero}, *large_arguments[] = {&large, &one};
  uint32_t *right = words + 1;
  void *other[] = {&right, &right, &one};
  begin_graph();
  add_node(KIND_EMPTY);
  for (uint32_t i = 0; i < DEEP; i++) {
    uint32_t join = node_count - 1;
    set_launch(add_node(KIND_LAUNCH), &mix, 1, arguments);
    after(join);
    set_launch(add_node(KIND_LAUNCH), &mix, 1, other);
    after(join);
    add_node(KIND_EMPTY);
    after(join + 1);
    after(join + 2);
  }
  add_fill(large, 6, LARGE);
  after(node_count - 2);
  set_launch(add_node(KIND_LAUNCH), &add, LARGE / 64 / 8, large_arguments);
  after(node_count - 2);
  struct instance *instance = end_graph(0);
  uint32_t expected = 0;
  for (int round = 0; round < 10; round++) {
    launch_graph(slot, instance);
    for (int i = 0; i < DEEP; i++) expected = expected * 4 + 1;
  }
  synchronize(slot);
  CHECK(words[0] == 0 && words[1] == expected);
  for (uint32_t i = 0; i < LARGE; i += 7) CHECK(large[i] == (i < LARGE / 8 ? 7 : 6));
  hal_cpu_graph_instance_destroy(instance);
  hal_cpu_free(words);
  hal_cpu_free(large);
}

/* A launch keeps the parameters that it was enqueued with. */
static void versions(int slot) {
  uint32_t *words = hal_cpu_allocate(64 * 4), value = 1;
  memset(words, 0, 64 * 4);
  void *arguments[] = {&words, &value};
  begin_graph();
  set_launch(add_node(KIND_LAUNCH), &add, 1, arguments);
  struct instance *instance = end_graph(0);
  sem_init(&gate, 0, 0);
  CHECK(enqueue(slot, KIND_CALL, (uint64_t)(uintptr_t)hold, 0, 0, 0) == 0);
  struct order order;
  for (value = 2; value <= 32; value *= 2) {
    launch_graph(slot, instance);
    set_launch(&order, &add, 1, arguments);
    CHECK(update_node(instance, 0, &order, false) == EBUSY);
    CHECK(update_node(instance, 0, &order, true) == 0);
    CHECK(update_node(instance, 0, &order, false) == 0); /* ours now */
  }
  launch_graph(slot, instance);
  sem_post(&gate);
  synchronize(slot);
  CHECK(words[0] == 63 && words[63] == 63);
  CHECK(update_node(instance, 0, &order, false) == 0);
  /* What is no update. */
  CHECK(update_node(instance, 1, &order, true) == EINVAL);
  void *none[] = {&words};
  set_launch(&order, &turn, 1, none);
  CHECK(update_node(instance, 0, &order, true) == EINVAL);
  order = (struct order){.kind = KIND_EMPTY};
  CHECK(update_node(instance, 0, &order, true) == EINVAL);
  hal_cpu_graph_instance_destroy(instance);
  hal_cpu_free(words);
}

/* Grids that are read when the launch runs. */
static void indirect(int slot) {
  uint32_t *words = hal_cpu_allocate(256 * 4), *counts = hal_cpu_allocate(12), value = 3;
  memset(words, 0, 256 * 4);
  memset(counts, 0, 12);
  void *arguments[] = {&words, &value};
  begin_graph();
  add_fill(counts, 1, 3);
  set_indirect(add_node(KIND_INDIRECT), &add, counts, arguments); /* 64 words */
  after(0);
  add_fill(counts, 2, 2);
  after(1);
  set_indirect(add_node(KIND_INDIRECT), &add, counts, arguments); /* 256 words */
  after(2);
  add_fill(counts, UINT32_MAX, 2); /* too many, but none in all */
  after(3);
  add_fill(counts + 2, 0, 1);
  after(4);
  set_indirect(add_node(KIND_INDIRECT), &add, counts, arguments); /* none */
  after(5);
  struct instance *instance = end_graph(0);
  launch_graph(slot, instance);
  set_indirect(&mailboxes[slot], &add, counts, arguments);
  CHECK(hal_cpu_enqueue(slot) == 0); /* none */
  synchronize(slot);
  for (uint32_t i = 0; i < 256; i++) CHECK(words[i] == (i < 64 ? 6 : 3));
  set_indirect(&orders[0], &add, counts, arguments);
  CHECK(update_node(instance, 1, &orders[0], false) == 0);
  hal_cpu_graph_instance_destroy(instance);
  hal_cpu_free(words);
  hal_cpu_free(counts);
}

/* On one thread, ready nodes do not run in the order of their numbers. */
static void order_of_one(int slot) {
  uint32_t word = 0;
  uint32_t seen[2][4];
  for (int again = 0; again < 2; again++) {
    begin_graph();
    for (uint32_t i = 0; i < 8; i++) add_fill(&word, i, 1);
    struct instance *plain = end_graph(0), *seeded = end_graph(9);
    launch_graph(slot, plain);
    synchronize(slot);
    CHECK(word == 0);
    for (int round = 0; round < 4; round++) {
      launch_graph(slot, seeded);
      synchronize(slot);
      seen[again][round] = word;
    }
    hal_cpu_graph_instance_destroy(plain);
    hal_cpu_graph_instance_destroy(seeded);
  }
  CHECK(memcmp(seen[0], seen[1], sizeof seen[0]) == 0);
  CHECK(seen[0][0] != seen[0][1] || seen[0][1] != seen[0][2] || seen[0][2] != seen[0][3]);
}

static void no_graphs(void) {
  int error = 0;
  begin_graph();
  add_node(KIND_EMPTY);
  after(0);
  CHECK(!hal_cpu_graph_create(node_count, orders, degrees, edges, &error) && error == EINVAL);
  begin_graph();
  add_node(KIND_CALL);
  CHECK(!hal_cpu_graph_create(node_count, orders, degrees, edges, &error) && error == EINVAL);
}

static void graphs(void) {
  no_graphs();
  for (uint32_t threads = 1; threads <= 3; threads++) {
    int slot = hal_cpu_stream_create(threads);
    begin_graph();
    struct instance *nothing = end_graph(0);
    launch_graph(slot, nothing);
    random_graphs(slot);
    fans(slot);
    forks(slot);
    versions(slot);
    indirect(slot);
    if (threads == 1) order_of_one(slot);
    if (threads > 1) meetings(slot);
    hal_cpu_graph_instance_destroy(nothing);
    CHECK(hal_cpu_stream_destroy((uint32_t)slot) == 0);
  }
}

/* Streams that run graphs at the same time, with the same helpers. */
static struct instance *party_instances[3];
static void *graph_party(void *argument) {
  int me = (int)(intptr_t)argument;
  for (int round = 0; round < 30; round++) launch_graph(shared_slots[me], party_instances[me]);
  synchronize(shared_slots[me]);
  return NULL;
}

static void graph_parties(void) {
  enum { BESIDE = 32, WORDS_EACH = 64 };
  static uint32_t words[3][WORDS_EACH];
  uint32_t *targets[WORDS_EACH], value = 1;
  void *arguments[WORDS_EACH][3];
  pthread_t threads[3];
  memset(words, 0, sizeof words);
  for (int i = 0; i < 3; i++) {
    CHECK((shared_slots[i] = hal_cpu_stream_create(3)) > 0);
    begin_graph();
    for (uint32_t k = 0; k < WORDS_EACH; k++) {
      targets[k] = &words[i][k];
      arguments[k][0] = arguments[k][1] = &targets[k];
      arguments[k][2] = &value;
      set_launch(add_node(KIND_LAUNCH), &mix, 1, arguments[k]);
      if (k >= BESIDE) after(k - BESIDE);
    }
    party_instances[i] = end_graph((uint64_t)i);
  }
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, graph_party, (void *)(intptr_t)i);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  uint32_t expected = 0;
  for (int round = 0; round < 30; round++) expected = expected * 4 + 1;
  for (int i = 0; i < 3; i++) {
    for (uint32_t k = 0; k < WORDS_EACH; k++) CHECK(words[i][k] == expected);
    hal_cpu_graph_instance_destroy(party_instances[i]);
    CHECK(hal_cpu_stream_destroy((uint32_t)shared_slots[i]) == 0);
  }
}
