/* kernels/cuda/attention.cu: k_attention_* and k_attention_grad_*.  It chooses the kernels that serve a problem, and
 * computes the row sums that the gradient needs. */
#include "kernels/cuda/attention.cuh"

enum { ROWS = 8, THREADS = ROWS * WARP };

/* What the gradient needs of each row, one warp a row: delta = the sum of dy o, shift = log-sum-exp times unit, share =
 * 1.  A row that sees no key gets 0 and infinity, so that it adds nothing to any sum. */
template <class T> static __global__ void __launch_bounds__(THREADS) row_sums(float *delta, float *shift, float *share,
	const T *dy, const T *o, const float *lse, Attention a, int64_t rows, float unit)
{
	int64_t at = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, bh = at / a.t;
	if (at >= rows || !head_wanted(a, (int)(bh / a.h), (int)(bh % a.h)))
		return;
	int64_t from = head_at(a.o, (int)(bh / a.h), (int)(bh % a.h)) + at % a.t * a.o.row;
	bool empty = lse[at] == -INFINITY;
	float sum = 0;
	for (int i = (int)threadIdx.x % WARP; !empty && i < a.dv; i += WARP)
		sum += widen(dy[from + i]) * widen(o[from + i]);
	sum = warp_reduce(sum, Sum());
	if (threadIdx.x % WARP == 0) {
		delta[at] = sum;
		shift[at] = empty ? INFINITY : lse[at] * unit;
		share[at] = 1;
	}
}

/* The shares of coarse rows (K_LSE_COARSE), one warp a row: one over the sum of exp(score - log-sum-exp). */
template <class T> static __global__ void __launch_bounds__(THREADS) coarse_rows(float *share, Backward<T> x,
	Attention a, int64_t rows)
{
	int64_t at = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
	int b = (int)(at / a.t / a.h), h = (int)(at / a.t % a.h), r = (int)(at % a.t);
	if (at >= rows || !head_wanted(a, b, h) || !(fabsf(x.lse[at]) > (float)K_LSE_COARSE) || isinf(x.lse[at]))
		return;
	const T *q = x.q + head_at(a.q, b, h) + r * a.q.row, *keys = x.k + head_at(a.k, b, h / a.group);
	float sum = 0, cap;
	for (int s = first_key(a, r) + (int)threadIdx.x % WARP; s < end_key(a, r); s += WARP) {
		if (!same_document(a, b, r, s))
			continue;
		const T *k = keys + s * a.k.row;
		float raw = 0;
		for (int i = 0; i < a.d; i++)
			raw += widen(q[i]) * widen(k[i]);
		sum += expf(score<T>(a, b * a.mask_stride[0] + h * a.mask_stride[1], r, s, raw, cap) - x.lse[at]);
	}
	sum = warp_reduce(sum, Sum());
	if (threadIdx.x % WARP == 0)
		share[at] = 1 / sum;
}

/* Marks the kv heads that have a row whose log-sum-exp is coarse, -inf or NaN; one warp a kv head of `rows` rows. */
static __global__ void __launch_bounds__(THREADS) mark_heads(int *redo, const float *lse, int64_t heads, int64_t rows)
{
	int64_t head = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
	bool coarse = false;
	if (head >= heads)
		return;
	for (int64_t i = threadIdx.x % WARP; i < rows; i += WARP)
		coarse = coarse || !(fabsf(lse[head * rows + i]) <= (float)K_LSE_COARSE);
	coarse = __any_sync(0xFFFFFFFFu, coarse);
	if (threadIdx.x % WARP == 0)
		redo[head] = coarse;
}

static int limit_of(bool has, int64_t limit)
{
	const int64_t most = 1 << 30; /* more than there are positions */
	return (int)(!has || limit > most ? most : limit < -most ? -most : limit);
}

/* What a call passes besides tensors of the element type. */
struct Rest { const void *mask, *ids; uint64_t id; const StepScalars *scalars; const int *redo; };

static Attention attention_of(const KAttention *a, const Rest &x)
{
	const void *mask = x.mask;
	const int64_t blocks = a->b * a->h * ceil_div(a->t > a->s ? a->t : a->s, ROWS); /* no kernel here has more */
	if (a->t > 1 << 29 || a->s > 1 << 29 || a->d > 1 << 20 || a->dv > 1 << 20 || blocks > INT32_MAX)
		k_fail("attention: %lld samples x %lld heads, %lld rows, %lld keys or head sizes %lld and %lld are too large: "
			"at most 2^29 rows and keys, head sizes of 2^20, and 2^31 of samples x heads x rows (or keys) / %d",
			(long long)a->b, (long long)a->h, (long long)a->t, (long long)a->s, (long long)a->d, (long long)a->dv,
			(int)ROWS);
	Attention p = {};
	p.h = (int)a->h, p.group = (int)(a->h / a->hk);
	p.t = (int)a->t, p.s = (int)a->s, p.d = (int)a->d, p.dv = (int)a->dv;
	p.left = limit_of(a->has_left, a->left), p.right = limit_of(a->has_right, a->right);
	p.scale = a->scale, p.softcap = a->softcap, p.empty_nan = a->empty_nan;
	p.mask_kind = mask ? a->mask : K_MASK_NONE, p.mask = mask;
	for (int i = 0; i < 4; i++)
		p.mask_stride[i] = a->mask_stride[i];
	p.ids = x.ids, p.ids32 = a->ids32, p.id_stride = a->id_stride;
	if (a->p > 0) {
		p.kept = (float)(1 / (1 - a->p)), p.threshold = (uint32_t)philox_threshold(a->p);
		p.id = x.id, p.scalars = x.scalars, p.heads = a->b * a->h, p.pre = a->pre, p.rows = a->rows;
	}
	p.q = place_of(a->layout, a->h, a->t, a->d, a->q_pitch);
	p.k = place_of(a->layout, a->hk, a->s, a->d, a->k_pitch);
	p.v = place_of(a->layout, a->hk, a->s, a->dv, a->v_pitch);
	p.grad_q = place_of(a->layout, a->h, a->t, a->d, a->dq_pitch);
	p.grad_k = place_of(a->layout, a->hk, a->s, a->d, a->dk_pitch);
	p.grad_v = place_of(a->layout, a->hk, a->s, a->dv, a->dv_pitch);
	p.o = place_of(a->layout, a->h, a->t, a->dv, 0);
	p.redo = x.redo;
	return p;
}

/* Whether the kernels for tensor cores take heads of these sizes, and rows of 16-bit elements at this pitch. */
static bool fits(const KAttention *a) { return a->d % 8 == 0 && a->dv % 8 == 0 && a->d <= 128 && a->dv <= 128; }
static bool fits(const void *rows, int64_t pitch) { return aligned16(rows) && pitch % 8 == 0; }

template <class T> static void run(const Forward<T> &x, const Rest &rest, const KAttention *a)
{
	Attention p = attention_of(a, rest);
	if (a->b * a->h * a->t == 0)
		return;
	if constexpr (sizeof(T) == 2)
		if (fits(a) && fits(x.o, 0) && fits(x.q, a->q_pitch) && fits(x.k, a->k_pitch) && fits(x.v, a->v_pitch))
			return attention_mma(x, p, (int)a->b);
	attention_plain(x, p, (int)a->b);
}

template <class T> static void run_grad(Backward<T> x, const Rest &rest, const KAttention *a, void *work)
{
	Attention p = attention_of(a, rest);
	int64_t rows = a->b * a->h * a->t;
	bool cores = sizeof(T) == 2 && fits(a) && fits(x.dy, 0) && fits(x.q, a->q_pitch) && fits(x.k, a->k_pitch)
		&& fits(x.v, a->v_pitch) && fits(x.dq, a->dq_pitch) && fits(x.dk, a->dk_pitch) && fits(x.dv, a->dv_pitch);
	float *delta = static_cast<float *>(work), *shift = delta + rows, *share = shift + rows;
	unsigned blocks = (unsigned)ceil_div(rows, ROWS);
	if (rows > 0)
		LAUNCH(row_sums<T>, blocks, THREADS, 0, k_stream, delta, shift, share, x.dy, x.o, x.lse, p, rows,
			cores && kind_of(p) == PLAIN ? LOG2_E : 1);
	if (rows > 0 && (p.mask_kind == K_MASK_FLOAT || p.mask_kind == K_MASK_HALF))
		LAUNCH(coarse_rows<T>, blocks, THREADS, 0, k_stream, share, x, p, rows);
	x.delta = delta;
	x.shift = shift;
	x.share = share;
	if constexpr (sizeof(T) == 2)
		if (cores)
			return attention_mma_grad(x, p, (int)a->b, (int)a->hk);
	attention_plain_grad(x, p, (int)a->b, (int)a->hk);
}

/* Element types of kernels.h and of the kernels have the same representation. */
template <class To, class From> static To *as(From *p) { return reinterpret_cast<To *>(p); }

template <class E, class T> static void forward(T *o, float *lse, const T *q, const T *k, const T *v, const Rest &rest,
	const KAttention *a)
{
	run<E>({as<E>(o), lse, as<const E>(q), as<const E>(k), as<const E>(v)}, rest, a);
}

template <class E, class T> static void gradient(T *dq, T *dk, T *dv, const T *dy, const T *q, const T *k, const T *v,
	const T *o, const float *lse, const Rest &rest, const KAttention *a, void *work)
{
	run_grad<E>({as<E>(dq), as<E>(dk), as<E>(dv), as<const E>(dy), as<const E>(q), as<const E>(k), as<const E>(v),
		as<const E>(o), lse, NULL, NULL, NULL}, rest, a, work);
}

#define K_DEFINE(T, E, t) \
void k_attention_##t(T *o, float *lse, const T *q, const T *k, const T *v, const void *mask, const void *ids, \
	const KAttention *a, uint64_t id, const StepScalars *s, void *) \
{ \
	forward<E>(o, lse, q, k, v, {mask, ids, id, s, NULL}, a); \
} \
void k_attention_grad_##t(T *dq, T *dk, T *dv, const T *dy, const T *q, const T *k, const T *v, const void *mask, \
	const void *ids, const T *o, const float *lse, const KAttention *a, uint64_t id, const StepScalars *s, void *work) \
{ \
	gradient<E>(dq, dk, dv, dy, q, k, v, o, lse, {mask, ids, id, s, NULL}, a, work); \
}
K_DEFINE(float, float, f32)
K_DEFINE(uint16_t, Bf16, bf16)
K_DEFINE(uint16_t, F16, f16)
#undef K_DEFINE

/* ---- behind a library ---- */

static Rest marked(const void *mask, const KAttention *a, const float *lse, int *redo)
{
	int64_t heads = a->b * a->hk, rows = a->h / a->hk * a->t;
	LAUNCH(mark_heads, (unsigned)ceil_div(heads, ROWS), THREADS, 0, k_stream, redo, lse, heads, rows);
	return {mask, NULL, 0, NULL, redo};
}

void attention_redo(KDType type, uint16_t *o, float *lse, const uint16_t *q, const uint16_t *k, const uint16_t *v,
	const void *mask, const KAttention *a, int *redo)
{
	Rest rest = marked(mask, a, lse, redo);
	(type == K_BF16 ? forward<Bf16, uint16_t> : forward<F16, uint16_t>)(o, lse, q, k, v, rest, a);
}

void attention_grad_redo(KDType type, uint16_t *dq, uint16_t *dk, uint16_t *dv, const uint16_t *dy, const uint16_t *q,
	const uint16_t *k, const uint16_t *v, const void *mask, const uint16_t *o, const float *lse, const KAttention *a,
	int *redo, void *work)
{
	Rest rest = marked(mask, a, lse, redo);
	(type == K_BF16 ? gradient<Bf16, uint16_t> : gradient<F16, uint16_t>)(dq, dk, dv, dy, q, k, v, o, lse, rest, a,
		work);
}
