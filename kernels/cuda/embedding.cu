/* kernels/cuda/embedding.cu: the gradient of a gather, which adds rows of dy to rows of a table; several may have the
 * same target.
 *
 * The one idea: a segmented sum (Blelloch 1990).  Ids are sorted with their positions, so each row of the table is one
 * run of the sorted list and is summed in order of position, without atomics.  A block takes K_GATHER_CHUNK entries of
 * the list, however long the runs are; the parts of a run that lies in several chunks are joined later, in order. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/work.h"

enum { SORT_TILE = 1024, SORT_BLOCK = 256, SUM_BLOCK = 128, AHEAD = 4 };

/* ---- sorting ids: keys are id * n_ids + position, all different ---- */

/* Where keys[i] stands after a merge of neighbouring runs of `width` sorted keys; `count` keys in all. */
__device__ __forceinline__ int64_t merged_place(const uint64_t *keys, int64_t i, int64_t width, int64_t count)
{
	int64_t pair = i / (2 * width) * 2 * width, mine = i / width * width;
	int64_t low = mine == pair ? pair + width : pair, high = low + width;
	low = low < count ? low : count;
	high = high < count ? high : count;
	int64_t first = low;
	uint64_t key = keys[i];
	while (low < high) { /* finds the first larger key of the other run */
		int64_t mid = (low + high) / 2;
		if (keys[mid] < key)
			low = mid + 1;
		else
			high = mid;
	}
	return pair + (i - mine) + (low - first);
}

/* Makes the keys of SORT_TILE positions and sorts them. */
static __global__ void __launch_bounds__(SORT_BLOCK)
sort_tiles(uint64_t *keys, const void *ids, int64_t n, int64_t n_ids,
	int id_size, Bad bad)
{
	__shared__ uint64_t tile[2][SORT_TILE];
	int64_t first = (int64_t)blockIdx.x * SORT_TILE;
	int count = (int)(n_ids - first < SORT_TILE ? n_ids - first : (int64_t)SORT_TILE), at = 0;
	for (int i = (int)threadIdx.x; i < count; i += SORT_BLOCK)
		tile[0][i] = (uint64_t)load_index(ids, first + i, id_size, n, bad) * (uint64_t)n_ids + (uint64_t)(first + i);
	__syncthreads();
	for (int width = 1; width < count; width *= 2, at = 1 - at) {
		for (int i = (int)threadIdx.x; i < count; i += SORT_BLOCK)
			tile[1 - at][merged_place(tile[at], i, width, count)] = tile[at][i];
		__syncthreads();
	}
	for (int i = (int)threadIdx.x; i < count; i += SORT_BLOCK)
		keys[first + i] = tile[at][i];
}

static __global__ void __launch_bounds__(SORT_BLOCK) sort_merge(uint64_t *to, const uint64_t *keys, int64_t width,
	int64_t count)
{
	GRID_STRIDE(i, count)
		to[merged_place(keys, i, width, count)] = keys[i];
}

/* Returns the sorted keys, in `keys` or in `spare`, which has room for as many. */
static const uint64_t *sorted_keys(uint64_t *keys, uint64_t *spare, const void *ids, int64_t n, int64_t n_ids,
	int id_size)
{
	LAUNCH(sort_tiles, (unsigned)ceil_div(n_ids, SORT_TILE), SORT_BLOCK, 0, k_stream, keys, ids, n, n_ids, id_size,
		bad_here());
	for (int64_t width = SORT_TILE; width < n_ids; width *= 2) {
		LAUNCH(sort_merge, blocks_for(n_ids, SORT_BLOCK), SORT_BLOCK, 0, k_stream, spare, keys, width, n_ids);
		uint64_t *other = keys;
		keys = spare;
		spare = other;
	}
	return keys;
}

/* ---- sums of runs ---- */

template <class T> struct GatherGrad {
	T *dx;                /* (outer, n, inner) */
	Wide<T> *part;        /* [outer][chunk][2: sum of the run from the chunk before, of the one into the next][inner] */
	const T *dy;          /* (outer, n_ids, inner) */
	const uint64_t *keys;
	int64_t outer, n, inner, n_ids, chunks;
	bool add;
};

template <class T, int V>
__device__ __forceinline__ void put_row(const GatherGrad<T> &a, int64_t o, int64_t id, int64_t j,
	const Wide<T> (&sum)[V])
{
	T *to = a.dx + (o * a.n + id) * a.inner + j;
	Vec<T, V> v = a.add ? load<V>(to) : Vec<T, V>{};
	#pragma unroll
	for (int e = 0; e < V; e++)
		v.at[e] = narrow<T>(widen(v.at[e]) + sum[e]);
	store<V>(to, v);
}

template <class T, int V>
__device__ __forceinline__ void put_part(const GatherGrad<T> &a, int64_t o, int64_t chunk, int side, int64_t j,
	const Wide<T> (&sum)[V])
{
	Wide<T> *to = a.part + ((o * a.chunks + chunk) * 2 + side) * a.inner + j;
	#pragma unroll
	for (int e = 0; e < V; e++)
		to[e] = sum[e];
}

/* The grid is chunks, tiles of columns, outer.  A run that lies inside the chunk is written to dx; of other runs the
 * sum goes to part. */
template <class T, int V> static __global__ void __launch_bounds__(SUM_BLOCK) sum_chunks(GatherGrad<T> a)
{
	__shared__ int64_t id[K_GATHER_CHUNK + 2], position[K_GATHER_CHUNK]; /* id: with one before and one after */
	int64_t chunk = blockIdx.x, first = chunk * K_GATHER_CHUNK, o = blockIdx.z;
	int64_t j = ((int64_t)blockIdx.y * SUM_BLOCK + threadIdx.x) * V;
	int count = (int)(a.n_ids - first < K_GATHER_CHUNK ? a.n_ids - first : (int64_t)K_GATHER_CHUNK);
	for (int i = (int)threadIdx.x; i < count + 2; i += SUM_BLOCK) {
		int64_t at = first + i - 1;
		bool inside = at >= 0 && at < a.n_ids;
		id[i] = inside ? (int64_t)(a.keys[at] / (uint64_t)a.n_ids) : -1;
		if (i >= 1 && i <= count)
			position[i - 1] = (int64_t)(a.keys[at] % (uint64_t)a.n_ids);
	}
	__syncthreads();
	if (j >= a.inner)
		return;
	bool started = id[0] != id[1]; /* the current run begins in this chunk */
	Wide<T> sum[V] = {};
	for (int i = 0; i < count; i += AHEAD) {
		Vec<T, V> row[AHEAD];
		#pragma unroll
		for (int k = 0; k < AHEAD; k++)
			row[k] = i + k < count ? load<V>(a.dy + (o * a.n_ids + position[i + k]) * a.inner + j) : Vec<T, V>{};
		#pragma unroll
		for (int k = 0; k < AHEAD; k++) {
			int at = i + k + 1;
			if (at > count)
				break;
			#pragma unroll
			for (int e = 0; e < V; e++)
				sum[e] += widen(row[k].at[e]);
			bool ends = id[at] != id[at + 1];
			if (started && ends)
				put_row<T, V>(a, o, id[at], j, sum);
			else if (ends || at == count)
				put_part<T, V>(a, o, chunk, started, j, sum);
			if (!ends)
				continue;
			started = true;
			#pragma unroll
			for (int e = 0; e < V; e++)
				sum[e] = 0;
		}
	}
}

/* The grid is that of sum_chunks: a block joins the run that begins in its chunk and continues in the next one. */
template <class T, int V> static __global__ void __launch_bounds__(SUM_BLOCK) join_chunks(GatherGrad<T> a)
{
	int64_t chunk = blockIdx.x, next = (chunk + 1) * K_GATHER_CHUNK, o = blockIdx.z;
	int64_t j = ((int64_t)blockIdx.y * SUM_BLOCK + threadIdx.x) * V;
	auto id_at = [&](int64_t at) { return at >= 0 ? (int64_t)(a.keys[at] / (uint64_t)a.n_ids) : -1; };
	int64_t id = id_at(next - 1);
	if (j >= a.inner || id_at(next) != id || id_at(next - K_GATHER_CHUNK - 1) == id)
		return;
	const Wide<T> *part = a.part + ((o * a.chunks + chunk) * 2 + 1) * a.inner + j;
	Wide<T> sum[V];
	#pragma unroll
	for (int e = 0; e < V; e++)
		sum[e] = part[e];
	for (part += a.inner; next < a.n_ids && id_at(next) == id; next += K_GATHER_CHUNK, part += 2 * a.inner)
		#pragma unroll
		for (int e = 0; e < V; e++)
			sum[e] += part[e];
	put_row<T, V>(a, o, id, j, sum);
}

template <class T, int V> static void sum_runs(const GatherGrad<T> &a)
{
	int64_t tiles = ceil_div(a.inner, SUM_BLOCK * V);
	for (int64_t o = 0; o < a.outer; o += 65535) {
		GatherGrad<T> b = a;
		b.outer = a.outer - o < 65535 ? a.outer - o : 65535;
		b.dx += o * a.n * a.inner;
		b.dy += o * a.n_ids * a.inner;
		b.part += o * a.chunks * 2 * a.inner;
		dim3 grid((unsigned)a.chunks, (unsigned)tiles, (unsigned)b.outer);
		LAUNCH((sum_chunks<T, V>), grid, SUM_BLOCK, 0, k_stream, b);
		grid.x--;
		if (grid.x > 0)
			LAUNCH((join_chunks<T, V>), grid, SUM_BLOCK, 0, k_stream, b);
	}
}

template <class T>
static void gather_grad(T *dx, const T *dy, const void *ids, int64_t outer, int64_t n, int64_t inner, int64_t n_ids,
	bool add, int id_size, void *work)
{
	constexpr int V = vec_of<T>;
	uint64_t *keys = (uint64_t *)work;
	GatherGrad<T> a = {dx, (Wide<T> *)((char *)work + kwork_up(2 * n_ids * 8, 64)), dy, nullptr, outer, n, inner, n_ids,
		ceil_div(n_ids, K_GATHER_CHUNK), add};
	if (outer * n * inner == 0)
		return;
	if (!add)
		launched(cudaMemsetAsync(dx, 0, (size_t)(outer * n * inner) * sizeof(T), k_stream), "zeros");
	if (n_ids == 0)
		return;
	a.keys = sorted_keys(keys, keys + n_ids, ids, n, n_ids, id_size);
	if (inner % V == 0 && aligned16(dx) && aligned16(dy))
		sum_runs<T, V>(a);
	else
		sum_runs<T, 1>(a);
}

/* D is the type of elements on the device; for 16-bit ones it differs from the raw type of the interface. */
#define GATHER_GRAD(T, D, t) \
void k_gather_grad_##t(T *dx, const T *dy, const void *ids, int64_t outer, int64_t n, int64_t inner, int64_t n_ids, \
	bool add, int id_size, void *work) \
{ \
	gather_grad((D *)dx, (const D *)dy, ids, outer, n, inner, n_ids, add, id_size, work); \
}
GATHER_GRAD(float, float, f32)
GATHER_GRAD(double, double, f64)
GATHER_GRAD(uint16_t, Bf16, bf16)
GATHER_GRAD(uint16_t, F16, f16)
