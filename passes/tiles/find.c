/* passes/tiles/find.c: finds ops that work row by row on wide values.
 *
 * A value is wide if it is the result of a product that has more columns than it reads, or computed row by row from
 * such a value.  What such values pass through, up to the products that make narrow ones of them again or sum up
 * their rows, is a region. */
#include "passes/tiles/tiles.h"

/* ---- an op ---- */

int64_t tiles_rows(const Type *t)
{
	int64_t width = t->kind == TYPE_TENSOR && t->rank > 1 ? t->dim[t->rank - 1] : 0;
	return width ? type_numel(t) / width : 0;
}

bool tiles_fixed(const Type *t)
{
	return type_numel(t) == (t->rank ? t->dim[t->rank - 1] : 1);
}

static bool is_loop(const Op *op)
{
	return op->kind == OP_FUSED || op_info[op->kind].flags & EW;
}

static bool is_product(const Op *op)
{
	return op->kind == OP_MATMUL && !attr_get_int(op->attrs, "ta", 0) && op_in(op, 1)->type.rank == 2;
}

static bool is_f32_or_half(const Value *v)
{
	return v->type.dtype == DT_F32 || dtype_is_half(v->type.dtype);
}

/* Whether the op is the product of two matrices, summed over their rows, in f32. */
static bool is_weight_gradient(const Op *op)
{
	bool product = op->kind == OP_MATMUL || (op->kind == OP_ACCUMULATE && op->n_in > 1);
	return product && attr_get_int(op->attrs, "ta", 0) && !attr_get_int(op->attrs, "tb", 0) && !op_in(op, 2)
		&& op_in(op, 0)->type.rank == 2 && op_in(op, 1)->type.rank == 2 && is_f32_or_half(op_in(op, 0))
		&& (op->kind == OP_MATMUL || op->out[0]->type.dtype == DT_F32);
}

/* Whether the op sums its operand over all axes but the last. */
static bool is_bias_gradient(const Op *op)
{
	const Attr *axes = op->kind == OP_REDUCE_SUM ? attr_find(op->attrs, "axes") : NULL;
	const Type *t = axes ? &op_in(op, 0)->type : NULL;
	bool summed[IR_MAX_RANK] = {false};
	for (int i = 0; axes && i < axes->n; i++)
		summed[axes->ints[i] < 0 ? axes->ints[i] + t->rank : axes->ints[i]] = true;
	for (int i = 0; axes && i < t->rank - 1; i++)
		if (!summed[i] && t->dim[i] != 1)
			return false;
	return axes && t->rank > 1 && !summed[t->rank - 1] && is_f32_or_half(op_in(op, 0));
}

bool tiles_sums(const Op *op)
{
	return is_weight_gradient(op) || is_bias_gradient(op);
}

/* Rows of a loop each of which needs the same row of its operands, or what all rows share. */
static int64_t rows_of_loop(const Op *op)
{
	int64_t rows = tiles_rows(&op->out[0]->type);
	for (int i = 0; i < op->n_in; i++) {
		const Type *x = &op_in(op, i)->type;
		if (x->kind != TYPE_TENSOR || (tiles_rows(x) != rows && !tiles_fixed(x)))
			return 0;
	}
	return rows;
}

static int64_t rows_of_op(const Op *op)
{
	const Type *y = op->n_out ? &op->out[0]->type : NULL;
	const Type *x = op->n_in && op_in(op, 0) ? &op_in(op, 0)->type : NULL;
	if (!x || !y)
		return 0;
	bool columns = op->kind == OP_COLUMNS && !attr_find(op->attrs, "heads");
	bool join = op->kind == OP_JOIN && op_in(op, 0)->op->kind == OP_FUSED;
	if (is_product(op) || columns || join)
		return tiles_rows(y);
	if (is_loop(op))
		return rows_of_loop(op);
	if (tiles_sums(op))
		return tiles_rows(x);
	bool same = op->kind == OP_RESHAPE && x->rank && y->rank && x->dim[x->rank - 1] == y->dim[y->rank - 1];
	return same && tiles_rows(x) == tiles_rows(y) ? tiles_rows(x) : 0;
}

bool tiles_reads(const Op *op, int i)
{
	if (op->kind == OP_ACCUMULATE || (op->kind == OP_MATMUL && attr_get_int(op->attrs, "ta", 0)))
		return i < 2;
	return op->kind != OP_MATMUL || i == 0 || i == 3;
}

/* ---- wide values ---- */

static bool is_wide(const Tiles *t, const Value *v)
{
	return v && v->id < t->n_values && t->wide[v->id];
}

static bool reads_wide(const Tiles *t, const Op *op, int64_t rows)
{
	for (int i = 0; i < op->n_in; i++)
		if (is_wide(t, op_in(op, i)) && tiles_reads(op, i) && tiles_rows(&op_in(op, i)->type) == rows)
			return true;
	return false;
}

static bool makes_wide(const Tiles *t, const Op *op, int64_t rows)
{
	const Type *x = &op_in(op, 0)->type, *y = &op->out[0]->type;
	if (tiles_sums(op))
		return false;
	int64_t more = y->dim[y->rank - 1] - x->dim[x->rank - 1];
	return op->kind == OP_MATMUL ? more > 0 || (!more && is_wide(t, op_in(op, 0))) : reads_wide(t, op, rows);
}

void tiles_mark(Tiles *t)
{
	t->n_values = t->m->n_values;
	t->wide = NEW_N(t->a, bool, t->n_values);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(t->m, s, op) {
			int64_t rows = rows_of_op(op);
			for (int i = 0; rows > 1 && makes_wide(t, op, rows) && i < op->n_out; i++)
				t->wide[op->out[i]->id] = true;
		}
}

/* ---- regions ---- */

static const Look *look_at(const Tiles *t, const Op *op)
{
	return op->section == t->section && op->order < t->n && t->at[op->order].op == op ? &t->at[op->order] : NULL;
}

/* The op that needs v whole; NULL: all that read it are in the region. */
static const Op *whole_reader(const Tiles *t, const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next) {
		const Look *l = look_at(t, u->op);
		if (!l || !l->in || !tiles_reads(u->op, (int)(u - u->op->in)))
			return l && l->why ? l->why : u->op;
	}
	return NULL;
}

bool tiles_inner(const Tiles *t, const Value *v)
{
	const Look *l = look_at(t, v->op);
	return l && l->in && !tiles_sums(v->op) && v->n_uses && tiles_rows(&v->type) == l->rows && !whole_reader(t, v);
}

int tiles_root(Tiles *t, int i)
{
	while (t->at[i].parent != i)
		i = t->at[i].parent = t->at[t->at[i].parent].parent;
	return i;
}

static void connect(Tiles *t, const Op *op)
{
	for (int i = 0; i < op->n_out; i++) {
		if (!tiles_inner(t, op->out[i]))
			continue;
		for (const Use *u = op->out[i]->uses; u; u = u->next) {
			int a = tiles_root(t, (int)op->order), b = tiles_root(t, (int)u->op->order);
			t->at[MAX(a, b)].parent = MIN(a, b);
		}
	}
}

void tiles_look(Tiles *t, SectionKind s)
{
	t->section = s;
	t->n = t->m->last[s] ? (int)t->m->last[s]->order + 1 : 0;
	t->at = NEW_N(t->a, Look, t->n);
	t->tail = NEW_N(t->a, Op *, t->n);
	IR_FOR_OPS(t->m, s, op) {
		t->at[op->order] = (Look){.op = op, .rows = rows_of_op(op), .parent = (int)op->order};
		t->tail[op->order] = op;
	}
	for (Op *op = t->m->last[s]; op; op = op->prev) {
		Look *l = &t->at[op->order];
		if (l->rows < 2)
			continue;
		for (int i = 0; i < op->n_out && !l->why; i++)
			l->why = is_wide(t, op->out[i]) ? whole_reader(t, op->out[i]) : NULL;
		l->in = !l->why && (is_wide(t, op->out[0]) || reads_wide(t, op, l->rows));
	}
	IR_FOR_OPS(t->m, s, op)
		connect(t, op);
}

/* ---- norms of what a region reads ---- */

static bool is_norm(const Op *op)
{
	return (op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM)
		&& attr_get_int(op->attrs, "axis", 0) == op->out[0]->type.rank - 1;
}

Value *tiles_shown(Value *v)
{
	while (v->op->kind == OP_RESHAPE && rows_of_op(v->op))
		v = op_in(v->op, 0);
	return v;
}

/* Whether the region alone reads v, row by row, as it is or in another shape. */
static bool is_own(const Tiles *t, const TileRegion *r, const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next) {
		bool reads = ptrmap_get(r->member, u->op) && tiles_reads(u->op, (int)(u - u->op->in));
		bool shows = look_at(t, u->op) && u->op->kind == OP_RESHAPE && rows_of_op(u->op);
		if (!reads && !(shows && is_own(t, r, u->op->out[0])))
			return false;
	}
	return true;
}

/* Whether the region alone reads the result of a norm, which is then made by tiles, too. */
static bool is_own_norm(const Tiles *t, const TileRegion *r, const Op *op)
{
	const Look *l = look_at(t, op), *from = is_norm(op) ? look_at(t, op_in(op, 0)->op) : NULL;
	bool may = l && !l->in && is_norm(op) && !op_residual(op) && !(from && from->in)
		&& tiles_rows(&op->out[0]->type) == r->rows;
	for (int i = 1; i < op->n_out && may; i++)
		may = !op->out[i]->n_uses;
	return may && is_own(t, r, op->out[0]);
}

static bool is_same_parameter(const Value *a, const Value *b)
{
	bool views = a && b && a->op->kind == OP_VIEW_OP && b->op->kind == OP_VIEW_OP;
	return a == b || (views && a->op->sym == b->op->sym && op_in(a->op, 0) == op_in(b->op, 0));
}

/* What a norm is the norm of. */
static const Value *normalised(const Op *norm)
{
	return op_residual(norm) ? norm->out[norm->n_out - 1] : op_in(norm, 0);
}

/* Whether v is the result of a norm that gives what own, a norm of the same tensor, gives. */
static bool is_same_norm(const Value *v, const Op *own)
{
	const Op *op = v->op;
	if (op->kind != own->kind || v != op->out[0] || op == own || !attr_equal(op->attrs, own->attrs))
		return false;
	return is_same_parameter(op_in(op, 1), op_in(own, 1))
		&& (op->kind == OP_RMS_NORM || is_same_parameter(op_in(op, 2), op_in(own, 2)));
}

/* Makes op, and what shows its result in another shape, part of the region. */
static void take(Tiles *t, TileRegion *r, Op *op, Ops *ops)
{
	Look *l = &t->at[op->order];
	l->in = true;
	l->rows = r->rows;
	vec_push(t->a, ops, op);
	for (const Use *u = op->out[0]->uses; u; u = u->next)
		if (!t->at[u->op->order].in)
			take(t, r, u->op, ops);
}

/* Makes norms part of the region: that which stands in front of the gradients of a recomputed block; and so the same
 * norm in front of what is recomputed needs no whole result. */
static void take_norms(Tiles *t, TileRegion *r)
{
	Ops ops = {0};
	PtrMap *own = ptrmap_new(t->a); /* what a norm reads -> the norm */
	r->same = ptrmap_new(t->a);
	for (int i = 0; i < r->ops.n; i++)
		for (int k = 0; k < r->ops.at[i]->n_in; k++) {
			Op *op = op_in(r->ops.at[i], k) ? tiles_shown(op_in(r->ops.at[i], k))->op : NULL;
			if (!op || !is_own_norm(t, r, op))
				continue;
			ptrmap_put(own, op_in(op, 0), op);
			take(t, r, op, &ops);
		}
	for (int i = 0; i < ops.n; i++)
		ptrmap_put(r->member, ops.at[i], ops.at[i]);
	for (int i = 0; i < r->ops.n; i++) {
		vec_push(t->a, &ops, r->ops.at[i]);
		for (int k = 0; k < r->ops.at[i]->n_in; k++) {
			const Value *v = op_in(r->ops.at[i], k) ? tiles_shown(op_in(r->ops.at[i], k)) : NULL;
			const Op *norm = v && is_norm(v->op) ? ptrmap_get(own, normalised(v->op)) : NULL;
			if (norm && is_same_norm(v, norm))
				ptrmap_put(r->same, op_in(r->ops.at[i], k), norm->out[0]);
		}
	}
	r->ops = ops;
}

/* ---- what a region reads and makes ---- */

static void stay(const Tiles *t, TileRegion *r, const char *what, const Value *v)
{
	if (!r->why)
		r->why = arena_printf(t->a, "%s %%%s", what, v->name);
}

static void settle_operands(const Tiles *t, TileRegion *r, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		if (!v || tiles_inner(t, v) || v->op->section != t->section)
			continue;
		if (ptrmap_get(r->member, v->op))
			stay(t, r, "a part of it needs the whole of", v);
		r->after = MAX(r->after, v->op->order);
	}
}

/* Whether v is needed for the last time in the region: it is inner, or forward has kept it for the region. */
static bool dies(const Tiles *t, const TileRegion *r, const Value *v)
{
	bool kept = v->op->section != t->section && v->type.kind == TYPE_TENSOR;
	for (const Use *u = v->uses; u && kept; u = u->next)
		kept = u->op->section != t->section || ptrmap_get(r->member, u->op);
	return kept || tiles_inner(t, v);
}

/* Whether v, of a whole region, needs memory of its own: a loop writes over what it reads last. */
static bool needs_memory(const Tiles *t, const TileRegion *r, const Value *v)
{
	const Op *op = v->op;
	if (op_info[op->kind].flags & VIEW || op->kind == OP_JOIN)
		return op->kind == OP_JOIN && needs_memory(t, r, op_in(op, 0));
	for (int i = 0; is_loop(op) && i < op->n_in; i++)
		if (type_equal(&op_in(op, i)->type, &v->type) && dies(t, r, op_in(op, i)))
			return false;
	return true;
}

static void settle_widest(const Tiles *t, TileRegion *r, const Op *op)
{
	for (int i = 0; i < op->n_out; i++) {
		const Value *v = op->out[i];
		bool wider = !r->widest || type_bytes(&v->type) > type_bytes(&r->widest->type);
		if (wider && is_wide(t, v) && tiles_inner(t, v) && needs_memory(t, r, v))
			r->widest = v;
	}
}

static bool reads_any(const PtrMap *of, const Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		if (op_in(op, i) && ptrmap_get(of, op_in(op, i)->op))
			return true;
	return false;
}

/* Finds what stands in front of the last operand's op, and reads, at any distance, what the region makes: it must move
 * behind the region, so the region must not need it. */
static void settle_late(const Tiles *t, TileRegion *r, Op *first)
{
	PtrMap *late = ptrmap_new(t->a);
	for (Op *op = first; op && op->order <= r->after; op = op->next) {
		if (ptrmap_get(r->member, op) || !(reads_any(r->member, op) || reads_any(late, op)))
			continue;
		ptrmap_put(late, op, op);
		vec_push(t->a, &r->late, op);
		if (op->kind == OP_WRITE) /* reads of the symbol stand around it */
			stay(t, r, "a buffer is written, before all that it needs is there, by", op_in(op, 0));
	}
	for (int i = 0; i < r->ops.n && r->late.n; i++)
		for (int k = 0; k < r->ops.at[i]->n_in; k++) {
			const Value *v = op_in(r->ops.at[i], k);
			if (v && ptrmap_get(late, v->op))
				stay(t, r, "it is needed whole for a part of it, by way of", v);
		}
}

void tiles_settle(Tiles *t, TileRegion *r)
{
	Op *first = r->ops.at[0];
	r->after = -1;
	r->rows = t->at[first->order].rows;
	take_norms(t, r);
	for (int i = 0; i < r->ops.n; i++) {
		settle_operands(t, r, r->ops.at[i]);
		settle_widest(t, r, r->ops.at[i]);
	}
	settle_late(t, r, first);
}
