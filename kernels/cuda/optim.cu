/* kernels/cuda/optim.cu: updates over flat shards.
 *
 * The one idea: all segments of a flat are one launch.  The flat is cut evenly over the blocks; a block finds its first
 * segment by halving and walks on, so what a segment's elements share is computed once and gaps are passed over. */
#include "kernels/cuda/segments.cuh"

enum { OPTIM_BLOCK = 256 };

typedef enum Rule {
#define OPTIMIZER(kernel, ...) OPTIM_##kernel,
#include "base/optimizers.def"
} Rule;

static constexpr int n_states[] = {
#define OPTIMIZER(kernel, name, flag, lr, decay, beta1, beta2, eps, momentum, counted, n, ...) n,
#include "base/optimizers.def"
};

typedef struct Update {
	float lr, decay, scale, clip, beta1, beta2, eps;
	float step, root; /* adam: lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
} Update;

/* A KUpdate as a launch takes it. */
template <class G> struct Flat {
	float *p, *a, *b;
	const G *g;
	const Segment *seg;
	int64_t n_seg;
	const Group *group;
	const StepScalars *s;
	bool nesterov;
};

__device__ inline Update update_of(const Group *g, const StepScalars *s, int64_t began, bool adam)
{
	double t = (double)(s->step - began);
	Update u = {s->lr * g->lr_scale, g->weight_decay, s->grad_scale * s->clip_coef,
		s->clip_value > 0 ? s->clip_value : INFINITY, g->beta1, g->beta2, g->eps, 0, 0};
	if (adam) {
		u.step = (float)((double)u.lr / (1 - pow((double)g->beta1, t)));
		u.root = (float)(1 / sqrt(1 - pow((double)g->beta2, t)));
	}
	return u;
}

/* One element; a, b: its states, as far as the rule has them. */
template <Rule R>
__device__ __forceinline__ void update_one(const Update &u, bool nesterov, float &p, float &a, float &b, float g)
{
	g *= u.scale;
	g = g > u.clip ? u.clip : g;
	g = g < -u.clip ? -u.clip : g;
	if constexpr (R == OPTIM_adamw || R == OPTIM_lion)
		p *= 1 - u.lr * u.decay;
	else
		g += u.decay * p;
	if constexpr (R == OPTIM_sgd) {
		p -= u.lr * g;
	} else if constexpr (R == OPTIM_momentum) {
		a = u.beta1 * a + g;
		p -= u.lr * (nesterov ? g + u.beta1 * a : a);
	} else if constexpr (R == OPTIM_adagrad) {
		a += g * g;
		p -= u.lr * g / (sqrtf(a) + u.eps);
	} else if constexpr (R == OPTIM_lion) {
		float c = a + (1 - u.beta1) * (g - a);
		p -= u.lr * (c > 0 ? 1.0f : c < 0 ? -1.0f : 0.0f);
		a = a + (1 - u.beta2) * (g - a);
	} else {
		a = a + (1 - u.beta1) * (g - a);
		b = u.beta2 * b + (1 - u.beta2) * g * g;
		p -= u.step * a / (sqrtf(b) * u.root + u.eps);
	}
}

/* N elements from i on. */
template <Rule R, int N, class G>
__device__ __forceinline__ void update_at(const Flat<G> &f, const Update &u, int64_t i)
{
	constexpr bool has_a = n_states[R] > 0, has_b = n_states[R] > 1;
	Vec<G, N> g = load<N>(f.g + i);
	Vec<float, N> p = load<N>(f.p + i), a = {}, b = {};
	if constexpr (has_a)
		a = load<N>(f.a + i);
	if constexpr (has_b)
		b = load<N>(f.b + i);
	#pragma unroll
	for (int e = 0; e < N; e++)
		update_one<R>(u, f.nesterov, p.at[e], a.at[e], b.at[e], widen(g.at[e]));
	store<N>(f.p + i, p);
	if constexpr (has_a)
		store<N>(f.a + i, a);
	if constexpr (has_b)
		store<N>(f.b + i, b);
}

template <Rule R, class G> static __global__ void __launch_bounds__(OPTIM_BLOCK) update_flat(Flat<G> f)
{
	__shared__ Update shared;
	if (f.s->skip)
		return;
	FlatChunk chunk = flat_chunk(f.seg, f.n_seg);
	for (int64_t k = first_segment(f.seg, f.n_seg, chunk.begin); k < f.n_seg && f.seg[k].begin < chunk.end; k++) {
		FlatChunk part = chunk_of_segment(chunk, f.seg[k]);
		__syncthreads(); /* of the segment before */
		if (threadIdx.x == 0)
			shared = update_of(&f.group[f.seg[k].group], f.s, f.seg[k].began, R == OPTIM_adam || R == OPTIM_adamw);
		__syncthreads();
		Update u = shared;
		each_of_part(part, [&](int64_t i) { update_at<R, 1>(f, u, i); }, [&](int64_t i) { update_at<R, 4>(f, u, i); });
	}
}

template <Rule R, class G> static void update_as(const KUpdate *u)
{
	Flat<G> f = {u->p, u->state[0], u->state[1], (const G *)u->g, u->segment, u->n_segments, u->group, u->s,
		u->nesterov};
	LAUNCH((update_flat<R, G>), K_FLAT_CHUNKS, OPTIM_BLOCK, 0, k_stream, f);
}

template <Rule R> static void update(const KUpdate *u)
{
	if (u->n_segments == 0)
		return;
	want_flat(u->p, "parameters");
	want_flat(u->state[0], "states");
	want_flat(u->state[1], "states");
	want_flat(u->g, "gradients");
	if (u->g_type == K_F32)
		update_as<R, float>(u);
	else if (u->g_type == K_BF16)
		update_as<R, Bf16>(u);
	else
		update_as<R, F16>(u);
}

#define OPTIMIZER(kernel, ...) void k_##kernel##_f32(const KUpdate *u) { update<OPTIM_##kernel>(u); }
#include "base/optimizers.def"
