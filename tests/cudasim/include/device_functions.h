/* tests/cudasim/include/device_functions.h: what kernels call: barriers, operations of a warp, atomics, arithmetic.
 *
 * The one idea: every operation of a warp is sim_warp: lanes leave a pointer to what they bring, the last one to come
 * computes for all of them, and all go on. */
#ifndef CUDASIM_DEVICE_FUNCTIONS_H
#define CUDASIM_DEVICE_FUNCTIONS_H

#include <math.h>
#include <string.h>

/* ---- barriers and warps ---- */

/* All threads of the block. */
void sim_barrier(void);
/* op(lane, mask) once, when all lanes of mask called with the same op; lane[i]: what lane i brought, NULL outside. */
typedef void (*SimWarpOp)(void *const *lane, unsigned mask);
void sim_warp(unsigned mask, void *mine, SimWarpOp op, const char *name);

static inline void __syncthreads(void) { sim_barrier(); }
static inline void sim_nothing(void *const *lane, unsigned mask) { (void)lane; (void)mask; }
static inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) { sim_warp(mask, NULL, sim_nothing, "__syncwarp"); }

/* Counts of __syncthreads_or and its like are made of votes of the block in shared memory by kernels themselves. */

/* src: the lane read; one outside of the group, or not in mask, gives the lane's own value. */
template <class T> struct SimShuffle { T value, result; int src; };
template <class T> void sim_shuffle_op(void *const *lane, unsigned mask)
{
	for (int i = 0; i < 32; i++)
		if (mask >> i & 1) {
			SimShuffle<T> *to = static_cast<SimShuffle<T> *>(lane[i]);
			to->result = (mask >> to->src & 1) ? static_cast<SimShuffle<T> *>(lane[to->src])->value : to->value;
		}
}
template <class T> T sim_shuffle(unsigned mask, T value, int src, const char *name)
{
	SimShuffle<T> mine = {value, value, src};
	sim_warp(mask, &mine, sim_shuffle_op<T>, name);
	return mine.result;
}
int sim_lane(void);
template <class T> T __shfl_sync(unsigned mask, T value, int src, int width = 32)
{
	return sim_shuffle(mask, value, (sim_lane() & ~(width - 1)) | (src & (width - 1)), "__shfl_sync");
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32)
{
	int lane = sim_lane(), src = lane ^ bits;
	return sim_shuffle(mask, value, (src & ~(width - 1)) > (lane & ~(width - 1)) ? lane : src, "__shfl_xor_sync");
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
	int lane = sim_lane(), at = lane & (width - 1);
	return sim_shuffle(mask, value, at + (int)by < width ? lane + (int)by : lane, "__shfl_down_sync");
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
	int lane = sim_lane(), at = lane & (width - 1);
	return sim_shuffle(mask, value, at >= (int)by ? lane - (int)by : lane, "__shfl_up_sync");
}

struct SimVote { unsigned yes, result; };
static inline void sim_vote_op(void *const *lane, unsigned mask)
{
	unsigned all = 0;
	for (int i = 0; i < 32; i++)
		all |= (mask >> i & 1) && static_cast<SimVote *>(lane[i])->yes ? 1u << i : 0;
	for (int i = 0; i < 32; i++)
		if (mask >> i & 1)
			static_cast<SimVote *>(lane[i])->result = all;
}
static inline unsigned __ballot_sync(unsigned mask, int yes)
{
	SimVote mine = {yes != 0, 0};
	sim_warp(mask, &mine, sim_vote_op, "__ballot_sync");
	return mine.result;
}
static inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
static inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) == mask; }
unsigned __activemask(void); /* not emulated: what it gives on a device is not defined well enough to be used */

static inline void __threadfence(void) { __asm__ volatile("" ::: "memory"); }
static inline void __threadfence_block(void) { __asm__ volatile("" ::: "memory"); }
static inline void __threadfence_system(void) { __sync_synchronize(); }
static inline void __nanosleep(unsigned) {}

/* ---- memory: threads of one process never run at once, but the host and other processes do ---- */

template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> void __stcs(T *p, T x) { *p = x; }
template <class T> void __stcg(T *p, T x) { *p = x; }

#define CUDASIM_ATOMICS(T) \
	static inline T atomicAdd(T *p, T x) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); } \
	static inline T atomicExch(T *p, T x) { return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST); } \
	static inline T atomicOr(T *p, T x) { return __atomic_fetch_or(p, x, __ATOMIC_SEQ_CST); } \
	static inline T atomicAnd(T *p, T x) { return __atomic_fetch_and(p, x, __ATOMIC_SEQ_CST); } \
	static inline T atomicCAS(T *p, T old, T x) \
	{ \
		__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
		return old; \
	} \
	static inline T atomicMin(T *p, T x) \
	{ \
		T old = *p; \
		*p = x < old ? x : old; \
		return old; \
	} \
	static inline T atomicMax(T *p, T x) \
	{ \
		T old = *p; \
		*p = x > old ? x : old; \
		return old; \
	}
CUDASIM_ATOMICS(int)
CUDASIM_ATOMICS(unsigned)
CUDASIM_ATOMICS(unsigned long long)
#undef CUDASIM_ATOMICS
static inline unsigned short atomicCAS(unsigned short *p, unsigned short old, unsigned short x)
{
	__atomic_compare_exchange_n(p, &old, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return old;
}

/* ---- bits ---- */

template <class To, class From> To sim_bits(From x)
{
	static_assert(sizeof(To) == sizeof(From));
	To y;
	memcpy(&y, &x, sizeof y);
	return y;
}
static inline unsigned __float_as_uint(float x) { return sim_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return sim_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return sim_bits<float>(x); }
static inline float __int_as_float(int x) { return sim_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return sim_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return sim_bits<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
	__extension__ typedef unsigned __int128 Wide;
	return (unsigned long long)((Wide)a * b >> 64);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select)
{
	unsigned long long both = (unsigned long long)b << 32 | a;
	unsigned y = 0;
	for (int i = 0; i < 4; i++)
		y |= (unsigned)(both >> 8 * (select >> 4 * i & 7) & 0xFF) << 8 * i;
	return y;
}

/* ---- arithmetic ---- */

#define CUDASIM_MINMAX(T) \
	static inline T min(T a, T b) { return b < a ? b : a; } \
	static inline T max(T a, T b) { return a < b ? b : a; }
CUDASIM_MINMAX(int)
CUDASIM_MINMAX(unsigned)
CUDASIM_MINMAX(long)
CUDASIM_MINMAX(unsigned long)
CUDASIM_MINMAX(long long)
CUDASIM_MINMAX(unsigned long long)
#undef CUDASIM_MINMAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

/* Names that the C library has, too. */
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf((x), (y))
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
/* Never contracted: the volatile result is rounded before it is used. */
static inline float __fadd_rn(float a, float b) { volatile float y = a + b; return y; }
static inline float __fsub_rn(float a, float b) { volatile float y = a - b; return y; }
static inline float __fmul_rn(float a, float b) { volatile float y = a * b; return y; }
static inline float __fdiv_rn(float a, float b) { volatile float y = a / b; return y; }
static inline double __dadd_rn(double a, double b) { volatile double y = a + b; return y; }
static inline double __dmul_rn(double a, double b) { volatile double y = a * b; return y; }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __double2float_rn(double x) { return (float)x; }

#endif
