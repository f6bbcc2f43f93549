/* kernels/cuda/loss.cu: softmax cross-entropy, its gradient, and accuracy.
 *
 * A team of warps reads the logits of a row once, 16 bytes at a time wherever the row begins.  Rows are dealt to
 * blocks in chunks, whose number depends on the number of rows alone; the sums of chunks are added in order.  Where the
 * gradient is wanted at once, the row stays in shared memory between, if it fits. */
#include "kernels/cuda/exp_sum.cuh"
#include "kernels/cuda/loss.cuh"
#include "kernels/cuda/work.h"

enum { LOGITS_LANE = 32, ACCURACY_BLOCKS = 256, JOIN_BLOCK = 1024 };

/* Visits row [0, n) by the lanes of a team: one(i, value) for elements before the first multiple of 16 bytes and after
 * the last one, many(i, values) for the rest, 16 bytes at a time.  Values are widened. */
template <class T, class One, class Many>
__device__ __forceinline__ void each_of_row(const T *x, int64_t n, const Team &team, One one, Many many)
{
	constexpr int N = vec_of<T>;
	int64_t head = (int64_t)(-(reinterpret_cast<uintptr_t>(x) / sizeof(T)) & (N - 1));
	head = head < n ? head : n;
	int64_t vectors = (n - head) / N, tail = head + N * vectors;
	if (team.lane < head)
		one(team.lane, widen(x[team.lane]));
	#pragma unroll 4
	for (int64_t i = team.lane; i < vectors; i += team.size) {
		Vec<T, N> v = load<N>(x + head + N * i);
		Vec<float, N> wide;
		#pragma unroll
		for (int k = 0; k < N; k++)
			wide.at[k] = widen(v.at[k]);
		many(head + N * i, wide);
	}
	if (team.lane < n - tail)
		one(tail + team.lane, widen(x[tail + team.lane]));
}

template <class T> struct LossRows {
	const T *logits;
	const float *weights; /* may be NULL */
	const int64_t *labels;
	float *lse;
	int64_t rows, c, pitch, ignore_index; /* pitch: elements from row to row, of the gradient as well */
	double smoothing;
	int64_t first;        /* number of the first row, for messages */
	Bad bad;
};

/* The sum of e^x over row [0, n), for all threads of the team.  All threads of the block must call it.  The visitors
 * are those of each_of_row, for what else is done with the row. */
template <class T, class One, class Many> __device__ __forceinline__ ExpSum<float> exp_sum_of_row(const T *x, int64_t n,
	const Team &team, float *scratch, int &turn, One seen_one, Many seen_many)
{
	ExpSum<float> s = exp_sum_none<float>();
	each_of_row(x, n, team, [&](int64_t i, float v) {
		exp_sum_add(s, {v});
		seen_one(i, v);
	}, [&](int64_t i, const Vec<float, vec_of<T>> &v) {
		exp_sum_add(s, v.at);
		seen_many(i, v);
	});
	return exp_sum_team(s, team, scratch, turn);
}

template <class T> __device__ __forceinline__ ExpSum<float> exp_sum_of_row(const T *x, int64_t n, const Team &team,
	float *scratch, int &turn)
{
	return exp_sum_of_row(x, n, team, scratch, turn, [](int64_t, float) {},
		[](int64_t, const Vec<float, vec_of<T>> &) {});
}

/* The log-sum-exp of a row is max + log.  One number for both has few digits of log where max is far from 0. */
struct LogSum {
	float max, log;

	__device__ float whole() const { return max + log; }
	/* That minus x, with all digits wherever both lie. */
	__device__ double above(float x) const { return (double)max - (double)x + (double)log; }
};
__device__ __forceinline__ LogSum log_sum(const ExpSum<float> &s) { return {s.max, log(s.sum)}; }

/* The sum over the n classes of w (lse - x). */
template <class T> __device__ double loss_of_all(const LossRows<T> &a, const T *x, int64_t n, const LogSum &lse,
	const Team &team, double *scratch, int &turn)
{
	double all = 0;
	for (int64_t i = team.lane; i < n; i += team.size)
		all += (a.weights ? (double)a.weights[i] : 1) * lse.above(widen(x[i]));
	return team_reduce_one(all, Sum(), team, scratch, turn);
}

struct LossSum { double loss, weight; };

/* Adds the loss of a row, (1-e) w[y] (lse - x[y]) + e/C sum_c w[c] (lse - x[c]), whose last sum is `all`. */
template <class T> __device__ void add_loss(LossSum &s, const LossRows<T> &a, const T *x, int64_t row,
	const LogSum &lse, double all)
{
	int64_t y = a.labels[row];
	if (y == a.ignore_index)
		return;
	if (y < 0 || y >= a.c) {
		report_bad(a.bad, K_BAD_LABEL, y, a.first + row, a.c, a.ignore_index);
		return;
	}
	double w = a.weights ? (double)a.weights[y] : 1;
	s.loss += (1 - a.smoothing) * w * lse.above(widen(x[y])) + a.smoothing / (double)a.c * all;
	s.weight += w;
}

/* parts gets the loss and the weight of this block's chunk of rows, of which each team has some.  All threads of the
 * block must call it. */
__device__ void put_parts(double *parts, const LossSum &s, const Team &team, int teams)
{
	__shared__ double of_team[2][TEAM_WARPS];
	if (team.lane == 0) {
		of_team[0][team.id] = s.loss;
		of_team[1][team.id] = s.weight;
	}
	__syncthreads();
	if (threadIdx.x < 2) {
		double sum = 0;
		for (int i = 0; i < teams; i++)
			sum += of_team[threadIdx.x][i];
		parts[2 * (int64_t)blockIdx.x + threadIdx.x] = sum;
	}
}

template <class T>
static __global__ void __launch_bounds__(TEAM_THREADS) cross_entropy_rows(LossRows<T> a, double *parts, int64_t chunks,
	int warps)
{
	__shared__ float scratch[2 * WARP];
	__shared__ double wide_scratch[2 * WARP];
	Team team = team_of(warps);
	int teams = (int)blockDim.x / team.size, turn = 0, wide_turn = 0;
	int64_t end = a.rows * (blockIdx.x + 1) / chunks;
	LossSum sum = {0, 0};
	for (int64_t first = a.rows * blockIdx.x / chunks; first < end; first += teams) {
		int64_t row = first + team.id, n = row < end ? a.c : 0; /* a team without a row takes part in barriers only */
		const T *x = a.logits + row * a.pitch;
		LogSum lse = log_sum(exp_sum_of_row(x, n, team, scratch, turn));
		double all = a.smoothing != 0 ? loss_of_all(a, x, n, lse, team, wide_scratch, wide_turn) : 0;
		if (row >= end || team.lane != 0)
			continue;
		a.lse[row] = lse.whole();
		add_loss(sum, a, x, row, lse, all);
	}
	put_parts(parts, sum, team, teams);
}

static __global__ void __launch_bounds__(JOIN_BLOCK) cross_entropy_join(float *sum, float *weight, const double *parts,
	int64_t chunks)
{
	__shared__ double scratch[33];
	double s = 0, w = 0;
	for (int64_t i = threadIdx.x; i < chunks; i += blockDim.x) {
		s += parts[2 * i];
		w += parts[2 * i + 1];
	}
	s = block_reduce(s, Sum(), scratch);
	w = block_reduce(w, Sum(), scratch);
	if (threadIdx.x == 0) {
		*sum = (float)s;
		*weight = (float)w;
	}
}

/* Returns the number of chunks, which have two parts each. */
template <class T> static int64_t loss_parts(LossRows<T> a, double *parts)
{
	int warps = team_warps(a.c, LOGITS_LANE);
	int64_t chunks = a.rows > 0 && a.c > 0 ? kwork_loss_chunks(a.rows) : 0;
	if (chunks > 0)
		LAUNCH((cross_entropy_rows<T>), (unsigned)chunks, team_block(warps), 0, k_stream, a, parts, chunks, warps);
	return chunks;
}

void loss_join(float *sum, float *weight, const double *parts, int64_t chunks)
{
	LAUNCH(cross_entropy_join, 1, JOIN_BLOCK, 0, k_stream, sum, weight, parts, chunks);
}

/* W, the sum of the classes' weights, where smoothing wants it.  All threads of the block must call it. */
template <class T> __device__ double weight_of_all(const LossRows<T> &a, const Team &team, double *scratch, int &turn)
{
	double all = 0;
	if (!a.weights || a.smoothing == 0)
		return (double)a.c;
	for (int64_t i = team.lane; i < a.c; i += team.size)
		all += (double)a.weights[i];
	return team_reduce_one(all, Sum(), team, scratch, turn);
}

/* The gradient of a row: d x[j] = g ((1-e) w[y] (p[j] - [j=y]) + e/C (W p[j] - w[j])), p = softmax(x).  Zeros if its
 * label does not count. */
struct RowGrad {
	bool counts, smooth;
	int64_t y;
	float shift, p, u, own;
	const float *weights;

	__device__ float at(int64_t i, float x) const
	{
		float left = smooth ? u * (weights ? weights[i] : 1) : 0;
		return counts ? exp(x - shift) * p - left - (i == y ? own : 0) : 0;
	}

	/* Of N neighbours from i on. */
	template <class T, int N> __device__ Vec<T, N> of(int64_t i, const Vec<float, N> &x) const
	{
		Vec<T, N> out;
		#pragma unroll
		for (int k = 0; k < N; k++)
			out.at[k] = narrow<T>(at(i + k, x.at[k]));
		return out;
	}
};

/* softmax(x)[j] is e^(x[j] - shift) scale. */
struct Softmax { float shift, scale; };

/* Whether a row's log-sum-exp has too few digits for its softmax, which then follows from the row's sum. */
__device__ __forceinline__ bool coarse(float lse) { return fabsf(lse) >= (float)K_LSE_COARSE; }
__device__ __forceinline__ Softmax softmax_by(float lse) { return {lse, 1}; }
__device__ __forceinline__ Softmax softmax_by(const ExpSum<float> &s) { return {s.max, 1 / s.sum}; }

template <class T> __device__ RowGrad row_grad(const LossRows<T> &a, int64_t row, Softmax of, float dloss, double all)
{
	int64_t y = a.labels[row];
	bool counts = y != a.ignore_index && y >= 0 && y < a.c;
	double w = counts ? (1 - a.smoothing) * (a.weights ? (double)a.weights[y] : 1) : 0, e = a.smoothing / (double)a.c;
	float g = counts ? dloss : 0;
	float p = (float)(g * (w + e * all)) * of.scale;
	return {counts, a.smoothing != 0, y, of.shift, p, (float)(g * e), (float)(g * w), a.weights};
}

template <class T>
static __global__ void __launch_bounds__(TEAM_THREADS)
cross_entropy_grad_rows(T *dlogits, const float *dloss, LossRows<T> a,
	int warps)
{
	__shared__ float scratch[2 * WARP];
	__shared__ double wide_scratch[2 * WARP];
	__shared__ int any_coarse;
	Team team = team_of(warps);
	int64_t row = (int64_t)blockIdx.x * (blockDim.x / team.size) + team.id, n = row < a.rows ? a.c : 0;
	int turn = 0, wide_turn = 0;
	double all = weight_of_all(a, team, wide_scratch, wide_turn);
	constexpr int N = vec_of<T>;
	const T *x = a.logits + row * a.pitch;
	T *d = dlogits + row * a.pitch;
	float lse = n ? a.lse[row] : 0;
	Softmax of = softmax_by(lse);
	if (threadIdx.x == 0)
		any_coarse = 0;
	__syncthreads();
	if (coarse(lse))
		any_coarse = 1;
	__syncthreads();
	if (any_coarse) {
		ExpSum<float> s = exp_sum_of_row(x, n, team, scratch, turn);
		__syncthreads(); /* d may be x: it is read */
		if (coarse(lse))
			of = softmax_by(s);
	}
	if (n == 0)
		return;
	RowGrad grad = row_grad(a, row, of, *dloss, all);
	auto one = [&](int64_t i, float v) { d[i] = narrow<T>(grad.at(i, v)); };
	if (((reinterpret_cast<uintptr_t>(x) ^ reinterpret_cast<uintptr_t>(d)) & 15) == 0)
		each_of_row(x, n, team, one,
			[&](int64_t i, const Vec<float, N> &v) { store<N>(d + i, grad.template of<T>(i, v)); });
	else
		for (int64_t i = team.lane; i < n; i += team.size)
			one(i, widen(x[i]));
}

template <class T> static void cross_entropy_grad(T *dlogits, const float *dloss, LossRows<T> a)
{
	int warps = team_warps(a.c, LOGITS_LANE);
	if (a.rows > 0 && a.c > 0)
		LAUNCH((cross_entropy_grad_rows<T>), (unsigned)ceil_div(a.rows, teams_in_block(warps)), team_block(warps), 0,
			k_stream, dlogits, dloss, a, warps);
}

template <class T, int N> __device__ __forceinline__ Vec<T, N> narrow_all(const Vec<float, N> &x)
{
	Vec<T, N> out;
	#pragma unroll
	for (int k = 0; k < N; k++)
		out.at[k] = narrow<T>(x.at[k]);
	return out;
}

/* Both at once, of rows that begin at multiples of 16 bytes: the logits become their gradient.  KEPT: a team keeps its
 * row in shared memory from the one to the other, else it reads the row again. */
template <class T, bool KEPT>
static __global__ void __launch_bounds__(TEAM_THREADS)
cross_entropy_and_grad_rows(T *logits, const float *dloss, LossRows<T> a, double *parts, int64_t chunks, int warps)
{
	constexpr int N = vec_of<T>;
	SHARED(T, rows);
	__shared__ float scratch[2 * WARP];
	__shared__ double wide_scratch[2 * WARP];
	Team team = team_of(warps);
	int teams = (int)blockDim.x / team.size, turn = 0, wide_turn = 0;
	int64_t end = a.rows * (blockIdx.x + 1) / chunks;
	T *kept = rows + team.id * ((a.c + N - 1) / N * N);
	double all = weight_of_all(a, team, wide_scratch, wide_turn);
	LossSum sum = {0, 0};
	for (int64_t first = a.rows * blockIdx.x / chunks; first < end; first += teams) {
		int64_t row = first + team.id, n = row < end ? a.c : 0; /* a team without a row takes part in barriers only */
		T *x = logits + row * a.pitch;
		const T *from = KEPT ? kept : x;
		ExpSum<float> s = exp_sum_of_row(x, n, team, scratch, turn, [&](int64_t i, float v) {
			if (KEPT)
				kept[i] = narrow<T>(v);
		}, [&](int64_t i, const Vec<float, N> &v) {
			if (KEPT)
				store<N>(kept + i, narrow_all<T>(v));
		});
		LogSum lse = log_sum(s);
		double of_all = a.smoothing != 0 ? loss_of_all(a, x, n, lse, team, wide_scratch, wide_turn) : 0;
		if (n && team.lane == 0)
			add_loss(sum, a, x, row, lse, of_all);
		__syncthreads(); /* x[y] is read */
		if (!n)
			continue;
		RowGrad grad = row_grad(a, row, coarse(lse.whole()) ? softmax_by(s) : softmax_by(lse.whole()), *dloss, all);
		each_of_row(from, n, team, [&](int64_t i, float v) { x[i] = narrow<T>(grad.at(i, v)); },
			[&](int64_t i, const Vec<float, N> &v) { store<N>(x + i, grad.template of<T>(i, v)); });
	}
	put_parts(parts, sum, team, teams);
}

/* The bytes of shared memory that a block may have beside what is static. */
static int most_kept()
{
	enum { STATIC = 4 << 10 };
	int device = 0, most = 0;
	launched(cudaGetDevice(&device), "cross_entropy");
	launched(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cross_entropy");
	return most - STATIC;
}

template <class T> static int64_t loss_and_grad(LossRows<T> a, double *parts, const float *dloss)
{
	int warps = team_warps(a.c, LOGITS_LANE);
	int64_t chunks = a.rows > 0 && a.c > 0 ? kwork_loss_chunks(a.rows) : 0;
	int64_t bytes = teams_in_block(warps) * ceil_div(a.c, vec_of<T>) * 16; /* of a block's rows */
	int most = most_kept();
	T *x = const_cast<T *>(a.logits);
	if (chunks > 0 && bytes <= most) {
		want_shared(cross_entropy_and_grad_rows<T, true>, most); /* the same for heads of any size: a graph has both */
		LAUNCH((cross_entropy_and_grad_rows<T, true>), (unsigned)chunks, team_block(warps), (size_t)bytes, k_stream, x,
			dloss, a, parts, chunks, warps);
	} else if (chunks > 0) {
		LAUNCH((cross_entropy_and_grad_rows<T, false>), (unsigned)chunks, team_block(warps), 16, k_stream, x, dloss, a,
			parts, chunks, warps); /* of shared memory that is not used */
	}
	return chunks;
}

#define LOSS(S, T, t) \
	void k_cross_entropy_##t(float *sum, float *weight, float *lse, const S *logits, const int64_t *labels, \
		const float *weights, int64_t rows, int64_t c, int64_t pitch, int64_t ignore_index, double smoothing, \
		void *work) \
	{ \
		int64_t chunks = loss_parts<T>({reinterpret_cast<const T *>(logits), weights, labels, lse, rows, c, \
			pitch, ignore_index, smoothing, 0, bad_here()}, (double *)work); \
		loss_join(sum, weight, (const double *)work, chunks); \
	} \
	void k_cross_entropy_grad_##t(S *dlogits, const float *dloss, const S *logits, const int64_t *labels, \
		const float *weights, const float *lse, int64_t rows, int64_t c, int64_t pitch, int64_t ignore_index, \
		double smoothing) \
	{ \
		cross_entropy_grad<T>(reinterpret_cast<T *>(dlogits), dloss, {reinterpret_cast<const T *>(logits), weights, \
			labels, const_cast<float *>(lse), rows, c, pitch, ignore_index, smoothing, 0, nullptr}); \
	}
LOSS(float, float, f32)
LOSS(uint16_t, Bf16, bf16)
LOSS(uint16_t, F16, f16)

template <class T> static LossRows<T> rows_of(const LossBlock &b)
{
	return {(const T *)b.logits, b.weights, b.labels, b.lse, b.rows, b.c, b.pitch, b.ignore_index, b.smoothing, b.first,
		bad_here()};
}

int64_t loss_block(const LossBlock &b, double *parts)
{
	return b.type == K_BF16 ? loss_parts(rows_of<Bf16>(b), parts) : b.type == K_F16 ? loss_parts(rows_of<F16>(b), parts)
		: loss_parts(rows_of<float>(b), parts);
}

int64_t loss_block_grad(const LossBlock &b, double *parts, const float *dloss)
{
	return b.type == K_BF16 ? loss_and_grad(rows_of<Bf16>(b), parts, dloss)
		: b.type == K_F16 ? loss_and_grad(rows_of<F16>(b), parts, dloss)
		: loss_and_grad(rows_of<float>(b), parts, dloss);
}

/* ---- accuracy ---- */

/* Adds a whole number below 2^53: such sums are exact in any order. */
__device__ inline void add_count(double *to, int64_t n)
{
	unsigned long long *bits = reinterpret_cast<unsigned long long *>(to), old = *bits, seen;
	do {
		seen = old;
		old = atomicCAS(bits, seen, (unsigned long long)__double_as_longlong(
			__longlong_as_double((long long)seen) + (double)n));
	} while (old != seen);
}

/* Finds the first of the largest as a loop from index 0 with > does: NaN is never larger, and nothing is larger than
 * NaN.  Thread 0 returns it; all threads of the block take part. */
template <class T> __device__ int64_t arg_max(const T *x, int64_t c, float *tops, int64_t *places)
{
	int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP;
	float top = -INFINITY;
	int64_t place = c;
	for (int64_t i = threadIdx.x; i < c; i += blockDim.x) {
		float v = widen(x[i]);
		if (v > top || (place == c && v == top)) {
			top = v;
			place = i;
		}
	}
	for (int d = WARP / 2; d > 0; d /= 2) {
		float other = __shfl_xor_sync(0xFFFFFFFFu, top, d);
		int64_t at = __shfl_xor_sync(0xFFFFFFFFu, place, d);
		if (other > top || (other == top && at < place)) {
			top = other;
			place = at;
		}
	}
	__syncthreads(); /* the row before may still be read */
	if (lane == 0) {
		tops[warp] = top;
		places[warp] = place;
	}
	__syncthreads();
	for (int k = 1; k < warps && threadIdx.x == 0; k++)
		if (tops[k] > top || (tops[k] == top && places[k] < place)) {
			top = tops[k];
			place = places[k];
		}
	return place == c || widen(x[0]) != widen(x[0]) ? 0 : place;
}

template <class T>
static __global__ void __launch_bounds__(TEAM_THREADS)
accuracy_rows(double *out, const T *logits, const int64_t *labels,
	int64_t rows, int64_t c, int64_t ignore_index)
{
	__shared__ float tops[WARP];
	__shared__ int64_t places[WARP];
	int64_t right = 0, counted = 0;
	for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
		int64_t best = arg_max(logits + row * c, c, tops, places);
		if (threadIdx.x == 0 && labels[row] != ignore_index) {
			counted++;
			right += best == labels[row];
		}
	}
	if (threadIdx.x == 0 && counted > 0) {
		add_count(out, right);
		add_count(out + 1, counted);
	}
}

template <class T>
static __global__ void __launch_bounds__(TEAM_THREADS) arg_max_rows(int64_t *best, const T *logits, int64_t c,
	int64_t pitch)
{
	__shared__ float tops[WARP];
	__shared__ int64_t places[WARP];
	int64_t row = blockIdx.x, place = arg_max(logits + row * pitch, c, tops, places);
	if (threadIdx.x == 0)
		best[row] = place;
}

void loss_block_arg_max(int64_t *best, const LossBlock &b)
{
	unsigned rows = (unsigned)b.rows, threads = b.c > 1024 ? TEAM_THREADS : TEAM_BLOCK;
	if (b.type == K_BF16)
		LAUNCH((arg_max_rows<Bf16>), rows, threads, 0, k_stream, best, (const Bf16 *)b.logits, b.c, b.pitch);
	else if (b.type == K_F16)
		LAUNCH((arg_max_rows<F16>), rows, threads, 0, k_stream, best, (const F16 *)b.logits, b.c, b.pitch);
	else
		LAUNCH((arg_max_rows<float>), rows, threads, 0, k_stream, best, (const float *)b.logits, b.c, b.pitch);
}

static __global__ void count_right(double *out, const int64_t *best, const int64_t *labels, int64_t rows,
	int64_t ignore_index)
{
	int64_t right = 0, counted = 0;
	GRID_STRIDE(i, rows) {
		counted += labels[i] != ignore_index;
		right += labels[i] != ignore_index && best[i] == labels[i];
	}
	if (counted > 0) {
		add_count(out, right);
		add_count(out + 1, counted);
	}
}

template <class T> static void accuracy(double *out, const T *logits, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index)
{
	unsigned grid = (unsigned)(rows < ACCURACY_BLOCKS ? rows : (int64_t)ACCURACY_BLOCKS);
	if (rows > 0 && c > 0)
		LAUNCH((accuracy_rows<T>), grid, c > 1024 ? TEAM_THREADS : TEAM_BLOCK, 0, k_stream, out, logits, labels, rows,
			c, ignore_index);
}

void k_accuracy(double out[2], const void *logits, KDType type, const int64_t *labels, int64_t rows, int64_t c,
	int64_t ignore_index)
{
	if (type == K_I64 && rows > 0)
		LAUNCH(count_right, blocks_for(rows, 64), 256, 0, k_stream, out, (const int64_t *)logits, labels, rows,
			ignore_index);
	else if (type == K_BF16)
		accuracy(out, (const Bf16 *)logits, labels, rows, c, ignore_index);
	else if (type == K_F16)
		accuracy(out, (const F16 *)logits, labels, rows, c, ignore_index);
	else
		accuracy(out, (const float *)logits, labels, rows, c, ignore_index);
}
