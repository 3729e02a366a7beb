/* The CUDA face's own declarations: struct layouts as the driver's callers have them, and what its
 * files share. */
#ifndef GPUSIM_CUDA_H
#define GPUSIM_CUDA_H

#define ENTER cu_enter
#define END(status_) return (status_)
#define FACE(name_) cu##name_
#define BEGIN(name_, needs_) CALL(cu##name_, needs_)
#define CURRENT_DEVICE cu_device()
#define ANY SIM_NEEDS_NOTHING
#define HANDLE SIM_WANTS_CONTEXT
#define DESTROYS (SIM_NEEDS_INIT | SIM_ALLOWED_AFTER_ERROR)

#include "both.h"

enum { CU_INVALID_PTX = 218, CU_CONTEXT_IS_DESTROYED = 709 }; /* the latter is also said of a destroyed event */

#define CU_ARCHITECTURE 90 /* of every device: compute capability 9.0 */

typedef unsigned long long cu_address;

struct cu_context {
  int device;
};

struct cu_memcpy3d {
  size_t source_x, source_y, source_z, source_level;
  unsigned source_type;
  const void *source_host;
  cu_address source_device;
  void *source_array, *reserved0;
  size_t source_pitch, source_height, target_x, target_y, target_z, target_level;
  unsigned target_type;
  void *target_host;
  cu_address target_device;
  void *target_array, *reserved1;
  size_t target_pitch, target_height, width, height, depth;
};

typedef struct cu_kernel_node {
  struct sim_kernel *function;
  unsigned grid[3], block[3], shared;
  void **parameters, **extra;
  struct sim_kernel *kernel;
  struct cu_context *context;
} kernel_node;

typedef struct cu_memset_node {
  cu_address target;
  size_t pitch;
  unsigned value, element_size;
  size_t width, height;
  struct cu_context *context; /* only in the struct that cuGraphAddNode takes */
} memset_node;

struct cu_location {
  unsigned type; /* 1: a device, 2: the host */
  int id;
};

typedef struct cu_pool_props {
  unsigned allocation_type, handle_types;
  struct cu_location location;
  void *security;
  size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
} pool_props;

typedef struct cu_access {
  struct cu_location location;
  unsigned flags;
} pool_access;

/* cuda_device.c */
extern struct cu_context cu_contexts[SIM_MAX_DEVICES];
int cu_device(void); /* of the calling thread's context, or -1 */
bool cu_is_context(const struct cu_context *context);
int cu_enter(struct sim_site *site, unsigned needs);

/* cuda_stream.c: the stream behind a handle, of the current device for a default one; NULL for none. */
struct sim_stream *cu_stream(struct sim_stream *handle);
int cu_refused(const struct sim_stream *handle); /* what a call with such a handle returns */

/* cuda_kernel.c */
int cu_launch_of(struct sim_launch **out, struct sim_kernel *kernel, const unsigned grid[3], const unsigned block[3],
                 unsigned shared, void **parameters);

/* cuda_copy.c */
int cu_copy_of(struct sim_copy *out, const struct cu_memcpy3d *copy, bool device_side[2]);

/* cuda_table.c: the public name, the first version with this ABI, the function */
struct cu_line {
  const char *name;
  int version;
  void (*symbol)(void);
};
extern const struct cu_line cu_lines[];
extern const size_t cu_line_count;

/* Turns a default stream's handle into the stream, and a wrong one into an error. */
#define STREAM(handle_)                          \
  {                                              \
    struct sim_stream *given_ = handle_;         \
    handle_ = cu_stream(given_);                 \
    if (!handle_) return cu_refused(given_);     \
  }
#define ALIVE(handle_, type_) \
  if (!sim_handle_alive(handle_, type_)) return type_ == SIM_EVENT && sim_handle_was(handle_, SIM_EVENT) ? CU_CONTEXT_IS_DESTROYED : SIM_INVALID_HANDLE

#endif
