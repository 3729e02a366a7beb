/* The engine of gpusim: streams, events, memory, graphs and faults of a GPU driver, in software.
 *
 * Knows neither CUDA nor HIP: a face (cuda*.c) translates. Status codes are the numbers that
 * CUresult and hipError_t share. Every function takes the engine's one lock itself unless its
 * comment says "lock held". */
#ifndef GPUSIM_SIM_H
#define GPUSIM_SIM_H

#include "sim_types.h"

extern struct sim_state sim;

/* state.c: set-up, devices, sticky errors */
void sim_lock(void);
void sim_unlock(void);
int sim_initialize(void);
bool sim_is_device(int device);
uint64_t sim_hash(uint64_t a, uint64_t b, uint64_t c);
uint64_t sim_now(void);
long sim_setting(const char *name, long otherwise);
void sim_fail_device(int device, int code, const char *why); /* lock held */
void sim_device_reset(int device); /* the context begins afresh: no error, no objects, no memory */
bool sim_strict_about(const struct sim_device *device);

/* handles.c */
void sim_handle_add(void *handle, enum sim_type type);
void sim_handle_kill(void *handle);
bool sim_handle_alive(const void *handle, enum sim_type type); /* aborts on a dead one when strict */
bool sim_handle_was(const void *handle, enum sim_type type);   /* alive or dead */
void sim_handles_forget(int device);                           /* lock held: all of a device die */
int sim_live_handles(char *text, size_t size, int device);     /* live objects, named in text; lock held */

/* history.c */
void sim_log(const struct sim_stream *stream, uint64_t sequence, int node, char phase, const struct sim_op *op); /* lock held */
void sim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));                                 /* lock held */
size_t sim_history(const struct sim_stream *stream, int last, char *text, size_t size); /* lock held */
_Noreturn void sim_abort(const struct sim_stream *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *sim_op_name(enum sim_op_kind kind);

/* captures.c */
int sim_capture_begin(struct sim_stream *stream, unsigned mode);
int sim_capture_end(struct sim_graph **out, struct sim_stream *stream);
int sim_capture_exchange(unsigned *mode);
int sim_capture_status(unsigned *status, struct sim_stream *stream);
int sim_capture_unsafe(void);                                    /* lock held: before a call that captures may forbid */
int sim_capture_asked(struct sim_stream *stream);                /* lock held: before a call that looks at a stream */
int sim_capture_device(int device);                              /* lock held: before a call that waits for a device */
int sim_capture_op(struct sim_stream *stream, const struct sim_op *op); /* lock held: the stream captures */
int sim_capture_record(struct sim_event *event, struct sim_stream *stream); /* lock held: the same */
int sim_capture_wait(struct sim_stream *stream, struct sim_event *event);   /* lock held: one of them captures */
int sim_capture_event(struct sim_event *event);                  /* lock held: before an event is asked, which is unsafe */
void sim_capture_drop(struct sim_stream *stream);                /* lock held: it is destroyed */

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
  SIM_UNSAFE = 32, /* a capture may forbid it, and is broken by it then */
};
int sim_enter(struct sim_site *site, int device, unsigned needs); /* device: the current one, or -1 */
extern __thread int sim_in_host_function;

/* memory.c */
int sim_allocate(struct sim_block **out, size_t size, enum sim_memory memory, int device, unsigned flags);
int sim_free(void *address, enum sim_memory memory, int device);
#define SIM_IPC_BYTES 64
int sim_ipc_export(void *handle, const void *address);
int sim_ipc_open(void **address, const void *handle, int device);
int sim_ipc_close(void *address, int device);
int sim_register(void *address, size_t size, int device, unsigned flags);
int sim_unregister(void *address, int device); /* device: the calling thread's, or -1 */
struct sim_block *sim_find(const void *address);           /* lock held */
struct sim_block *sim_find_freed(const void *base);        /* lock held: one that was freed not long ago */
bool sim_within(const void *address, size_t size);         /* lock held: inside one live block */
bool sim_is_pageable(const void *address);                 /* lock held */
bool sim_may_use(int device, const struct sim_block *block); /* lock held */
struct sim_block *sim_next_global(const char *after, const struct sim_module_handle *module); /* lock held */
void sim_block_add(struct sim_block *block);               /* lock held */
void sim_block_remove(struct sim_block *block);            /* lock held */
int sim_map_block(struct sim_block *block, bool accessible); /* no lock */
void sim_unmap_block(struct sim_block *block);             /* lock held */
void sim_poison(struct sim_block *block);
void sim_forget_memory(int device);
int sim_reserve(int device, size_t size);                  /* lock held: against the limit */

/* pools.c */
struct sim_pool *sim_pool_new(int device, bool is_default); /* lock held */
int sim_pool_allocate(void **address, size_t size, struct sim_pool *pool, struct sim_stream *stream);
int sim_pool_free(void *address, struct sim_stream *stream);
void sim_pool_ran(const struct sim_op *op);       /* lock held: a FREE runs */
void sim_pool_completed(const struct sim_op *op); /* lock held: and is complete */
void sim_pool_get_back(struct sim_block *block, struct sim_point freed); /* lock held */
void sim_pools_waited(int device, struct sim_point point, const struct sim_order *before); /* lock held: the host has */
void sim_pools_forget(int device); /* lock held */
void sim_pool_trim(struct sim_pool *pool, size_t keep);
int sim_pool_destroy(struct sim_pool *pool);

/* order.c; lock held */
void sim_order_wait(struct sim_stream *stream, struct sim_point point, const struct sim_order *before);
void sim_order_value(struct sim_stream *stream, enum sim_op_kind kind, const struct sim_value *value, struct sim_point point);
void sim_order_copy(struct sim_order *target, const struct sim_order *source);
void sim_order_forget(struct sim_order *order);
bool sim_is_known_before(struct sim_point point, const struct sim_stream *stream); /* what is enqueued there next, and the driver knows */
void sim_check_use(struct sim_stream *stream, const struct sim_op *op);
void sim_check_free(struct sim_stream *stream, const struct sim_block *block);

/* streams.c */
int sim_stream_create(struct sim_stream **out, int device, bool blocking);
int sim_stream_destroy(struct sim_stream *stream);
int sim_enqueue(struct sim_stream *stream, const struct sim_op *op, struct sim_point *out);
int sim_enqueue_locked(struct sim_stream *stream, const struct sim_op *op, struct sim_point *out);
int sim_stream_query(struct sim_stream *stream);
int sim_stream_synchronize(struct sim_stream *stream);
int sim_device_synchronize(int device);
int sim_device_synchronize_locked(int device);
int sim_point_synchronize(struct sim_point point); /* a copy's or a graph's own, which pools do not hear of */
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
int sim_op_refused(const struct sim_op *op, int status); /* releases what was not enqueued; returns the status */
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
int sim_module_load(struct sim_module_handle **out, const void *image, int device);
int sim_module_unload(struct sim_module_handle *module);
int sim_module_kernel(struct sim_kernel **out, struct sim_module_handle *module, const char *name);
int sim_module_kernel_at(struct sim_kernel **out, struct sim_module_handle *module, unsigned index);
int sim_module_global(void **address, size_t *size, struct sim_module_handle *module, const char *name);
int sim_launch_new(struct sim_launch **out, struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                   unsigned shared, void **parameters);
void sim_launch_pointers(const struct sim_launch *launch, void (*look)(void *, const void *), void *context);
int sim_run_launch(const struct sim_launch *launch, uintptr_t *address); /* no lock; 0, 1 bad address, 2 trap, or a status */
int sim_occupancy(const struct sim_kernel *kernel, unsigned threads, size_t shared);

/* transfers.c */
int sim_check_copy(const struct sim_copy *copy, bool target_device, bool source_device); /* lock held */
bool sim_is_between_hosts(const struct sim_copy *copy); /* lock held; its caller waits for the stream */
int sim_check_set(const struct sim_set *set);                                            /* lock held */
int sim_copy(struct sim_stream *stream, const struct sim_copy *copy, bool target_device, bool source_device, bool synchronous);
int sim_set(struct sim_stream *stream, const struct sim_set *set);
int sim_value_op(struct sim_stream *stream, enum sim_op_kind kind, const struct sim_value *value);

/* graphs.c */
int sim_graph_create(struct sim_graph **out, int device);
int sim_graph_destroy(struct sim_graph *graph);
int sim_graph_add(struct sim_node **out, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count,
                  const struct sim_op *op);
int sim_graph_add_locked(struct sim_node **out, struct sim_graph *graph, struct sim_node *const *dependencies, size_t count,
                         const struct sim_op *op); /* lock held */

/* plans.c */
int sim_exec_create(struct sim_exec **out, struct sim_graph *graph);
int sim_exec_destroy(struct sim_exec *exec);
int sim_exec_enable(struct sim_exec *exec, struct sim_node *node, bool is_on);
int sim_exec_set(struct sim_exec *exec, struct sim_node *node, const struct sim_op *op);
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
