"""Words that introduce declarations in portable source, and names that are taken."""

from __future__ import annotations

from typing import Final

# Each has a float version, with an `f` behind its name.
_MATHEMATICS: Final = """
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc exp exp10 exp2
    expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ldexp lgamma llrint log log10 log1p log2
    lrint modf nearbyint nextafter normcdf pow remainder rint round rsqrt sin sincos sinh sinpi sqrt
    tan tanh tgamma trunc
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
