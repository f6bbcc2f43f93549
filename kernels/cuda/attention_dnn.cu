/* kernels/cuda/attention_dnn.cu: attention as a primitive: cuDNN's fused kernels where they serve, else our own.
 *
 * Which of the two is decided once, at creation, but for pointers that are not aligned to 16 bytes, which cuDNN does
 * not take: addresses are the plan's, so it is the same kernel in every run. */
#include <stdio.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/attention_graph.cuh"
#include "kernels/cuda/prim.cuh"

/* ---- the choice ---- */

/* Versions of the library.  Those before the first have defects in these graphs; so has WINDOWS with windows that are
 * open to the right; gradients of keys that fill no whole tile are right behind RAGGED_KEYS alone. */
enum { FIRST_VERSION = 91002, WINDOWS = 91400, RAGGED_KEYS = 91501 };

/* Gradients with one order of sums want other engines from compute capability 10 on, which are not asked for here. */
enum { LAST_GRAD_MAJOR = 9 };

static int capability(void)
{
	int device = 0, major = 0;
	launched(cudaGetDevice(&device), "a kernel for the current device");
	launched(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "a kernel for the device");
	return major;
}

static bool pitches_fit(const KAttention *a)
{
	return (a->q_pitch | a->k_pitch | a->v_pitch | a->dq_pitch | a->dk_pitch | a->dv_pitch) % 8 == 0;
}

/* Whether each row sees a key. */
static bool all_see(const KAttention *a)
{
	int64_t left = a->has_left ? a->left : INT32_MAX, right = a->has_right ? a->right : INT32_MAX;
	return right >= 0 && left >= 0 && a->t - 1 - left < a->s;
}

/* The same attention without limits of its band that hide nothing: the graphs' numbers hold all others. */
static KAttention without_idle_limits(KAttention a)
{
	a.has_left = a.has_left && a.left < a.t - 1;
	a.has_right = a.has_right && a.right < a.s - 1;
	return a;
}

/* A bias is documented beside no band and that of causal attention alone.  In a last tile of keys that is not whole,
 * gradients give NaN behind a bias where log-sum-exps are below -88 (PyTorch's issue 196678, of 9.20); no version is
 * known to be free of that. */
static bool mask_fits(const KAttention *a, bool grad)
{
	bool causal = !a->has_left && (!a->has_right || a->right == 0);
	bool whole = a->t % K_DNN_TILE == 0 && a->s % K_DNN_TILE == 0;
	return a->mask == K_MASK_NONE || (causal && (whole || !grad));
}

/* What its graphs compute, whatever the version.  Positions are compared in f32, and raw scores, too, which tells the
 * largest one before a positive scale only. */
static bool graphs_fit(const KAttentionDesc *d, bool grad)
{
	const KAttention *a = &d->a;
	const int64_t most = 1 << 24;
	return is_half(d->dtype) && mask_fits(a, grad) && a->softcap == 0 && a->p == 0 && a->scale > 0 && a->b > 0
		&& a->t > 1 && a->s > 1 && a->t < most && a->s < most && a->d % 8 == 0 && a->dv % 8 == 0 && a->d <= 128
		&& a->dv <= 128 && pitches_fit(a) && all_see(a) && !(a->has_left && a->t > a->s);
}

static bool version_fits(const KAttention *a, bool grad)
{
	size_t version = cudnnGetVersion();
	bool open_window = version == WINDOWS && a->has_left && !a->has_right;
	bool ragged = grad && version < RAGGED_KEYS && a->s % K_DNN_TILE != 0;
	return version >= FIRST_VERSION && !open_window && !ragged && !(grad && capability() > LAST_GRAD_MAJOR);
}

/* Finds a plan, whose scratch begins at `before` of work. */
static bool on_library(KPrim *p, bool grad, int64_t before)
{
	const KAttentionDesc *d = &p->attention;
	if (!graphs_fit(d, grad) || !version_fits(&d->a, grad))
		return false;
	prim_new_graph(p);
	if (grad)
		attention_grad_graph(p->graph, &d->a, d->dtype);
	else
		attention_graph(p->graph, &d->a, d->dtype, d->stats || d->a.mask != K_MASK_NONE);
	if (graph_plan(p->graph, d->work_bytes - before))
		return true;
	prim_free_graph(p);
	return false;
}

static KDnnPlaces places_of(const KAttention *a, bool grad)
{
	BiasShape n = bias_shape(a);
	return kwork_dnn_at(grad, a->b * a->hk, a->b * a->h * a->t, a->s, a->mask == K_MASK_NONE ? 0 : n.b * n.h * n.t);
}

static KPrim *create(const KAttentionDesc *d, bool grad)
{
	KPrim *p = prim_new();
	KDnnPlaces at = places_of(&d->a, grad);
	int64_t own = grad ? d->a.b * d->a.h * d->a.t * 12 : 0, with_library;
	p->attention = *d;
	p->attention.a = without_idle_limits(d->a);
	if (on_library(p, grad, at.scratch)) {
		with_library = at.scratch + p->graph->work;
		p->work = with_library > at.rows + own ? with_library : at.rows + own;
		snprintf(p->impl, sizeof p->impl, "cudnn:attention%s%s, engine %d", grad ? "_grad" : "",
			d->a.mask == K_MASK_NONE ? "" : " with a mask", (int)p->graph->engine);
		return p;
	}
	p->work = own;
	snprintf(p->impl, sizeof p->impl, "own:attention%s", grad ? "_grad" : "");
	return p;
}

KPrim *k_attention_create(const KAttentionDesc *d) { return create(d, false); }
KPrim *k_attention_grad_create(const KAttentionDesc *d) { return create(d, true); }

/* ---- runs ---- */

/* The tensors of a run, by number. */
struct Given { int n; int64_t uid[AT_TENSORS]; void *at[AT_TENSORS]; bool aligned; };

static void give(Given *g, int uid, const void *at)
{
	g->uid[g->n] = uid;
	g->at[g->n++] = const_cast<void *>(at);
	g->aligned = g->aligned && (uid >= AT_SCALE || aligned16(at));
}

/* Gives the numbers of a graph: exactly those that it has. */
static void give_numbers(Given *g, const KAttention *a, const AttentionNumbers *n)
{
	give(g, AT_SCALE, &n->scale);
	if (a->has_left || a->has_right)
		give(g, AT_HIDDEN, &n->hidden);
	if (a->has_right && a->right != 0)
		give(g, AT_RIGHT, &n->right);
	if (a->has_left)
		give(g, AT_LEFT, &n->left);
}

/* Primitives of one description are one, so some of its places may be aligned and others not. */
static bool serves(KPrim *p, const Given *g)
{
	if (p->graph && !g->aligned)
		snprintf(p->impl, sizeof p->impl, "cudnn:attention, own where not aligned");
	return p->graph && g->aligned;
}

static void run_graph(const KPrim *p, const Given *g, void *work)
{
	prim_dnn(); /* on the stream that kernels are launched on */
	prim_check_dnn(graph_run(p->graph, g->n, g->uid, g->at, work), "run an attention");
}

/* Gives the bias that the mask becomes. */
static void give_bias(Given *g, const KPrim *p, const void *mask, char *bias)
{
	if (p->attention.a.mask == K_MASK_NONE || !p->graph)
		return;
	give(g, AT_BIAS, bias);
	if (g->aligned)
		attention_bias((float *)bias, mask, &p->attention.a, p->attention.dtype);
}

void k_attention_run(KPrim *p, void *o, float *lse, const void *q, const void *k, const void *v, const void *mask,
	void *work)
{
	const KAttention *a = &p->attention.a;
	const KDType type = p->attention.dtype;
	KDnnPlaces at = places_of(a, false);
	AttentionNumbers numbers = attention_numbers(a);
	bool masked = a->mask != K_MASK_NONE;
	float *logs = p->attention.stats ? lse : masked ? (float *)((char *)work + at.rows) : NULL;
	Given g = {};
	g.aligned = true;
	give(&g, AT_Q, q);
	give(&g, AT_K, k);
	give(&g, AT_V, v);
	give(&g, AT_O, o);
	if (logs)
		give(&g, AT_LSE, logs);
	give_numbers(&g, a, &numbers);
	give_bias(&g, p, mask, (char *)work + at.bias);
	if (!serves(p, &g))
		return (type == K_BF16 ? k_attention_bf16 : k_attention_f16)((uint16_t *)o, p->attention.stats ? lse : NULL,
			(const uint16_t *)q, (const uint16_t *)k, (const uint16_t *)v, mask, NULL, a, 0, NULL, work);
	run_graph(p, &g, (char *)work + at.scratch);
	if (masked)
		attention_redo(type, (uint16_t *)o, logs, (const uint16_t *)q, (const uint16_t *)k, (const uint16_t *)v, mask,
			a, (int *)work);
}

void k_attention_grad_run(KPrim *p, void *dq, void *dk, void *dv, const void *dy, const void *q, const void *k,
	const void *v, const void *mask, const void *o, const float *lse, void *work)
{
	const KAttention *a = &p->attention.a;
	const KDType type = p->attention.dtype;
	KDnnPlaces at = places_of(a, true);
	AttentionNumbers numbers = attention_numbers(a);
	char *rows = (char *)work + at.rows;
	const struct { int uid; const void *at; } all[] = {{AT_DQ, dq}, {AT_DK, dk}, {AT_DV, dv}, {AT_DO, dy}, {AT_Q, q},
		{AT_K, k}, {AT_V, v}, {AT_O, o}, {AT_LSE, lse}, {AT_DELTA, rows}, {AT_ONE, &numbers.one}};
	Given g = {};
	g.aligned = true;
	for (const auto &x : all)
		give(&g, x.uid, x.at);
	give_numbers(&g, a, &numbers);
	give_bias(&g, p, mask, (char *)work + at.bias);
	if (!serves(p, &g))
		return (type == K_BF16 ? k_attention_grad_bf16 : k_attention_grad_f16)((uint16_t *)dq, (uint16_t *)dk,
			(uint16_t *)dv, (const uint16_t *)dy, (const uint16_t *)q, (const uint16_t *)k, (const uint16_t *)v, mask,
			NULL, (const uint16_t *)o, lse, a, 0, NULL, work);
	run_graph(p, &g, (char *)work + at.scratch);
	if (a->mask != K_MASK_NONE)
		attention_grad_redo(type, (uint16_t *)dq, (uint16_t *)dk, (uint16_t *)dv, (const uint16_t *)dy,
			(const uint16_t *)q, (const uint16_t *)k, (const uint16_t *)v, mask, (const uint16_t *)o, lse, a,
			(int *)work, rows);
}
