/* passes/memory/pack.c: finds offsets for blocks with known lifetimes.
 *
 * Dynamic storage allocation is NP-hard, but training programs are nearly nested (what forward makes first,
 * backward frees last), so simple orders come close to the bound.  There are three methods:
 *
 *   skyline   a block lies on top of all blocks placed before it that are live at any of its positions; the
 *             longest life is placed first, so nested lives stack without holes.  O(n log n).
 *   stream    walks the program with a free list, best fit.  O(n * free ranges).
 *   gaps      a block goes into the lowest gap between all placed blocks that are live with it.  O(n^2), so
 *             only for up to GAPS_LIMIT blocks.  The best order is then improved: the block that ends highest
 *             is placed earlier, as often as IMPROVE_STEPS allow.
 *
 * The best result wins; the search ends when a result meets the bound, the most bytes live at once or what the
 * caller has anyway.  Bytes that lie above the blocks from some position on count with the blocks that they lie above.
 * Gaps end within a thousandth of it: of large models further attempts take more time than all passes. */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

enum { GAPS_LIMIT = 12000, IMPROVE_ROUNDS = 200, NEAR = 1000 };
/* Block pairs looked at: more found nothing in models of real sizes. */
static const int64_t IMPROVE_STEPS = 5 * 1000 * 1000;

typedef struct Pack {
	MemoryBlock *block;
	int n, n_positions;
	const int64_t *above; /* by position; NULL: nothing */
	int64_t *offset;   /* of the current attempt */
	int64_t *best;
	int64_t best_end, bound; /* of the last block and, with `above`, of what lies above it: their sum */
	Arena *a;
} Pack;

/* ---- orders ---- */

typedef struct Key { int64_t major, minor; int index; } Key;

static int compare_keys(const void *pa, const void *pb)
{
	const Key *a = pa, *b = pb;
	if (a->major != b->major)
		return a->major > b->major ? -1 : 1;
	if (a->minor != b->minor)
		return a->minor > b->minor ? -1 : 1;
	return a->index - b->index;
}

typedef enum Order { BY_SIZE, BY_AREA, BY_LIFE, BY_START, ORDERS } Order;

static Key key_of(const MemoryBlock *b, Order order, int index)
{
	int64_t life = b->last - b->first + 1;
	switch (order) {
	case BY_SIZE:  return (Key){b->bytes, life, index};
	case BY_AREA:  return (Key){b->bytes / 64 * life, b->bytes, index};
	case BY_LIFE:  return (Key){life, b->bytes, index};
	case BY_START: return (Key){-b->first, b->bytes, index};
	case ORDERS:   break;
	}
	return (Key){0};
}

static Key *sorted(const Pack *p, Order order)
{
	Key *keys = NEW_N(p->a, Key, p->n);
	for (int i = 0; i < p->n; i++)
		keys[i] = key_of(&p->block[i], order, i);
	qsort(keys, (size_t)p->n, sizeof(*keys), compare_keys);
	return keys;
}

/* Where the block ends, or what lies above it. */
static int64_t end_of(const Pack *p, const int64_t *offset, int i, const int64_t *above)
{
	return offset[i] + p->block[i].bytes + (above ? above[p->block[i].last] : 0);
}

static int64_t highest_end(const Pack *p, const int64_t *above)
{
	int64_t end = 0;
	for (int i = 0; i < p->n; i++)
		end = MAX(end, end_of(p, p->offset, i, above));
	return end;
}

static bool finish(Pack *p)
{
	int64_t end = highest_end(p, NULL) + (p->above ? highest_end(p, p->above) : 0);
	if (end < p->best_end) {
		int64_t *t = p->best;
		p->best = p->offset;
		p->offset = t;
		p->best_end = end;
	}
	return p->best_end <= p->bound;
}

/* ---- skyline: heights over positions in a segment tree ---- */

typedef struct Heights { int64_t *top, *all; } Heights; /* highest in the node; height of all, -1 = mixed */

static int64_t height_max(const Heights *h, int node, int lo, int hi, int from, int to)
{
	if (from > hi || to < lo)
		return 0;
	if (h->all[node] >= 0 || (from <= lo && hi <= to))
		return h->top[node];
	int mid = (lo + hi) / 2;
	int64_t left = height_max(h, 2 * node, lo, mid, from, to);
	int64_t right = height_max(h, 2 * node + 1, mid + 1, hi, from, to);
	return MAX(left, right);
}

static void height_set(Heights *h, int node, int lo, int hi, int from, int to, int64_t value)
{
	if (from > hi || to < lo)
		return;
	if (from <= lo && hi <= to) {
		h->top[node] = h->all[node] = value;
		return;
	}
	if (h->all[node] >= 0) {
		h->top[2 * node] = h->all[2 * node] = h->all[node];
		h->top[2 * node + 1] = h->all[2 * node + 1] = h->all[node];
		h->all[node] = -1;
	}
	int mid = (lo + hi) / 2;
	height_set(h, 2 * node, lo, mid, from, to, value);
	height_set(h, 2 * node + 1, mid + 1, hi, from, to, value);
	h->top[node] = MAX(h->top[2 * node], h->top[2 * node + 1]);
}

static bool pack_skyline(Pack *p, Order order)
{
	Key *keys = sorted(p, order);
	Heights h = {NEW_N(p->a, int64_t, 4 * p->n_positions), NEW_N(p->a, int64_t, 4 * p->n_positions)};
	for (int i = 0; i < p->n; i++) {
		int k = keys[i].index;
		const MemoryBlock *b = &p->block[k];
		int64_t base = height_max(&h, 1, 0, p->n_positions - 1, b->first, b->last);
		p->offset[k] = base;
		height_set(&h, 1, 0, p->n_positions - 1, b->first, b->last, base + b->bytes);
	}
	return finish(p);
}

/* ---- stream: a free list in program order ---- */

typedef struct Range { int64_t begin, end; } Range;
typedef struct FreeList { Range *at; int n; int64_t end; } FreeList;

static int64_t free_take(FreeList *f, int64_t bytes)
{
	int best = -1;
	for (int i = 0; i < f->n; i++) {
		int64_t size = f->at[i].end - f->at[i].begin;
		if (size >= bytes && (best < 0 || size < f->at[best].end - f->at[best].begin))
			best = i;
	}
	if (best < 0) {
		bool grows = f->n && f->at[f->n - 1].end == f->end;
		int64_t begin = grows ? f->at[--f->n].begin : f->end;
		f->end = begin + bytes;
		return begin;
	}
	int64_t begin = f->at[best].begin;
	f->at[best].begin += bytes;
	if (f->at[best].begin == f->at[best].end)
		memmove(&f->at[best], &f->at[best + 1], sizeof(Range) * (size_t)(--f->n - best));
	return begin;
}

static void free_give(FreeList *f, int64_t begin, int64_t end)
{
	int lo = 0, hi = f->n;
	while (lo < hi) {
		int mid = (lo + hi) / 2;
		if (f->at[mid].begin < begin)
			lo = mid + 1;
		else
			hi = mid;
	}
	bool left = lo > 0 && f->at[lo - 1].end == begin, right = lo < f->n && f->at[lo].begin == end;
	if (left && right) {
		f->at[lo - 1].end = f->at[lo].end;
		memmove(&f->at[lo], &f->at[lo + 1], sizeof(Range) * (size_t)(--f->n - lo));
	} else if (left) {
		f->at[lo - 1].end = end;
	} else if (right) {
		f->at[lo].begin = begin;
	} else {
		memmove(&f->at[lo + 1], &f->at[lo], sizeof(Range) * (size_t)(f->n++ - lo));
		f->at[lo] = (Range){begin, end};
	}
}

/* Blocks in the order in which they end. */
static Key *sorted_by_end(const Pack *p)
{
	Key *keys = NEW_N(p->a, Key, p->n);
	for (int i = 0; i < p->n; i++)
		keys[i] = (Key){-p->block[i].last, p->block[i].bytes, i};
	qsort(keys, (size_t)p->n, sizeof(*keys), compare_keys);
	return keys;
}

static bool pack_stream(Pack *p)
{
	Key *starts = sorted(p, BY_START), *ends = sorted_by_end(p);
	FreeList f = {.at = NEW_N(p->a, Range, p->n + 1)};
	for (int i = 0, e = 0; i < p->n; i++) {
		int k = starts[i].index;
		for (; -ends[e].major < p->block[k].first; e++) {
			int64_t begin = p->offset[ends[e].index];
			free_give(&f, begin, begin + p->block[ends[e].index].bytes);
		}
		p->offset[k] = free_take(&f, p->block[k].bytes);
	}
	return finish(p);
}

/* ---- gaps ---- */

typedef struct Placed { int64_t begin, end; int first, last; } Placed;

static bool pack_gaps(Pack *p, const Key *keys, Placed *placed)
{
	for (int i = 0; i < p->n; i++) {
		int k = keys[i].index, slot;
		const MemoryBlock *b = &p->block[k];
		int64_t begin = 0;
		for (int q = 0; q < i && placed[q].begin < begin + b->bytes; q++)
			if (placed[q].first <= b->last && b->first <= placed[q].last)
				begin = MAX(begin, placed[q].end);
		p->offset[k] = begin;
		for (slot = i; slot > 0 && placed[slot - 1].begin > begin; slot--)
			placed[slot] = placed[slot - 1];
		placed[slot] = (Placed){begin, begin + b->bytes, b->first, b->last};
	}
	return finish(p) || p->best_end - p->bound <= p->bound / NEAR;
}

/* The position in the order of the block that ended highest in the last attempt. */
static int highest(const Pack *p, const Key *keys, const int64_t *offset)
{
	int top = 0;
	for (int i = 1; i < p->n; i++)
		if (end_of(p, offset, keys[i].index, p->above) > end_of(p, offset, keys[top].index, p->above))
			top = i;
	return top;
}

/* Improves the best order.  finish() swaps a winning attempt into best, so the last attempt's offsets are there or
 * in offset. */
static bool improve(Pack *p, Key *keys, Placed *placed)
{
	int64_t rounds = MIN(IMPROVE_ROUNDS, IMPROVE_STEPS / ((int64_t)p->n * p->n + 1));
	for (int64_t r = 0; r < rounds; r++) {
		int64_t before = p->best_end;
		if (pack_gaps(p, keys, placed))
			return true;
		int top = highest(p, keys, p->best_end < before ? p->best : p->offset), to = top / 2;
		Key moved = keys[top];
		memmove(&keys[to + 1], &keys[to], sizeof(*keys) * (size_t)(top - to));
		keys[to] = moved;
	}
	return false;
}

/* ---- the search ---- */

static int64_t most_live(const Pack *p, const int64_t *above)
{
	int64_t *delta = NEW_N(p->a, int64_t, p->n_positions + 1), sum = 0, peak = 0;
	for (int i = 0; i < p->n; i++) {
		delta[p->block[i].first] += p->block[i].bytes;
		delta[p->block[i].last + 1] -= p->block[i].bytes;
	}
	for (int i = 0; i < p->n_positions; i++) {
		sum += delta[i];
		peak = MAX(peak, sum ? sum + (above ? above[i] : 0) : 0);
	}
	return peak;
}

static void search(Pack *p)
{
	if (pack_skyline(p, BY_LIFE) || pack_stream(p) || pack_skyline(p, BY_SIZE) || p->n > GAPS_LIMIT)
		return;
	Placed *placed = NEW_N(p->a, Placed, p->n);
	for (int order = 0; order < ORDERS; order++)
		if (pack_gaps(p, sorted(p, (Order)order), placed))
			return;
	for (int order = 0; order < ORDERS; order++)
		if (improve(p, sorted(p, (Order)order), placed))
			return;
}

int64_t memory_pack(MemoryBlock *block, int n, int n_positions, const int64_t *above, int64_t enough, Arena *a)
{
	Pack p = {.block = block, .n = n, .n_positions = n_positions, .above = above, .a = a, .best_end = INT64_MAX};
	int64_t end = 0;
	if (!n)
		return 0;
	p.offset = NEW_N(a, int64_t, n);
	p.best = NEW_N(a, int64_t, n);
	p.bound = MAX(most_live(&p, NULL), enough) + (above ? most_live(&p, above) : 0);
	search(&p);
	for (int i = 0; i < n; i++) {
		block[i].offset = p.best[i];
		end = MAX(end, block[i].offset + block[i].bytes);
	}
	return end;
}
