/* The engine's data: devices, streams, operations, events, memory, graphs, and the state that holds
 * them. Its one lock guards all of it. */
#ifndef GPUSIM_SIM_TYPES_H
#define GPUSIM_SIM_TYPES_H

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
  SIM_ILLEGAL_STATE = 401,
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
  SIM_CAPTURE_UNSUPPORTED = 900,
  SIM_CAPTURE_INVALIDATED = 901,
  SIM_CAPTURE_MERGE = 902,
  SIM_CAPTURE_UNMATCHED = 903,
  SIM_CAPTURE_UNJOINED = 904,
  SIM_CAPTURE_ISOLATION = 905,
  SIM_CAPTURE_IMPLICIT = 906,
  SIM_CAPTURED_EVENT = 907,
  SIM_CAPTURE_WRONG_THREAD = 908,
};

/* Objects. Their structs are never freed, so that a destroyed handle is known for what it is. */

enum sim_type { SIM_STREAM = 1, SIM_EVENT, SIM_GRAPH, SIM_NODE, SIM_EXEC, SIM_MODULE, SIM_KERNEL, SIM_POOL };

struct sim_point { /* a place in a stream: the work up to and with `sequence` */
  struct sim_stream *stream;
  uint64_t sequence;
};

struct sim_reach { /* how far another stream comes before a place; by events alone, which a driver knows of */
  struct sim_stream *stream;
  uint64_t sequence, by_events;
};

struct sim_order { /* places that come before one, the last of each stream */
  struct sim_reach *points;
  int count, capacity;
};

struct sim_written { /* the last write of a number that was enqueued for a place in memory */
  void *address;
  struct sim_point point;
  uint64_t value;
  struct sim_order before;
  struct sim_written *next;
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
  size_t held;            /* bytes of the pool that it takes */
  struct sim_point born;  /* where its memory opens */
  struct sim_module_handle *module;
  bool freeing;           /* a stream-ordered free is enqueued */
  bool opened, unmapped;
  bool is_foreign;        /* another process's, opened here */
  int file;               /* with its pages, once another process may open it; else 0 */
  struct sim_block *next; /* in quarantine */
};

struct sim_pool {
  int device;
  bool is_default;
  bool destroyed;
  unsigned access; /* bit i: device i may use its memory */
  uint64_t attributes[9];
  struct sim_spare *spares; /* what was freed and is held, the oldest first */
  struct sim_pool *next;
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
  size_t size;
};

struct sim_set {
  char *target;
  uint32_t value;
  unsigned element;
  size_t count;
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
};

struct sim_op {
  enum sim_op_kind kind;
  bool is_off; /* a disabled node: it only orders */
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
  };
};

struct sim_queued {
  struct sim_queued *next;
  uint64_t sequence;
  struct sim_op op;
};

enum sim_capture_mode { SIM_CAPTURE_GLOBAL, SIM_CAPTURE_THREAD_LOCAL, SIM_CAPTURE_RELAXED };

struct sim_capture { /* of one stream, and of those that it drew in; kept for the events recorded in it */
  struct sim_stream *origin; /* NULL once it has ended */
  struct sim_graph *graph;
  enum sim_capture_mode mode;
  const void *thread; /* who began it */
  bool invalidated;
  struct sim_capture *next;
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
  bool destroyed;
  bool active; /* its head is being run */
  bool parked; /* its thread sleeps although there is a head */
  bool started, asleep;
  bool granted; /* stepped: its thread is to run `grant` */
  struct sim_item grant;
  struct sim_queued *head, *tail;
  uint64_t enqueued, completed;
  struct sim_capture *capture;  /* that it is part of, or NULL */
  struct sim_node **after;      /* in a capture: what its next node depends on */
  int after_count;
  bool joined;                  /* in a capture: its origin has waited for all of it */
  struct sim_order before;      /* what other streams' work its end waits for */
  pthread_cond_t wake;
  struct sim_stream *next;
};

struct sim_event {
  int device;
  bool timing;
  unsigned ordinal;
  bool recorded;
  struct sim_point point;
  struct sim_order before;     /* what the last record comes behind */
  struct sim_capture *capture; /* that the last record went into, or NULL */
  struct sim_stream *captured; /* on this stream of it */
  struct sim_node **after;     /* behind these nodes of it */
  int after_count;
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
  struct sim_pool *pools;
  struct sim_written *written;
  bool pooled;          /* some pool was allocated from */
  bool whole_blocks;    /* pools are AMD's: see pools.c */
  struct sim_capture *captures; /* under way */
  bool initialized, forked;
  bool stepped, strict, stepping, abort_on_blocked;
  uint64_t seed;
  unsigned launch_limit, tick_ms, jitter_us, pause_us, long_ms, stuck_s;
  unsigned ordinals[16];
  unsigned long calls, steps, blocked;
};

#endif
