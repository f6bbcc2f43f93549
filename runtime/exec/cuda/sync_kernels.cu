/* runtime/exec/cuda/sync_kernels.cu: merges batch norm statistics, and scales of weights, of all ranks, as
 * exec/cpu/sync.c does.
 *
 * Every rank merges all messages in rank order and in f64, with one thread per channel, so all have equal bits; with
 * one rank the result equals the input. */
#include "base/collectives.h"
#include "kernels/cuda/common.cuh"
#include "kernels/f8.h"
#include "runtime/exec/cuda/words.h"

enum { THREADS = 128 };

template <class T> static __global__ void pack(T *message, const T *a, const T *b, int64_t n)
{
	GRID_STRIDE(i, n) {
		message[2 * i] = a[i];
		message[2 * i + 1] = b[i];
	}
}

template <class T> static __global__ void merge_moments(T *mean_out, T *var_out, T *running, const T *all, int ranks,
	int64_t channels, double unbiased)
{
	GRID_STRIDE(i, channels) {
		double mean = (double)all[2 * i], sum = (double)all[2 * i + 1];
		for (int r = 1; r < ranks; r++) {
			const T *of = all + 2 * channels * r;
			double delta = (double)of[2 * i] - mean;
			mean += delta / (r + 1);
			sum += (double)of[2 * i + 1] + delta * delta * r / (r + 1);
		}
		mean_out[i] = (T)mean;
		var_out[i] = (T)(sum / ranks);
		running[i] = (T)(sum / ranks * unbiased);
	}
}

template <class T> static __global__ void merge_means(T *a, T *b, const T *all, int ranks, int64_t channels)
{
	GRID_STRIDE(i, channels) {
		double x = (double)all[2 * i], y = (double)all[2 * i + 1];
		for (int r = 1; r < ranks; r++) {
			const T *of = all + 2 * channels * r;
			x += (double)of[2 * i];
			y += (double)of[2 * i + 1];
		}
		a[i] = (T)(x / ranks);
		b[i] = (T)(y / ranks);
	}
}

template <class T> static void pack_all(void *message, const void *a, const void *b, int64_t n, cudaStream_t s)
{
	LAUNCH(pack<T>, blocks_for(n, THREADS), THREADS, 0, s, (T *)message, (const T *)a, (const T *)b, n);
}

void sync_pack(void *message, KDType dtype, const void *a, const void *b, int64_t channels, cudaStream_t s)
{
	if (dtype == K_F64)
		pack_all<double>(message, a, b, channels, s);
	else
		pack_all<float>(message, a, b, channels, s);
}

template <class T> static void moments(void *const out[3], const void *all, int ranks, int64_t n, double unbiased,
	cudaStream_t s)
{
	LAUNCH(merge_moments<T>, blocks_for(n, THREADS), THREADS, 0, s, (T *)out[0], (T *)out[1], (T *)out[2],
		(const T *)all, ranks, n, unbiased);
}

void sync_merge_moments(void *const out[3], KDType dtype, const void *all, int ranks, int64_t channels, int64_t n,
	cudaStream_t s)
{
	double unbiased = collective_unbiased(n, ranks);
	if (dtype == K_F64)
		moments<double>(out, all, ranks, channels, unbiased, s);
	else
		moments<float>(out, all, ranks, channels, unbiased, s);
}

template <class T> static void means(void *const out[2], const void *all, int ranks, int64_t n, cudaStream_t s)
{
	LAUNCH(merge_means<T>, blocks_for(n, THREADS), THREADS, 0, s, (T *)out[0], (T *)out[1], (const T *)all, ranks, n);
}

void sync_merge_means(void *const out[2], KDType dtype, const void *all, int ranks, int64_t channels, cudaStream_t s)
{
	if (dtype == K_F64)
		means<double>(out, all, ranks, channels, s);
	else
		means<float>(out, all, ranks, channels, s);
}

/* Bits of numbers that are not negative order as the numbers do, and NaN is the largest. */
static __global__ void merge_scales(float *scale, int64_t apart, const float *all, int64_t stride,
	int ranks, int64_t n)
{
	GRID_STRIDE(i, n) {
		uint32_t most = 0;
		for (int r = 0; r < ranks; r++)
			most = max(most, ew_bits(all[(r * n + i) * stride]));
		scale[i * apart] = f8_weight_scale(ew_float(most));
	}
}

void sync_merge_scales(float *scale, int64_t apart, const float *all, int64_t stride, int ranks, int64_t n,
	cudaStream_t s)
{
	LAUNCH(merge_scales, blocks_for(n, THREADS), THREADS, 0, s, scale, apart, all, stride, ranks, n);
}
