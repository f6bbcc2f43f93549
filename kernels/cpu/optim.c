/* kernels/cpu/optim.c: updates over flat shards, segment by segment; gap zeroing.
 *
 * Segments name the parameter group; what lies between them is not touched.  Blocks of a segment are shared
 * by threads; elements do not depend on each other. */
#include "kernels/cpu/half.h"

enum { BLOCK = 8192, PIECE = 1024 };

typedef struct Update {
	float lr, decay, scale, clip, beta1, beta2, eps;
	float step, root; /* adam: lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
	bool nesterov;
} Update;

static Update update_of(const Group *g, const StepScalars *s, int64_t began)
{
	double t = (double)(s->step - began);
	Update u = {.lr = s->lr * g->lr_scale, .decay = g->weight_decay, .scale = s->grad_scale * s->clip_coef,
		.clip = s->clip_value > 0 ? s->clip_value : INFINITY, .beta1 = g->beta1, .beta2 = g->beta2,
		.eps = g->eps};
	u.step = (float)((double)u.lr / (1 - pow((double)g->beta1, t)));
	u.root = (float)(1 / sqrt(1 - pow((double)g->beta2, t)));
	return u;
}

INLINE float gradient(const Update *u, float g)
{
	g *= u->scale;
	g = g > u->clip ? u->clip : g;
	return g < -u->clip ? -u->clip : g;
}

static void sgd(const Update *u, float *p, float *m, float *unused, const float *g, int64_t n)
{
	(void)unused;
	if (!m) {
		for (int64_t i = 0; i < n; i++)
			p[i] -= u->lr * (gradient(u, g[i]) + u->decay * p[i]);
		return;
	}
	float mu = u->beta1, ahead = u->nesterov ? u->beta1 : 1, now = u->nesterov ? 1 : 0;
	for (int64_t i = 0; i < n; i++) {
		float d = gradient(u, g[i]) + u->decay * p[i];
		m[i] = mu * m[i] + d;
		p[i] -= u->lr * (now * d + ahead * m[i]);
	}
}

INLINE void adam_one(const Update *u, float *p, float *m, float *v, float d)
{
	*m = *m + (1 - u->beta1) * (d - *m);
	*v = u->beta2 * *v + (1 - u->beta2) * d * d;
	*p -= u->step * *m / (sqrtf(*v) * u->root + u->eps);
}

static void adam(const Update *u, float *p, float *m, float *v, const float *g, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		adam_one(u, p + i, m + i, v + i, gradient(u, g[i]) + u->decay * p[i]);
}

static void adamw(const Update *u, float *p, float *m, float *v, const float *g, int64_t n)
{
	float keep = 1 - u->lr * u->decay;
	for (int64_t i = 0; i < n; i++) {
		p[i] *= keep;
		adam_one(u, p + i, m + i, v + i, gradient(u, g[i]));
	}
}

static void adagrad(const Update *u, float *p, float *sum, float *unused, const float *g, int64_t n)
{
	(void)unused;
	for (int64_t i = 0; i < n; i++) {
		float d = gradient(u, g[i]) + u->decay * p[i];
		sum[i] += d * d;
		p[i] -= u->lr * d / (sqrtf(sum[i]) + u->eps);
	}
}

static void lion(const Update *u, float *p, float *m, float *unused, const float *g, int64_t n)
{
	float keep = 1 - u->lr * u->decay;
	(void)unused;
	for (int64_t i = 0; i < n; i++) {
		float d = gradient(u, g[i]), c = m[i] + (1 - u->beta1) * (d - m[i]);
		p[i] = p[i] * keep - u->lr * (c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f);
		m[i] = m[i] + (1 - u->beta2) * (d - m[i]);
	}
}

typedef void Rule(const Update *u, float *p, float *a, float *b, const float *g, int64_t n);

/* What an optimizer works on: parameters, up to two states, gradients. */
typedef struct Flat { float *p, *a, *b; const void *g; KDType g_type; } Flat;

/* Elements [at, at + n), of 16-bit gradients by pieces that are widened in the nearest cache. */
static void update_block(Rule *rule, const Update *u, const Flat *f, int64_t at, int64_t n)
{
	float wide[PIECE];
	int64_t piece = f->g_type == K_F32 ? n : PIECE;
	for (int64_t i = 0; i < n; i += piece, at += piece) {
		int64_t part = MIN(piece, n - i);
		const float *g = f->g_type == K_F32 ? (const float *)f->g + at : wide;
		if (g == wide)
			widen(wide, at_element(f->g, f->g_type, at), f->g_type, part);
		rule(u, f->p + at, f->a ? f->a + at : NULL, f->b ? f->b + at : NULL, g, part);
	}
}

static void update(Rule *rule, Flat f, const Segment *seg, int64_t n_seg, const Group *group,
	const StepScalars *s, bool nesterov)
{
	if (s->skip)
		return;
	#pragma omp parallel
	for (int64_t k = 0; k < n_seg; k++) {
		Update u = update_of(&group[seg[k].group], s, seg[k].began);
		u.nesterov = nesterov;
		#pragma omp for schedule(static) nowait
		for (int64_t i = 0; i < seg[k].length; i += BLOCK)
			update_block(rule, &u, &f, seg[k].begin + i, MIN(BLOCK, seg[k].length - i));
	}
}

void k_sgd_f32(float *p, float *m, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s, bool nesterov)
{
	update(sgd, (Flat){p, m, NULL, g, g_type}, seg, n_seg, group, s, nesterov);
}

void k_adam_f32(float *p, float *m, float *v, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s)
{
	update(adam, (Flat){p, m, v, g, g_type}, seg, n_seg, group, s, false);
}

void k_adamw_f32(float *p, float *m, float *v, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s)
{
	update(adamw, (Flat){p, m, v, g, g_type}, seg, n_seg, group, s, false);
}

void k_adagrad_f32(float *p, float *sum, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s)
{
	update(adagrad, (Flat){p, sum, NULL, g, g_type}, seg, n_seg, group, s, false);
}

void k_lion_f32(float *p, float *m, const void *g, KDType g_type, const Segment *seg, int64_t n_seg,
	const Group *group, const StepScalars *s)
{
	update(lion, (Flat){p, m, NULL, g, g_type}, seg, n_seg, group, s, false);
}

void k_zero_gaps(void *flat, int64_t count, const Segment *seg, int64_t n_seg, int size)
{
	int64_t at = 0;
	for (int64_t k = 0; k <= n_seg; k++) {
		int64_t begin = k < n_seg ? seg[k].begin : count;
		if (begin > at)
			memset((char *)flat + at * size, 0, (size_t)((begin - at) * size));
		at = k < n_seg ? seg[k].begin + seg[k].length : count;
	}
}
