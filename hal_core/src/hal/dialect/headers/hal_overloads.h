#line 2 "hal_overloads.h"
// Mathematics of integers is that of `double`, and so is that of a float with a double: nvcc has this from the host's
// library, and neither NVRTC nor the dialect's own functions have it.
//
// hal_cpu's `_headers.py` reads the names from this text.
#if !defined(HAL_OVERLOADS)
#define HAL_OVERLOADS
#if defined(HAL_INLINE)
#define HAL_OVERLOAD static HAL_INLINE
#else
#define HAL_OVERLOAD static __device__ __forceinline__
#endif

struct hal_is_whole {
  typedef double wide;
  typedef bool truth;
};
template <class hal_T> struct hal_whole {};
template <> struct hal_whole<bool> : hal_is_whole {};
template <> struct hal_whole<char> : hal_is_whole {};
template <> struct hal_whole<signed char> : hal_is_whole {};
template <> struct hal_whole<unsigned char> : hal_is_whole {};
template <> struct hal_whole<short> : hal_is_whole {};
template <> struct hal_whole<unsigned short> : hal_is_whole {};
template <> struct hal_whole<int> : hal_is_whole {};
template <> struct hal_whole<unsigned int> : hal_is_whole {};
template <> struct hal_whole<long> : hal_is_whole {};
template <> struct hal_whole<unsigned long> : hal_is_whole {};
template <> struct hal_whole<long long> : hal_is_whole {};
template <> struct hal_whole<unsigned long long> : hal_is_whole {};
template <class hal_A, class hal_B, class = double, class = double> struct hal_mixed {};
template <class hal_A, class hal_B>
struct hal_mixed<hal_A, hal_B, typename hal_whole<hal_A>::wide, typename hal_whole<hal_B>::wide> : hal_is_whole {};
template <> struct hal_mixed<float, double> : hal_is_whole {};
template <> struct hal_mixed<double, float> : hal_is_whole {};

#define HAL_OF_ONE(name) \
  template <class hal_T> HAL_OVERLOAD typename hal_whole<hal_T>::wide name(hal_T x) { return name((double)x); }
#define HAL_ASKED(name) \
  template <class hal_T> HAL_OVERLOAD typename hal_whole<hal_T>::truth name(hal_T x) { return name((double)x) != 0; }
#define HAL_OF_TWO(name)                                                             \
  template <class hal_A, class hal_B>                                                \
  HAL_OVERLOAD typename hal_mixed<hal_A, hal_B>::wide name(hal_A x, hal_B y) {        \
    return name((double)x, (double)y);                                               \
  }
HAL_OF_ONE(sqrt) HAL_OF_ONE(cbrt) HAL_OF_ONE(exp) HAL_OF_ONE(exp2) HAL_OF_ONE(exp10) HAL_OF_ONE(expm1)
HAL_OF_ONE(log) HAL_OF_ONE(log2) HAL_OF_ONE(log10) HAL_OF_ONE(log1p) HAL_OF_ONE(sin) HAL_OF_ONE(cos)
HAL_OF_ONE(tan) HAL_OF_ONE(asin) HAL_OF_ONE(acos) HAL_OF_ONE(atan) HAL_OF_ONE(sinh) HAL_OF_ONE(cosh)
HAL_OF_ONE(tanh) HAL_OF_ONE(asinh) HAL_OF_ONE(acosh) HAL_OF_ONE(atanh) HAL_OF_ONE(erf) HAL_OF_ONE(erfc)
HAL_OF_ONE(tgamma) HAL_OF_ONE(lgamma) HAL_OF_ONE(floor) HAL_OF_ONE(ceil) HAL_OF_ONE(trunc)
HAL_OF_ONE(round) HAL_OF_ONE(rint) HAL_OF_ONE(nearbyint) HAL_OF_ONE(fabs) HAL_OF_ONE(rsqrt)
HAL_ASKED(isnan) HAL_ASKED(isinf) HAL_ASKED(isfinite)
HAL_OF_TWO(pow) HAL_OF_TWO(atan2) HAL_OF_TWO(fmod) HAL_OF_TWO(remainder) HAL_OF_TWO(hypot)
HAL_OF_TWO(copysign) HAL_OF_TWO(nextafter) HAL_OF_TWO(fdim) HAL_OF_TWO(fmin) HAL_OF_TWO(fmax)
#undef HAL_OF_ONE
#undef HAL_ASKED
#undef HAL_OF_TWO
#endif
