/* tests/cudasim/include/cuda_fp16.h: IEEE half as its bits, rounded to nearest even. */
#ifndef CUDASIM_CUDA_FP16_H
#define CUDASIM_CUDA_FP16_H

#include <cuda_runtime.h>

struct __half { unsigned short bits; };
typedef __half half;
struct alignas(4) __half2 { __half x, y; };
typedef __half2 half2;
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
static inline float __half2float(__half x) { return (float)sim_bits<_Float16>(x.bits); }
static inline __half __float2half_rn(float x)
{
	if (x != x)
		return {0x7FFF};
	return {sim_bits<unsigned short>((_Float16)x)};
}
static inline __half __float2half(float x) { return __float2half_rn(x); }
static inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
static inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }

#endif
