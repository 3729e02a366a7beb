"""Words that introduce declarations in portable source, and names that are taken."""

from __future__ import annotations

from typing import Final

# Each has a float version, with an `f` behind its name.
_MATHEMATICS: Final = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc exp exp10 exp2
    expm1 erfcinv erfcx erfinv fabs fdim floor fma fmax fmin fmod frexp hypot ilogb j0 j1 jn ldexp
    lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter norm
    norm3d norm4d normcdf normcdfinv pow rcbrt remainder remquo rhypot rint rnorm rnorm3d rnorm4d
    round rsqrt scalbln scalbn sin sincos sincospi sinh sinpi sqrt tan tanh tgamma trunc y0 y1 yn
"""
_OTHERS: Final = """
    abs llabs min max isnan isinf isfinite signbit __clz __clzll __ffs __ffsll __popc __popcll
    __brev __brevll __mul24 __umul24 __mulhi __umulhi __float_as_int __float_as_uint __int_as_float
    __uint_as_float __double_as_longlong __longlong_as_double __ldg __saturatef __fdividef
    __fsqrt_rn __frcp_rn __fmaf_rn __fma_rn __expf __exp10f __logf __log2f __log10f __powf __sinf
    __cosf __tanf __syncthreads __syncthreads_count __syncthreads_and __syncthreads_or __threadfence
    __threadfence_block __threadfence_system __trap
    atomicAdd atomicSub atomicExch atomicCAS atomicMin atomicMax atomicInc atomicDec atomicAnd
    atomicOr atomicXor assert clock free main malloc memcpy memset printf
    __byte_perm __dadd_rn __ddiv_rn __dmul_rn __double2float_rn __double2hiint __double2int_rd
    __double2int_rn __double2int_ru __double2int_rz __double2ll_rd __double2ll_rn __double2ll_ru
    __double2ll_rz __double2loint __double2uint_rd __double2uint_rn __double2uint_ru
    __double2uint_rz __double2ull_rd __double2ull_rn __double2ull_ru __double2ull_rz __dp4a
    __drcp_rn __dsqrt_rn __dsub_rn __fadd_rn __fdiv_rn __float2int_rd __float2int_rn __float2int_ru
    __float2int_rz __float2ll_rd __float2ll_rn __float2ll_ru __float2ll_rz __float2uint_rd
    __float2uint_rn __float2uint_ru __float2uint_rz __float2ull_rd __float2ull_rn __float2ull_ru
    __float2ull_rz __fmul_rn __frsqrt_rn __fsub_rn __funnelshift_l __funnelshift_lc __funnelshift_r
    __funnelshift_rc __hiloint2double __int2double_rn __int2float_rn __ldca __ldcg __ldcs __ldcv
    __ldlu __ll2double_rn __ll2float_rn __mul64hi __rhadd __sad __sincosf __stcg __stcs __stwb
    __stwt __uhadd __uint2double_rn __uint2float_rn __ull2double_rn __ull2float_rn __umul64hi
    __urhadd __usad atomicAdd_system atomicAnd_system atomicCAS_system atomicExch_system
    atomicMax_system atomicMin_system atomicOr_system atomicSub_system atomicXor_system clock64
    fdividef labs __hadd llmax llmin ullmax ullmin umax umin
"""
RESERVED: Final = frozenset(
    [*_MATHEMATICS.split(), *(f"{name}f" for name in _MATHEMATICS.split()), *_OTHERS.split()]
)
"""Names that a kernel would replace, or be taken for."""

# fmt: off
# Words whose parentheses hold no parameters.
NO_FUNCTIONS: Final = frozenset({
    "__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__", "__attribute__",
    "__attribute", "__declspec", "alignas", "decltype", "__typeof__", "typeof", "noexcept", "throw",
    "requires", "explicit", "asm", "__asm__", "HAL_BLOCK", "HAL_SHARED_MEMORY",
})
QUALIFIERS: Final = frozenset({
    "const", "volatile", "restrict", "__restrict", "__restrict__", "register", "struct", "class",
    "union", "enum", "typename",
})
BUILTIN_TYPES: Final = frozenset({
    "void", "bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned",
    "wchar_t", "char8_t", "char16_t", "char32_t", "__int128", "__int64", "_Float16", "__fp16",
    "__bf16",
})
NO_NAMES: Final = QUALIFIERS | BUILTIN_TYPES | {"auto", "decltype"}
# fmt: on
