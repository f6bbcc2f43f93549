/* runtime/store/gather.c: rank 0 alone writes whole tensors, where other ranks do not see its folder.
 *
 * Every rank puts its part of a piece of a tensor where peers can read it, and rank 0 writes it to its place in the
 * file. This needs no extra memory: pieces pass through the window of staging.c.
 *
 * The plan's layout says which rank holds which elements, so rank 0 knows without asking what it will get. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/file.h"
#include "runtime/store/private.h"

/* Elements [first, first + n) of a tensor; to: rank 0's file. */
typedef struct Gather {
	const SaveSet *c;
	SafeTensor *tensor;
	const SavePart *part;
	int64_t first, n, size;
	SaveWriting to;
	int error;               /* errno of the first write that failed */
} Gather;

/* The range of the tensor that a rank writes; for kind sharded, the index of save_text.c has the same ranges. */
static LayoutRange written_by(const Gather *g, int rank)
{
	const Rt *rt = g->c->rt;
	const RtTensor *t = g->part->t;
	LayoutRank who = device_rank(rt);
	who.rank = rank;
	LayoutRange r = {0, rank == MAX(g->part->only, 0) ? tensor_numel(t) : 0};
	if (t->kind == RT_PARAM) {
		LayoutRange held = layout_saved(&rt->model->layout.unit[t->unit], t->flat, &who);
		r = (LayoutRange){MAX(held.begin - t->offset, 0), 0};
		r.n = MAX(MIN(held.begin + held.n - t->offset, tensor_numel(t)) - r.begin, 0);
	}
	int64_t begin = MAX(r.begin, g->first), end = MIN(r.begin + r.n, g->first + g->n);
	return end > begin ? (LayoutRange){begin, end - begin} : (LayoutRange){g->first, 0};
}

static void gather_range(const void *context, int taker, int giver, int64_t *begin, int64_t *bytes)
{
	const Gather *g = context;
	LayoutRange r = written_by(g, giver);
	*begin = (r.begin - g->first) * g->size;
	*bytes = taker == 0 && giver != 0 ? round_up(r.n * g->size, 4) : 0;
}

/* Puts this rank's elements of the piece, in the dtype of the file, at their place in the window. */
static void fill_window(const Gather *g, char *window)
{
	const Rt *rt = g->c->rt;
	LayoutRange r = written_by(g, rt->p->world.rank);
	Slice part = g->part->source;
	if (!r.n)
		return;
	if (r.begin < part.first || r.begin + r.n > part.first + part.n)
		ice("of \"%s\" elements from %lld on are not here", g->tensor->name, (long long)r.begin);
	part.at += (r.begin - part.first) * dtype_info[part.dtype].bytes;
	part.first = r.begin;
	part.n = r.n;
	for (Slice piece = slice_begin(&part); slice_next(rt, &part, &piece, DEVICE_READ);)
		slice_convert(window + (piece.first - g->first) * g->size, g->tensor->dtype, g->tensor->dtype, piece.at,
			piece.dtype, piece.n);
}

/* Writes bytes [at, at + n) of the tensor; after a failure it writes no more. */
static void put(Gather *g, const char *from, int64_t at, int64_t n)
{
	if (g->error || n <= 0)
		return;
	g->tensor->crc ^= crc32_join(crc32_more(0, from, n), 0, g->tensor->bytes - at - n);
	if (!file_put(g->to.fd, from, n, g->tensor->offset + at) || !save_has_written(&g->to, n))
		g->error = errno ? errno : EIO;
}

static void gather_piece(Gather *g, const Staging *s)
{
	const World *w = &g->c->rt->p->world;
	Exchange x = {.channel = RT_STREAM_SYNC, .ranks = s->ranks, .n = w->size, .me = w->rank, .source = s->at,
		.range = gather_range, .context = g};
	fill_window(g, s->at);
	LayoutRange mine = written_by(g, 0);
	if (w->rank == 0)
		put(g, s->at + (mine.begin - g->first) * g->size, mine.begin * g->size, mine.n * g->size);
	exchange_begin(g->c->rt->p->comm, &x);
	for (int64_t at = 0, got; w->rank == 0 && (got = exchange_take(g->c->rt->p->comm, &x, at, s->bytes, s->from)) > 0;
		at += got)
		for (int r = 1; r < w->size; r++) {
			LayoutRange of = written_by(g, r);
			if (s->from[r])
				put(g, s->from[r], of.begin * g->size + at, MIN(got, of.n * g->size - at));
		}
	exchange_end(g->c->rt->p->comm, &x);
}

static void gather_file(const SaveSet *c, const SavePaths *at, SaveFile *f, const Staging *s, int *error)
{
	Gather g = {.c = c, .to = {.fd = -1, .at = at}};
	if (c->rt->p->world.rank == 0) {
		g.to.fd = open(arena_printf(at->a, "%s/%s", at->temp, f->name), O_WRONLY | O_CLOEXEC);
		g.error = g.to.fd < 0 ? errno : 0;
	}
	for (int i = 0; i < f->n; i++) {
		g.tensor = &f->at[i];
		g.part = &f->part[i];
		g.size = dtype_info[g.tensor->dtype].bytes;
		g.tensor->crc = 0;
		int64_t numel = tensor_numel(g.part->t), most = staging_elements(s, g.tensor->dtype);
		for (g.first = 0; g.first < numel; g.first += g.n) {
			g.n = MIN(most, numel - g.first);
			gather_piece(&g, s);
		}
	}
	bool ok = g.to.fd < 0 || (!fsync(g.to.fd) && !g.error);
	if (!ok && !g.error)
		g.error = errno;
	file_close(g.to.fd, true);
	*error = *error ? *error : g.error;
}

bool gather_files(const SaveSet *c, const SavePaths *at, Diag *d)
{
	Held held;
	Diag *later = agree_begin(&held, d);
	Staging s = staging_find(c->rt, at->a);
	int error = 0;
	for (int i = 0; i < CHECKPOINT_SECTIONS; i++) {
		SaveFile file = c->file[i];
		if (save_has_file(c, i))
			gather_file(c, at, &file, &s, &error);
	}
	if (error)
		diag_error(later, at->final, "could not be written: %s; this checkpoint was dropped, earlier ones are as they "
			"were", strerror(error));
	return agree_end(c->rt, &held, !error, d);
}
