// The loops of kernels_rows.py in C++ with OpenMP, as one writes them to be fast: rows to threads,
// pixels to vectors, the taps unrolled. RADIUS and WEIGHTS are defined by whoever compiles this.
#include <omp.h>

#include <cstdint>

extern "C" void set_threads(int count) { omp_set_num_threads(count); }

extern "C" int thread_count() { return omp_get_max_threads(); }

extern "C" void saxpy(float a, const float* __restrict x, float* __restrict y, int64_t n) {
#pragma omp parallel for simd schedule(static)
  for (int64_t i = 0; i < n; ++i) y[i] = a * x[i] + y[i];
}

extern "C" void blur_rows(const float* __restrict source, float* __restrict target, int width,
                          int height) {
  const float weights[] = {WEIGHTS};
#pragma omp parallel for schedule(static)
  for (int y = 0; y < height; ++y) {
    const float* row = source + int64_t(y) * (width + 2 * RADIUS);
    float* out = target + int64_t(y) * width;
#pragma omp simd
    for (int x = 0; x < width; ++x) {
      float sum = 0.0f;
#pragma GCC unroll 65
      for (int k = 0; k <= 2 * RADIUS; ++k) sum += weights[k] * row[x + k];
      out[x] = sum;
    }
  }
}

extern "C" void blur_columns(const float* __restrict source, float* __restrict target, int width,
                             int height) {
  const float weights[] = {WEIGHTS};
#pragma omp parallel for schedule(static)
  for (int y = 0; y < height; ++y) {
    const float* rows = source + int64_t(y) * width;
    float* out = target + int64_t(y) * width;
#pragma omp simd
    for (int x = 0; x < width; ++x) {
      float sum = 0.0f;
#pragma GCC unroll 65
      for (int k = 0; k <= 2 * RADIUS; ++k) sum += weights[k] * rows[int64_t(k) * width + x];
      out[x] = sum;
    }
  }
}
