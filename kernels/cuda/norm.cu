/* kernels/cuda/norm.cu: layer norm, RMS norm and their gradients over rows.
 *
 * A team of warps keeps its row in registers, so x and dy are read once.  In the gradient a team also has a fixed set
 * of rows, of which the next is on its way while one is computed, and keeps their column sums; the sums of teams are
 * added in order, in a block and then (in work) over blocks.  Rows that are too wide for that are read several
 * times. */
#include "kernels/cuda/team.cuh"
#include "kernels/cuda/work.h"

enum { LONG_BLOCK = 512, JOIN = 32 };
/* Elements of a row that a lane keeps, so that a thread needs at most 128 registers. */
template <class T, int V> constexpr int row_lane = V == 1 || sizeof(T) == 8 ? 16 : 32;
template <class T, int V> constexpr int grad_lane = V == 1 || sizeof(T) == 8 ? K_NORM_LANE / 2 : K_NORM_LANE;

/* What an add gives: never contracted into one operation with the product that x may be. */
__device__ __forceinline__ float add_apart(float x, float y) { return __fadd_rn(x, y); }
__device__ __forceinline__ double add_apart(double x, double y) { return __dadd_rn(x, y); }
template <class T> __device__ __forceinline__ T add_rounded(T x, T y)
{
	return narrow<T>(add_apart(widen(x), widen(y)));
}

/* What both norms tell their kernels.  RMS norm is not centred and has no b. */
template <class T> struct NormRows {
	T *y;
	Wide<T> *mean, *rstd;      /* may be NULL */
	T *s;                      /* x + r where r is given */
	const T *x, *w, *b, *r;    /* w, b, r may be NULL; y, s may be x, r */
	int64_t rows, cols;
	double eps;
	bool centred;
};

template <class T>
__device__ __forceinline__ void put_statistics(const NormRows<T> &a, int64_t row, Wide<T> m, Wide<T> r)
{
	if (a.mean)
		a.mean[row] = m;
	if (a.rstd)
		a.rstd[row] = r;
}

template <class T, int V>
static __global__ void __launch_bounds__(TEAM_THREADS) norm_rows(NormRows<T> a, int warps)
{
	using W = Wide<T>;
	constexpr int PER = row_lane<T, V> / V;
	__shared__ W scratch[2 * WARP];
	Team team = team_of(warps);
	int64_t row = (int64_t)blockIdx.x * (blockDim.x / team.size) + team.id;
	int cols = row < a.rows ? (int)a.cols : 0, turn = 0; /* a team without a row takes part in barriers only */
	const T *x = a.x + row * a.cols;
	Vec<T, V> v[PER];
	W s = 0, q = 0;
	#pragma unroll
	for (int k = 0; k < PER; k++) {
		int c = (k * team.size + team.lane) * V;
		v[k] = c < cols ? load<V>(x + c) : Vec<T, V>{};
		if (a.r && c < cols) {
			Vec<T, V> r = load<V>(a.r + row * a.cols + c);
			#pragma unroll
			for (int e = 0; e < V; e++)
				v[k].at[e] = add_rounded(v[k].at[e], r.at[e]);
			store<V>(a.s + row * a.cols + c, v[k]);
		}
		#pragma unroll
		for (int e = 0; e < V; e++)
			s += widen(v[k].at[e]);
	}
	W m = a.centred ? team_reduce_one(s, Sum(), team, scratch, turn) / (W)a.cols : (W)0;
	#pragma unroll
	for (int k = 0; k < PER; k++) {
		int c = (k * team.size + team.lane) * V;
		#pragma unroll
		for (int e = 0; e < V; e++)
			q += c < cols ? (widen(v[k].at[e]) - m) * (widen(v[k].at[e]) - m) : (W)0;
	}
	W r = 1 / sqrt(team_reduce_one(q, Sum(), team, scratch, turn) / (W)a.cols + (W)a.eps);
	#pragma unroll
	for (int k = 0; k < PER; k++) {
		int c = (k * team.size + team.lane) * V;
		if (c >= cols)
			continue;
		Vec<T, V> w = a.w ? load<V>(a.w + c) : Vec<T, V>{}, b = a.b ? load<V>(a.b + c) : Vec<T, V>{}, y;
		#pragma unroll
		for (int e = 0; e < V; e++)
			y.at[e] = narrow<T>((widen(v[k].at[e]) - m) * r * (a.w ? widen(w.at[e]) : (W)1) + widen(b.at[e]));
		store<V>(a.y + row * a.cols + c, y);
	}
	if (cols && team.lane == 0)
		put_statistics(a, row, m, r);
}

/* A block for each row, of any width. */
template <class T> static __global__ void __launch_bounds__(LONG_BLOCK) norm_long(NormRows<T> a)
{
	using W = Wide<T>;
	__shared__ double scratch[33];
	int64_t row = blockIdx.x;
	const T *x = (a.r ? a.s : a.x) + row * a.cols;
	T *y = a.y + row * a.cols;
	double s = 0, q = 0;
	for (int64_t c = threadIdx.x; a.r && c < a.cols; c += blockDim.x) /* each thread reads back only what it wrote */
		a.s[row * a.cols + c] = add_rounded(a.x[row * a.cols + c], a.r[row * a.cols + c]);
	for (int64_t c = threadIdx.x; a.centred && c < a.cols; c += blockDim.x)
		s += (double)widen(x[c]);
	W m = (W)(block_reduce(s, Sum(), scratch) / (double)a.cols);
	for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x)
		q += ((double)widen(x[c]) - (double)m) * ((double)widen(x[c]) - (double)m);
	W r = (W)(1 / sqrt(block_reduce(q, Sum(), scratch) / (double)a.cols + a.eps));
	for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x)
		y[c] = narrow<T>((widen(x[c]) - m) * r * (a.w ? widen(a.w[c]) : (W)1) + (a.b ? widen(a.b[c]) : (W)0));
	if (threadIdx.x == 0)
		put_statistics(a, row, m, r);
}

template <class T, int V> static void norm_forward_by(const NormRows<T> &a)
{
	int warps = team_warps(a.cols, row_lane<T, V>);
	unsigned grid = (unsigned)ceil_div(a.rows, teams_in_block(warps));
	if (a.cols > (int64_t)TEAM_THREADS * row_lane<T, V>)
		LAUNCH(norm_long<T>, (unsigned)a.rows, LONG_BLOCK, 0, k_stream, a);
	else
		LAUNCH((norm_rows<T, V>), grid, team_block(warps), 0, k_stream, a, warps);
}

template <class T> static void norm_forward(const NormRows<T> &a)
{
	constexpr int V = vec_of<T>;
	if (a.rows == 0 || a.cols == 0)
		return;
	if (a.cols % V == 0 && aligned16(a.x) && aligned16(a.y) && aligned16(a.w) && aligned16(a.b) && aligned16(a.r)
		&& aligned16(a.s))
		norm_forward_by<T, V>(a);
	else
		norm_forward_by<T, 1>(a);
}

/* ---- gradients: g = dy w, h = (x - mean) rstd:  dx = rstd (g - [mean g] - h mean(g h));  dw = sum dy h;  db = sum dy.
 * RMS norm is the same without the means. */

template <class T> struct NormGrad {
	T *dx;                     /* may be NULL or dy */
	Wide<T> *part;             /* [block][dw, db][cols], or NULL */
	const T *dy, *x, *w;
	const Wide<T> *mean, *rstd; /* mean NULL: not centred */
	const T *ds;               /* added to dx; may be NULL */
	int64_t rows, cols, blocks;
};

/* What a lane has of a row of a gradient. */
template <class T, int V, int PER> struct GradRow {
	Vec<T, V> x[PER], dy[PER];
	Wide<T> mean, rstd;

	/* Without a row, zeros. */
	__device__ __forceinline__ void read(const NormGrad<T> &a, int64_t row, bool any, const Team &team)
	{
		mean = any && a.mean ? a.mean[row] : (Wide<T>)0;
		rstd = any ? a.rstd[row] : (Wide<T>)0;
		#pragma unroll
		for (int k = 0; k < PER; k++) {
			int c = (k * team.size + team.lane) * V;
			x[k] = any && c < a.cols ? load<V>(a.x + row * a.cols + c) : Vec<T, V>{};
			dy[k] = any && c < a.cols ? load<V>(a.dy + row * a.cols + c) : Vec<T, V>{};
		}
	}
};

/* The column sums of a lane.  put: writes those of all teams of a block to its part; all threads must call it.  joined:
 * 2 cols elements of shared memory, where there are several teams. */
template <class W, int V, int PER> struct ColumnSums {
	W w[PER][V] = {}, b[PER][V] = {};

	__device__ __forceinline__ void put(W *part, W *joined, int64_t cols, const Team &team, int teams) const
	{
		W *to = teams > 1 ? joined : part;
		for (int t = 0; t < teams; t++) {
			#pragma unroll
			for (int k = 0; k < PER; k++)
				#pragma unroll
				for (int e = 0; e < V; e++) {
					int64_t c = (k * team.size + team.lane) * V + e;
					if (team.id == t && c < cols) {
						to[c] = t ? to[c] + w[k][e] : w[k][e];
						to[cols + c] = t ? to[cols + c] + b[k][e] : b[k][e];
					}
				}
			__syncthreads();
		}
		for (int64_t i = threadIdx.x; teams > 1 && i < 2 * cols; i += blockDim.x)
			part[i] = joined[i];
	}
};

template <class T, int V>
static __global__ void __launch_bounds__(TEAM_THREADS) norm_grad_rows(NormGrad<T> a, int warps)
{
	using W = Wide<T>;
	constexpr int PER = grad_lane<T, V> / V;
	__shared__ W scratch[2 * WARP * 2];
	SHARED(W, joined);
	Team team = team_of(warps);
	int in_block = (int)blockDim.x / team.size, turn = 0;
	int64_t id = (int64_t)blockIdx.x * in_block + team.id, teams = (int64_t)gridDim.x * in_block;
	int64_t begin = a.rows * id / teams, end = a.rows * (id + 1) / teams, most = (a.rows + teams - 1) / teams;
	ColumnSums<W, V, PER> sum;
	GradRow<T, V, PER> at, next;
	constexpr bool AHEAD = sizeof(T) == 2; /* wider rows would not fit into registers twice */
	if (AHEAD)
		next.read(a, begin, begin < end, team);
	for (int64_t row = begin; row < begin + most; row++) {
		int cols = row < end ? (int)a.cols : 0;
		if (AHEAD) {
			at = next;
			next.read(a, row + 1, row + 1 < end, team);
		} else {
			at.read(a, row, cols, team);
		}
		W m = at.mean, r = at.rstd, s[2] = {0, 0};
		#pragma unroll
		for (int k = 0; k < PER; k++) {
			int c = (k * team.size + team.lane) * V;
			Vec<T, V> w = a.w && c < cols ? load<V>(a.w + c) : Vec<T, V>{};
			#pragma unroll
			for (int e = 0; e < V; e++) {
				W d = widen(at.dy[k].at[e]), h = (widen(at.x[k].at[e]) - m) * r, g = a.w ? d * widen(w.at[e]) : d;
				sum.w[k][e] += d * h;
				sum.b[k][e] += d;
				s[0] += g;
				s[1] += g * h;
			}
		}
		if (!a.dx)
			continue;
		team_reduce(s, Sum(), team, scratch, turn);
		W mean_g = a.mean ? s[0] / (W)a.cols : (W)0, mean_gh = s[1] / (W)a.cols;
		#pragma unroll
		for (int k = 0; k < PER; k++) {
			int c = (k * team.size + team.lane) * V;
			if (c >= cols)
				continue;
			Vec<T, V> w = a.w ? load<V>(a.w + c) : Vec<T, V>{}, dx;
			#pragma unroll
			for (int e = 0; e < V; e++) {
				W d = widen(at.dy[k].at[e]), h = (widen(at.x[k].at[e]) - m) * r, g = a.w ? d * widen(w.at[e]) : d;
				dx.at[e] = narrow<T>(r * (g - mean_g - h * mean_gh));
			}
			if (a.ds) {
				Vec<T, V> ds = load<V>(a.ds + row * a.cols + c);
				#pragma unroll
				for (int e = 0; e < V; e++)
					dx.at[e] = add_rounded(dx.at[e], ds.at[e]);
			}
			store<V>(a.dx + row * a.cols + c, dx);
		}
	}
	if (a.part)
		sum.put(a.part + 2 * blockIdx.x * a.cols, joined, a.cols, team, in_block);
}

/* A block for each row, of any width; computes dx alone. */
template <class T> static __global__ void __launch_bounds__(LONG_BLOCK) norm_grad_long(NormGrad<T> a)
{
	using W = Wide<T>;
	__shared__ double scratch[33];
	int64_t row = blockIdx.x;
	const T *x = a.x + row * a.cols, *dy = a.dy + row * a.cols;
	W m = a.mean ? a.mean[row] : (W)0, r = a.rstd[row];
	double sg = 0, sh = 0;
	for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
		double g = (double)(widen(dy[c]) * (a.w ? widen(a.w[c]) : (W)1));
		sg += g;
		sh += g * (double)((widen(x[c]) - m) * r);
	}
	sg = block_reduce(sg, Sum(), scratch);
	sh = block_reduce(sh, Sum(), scratch);
	W mean_g = a.mean ? (W)(sg / (double)a.cols) : (W)0, mean_gh = (W)(sh / (double)a.cols);
	for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
		W g = widen(dy[c]) * (a.w ? widen(a.w[c]) : (W)1);
		T dx = narrow<T>(r * (g - mean_g - (widen(x[c]) - m) * r * mean_gh));
		a.dx[row * a.cols + c] = a.ds ? add_rounded(dx, a.ds[row * a.cols + c]) : dx;
	}
}

/* The parts of wide rows: a thread has one column and the rows of one part. */
template <class T> static __global__ void __launch_bounds__(LONG_BLOCK) norm_parts_long(NormGrad<T> a)
{
	using W = Wide<T>;
	int64_t c = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, id = blockIdx.y;
	W sw = 0, sb = 0;
	if (c >= a.cols)
		return;
	for (int64_t row = a.rows * id / a.blocks; row < a.rows * (id + 1) / a.blocks; row++) {
		W d = widen(a.dy[row * a.cols + c]);
		sw += d * ((widen(a.x[row * a.cols + c]) - (a.mean ? a.mean[row] : (W)0)) * a.rstd[row]);
		sb += d;
	}
	a.part[2 * id * a.cols + c] = sw;
	a.part[(2 * id + 1) * a.cols + c] = sb;
}

/* Joins the blocks' sums, of type W.  Blocks have JOIN x JOIN threads: columns, by every JOIN-th part.  y of the grid:
 * dw, db. */
template <class D, class W>
static __global__ void __launch_bounds__(JOIN * JOIN)
norm_join(D *dw, D *db, const W *part, int64_t parts, int64_t cols)
{
	__shared__ double sums[JOIN][JOIN + 1];
	int64_t c = (int64_t)blockIdx.x * JOIN + threadIdx.x;
	D *to = blockIdx.y ? db : dw;
	double s = 0;
	for (int64_t k = threadIdx.y; c < cols && k < parts; k += JOIN)
		s += (double)part[(2 * k + blockIdx.y) * cols + c];
	sums[threadIdx.y][threadIdx.x] = s;
	for (unsigned d = JOIN / 2; d > 0; d /= 2) {
		__syncthreads();
		if (threadIdx.y < d)
			sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + d][threadIdx.x];
	}
	if (threadIdx.y == 0 && c < cols && to)
		to[c] = narrow<D>((W)sums[0][threadIdx.x]);
}

template <class T, int V> static void norm_backward_by(const NormGrad<T> &a)
{
	int warps = team_warps(a.cols, grad_lane<T, V>);
	if (a.cols <= (int64_t)TEAM_THREADS * grad_lane<T, V>) {
		int block = (warps < K_NORM_BLOCK_WARPS ? K_NORM_BLOCK_WARPS : warps) * WARP;
		size_t joined = warps < K_NORM_BLOCK_WARPS ? 2 * (size_t)a.cols * sizeof(Wide<T>) : 16; /* not used */
		LAUNCH((norm_grad_rows<T, V>), (unsigned)a.blocks, block, joined, k_stream, a, warps);
		return;
	}
	if (a.part) /* before dx, which may be dy */
		LAUNCH(norm_parts_long<T>, dim3((unsigned)ceil_div(a.cols, LONG_BLOCK), (unsigned)a.blocks), LONG_BLOCK, 0,
			k_stream, a);
	if (a.dx)
		LAUNCH(norm_grad_long<T>, (unsigned)a.rows, LONG_BLOCK, 0, k_stream, a);
}

/* D is T, or the type that T is computed in. */
template <class T, class D> static void norm_backward(NormGrad<T> a, D *dw, D *db, void *work)
{
	constexpr int V = vec_of<T>;
	bool wide = a.cols % V == 0 && aligned16(a.x) && aligned16(a.dy) && aligned16(a.dx) && aligned16(a.w)
		&& aligned16(a.ds);
	if (a.cols == 0)
		return;
	a.blocks = kwork_norm_blocks(a.rows, a.cols);
	a.part = dw || db ? (Wide<T> *)work : nullptr;
	if (a.rows > 0 && wide)
		norm_backward_by<T, V>(a);
	else if (a.rows > 0)
		norm_backward_by<T, 1>(a);
	if (a.part)
		LAUNCH((norm_join<D, Wide<T>>), dim3((unsigned)ceil_div(a.cols, JOIN), 2), dim3(JOIN, JOIN), 0, k_stream, dw,
			db, a.part, a.rows > 0 ? a.blocks : 0, a.cols);
}

/* D is the type of elements on the device; for 16-bit ones it differs from the raw type of the interface. */
#define NORM(T, W, D, t) \
void k_layer_norm_##t(T *y, W *mean, W *rstd, T *s, const T *x, const T *w, const T *b, const T *r, int64_t rows, \
	int64_t cols, double eps) \
{ \
	norm_forward(NormRows<D>{(D *)y, mean, rstd, (D *)s, (const D *)x, (const D *)w, (const D *)b, (const D *)r, rows, \
		cols, eps, true}); \
} \
void k_rms_norm_##t(T *y, W *rstd, T *s, const T *x, const T *w, const T *r, int64_t rows, int64_t cols, double eps) \
{ \
	norm_forward(NormRows<D>{(D *)y, nullptr, rstd, (D *)s, (const D *)x, (const D *)w, nullptr, (const D *)r, rows, \
		cols, eps, false}); \
} \
NORM_GRAD(T, W, D, T, D, t)
/* G, GD: the type of dw and db. */
#define NORM_GRAD(T, W, D, G, GD, t) \
void k_layer_norm_grad_##t(T *dx, G *dw, G *db, const T *dy, const T *x, const T *w, const W *mean, const W *rstd, \
	const T *ds, int64_t rows, int64_t cols, void *work) \
{ \
	norm_backward(NormGrad<D>{(D *)dx, nullptr, (const D *)dy, (const D *)x, (const D *)w, mean, rstd, (const D *)ds, \
		rows, cols, 0}, (GD *)dw, (GD *)db, work); \
} \
void k_rms_norm_grad_##t(T *dx, G *dw, const T *dy, const T *x, const T *w, const W *rstd, const T *ds, int64_t rows, \
	int64_t cols, void *work) \
{ \
	NormGrad<D> a = {(D *)dx, nullptr, (const D *)dy, (const D *)x, (const D *)w, nullptr, rstd, (const D *)ds, rows, \
		cols, 0}; \
	norm_backward(a, (GD *)dw, (GD *)nullptr, work); \
}
NORM(float, float, float, f32)
NORM(double, double, double, f64)
NORM(uint16_t, float, Bf16, bf16)
NORM(uint16_t, float, F16, f16)
NORM_GRAD(uint16_t, float, Bf16, float, float, bf16_f32)
NORM_GRAD(uint16_t, float, F16, float, float, f16_f32)
