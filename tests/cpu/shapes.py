"""Kernels of the shapes that programs have, for the tests: in CUDA C++ as it is mostly written."""

HISTOGRAM = """
#define BINS 64
__global__ void histogram(const unsigned char *data, unsigned int *bins, int n) {
  __shared__ unsigned int own[BINS];
  for (int i = threadIdx.x; i < BINS; i += blockDim.x) own[i] = 0;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int stride = blockDim.x * gridDim.x;
  while (i < n) {
    atomicAdd(&own[data[i] % BINS], 1u);
    i += stride;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < BINS; i += blockDim.x)
    if (own[i]) atomicAdd(&bins[i], own[i]);
}
"""
SCAN = """
#define LOG_BANKS 5
#define OFFSET(i) ((i) >> LOG_BANKS)
__global__ void scan(const int *in, int *out, int *sums, int n) {
  extern __shared__ int temp[];
  int tid = threadIdx.x, offset = 1;
  int ai = tid, bi = tid + blockDim.x;
  int base = blockIdx.x * 2 * blockDim.x;
  temp[ai + OFFSET(ai)] = base + ai < n ? in[base + ai] : 0;
  temp[bi + OFFSET(bi)] = base + bi < n ? in[base + bi] : 0;
  for (int d = blockDim.x; d > 0; d >>= 1) {
    __syncthreads();
    if (tid < d) {
      int a = offset * (2 * tid + 1) - 1, b = offset * (2 * tid + 2) - 1;
      a += OFFSET(a);
      b += OFFSET(b);
      temp[b] += temp[a];
    }
    offset *= 2;
  }
  if (tid == 0) {
    int last = 2 * blockDim.x - 1;
    last += OFFSET(last);
    sums[blockIdx.x] = temp[last];
    temp[last] = 0;
  }
  for (int d = 1; d < 2 * blockDim.x; d *= 2) {
    offset >>= 1;
    __syncthreads();
    if (tid < d) {
      int a = offset * (2 * tid + 1) - 1, b = offset * (2 * tid + 2) - 1;
      a += OFFSET(a);
      b += OFFSET(b);
      int t = temp[a];
      temp[a] = temp[b];
      temp[b] += t;
    }
  }
  __syncthreads();
  if (base + ai < n) out[base + ai] = temp[ai + OFFSET(ai)];
  if (base + bi < n) out[base + bi] = temp[bi + OFFSET(bi)];
}
__global__ void add(int *out, const int *sums, int n) {
  __shared__ int before;
  if (threadIdx.x == 0) {
    before = 0;
    for (int i = 0; i < blockIdx.x; ++i) before += sums[i];
  }
  __syncthreads();
  for (int i = 0; i < 2; i++) {
    int at = (blockIdx.x * 2 + i) * blockDim.x + threadIdx.x;
    if (at < n) out[at] += before;
  }
}
"""
TRANSPOSE = """
__global__ void transpose(float *out, const float *in, int width, int height) {
  __shared__ float tile[TILE][TILE + 1];
  int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += ROWS)
    if (x < width && y + j < height) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * TILE + threadIdx.x;
  y = blockIdx.x * TILE + threadIdx.y;
  for (int j = 0; j < TILE; j += ROWS)
    if (x < height && y + j < width) out[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}
"""
SORT = """
__device__ inline void order(unsigned &a, unsigned &b, bool up) {
  if ((a > b) == up) {
    unsigned t = a;
    a = b;
    b = t;
  }
}
__global__ void sort_blocks(unsigned *keys) {
  __shared__ unsigned s[SIZE];
  unsigned *mine = keys + blockIdx.x * SIZE;
  s[threadIdx.x] = mine[threadIdx.x];
  s[threadIdx.x + SIZE / 2] = mine[threadIdx.x + SIZE / 2];
  for (unsigned size = 2; size <= SIZE; size <<= 1) {
    bool up = ((blockIdx.x * SIZE / 2 + threadIdx.x) & (size / 2)) == 0;
    for (unsigned stride = size / 2; stride > 0; stride >>= 1) {
      __syncthreads();
      unsigned at = 2 * threadIdx.x - (threadIdx.x & (stride - 1));
      order(s[at], s[at + stride], up);
    }
  }
  __syncthreads();
  mine[threadIdx.x] = s[threadIdx.x];
  mine[threadIdx.x + SIZE / 2] = s[threadIdx.x + SIZE / 2];
}
__global__ void step(unsigned *keys, int j, int k) {
  unsigned i = threadIdx.x + blockDim.x * blockIdx.x, ixj = i ^ j;
  if (ixj > i) {
    if ((i & k) == 0 && keys[i] > keys[ixj] || (i & k) != 0 && keys[i] < keys[ixj]) {
      unsigned t = keys[i];
      keys[i] = keys[ixj];
      keys[ixj] = t;
    }
  }
}
"""
STENCIL = """
#define B 16
__global__ void heat(const float *in, float *out, int nx, int ny, float rate) {
  __shared__ float t[B + 2][B + 2];
  const int tx = threadIdx.x + 1, ty = threadIdx.y + 1;
  const int x = blockIdx.x * B + threadIdx.x, y = blockIdx.y * B + threadIdx.y;
  const int cx = min(x, nx - 1), cy = min(y, ny - 1);
  t[ty][tx] = in[cy * nx + cx];
  if (threadIdx.x == 0) t[ty][0] = in[cy * nx + max(x - 1, 0)];
  if (threadIdx.x == B - 1) t[ty][B + 1] = in[cy * nx + min(x + 1, nx - 1)];
  if (threadIdx.y == 0) t[0][tx] = in[max(y - 1, 0) * nx + cx];
  if (threadIdx.y == B - 1) t[B + 1][tx] = in[min(y + 1, ny - 1) * nx + cx];
  __syncthreads();
  if (x > 0 && y > 0 && x < nx - 1 && y < ny - 1)
    out[y * nx + x] = t[ty][tx] + rate * (t[ty - 1][tx] + t[ty + 1][tx] + t[ty][tx - 1] +
                                          t[ty][tx + 1] - 4.0f * t[ty][tx]);
}
"""
REDUCTION = """
__device__ unsigned int done = 0;
__inline__ __device__ double warp_sum(double v) {
#pragma unroll
  for (int offset = warpSize / 2; offset > 0; offset /= 2)
    v += __shfl_down_sync(0xffffffff, v, offset);
  return v;
}
__inline__ __device__ double block_sum(double v) {
  static __shared__ double parts[32];
  int lane = threadIdx.x % warpSize, warp = threadIdx.x / warpSize;
  v = warp_sum(v);
  if (lane == 0) parts[warp] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / warpSize ? parts[lane] : 0;
  if (warp == 0) v = warp_sum(v);
  __syncthreads();
  return v;
}
__global__ void total(const double *x, volatile double *partial, double *out, int n) {
  double sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    sum += x[i];
  sum = block_sum(sum);
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(&done, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    sum = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += partial[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
      *out = sum;
      done = 0;
    }
  }
}
"""
SOFTMAX = """
struct __align__(8) Running { float m, d; };
__device__ __forceinline__ Running join(Running a, Running b) {
  bool a_bigger = a.m > b.m;
  Running bigger = a_bigger ? a : b, smaller = a_bigger ? b : a, r;
  r.d = bigger.d + smaller.d * __expf(smaller.m - bigger.m);
  r.m = bigger.m;
  return r;
}
__global__ void softmax(const float *__restrict__ x, float *__restrict__ y, int columns) {
  __shared__ Running shared[BLOCK];
  const float *in = x + blockIdx.x * columns;
  Running mine = {-INFINITY, 0.0f};
  for (int i = threadIdx.x; i < columns; i += BLOCK) {
    Running next = {in[i], 1.0f};
    mine = mine.d == 0 ? next : join(mine, next);
  }
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (int s = BLOCK / 2; s >= 1; s /= 2) {
    if (threadIdx.x < s && shared[threadIdx.x + s].d != 0)
      shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + s]);
    __syncthreads();
  }
  const Running all = shared[0];
  for (int i = threadIdx.x; i < columns; i += BLOCK)
    y[blockIdx.x * columns + i] = __expf(in[i] - all.m) / all.d;
}
"""
PRODUCT = """
#define FLOAT4(pointer) (reinterpret_cast<float4 *>(&(pointer))[0])
#define CFLOAT4(pointer) (reinterpret_cast<const float4 *>(&(pointer))[0])
__global__ void product(const float *__restrict__ a, const float *__restrict__ b,
                        float *__restrict__ c, int n) {
  const int BM = 32, BN = 32, BK = 8, TM = 4, TN = 4;
  __shared__ float as[8][32];
  __shared__ float bs[8][32];
  const int tid = threadIdx.y * blockDim.x + threadIdx.x;
  const int row = tid / 2, col = tid % 2 * 4, brow = tid / 8, bcol = tid % 8 * 4;
  float sums[TM][TN] = {0.0f};
  float4 load;
  for (int k = 0; k < n; k += BK) {
    load = CFLOAT4(a[(blockIdx.y * BM + row) * n + k + col]);
    as[col][row] = load.x;
    as[col + 1][row] = load.y;
    as[col + 2][row] = load.z;
    as[col + 3][row] = load.w;
    FLOAT4(bs[brow][bcol]) = CFLOAT4(b[(k + brow) * n + blockIdx.x * BN + bcol]);
    __syncthreads();
    for (int kk = 0; kk < BK; kk++)
      for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j++)
          sums[i][j] += as[kk][threadIdx.y * TM + i] * bs[kk][threadIdx.x * TN + j];
    __syncthreads();
  }
  for (int i = 0; i < TM; i++) {
    float4 v = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    const int y = blockIdx.y * BM + threadIdx.y * TM + i;
    FLOAT4(c[y * n + blockIdx.x * BN + threadIdx.x * TN]) = v;
  }
}
"""
SPARSE = """
template <int LANES> __device__ float lanes_sum(float v) {
  for (int i = LANES / 2; i > 0; i >>= 1) v += __shfl_xor_sync(0xffffffffu, v, i, LANES);
  return v;
}
__global__ void by_threads(int rows, const int *from, const int *at, const float *values,
                           const float *x, float *y) {
  int row = blockDim.x * blockIdx.x + threadIdx.x;
  if (row < rows) {
    float dot = 0;
    for (int i = from[row]; i < from[row + 1]; i++) dot += values[i] * x[at[i]];
    y[row] = dot;
  }
}
__global__ void by_lanes(int rows, const int *from, const int *at, const float *values,
                         const float *x, float *y) {
  const int lane = threadIdx.x & 7, row = (blockDim.x * blockIdx.x + threadIdx.x) / 8;
  float dot = 0;
  if (row < rows)
    for (int i = from[row] + lane; i < from[row + 1]; i += 8) dot += values[i] * __ldg(&x[at[i]]);
  dot = lanes_sum<8>(dot);
  if (row < rows && lane == 0) y[row] = dot;
}
"""
SEARCH = """
__global__ void level(const int *edges_from, const int *edges, int *distance, const int *frontier,
                      const int *size, int *next, int *next_size, int depth) {
  __shared__ int own[LIMIT];
  __shared__ int count, begin;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < *size) {
    const int node = frontier[i];
    for (int e = edges_from[node]; e < edges_from[node + 1]; ++e) {
      const int other = edges[e];
      if (atomicCAS(&distance[other], -1, depth) == -1) {
        const int place = atomicAdd(&count, 1);
        if (place < LIMIT) own[place] = other;
        else next[atomicAdd(next_size, 1)] = other;
      }
    }
  }
  __syncthreads();
  const int kept = min(count, LIMIT);
  if (threadIdx.x == 0) begin = atomicAdd(next_size, kept);
  __syncthreads();
  for (int k = threadIdx.x; k < kept; k += blockDim.x) next[begin + k] = own[k];
}
"""
QUEENS = """
__global__ void queens(const unsigned *columns, const unsigned *left, const unsigned *right,
                       int *solutions, int tasks, int level) {
  __shared__ unsigned mask[64][N], down[64][N], rising[64][N], free_[64][N];
  __shared__ int sum[64];
  const unsigned all = (1u << N) - 1;
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  int found = 0, depth = 0;
  if (i < tasks) {
    mask[t][0] = columns[i];
    down[t][0] = left[i];
    rising[t][0] = right[i];
    free_[t][0] = all & ~(columns[i] | left[i] | right[i]);
    while (depth >= 0) {
      if (free_[t][depth] == 0) {
        depth--;
        continue;
      }
      const unsigned bit = free_[t][depth] & -free_[t][depth];
      free_[t][depth] ^= bit;
      if (depth + level + 1 == N) {
        found++;
        depth--;
      } else {
        const unsigned c = mask[t][depth] | bit, l = (down[t][depth] | bit) << 1,
                       r = (rising[t][depth] | bit) >> 1;
        depth++;
        mask[t][depth] = c, down[t][depth] = l, rising[t][depth] = r;
        free_[t][depth] = all & ~(c | l | r);
      }
    }
  }
  sum[t] = found;
  __syncthreads();
  for (int k = 32; k > 0; k /= 2) {
    if (t < k) sum[t] += sum[t + k];
    __syncthreads();
  }
  if (t == 0) solutions[blockIdx.x] = sum[0];
}
"""
ELIMINATION = """
__global__ void scale(float *a, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x + k + 1;
  if (i < n) a[i * n + k] /= a[k * n + k];
}
__global__ void update(float *a, int n, int k) {
  __shared__ float row[16], column[16];
  const int j = blockIdx.x * 16 + threadIdx.x + k + 1, i = blockIdx.y * 16 + threadIdx.y + k + 1;
  if (threadIdx.y == 0 && j < n) row[threadIdx.x] = a[k * n + j];
  if (threadIdx.x == 0 && i < n) column[threadIdx.y] = a[i * n + k];
  __syncthreads();
  if (i >= n || j >= n) return;
  a[i * n + j] -= column[threadIdx.y] * row[threadIdx.x];
}
"""
BLUR = """
#define RADIUS 4
__constant__ float weights[2 * RADIUS + 1];
__global__ void rows(float *out, const float *in, int width, int pitch) {
  __shared__ float line[64 + 2 * RADIUS];
  const int x = blockIdx.x * 64 + threadIdx.x, y = blockIdx.y;
  for (int i = threadIdx.x; i < 64 + 2 * RADIUS; i += blockDim.x) {
    const int from = blockIdx.x * 64 + i - RADIUS;
    line[i] = from >= 0 && from < width ? in[y * pitch + from] : 0;
  }
  __syncthreads();
  if (x >= width) return;
  float sum = 0;
#pragma unroll
  for (int k = -RADIUS; k <= RADIUS; k++)
    sum += line[threadIdx.x + RADIUS + k] * weights[RADIUS - k];
  out[y * pitch + x] = sum;
}
"""
WAVEFRONT = """
__global__ void align(const char *a, const char *b, int *score, int n, int gap) {
  __shared__ int best[S + 1][S + 1];
  const int t = threadIdx.x;
  best[0][t + 1] = -(t + 1) * gap;
  best[t + 1][0] = -(t + 1) * gap;
  if (t == 0) best[0][0] = 0;
  __syncthreads();
  for (int m = 0; m < S; m++) {
    if (t <= m) {
      const int x = t + 1, y = m - t + 1;
      const int same = best[y - 1][x - 1] + (a[y - 1] == b[x - 1] ? 2 : -1);
      best[y][x] = max(same, max(best[y][x - 1], best[y - 1][x]) - gap);
    }
    __syncthreads();
  }
  for (int m = S - 2; m >= 0; m--) {
    if (t <= m) {
      const int x = t + S - m, y = S - t;
      const int same = best[y - 1][x - 1] + (a[y - 1] == b[x - 1] ? 2 : -1);
      best[y][x] = max(same, max(best[y][x - 1], best[y - 1][x]) - gap);
    }
    __syncthreads();
  }
  for (int row = 0; row <= S; row++) score[row * (S + 1) + t + 1] = best[row][t + 1];
}
"""
COMPACTION = """
__global__ void keep(const int *x, int *kept, int *count, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % warpSize;
  const bool wanted = i < n && x[i] % 3 == 0;
  const unsigned votes = __ballot_sync(0xffffffff, wanted);
  int begin = 0;
  if (lane == 0) begin = atomicAdd(count, __popc(votes));
  begin = __shfl_sync(0xffffffff, begin, 0);
  if (wanted) kept[begin + __popc(votes & ((1u << lane) - 1))] = x[i];
}
"""
BODIES = """
#define SOFTENING 1e-2f
__device__ float3 pull(float4 a, float4 b, float3 sum) {
  float3 r;
  r.x = b.x - a.x, r.y = b.y - a.y, r.z = b.z - a.z;
  float distance = r.x * r.x + r.y * r.y + r.z * r.z + SOFTENING;
  float s = b.w * rsqrtf(distance * distance * distance);
  sum.x += r.x * s, sum.y += r.y * s, sum.z += r.z * s;
  return sum;
}
__global__ void forces(const float4 *bodies, float4 *result, int n) {
  extern __shared__ float4 tile[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float4 mine = bodies[i];
  float3 sum = {0.0f, 0.0f, 0.0f};
  for (int t = 0; t < gridDim.x; t++) {
    tile[threadIdx.x] = bodies[t * blockDim.x + threadIdx.x];
    __syncthreads();
#pragma unroll 4
    for (int k = 0; k < blockDim.x; k++) sum = pull(mine, tile[k], sum);
    __syncthreads();
  }
  result[i] = make_float4(sum.x, sum.y, sum.z, 0.f);
}
"""
WARP_SCAN = """
__global__ void scan(const int *x, int *out, int n) {
  __shared__ int sums[32];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int v = i < n ? x[i] : 0;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    int o = __shfl_up_sync(0xffffffff, v, d);
    if (lane >= d) v += o;
  }
  if (lane == 31) sums[warp] = v;
  __syncthreads();
  if (warp == 0) {
    int s = lane < blockDim.x / 32 ? sums[lane] : 0;
    for (int d = 1; d < 32; d <<= 1) {
      int o = __shfl_up_sync(0xffffffff, s, d);
      if (lane >= d) s += o;
    }
    sums[lane] = s;
  }
  __syncthreads();
  if (i < n) out[i] = v + (warp > 0 ? sums[warp - 1] : 0);
}
"""
WARP_SOFTMAX = """
#define FULL_MASK 0xffffffff
template <typename T> __device__ T warp_sum(T v) {
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(FULL_MASK, v, offset);
  return v;
}
__device__ float warp_max(float v) {
  for (int offset = 16; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(FULL_MASK, v, offset));
  return v;
}
__global__ void softmax(const float *x, float *out, int n) {
  static __shared__ float parts[32];
  const float *row = x + blockIdx.x * n;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float most = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
  most = warp_max(most);
  if (lane == 0) parts[warp] = most;
  __syncthreads();
  most = warp_max(lane < blockDim.x / 32 ? parts[lane] : -INFINITY);
  __syncthreads();
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += __expf(row[i] - most);
  sum = warp_sum(sum);
  if (lane == 0) parts[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < blockDim.x / 32 ? parts[lane] : 0;
    sum = warp_sum(sum);
    if (lane == 0) parts[0] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    out[blockIdx.x * n + i] = __expf(row[i] - most) / parts[0];
}
"""
