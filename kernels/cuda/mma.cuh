/* kernels/cuda/mma.cuh: tensor cores, matrix loads and asynchronous copies: the inline PTX of all kernels.
 *
 * Each function exists twice with one meaning: in PTX, and as plain code for the emulation (mma_sim.cuh), which keeps
 * every fragment where the hardware keeps it.  With g = lane / 4 and i = 2 (lane % 4), and two elements a register:
 *   A (16 x 16): a[0] row g, columns i i+1; a[1] row g + 8; a[2], a[3] the same rows, columns i+8 i+9
 *   B (16 x 8):  b[0] rows i i+1, column g; b[1] rows i+8 i+9
 *   C (16 x 8):  c[0] c[1] row g, columns i i+1; c[2] c[3] row g + 8
 * so the C of two neighbouring tiles, rounded, is an A: see pack_a.
 *
 * A tile in shared memory is rows of W elements of 16 bits, in chunks of 8.  Chunk c of row r stands at c ^ (r & 7),
 * so that neither matrix loads nor 16-byte stores have bank conflicts. */
#ifndef SHARDC_CUDA_MMA_CUH
#define SHARDC_CUDA_MMA_CUH

#include "kernels/cuda/common.cuh"

#ifdef CUDASIM
#include "kernels/cuda/mma_sim.cuh"
#else
/* c += a b */
template <class T> __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> __device__ __forceinline__ void mma<Bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
		"{%0,%1,%2,%3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ __forceinline__ void mma<F16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
		"{%0,%1,%2,%3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		: "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Loads four 8 x 8 matrices; the address of row k (16 bytes) of matrix m comes from lane 8 m + k.  A lane gets
 * elements i and i+1 of row g of each matrix; load_transposed gives it elements (i, g) and (i + 1, g). */
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const void *row)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		: "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

/* Begins to copy global memory to shared memory in the background, or to write zeros (then nothing is read).  After
 * copies_wait, the copies that a thread began are visible to it, and after the next __syncthreads to its block. */
__device__ __forceinline__ void copy16_async(void *to, const void *from, bool zero)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"((uint32_t)__cvta_generic_to_shared(to)),
		"l"(__cvta_generic_to_global(from)), "r"(zero ? 0 : 16) : "memory");
}
__device__ __forceinline__ void copy4_async(void *to, const void *from, bool zero)
{
	asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"((uint32_t)__cvta_generic_to_shared(to)),
		"l"(__cvta_generic_to_global(from)), "r"(zero ? 0 : 4) : "memory");
}
__device__ __forceinline__ void copies_wait(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Two elements in a register, lo in the lower half. */
template <class T> __device__ __forceinline__ uint32_t pack2(float lo, float hi);
template <> __device__ __forceinline__ uint32_t pack2<Bf16>(float lo, float hi)
{
	uint32_t r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}
template <> __device__ __forceinline__ uint32_t pack2<F16>(float lo, float hi)
{
	uint32_t r;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

/* 2^x, where results below the smallest normal number are 0. */
__device__ __forceinline__ float exp2_fast(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}
#endif

/* ---- tiles ---- */

/* Element where chunk c of row r begins. */
template <int W> __device__ __forceinline__ int at_chunk(int r, int c) { return r * W + (c ^ (r & 7)) * 8; }

/* The chunk of the matrix `from` that this thread copies of the first row, or rows, of a tile. */
template <int W, class T> __device__ __forceinline__ const T *own_chunk(const T *from, int64_t stride)
{
	return from + (int)threadIdx.x / (W / 8) * stride + (int)threadIdx.x % (W / 8) * 8;
}

/* Begins to copy the next ROWS rows of a matrix into a tile; elements beyond `rows` rows or `width` columns become
 * zeros.  own: the own_chunk of the first of these rows, which takes fewer registers in a loop than row numbers do.
 * stride and width are in elements, multiples of 8. */
template <int ROWS, int W, int THREADS, class T> __device__ __forceinline__ void tile_next(T *tile, const T *own,
	int64_t stride, int rows, int width)
{
	constexpr int CHUNKS = W / 8, STEP = THREADS / CHUNKS; /* rows that all threads copy at once */
	static_assert(ROWS % STEP == 0 && STEP % 8 == 0, "every thread copies as many chunks, at one place of its rows");
	int r = (int)threadIdx.x / CHUNKS, c = (int)threadIdx.x % CHUNKS, end = c * 8 < width ? rows - r : 0;
	tile += at_chunk<W>(r, c);
	#pragma unroll
	for (int i = 0; i < ROWS; i += STEP, own += STEP * stride)
		copy16_async(tile + i * W, own, i >= end);
}

/* The same for rows [first, first + ROWS) of a matrix; `from` is its row 0, `rows` the number of its rows. */
template <int ROWS, int W, int THREADS, class T> __device__ __forceinline__ void tile_begin(T *tile, const T *from,
	int64_t stride, int first, int rows, int width)
{
	tile_next<ROWS, W, THREADS>(tile, own_chunk<W>(from, stride) + first * stride, stride, rows - first, width);
}

/* A from rows r.. and columns k.. of a tile. */
template <int W, class T> __device__ __forceinline__ void load_a(uint32_t (&a)[4], const T *tile, int r, int k)
{
	int lane = (int)threadIdx.x % WARP;
	load_matrices(a, tile + at_chunk<W>(r + lane % 16, k / 8 + lane / 16));
}

/* B of columns n..n+7 (b[0] b[1]) and n+8..n+15 (b[2] b[3]) and rows k.., from a tile whose rows are B's columns. */
template <int W, class T> __device__ __forceinline__ void load_b(uint32_t (&b)[4], const T *tile, int n, int k)
{
	int lane = (int)threadIdx.x % WARP;
	load_matrices(b, tile + at_chunk<W>(n + lane / 16 * 8 + lane % 8, k / 8 + lane / 8 % 2));
}

/* The same from a tile whose rows are B's rows. */
template <int W, class T> __device__ __forceinline__ void load_b_rows(uint32_t (&b)[4], const T *tile, int n, int k)
{
	int lane = (int)threadIdx.x % WARP;
	load_transposed(b, tile + at_chunk<W>(k + lane % 16, n / 8 + lane / 16));
}

/* A of 16 columns from the C of two neighbouring tiles. */
template <class T> __device__ __forceinline__ void pack_a(uint32_t (&a)[4], const float (&left)[4],
	const float (&right)[4])
{
	a[0] = pack2<T>(left[0], left[1]);
	a[1] = pack2<T>(left[2], left[3]);
	a[2] = pack2<T>(right[0], right[1]);
	a[3] = pack2<T>(right[2], right[3]);
}

/* c (16 MT x 8 NT) += a (16 MT x 16 KS, in fragments) b^T.  b: a tile whose row n is column n of the right operand. */
template <class T, int W, int MT, int NT, int KS> __device__ __forceinline__ void product_bt(float (&c)[MT][NT][4],
	const uint32_t (&a)[MT][KS][4], const T *b)
{
	#pragma unroll
	for (int k = 0; k < KS; k++)
		#pragma unroll
		for (int n = 0; n < NT; n += 2) {
			uint32_t f[4];
			load_b<W>(f, b, n * 8, k * 16);
			#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma<T>(c[m][n], a[m][k], f[0], f[1]);
				mma<T>(c[m][n + 1], a[m][k], f[2], f[3]);
			}
		}
}

/* The same, where a is 16 MT rows of a tile, from `row` on. */
template <class T, int W, int MT, int NT> __device__ __forceinline__ void product_tiles_bt(float (&c)[MT][NT][4],
	const T *a, int row, const T *b)
{
	#pragma unroll 2 /* more would use more registers */
	for (int k = 0; k < W / 16; k++) {
		uint32_t fa[MT][4];
		#pragma unroll
		for (int m = 0; m < MT; m++)
			load_a<W>(fa[m], a, row + 16 * m, k * 16);
		#pragma unroll
		for (int n = 0; n < NT; n += 2) {
			uint32_t f[4];
			load_b<W>(f, b, n * 8, k * 16);
			#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma<T>(c[m][n], fa[m], f[0], f[1]);
				mma<T>(c[m][n + 1], fa[m], f[2], f[3]);
			}
		}
	}
}

/* c (16 MT x W) += round(p) b, where p (16 MT x 8 NT) is held as C and b (8 NT x W) is the rows of a tile. */
template <class T, int W, int MT, int NT> __device__ __forceinline__ void product_rounded(float (&c)[MT][W / 8][4],
	const float (&p)[MT][NT][4], const T *b)
{
	#pragma unroll
	for (int k = 0; k < NT / 2; k++) {
		uint32_t a[MT][4];
		#pragma unroll
		for (int m = 0; m < MT; m++)
			pack_a<T>(a[m], p[m][2 * k], p[m][2 * k + 1]);
		#pragma unroll
		for (int n = 0; n < W / 8; n += 2) {
			uint32_t f[4];
			load_b_rows<W>(f, b, n * 8, k * 16);
			#pragma unroll
			for (int m = 0; m < MT; m++) {
				mma<T>(c[m][n], a[m], f[0], f[1]);
				mma<T>(c[m][n + 1], a[m], f[2], f[3]);
			}
		}
	}
}

/* Rounds a warp's c (16 MT x W) into rows row.. of a tile, which no other warp uses, and stores those of them that are
 * below `rows` to `to`, `width` elements each.  first: the matrix's row that is row 0 of the tile; to: row 0 of the
 * matrix. */
template <class T, int W, int MT> __device__ __forceinline__ void store_rows(T *to, int64_t stride, int first, int rows,
	int width, T *tile, int row, const float (&c)[MT][W / 8][4])
{
	int lane = (int)threadIdx.x % WARP, g = lane / 4, i = lane % 4 * 2;
	__syncwarp();
	#pragma unroll
	for (int m = 0; m < MT; m++)
		#pragma unroll
		for (int n = 0; n < W / 8; n++)
			#pragma unroll
			for (int half = 0; half < 2; half++)
				*reinterpret_cast<uint32_t *>(tile + at_chunk<W>(row + 16 * m + 8 * half + g, n) + i) =
					pack2<T>(c[m][n][2 * half], c[m][n][2 * half + 1]);
	__syncwarp();
	#pragma unroll
	for (int at = lane; at < MT * 16 * W / 8; at += WARP) {
		int r = row + at / (W / 8), col = at % (W / 8);
		if (first + r < rows && col * 8 < width)
			store(to + (first + r) * stride + col * 8, load<8>(tile + at_chunk<W>(r, col)));
	}
}

#endif
