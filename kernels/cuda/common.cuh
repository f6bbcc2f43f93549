/* kernels/cuda/common.cuh: what CUDA kernels share: launches, reductions in a fixed order, 16-byte accesses.
 *
 * Every launch goes through LAUNCH, and dynamic shared memory through SHARED, so that g++ can build the same text for
 * an emulation (tests/cudasim).  A kernel whose name contains a comma needs parentheses: LAUNCH((f<T, 4>), ...).
 *
 * A sum has one order for one shape: first within a thread, then by a tree in the warp, then over warps.  There are no
 * float atomics. */
#ifndef SHARDC_CUDA_COMMON_CUH
#define SHARDC_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/cuda.h"
#include "kernels/ew.h"

#ifndef CUDASIM
#define LAUNCH(kernel, grid, block, shared, stream, ...) \
	do { \
		kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__); \
		launched(cudaGetLastError(), #kernel); \
	} while (0)
#define SHARED(type, name) extern __shared__ __align__(16) unsigned char name##_bytes[]; \
	type *name = reinterpret_cast<type *>(name##_bytes)
#endif

static inline void launched(cudaError_t e, const char *kernel)
{
	if (e != cudaSuccess)
		k_fail("%s cannot be launched: %s", kernel, cudaGetErrorString(e));
}

/* Allows a kernel more dynamic shared memory than the 48 KiB that every kernel may have. */
template <class Kernel> void want_shared(Kernel *kernel, int bytes)
{
	if (bytes > 48 << 10)
		launched(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
			"a kernel with much shared memory");
}

enum { WARP = 32 };

/* ---- elements: T is stored, computed in Wide<T> ---- */

struct Bf16 { uint16_t bits; };
struct F16 { uint16_t bits; };
template <class T> struct WideOf { using type = T; };
template <> struct WideOf<Bf16> { using type = float; };
template <> struct WideOf<F16> { using type = float; };
template <class T> using Wide = typename WideOf<T>::type;
template <class T> __device__ __forceinline__ T widen(T x) { return x; }
__device__ __forceinline__ float widen(Bf16 x) { return ew_cast_bf16_f32(x.bits); }
__device__ __forceinline__ float widen(F16 x) { return __half2float(__ushort_as_half(x.bits)); }
template <class T> struct Narrow {
	static __device__ __forceinline__ T from(Wide<T> x) { return x; }
};
template <> struct Narrow<Bf16> {
	static __device__ __forceinline__ Bf16 from(float x) { return {__bfloat16_as_ushort(__float2bfloat16_rn(x))}; }
};
template <> struct Narrow<F16> {
	static __device__ __forceinline__ F16 from(float x) { return {__half_as_ushort(__float2half_rn(x))}; }
};
template <class T> __device__ __forceinline__ T narrow(Wide<T> x) { return Narrow<T>::from(x); }

/* N elements that move in one access, or in several of 16 bytes.  p is aligned to the size of an access. */
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec { T at[N]; };
template <class T> constexpr int vec_of = 16 / (int)sizeof(T);
template <int N, class T> __device__ __forceinline__ Vec<T, N> load(const T *p)
{
	return *reinterpret_cast<const Vec<T, N> *>(p);
}
template <int N, class T> __device__ __forceinline__ void store(T *p, const Vec<T, N> &v)
{
	*reinterpret_cast<Vec<T, N> *>(p) = v;
}
static inline bool aligned16(const void *p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

/* Bytes that move without regard to their type: the largest access, up to 16 bytes, that divides every number or-ed
 * into `all`. */
struct alignas(16) Bytes16 { uint64_t at[2]; };
static inline int64_t address_of(const void *p) { return (int64_t)reinterpret_cast<uintptr_t>(p); }
static inline int widest(int64_t all) { return (int)((all | 16) & -(all | 16)); }

/* ---- reductions ---- */

struct Sum { template <class T> __device__ T operator()(T a, T b) const { return a + b; } };
struct Max { template <class T> __device__ T operator()(T a, T b) const { return a > b || a != a ? a : b; } };

/* All lanes get the result. */
template <class T, class Op> __device__ __forceinline__ T warp_reduce(T x, Op op)
{
	for (int d = WARP / 2; d > 0; d /= 2)
		x = op(x, __shfl_xor_sync(0xFFFFFFFFu, x, d));
	return x;
}

/* Over a block of a multiple of 32 threads; all threads call it and get the result.  scratch: 33 elements of shared
 * memory. */
template <class T, class Op> __device__ __forceinline__ T block_reduce(T x, Op op, T *scratch)
{
	int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, n = (int)blockDim.x / WARP;
	x = warp_reduce(x, op);
	__syncthreads(); /* the call before may still read scratch */
	if (lane == 0)
		scratch[warp] = x;
	__syncthreads();
	if (threadIdx.x == 0) {
		T all = scratch[0];
		for (int i = 1; i < n; i++)
			all = op(all, scratch[i]);
		scratch[32] = all;
	}
	__syncthreads();
	return scratch[32];
}

/* ---- bad input ---- */

/* Where a kernel reports bad input, and the node that is launched, a string of the host. */
struct Bad {
	KBad *to; /* may be NULL */
	const char *node;
};

inline Bad bad_here()
{
	return {k_bad_report, k_node};
}

/* Whether this is the first bad input: later ones change nothing. */
__device__ inline bool is_first_bad(Bad bad, KBadKind kind)
{
	if (bad.to == nullptr || atomicCAS(&bad.to->kind, (int)K_BAD_NONE, (int)kind) != (int)K_BAD_NONE)
		return false;
	bad.to->node = bad.node;
	return true;
}

/* ignored: the ignored label, for K_BAD_LABEL. */
__device__ inline void report_bad(Bad bad, KBadKind kind, int64_t value, int64_t position, int64_t limit,
	int64_t ignored = 0)
{
	if (!is_first_bad(bad, kind))
		return;
	bad.to->value = value;
	bad.to->position = position;
	bad.to->limit = limit;
	bad.to->ignored = ignored;
}

/* Of a number outside of low..high.  what: a string of the host, which names it. */
__device__ inline void report_outside(Bad bad, const char *what, double x, int64_t position, double low, double high)
{
	if (!is_first_bad(bad, K_BAD_OUTSIDE))
		return;
	bad.to->what = what;
	bad.to->number = x;
	bad.to->position = position;
	bad.to->low = low;
	bad.to->high = high;
}

/* Index i of ids, counted from the end where negative.  An index out of range is reported and read as 0. */
__device__ __forceinline__ int64_t load_index(const void *ids, int64_t i, int id_size, int64_t n, Bad bad)
{
	int64_t v = id_size == 8 ? ((const int64_t *)ids)[i] : ((const int32_t *)ids)[i];
	int64_t at = v < 0 ? v + n : v;
	if (at >= 0 && at < n)
		return at;
	report_bad(bad, K_BAD_INDEX, v, i, n);
	return 0;
}

/* ---- grids ---- */

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* Blocks for a grid-stride loop over n items, `per` items a block: enough to fill any device, few enough to launch
 * fast. */
static inline unsigned blocks_for(int64_t n, int64_t per)
{
	int64_t b = ceil_div(n, per);
	return (unsigned)(b < 1 ? 1 : b > 65535 ? 65535 : b);
}
#define GRID_STRIDE(i, n) \
	for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

#endif
