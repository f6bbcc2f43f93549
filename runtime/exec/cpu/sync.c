/* runtime/exec/cpu/sync.c: small blocking collectives: statistics of batch norms, and float buffers from rank 0.
 *
 * A rank puts its message into memory that peers read and takes the messages of all.  The two numbers of a channel are
 * adjacent, so a message can be cut between any two channels.  Every rank merges moments itself by Chan's formula
 * (Chan, Golub and LeVeque), in rank order and in f64, so all have equal bits; with one rank the result equals the
 * input.
 *
 * The scales of weights are the largest magnitudes that any rank has of its parts of them.
 *
 * These collectives differ only in their message and in what is made of the ranks' pieces of it (Use). */
#include <string.h>

#include "kernels/f8.h"
#include "runtime/exec/private.h"

typedef void Use(void *context, const char *const *from, int64_t at, int64_t n);
typedef struct Vectors {
	DType dtype;
	void *out[3];
	int ranks;
	int64_t n;             /* elements of a channel on each rank; 0: variances stay biased */
} Vectors;

/* ---- a message ---- */

typedef struct Message { int64_t bytes; int from; } Message; /* from: rank, -1 = all */

static void message_range(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	const Message *m = context;
	*begin = 0;
	*bytes = m->from < 0 || (giver == m->from && taker != giver) ? m->bytes : 0;
}

static void exchange(Rt *rt, const Message *m, Use *use, void *context)
{
	const World *w = &rt->p->world;
	Arena *a = rt->p->arena;
	ArenaMark mark = arena_mark(a);
	const char **from = NEW_N(a, const char *, w->size);
	int *ranks = NEW_N(a, int, w->size);
	for (int r = 0; r < w->size; r++)
		ranks[r] = r;
	Exchange x = {.channel = RT_STREAM_SYNC, .ranks = ranks, .n = w->size, .me = w->rank, .source = rt->p->memory.sync,
		.range = message_range, .context = m};
	exchange_begin(rt->p->comm, &x);
	for (int64_t at = 0, n; (n = exchange_take(rt->p->comm, &x, at, m->bytes, from)); at += n)
		use(context, from, at, n);
	exchange_end(rt->p->comm, &x);
	arena_rewind(a, mark);
}

/* ---- vectors ---- */

static double get(DType dtype, const char *from, int64_t i)
{
	return dtype == DT_F64 ? ((const double *)(const void *)from)[i] : (double)((const float *)(const void *)from)[i];
}

static void put(DType dtype, char *to, int64_t i, double x)
{
	if (dtype == DT_F64)
		((double *)(void *)to)[i] = x;
	else
		((float *)(void *)to)[i] = (float)x;
}

/* The channels of a piece, which is bytes [at, at + n) of the pairs. */
static int64_t channels(const Vectors *v, int64_t at, int64_t n, int64_t *first)
{
	int64_t pair = 2 * dtype_info[v->dtype].bytes;
	if (at % pair || n % pair)
		ice("a piece of statistics is %lld bytes from byte %lld on", (long long)n, (long long)at);
	*first = at / pair;
	return n / pair;
}

static void merge_moments(void *context, const char *const *from, int64_t at, int64_t n)
{
	const Vectors *v = context;
	int64_t first, count = channels(v, at, n, &first);
	double w = v->ranks, unbiased = collective_unbiased(v->n, v->ranks);
	for (int64_t c = 0; c < count; c++) {
		double mean = get(v->dtype, from[0], 2 * c), sum = get(v->dtype, from[0], 2 * c + 1);
		for (int r = 1; r < v->ranks; r++) {
			double delta = get(v->dtype, from[r], 2 * c) - mean;
			mean += delta / (r + 1);
			sum += get(v->dtype, from[r], 2 * c + 1) + delta * delta * r / (r + 1);
		}
		put(v->dtype, v->out[0], first + c, mean);
		put(v->dtype, v->out[1], first + c, sum / w);
		put(v->dtype, v->out[2], first + c, sum / w * unbiased);
	}
}

static void merge_means(void *context, const char *const *from, int64_t at, int64_t n)
{
	const Vectors *v = context;
	int64_t first, count = channels(v, at, n, &first);
	for (int64_t c = 0; c < count; c++)
		for (int k = 0; k < 2; k++) {
			double sum = get(v->dtype, from[0], 2 * c + k);
			for (int r = 1; r < v->ranks; r++)
				sum += get(v->dtype, from[r], 2 * c + k);
			put(v->dtype, v->out[k], first + c, sum / v->ranks);
		}
}

static void all_reduce(Rt *rt, int seq, RtCollectiveKind kind, Vectors *v, int64_t c, const void *const in[2], Use *use)
{
	Message m = {2 * c * dtype_info[v->dtype].bytes, -1};
	if (m.bytes > rt->model->layout.sync_bytes)
		ice("collective %d sends %lld bytes, planned are %lld", seq, (long long)m.bytes,
			(long long)rt->model->layout.sync_bytes);
	streams_sync_begin(rt, seq);
	for (int64_t i = 0; i < c; i++)
		for (int k = 0; k < 2; k++)
			put(v->dtype, rt->p->memory.sync, 2 * i + k, get(v->dtype, in[k], i));
	exchange(rt, &m, use, v);
	streams_sync_end(rt, kind, m.bytes * (v->ranks - 1));
}

void rt_all_reduce_moments(Rt *rt, int seq, DType dtype, int64_t c, void *mean, void *var, void *running,
	const void *my_mean, const void *my_var, int64_t n)
{
	Vectors v = {dtype, {mean, var, running}, rt->p->world.size, n};
	size_t bytes = (size_t)(c * dtype_info[dtype].bytes);
	if (rt->p->comm) {
		all_reduce(rt, seq, RT_ALL_REDUCE_MOMENTS, &v, c, (const void *const[]){my_mean, my_var}, merge_moments);
		return;
	}
	memcpy(mean, my_mean, bytes);
	memcpy(var, my_var, bytes);
	memcpy(running, my_var, bytes);
}

void rt_all_reduce_means(Rt *rt, int seq, DType dtype, int64_t c, void *a, void *b, const void *my_a, const void *my_b)
{
	Vectors v = {dtype, {a, b}, rt->p->world.size, 0};
	size_t bytes = (size_t)(c * dtype_info[dtype].bytes);
	if (rt->p->comm) {
		all_reduce(rt, seq, RT_ALL_REDUCE_MEANS, &v, c, (const void *const[]){my_a, my_b}, merge_means);
		return;
	}
	memcpy(a, my_a, bytes);
	memcpy(b, my_b, bytes);
}

/* ---- scales ---- */

/* Bits of numbers that are not negative order as the numbers do, and NaN is the largest. */
static void take_largest(void *context, const char *const *from, int64_t at, int64_t n)
{
	const Rt *rt = context;
	for (int64_t i = 0; i < n / (int64_t)sizeof(float); i++) {
		uint32_t most = 0;
		for (int r = 0; r < rt->p->world.size; r++)
			most = MAX(most, ((const uint32_t *)(const void *)from[r])[i]);
		*scales_at(rt, (int)(at / (int64_t)sizeof(float) + i)) = ew_float(most);
	}
}

void rt_f8_scales(Rt *rt, int seq)
{
	int n = rt->model->n_scales;
	Message m = {n * (int64_t)sizeof(float), -1};
	int64_t stride = rt->p->comm ? 1 : LAYOUT_SCALE_BYTES / (int64_t)sizeof(float);
	float *most = rt->p->comm ? (float *)(void *)rt->p->memory.sync : scales_at(rt, 0);
	if (rt->p->comm)
		streams_sync_begin(rt, seq);
	for (int k = 0; k < n; k++)
		most[k * stride] = 0;
	scales_largest(rt, most, stride);
	if (rt->p->comm) {
		exchange(rt, &m, take_largest, rt);
		streams_sync_end(rt, RT_F8_SCALES, m.bytes * (rt->p->world.size - 1));
	}
	for (int k = 0; k < n; k++)
		*scales_at(rt, k) = f8_weight_scale(*scales_at(rt, k));
}

/* ---- buffers ---- */

/* Copies bytes [at, at + n) of the message into the buffers (out), or from them into the message. */
static void copy_buffers(Rt *rt, char *message, int64_t at, int64_t n, bool out)
{
	int64_t place = 0;
	for (int i = 0; i < rt->model->n_tensors; i++) {
		const RtTensor *t = &rt->model->tensors[i];
		if (!average_takes(t))
			continue;
		int64_t begin = MAX(at, place), end = MIN(at + n, place + tensor_bytes(t));
		char *here = device_tensor(rt, t) + (begin - place), *there = message + (begin - at);
		if (end > begin)
			memcpy(out ? here : there, out ? there : here, (size_t)(end - begin));
		place += average_bytes(t);
	}
}

static void take_buffers(void *context, const char *const *from, int64_t at, int64_t n)
{
	Rt *rt = context;
	copy_buffers(rt, (char *)(uintptr_t)from[0], at, n, true);
}

void rt_broadcast_buffers(Rt *rt, int seq)
{
	Message m = {rt->model->layout.average_bytes, 0};
	bool first = rt->p->world.rank == 0;
	if (!rt->p->comm)
		return;
	streams_sync_begin(rt, seq);
	if (first)
		copy_buffers(rt, rt->p->memory.sync, 0, m.bytes, false);
	exchange(rt, &m, take_buffers, rt);
	streams_sync_end(rt, RT_BROADCAST_BUFFERS, first ? 0 : m.bytes);
}
