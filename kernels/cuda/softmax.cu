/* kernels/cuda/softmax.cu: softmax and log-softmax along any axis, and their gradients.  A row of -inf gives NaN, as
 * 0/0 does.
 *
 * Along the last axis a team of warps keeps its row in registers; longer rows are read twice.  Along other axes
 * neighbouring threads have neighbouring columns, and SLICES threads share a column. */
#include "kernels/cuda/exp_sum.cuh"

enum { SLICES = 8 };
/* Elements of a row that a lane keeps, so that a thread needs at most 128 registers. */
template <class T, int V> constexpr int row_lane = V == 1 || sizeof(T) == 8 ? 16 : 32;
template <class T, int V> constexpr int grad_lane = V == 1 || sizeof(T) == 8 ? 8 : 16;

template <class T> struct Softmax {
	T *y;                /* result: y, or dx in a gradient; may be x or dy */
	const T *x, *dy;     /* x: the operand x, or y in a gradient */
	int64_t outer, n, inner;
	bool log;
};

/* ---- rows (inner is 1) in registers ---- */

template <class T, int V> static __global__ void __launch_bounds__(TEAM_THREADS) softmax_rows(Softmax<T> a, int warps)
{
	using W = Wide<T>;
	constexpr int PER = row_lane<T, V> / V;
	__shared__ W scratch[2 * WARP];
	Team team = team_of(warps);
	int64_t row = (int64_t)blockIdx.x * (blockDim.x / team.size) + team.id;
	int n = row < a.outer ? (int)a.n : 0, turn = 0; /* a team without a row takes part in barriers only */
	W v[PER][V], top = -(W)INFINITY, sum = 0;
	#pragma unroll
	for (int k = 0; k < PER; k++) {
		int i = (k * team.size + team.lane) * V;
		Vec<T, V> x = i < n ? load<V>(a.x + row * a.n + i) : Vec<T, V>{};
		#pragma unroll
		for (int e = 0; e < V; e++) {
			v[k][e] = i < n ? widen(x.at[e]) : -(W)INFINITY;
			top = v[k][e] > top ? v[k][e] : top;
		}
	}
	W shift = exp_shift(team_reduce_one(top, Max(), team, scratch, turn));
	#pragma unroll
	for (int k = 0; k < PER; k++)
		#pragma unroll
		for (int e = 0; e < V; e++) {
			W power = exp(v[k][e] - shift);
			sum += power;
			v[k][e] = a.log ? v[k][e] - shift : power;
		}
	sum = team_reduce_one(sum, Sum(), team, scratch, turn);
	W scale = a.log ? (W)1 : 1 / sum, less = a.log ? log(sum) : (W)0;
	#pragma unroll
	for (int k = 0; k < PER; k++) {
		int i = (k * team.size + team.lane) * V;
		Vec<T, V> y;
		#pragma unroll
		for (int e = 0; e < V; e++)
			y.at[e] = narrow<T>(v[k][e] * scale - less);
		if (i < n)
			store<V>(a.y + row * a.n + i, y);
	}
}

/* softmax: dx = y (dy - sum(dy y));  log: dx = dy - e^y sum(dy) */
template <class W> __device__ __forceinline__ W softmax_dx(W y, W dy, W sum, bool logarithm)
{
	return logarithm ? dy - exp(y) * sum : y * (dy - sum);
}

template <class T, int V> static __global__ void __launch_bounds__(TEAM_THREADS)
softmax_grad_rows(Softmax<T> a, int warps)
{
	using W = Wide<T>;
	constexpr int PER = grad_lane<T, V> / V;
	__shared__ W scratch[2 * WARP];
	Team team = team_of(warps);
	int64_t row = (int64_t)blockIdx.x * (blockDim.x / team.size) + team.id;
	int n = row < a.outer ? (int)a.n : 0, turn = 0;
	Vec<T, V> y[PER], dy[PER];
	W sum = 0;
	#pragma unroll
	for (int k = 0; k < PER; k++) {
		int i = (k * team.size + team.lane) * V;
		y[k] = i < n ? load<V>(a.x + row * a.n + i) : Vec<T, V>{};
		dy[k] = i < n ? load<V>(a.dy + row * a.n + i) : Vec<T, V>{};
	}
	#pragma unroll
	for (int k = 0; k < PER; k++)
		#pragma unroll
		for (int e = 0; e < V; e++)
			sum += widen(dy[k].at[e]) * (a.log ? (W)1 : widen(y[k].at[e]));
	sum = team_reduce_one(sum, Sum(), team, scratch, turn);
	#pragma unroll
	for (int k = 0; k < PER; k++) {
		int i = (k * team.size + team.lane) * V;
		Vec<T, V> dx;
		#pragma unroll
		for (int e = 0; e < V; e++)
			dx.at[e] = narrow<T>(softmax_dx(widen(y[k].at[e]), widen(dy[k].at[e]), sum, a.log));
		if (i < n)
			store<V>(a.y + row * a.n + i, dx);
	}
}

/* ---- rows of any length, a block each ---- */

template <class T> static __global__ void __launch_bounds__(TEAM_THREADS) softmax_long(Softmax<T> a)
{
	using W = Wide<T>;
	__shared__ W scratch[2 * WARP];
	Team team = team_of(TEAM_WARPS);
	const T *x = a.x + (int64_t)blockIdx.x * a.n;
	T *y = a.y + (int64_t)blockIdx.x * a.n;
	ExpSum<W> s = exp_sum_none<W>();
	int turn = 0;
	for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x)
		exp_sum_add(s, {widen(x[i])});
	s = exp_sum_team(s, team, scratch, turn);
	W shift = exp_shift(s.max), scale = 1 / s.sum, less = log(s.sum);
	for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x)
		y[i] = narrow<T>(a.log ? widen(x[i]) - shift - less : exp(widen(x[i]) - shift) * scale);
}

template <class T> static __global__ void __launch_bounds__(TEAM_THREADS) softmax_grad_long(Softmax<T> a)
{
	using W = Wide<T>;
	__shared__ double scratch[33];
	int64_t from = (int64_t)blockIdx.x * a.n;
	double sum = 0;
	for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x)
		sum += (double)(widen(a.dy[from + i]) * (a.log ? (W)1 : widen(a.x[from + i])));
	W all = (W)block_reduce(sum, Sum(), scratch);
	for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x)
		a.y[from + i] = narrow<T>(softmax_dx(widen(a.x[from + i]), widen(a.dy[from + i]), all, a.log));
}

/* ---- columns: blocks of WARP columns x SLICES ---- */

template <class T> static __global__ void __launch_bounds__(WARP * SLICES) softmax_cols(Softmax<T> a)
{
	using W = Wide<T>;
	__shared__ W tops[SLICES][WARP], sums[SLICES][WARP];
	int64_t col = (int64_t)blockIdx.x * WARP + threadIdx.x, n = col < a.outer * a.inner ? a.n : 0;
	int64_t from = col / a.inner * a.n * a.inner + col % a.inner;
	ExpSum<W> s = exp_sum_none<W>();
	for (int64_t i = threadIdx.y; i < n; i += SLICES)
		exp_sum_add(s, {widen(a.x[from + i * a.inner])});
	tops[threadIdx.y][threadIdx.x] = s.max;
	sums[threadIdx.y][threadIdx.x] = s.sum;
	__syncthreads();
	W top = tops[0][threadIdx.x], sum = 0;
	for (int k = 1; k < SLICES; k++)
		top = Max()(top, tops[k][threadIdx.x]);
	W shift = exp_shift(top);
	for (int k = 0; k < SLICES; k++)
		sum += sums[k][threadIdx.x] * exp_ratio(tops[k][threadIdx.x], top);
	W scale = 1 / sum, less = log(sum);
	for (int64_t i = threadIdx.y; i < n; i += SLICES) {
		W x = widen(a.x[from + i * a.inner]);
		a.y[from + i * a.inner] = narrow<T>(a.log ? x - shift - less : exp(x - shift) * scale);
	}
}

template <class T> static __global__ void __launch_bounds__(WARP * SLICES) softmax_grad_cols(Softmax<T> a)
{
	using W = Wide<T>;
	__shared__ W sums[SLICES][WARP];
	int64_t col = (int64_t)blockIdx.x * WARP + threadIdx.x, n = col < a.outer * a.inner ? a.n : 0;
	int64_t from = col / a.inner * a.n * a.inner + col % a.inner;
	W mine = 0, sum = 0;
	for (int64_t i = threadIdx.y; i < n; i += SLICES)
		mine += widen(a.dy[from + i * a.inner]) * (a.log ? (W)1 : widen(a.x[from + i * a.inner]));
	sums[threadIdx.y][threadIdx.x] = mine;
	__syncthreads();
	for (int k = 0; k < SLICES; k++)
		sum += sums[k][threadIdx.x];
	for (int64_t i = threadIdx.y; i < n; i += SLICES) {
		int64_t at = from + i * a.inner;
		a.y[at] = narrow<T>(softmax_dx(widen(a.x[at]), widen(a.dy[at]), sum, a.log));
	}
}

/* ---- which of them ---- */

template <class T, int V> static void softmax_of_rows(const Softmax<T> &a)
{
	int warps = team_warps(a.n, row_lane<T, V>);
	unsigned grid = (unsigned)ceil_div(a.outer, teams_in_block(warps));
	if (a.n > (int64_t)TEAM_THREADS * row_lane<T, V>)
		LAUNCH(softmax_long<T>, (unsigned)a.outer, TEAM_THREADS, 0, k_stream, a);
	else
		LAUNCH((softmax_rows<T, V>), grid, team_block(warps), 0, k_stream, a, warps);
}

template <class T> static void softmax(const Softmax<T> &a)
{
	constexpr int V = vec_of<T>;
	if (a.outer == 0 || a.n == 0 || a.inner == 0)
		return;
	if (a.inner > 1)
		LAUNCH(softmax_cols<T>, (unsigned)ceil_div(a.outer * a.inner, WARP), dim3(WARP, SLICES), 0, k_stream, a);
	else if (a.n % V == 0 && aligned16(a.x) && aligned16(a.y))
		softmax_of_rows<T, V>(a);
	else
		softmax_of_rows<T, 1>(a);
}

template <class T, int V> static void softmax_grad_of_rows(const Softmax<T> &a)
{
	int warps = team_warps(a.n, grad_lane<T, V>);
	unsigned grid = (unsigned)ceil_div(a.outer, teams_in_block(warps));
	if (a.n > (int64_t)TEAM_THREADS * grad_lane<T, V>)
		LAUNCH(softmax_grad_long<T>, (unsigned)a.outer, TEAM_THREADS, 0, k_stream, a);
	else
		LAUNCH((softmax_grad_rows<T, V>), grid, team_block(warps), 0, k_stream, a, warps);
}

template <class T> static void softmax_grad(const Softmax<T> &a)
{
	constexpr int V = vec_of<T>;
	if (a.outer == 0 || a.n == 0 || a.inner == 0)
		return;
	if (a.inner > 1)
		LAUNCH(softmax_grad_cols<T>, (unsigned)ceil_div(a.outer * a.inner, WARP), dim3(WARP, SLICES), 0, k_stream, a);
	else if (a.n % V == 0 && aligned16(a.x) && aligned16(a.y) && aligned16(a.dy))
		softmax_grad_of_rows<T, V>(a);
	else
		softmax_grad_of_rows<T, 1>(a);
}

/* D is the type of elements on the device; for 16-bit ones it differs from the raw type of the interface. */
#define SOFTMAX(T, D, t, name, logarithm) \
void k_##name##_##t(T *y, const T *x, int64_t outer, int64_t n, int64_t inner) \
{ \
	softmax(Softmax<D>{(D *)y, (const D *)x, nullptr, outer, n, inner, logarithm}); \
} \
void k_##name##_grad_##t(T *dx, const T *dy, const T *y, int64_t outer, int64_t n, int64_t inner) \
{ \
	softmax_grad(Softmax<D>{(D *)dx, (const D *)y, (const D *)dy, outer, n, inner, logarithm}); \
}
#define BOTH(T, D, t) SOFTMAX(T, D, t, softmax, false) SOFTMAX(T, D, t, log_softmax, true)
BOTH(float, float, f32)
BOTH(double, double, f64)
BOTH(uint16_t, Bf16, bf16)
BOTH(uint16_t, F16, f16)
