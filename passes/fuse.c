/* passes/fuse.c: fuses neighbouring elementwise ops into one loop, so that intermediate values stay in registers.
 *
 * Requires TRAIN.  Ensures that as many as possible of the elementwise ops that have one shape, and that read each
 * other or the same tensor, form one `fused` op; that literals stand inside it; that 16-bit values are widened by the
 * loops that read them; and that no value is kept for backward that backward can recompute from values that are kept
 * anyway (the input of a relu6, for example) or from 16-bit ones, which are kept in its place, or that a product of
 * backward reads and a loop of backward can make of what it reads itself (gelu(x) beside gelu's gradient), unless
 * products are to compute both (pass epilogue), which are no loops then.
 *
 * A group is a set of ops that will stand at one position of the section.  Two groups merge at the later position
 * when no op between them reads the earlier one, or at the earlier position when all that the later one reads is
 * available there.  No other op moves then, and no cycle can arise.  Groups stay apart when merging would lengthen
 * the lives of large tensors (by more than WINDOW) or touch too many tensors at once; -v says so.  Cost is linear:
 * each operand is tried once, and groups are bounded. */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_OPS = 48, MAX_TENSORS = 20, WINDOW = 16, SMALL_BYTES = 1 << 16, MAX_RECOMPUTED = 8, SMALL = 16,
	JOIN_DEPTH = 3 };

typedef struct Group {
	int64_t at;        /* order of the op in front of which it will stand */
	Op **op;           /* members by order */
	int n;
} Group;

typedef struct Fuse {
	Module *m;
	const Options *o;
	Diag *d;
	Arena *a;
	SectionKind section;
	Group **of_op;     /* by op->order */
	Op **reader;       /* by Value.id: the elementwise op that read it last */
	Op **at;           /* by op->order */
	int n_ops;
} Fuse;

/* ---- what may be fused ---- */

static bool is_elementwise(const Op *op)
{
	return (op_info[op->kind].flags & EW || op->kind == OP_BROADCAST) && op->n_out == 1
		&& op->out[0]->type.kind == TYPE_TENSOR && !op_is_param_cast(op);
}

/* A literal that stands for all elements.  It is cloned into every body that reads it. */
static bool is_literal(const Value *v)
{
	const Attr *value = v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	return value && value->n == 1;
}

/* A cast to a wider dtype: loops make it where they load, so that the wide copy is never stored for them. */
static bool widens(const Op *op)
{
	return op->kind == OP_CAST && dtype_is_half(op_in(op, 0)->type.dtype)
		&& dtype_info[op->out[0]->type.dtype].bytes > 2 && !op_is_param_cast(op);
}

/* Whether op may be moved to any earlier position, because nothing writes to the memory that it shows. */
static bool is_movable_source(const Op *op)
{
	return op_info[op->kind].flags & SRC && op->kind != OP_READ;
}

static bool same_shape(const Value *a, const Value *b)
{
	return type_same_shape(&a->type, &b->type);
}

/* ---- positions ---- */

static bool is_here(const Fuse *f, const Op *op)
{
	return op->section == f->section && op->order >= 0;
}

static Group *group_of(const Fuse *f, const Op *op)
{
	return is_here(f, op) ? f->of_op[op->order] : NULL;
}

static int64_t position(const Fuse *f, const Op *op)
{
	const Group *g = group_of(f, op);
	return g ? g->at : op->order;
}

/* The position where v is defined; -1: it is available everywhere in the section. */
static int64_t defined_at(const Fuse *f, const Value *v)
{
	return is_here(f, v->op) && !is_movable_source(v->op) ? position(f, v->op) : -1;
}

static bool read_before(const Fuse *f, const Group *g, const Group *other, int64_t end)
{
	for (int i = 0; i < g->n; i++) {
		for (const Use *u = g->op[i]->out[0]->uses; u; u = u->next) {
			const Group *by = group_of(f, u->op);
			if (by != g && by != other && is_here(f, u->op) && position(f, u->op) < end)
				return true;
		}
	}
	return false;
}

static bool needs_later(const Fuse *f, const Group *g, const Group *other, int64_t start)
{
	for (int i = 0; i < g->n; i++) {
		for (int k = 0; k < g->op[i]->n_in; k++) {
			const Value *v = op_in(g->op[i], k);
			const Group *by = group_of(f, v->op);
			if (by != g && by != other && defined_at(f, v) >= start)
				return true;
		}
	}
	return false;
}

/* ---- what a group reads and writes ---- */

static bool is_member(const Fuse *f, const Op *op, const Group *a, const Group *b)
{
	const Group *g = group_of(f, op);
	return g && (g == a || g == b);
}

static bool is_result(const Fuse *f, const Value *v, const Group *a, const Group *b)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (!is_member(f, u->op, a, b))
			return true;
	return false;
}

static int add_once(const Value **list, int n, int cap, const Value *v)
{
	for (int i = 0; i < n; i++)
		if (list[i] == v)
			return n;
	if (n < cap)
		list[n] = v;
	return n + 1;
}

/* The number of tensors that a loop over both groups would touch, counted up to MAX_TENSORS + 1. */
static int count_tensors(const Fuse *f, const Group *a, const Group *b)
{
	const Value *in[MAX_TENSORS + 1];
	const Group *both[] = {a, b};
	int n = 0, n_out = 0;
	for (int g = 0; g < 2; g++) {
		for (int i = 0; i < both[g]->n; i++) {
			const Op *op = both[g]->op[i];
			n_out += is_result(f, op->out[0], a, b);
			for (int k = 0; k < op->n_in && n <= MAX_TENSORS; k++)
				if (!is_literal(op_in(op, k)) && !is_member(f, op_in(op, k)->op, a, b))
					n = add_once(in, n, MAX_TENSORS + 1, op_in(op, k));
		}
	}
	return MIN(n + n_out, MAX_TENSORS + 1);
}

/* Counts the full-size tensors that g reads: they live longer when g moves down. */
static int count_full_inputs(const Fuse *f, const Group *g)
{
	int n = 0;
	for (int i = 0; i < g->n; i++)
		for (int k = 0; k < g->op[i]->n_in; k++)
			n += same_shape(op_in(g->op[i], k), g->op[0]->out[0])
				&& !is_member(f, op_in(g->op[i], k)->op, g, g);
	return n;
}

/* ---- merging ---- */

/* Why two groups may not merge; NULL: they may, at position *at. */
static const char *refusal(const Fuse *f, const Group *first, const Group *second, int64_t *at)
{
	if (first->n + second->n > MAX_OPS)
		return "the loop would have too many ops";
	if (count_tensors(f, first, second) > MAX_TENSORS)
		return "the loop would touch too many tensors";
	bool far = second->at - first->at > WINDOW && type_bytes(&first->op[0]->out[0]->type) > SMALL_BYTES;
	if (!read_before(f, first, second, second->at) && (!far || count_full_inputs(f, first) <= 1)) {
		*at = second->at;
		return NULL;
	}
	if (!needs_later(f, second, first, first->at) && !far) {
		*at = first->at;
		return NULL;
	}
	return far ? "they are far apart" : "an op between them needs the first and makes what the second reads";
}

static void merge(Fuse *f, Group *into, Group *from, int64_t at)
{
	Op **all = NEW_N(f->a, Op *, into->n + from->n);
	int i = 0, k = 0, n = 0;
	while (i < into->n || k < from->n) {
		bool first = k == from->n || (i < into->n && into->op[i]->order < from->op[k]->order);
		all[n++] = first ? into->op[i++] : from->op[k++];
	}
	for (i = 0; i < from->n; i++)
		f->of_op[from->op[i]->order] = into;
	into->op = all;
	into->n = n;
	into->at = at;
	from->n = 0;
}

static void try_merge(Fuse *f, Group *g, Group *other)
{
	int64_t at = 0;
	if (!other || other == g || !other->n || !same_shape(other->op[0]->out[0], g->op[0]->out[0]))
		return;
	bool before = other->at < g->at;
	const char *why = refusal(f, before ? other : g, before ? g : other, &at);
	if (why)
		diag_info(f->d, loc_where(f->m, g->op[0]->loc), "fuse: %%%s stays apart from %%%s: %s",
			g->op[0]->out[0]->name, other->op[0]->out[0]->name, why);
	else
		merge(f, g, other, at);
}

/* Merges an op with its readers first: a value that only one group reads need never be stored.  If producers were
 * merged first and had two consumers that cannot merge, the first consumer would take the producer along, and the
 * value would become a second result of it. */
static void join_readers(Fuse *f, Op *op)
{
	Group *g = group_of(f, op);
	const Group *by = NULL;
	for (const Use *u = op->out[0]->uses; u; u = u->next) {
		Group *reader = group_of(f, u->op);
		if (!reader || !same_shape(reader->op[0]->out[0], op->out[0]))
			return;
		if (by && by != reader)
			try_merge(f, group_of(f, op->out[0]->uses->op), reader);
		by = group_of(f, op->out[0]->uses->op);
		if (group_of(f, u->op) != by)
			return;
	}
	if (by)
		try_merge(f, g, group_of(f, op->out[0]->uses->op));
}

/* Afterwards, merges neighbours wherever this saves reading a tensor twice. */
static void join_neighbours(Fuse *f, Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		try_merge(f, group_of(f, op), group_of(f, op_in(op, i)->op));
	for (int i = 0; i < op->n_in; i++) {
		Value *v = op_in(op, i);
		if (is_literal(v) || !same_shape(v, op->out[0]))
			continue;
		try_merge(f, group_of(f, op), f->reader[v->id] ? group_of(f, f->reader[v->id]) : NULL);
		f->reader[v->id] = op;
	}
}

static void add_group(Fuse *f, Op *op)
{
	Group *g = NEW(f->a, Group);
	g->op = NEW_N(f->a, Op *, 1);
	g->op[g->n++] = op;
	g->at = op->order;
	f->of_op[op->order] = g;
}

/* ---- fused ops ---- */

typedef struct Body {
	Op *fused;
	PtrMap *map;      /* Value outside -> value in the body */
	PtrMap *wide;     /* value in the body -> the same, widened */
} Body;

static Value *put_literal(Fuse *f, Body *b, const Value *v)
{
	const Attr *value = attr_find(v->op->attrs, "value");
	Value *inner = ir_body_emit(f->m, b->fused, OP_CONST, 0, NULL, (Attr *)value);
	inner->type.dtype = v->type.dtype;
	return inner;
}

/* The value that stands in the body for the result of a member; NULL: the member itself must make it.  A broadcast's is
 * its operand; of casts that widen one value, all but the first are the first. */
static Value *made_already(const Body *b, const Op *op, Value *in)
{
	Value *wide = widens(op) ? ptrmap_get(b->wide, in) : NULL;
	return op->kind == OP_BROADCAST ? in : wide && wide->type.dtype == op->out[0]->type.dtype ? wide : NULL;
}

/* Moves a member into the body, unless what it makes is there. */
static void put_member(Fuse *f, Body *b, Op *op)
{
	Value *in[3];
	for (int i = 0; i < op->n_in; i++) {
		Value *v = op_in(op, i);
		in[i] = ptrmap_get(b->map, v);
		if (!in[i])
			ptrmap_put(b->map, v, in[i] = put_literal(f, b, v));
	}
	Value *made = made_already(b, op, in[0]);
	ptrmap_put(b->map, op->out[0], made ? made : op->out[0]);
	if (made)
		return;
	if (widens(op))
		ptrmap_put(b->wide, in[0], op->out[0]);
	for (int i = 0; i < op->n_in; i++)
		ir_set_in(op, i, in[i]);
	ir_body_move(f->m, b->fused, op);
}

typedef VEC(Value *) Values;

static void list_inputs(Fuse *f, const Group *g, Values *in)
{
	PtrMap *seen = ptrmap_new(f->a);
	for (int i = 0; i < g->n; i++) {
		for (int k = 0; k < g->op[i]->n_in; k++) {
			Value *v = op_in(g->op[i], k);
			if (is_literal(v) || is_member(f, v->op, g, g) || ptrmap_get(seen, v))
				continue;
			ptrmap_put(seen, v, v);
			vec_push(f->a, in, v);
		}
	}
}

/* Readers outside the body read the fused op's results. */
static void replace_results(Op *fused, const Values *out)
{
	for (int i = 0; i < out->n; i++) {
		for (Use *u = out->at[i]->uses, *next; u; u = next) {
			next = u->next;
			if (u->op->parent != fused)
				ir_set_in(u->op, (int)(u - u->op->in), fused->out[i]);
		}
	}
}

static void emit_group(Fuse *f, Group *g)
{
	Values in = {0}, out = {0}, yields = {0};
	ArenaMark mark = arena_mark(f->a);
	Op *at = f->at[g->at];
	list_inputs(f, g, &in);
	for (int i = 0; i < g->n; i++)
		if (is_result(f, g->op[i]->out[0], g, g))
			vec_push(f->a, &out, g->op[i]->out[0]);
	if (!out.n || !in.n)
		return; /* dce removes dead code; a loop without operands has nothing to iterate over */
	for (int i = 0; i < in.n; i++)
		if (is_here(f, in.at[i]->op) && is_movable_source(in.at[i]->op) && in.at[i]->op->order > g->at)
			ir_move_before(f->m, in.at[i]->op, at);
	Type *types = NEW_N(f->a, Type, out.n);
	for (int i = 0; i < out.n; i++)
		types[i] = out.at[i]->type;
	const Op *last = out.at[out.n - 1]->op;
	Builder b = {.m = f->m, .section = f->section, .before = at, .loc = last->loc,
		.name = last->out[0]->name};
	Body body = {ir_emit_fused(&b, in.n, in.at, out.n, types), ptrmap_new(f->a), ptrmap_new(f->a)};
	body.fused->order = -1;
	for (int i = 0; i < out.n; i++)
		body.fused->out[i]->name = out.at[i]->name; /* which has none inside the body */
	for (int i = 0; i < in.n; i++)
		ptrmap_put(body.map, in.at[i], body.fused->args[i]);
	for (int i = 0; i < g->n; i++)
		put_member(f, &body, g->op[i]);
	for (int i = 0; i < out.n; i++)
		vec_push(f->a, &yields, ptrmap_get(body.map, out.at[i]));
	ir_body_emit(f->m, body.fused, OP_YIELD, yields.n, yields.at, NULL);
	replace_results(body.fused, &out);
	for (int i = g->n - 1; i >= 0; i--) /* readers first: what was made already may read a broadcast that was, too */
		if (g->op[i]->parent != body.fused)
			ir_remove(f->m, g->op[i]);
	arena_rewind(f->a, mark);
}

/* Whether a group is worth fusing.  A single op is left as it is, unless a literal would have to be stored for it. */
static bool is_worth_it(const Group *g)
{
	if (g->n != 1)
		return g->n > 1;
	for (int i = 0; i < g->op[0]->n_in; i++)
		if (is_literal(op_in(g->op[0], i)))
			return true;
	return false;
}

/* Gives each elementwise reader of a widened value, after the first, a cast of its own: the loops that they end up in
 * may be different ones. */
static void split_casts(Module *m, SectionKind s)
{
	IR_FOR_OPS_SAFE(m, s, op) {
		int n = 0;
		for (Use *u = widens(op) ? op->out[0]->uses : NULL, *next; u; u = next) {
			next = u->next;
			if (u->op->section != s || !is_elementwise(u->op) || !same_shape(u->op->out[0], op->out[0]) || !n++)
				continue;
			Builder b = {.m = m, .section = s, .before = op->next, .loc = op->loc, .name = op->out[0]->name};
			ir_set_in(u->op, (int)(u - u->op->in), ir_cast(&b, op_in(op, 0), op->out[0]->type.dtype));
		}
	}
}

static void fuse_section(Fuse *f, SectionKind s)
{
	ArenaMark mark = arena_mark(f->a);
	f->section = s;
	f->n_ops = f->m->last[s] ? (int)f->m->last[s]->order + 1 : 0;
	f->of_op = NEW_N(f->a, Group *, f->n_ops);
	f->at = NEW_N(f->a, Op *, f->n_ops);
	f->reader = NEW_N(f->a, Op *, f->m->n_values);
	IR_FOR_OPS(f->m, s, op) {
		f->at[op->order] = op;
		if (is_elementwise(op) && !epilogue_takes(f->m, op, f->o))
			add_group(f, op);
	}
	for (int i = f->n_ops - 1; i >= 0; i--)
		if (f->of_op[i])
			join_readers(f, f->at[i]);
	for (int i = 0; i < f->n_ops; i++)
		if (f->of_op[i])
			join_neighbours(f, f->at[i]);
	/* Goes from the last group to the first, so that the op at a group's position still exists when it is
	 * needed. */
	for (int i = f->n_ops - 1; i >= 0; i--)
		if (f->of_op[i] && f->of_op[i]->at == i && is_worth_it(f->of_op[i]))
			emit_group(f, f->of_op[i]);
	arena_rewind(f->a, mark);
}

/* ---- recomputation in backward ---- */

typedef struct Recompute {
	Fuse *f;
	bool *again;       /* by Value.id: backward recomputes it */
	bool *narrow;      /* by Value.id: 16 bits wide and kept, because backward can widen it again */
	Op **before;       /* by Value.id: the first op of backward that reads the clone */
} Recompute;

static bool is_read_in(const Value *v, SectionKind s)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->section == s)
			return true;
	return false;
}

/* Whether forward itself needs v in memory. */
static bool is_stored(const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->section == SEC_FORWARD && !(is_elementwise(u->op) && same_shape(u->op->out[0], v)))
			return true;
	return false;
}

/* Whether backward may read x at no cost in memory: x is stored anyway, or it is small compared with `of`. */
static bool is_at_hand(const Recompute *r, const Value *x, const Value *of)
{
	return is_literal(x) || is_movable_source(x->op) || op_is_param_cast(x->op)
		|| type_bytes(&x->type) * SMALL <= type_bytes(&of->type)
		|| x->op->section != SEC_FORWARD || r->again[x->id] || r->narrow[x->id] || is_read_in(x, SEC_BACKWARD);
}

/* Whether a loop of backward reads x. */
static bool is_in_loop(const Value *x)
{
	for (const Use *u = x->uses; u; u = u->next)
		if (u->op->section == SEC_BACKWARD && is_elementwise(u->op) && same_shape(u->op->out[0], x))
			return true;
	return false;
}

/* Whether x costs a loop over `of` that recomputes nothing: it is small, or a loop of backward reads it. */
static bool is_in_reach(const Recompute *r, const Value *x, const Value *of)
{
	return is_at_hand(r, x, of) && (is_in_loop(x) || type_bytes(&x->type) * SMALL <= type_bytes(&of->type));
}

/* Whether a loop of backward reads something of v's size that v is made of, at most `depth` ops away. */
static bool joins_loop(const Value *v, int depth)
{
	for (int i = 0; i < v->op->n_in; i++) {
		const Value *x = op_in(v->op, i);
		if (same_shape(x, v) && (is_in_loop(x) || (depth > 1 && joins_loop(x, depth - 1))))
			return true;
	}
	return false;
}

/* Whether v can be computed from values at hand by at most *budget cheap ops.  What forward stores as well is kept
 * rather than made by a loop of its own: only a loop that reads all it is made of may make it again.  But what is 16
 * bits wide is kept rather than its wider copy, even where forward stores that. */
static bool is_recomputable(Recompute *r, const Value *v, const Value *of, int *budget)
{
	const Op *op = v->op;
	bool stored = is_stored(of) && !widens(of->op);
	if (!is_elementwise(op) || !(op_info[op->kind].flags & CHEAP) || --*budget < 0)
		return false;
	if (v == of ? stored && (is_in_loop(v) || !joins_loop(v, JOIN_DEPTH)) : is_stored(v) && !widens(op))
		return false;
	for (int i = 0; i < op->n_in; i++) {
		const Value *x = op_in(op, i);
		if ((stored ? is_in_reach : is_at_hand)(r, x, of) || is_recomputable(r, x, of, budget))
			continue;
		if (stored || !widens(op))
			return false;
		r->narrow[x->id] = true;
	}
	return true;
}

static void mark(Recompute *r, const Value *v, const Value *of)
{
	r->again[v->id] = true;
	for (int i = 0; i < v->op->n_in; i++)
		if (!is_at_hand(r, op_in(v->op, i), of))
			mark(r, op_in(v->op, i), of);
}

static void want_before(Recompute *r, const Value *v, Op *at)
{
	Op **before = &r->before[v->id];
	if (r->again[v->id] && at && (!*before || at->order < (*before)->order))
		*before = at;
}

/* Finds, for each clone, the op of backward in front of which it must stand.  Readers are visited before their
 * operands. */
static void place_clones(Recompute *r)
{
	IR_FOR_OPS(r->f->m, SEC_BACKWARD, op)
		for (int i = 0; i < op->n_in; i++)
			if (op_in(op, i))
				want_before(r, op_in(op, i), op);
	for (Op *op = r->f->m->last[SEC_FORWARD]; op; op = op->prev)
		for (int i = 0; op->n_out == 1 && r->again[op->out[0]->id] && i < op->n_in; i++)
			want_before(r, op_in(op, i), r->before[op->out[0]->id]);
}

static void use_clones(Recompute *r, const PtrMap *clones)
{
	IR_FOR_OPS(r->f->m, SEC_BACKWARD, op) {
		for (int i = 0; i < op->n_in; i++) {
			Value *v = op_in(op, i), *now = v && v->op->section == SEC_FORWARD ? ptrmap_get(clones, v) : NULL;
			if (now)
				ir_set_in(op, i, now);
		}
	}
}

static void recompute_in_backward(Fuse *f)
{
	Module *m = f->m;
	Recompute r = {f, NEW_N(f->a, bool, m->n_values), NEW_N(f->a, bool, m->n_values),
		NEW_N(f->a, Op *, m->n_values)};
	PtrMap *clones = ptrmap_new(f->a);
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		int budget = MAX_RECOMPUTED;
		Value *v = op->n_out == 1 ? op->out[0] : NULL;
		if (v && is_read_in(v, SEC_BACKWARD) && !epilogue_keeps(m, op, f->o) && is_recomputable(&r, v, v, &budget))
			mark(&r, v, v);
	}
	place_clones(&r);
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		if (op->n_out != 1 || !r.again[op->out[0]->id] || !r.before[op->out[0]->id])
			continue;
		Builder b = {.m = m, .section = SEC_BACKWARD, .before = r.before[op->out[0]->id],
			.loc = loc_with_role(m, op->loc, "remat")};
		ir_clone(&b, op, clones);
		diag_info(f->d, loc_where(m, op->loc), "fuse: %%%s is recomputed in backward", op->out[0]->name);
	}
	use_clones(&r, clones);
}

bool pass_fuse(Module *m, const Options *o, Diag *d)
{
	Fuse f = {.m = m, .o = o, .d = d, .a = arena_new()};
	ir_number(m);
	recompute_in_backward(&f);
	for (int s = 0; s < SEC_COUNT; s++)
		split_casts(m, (SectionKind)s);
	ir_number(m);
	for (int s = 0; s < SEC_COUNT; s++)
		fuse_section(&f, (SectionKind)s);
	arena_free(f.a);
	return pass_dce(m, o, d); /* removes literals that bodies now contain, and values that only backward read */
}
