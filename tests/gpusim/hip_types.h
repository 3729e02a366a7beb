/* HIP's structures as its callers have them, since HIP 6: our own declarations. Shared by gpusim's HIP
 * face and by tests/hip_on_cuda; tests/hip compares them with those of hip-python. */
#ifndef GPUSIM_HIP_TYPES_H
#define GPUSIM_HIP_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef struct { unsigned x, y, z; } hip_extent;      /* dim3 */

typedef struct { /* hipKernelNodeParams */
  hip_extent block;
  void **extra;
  void *function;
  hip_extent grid;
  void **parameters;
  unsigned shared_memory;
} hip_kernel_node;

typedef struct { /* hipMemsetParams */
  void *target;
  unsigned element_size;
  size_t height, pitch;
  unsigned value;
  size_t width;
} hip_memset_node;

typedef struct { /* hipPointerAttribute_t */
  int type, device;
  void *device_pointer, *host_pointer;
  int managed;
  unsigned flags;
} hip_pointer_attributes;

typedef struct { int type, id; } hip_location; /* hipMemLocation */

typedef struct { /* hipMemPoolProps */
  int allocation_type, handle_types;
  hip_location location;
  void *security;
  size_t max_size;
  unsigned char reserved[56];
} hip_pool_props;

typedef struct { /* hipMemAccessDesc */
  hip_location location;
  int flags;
} hip_access;

enum { HIP_PROPERTIES_SIZE = 1472 }; /* hipDeviceProp_tR0600, written by offset */

/* hipMemcpyKind, hipMemoryType */
enum { HIP_HOST_TO_HOST, HIP_HOST_TO_DEVICE, HIP_DEVICE_TO_HOST, HIP_DEVICE_TO_DEVICE, HIP_ANY_KIND };
enum { HIP_UNREGISTERED = 0, HIP_ON_HOST = 1, HIP_ON_DEVICE = 2, HIP_MANAGED = 3, HIP_UNIFIED = 11 };

_Static_assert(sizeof(hip_kernel_node) == 64 && offsetof(hip_kernel_node, shared_memory) == 56, "");
_Static_assert(sizeof(hip_memset_node) == 48 && offsetof(hip_memset_node, width) == 40, "");
_Static_assert(sizeof(hip_pointer_attributes) == 32 && offsetof(hip_pointer_attributes, flags) == 28, "");
_Static_assert(sizeof(hip_pool_props) == 88 && sizeof(hip_access) == 12, "");

#endif
