// `bfloat16`, in the place of CUDA's header of this name.
#pragma once
#include "hal_float16.h"

#define HAL_F __nv_bfloat16
#define HAL_F2 __nv_bfloat162
#define HAL_F_RAW __nv_bfloat16_raw
#define HAL_WORD bfloat16
#define HAL_BITS hal_bfloat16_bits
#define HAL_VALUE hal_bfloat16_value
#include "hal_float16_type.h"

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7f80u)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7fffu)
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16((unsigned short)0x0001u)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16((unsigned short)0x7f7fu)
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x8000u)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000u)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3f80u)
