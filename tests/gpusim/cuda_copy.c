/* The CUDA face: copies and fills. */
#include "cuda.h"

#include "both_copies.h"

static const void *at(cu_address address) { return (const void *)(uintptr_t)address; }

/* `device_side` says which of target and source has to be memory that the driver knows. */
int cu_copy_of(struct sim_copy *out, const struct cu_memcpy3d *copy, bool device_side[2]) {
  if (copy->source_type < 1 || copy->source_type > 4 || copy->target_type < 1 || copy->target_type > 4) return SIM_INVALID_VALUE;
  if (copy->source_type == 3 || copy->target_type == 3) return SIM_NOT_SUPPORTED;
  device_side[0] = copy->target_type == 2;
  device_side[1] = copy->source_type == 2;
  if (copy->source_x || copy->source_y || copy->source_z || copy->target_x || copy->target_y || copy->target_z) return SIM_NOT_SUPPORTED;
  const char *source = copy->source_type == 1 ? copy->source_host : at(copy->source_device);
  char *target = copy->target_type == 1 ? copy->target_host : (char *)(uintptr_t)copy->target_device;
  *out = (struct sim_copy){target, source, copy->width};
  return SIM_OK;
}

static int copy_flat(struct sim_stream *stream, const void *target, const void *source, size_t size, bool to_device, bool from_device, bool synchronous) {
  STREAM(stream);
  const struct sim_copy copy = {(char *)target, source, size};
  return sim_copy(stream, &copy, to_device, from_device, synchronous);
}

API cuMemcpyAsync(cu_address target, cu_address source, size_t size, struct sim_stream *stream) {
  CALL(cuMemcpyAsync, HANDLE);
  return copy_flat(stream, at(target), at(source), size, false, false, false);
}
API cuMemcpyHtoD_v2(cu_address target, const void *source, size_t size) {
  CALL(cuMemcpyHtoD, CONTEXT);
  return copy_flat(NULL, at(target), source, size, true, false, true);
}
API cuMemcpyHtoDAsync_v2(cu_address target, const void *source, size_t size, struct sim_stream *stream) {
  CALL(cuMemcpyHtoDAsync, HANDLE);
  return copy_flat(stream, at(target), source, size, true, false, false);
}
API cuMemcpyDtoH_v2(void *target, cu_address source, size_t size) {
  CALL(cuMemcpyDtoH, CONTEXT);
  return copy_flat(NULL, target, at(source), size, false, true, true);
}
API cuMemcpyDtoHAsync_v2(void *target, cu_address source, size_t size, struct sim_stream *stream) {
  CALL(cuMemcpyDtoHAsync, HANDLE);
  return copy_flat(stream, target, at(source), size, false, true, false);
}
API cuMemcpyDtoDAsync_v2(cu_address target, cu_address source, size_t size, struct sim_stream *stream) {
  CALL(cuMemcpyDtoDAsync, HANDLE);
  return copy_flat(stream, at(target), at(source), size, true, true, false);
}

static int copy_peer(struct sim_stream *stream, cu_address target, const struct cu_context *to, cu_address source,
                     const struct cu_context *from, size_t size, bool synchronous) {
  if (!cu_is_context(to) || !cu_is_context(from)) return SIM_INVALID_CONTEXT;
  if (!are_on(at(target), to->device, at(source), from->device, size)) return SIM_INVALID_VALUE;
  return copy_flat(stream, at(target), at(source), size, true, true, synchronous);
}

API cuMemcpyPeerAsync(cu_address target, struct cu_context *to, cu_address source, struct cu_context *from, size_t size, struct sim_stream *stream) {
  CALL(cuMemcpyPeerAsync, HANDLE);
  return copy_peer(stream, target, to, source, from, size, false);
}

/* The fills without a stream go to the default stream, and wait for nothing. */

#define FILL_AT_ONCE(bits_, type_)                                       \
  API cuMemsetD##bits_##_v2(void *target, type_ value, size_t count) {   \
    CALL(cuMemsetD##bits_, CONTEXT);                                     \
    return set(NULL, target, value, sizeof value, count);                \
  }
FILL_AT_ONCE(8, unsigned char)
FILL_AT_ONCE(16, unsigned short)
FILL_AT_ONCE(32, unsigned)
