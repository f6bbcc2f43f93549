/* passes/tiles/build.c: writes a region's ops once for each tile of rows.
 *
 * What comes from outside is read by `rows`, what leaves is written into a `stack`, and what is summed over rows is
 * the sum of the tiles', each added to those before in f32 and in place. */
#include "passes/tiles/tiles.h"

typedef struct Build {
	Tiles *t;
	TileRegion *r;
	Builder b;
	int64_t start, size; /* the rows of this tile */
	int k, n_tiles;
	PtrMap *flat;        /* value from outside -> the same as a matrix, or as one row */
	PtrMap *now;         /* value -> its rows in this tile */
	PtrMap *parts;       /* value that leaves -> Value *[n_tiles]; one that is summed -> the sum so far */
} Build;

static Attr *part_of_rows(Module *m, int64_t start, int64_t size)
{
	return attr_int(m, attr_int(m, NULL, "start", start), "size", size);
}

/* v as a matrix of rows, or the one row that all share. */
static Value *flat_of(Build *x, Value *v)
{
	Value *flat = ptrmap_get(x->flat, v);
	const Type *t = &v->type;
	int64_t width = t->rank ? t->dim[t->rank - 1] : 1, dim[] = {x->r->rows, width};
	if (flat)
		return flat;
	if (tiles_rows(t) == x->r->rows)
		flat = ir_reshape(&x->b, v, 2, dim);
	else
		flat = t->rank > 2 ? ir_reshape(&x->b, v, 1, &width) : v;
	ptrmap_put(x->flat, v, flat);
	return flat;
}

/* What an op of this tile reads for v. */
static Value *tile_of(Build *x, Value *v)
{
	Value *now = v ? ptrmap_get(x->now, v) : NULL;
	if (!v || now)
		return now;
	if (ptrmap_get(x->r->same, v))
		return tile_of(x, ptrmap_get(x->r->same, v));
	if (tiles_rows(&v->type) != x->r->rows)
		return flat_of(x, v);
	if (tiles_shown(v) != v)
		return tile_of(x, tiles_shown(v));
	if (v->op->kind == OP_COLUMNS) {
		Value *whole = tile_of(x, op_in(v->op, 0));
		now = ir_emit(&x->b, OP_COLUMNS, 1, &whole, v->op->attrs);
	} else {
		Value *flat = flat_of(x, v);
		now = ir_emit(&x->b, OP_ROWS, 1, &flat, part_of_rows(x->t->m, x->start, x->size));
	}
	ptrmap_put(x->now, v, now);
	return now;
}

/* ---- sums over rows ---- */

/* op, whose result is a matrix in f32, for this tile.  The sum over rows of a tensor is its product with ones. */
static void build_sum(Build *x, Op *op)
{
	Module *m = x->t->m;
	bool bias = op->kind == OP_REDUCE_SUM;
	Value *a = tile_of(x, op_in(op, 0)), *sum = ptrmap_get(x->parts, op->out[0]);
	Value *b = bias ? ir_const_full(&x->b, type_tensor(a->type.dtype, 2, (int64_t[]){x->size, 1}), 1)
		: tile_of(x, op_in(op, 1));
	Attr *attrs = attr_int(m, attr_int(m, NULL, "ta", 1), "tb", 0);
	if (dtype_is_half(a->type.dtype))
		attrs = attr_dtype(m, attrs, "to", DT_F32);
	x->b.name = op->out[0]->name;
	if (!sum && op->kind == OP_ACCUMULATE) {
		x->b.sym = op->sym;
		sum = ir_emit(&x->b, OP_ACCUMULATE, 2, (Value *[]){a, b}, op->attrs);
	} else {
		Value *in[] = {a, b, NULL, sum ? sum : op_sum(op)};
		sum = ir_emit(&x->b, OP_MATMUL, in[3] ? 4 : 2, in, attrs);
	}
	ptrmap_put(x->parts, op->out[0], sum);
}

/* ---- ops that work row by row ---- */

static Op *build_loop(Build *x, const Op *op, Value *const *in)
{
	Type *out = NEW_N(x->t->a, Type, op->n_out);
	for (int i = 0; i < op->n_out; i++) {
		const Type *t = &op->out[i]->type;
		out[i] = type_tensor(t->dtype, 2, (int64_t[]){x->size, t->dim[t->rank - 1]});
	}
	return ir_clone_fused(&x->b, op, in, out, ptrmap_new(x->t->a));
}

static void build_rows(Build *x, Op *op)
{
	Module *m = x->t->m;
	Value **in = NEW_N(m->arena, Value *, op->n_in);
	for (int i = 0; i < op->n_in; i++)
		in[i] = tiles_reads(op, i) ? tile_of(x, op_in(op, i)) : op_in(op, i);
	if (op->kind == OP_RESHAPE) {
		ptrmap_put(x->now, op->out[0], in[0]);
		return;
	}
	bool axis = op->kind == OP_JOIN || op->kind == OP_LAYER_NORM || op->kind == OP_RMS_NORM;
	Attr *attrs = axis ? attr_int(m, op->attrs, "axis", 1) : op->attrs;
	x->b.name = op->out[0]->name;
	Op *now = op->kind == OP_FUSED ? build_loop(x, op, in) : ir_emit_op(&x->b, op->kind, op->n_in, in, attrs, NULL);
	for (int i = 0; i < op->n_out; i++) {
		if (!op->out[i]->n_uses)
			continue;
		ptrmap_put(x->now, op->out[i], now->out[i]);
		if (tiles_inner(x->t, op->out[i]))
			continue;
		Value **parts = ptrmap_get(x->parts, op->out[i]);
		if (!parts)
			ptrmap_put(x->parts, op->out[i], parts = NEW_N(m->arena, Value *, x->n_tiles));
		parts[x->k] = now->out[i];
	}
}

static void build_tile(Build *x)
{
	x->now = ptrmap_new(x->t->a);
	for (int i = 0; i < x->r->ops.n; i++) {
		Op *op = x->r->ops.at[i];
		x->b.loc = op->loc;
		tiles_sums(op) ? build_sum(x, op) : build_rows(x, op);
	}
}

/* ---- the whole ---- */

/* Puts what the tiles have made in the place of a result that is read outside. */
static void replace(Build *x, const Op *op, Value *was)
{
	void *made = ptrmap_get(x->parts, was);
	if (!made)
		return;
	x->b.loc = op->loc;
	x->b.name = was->name;
	Value *v = tiles_sums(op) ? made : ir_emit_op(&x->b, OP_STACK, x->n_tiles, made,
		attr_int(x->t->m, NULL, "axis", 0), NULL)->out[0];
	v = ir_reshape(&x->b, ir_cast(&x->b, v, was->type.dtype), was->type.rank, was->type.dim);
	const char *name = was->name;
	ir_replace_uses(was, v);
	was->name = v->name;
	v->name = name;
}

/* Moves op, which is not made here, behind the tiles. */
static void move_behind(Tiles *t, Op *op, Op *before)
{
	if (t->tail[op->order] == op && op->prev && op->prev->order == op->order)
		t->tail[op->order] = op->prev;
	if (before)
		ir_move_before(t->m, op, before);
	else
		ir_move_to_end(t->m, op, t->section);
}

/* Units whose parameters the tiles read end their lives behind these. */
static void move_reshards(Tiles *t, const TileRegion *r, Op *before)
{
	for (int i = 0; i < r->ops.n; i++)
		for (int k = 0; k < r->ops.at[i]->n_in; k++) {
			const Value *v = op_in(r->ops.at[i], k);
			const Use *u = v && v->op->kind == OP_VIEW_OP ? op_in(v->op, 0)->uses : NULL;
			for (; u; u = u->next)
				if ((u->op->kind == OP_RESHARD || u->op->kind == OP_CARRY) && u->op->section == t->section
					&& u->op->order <= r->after)
					move_behind(t, u->op, before);
		}
}

/* New ops count as standing where the op does behind which they are put. */
static void number_from(Tiles *t, Op *first, Op *before, int64_t order)
{
	for (Op *op = first; op && op != before; op = op->next) {
		op->order = order;
		t->tail[order] = op;
	}
}

void tiles_build(Tiles *t, TileRegion *r)
{
	Op *after = r->after < 0 ? NULL : t->tail[r->after], *before = after ? after->next : r->ops.at[0];
	Op *prev = before ? before->prev : t->m->last[t->section];
	Build x = {.t = t, .r = r, .n_tiles = (int)((r->rows + r->tile - 1) / r->tile), .flat = ptrmap_new(t->a),
		.parts = ptrmap_new(t->a), .b = {.m = t->m, .section = t->section, .before = before}};
	for (; x.k < x.n_tiles; x.k++) {
		x.start = x.k * r->tile;
		x.size = MIN(r->tile, r->rows - x.start);
		build_tile(&x);
	}
	for (int i = 0; i < r->ops.n; i++)
		for (int k = 0; k < r->ops.at[i]->n_out; k++)
			replace(&x, r->ops.at[i], r->ops.at[i]->out[k]);
	for (int i = 0; i < r->late.n; i++)
		move_behind(t, r->late.at[i], before);
	move_reshards(t, r, before);
	number_from(t, prev ? prev->next : t->m->first[t->section], before, r->after < 0 ? r->ops.at[0]->order : r->after);
	for (int i = r->ops.n - 1; i >= 0; i--)
		ir_remove(t->m, r->ops.at[i]);
}
