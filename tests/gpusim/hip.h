/* What the files of the HIP face share: codes of HIP's own, the calling thread's device and last
 * error. HIP makes its context by itself, and initialises at the
 * first call. */
#ifndef GPUSIM_HIP_H
#define GPUSIM_HIP_H

#include "hip_types.h"

#define ENTER hip_enter
#define END(status_) return hip_result(status_)
#define FACE(name_) hip##name_
#define BEGIN(name_, needs_) CALL(hip##name_, needs_)
#define CURRENT_DEVICE hip_device
#define ANY SIM_NEEDS_INIT
#define HANDLE SIM_NEEDS_CONTEXT
#define DESTROYS SIM_NEEDS_INIT

#include "both.h"

typedef hip_kernel_node kernel_node;
typedef hip_memset_node memset_node;
typedef hip_pool_props pool_props;
typedef hip_access pool_access;

enum hip_error {
  HIP_INVALID_CONFIGURATION = 9,
  HIP_INVALID_DEVICE_POINTER = 17,
  HIP_INVALID_KIND = 21,
  HIP_ILLEGAL_STATE = 401,
  HIP_CONTEXT_IS_DESTROYED = 709,
  HIP_UNKNOWN = 999,
};

/* hip.c */
extern __thread int hip_device;             /* as hipSetDevice left it; 0 before */
int hip_enter(struct sim_site *site, unsigned needs);
int hip_result(int status);                 /* keeps it for hipGetLastError, and returns it */

/* hip_stream.c: the stream behind a handle, of the current device for a default one; NULL for none. */
struct sim_stream *hip_stream(struct sim_stream *handle);

/* hip_kernel.c: a launch with its arguments */
int hip_launch_of(struct sim_launch **out, struct sim_kernel *kernel, hip_extent grid, hip_extent block, unsigned shared,
                  void **parameters);

/* hip_copy.c: `known` says which of target and source has to be memory of the runtime's */
int hip_check_kind(int kind, bool known[2]);
struct sim_copy hip_line(void *target, const void *source, size_t size);

#define STREAM(handle_)            \
  handle_ = hip_stream(handle_);   \
  if (!handle_) END(HIP_CONTEXT_IS_DESTROYED)
#define ALIVE(handle_, type_) \
  if (!sim_handle_alive(handle_, type_)) END(SIM_INVALID_HANDLE)

#endif
