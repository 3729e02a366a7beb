/* What hiprtc brings before every source, as far as the suite's and the demo's kernels need it: for a
 * plain clang that compiles HIP without ROCm's headers. Our own text. */
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define __align__(n) __attribute__((aligned(n)))
#define HAL_OFFLINE static inline __device__ __attribute__((unused))

typedef decltype(sizeof(0)) size_t;
struct hal_offline_index { unsigned int x, y, z; };
HAL_OFFLINE hal_offline_index hal_offline_thread() {
  return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
HAL_OFFLINE hal_offline_index hal_offline_block() {
  return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
HAL_OFFLINE hal_offline_index hal_offline_size() {
  return {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z()};
}
HAL_OFFLINE hal_offline_index hal_offline_blocks() {
  const hal_offline_index size = hal_offline_size();
  return {__builtin_amdgcn_grid_size_x() / size.x, __builtin_amdgcn_grid_size_y() / size.y,
          __builtin_amdgcn_grid_size_z() / size.z};
}
#define threadIdx hal_offline_thread()
#define blockIdx hal_offline_block()
#define blockDim hal_offline_size()
#define gridDim hal_offline_blocks()
#define warpSize __builtin_amdgcn_wavefrontsize()

HAL_OFFLINE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
HAL_OFFLINE void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
HAL_OFFLINE void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

#define HAL_OFFLINE_ATOMIC(name, operation)                                                      \
  template <typename T> HAL_OFFLINE T name(T *address, T value) {                                \
    return __hip_atomic_##operation(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); \
  }
HAL_OFFLINE_ATOMIC(atomicAdd, fetch_add)
HAL_OFFLINE_ATOMIC(atomicAnd, fetch_and)
HAL_OFFLINE_ATOMIC(atomicOr, fetch_or)
HAL_OFFLINE_ATOMIC(atomicXor, fetch_xor)
HAL_OFFLINE_ATOMIC(atomicMin, fetch_min)
HAL_OFFLINE_ATOMIC(atomicMax, fetch_max)
HAL_OFFLINE_ATOMIC(atomicExch, exchange)

template <typename T> HAL_OFFLINE T min(T a, T b) { return b < a ? b : a; }
template <typename T> HAL_OFFLINE T max(T a, T b) { return a < b ? b : a; }
HAL_OFFLINE float sqrtf(float x) { return __builtin_sqrtf(x); }
HAL_OFFLINE float fabsf(float x) { return __builtin_fabsf(x); }
HAL_OFFLINE float floorf(float x) { return __builtin_floorf(x); }
HAL_OFFLINE float fminf(float a, float b) { return __builtin_fminf(a, b); }
HAL_OFFLINE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
// None of these kernels calls them.
__device__ int __shfl(int, int, int);
__device__ int __shfl_up(int, unsigned int, int);
__device__ int __shfl_down(int, unsigned int, int);
__device__ int __shfl_xor(int, int, int);
__device__ unsigned long long __ballot(int);
#define printf(...) ((void)0)
