/* tests/cudasim/include/cuda_runtime.h: CUDA C++ for g++: qualifiers, built-in variables, launches.
 *
 * The one idea: a kernel is an ordinary function that is called once per thread.  Threads of a block run one after the
 * other on fibers (fiber.cpp); a thread that meets a barrier or an operation of its warp gives way to the others. */
#ifndef CUDASIM_CUDA_RUNTIME_H
#define CUDASIM_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

/* ---- vectors ---- */

struct dim3 {
	unsigned x, y, z;
	constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
#define CUDASIM_VECTORS(T, t) \
	struct alignas(2 * sizeof(T)) t##2 { T x, y; }; \
	struct t##3 { T x, y, z; }; \
	struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) t##4 { T x, y, z, w; }; \
	static inline t##2 make_##t##2(T x, T y) { return {x, y}; } \
	static inline t##3 make_##t##3(T x, T y, T z) { return {x, y, z}; } \
	static inline t##4 make_##t##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDASIM_VECTORS(unsigned, uint)
CUDASIM_VECTORS(int, int)
CUDASIM_VECTORS(float, float)
CUDASIM_VECTORS(double, double)
CUDASIM_VECTORS(short, short)
CUDASIM_VECTORS(unsigned short, ushort)
CUDASIM_VECTORS(char, char)
CUDASIM_VECTORS(unsigned char, uchar)
CUDASIM_VECTORS(long long, longlong)
CUDASIM_VECTORS(unsigned long long, ulonglong)
#undef CUDASIM_VECTORS

/* ---- where a thread is ---- */

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

/* ---- launches ---- */

/* Runs one thread of a block; args: the launch's tuple. */
typedef void (*SimThread)(const void *kernel, const void *args);
/* A launch of a kernel; copies args (bytes, trivially copyable). */
cudaError_t sim_launch_raw(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
	const void *kernel, SimThread thread, const void *args, size_t bytes);

template <class Tuple> struct SimCall;
template <class... P> struct SimCall<std::tuple<P...>> {
	template <class... Q> static void thread(const void *kernel, const void *args)
	{
		std::apply(reinterpret_cast<void (*)(Q...)>(const_cast<void *>(kernel)),
			*static_cast<const std::tuple<P...> *>(args));
	}
};

/* Dies unless p is NULL, or points into or just behind memory that the device can reach. */
void sim_argument(const char *kernel, const void *p);
/* Of the pointers, those to text are handed on and not read. */
template <class T> void sim_check_argument(const char *kernel, const T &a)
{
	if constexpr (std::is_pointer_v<T> && !std::is_same_v<T, const char *>)
		sim_argument(kernel, const_cast<const void *>(static_cast<const volatile void *>(a)));
}

/* Arguments are converted to the kernel's parameters and copied at once, as a launch does. */
template <class... P, class... A>
cudaError_t sim_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
	cudaStream_t stream, A... a)
{
	using Args = std::tuple<std::decay_t<P>...>;
	static_assert(sizeof...(A) == sizeof...(P), "a kernel is launched with as many arguments as it has parameters");
	static_assert((std::is_trivially_copyable_v<std::decay_t<P>> && ...), "parameters of kernels are copied as bytes");
	static_assert(sizeof(Args) <= 4096, "parameters of a kernel take at most 4096 bytes");
	Args args(static_cast<std::decay_t<P>>(a)...);
	(sim_check_argument(name, static_cast<std::decay_t<P>>(a)), ...);
	return sim_launch_raw(name, grid, block, shared, stream, reinterpret_cast<const void *>(kernel),
		&SimCall<Args>::template thread<P...>, &args, sizeof args);
}

#define LAUNCH(kernel, grid, block, shared, stream, ...) \
	launched(sim_launch(#kernel, kernel, (grid), (block), (shared), (stream)__VA_OPT__(,) __VA_ARGS__), #kernel)
void *sim_shared(void);
#define SHARED(type, name) type *name = reinterpret_cast<type *>(sim_shared())

/* ---- the C API for typed pointers ---- */

template <class T> cudaError_t cudaMalloc(T **p, size_t bytes)
{
	return ::cudaMalloc(reinterpret_cast<void **>(p), bytes);
}
template <class T> cudaError_t cudaMallocManaged(T **p, size_t bytes, unsigned flags = cudaMemAttachGlobal)
{
	return ::cudaMallocManaged(reinterpret_cast<void **>(p), bytes, flags);
}
template <class T> cudaError_t cudaMallocHost(T **p, size_t bytes)
{
	return ::cudaMallocHost(reinterpret_cast<void **>(p), bytes);
}
template <class T> cudaError_t cudaHostAlloc(T **p, size_t bytes, unsigned flags)
{
	return ::cudaHostAlloc(reinterpret_cast<void **>(p), bytes, flags);
}
template <class T> cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned flags)
{
	return ::cudaHostGetDevicePointer(reinterpret_cast<void **>(device), host, flags);
}
template <class... P> cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
	return ::cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}
template <class... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, void (*kernel)(P...))
{
	return ::cudaFuncGetAttributes(a, reinterpret_cast<const void *>(kernel));
}

#include <device_functions.h>

#endif
