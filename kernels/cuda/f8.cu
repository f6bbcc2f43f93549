/* kernels/cuda/f8.cu: tensors as 8-bit floats with one scale for each (kernels/f8.h).
 *
 * The largest magnitude is a maximum of bits: those of |x| order as the numbers do, NaN is the largest, and the order
 * of a maximum changes nothing.  A tile is read once for both forms: rows leave as they come, columns by way of shared
 * memory. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/work.h"
#include "kernels/f8.h"

enum { THREADS = 256, SIDE = 64, PIECE = 8, COLUMN = 16, PITCH = SIDE + 4, FLOATS = 4 };

/* ---- scale ---- */

/* The bits of |x|. */
static __device__ __forceinline__ unsigned bits_of(uint16_t x) { return x & 0x7fffu; }
static __device__ __forceinline__ unsigned bits_of(float x) { return ew_bits(x) & 0x7fffffffu; }

/* The largest that the threads of a block meet, in its first thread; elements lie in `pieces` vectors of N, and behind
 * them. */
template <int N, class T> static __device__ unsigned largest_of(const T *x, int64_t n, int64_t pieces)
{
	__shared__ unsigned scratch[33];
	unsigned most = 0;
	GRID_STRIDE(i, pieces) {
		Vec<T, N> v = load<N>(x + i * N);
		#pragma unroll
		for (int e = 0; e < N; e++)
			most = max(most, bits_of(v.at[e]));
	}
	GRID_STRIDE(i, n - pieces * N)
		most = max(most, bits_of(x[pieces * N + i]));
	return block_reduce(most, Max(), scratch);
}

static __global__ void __launch_bounds__(THREADS) largest(unsigned *part, const uint16_t *x, int64_t n, int64_t pieces)
{
	unsigned most = largest_of<PIECE>(x, n, pieces);
	if (threadIdx.x == 0)
		part[blockIdx.x] = most;
}

static __global__ void __launch_bounds__(THREADS) take_scale(float *scale, const unsigned *part, int n, bool e4m3)
{
	__shared__ unsigned scratch[33];
	unsigned most = 0;
	for (int i = (int)threadIdx.x; i < n; i += THREADS)
		most = max(most, part[i]);
	most = block_reduce(most, Max(), scratch);
	if (threadIdx.x == 0)
		*scale = f8_scale(ew_cast_bf16_f32((uint16_t)most), e4m3);
}

void k_f8_scale_bf16(float *scale, const uint16_t *x, KDType to, int64_t n, void *work)
{
	int64_t pieces = aligned16(x) ? n / PIECE : 0;
	unsigned blocks = blocks_for(n, THREADS * PIECE * 4);
	blocks = blocks < K_F8_BLOCKS ? blocks : (unsigned)K_F8_BLOCKS;
	LAUNCH(largest, blocks, THREADS, 0, k_stream, (unsigned *)work, x, n, pieces);
	LAUNCH(take_scale, 1, THREADS, 0, k_stream, scale, (const unsigned *)work, (int)blocks, to == K_E4M3);
}

/* ---- weights of f32 ---- */

static __global__ void __launch_bounds__(THREADS) largest_f32(unsigned *most, const float *x, int64_t n,
	int64_t pieces)
{
	unsigned mine = largest_of<FLOATS>(x, n, pieces);
	if (threadIdx.x == 0)
		atomicMax(most, mine);
}

void k_f8_largest_f32(float *most, const float *x, int64_t n)
{
	unsigned blocks = blocks_for(n, THREADS * PIECE * 4);
	blocks = blocks < K_F8_BLOCKS ? blocks : (unsigned)K_F8_BLOCKS;
	LAUNCH(largest_f32, blocks, THREADS, 0, k_stream, (unsigned *)most, x, n, aligned16(x) ? n / FLOATS : 0);
}

static __global__ void __launch_bounds__(THREADS) cast_f8(uint8_t *out, const float *in, const float *scale, int64_t n,
	int64_t pieces)
{
	float inverse = 1 / *scale;
	GRID_STRIDE(i, pieces) {
		Vec<float, FLOATS> v = load<FLOATS>(in + i * FLOATS);
		Vec<uint8_t, FLOATS> y;
		#pragma unroll
		for (int e = 0; e < FLOATS; e++)
			y.at[e] = f8_from_weight(v.at[e], inverse);
		store(out + i * FLOATS, y);
	}
	GRID_STRIDE(i, n - pieces * FLOATS)
		out[pieces * FLOATS + i] = f8_from_weight(in[pieces * FLOATS + i], inverse);
}

void k_device_cast_f8(uint8_t *out, const float *in, const float *scale, int64_t n)
{
	bool whole = aligned16(in) && aligned16(out);
	LAUNCH(cast_f8, blocks_for(n, THREADS * FLOATS), THREADS, 0, k_stream, out, in, scale, n, whole ? n / FLOATS : 0);
}

/* ---- rounding ---- */

/* Two numbers, lo in the low byte; the instruction gives the bits of f8_from_float. */
template <bool E4M3> static __device__ __forceinline__ uint32_t two(float lo, float hi)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
	uint16_t y;
	if (E4M3)
		asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(y) : "f"(hi), "f"(lo));
	else
		asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(y) : "f"(hi), "f"(lo));
	return y;
#else
	return f8_from_float(lo, E4M3) | (uint32_t)f8_from_float(hi, E4M3) << 8;
#endif
}

/* Writes the columns of the block's tile of an (m, k) matrix as rows of (k, m). */
static __device__ __forceinline__ void put_columns(uint8_t *columns, const uint8_t *tile, int64_t m, int64_t k)
{
	int c = (int)threadIdx.x / (SIDE / COLUMN), r = (int)threadIdx.x % (SIDE / COLUMN) * COLUMN;
	int64_t row = (int64_t)blockIdx.x * SIDE + r, column = (int64_t)blockIdx.y * SIDE + c;
	if (row >= m || column >= k)
		return;
	Vec<uint8_t, COLUMN> y;
	#pragma unroll
	for (int e = 0; e < COLUMN; e++)
		y.at[e] = tile[(r + e) * PITCH + c];
	store(columns + column * m + row, y);
}

/* m is a multiple of COLUMN, k of PIECE. */
template <bool E4M3> static __global__ void __launch_bounds__(THREADS)
tiles(uint8_t *rows, uint8_t *columns, const uint16_t *x, const float *scale, int64_t m, int64_t k)
{
	__shared__ uint8_t tile[SIDE * PITCH];
	int64_t r0 = (int64_t)blockIdx.x * SIDE, c0 = (int64_t)blockIdx.y * SIDE;
	float inverse = 1 / *scale;
	for (int i = (int)threadIdx.x; i < SIDE * SIDE / PIECE; i += THREADS) {
		int r = i / (SIDE / PIECE), c = i % (SIDE / PIECE) * PIECE;
		if (r0 + r >= m || c0 + c >= k)
			continue;
		Vec<uint16_t, PIECE> v = load<PIECE>(x + (r0 + r) * k + c0 + c);
		Vec<uint32_t, PIECE / 4> y;
		#pragma unroll
		for (int e = 0; e < PIECE; e += 4) {
			uint32_t lo = two<E4M3>(ew_cast_bf16_f32(v.at[e]) * inverse, ew_cast_bf16_f32(v.at[e + 1]) * inverse);
			uint32_t hi = two<E4M3>(ew_cast_bf16_f32(v.at[e + 2]) * inverse, ew_cast_bf16_f32(v.at[e + 3]) * inverse);
			y.at[e / 4] = lo | hi << 16;
		}
		if (rows)
			*reinterpret_cast<Vec<uint32_t, PIECE / 4> *>(rows + (r0 + r) * k + c0 + c) = y;
		#pragma unroll
		for (int e = 0; e < PIECE; e++)
			tile[r * PITCH + c + e] = (uint8_t)(y.at[e / 4] >> e % 4 * 8);
	}
	__syncthreads();
	if (columns)
		put_columns(columns, tile, m, k);
}

/* m and k are multiples of COLUMN. */
static __global__ void __launch_bounds__(THREADS) turn(uint8_t *y, const uint8_t *x, int64_t m, int64_t k)
{
	__shared__ uint8_t tile[SIDE * PITCH];
	int64_t r0 = (int64_t)blockIdx.x * SIDE, c0 = (int64_t)blockIdx.y * SIDE;
	for (int i = (int)threadIdx.x; i < SIDE * SIDE / COLUMN; i += THREADS) {
		int r = i / (SIDE / COLUMN), c = i % (SIDE / COLUMN) * COLUMN;
		if (r0 + r >= m || c0 + c >= k)
			continue;
		Vec<uint8_t, COLUMN> v = load<COLUMN>(x + (r0 + r) * k + c0 + c);
		#pragma unroll
		for (int e = 0; e < COLUMN; e++)
			tile[r * PITCH + c + e] = v.at[e];
	}
	__syncthreads();
	put_columns(y, tile, m, k);
}

static __global__ void turn_elements(uint8_t *y, const uint8_t *x, int64_t m, int64_t k)
{
	GRID_STRIDE(i, m * k)
		y[i % k * m + i / k] = x[i];
}

void k_turn_f8(uint8_t *y, const uint8_t *x, int64_t m, int64_t k)
{
	dim3 grid((unsigned)ceil_div(m, SIDE), (unsigned)ceil_div(k, SIDE));
	bool whole = m % COLUMN == 0 && k % COLUMN == 0 && aligned16(x) && aligned16(y) && grid.y <= 65535;
	if (m * k == 0)
		return;
	if (whole)
		LAUNCH(turn, grid, THREADS, 0, k_stream, y, x, m, k);
	else
		LAUNCH(turn_elements, blocks_for(m * k, THREADS), THREADS, 0, k_stream, y, x, m, k);
}

/* Any shape. */
static __global__ void elements(uint8_t *rows, uint8_t *columns, const uint16_t *x, const float *scale, bool e4m3,
	int64_t m, int64_t k)
{
	float inverse = 1 / *scale;
	GRID_STRIDE(i, m * k) {
		uint8_t y = f8_from_float(ew_cast_bf16_f32(x[i]) * inverse, e4m3);
		if (rows)
			rows[i] = y;
		if (columns)
			columns[i % k * m + i / k] = y;
	}
}

void k_to_f8_bf16(uint8_t *rows, uint8_t *columns, const uint16_t *x, const float *scale, KDType to, int64_t m,
	int64_t k)
{
	dim3 grid((unsigned)ceil_div(m, SIDE), (unsigned)ceil_div(k, SIDE));
	bool whole = m % COLUMN == 0 && k % PIECE == 0 && aligned16(x) && aligned16(rows) && aligned16(columns);
	if (m * k == 0)
		return;
	if (!whole || grid.y > 65535)
		LAUNCH(elements, blocks_for(m * k, THREADS), THREADS, 0, k_stream, rows, columns, x, scale, to == K_E4M3, m, k);
	else if (to == K_E4M3)
		LAUNCH((tiles<true>), grid, THREADS, 0, k_stream, rows, columns, x, scale, m, k);
	else
		LAUNCH((tiles<false>), grid, THREADS, 0, k_stream, rows, columns, x, scale, m, k);
}
