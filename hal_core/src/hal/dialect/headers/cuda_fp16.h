// `half`, in the place of CUDA's header of this name.
#pragma once
#if defined(HAL_INLINE) || defined(__CUDACC__)  // hiprtc has the type itself
#include "hal_float16.h"

#define HAL_F __half
#define HAL_F2 __half2
#define HAL_F_RAW __half_raw
#define HAL_WORD half
#define HAL_BITS hal_half_bits
#define HAL_VALUE hal_half_value
#include "hal_float16_type.h"

typedef __half half;
typedef __half2 half2;
#endif

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7c00u)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7bffu)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half((unsigned short)0x8000u)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000u)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3c00u)
