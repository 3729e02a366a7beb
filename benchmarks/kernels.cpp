// The loops of kernels_rows.py and block_rows.py in C++ with OpenMP, as one writes them to be fast: rows to threads,
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

extern "C" void naive(const float* __restrict a, const float* __restrict b, float* __restrict c,
                      int n) {
#pragma omp parallel for schedule(static)
  for (int y = 0; y < n; ++y) {
    float* row = c + int64_t(y) * n;
    for (int x = 0; x < n; ++x) row[x] = 0.0f;
    for (int k = 0; k < n; ++k)
      for (int x = 0; x < n; ++x) row[x] += a[int64_t(y) * n + k] * b[int64_t(k) * n + x];
  }
}

extern "C" void tiled(const float* __restrict a, const float* __restrict b, float* __restrict c,
                      int n) {
#pragma omp parallel for schedule(static)
  for (int y = 0; y < n; ++y)
    for (int x = 0; x < n; x += 16) {
      float sums[16] = {};
      for (int k = 0; k < n; ++k)
        for (int i = 0; i < 16; ++i) sums[i] += a[int64_t(y) * n + k] * b[int64_t(k) * n + x + i];
      for (int i = 0; i < 16; ++i) c[int64_t(y) * n + x + i] = sums[i];
    }
}

extern "C" void softmax(const float* __restrict in, float* __restrict out, int n) {
#pragma omp parallel for schedule(static)
  for (int y = 0; y < n; ++y) {
    const float* row = in + int64_t(y) * n;
    float* to = out + int64_t(y) * n;
    float most = row[0], sum = 0.0f;
#pragma omp simd reduction(max : most)
    for (int x = 1; x < n; ++x) most = row[x] > most ? row[x] : most;
    for (int x = 0; x < n; ++x) to[x] = __builtin_expf(row[x] - most);
#pragma omp simd reduction(+ : sum)
    for (int x = 0; x < n; ++x) sum += to[x];
    for (int x = 0; x < n; ++x) to[x] /= sum;
  }
}

extern "C" void sums(const float* __restrict in, float* __restrict out, int n) {
#pragma omp parallel for schedule(static)
  for (int y = 0; y < n; ++y) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int x = 0; x < n; ++x) sum += in[int64_t(y) * n + x];
    out[y] = sum;
  }
}

extern "C" void convolution(const float* __restrict in, const float* __restrict w,
                            float* __restrict out, int n) {
#pragma omp parallel for schedule(static)
  for (int y = 0; y < n; ++y)
#pragma omp simd
    for (int x = 0; x < n; ++x) {
      float sum = 0.0f;
#pragma GCC unroll 5
      for (int j = 0; j < 5; ++j)
#pragma GCC unroll 5
        for (int i = 0; i < 5; ++i)
          sum += w[j * 5 + i] * in[int64_t(y + j) * (n + 4) + x + i];
      out[int64_t(y) * n + x] = sum;
    }
}
