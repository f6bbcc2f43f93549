/* kernels/cpu/attention.c: scaled dot-product attention and its gradient, block by block.
 *
 * Scores exist for one block of TB query rows against SB keys only.  One idea: they are held transposed,
 * [key][row].  Then softmax runs over rows as vector lanes without any sum across a vector, keys and values
 * are read in place as the broadcast side of the products, and only the query block is repacked.  Blocks
 * that a causal mask hides are skipped.  Forward: threads share (batch, head, row block); gradient: (batch,
 * kv head), each summing its group's heads and row blocks in order, so no bit depends on the threads.
 * Refuses D or Dv above 1024. */
#include "kernels/cpu/ew.h"
#include "kernels/cpu/gemm.h"

enum { SB = 64, TB_MAX = 64, PACK = 64 * 256 }; /* PACK = TB * max(D, Dv) */

/* One head: rows of q, k, v, o at their strides. */
typedef struct Head {
	const KAttention *a;
	const char *mask;      /* at (b, h) */
	const float *q, *k, *v;
	int64_t qr, kr, vr, or; /* from row to row */
} Head;

static int64_t block_rows(const KAttention *a)
{
	int64_t d = MAX(a->d, a->dv);
	if (d > PACK / VW)
		k_fail("attention: a head size of %lld is above %d", (long long)d, PACK / VW);
	return d <= PACK / TB_MAX ? TB_MAX : MAX(VW, PACK / d / VW * VW);
}

/* Elements before head h of sample b in a tensor of `heads` heads, rows x width. */
static int64_t head_at(const KAttention *a, int64_t b, int64_t h, int64_t heads, int64_t rows, int64_t width)
{
	return a->layout ? b * rows * heads * width + h * width : (b * heads + h) * rows * width;
}

static Head head_of(const KAttention *a, int64_t b, int64_t h, const float *q, const float *k, const float *v,
	const void *mask)
{
	int64_t hk = h / (a->h / a->hk);
	int64_t m = b * a->mask_stride[0] + h * a->mask_stride[1];
	return (Head){.a = a, .mask = mask ? (const char *)mask + m * (a->mask == K_MASK_FLOAT ? 4 : 1) : NULL,
		.q = q + head_at(a, b, h, a->h, a->t, a->d), .k = k + head_at(a, b, hk, a->hk, a->s, a->d),
		.v = v + head_at(a, b, hk, a->hk, a->s, a->dv), .qr = a->layout ? a->h * a->d : a->d,
		.kr = a->layout ? a->hk * a->d : a->d, .vr = a->layout ? a->hk * a->dv : a->dv,
		.or = a->layout ? a->h * a->dv : a->dv};
}

/* Last key that row t sees, plus one. */
static int64_t key_end(const KAttention *a, int64_t t)
{
	int64_t end = t + 1 + (a->causal_end ? a->s - a->t : 0);
	return !a->causal ? a->s : end < 0 ? 0 : MIN(end, a->s);
}

/* to (width, tb) = scale * from (n, width) transposed; lanes beyond n are zero. */
static void pack(float *to, int64_t tb, const float *from, int64_t row, int64_t n, int64_t width, float scale)
{
	for (int64_t i = 0; i < width; i++) {
		for (int64_t t = 0; t < n; t++)
			to[i * tb + t] = scale * from[t * row + i];
		for (int64_t t = n; t < tb; t++)
			to[i * tb + t] = 0;
	}
}

/* s (sn, tb) = masked scores of keys s0.. against rows t0..; cap (sn, tb) gets the derivative of the soft
 * cap when there is one. */
static void scores(float *s, float *cap, const Head *h, const float *qt, int64_t tb, int64_t t0, int64_t tn,
	int64_t s0, int64_t sn)
{
	const KAttention *a = h->a;
	gemm_small(sn, tb, a->d, h->k + s0 * h->kr, h->kr, 1, qt, tb, s, tb, false);
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
	if (a->causal && s0 + sn > key_end(a, t0))
		for (int64_t i = 0; i < sn; i++)
			for (int64_t t = 0; t < tn && key_end(a, t0 + t) <= s0 + i; t++)
				s[i * tb + t] = -INFINITY;
}

/* Takes a block of scores into the running maximum and sum: s becomes exp(s - max), alpha the factor for
 * what was summed before. */
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

static void forward_block(const Head *h, float *o, float *lse, int64_t tb, int64_t t0, int64_t tn)
{
	const KAttention *a = h->a;
	float qt[PACK], acc[PACK], s[SB * TB_MAX], max[TB_MAX], sum[TB_MAX] = {0}, alpha[TB_MAX];
	int64_t end = key_end(a, t0 + tn - 1);
	pack(qt, tb, h->q + t0 * h->qr, h->qr, tn, a->d, a->scale);
	memset(acc, 0, (size_t)(tn * a->dv) * sizeof *acc);
	for (int64_t t = 0; t < tb; t++)
		max[t] = -INFINITY;
	for (int64_t s0 = 0; s0 < end; s0 += SB) {
		int64_t sn = MIN(SB, end - s0);
		scores(s, NULL, h, qt, tb, t0, tn, s0, sn);
		soften(s, max, sum, alpha, tb, sn);
		for (int64_t t = 0; s0 > 0 && t < tn; t++)
			for (int64_t i = 0; alpha[t] != 1 && i < a->dv; i++)
				acc[t * a->dv + i] *= alpha[t];
		gemm_small(tn, a->dv, sn, s, 1, tb, h->v + s0 * h->vr, h->vr, acc, a->dv, true);
	}
	for (int64_t t = 0; t < tn; t++) {
		float *row = o + (t0 + t) * h->or;
		bool empty = max[t] == -INFINITY;
		float scale = empty ? 0 : 1 / sum[t];
		for (int64_t i = 0; i < a->dv; i++)
			row[i] = empty && a->empty_nan ? NAN : acc[t * a->dv + i] * scale;
		if (lse)
			lse[t0 + t] = empty ? -INFINITY : max[t] + ew_log_f32(sum[t]);
	}
}

void k_attention_f32(float *o, float *lse, const float *q, const float *k, const float *v, const void *mask,
	const KAttention *a, void *work)
{
	int64_t tb = block_rows(a), blocks = ceil_div(a->t, tb);
	(void)work;
	#pragma omp parallel for schedule(dynamic)
	for (int64_t i = a->b * a->h * blocks - 1; i >= 0; i--) {
		int64_t bh = i / blocks, b = bh / a->h, hh = bh % a->h, t0 = i % blocks * tb;
		Head h = head_of(a, b, hh, q, k, v, mask);
		forward_block(&h, o + head_at(a, b, hh, a->h, a->t, a->dv), lse ? lse + bh * a->t : NULL, tb, t0,
			MIN(tb, a->t - t0));
	}
}

/* s: scores -> probabilities p; ds: dp = v dy^T -> d scores = p (dp - delta) cap' scale */
static void differentiate(float *restrict s, float *restrict ds, const float *restrict cap,
	const float *restrict lse, const float *restrict delta, float scale, int64_t tb, int64_t sn)
{
	for (int64_t i = 0; i < sn; i++)
		for (int64_t t = 0; t < tb; t++) {
			float p = ew_exp_f32(s[i * tb + t] - lse[t]);
			s[i * tb + t] = p;
			ds[i * tb + t] = p * (ds[i * tb + t] - delta[t]) * scale;
		}
	if (cap)
		for (int64_t i = 0; i < sn * tb; i++)
			ds[i] *= cap[i];
}

/* Row block t0.. of one head: dq of its rows; its part of dk and dv of the kv head. */
static void grad_block(const Head *h, float *dq, float *dk, float *dv, const float *dy, const float *o,
	const float *lse, int64_t tb, int64_t t0, int64_t tn)
{
	const KAttention *a = h->a;
	float qt[PACK], dyt[PACK], s[SB * TB_MAX], ds[SB * TB_MAX], cap[SB * TB_MAX];
	float shift[TB_MAX], delta[TB_MAX];
	int64_t end = key_end(a, t0 + tn - 1);
	pack(qt, tb, h->q + t0 * h->qr, h->qr, tn, a->d, a->scale);
	pack(dyt, tb, dy + t0 * h->or, h->or, tn, a->dv, 1);
	for (int64_t t = 0; t < tb; t++) {
		float sum = 0;
		const float *g = dy + (t0 + t) * h->or, *y = o + (t0 + t) * h->or;
		bool empty = t >= tn || lse[t0 + t] == -INFINITY;
		for (int64_t i = 0; !empty && i < a->dv; i++)
			sum += g[i] * y[i];
		delta[t] = sum;
		shift[t] = empty ? INFINITY : lse[t0 + t];
	}
	for (int64_t t = 0; t < tn; t++)
		memset(dq + (t0 + t) * h->qr, 0, (size_t)a->d * sizeof *dq);
	for (int64_t s0 = 0; s0 < end; s0 += SB) {
		int64_t sn = MIN(SB, end - s0);
		float *capped = a->softcap > 0 ? cap : NULL;
		scores(s, capped, h, qt, tb, t0, tn, s0, sn);
		gemm_small(sn, tb, a->dv, h->v + s0 * h->vr, h->vr, 1, dyt, tb, ds, tb, false);
		differentiate(s, ds, capped, shift, delta, a->scale, tb, sn);
		gemm_small(sn, a->dv, tn, s, tb, 1, dy + t0 * h->or, h->or, dv + s0 * h->vr, h->vr, true);
		gemm_small(sn, a->d, tn, ds, tb, 1, h->q + t0 * h->qr, h->qr, dk + s0 * h->kr, h->kr, true);
		gemm_small(tn, a->d, sn, ds, 1, tb, h->k + s0 * h->kr, h->kr, dq + t0 * h->qr, h->qr, true);
	}
}

void k_attention_grad_f32(float *dq, float *dk, float *dv, const float *dy, const float *q, const float *k,
	const float *v, const void *mask, const float *o, const float *lse, const KAttention *a, void *work)
{
	int64_t tb = block_rows(a), group = a->h / a->hk;
	(void)work;
	#pragma omp parallel for schedule(dynamic)
	for (int64_t i = 0; i < a->b * a->hk; i++) {
		int64_t b = i / a->hk, hk = i % a->hk;
		float *dk_at = dk + head_at(a, b, hk, a->hk, a->s, a->d);
		float *dv_at = dv + head_at(a, b, hk, a->hk, a->s, a->dv);
		Head first = head_of(a, b, hk * group, q, k, v, mask);
		for (int64_t s = 0; s < a->s; s++) {
			memset(dk_at + s * first.kr, 0, (size_t)a->d * sizeof *dk);
			memset(dv_at + s * first.vr, 0, (size_t)a->dv * sizeof *dv);
		}
		for (int64_t hh = hk * group; hh < (hk + 1) * group; hh++) {
			Head h = head_of(a, b, hh, q, k, v, mask);
			int64_t qo = head_at(a, b, hh, a->h, a->t, a->d), oo = head_at(a, b, hh, a->h, a->t, a->dv);
			for (int64_t t0 = 0; t0 < a->t; t0 += tb)
				grad_block(&h, dq + qo, dk_at, dv_at, dy + oo, o + oo, lse + (b * a->h + hh) * a->t, tb, t0,
					MIN(tb, a->t - t0));
		}
	}
}
