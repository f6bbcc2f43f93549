/* kernels/cpu/attention.c: scaled dot-product attention and its gradient, block by block.
 *
 * Only the scores of one block of TB query rows and SB keys exist at a time; a running maximum and sum join the
 * blocks, as in FlashAttention (Dao and others 2022).  The one idea of this version: scores are held transposed, as
 * [key][row].  Then softmax runs over rows as vector lanes and needs no sum across a vector, keys and values are read
 * where they are, as the broadcast operand of the products, and only the query block is repacked.  Blocks outside of
 * the band of keys that rows see, and those whose documents cannot be the rows', are skipped; within the band single
 * elements are tested only where a block has a border.
 *
 * Dropout multiplies the weights after their sum was taken.  Its numbers are made for a block at a time, with rows as
 * lanes, too; the gradient makes them again.
 *
 * Forward, threads share the (sample, head, row block) triples.  In the gradient they share the (sample, kv head)
 * pairs; each thread sums the heads and row blocks of its pair in order, so no bit depends on the number of threads.
 * 16-bit tensors are widened block by block on the stack; sums over blocks stay f32 (dk and dv in work) and are
 * rounded once.  Where the processor multiplies pairs of bf16 (HAS_PAIRS) and heads have even sizes, nothing is
 * widened: products over a head's elements read pairs where they are, products over rows or keys read pairs of rows,
 * and the probabilities and their gradients are rounded to bf16 for them, once all sums of f32 were taken.
 *
 * Head sizes D or Dv above PACK / VW (1024 with AVX-512) fail. */
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/pairs.h"
#include "kernels/place.h"
#include "kernels/weights.h"

enum { SB = 64, TB_MAX = 64, PACK = 64 * 256 }; /* PACK: the most floats of a block, TB * max(D, Dv) */

/* What is the same for all heads. */
typedef struct Call {
	const KAttention *a;
	KDType type;           /* of all tensors but lse, the mask and the ids */
	const void *q, *k, *v, *mask, *ids;
	uint64_t id;           /* of the dropout */
	const StepScalars *s;
	Place pq, pk, pv, pdq, pdk, pdv, po; /* of q, k, v, of their gradients, of o and dy */
} Call;

/* The random numbers of a head's weights: weight (t,s) has inner index first + t*S + s. */
typedef struct Chance {
	uint64_t key, row, step;
	int64_t first;
	uint32_t threshold;
	float kept;            /* the factor of weights that are not dropped */
} Chance;

/* One head: rows of q, k, v, o at their strides. */
typedef struct Head {
	const KAttention *a;
	KDType type;
	const char *mask;      /* at (b, h) */
	const char *ids;       /* of the sample; NULL = no documents */
	const void *q, *k, *v;
	int64_t qr, kr, vr, or; /* from row to row */
	Chance chance;
	bool pairs;            /* products are of pairs of bf16 */
} Head;

/* Rows of a tensor as floats, or of pairs of bf16, each in the place of a float; `row` of these from row to row. */
typedef struct Rows { const float *at; int64_t row; } Rows;

/* Rows as floats: in place, or widened, or copied together where they lie far apart: few sets of the nearest cache
 * would hold them. */
INLINE Rows rows_of(KDType type, const void *from, int64_t row, int64_t first, int64_t n, int64_t width, float *buffer)
{
	if (type == K_F32 && (row <= 2 * width || n * width > PACK))
		return (Rows){(const float *)from + first * row, row};
	for (int64_t i = 0; i < n; i++)
		widen(buffer + i * width, at_element(from, type, (first + i) * row), type, width);
	return (Rows){buffer, width};
}

INLINE void *to_element(void *p, KDType t, int64_t i) { return (char *)p + i * type_bytes(t); }

/* ---- operands of products ---- */

/* Rows for a product over their width. */
INLINE Rows across(const Head *h, const void *from, int64_t row, int64_t first, int64_t n, int64_t width, float *buffer)
{
	const uint16_t *half = (const uint16_t *)from + first * row;
	if (!h->pairs)
		return rows_of(h->type, from, row, first, n, width, buffer);
	if (row % 2 == 0 && row <= 2 * width && (uintptr_t)half % sizeof(Pair) == 0)
		return (Rows){(const void *)half, row / 2};
	for (int64_t i = 0; i < n; i++)
		memcpy((char *)buffer + i * width * 2, half + i * row, (size_t)width * 2);
	return (Rows){buffer, width / 2};
}

/* The same rows for a product that sums over them. */
INLINE Rows along(const Head *h, Rows from, int64_t n, int64_t width, float *buffer)
{
	if (!h->pairs)
		return from;
	pair_rows(buffer, from.at, 2 * from.row, n, width);
	return (Rows){buffer, width};
}

/* Probabilities of a block, or their gradients, as operands: `keys` are its rows for a product over rows of queries,
 * and column t of `rows` is row t of queries for a product over keys.  half and paired are where bf16 lies. */
typedef struct Weights {
	Rows keys;
	const float *rows;
	uint16_t half[SB * TB_MAX];
	float paired[SB / 2 * TB_MAX];
} Weights;

static void weigh(Weights *to, const Head *h, const float *s, int64_t tb, int64_t sn, bool keys, bool rows)
{
	to->keys = (Rows){s, tb};
	to->rows = s;
	if (!h->pairs)
		return;
	if (keys)
		weigh_half(to->half, s, sn * tb);
	if (rows)
		weigh_pairs(to->paired, s, tb, sn);
	to->keys = (Rows){(const void *)to->half, tb / 2};
	to->rows = to->paired;
}

/* c (m, n) = a b, or c += a b, over k elements; a has steps ar and ak, of pairs where they are pairs. */
static void product(const Head *h, int64_t m, int64_t n, int64_t k, const float *a, int64_t ar, int64_t ak, Rows b,
	float *c, int64_t cr, bool add)
{
	if (h->pairs)
		gemm_pairs(m, n, ceil_div(k, 2), a, ar, ak, b.at, b.row, c, cr, add);
	else
		gemm_small(m, n, k, a, ar, ak, b.at, b.row, c, cr, add);
}

/* The number of keys in a block; fewer for 16-bit tensors, whose keys are widened into a buffer of limited size. */
static int64_t block_keys(const Head *h)
{
	int64_t d = MAX(h->a->d, h->a->dv);
	return h->type == K_F32 ? SB : MIN(SB, PACK / MAX(1, d));
}

static int64_t block_rows(const KAttention *a)
{
	int64_t d = MAX(a->d, a->dv);
	if (d > PACK / VW)
		k_fail("attention: a head size of %lld is above %d", (long long)d, PACK / VW);
	return d <= PACK / TB_MAX ? TB_MAX : MAX(VW, PACK / d / VW * VW);
}

/* The same of the last n rows or fewer: whole vectors. */
static int64_t lanes_of(int64_t tb, int64_t n) { return MIN(tb, round_up(n, VW)); }

static int64_t head_at(Place p, int64_t b, int64_t h) { return b * p.batch + h * p.head; }

static int64_t mask_bytes(const KAttention *a)
{
	return a->mask == K_MASK_BOOL ? 1 : a->mask == K_MASK_FLOAT ? 4 : 2;
}

static Chance chance_of(const Call *c, int64_t head)
{
	const KAttention *a = c->a;
	if (!(a->p > 0))
		return (Chance){0};
	WeightsAt at = weights_at(head, a->b * a->h, a->pre, a->rows, a->t * a->s);
	return (Chance){.key = philox_key(c->s->seed, c->id), .step = c->s->rng_step, .first = at.inner,
		.row = (uint64_t)(at.row + (a->rows ? c->s->sample0 : 0)), .threshold = (uint32_t)philox_threshold(a->p),
		.kept = (float)(1 / (1 - a->p))};
}

static Head head_of(const Call *c, int64_t b, int64_t h)
{
	const KAttention *a = c->a;
	int64_t hk = h / (a->h / a->hk);
	int64_t m = b * a->mask_stride[0] + h * a->mask_stride[1];
	return (Head){.a = a, .type = c->type, .mask = c->mask ? (const char *)c->mask + m * mask_bytes(a) : NULL,
		.ids = c->ids ? (const char *)c->ids + b * a->id_stride * (a->ids32 ? 4 : 8) : NULL,
		.q = at_element(c->q, c->type, head_at(c->pq, b, h)), .k = at_element(c->k, c->type, head_at(c->pk, b, hk)),
		.v = at_element(c->v, c->type, head_at(c->pv, b, hk)), .qr = c->pq.row, .kr = c->pk.row, .vr = c->pv.row,
		.or = c->po.row, .chance = chance_of(c, b * a->h + h),
		.pairs = HAS_PAIRS && c->type == K_BF16 && (a->d | a->dv) % 2 == 0};
}

/* ---- what rows see ---- */

/* The first key that row t sees, and the last one plus one, of those that the band shows. */
static int64_t key_begin(const KAttention *a, int64_t t)
{
	return a->has_left ? MIN(MAX(t - a->left, 0), a->s) : 0;
}

static int64_t key_end(const KAttention *a, int64_t t)
{
	return a->has_right ? MIN(MAX(t + 1 + a->right, 0), a->s) : a->s;
}

/* The documents of a block of rows or keys, the least and the largest of them; 0 without documents. */
typedef struct Ids { int64_t at[TB_MAX], low, high; } Ids;

static void ids_load(Ids *to, const Head *h, int64_t first, int64_t n)
{
	const int32_t *narrow_ids = (const void *)h->ids;
	const int64_t *ids = (const void *)h->ids;
	to->low = to->high = 0;
	if (!ids)
		return;
	for (int64_t i = 0; i < n; i++)
		to->at[i] = h->a->ids32 ? narrow_ids[first + i] : ids[first + i];
	to->low = to->high = to->at[0];
	for (int64_t i = 1; i < n; i++) {
		to->low = MIN(to->low, to->at[i]);
		to->high = MAX(to->high, to->at[i]);
	}
}

static bool ids_meet(const Ids *rows, const Ids *keys)
{
	return rows->low <= keys->high && keys->low <= rows->high;
}

/* Hides keys outside of the band and of other documents: s (sn, tb) becomes -inf for them. */
static void hide(float *s, const Head *h, const Ids *rows, const Ids *keys, int64_t tb, int64_t t0, int64_t tn,
	int64_t s0, int64_t sn)
{
	const KAttention *a = h->a;
	if (s0 + sn > key_end(a, t0))
		for (int64_t i = 0; i < sn; i++)
			for (int64_t t = 0; t < tn && key_end(a, t0 + t) <= s0 + i; t++)
				s[i * tb + t] = -INFINITY;
	if (s0 < key_begin(a, t0 + tn - 1))
		for (int64_t i = 0; i < sn; i++)
			for (int64_t t = tn - 1; t >= 0 && key_begin(a, t0 + t) > s0 + i; t--)
				s[i * tb + t] = -INFINITY;
	if (rows->low != keys->high || keys->low != rows->high)
		for (int64_t i = 0; i < sn; i++)
			for (int64_t t = 0; t < tn; t++)
				s[i * tb + t] = rows->at[t] == keys->at[i] ? s[i * tb + t] : -INFINITY;
}

/* ---- blocks ---- */

/* to (width, tb) = scale * from (n, width), transposed; lanes beyond n are zero.  Pairs are not scaled. */
static Rows pack(const Head *h, float *to, int64_t tb, Rows from, int64_t n, int64_t width, float scale)
{
	const Pair *pair = (const void *)from.at;
	Pair *paired = (void *)to;
	for (int64_t i = 0; !h->pairs && i < width; i++) {
		for (int64_t t = 0; t < n; t++)
			to[i * tb + t] = scale * from.at[t * from.row + i];
		for (int64_t t = n; t < tb; t++)
			to[i * tb + t] = 0;
	}
	for (int64_t i = 0; h->pairs && i < width / 2; i++) {
		for (int64_t t = 0; t < n; t++)
			paired[i * tb + t] = pair[t * from.row + i];
		for (int64_t t = n; t < tb; t++)
			paired[i * tb + t] = 0;
	}
	return (Rows){to, tb};
}

/* s (sn, tb) = the masked scores of sn keys from s0 on against the rows from t0 on.  With a soft cap, cap (sn, tb)
 * gets its derivative; cap may be NULL. */
static void scores(float *s, float *cap, const Head *h, Rows k, Rows qt, int64_t tb, int64_t t0, int64_t tn,
	int64_t s0, int64_t sn)
{
	const KAttention *a = h->a;
	product(h, sn, tb, a->d, k.at, k.row, 1, qt, s, tb, false);
	for (int64_t i = 0; h->pairs && i < sn * tb; i++)
		s[i] *= a->scale;
	if (a->softcap > 0)
		for (int64_t i = 0; i < sn * tb; i++) {
			float u = ew_tanh_f32(s[i] / a->softcap);
			s[i] = a->softcap * u;
			if (cap)
				cap[i] = 1 - u * u;
		}
	int64_t mt = a->mask_stride[2], ms = a->mask_stride[3];
	if (a->mask == K_MASK_BOOL)
		for (int64_t i = 0; i < sn; i++)
			for (int64_t t = 0; t < tn; t++)
				s[i * tb + t] = h->mask[(t0 + t) * mt + (s0 + i) * ms] ? s[i * tb + t] : -INFINITY;
	if (a->mask == K_MASK_FLOAT)
		for (int64_t i = 0; i < sn; i++)
			for (int64_t t = 0; t < tn; t++)
				s[i * tb + t] += ((const float *)(const void *)h->mask)[(t0 + t) * mt + (s0 + i) * ms];
	if (a->mask == K_MASK_HALF)
		for (int64_t i = 0; i < sn; i++)
			for (int64_t t = 0; t < tn; t++) {
				float m;
				widen(&m, h->mask + ((t0 + t) * mt + (s0 + i) * ms) * 2, h->type, 1);
				s[i * tb + t] += m;
			}
}

/* The random numbers of a block: number (4*j + k, t) is word k of the j-th Philox block of row t, tb numbers a line. */
static void draw(uint32_t *restrict number, const Chance *c, const uint64_t *restrict block, int64_t tb, int64_t n)
{
	for (int64_t j = 0; j < n; j++)
		for (int64_t t = 0; t < tb; t++) {
			uint32_t b[4];
			philox_block(b, c->key, c->row, block[t] + (uint64_t)j, c->step);
			for (int64_t k = 0; k < 4; k++)
				number[(4 * j + k) * tb + t] = b[k];
		}
}

static void multiply(float *restrict y, const float *restrict x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		y[i] *= x[i];
}

/* keep (sn, tb): the factors of numbers from line skip[t] on. */
static void choose(float *restrict keep, const uint32_t *restrict number, const int32_t *restrict skip, const Chance *c,
	int64_t tb, int64_t sn)
{
	uint32_t threshold = c->threshold;
	float kept = c->kept;
	for (int64_t i = 0; i < sn; i++)
		for (int64_t t = 0; t < tb; t++)
			keep[i * tb + t] = number[(i + skip[t]) * tb + t] >= threshold ? kept : 0;
}

static void choose_alike(float *restrict keep, const uint32_t *restrict number, const Chance *c, int64_t n)
{
	uint32_t threshold = c->threshold;
	float kept = c->kept;
	for (int64_t i = 0; i < n; i++)
		keep[i] = number[i] >= threshold ? kept : 0;
}

/* keep (sn, tb) = what dropout multiplies the weights of a block with. */
static void make_keep(float *restrict keep, const Head *h, int64_t tb, int64_t t0, int64_t s0, int64_t sn)
{
	const Chance *c = &h->chance;
	uint32_t number[(SB + 4) * TB_MAX];
	uint64_t block[TB_MAX];
	int32_t skip[TB_MAX]; /* numbers of a row's first Philox block that come before the block of scores */
	for (int64_t t = 0; t < tb; t++) {
		uint64_t inner = (uint64_t)(c->first + (t0 + t) * h->a->s + s0);
		block[t] = inner / 4;
		skip[t] = (int32_t)(inner % 4);
	}
	bool alike = h->a->s % 4 == 0; /* in all rows */
	draw(number, c, block, tb, ceil_div(sn + (alike ? skip[0] : 3), 4));
	if (alike)
		choose_alike(keep, number + skip[0] * tb, c, sn * tb);
	else
		choose(keep, number, skip, c, tb, sn);
}

/* Joins a block of scores to the running maximum and sum: s becomes exp(s - max), and alpha the factor for what was
 * summed before. */
static void soften(float *restrict s, float *restrict max, float *restrict sum, float *restrict alpha,
	int64_t tb, int64_t sn)
{
	float top[TB_MAX], part[TB_MAX];
	for (int64_t t = 0; t < tb; t++)
		top[t] = max[t];
	for (int64_t i = 0; i < sn; i++)
		for (int64_t t = 0; t < tb; t++)
			top[t] = s[i * tb + t] > top[t] ? s[i * tb + t] : top[t];
	for (int64_t t = 0; t < tb; t++) {
		alpha[t] = max[t] == top[t] ? 1 : ew_exp_f32(max[t] - top[t]);
		max[t] = top[t];
		top[t] = top[t] == -INFINITY ? 0 : top[t];
		part[t] = 0;
	}
	for (int64_t i = 0; i < sn; i++)
		for (int64_t t = 0; t < tb; t++) {
			float p = ew_exp_f32(s[i * tb + t] - top[t]);
			s[i * tb + t] = p;
			part[t] += p;
		}
	for (int64_t t = 0; t < tb; t++)
		sum[t] = sum[t] * alpha[t] + part[t];
}

static void forward_block(const Head *h, void *o, float *lse, int64_t tb, int64_t t0, int64_t tn)
{
	const KAttention *a = h->a;
	float packed[PACK], acc[PACK], s[SB * TB_MAX], max[TB_MAX], sum[TB_MAX] = {0}, alpha[TB_MAX], keep[SB * TB_MAX];
	float wide_k[PACK], wide_v[PACK], paired_v[PACK]; /* wide_k holds the query block first */
	int64_t begin = key_begin(a, t0), end = key_end(a, t0 + tn - 1), keys = block_keys(h);
	Ids rows = {0}, columns = {0};
	Weights p;
	ids_load(&rows, h, t0, tn);
	Rows qt = pack(h, packed, tb, across(h, h->q, h->qr, t0, tn, a->d, wide_k), tn, a->d, a->scale);
	memset(acc, 0, (size_t)(tn * a->dv) * sizeof *acc);
	for (int64_t t = 0; t < tb; t++)
		max[t] = -INFINITY;
	for (int64_t s0 = begin; s0 < end; s0 += keys) {
		int64_t sn = MIN(keys, end - s0);
		ids_load(&columns, h, s0, sn);
		if (!ids_meet(&rows, &columns))
			continue;
		scores(s, NULL, h, across(h, h->k, h->kr, s0, sn, a->d, wide_k), qt, tb, t0, tn, s0, sn);
		hide(s, h, &rows, &columns, tb, t0, tn, s0, sn);
		soften(s, max, sum, alpha, tb, sn);
		if (a->p > 0) {
			make_keep(keep, h, tb, t0, s0, sn);
			multiply(s, keep, sn * tb);
		}
		for (int64_t t = 0; s0 > begin && t < tn; t++)
			for (int64_t i = 0; alpha[t] != 1 && i < a->dv; i++)
				acc[t * a->dv + i] *= alpha[t];
		Rows v = across(h, h->v, h->vr, s0, sn, a->dv, wide_v);
		weigh(&p, h, s, tb, sn, false, true);
		product(h, tn, a->dv, sn, p.rows, 1, tb, along(h, v, sn, a->dv, paired_v), acc, a->dv, true);
	}
	for (int64_t t = 0; t < tn; t++) {
		void *to = to_element(o, h->type, (t0 + t) * h->or);
		float *row = h->type == K_F32 ? to : acc + t * a->dv;
		bool empty = max[t] == -INFINITY;
		float scale = empty ? 0 : 1 / sum[t];
		for (int64_t i = 0; i < a->dv; i++)
			row[i] = empty && a->empty_nan ? NAN : acc[t * a->dv + i] * scale;
		if (h->type != K_F32)
			narrow(to, row, h->type, a->dv);
		if (lse)
			lse[t0 + t] = empty ? -INFINITY : max[t] + ew_log_f32(sum[t]);
	}
}

static void forward(const Call *c, void *o, float *lse)
{
	const KAttention *a = c->a;
	int64_t tb = block_rows(a), blocks = ceil_div(a->t, tb);
	#pragma omp parallel for schedule(dynamic)
	for (int64_t i = a->b * a->h * blocks - 1; i >= 0; i--) {
		int64_t bh = i / blocks, b = bh / a->h, hh = bh % a->h, t0 = i % blocks * tb;
		Head h = head_of(c, b, hh);
		forward_block(&h, to_element(o, c->type, head_at(c->po, b, hh)), lse ? lse + bh * a->t : NULL,
			lanes_of(tb, a->t - t0), t0, MIN(tb, a->t - t0));
	}
}

/* What the gradient needs of each row of a block: delta = the sum of dy o; shift = its log-sum-exp, infinity where it
 * sees no key; share, by which exp(score - shift) is multiplied: 1 but for coarse rows (K_LSE_COARSE). */
typedef struct Terms { float delta[TB_MAX], shift[TB_MAX], share[TB_MAX]; bool coarse; } Terms;

static bool is_coarse(float lse) { return fabsf(lse) > K_LSE_COARSE && fabsf(lse) < INFINITY; }

/* Makes the shares of coarse rows: one over the sum of exp(score - shift). */
static void share_coarse(Terms *r, const Head *h, Rows qt, const Ids *rows, int64_t tb, int64_t t0, int64_t tn)
{
	const KAttention *a = h->a;
	float s[SB * TB_MAX], wide_k[PACK], sum[TB_MAX] = {0};
	int64_t end = key_end(a, t0 + tn - 1), keys = block_keys(h);
	Ids columns = {0};
	for (int64_t s0 = key_begin(a, t0); s0 < end; s0 += keys) {
		int64_t sn = MIN(keys, end - s0);
		ids_load(&columns, h, s0, sn);
		if (!ids_meet(rows, &columns))
			continue;
		scores(s, NULL, h, across(h, h->k, h->kr, s0, sn, a->d, wide_k), qt, tb, t0, tn, s0, sn);
		hide(s, h, rows, &columns, tb, t0, tn, s0, sn);
		for (int64_t i = 0; i < sn; i++)
			for (int64_t t = 0; t < tb; t++)
				sum[t] += ew_exp_f32(s[i * tb + t] - r->shift[t]);
	}
	for (int64_t t = 0; t < tn; t++)
		if (is_coarse(r->shift[t]))
			r->share[t] = 1 / sum[t];
}

static void row_terms(Terms *r, Rows dy, Rows o, const float *lse, int64_t width, int64_t tb, int64_t tn)
{
	r->coarse = false;
	for (int64_t t = 0; t < tb; t++) {
		float sum = 0;
		const float *g = dy.at + t * dy.row, *y = o.at + t * o.row;
		bool empty = t >= tn || lse[t] == -INFINITY;
		for (int64_t i = 0; !empty && i < width; i++)
			sum += g[i] * y[i];
		r->delta[t] = sum;
		r->shift[t] = empty ? INFINITY : lse[t];
		r->share[t] = 1;
		r->coarse |= is_coarse(r->shift[t]);
	}
}

static void share(float *restrict s, const float *restrict by, int64_t tb, int64_t sn)
{
	for (int64_t i = 0; i < sn; i++)
		for (int64_t t = 0; t < tb; t++)
			s[i * tb + t] *= by[t];
}

/* s: scores -> probabilities p.  ds: dp = v dy^T -> gradient of the scores, p (dp - delta) cap' scale.  With dropout dp
 * is multiplied by keep before, and p after it. */
static void differentiate(float *restrict s, float *restrict ds, const float *restrict cap, const float *restrict keep,
	const Terms *restrict r, float scale, int64_t tb, int64_t sn)
{
	if (keep)
		multiply(ds, keep, sn * tb);
	for (int64_t i = 0; i < sn; i++)
		for (int64_t t = 0; t < tb; t++) {
			float p = ew_exp_f32(s[i * tb + t] - r->shift[t]);
			s[i * tb + t] = p;
			ds[i * tb + t] = p * (ds[i * tb + t] - r->delta[t]) * scale;
		}
	if (r->coarse) {
		share(s, r->share, tb, sn);
		share(ds, r->share, tb, sn);
	}
	if (cap)
		multiply(ds, cap, sn * tb);
	if (keep)
		multiply(s, keep, sn * tb);
}

/* Where the gradients of a head are summed: dq's rows by one block, dk and dv over all blocks; from row to row. */
typedef struct Sums { void *dq; float *dk, *dv; int64_t qr, kr, vr; } Sums;

/* The rows from t0 on of one head: writes dq of these rows and adds their part of dk and dv of the kv head. */
static void grad_block(const Head *h, Sums to, const void *dy, const void *o, const float *lse, int64_t tb, int64_t t0,
	int64_t tn)
{
	const KAttention *a = h->a;
	float packed_q[PACK], packed_dy[PACK], s[SB * TB_MAX], ds[SB * TB_MAX], cap[SB * TB_MAX], keep[SB * TB_MAX];
	float wide_q[PACK], wide_dy[PACK], wide_k[PACK], wide_v[PACK], wide_dq[PACK]; /* k and v: o and dy first */
	float paired_q[PACK], paired_dy[PACK], paired_k[PACK];
	int64_t end = key_end(a, t0 + tn - 1), keys = block_keys(h);
	bool wide = h->type != K_F32;
	Ids rows = {0}, columns = {0};
	Terms terms;
	Weights p, dp;
	ids_load(&rows, h, t0, tn);
	Rows q = across(h, h->q, h->qr, t0, tn, a->d, wide_q), g = across(h, dy, h->or, t0, tn, a->dv, wide_dy);
	Rows qt = pack(h, packed_q, tb, q, tn, a->d, a->scale), gt = pack(h, packed_dy, tb, g, tn, a->dv, 1);
	float *dq = wide ? wide_dq : (float *)to.dq + t0 * to.qr;
	int64_t dqr = wide ? a->d : to.qr;
	q = along(h, q, tn, a->d, paired_q);
	g = along(h, g, tn, a->dv, paired_dy);
	row_terms(&terms, rows_of(h->type, dy, h->or, t0, tn, a->dv, wide_v),
		rows_of(h->type, o, h->or, t0, tn, a->dv, wide_k), lse + t0, a->dv, tb, tn);
	if (terms.coarse)
		share_coarse(&terms, h, qt, &rows, tb, t0, tn);
	for (int64_t t = 0; t < tn; t++)
		memset(dq + t * dqr, 0, (size_t)a->d * sizeof *dq);
	for (int64_t s0 = key_begin(a, t0); s0 < end; s0 += keys) {
		int64_t sn = MIN(keys, end - s0);
		float *capped = a->softcap > 0 ? cap : NULL, *dropped = a->p > 0 ? keep : NULL;
		ids_load(&columns, h, s0, sn);
		if (!ids_meet(&rows, &columns))
			continue;
		Rows k = across(h, h->k, h->kr, s0, sn, a->d, wide_k), v = across(h, h->v, h->vr, s0, sn, a->dv, wide_v);
		scores(s, capped, h, k, qt, tb, t0, tn, s0, sn);
		hide(s, h, &rows, &columns, tb, t0, tn, s0, sn);
		if (dropped)
			make_keep(keep, h, tb, t0, s0, sn);
		product(h, sn, tb, a->dv, v.at, v.row, 1, gt, ds, tb, false);
		differentiate(s, ds, capped, dropped, &terms, a->scale, tb, sn);
		weigh(&p, h, s, tb, sn, true, false);
		weigh(&dp, h, ds, tb, sn, true, true);
		product(h, sn, a->dv, tn, p.keys.at, p.keys.row, 1, g, to.dv + s0 * to.vr, to.vr, true);
		product(h, sn, a->d, tn, dp.keys.at, dp.keys.row, 1, q, to.dk + s0 * to.kr, to.kr, true);
		product(h, tn, a->d, sn, dp.rows, 1, tb, along(h, k, sn, a->d, paired_k), dq, dqr, true);
	}
	for (int64_t t = 0; wide && t < tn; t++)
		narrow(to_element(to.dq, h->type, (t0 + t) * to.qr), dq + t * a->d, h->type, a->d);
}

/* Zeroes the sums over blocks; sums_round stores those of 16-bit gradients. */
static void sums_begin(const KAttention *a, const Sums *to)
{
	for (int64_t s = 0; s < a->s; s++) {
		memset(to->dk + s * to->kr, 0, (size_t)a->d * sizeof *to->dk);
		memset(to->dv + s * to->vr, 0, (size_t)a->dv * sizeof *to->dv);
	}
}

/* A gradient (rows, width) = sums, rounded. */
static void sums_round(void *to, int64_t to_row, const float *from, int64_t row, KDType type, int64_t rows,
	int64_t width)
{
	for (int64_t s = 0; s < rows; s++)
		narrow(to_element(to, type, s * to_row), from + s * row, type, width);
}

typedef struct Backward {
	void *dq, *dk, *dv;
	const void *dy, *o;
	const float *lse;
	float *work; /* 16-bit: [kv head][S][D + Dv] */
} Backward;

/* One kv head: the heads of its group and their row blocks, in order. */
static void grad_head(const Call *c, const Backward *x, int64_t b, int64_t hk)
{
	const KAttention *a = c->a;
	KDType type = c->type;
	int64_t tb = block_rows(a), group = a->h / a->hk, wide = a->d + a->dv;
	void *dk = to_element(x->dk, type, head_at(c->pdk, b, hk)), *dv = to_element(x->dv, type, head_at(c->pdv, b, hk));
	bool direct = type == K_F32;
	float *own = direct ? dk : x->work + (b * a->hk + hk) * a->s * wide;
	Sums to = {.dk = own, .dv = direct ? dv : own + a->d, .qr = c->pdq.row, .kr = direct ? c->pdk.row : wide,
		.vr = direct ? c->pdv.row : wide};
	sums_begin(a, &to);
	for (int64_t hh = hk * group; hh < (hk + 1) * group; hh++) {
		int64_t oo = head_at(c->po, b, hh);
		Head h = head_of(c, b, hh);
		to.dq = to_element(x->dq, type, head_at(c->pdq, b, hh));
		for (int64_t t0 = 0; t0 < a->t; t0 += tb)
			grad_block(&h, to, at_element(x->dy, type, oo), at_element(x->o, type, oo),
				x->lse + (b * a->h + hh) * a->t, lanes_of(tb, a->t - t0), t0, MIN(tb, a->t - t0));
	}
	if (direct)
		return;
	sums_round(dk, c->pdk.row, to.dk, to.kr, type, a->s, a->d);
	sums_round(dv, c->pdv.row, to.dv, to.vr, type, a->s, a->dv);
}

static void backward(const Call *c, const Backward *x)
{
	#pragma omp parallel for schedule(dynamic)
	for (int64_t i = 0; i < c->a->b * c->a->hk; i++)
		grad_head(c, x, i / c->a->hk, i % c->a->hk);
}

static Call call_of(const KAttention *a, KDType type, const void *q, const void *k, const void *v, const void *mask,
	const void *ids, uint64_t id, const StepScalars *s)
{
	return (Call){.a = a, .type = type, .q = q, .k = k, .v = v, .mask = mask, .ids = ids, .id = id, .s = s,
		.pq = place_of(a->layout, a->h, a->t, a->d, a->q_pitch),
		.pk = place_of(a->layout, a->hk, a->s, a->d, a->k_pitch),
		.pv = place_of(a->layout, a->hk, a->s, a->dv, a->v_pitch),
		.pdq = place_of(a->layout, a->h, a->t, a->d, a->dq_pitch),
		.pdk = place_of(a->layout, a->hk, a->s, a->d, a->dk_pitch),
		.pdv = place_of(a->layout, a->hk, a->s, a->dv, a->dv_pitch),
		.po = place_of(a->layout, a->h, a->t, a->dv, 0)};
}

#define ATTENTION(T, type, t) \
void k_attention_##t(T *o, float *lse, const T *q, const T *k, const T *v, const void *mask, const void *ids, \
	const KAttention *a, uint64_t id, const StepScalars *s, void *work) \
{ \
	(void)work; \
	Call c = call_of(a, type, q, k, v, mask, ids, id, s); \
	forward(&c, o, lse); \
} \
void k_attention_grad_##t(T *dq, T *dk, T *dv, const T *dy, const T *q, const T *k, const T *v, const void *mask, \
	const void *ids, const T *o, const float *lse, const KAttention *a, uint64_t id, const StepScalars *s, \
	void *work) \
{ \
	Call c = call_of(a, type, q, k, v, mask, ids, id, s); \
	backward(&c, &(Backward){dq, dk, dv, dy, o, lse, work}); \
}
ATTENTION(float, K_F32, f32)
ATTENTION(uint16_t, K_BF16, bf16)
ATTENTION(uint16_t, K_F16, f16)
