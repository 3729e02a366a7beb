/* The engine of gpusim: streams, events, memory, graphs and faults of a GPU driver, in software.
 *
 * Knows neither CUDA nor HIP: a face (cuda*.c) translates. Status codes are the numbers that
 * CUresult and hipError_t share. Every function takes the engine's one lock itself unless its
 * comment says "lock held". */
#ifndef GPUSIM_SIM_H
#define GPUSIM_SIM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "image.h"

#define SIM_EXPORT __attribute__((visibility("default")))
#define SIM_MAX_DEVICES 8

enum sim_status {
  SIM_OK = 0,
  SIM_INVALID_VALUE = 1,
  SIM_OUT_OF_MEMORY = 2,
  SIM_NOT_INITIALIZED = 3,
  SIM_NO_DEVICE = 100,
  SIM_INVALID_DEVICE = 101,
  SIM_INVALID_IMAGE = 200,
  SIM_INVALID_CONTEXT = 201,
  SIM_NO_BINARY = 209,
  SIM_PEER_UNSUPPORTED = 217,
  SIM_INVALID_HANDLE = 400,
  SIM_NOT_FOUND = 500,
  SIM_NOT_READY = 600,
  SIM_ILLEGAL_ADDRESS = 700,
  SIM_OUT_OF_RESOURCES = 701,
  SIM_PEER_ALREADY_ENABLED = 704,
  SIM_PEER_NOT_ENABLED = 705,
  SIM_ALREADY_REGISTERED = 712,
  SIM_NOT_REGISTERED = 713,
  SIM_LAUNCH_FAILED = 719,
  SIM_NOT_PERMITTED = 800,
  SIM_NOT_SUPPORTED = 801,
  SIM_UPDATE_FAILURE = 910,
};

/* Objects. Their structs are never freed, so that a destroyed handle is known for what it is. */

enum sim_type { SIM_STREAM = 1, SIM_EVENT, SIM_GRAPH, SIM_NODE, SIM_EXEC, SIM_MODULE, SIM_KERNEL, SIM_POOL };

struct sim_point { /* a place in a stream: the work up to and with `sequence` */
  struct sim_stream *stream;
  uint64_t sequence;
};

enum sim_memory { SIM_DEVICE = 1, SIM_HOST, SIM_MANAGED, SIM_REGISTERED, SIM_GLOBAL };

struct sim_block { /* an allocation, registered host memory, or a module's global */
  char *base;
  size_t size;
  char *map;
  size_t map_size;
  enum sim_memory memory;
  int device;
  unsigned flags;
  unsigned ordinal;
  struct sim_pool *pool;  /* of a stream-ordered allocation, else NULL */
  struct sim_module_handle *module;
  bool freeing;           /* a stream-ordered free is enqueued */
  struct sim_block *next; /* in quarantine */
};

struct sim_pool {
  int device;
  bool is_default;
  unsigned access; /* bit i: device i may use its memory */
  uint64_t attributes[9];
};

struct sim_launch { /* immutable and counted */
  int references;
  struct sim_kernel *kernel;
  unsigned grid[3], block[3], shared;
  void *arguments;
};

struct sim_copy {
  char *target;
  const char *source;
  size_t width, height, depth, target_pitch, source_pitch, target_slice, source_slice;
};

struct sim_set {
  char *target;
  uint32_t value;
  unsigned element;
  size_t count, rows, pitch;
};

struct sim_value {
  void *address;
  uint64_t value;
  unsigned width, condition; /* condition: 0 >=, 1 ==, 2 &, 3 nor */
};

enum sim_op_kind {
  SIM_OP_EMPTY,
  SIM_OP_COPY,
  SIM_OP_SET,
  SIM_OP_HOST,
  SIM_OP_KERNEL,
  SIM_OP_WAIT,
  SIM_OP_RECORD,
  SIM_OP_GRAPH,
  SIM_OP_ALLOC,
  SIM_OP_FREE,
  SIM_OP_WRITE_VALUE,
  SIM_OP_WAIT_VALUE,
  SIM_OP_CHILD,
};

struct sim_op {
  enum sim_op_kind kind;
  union {
    struct sim_copy copy;
    struct sim_set set;
    struct { void (*function)(void *); void *argument; } host;
    struct sim_launch *launch;
    struct sim_point wait;
    struct { struct sim_event *event; uint64_t record; } record;
    struct sim_run *run;
    struct sim_block *block;
    struct sim_value value;
    struct sim_graph *child;
  };
};

struct sim_queued {
  struct sim_queued *next;
  uint64_t sequence;
  struct sim_op op;
};

struct sim_item { /* what a scheduler runs in one go: a stream's head, or a node of the graph at its head */
  struct sim_stream *stream;
  struct sim_run *run;
  int node;
};

struct sim_stream {
  int device;
  unsigned ordinal;
  bool blocking; /* synchronises with the legacy default stream */
  bool internal; /* a default stream */
  int priority;
  bool destroyed;
  bool active; /* its head is being run */
  bool parked; /* its thread sleeps although there is a head */
  bool started, asleep;
  bool granted; /* stepped: its thread is to run `grant` */
  struct sim_item grant;
  struct sim_queued *head, *tail;
  uint64_t enqueued, completed;
  size_t freeing; /* bytes of stream-ordered frees enqueued here and not yet run */
  pthread_cond_t wake;
  struct sim_stream *next;
};

struct sim_event {
  int device;
  bool timing, blocking_sync;
  unsigned ordinal;
  bool recorded;
  struct sim_point point;
  uint64_t record; /* counts the records */
  uint64_t time;   /* nanoseconds when the last one ran, 0 before */
};

struct sim_module_handle {
  struct sim_module *image;
  int device;
  int pending; /* kernels of it in queues */
  bool unloaded;
  struct sim_kernel *kernels;
};

struct sim_kernel {
  struct sim_function *function;
  struct sim_module_handle *module;
  const char *name;
  int device;
  unsigned dynamic_limit;
  int cache_preference, carveout;
  unsigned parameters;
  size_t argument_bytes;
  struct sim_kernel *next;
};

struct sim_node {
  struct sim_graph *graph;
  unsigned long id;
  int index;
  int device;
  struct sim_op op;
  struct sim_node **dependencies;
  int dependency_count;
};

struct sim_graph {
  struct sim_node **nodes;
  int count, capacity;
  int device;
  unsigned ordinal;
};

struct sim_plan { /* what an instance runs: immutable while a launch holds it, and counted */
  int references;
  int count;
  struct sim_op *ops;
  unsigned long *ids;
  int *indegree;
  int *first, *successors; /* of node i: successors[first[i]] up to successors[first[i + 1]] */
};

struct sim_exec {
  struct sim_plan *plan;
  int device;
  unsigned ordinal;
  int pending;
  struct sim_point last;
  int using; /* threads inside an update or a launch */
};

struct sim_run { /* one launch of an instance */
  struct sim_exec *exec;
  struct sim_plan *plan;
  struct sim_stream *stream;
  uint64_t sequence;
  struct sim_point before; /* the launch of the same instance before this one */
  bool threaded; /* free mode: its stream's thread sees it through */
  int *waiting; /* dependencies that have not ended, per node */
  int *ready;
  int ready_count, remaining, running;
  struct sim_run *next;
};

struct sim_device {
  int error; /* sticky */
  int retained;
  size_t used, total;
  unsigned peers; /* bit i: may use memory of device i */
  struct sim_stream *legacy, *per_thread;
  struct sim_pool *default_pool, *pool;
};

struct sim_state {
  pthread_mutex_t lock;
  pthread_cond_t changed; /* something completed, failed or was enqueued; for waiters */
  int waiters;
  int device_count;
  struct sim_device devices[SIM_MAX_DEVICES];
  struct sim_stream *streams;
  struct sim_run *runs; /* begun graph launches */
  bool initialized, forked;
  bool stepped, strict, stepping;
  uint64_t seed;
  unsigned launch_limit, tick_ms, jitter_us, long_ms, stuck_s;
  unsigned ordinals[16];
  unsigned long calls, steps, blocked;
  char **environment;
};
extern struct sim_state sim;

/* state.c: set-up, devices, sticky errors */
void sim_lock(void);
void sim_unlock(void);
int sim_initialize(void);
uint64_t sim_hash(uint64_t a, uint64_t b, uint64_t c);
uint64_t sim_now(void);
long sim_setting(const char *name, long otherwise);
void sim_fail_device(int device, int code, const char *why); /* lock held */
bool sim_strict_about(const struct sim_device *device);

/* handles.c */
void sim_handle_add(void *handle, enum sim_type type);
void sim_handle_kill(void *handle);
bool sim_handle_alive(const void *handle, enum sim_type type); /* aborts on a dead one when strict */
bool sim_handle_was(const void *handle, enum sim_type type);   /* alive or dead */
int sim_live_handles(char *text, size_t size, int device);     /* live objects, named in text; lock held */

/* history.c */
void sim_log(const struct sim_stream *stream, uint64_t sequence, int node, char phase, const struct sim_op *op); /* lock held */
void sim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));                                 /* lock held */
size_t sim_history(const struct sim_stream *stream, int last, char *text, size_t size); /* lock held */
_Noreturn void sim_abort(const struct sim_stream *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *sim_op_name(enum sim_op_kind kind);

/* faults.c: entered at the top of every call of a face */
struct sim_site {
  const char *name;
  unsigned long calls;
  struct sim_site *next;
  bool listed;
};
enum {
  SIM_NEEDS_NOTHING = 0,
  SIM_NEEDS_INIT = 1,
  SIM_NEEDS_CONTEXT = 3,
  SIM_WANTS_CONTEXT = 5, /* a driver takes it from the handle; strict, the thread has to have bound one */
  SIM_ALLOWED_IN_HOST = 8,
  SIM_ALLOWED_AFTER_ERROR = 16,
};
int sim_enter(struct sim_site *site, int device, unsigned needs); /* device: the current one, or -1 */
extern __thread int sim_in_host_function;

/* memory.c */
int sim_allocate(struct sim_block **out, size_t size, enum sim_memory memory, int device, unsigned flags);
int sim_free(void *address, enum sim_memory memory, int device);
int sim_register(void *address, size_t size, int device, unsigned flags);
int sim_unregister(void *address, int device); /* device: the calling thread's, or -1 */
struct sim_block *sim_find(const void *address);           /* lock held */
bool sim_within(const void *address, size_t size);         /* lock held: inside one live block */
bool sim_is_pageable(const void *address);                 /* lock held */
bool sim_may_use(int device, const struct sim_block *block); /* lock held */
struct sim_block *sim_next_global(const char *after, const struct sim_module_handle *module); /* lock held */
void sim_block_add(struct sim_block *block);               /* lock held */
void sim_block_remove(struct sim_block *block);            /* lock held */
int sim_map_block(struct sim_block *block, bool accessible); /* no lock */
void sim_unmap_block(struct sim_block *block);             /* lock held */
void sim_poison(struct sim_block *block);
int sim_reserve(int device, size_t size, size_t pending);  /* lock held: against the limit */

/* pools.c */
struct sim_pool *sim_pool_new(int device, bool is_default); /* lock held */
int sim_pool_allocate(void **address, size_t size, struct sim_pool *pool, struct sim_stream *stream);
int sim_pool_free(void *address, struct sim_stream *stream);
void sim_pool_ran(const struct sim_op *op, struct sim_stream *stream); /* lock held: an ALLOC or FREE runs */
int sim_pool_destroy(struct sim_pool *pool);

/* streams.c */
int sim_stream_create(struct sim_stream **out, int device, bool blocking, int priority);
int sim_stream_destroy(struct sim_stream *stream);
int sim_enqueue(struct sim_stream *stream, const struct sim_op *op, struct sim_point *out);
int sim_enqueue_locked(struct sim_stream *stream, const struct sim_op *op, struct sim_point *out);
int sim_stream_query(struct sim_stream *stream);
int sim_stream_synchronize(struct sim_stream *stream);
int sim_device_synchronize(int device);
int sim_device_synchronize_locked(int device);
int sim_point_synchronize(struct sim_point point);
bool sim_done(struct sim_point point); /* lock held */
int sim_wait(bool (*condition)(void *), void *argument, int device); /* lock held, let go while waiting */
void sim_complete_head(struct sim_stream *stream); /* lock held */
void sim_changed(void);                            /* lock held: wakes whoever may go on now */
struct sim_stream *sim_default_stream(int device, bool per_thread);

/* schedule.c */
bool sim_head_ready(const struct sim_stream *stream); /* lock held */
bool sim_step(void);                /* lock held, let go while it runs; false: nothing was ready */
void sim_step_some(void);           /* lock held: before a query answers */
void sim_run_item(struct sim_item item); /* lock held, let go while it runs; the stream is active */
void sim_start_tick(void);

/* ops.c */
int sim_execute(const struct sim_op *op, struct sim_stream *stream); /* no lock */
void sim_op_hold(const struct sim_op *op);    /* lock held */
void sim_op_release(const struct sim_op *op); /* lock held */
void sim_guard_install(void);
void sim_guard_thread(void);

/* events.c */
int sim_event_create(struct sim_event **out, int device, bool timing);
int sim_event_destroy(struct sim_event *event);
int sim_event_record(struct sim_event *event, struct sim_stream *stream);
int sim_event_wait(struct sim_stream *stream, struct sim_event *event);
int sim_event_query(struct sim_event *event);
int sim_event_synchronize(struct sim_event *event);
int sim_event_elapsed(float *milliseconds, struct sim_event *start, struct sim_event *end);

/* kernels.c */
int sim_module_load(struct sim_module_handle **out, const void *image, size_t size, int device, char *why, size_t why_size);
int sim_module_unload(struct sim_module_handle *module);
int sim_module_kernel(struct sim_kernel **out, struct sim_module_handle *module, const char *name);
int sim_module_kernel_at(struct sim_kernel **out, struct sim_module_handle *module, unsigned index);
int sim_module_global(void **address, size_t *size, struct sim_module_handle *module, const char *name);
int sim_launch_new(struct sim_launch **out, struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                   unsigned shared, void **parameters, const void *packed, size_t packed_size);
int sim_run_launch(const struct sim_launch *launch, uintptr_t *address); /* no lock; 0, 1 bad address, 2 trap, or a status */
int sim_occupancy(const struct sim_kernel *kernel, unsigned threads, size_t shared);

/* transfers.c */
int sim_check_copy(const struct sim_copy *copy, bool target_device, bool source_device); /* lock held */
int sim_check_set(const struct sim_set *set);                                            /* lock held */
int sim_copy(struct sim_stream *stream, const struct sim_copy *copy, bool target_device, bool source_device, bool synchronous);
int sim_set(struct sim_stream *stream, const struct sim_set *set);
int sim_value_op(struct sim_stream *stream, enum sim_op_kind kind, const struct sim_value *value);

/* graphs.c */
int sim_graph_create(struct sim_graph **out, int device);
int sim_graph_destroy(struct sim_graph *graph);
int sim_graph_add(struct sim_node **out, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count,
                  const struct sim_op *op);
int sim_graph_depend(struct sim_graph *graph, struct sim_node *const *from, struct sim_node *const *to, size_t count);
int sim_graph_clone(struct sim_graph **out, struct sim_graph *graph);
int sim_node_set(struct sim_node *node, const struct sim_op *op);
int sim_node_destroy(struct sim_node *node);

/* plans.c */
int sim_exec_create(struct sim_exec **out, struct sim_graph *graph);
int sim_exec_destroy(struct sim_exec *exec);
int sim_exec_set(struct sim_exec *exec, struct sim_node *node, const struct sim_op *op);
int sim_exec_update(struct sim_exec *exec, struct sim_graph *graph, int *result, struct sim_node **node);
int sim_exec_launch(struct sim_exec *exec, struct sim_stream *stream);
void sim_plan_release(struct sim_plan *plan); /* lock held */

/* runs.c: launched graphs */
void sim_run_begin(struct sim_run *run, bool threaded); /* lock held */
void sim_run_all(struct sim_run *run);                  /* lock held, let go meanwhile: free mode */
int sim_run_take(struct sim_run *run, int position);    /* lock held: a node out of the ready ones */
bool sim_run_ended(struct sim_run *run, int node);      /* lock held: whether it was the last */
void sim_run_free(struct sim_run *run);                 /* lock held */
void sim_start_thread(void *(*body)(void *), void *argument);

#endif
