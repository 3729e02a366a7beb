/* The array that a launch may take in the place of its parameters' addresses: pairs of a key and
 * a value. Its keys are the same, but for the one that ends it: 3 in HIP, 0 in CUDA. */
#ifndef HIP_ON_CUDA_PARAMETERS_H
#define HIP_ON_CUDA_PARAMETERS_H

#include <stdint.h>

enum { EXTRA_WORDS = 8, HIP_END = 3 };

static inline void **rewrite_extra(void **extra, void **rewritten) {
  if (!extra) return 0;
  int i = 0;
  for (; i < EXTRA_WORDS - 2 && extra[i] && (uintptr_t)extra[i] != HIP_END; i += 2) {
    rewritten[i] = extra[i];
    rewritten[i + 1] = extra[i + 1];
  }
  rewritten[i] = 0;
  return rewritten;
}

#endif
