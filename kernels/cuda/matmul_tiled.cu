/* kernels/cuda/matmul_tiled.cu: products by tiles in shared memory, for integers (which wrap), empty sums, and what
 * cublasLt does not serve.
 *
 * A block computes a tile of y, a thread 4 x 4 elements of it.  The sum over k runs in order, in f32 for 16-bit
 * operands, and is rounded once. */
#include <stdio.h>

#include "kernels/cuda/prim.cuh"

enum { TILE = 64, STEP = 16, SIDE = 16, PER = TILE / SIDE, THREADS = SIDE * SIDE };

/* The offset of matrix i of the batch. */
static __device__ int64_t batch_offset(const KMatmulDesc &d, const int64_t *stride, int64_t i)
{
	int64_t at = 0;
	for (int j = d.n_batch - 1; j >= 0; j--) {
		at += i % d.batch[j] * stride[j];
		i /= d.batch[j];
	}
	return at;
}

/* to[k][i] = element (first + i, k0 + k) of `from`, 0 outside rows x sum.  along: elements that are neighbours in
 * memory differ in k; pitch: from one to the next of the others. */
template <class T> static __device__ __forceinline__ void load_tile(Wide<T> (*to)[TILE + 1], const T *from,
	int64_t pitch, int64_t first, int64_t k0, int64_t rows, int64_t sum, bool along)
{
	for (int e = (int)threadIdx.x; e < TILE * STEP; e += THREADS) {
		int i = along ? e / STEP : e % TILE, k = along ? e % STEP : e / TILE;
		int64_t r = first + i, s = k0 + k;
		to[k][i] = r < rows && s < sum ? widen(from[along ? r * pitch + s : s * pitch + r]) : Wide<T>(0);
	}
}

template <class T, class O> static __global__ void __launch_bounds__(THREADS) product(O *y, const T *a, const T *b,
	const T *bias, KMatmulDesc d, int64_t tiles)
{
	__shared__ Wide<T> at[STEP][TILE + 1], bt[STEP][TILE + 1];
	int64_t tm = (d.m + TILE - 1) / TILE, tn = (d.n + TILE - 1) / TILE;
	int row = (int)threadIdx.x / SIDE, col = (int)threadIdx.x % SIDE;
	for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
		int64_t z = tile / (tm * tn), i0 = tile / tn % tm * TILE, j0 = tile % tn * TILE;
		const T *pa = a + batch_offset(d, d.sa, z), *pb = b + batch_offset(d, d.sb, z);
		Wide<T> acc[PER][PER];
		for (int r = 0; r < PER; r++)
			for (int c = 0; c < PER; c++) {
				int64_t j = j0 + col + c * SIDE;
				acc[r][c] = bias && j < d.n ? widen(bias[j]) : Wide<T>(0);
			}
		for (int64_t k0 = 0; k0 < d.k; k0 += STEP) {
			load_tile(at, pa, d.lda, i0, k0, d.m, d.k, !d.ta);
			load_tile(bt, pb, d.ldb, j0, k0, d.n, d.k, d.tb);
			__syncthreads();
			for (int k = 0; k < STEP; k++)
				for (int r = 0; r < PER; r++)
					for (int c = 0; c < PER; c++)
						acc[r][c] += at[k][row + r * SIDE] * bt[k][col + c * SIDE];
			__syncthreads();
		}
		for (int r = 0; r < PER; r++)
			for (int c = 0; c < PER; c++) {
				int64_t i = i0 + row + r * SIDE, j = j0 + col + c * SIDE;
				O *to = y + (z * d.m + i) * d.ldy + j;
				if (i < d.m && j < d.n)
					*to = narrow<O>(d.add ? widen(*to) + acc[r][c] : acc[r][c]);
			}
	}
}

template <class T, class O> static void run(KPrim *p, void *y, const void *a, const void *b, const void *bias, char *)
{
	const KMatmulDesc *d = &p->matmul;
	int64_t tiles = ceil_div(d->m, TILE) * ceil_div(d->n, TILE);
	for (int i = 0; i < d->n_batch; i++)
		tiles *= d->batch[i];
	if (tiles > 0)
		LAUNCH((product<T, O>), (unsigned)(tiles < 1 << 30 ? tiles : 1 << 30), THREADS, 0, k_stream, (O *)y,
			(const T *)a, (const T *)b, (const T *)bias, *d, tiles);
}

void matmul_tiled(KPrim *p)
{
	bool wide = p->matmul.to == K_F32;
	snprintf(p->impl, sizeof p->impl, "own:tiled");
	switch (p->matmul.dtype) {
	case K_F32: p->run = run<float, float>; break;
	case K_F64: p->run = run<double, double>; break;
	case K_F16: p->run = wide ? run<F16, float> : run<F16, F16>; break;
	case K_BF16: p->run = wide ? run<Bf16, float> : run<Bf16, Bf16>; break;
	case K_I64: case K_U64: p->run = run<uint64_t, uint64_t>; break; /* signed: the same bits */
	case K_I32: case K_U32: p->run = run<uint32_t, uint32_t>; break;
	default: k_fail("matmul has no kernel for dtype %d", (int)p->matmul.dtype);
	}
}
