/* passes/memory/held.c: what is in a rank's memory from which op of a step to which.
 *
 * Gathered units are held from their gather to their reshard, flat gradients from their zero_gaps to the end of their
 * reduction or, where they stay, to the update, reduced ones from their reduction to the update, values from the op
 * that makes them to the last that reads them, and scratch memory while its op runs.  All else is there always.  What
 * micro-batches carry on is held from the one that begins it to the one that ends it. */
#include "passes/memory/held.h"

#include <stdlib.h>
#include <string.h>

const char *const held_text[HELD_KINDS] = {
#define HELD(id, text) text,
#include "passes/memory/held.def"
};

typedef struct Finder {
	HeldList *out;
	const LayoutModel *layout;
	const LayoutRank *who;
	Arena *a;
} Finder;

/* op: the position of what made it; -1: nothing did. */
static void add(Finder *f, HeldKind kind, const char *name, int64_t bytes, int first, int last, int op)
{
	Held x = {kind, name, bytes, first, MIN(last, f->out->n_ops - 1), op};
	if (bytes > 0)
		vec_push(f->a, f->out, x);
}

static void add_resting(Finder *f)
{
	LayoutMemory m = layout_memory(f->layout, f->who);
	const struct { HeldKind kind; const char *name; int64_t bytes; } rest[] = {
		{HELD_PARAMETERS, "parameters at rest", m.params}, {HELD_STATES, "optimizer states", m.states},
		{HELD_BUFFERS, "buffers, data and counters", m.buffers}, {HELD_INPUTS, "inputs", m.inputs},
		{HELD_COMMUNICATION, "communication", m.comm}, {HELD_COMMUNICATION, "sent copies", m.send},
		{HELD_OTHER, "device tables", m.tables}, {HELD_OTHER, "snapshot", m.snapshot},
	};
	for (int i = 0; i < COUNT_OF(rest); i++)
		add(f, rest[i].kind, rest[i].name, rest[i].bytes, 0, f->out->n_ops - 1, -1);
}

static int64_t reduced_gradient(const LayoutUnit *u, const LayoutRank *who)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		if (u->flat[f].trainable && layout_range(u, f, who).n)
			sum += layout_range(u, f, who).n * dtype_info[layout_update_dtype(u, f, who)].bytes;
	return sum;
}

/* When a unit's memory was taken; -1: it is free. */
typedef struct Taken { int gathered, flat, reduced; } Taken;

static void end_held(Finder *f, HeldKind kind, const char *what, const Unit *u, int64_t bytes, int *from, int to)
{
	if (*from >= 0)
		add(f, kind, arena_printf(f->a, "%s @%s", what, u->name), bytes, *from, to, *from);
	*from = -1;
}

/* The op that uses or completes the unit's gradient: a wait is that of its collective. */
static const Op *ends_reduce(const Op *op)
{
	const Op *of = op->kind == OP_WAIT && op->n_in ? op_in(op, 0)->op : NULL;
	return of && op_reduces(of->kind) ? of : NULL;
}

static void add_units(Finder *f)
{
	Taken *at = NEW_N(f->a, Taken, f->layout->n_units);
	for (int i = 0; i < f->layout->n_units; i++)
		at[i] = (Taken){-1, -1, -1};
	for (int p = 0; p < f->out->n_ops; p++) {
		const Op *op = f->out->op[p], *reduce = ends_reduce(op);
		const Unit *u = reduce ? reduce->unit : op->unit;
		if (!u)
			continue;
		const LayoutUnit *of = &f->layout->unit[u->index];
		Taken *t = &at[u->index];
		bool stays = layout_grad_stays(of, f->who), updates = op->kind == OP_UPDATE_SHARD;
		int64_t ranks = layout_split(of->strategy, f->who).ranks;
		if (op->kind == OP_ALL_GATHER)
			t->gathered = p;
		if (op->kind == OP_RESHARD)
			end_held(f, HELD_GATHERED, "gathered", u, layout_in_slot(of, of->n_flats, ranks), &t->gathered, p);
		if (op->kind == OP_ZERO_GAPS)
			t->flat = p;
		if (op_reduces(op->kind) && t->reduced < 0 && !stays)
			t->reduced = p;
		if (stays ? updates : reduce != NULL)
			end_held(f, HELD_GRADIENTS, "gradient of", u, layout_grad_bytes(of, ranks), &t->flat, p);
		if (updates)
			end_held(f, HELD_GRADIENTS, "reduced gradient of", u, reduced_gradient(of, f->who), &t->reduced, p);
	}
}

/* begin: the position of the program's first op. */
static void add_values(Finder *f, const Buffers *b, int begin, const Options *o)
{
	for (int i = 0; i < b->n; i++) {
		const Buffer *x = &b->at[i];
		if (x->place.region == REGION_ACT)
			add(f, HELD_ACTIVATIONS, arena_printf(f->a, "%%%s", x->value->name), x->bytes, begin + x->first,
				begin + MIN(x->last, b->n_ops - 1), begin + x->first);
	}
	for (int p = 0; p < b->n_ops; p++)
		add(f, HELD_WORKSPACE, op_info[b->op[p]->kind].text, op_workspace(b->op[p], o), begin + p, begin + p,
			begin + p);
}

static void find_peak(HeldList *l, Arena *a)
{
	int64_t *more = NEW_N(a, int64_t, l->n_ops + 1), now = 0;
	for (int i = 0; i < l->n; i++) {
		more[l->at[i].first] += l->at[i].bytes;
		more[l->at[i].last + 1] -= l->at[i].bytes;
	}
	for (int p = 0; p < l->n_ops; p++) {
		now += more[p];
		if (now > l->peak_bytes) {
			l->peak = p;
			l->peak_bytes = now;
		}
	}
}

HeldList *held_find(const HeldOf *of, const Options *o, Arena *a)
{
	HeldList *l = NEW(a, HeldList);
	Finder f = {l, of->layout, of->who, a};
	Buffers **b = NEW_N(a, Buffers *, of->n);
	for (int i = 0; i < of->n; i++) {
		b[i] = buffers_find(of->m[i], false, a);
		l->n_ops += b[i]->n_ops;
	}
	l->op = NEW_N(a, const Op *, l->n_ops + 1);
	for (int i = 0, begin = 0; i < of->n; begin += b[i++]->n_ops)
		for (int p = 0; p < b[i]->n_ops; p++)
			l->op[begin + p] = b[i]->op[p];
	add_resting(&f);
	add_units(&f);
	for (int i = 0, begin = 0; i < of->n; begin += b[i++]->n_ops)
		add_values(&f, b[i], begin, o);
	find_peak(l, a);
	return l;
}

/* ---- who holds the peak ---- */

/* A module up to its first number, "model.h.3" of "model.h.3.attn", or else to its second part. */
static const char *block_of(const char *scope, Arena *a)
{
	size_t end = 0, second = strlen(scope);
	for (int parts = 1; scope[end]; parts++) {
		size_t n = strcspn(scope + end, ".");
		bool number = n && strspn(scope + end, "0123456789") >= n;
		end += n;
		if (number)
			return arena_strndup(a, scope, end);
		if (parts == 2)
			second = end;
		end += scope[end] == '.';
	}
	return *scope ? arena_strndup(a, scope, second) : "no module";
}

/* The name under which it counts; NULL: it does not. */
static const char *name_by(const HeldList *l, const Held *x, HeldBy by, Arena *a)
{
	switch (by) {
	case HELD_BY_CATEGORY: return held_text[x->kind];
	case HELD_BY_MODULE: return x->kind == HELD_ACTIVATIONS ? block_of(blocks_scope(a, l->op[x->op]->loc), a) : NULL;
	case HELD_BY_UNIT: return x->kind == HELD_GATHERED || x->kind == HELD_GRADIENTS ? strchr(x->name, '@') + 1 : NULL;
	}
	ice("held by %d", (int)by);
}

static int larger(const void *x, const void *y)
{
	const HeldShare *a = x, *b = y;
	return a->bytes != b->bytes ? (a->bytes < b->bytes ? 1 : -1) : strcmp(a->name, b->name);
}

HeldShares held_shares(const HeldList *l, HeldBy by, Arena *a)
{
	HeldShares out = {0};
	for (int i = 0; i < l->n; i++) {
		const Held *x = &l->at[i];
		const char *name = name_by(l, x, by, a);
		int k = 0;
		if (!name || x->first > l->peak || x->last < l->peak)
			continue;
		while (k < out.n && strcmp(out.at[k].name, name))
			k++;
		if (k == out.n)
			vec_push(a, &out, ((HeldShare){name, 0}));
		out.at[k].bytes += x->bytes;
	}
	if (out.n)
		qsort(out.at, (size_t)out.n, sizeof(*out.at), larger);
	return out;
}
