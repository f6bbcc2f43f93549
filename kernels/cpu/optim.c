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

static void sgd(const Update *u, float *p, float *unused, float *none, const float *g, int64_t n)
{
	(void)unused, (void)none;
	for (int64_t i = 0; i < n; i++)
		p[i] -= u->lr * (gradient(u, g[i]) + u->decay * p[i]);
}

static void momentum(const Update *u, float *p, float *m, float *unused, const float *g, int64_t n)
{
	float mu = u->beta1, ahead = u->nesterov ? u->beta1 : 1, now = u->nesterov ? 1 : 0;
	(void)unused;
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

/* Elements [at, at + n), of 16-bit gradients by pieces that are widened in the nearest cache. */
static void update_block(Rule *rule, const Update *u, const KUpdate *k, int64_t at, int64_t n)
{
	float wide[PIECE];
	float *a = k->state[0], *b = k->state[1];
	int64_t piece = k->g_type == K_F32 ? n : PIECE;
	for (int64_t i = 0; i < n; i += piece, at += piece) {
		int64_t part = MIN(piece, n - i);
		const float *g = k->g_type == K_F32 ? (const float *)k->g + at : wide;
		if (g == wide)
			widen(wide, at_element(k->g, k->g_type, at), k->g_type, part);
		rule(u, k->p + at, a ? a + at : NULL, b ? b + at : NULL, g, part);
	}
}

static void update(Rule *rule, const KUpdate *k)
{
	if (k->s->skip)
		return;
	#pragma omp parallel
	for (int64_t i = 0; i < k->n_segments; i++) {
		const Segment *seg = &k->segment[i];
		Update u = update_of(&k->group[seg->group], k->s, seg->began);
		u.nesterov = k->nesterov;
		#pragma omp for schedule(static) nowait
		for (int64_t j = 0; j < seg->length; j += BLOCK)
			update_block(rule, &u, k, seg->begin + j, MIN(BLOCK, seg->length - j));
	}
}

#define OPTIMIZER(kernel, ...) void k_##kernel##_f32(const KUpdate *u) { update(kernel, u); }
#include "base/optimizers.def"

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
