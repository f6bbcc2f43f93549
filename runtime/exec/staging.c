/* runtime/exec/staging.c: moves bytes from rank to rank outside a step: initial weights, buffers to be averaged.
 *
 * Peers can read only the memory that the communicator mapped.  All of it is in use during a step, but between steps
 * the flat gradients are free, and the largest of them is the window that everything passes through.  On GPUs the
 * window is memory of the host.
 *
 * Elements travel in the dtype of the model, whatever dtype they have in memory.
 *
 * A piece is put into the window and exchanged; the next one does not begin before all ranks have read it. */
#include <string.h>

#include "runtime/exec/exec.h"


Staging staging_find(const Rt *rt, Arena *a)
{
	const LayoutModel *m = &rt->model->layout;
	LayoutRank who = device_rank(rt);
	Staging s = {comm_mailbox(rt->p->comm), COMM_MAILBOX, NEW_N(a, int, who.world),
		NEW_N(a, const char *, who.world)};
	if (rt->p->memory.window) {
		s.at = rt->p->memory.window;
		s.bytes = rt->p->memory.window_bytes;
	}
	for (int u = 0; !rt->p->memory.window && u < m->n_units; u++)
		for (int f = 0; f < m->unit[u].n_flats; f++) {
			const LayoutFlat *flat = &m->unit[u].flat[f];
			int64_t ranks = layout_split(m->unit[u].strategy, &who).ranks;
			int64_t bytes = layout_flat_numel(flat->numel, ranks) * dtype_info[flat->grad].bytes;
			if (flat->trainable && bytes > s.bytes) {
				s.at = rt->grad[u][f];
				s.bytes = bytes;
			}
		}
	s.bytes = MIN(s.bytes, STAGING_MOST);
	for (int i = 0; i < who.world; i++)
		s.ranks[i] = i;
	return s;
}

static Exchange exchange(const Rt *rt, const Staging *s)
{
	const World *w = &rt->p->world;
	return (Exchange){.channel = RT_STREAM_SYNC, .ranks = s->ranks, .n = w->size, .me = w->rank, .source = s->at};
}

/* ---- rank 0 to all ---- */

typedef struct Spread { const Rt *rt; const Spreading *what; int64_t first, n; } Spread;

int64_t staging_elements(const Staging *s, DType dtype)
{
	return s->bytes / dtype_info[dtype].bytes / LAYOUT_ALIGN * LAYOUT_ALIGN;
}

/* Elements of the piece that a rank holds. */
static LayoutRange wanted(const Spread *s, int rank)
{
	LayoutRank who = device_rank(s->rt);
	who.rank = rank;
	LayoutRange held = slice_of_rank(s->rt->model, s->what->t, s->what->of_state, &who);
	if (s->what->only >= 0 && s->what->only != rank)
		held.n = 0;
	int64_t begin = MAX(held.begin, s->first), end = MIN(held.begin + held.n, s->first + s->n);
	return end > begin ? (LayoutRange){begin, end - begin} : (LayoutRange){s->first, 0};
}

/* Shards and parameters begin at multiples of 64 elements, so only the end needs rounding. */
static void spread_range(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	const Spread *s = context;
	int size = dtype_info[s->what->dtype].bytes;
	LayoutRange r = wanted(s, taker);
	*begin = (r.begin - s->first) * size;
	*bytes = giver == s->what->giver && taker != giver ? round_up(r.n * size, 4) : 0;
}

void staging_spread(const Rt *rt, const Staging *s, const Spreading *what, int64_t first, int64_t n)
{
	Spread spread = {rt, what, first, n};
	Exchange x = exchange(rt, s);
	x.range = spread_range;
	x.context = &spread;
	int size = dtype_info[what->dtype].bytes;
	LayoutRange want = wanted(&spread, x.me);
	exchange_begin(rt->p->comm, &x);
	for (int64_t at = 0, end = want.n * size; x.me != what->giver && at < end;) {
		int64_t got = exchange_take(rt->p->comm, &x, at, round_up(end - at, 4), s->from);
		int64_t begin = want.begin + at / size, count = MIN(got, end - at) / size;
		slice_store(rt, &what->slice, begin, count, s->from[what->giver], what->dtype);
		slice_store(rt, &what->master, begin, count, s->from[what->giver], what->dtype);
		at += got;
	}
	exchange_end(rt->p->comm, &x);
}

/* ---- all to all ---- */

static void whole_range(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	(void)taker, (void)giver;
	*begin = 0;
	*bytes = *(const int64_t *)context;
}

void staging_collect(const Rt *rt, const Staging *s, int64_t bytes, StagingUse *use, void *context)
{
	Exchange x = exchange(rt, s);
	x.range = whole_range;
	x.context = &bytes;
	exchange_begin(rt->p->comm, &x);
	for (int64_t at = 0; at < bytes;) {
		int64_t got = exchange_take(rt->p->comm, &x, at, bytes - at, s->from);
		use(context, s->from, at, got);
		at += got;
	}
	exchange_end(rt->p->comm, &x);
}
