/* runtime/exec/average.c: float buffers (BatchNorm's statistics) averaged over ranks.
 *
 * In training every rank has its own buffers; an evaluation and a checkpoint need one value for all.  The averages are
 * put in their place, because that is where the program reads them; the rank's own values are kept in the shadow,
 * planned memory after the buffers, and are restored unchanged.  A program that takes rank 0's buffers before each
 * forward (--bn-sync=broadcast) takes rank 0's here, too.
 *
 * Every rank computes the average itself, as a left fold in rank order, so all get the same bits. */
#include <string.h>

#include "runtime/exec/private.h"

/* first: byte of the shadow where the piece begins; state: the arena of buffers as the host sees it. */
typedef struct Average { Rt *rt; int64_t first; char *state; } Average;

bool average_takes(const RtTensor *t)
{
	return t->kind == RT_BUFFER && dtype_is_float(t->dtype);
}

int64_t average_bytes(const RtTensor *t)
{
	return round_up(MAX(tensor_bytes(t), 1), LAYOUT_ALIGN);
}

static char *shadow(const Rt *rt)
{
	return rt->state + rt->model->layout.state_bytes;
}

static bool is_off(const Rt *rt)
{
	return !rt->p->comm || rt->model->layout.average_bytes == 0;
}

/* Averages one element, in f32, or in f64 where it is f64.  The mean of equal numbers is exactly that number, however
 * many there are. */
static void fold(char *out, const char *const *from, int64_t at, int ranks, DType dtype)
{
	double first = number_get(from[0] + at, dtype), wide = 0;
	float sum = 0;
	for (int i = 1; i < ranks; i++) {
		sum += (float)number_get(from[i] + at, dtype) - (float)first;
		wide += number_get(from[i] + at, dtype) - first;
	}
	number_put(out, dtype, first + (dtype == DT_F64 ? wide / ranks : (double)(sum / (float)ranks)));
}

/* Bytes [at, at + n) of the piece, which may hold parts of several tensors. */
static void fold_piece(void *context, const char *const *from, int64_t at, int64_t n)
{
	const Average *av = context;
	const RtModel *m = av->rt->model;
	int64_t begin = av->first + at, place = 0;
	int ranks = m->first_buffers ? 1 : av->rt->p->world.size;
	if (at % LAYOUT_ALIGN)
		ice("a piece of buffers begins at byte %lld", (long long)at);
	for (int i = 0; i < m->n_tensors; i++) {
		const RtTensor *t = &m->tensors[i];
		if (!average_takes(t))
			continue;
		int64_t size = dtype_info[t->dtype].bytes, first = MAX(begin, place);
		int64_t end = MIN(begin + n, place + tensor_bytes(t));
		for (int64_t k = first; k < end; k += size)
			fold(av->state + t->offset + (k - place), from, k - begin, ranks, t->dtype);
		place += average_bytes(t);
	}
}

static int64_t state_bytes(const Rt *rt)
{
	return rt->model->layout.state_bytes + rt->model->layout.average_bytes;
}

/* Copies between the buffers and the shadow, in the host's view of the arena. */
static void copy_all(const Rt *rt, char *state, bool to_shadow)
{
	char *own = state + rt->model->layout.state_bytes;
	for (int i = 0; i < rt->model->n_tensors; i++) {
		const RtTensor *t = &rt->model->tensors[i];
		if (!average_takes(t))
			continue;
		char *here = state + t->offset;
		memcpy(to_shadow ? own : here, to_shadow ? here : own, (size_t)tensor_bytes(t));
		own += average_bytes(t);
	}
}

char *average_own(const Rt *rt, const RtTensor *t)
{
	if (is_off(rt) || !average_takes(t))
		return device_tensor(rt, t);
	char *own = shadow(rt);
	for (const RtTensor *before = rt->model->tensors; before != t; before++)
		own += average_takes(before) ? average_bytes(before) : 0;
	return own;
}

void average_begin(Rt *rt)
{
	if (is_off(rt))
		return;
	char *state = device_open(rt, rt->state, state_bytes(rt), DEVICE_READ | DEVICE_WRITE);
	copy_all(rt, state, true);
	Arena *a = arena_new();
	Staging s = staging_find(rt, a);
	int64_t total = rt->model->layout.average_bytes;
	Average av = {rt, 0, state};
	for (int64_t n; av.first < total; av.first += n) {
		n = MIN(s.bytes, total - av.first);
		memcpy(s.at, state + rt->model->layout.state_bytes + av.first, (size_t)n);
		staging_collect(rt, &s, n, fold_piece, &av);
	}
	device_close(rt, rt->state, state, state_bytes(rt), DEVICE_READ | DEVICE_WRITE);
	arena_free(a);
}

void average_end(Rt *rt)
{
	if (is_off(rt))
		return;
	char *state = device_open(rt, rt->state, state_bytes(rt), DEVICE_READ | DEVICE_WRITE);
	copy_all(rt, state, false);
	device_close(rt, rt->state, state, state_bytes(rt), DEVICE_READ | DEVICE_WRITE);
}
