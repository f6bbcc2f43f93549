/* passes/legalize.c: ensures that 16-bit values reach only ops that have 16-bit kernels.
 *
 * Requires TRAIN.  Ensures that an op with 16-bit operands is elementwise, is a view, or has a kernel for them
 * (column `types` of kernels/kernels.def); any other op computes in f32 between casts.  Casts that the compiler
 * inserted and that undo each other are removed.  A cast to f32 of a product, of a sum or of what a norm's gradient
 * sums over rows is replaced by an f32 result of that op itself (attribute `to`), so that gradients of parameters are
 * rounded once, to the dtype of their flat; a cast of a sum of products, and of rows that are added up (gather_grad),
 * by a sum in f32.  Casts of parameters are moved in front of all their readers, where `shard` turns them into the
 * dtype of a view.  Refuses nothing: f32 has a kernel for every op. */
#include "passes/passes.h"

#include <string.h>

static const struct { const char *op, *types; } kernels[] = {
#define KERNEL(op, types, work, cuda) {#op, #types},
#include "kernels/kernels.def"
};

static bool is_half(const Value *v)
{
	return v && v->type.kind == TYPE_TENSOR && dtype_is_half(v->type.dtype);
}

/* ---- ops without a 16-bit kernel ---- */

static bool computes_halves(const Op *op)
{
	static const char *const wide[] = {"F32", "FLOATS", "NUMBERS"};
	const char *types = "";
	if (op_info[op->kind].flags & (EW | VIEW | SRC) || op_has_effect(op) || op->kind == OP_NORM)
		return true;
	for (int i = 0; i < COUNT_OF(kernels); i++)
		if (!strcmp(kernels[i].op, op_info[op->kind].text))
			types = kernels[i].types;
	for (int i = 0; i < COUNT_OF(wide); i++)
		if (!strcmp(types, wide[i]))
			return false;
	return true;
}

static bool has_halves(const Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		if (is_half(op_in(op, i)))
			return true;
	return false;
}

/* On CPUs convolutions of channels-first f16 data have only plain loops, which are thousands of times slower than the
 * f32 kernels. */
static bool is_slow(const Op *op, const Options *o)
{
	bool conv = op->kind == OP_CONV || op->kind == OP_CONV_GRAD_X || op->kind == OP_CONV_GRAD_W;
	return conv && !options_cuda(o) && op_in(op, 0)->type.dtype == DT_F16 && !attr_get_int(op->attrs, "layout", 0);
}

static Value *cast_of(Module *m, Op *op, Op *before, Value *v, DType to)
{
	Builder b = {.m = m, .section = op->section, .before = before, .loc = loc_with_role(m, op->loc, "legalize"),
		.name = arena_printf(m->arena, "%s.%s", v->name, dtype_info[to].text)};
	return ir_cast(&b, v, to);
}

/* v as f32.  A literal becomes a new f32 literal, so that no loop is made for its cast. */
static Value *in_f32(Module *m, Op *op, Value *v)
{
	const Attr *value = v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	if (!value)
		return cast_of(m, op, op, v, DT_F32);
	Builder b = {.m = m, .section = op->section, .before = op, .loc = v->op->loc,
		.name = arena_printf(m->arena, "%s.f32", v->name)};
	Type t = v->type;
	t.dtype = DT_F32;
	return ir_emit_typed(&b, OP_CONST, 0, NULL, attr_floats(m, NULL, "value", value->n, value->floats), t);
}

/* Class weights are read as f32, whatever the type of the logits. */
static void widen_class_weights(Module *m, Op *op)
{
	int i = op->kind == OP_CROSS_ENTROPY ? 2 : op->kind == OP_CROSS_ENTROPY_GRAD ? 3 : -1;
	if (i >= 0 && i < op->n_in && is_half(op_in(op, i)))
		ir_set_in(op, i, in_f32(m, op, op_in(op, i)));
}

static void compute_in_f32(Module *m, Op *op)
{
	Type *was = NEW_N(m->arena, Type, op->n_out), *now = NEW_N(m->arena, Type, op->n_out);
	Op *next = op->next;
	Buf err = {0};
	for (int i = 0; i < op->n_out; i++)
		was[i] = op->out[i]->type;
	for (int i = 0; i < op->n_in; i++)
		if (is_half(op_in(op, i)))
			ir_set_in(op, i, in_f32(m, op, op_in(op, i)));
	if (!ir_infer(m, op, NULL, now, &err))
		ice("%s in f32: %s", op_info[op->kind].text, err.at ? err.at : "");
	buf_free(&err);
	for (int i = 0; i < op->n_out; i++) {
		Value *v = op->out[i];
		v->type = now[i];
		if (!v->n_uses || v->type.dtype == was[i].dtype)
			continue;
		Value *back = cast_of(m, op, next, v, was[i].dtype);
		ir_replace_uses(v, back);
		ir_set_in(back->op, 0, v);
	}
}

/* ---- casts that fold ---- */

/* Whether the compiler inserted this cast.  A rounding that the user asked for stays; the compiler's own may be
 * removed. */
static bool is_ours(const Op *cast)
{
	return *cast->loc->role && strcmp(cast->loc->role, "eval");
}

/* The value that v shows, through views that nobody else reads. */
static Value *shown(Value *v)
{
	while (op_info[v->op->kind].flags & VIEW && v->op->n_in == 1 && v->n_uses == 1)
		v = op_in(v->op, 0);
	return v;
}

static Op *made_by(Value *v)
{
	return shown(v)->op;
}

static void retype_views(Value *v, const Op *root, DType to)
{
	for (; v->op != root; v = op_in(v->op, 0))
		v->type.dtype = to;
}

static bool all_uses_cast_to(const Value *v, DType to)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->kind != OP_CAST || u->op->out[0]->type.dtype != to)
			return false;
	return true;
}

static bool is_norm_grad(const Op *op)
{
	return op->kind == OP_LAYER_NORM_GRAD || op->kind == OP_RMS_NORM_GRAD;
}

/* Whether op sums up products or rows, which are then summed in f32 and not rounded between. */
static bool is_sum_of_products(Op *op)
{
	if (op->kind != OP_REDUCE_SUM)
		return false;
	Value *x = op_in(op, 0);
	Op *of = made_by(x);
	return x->n_uses == 1 && of->out[0]->n_uses == 1 && (of->kind == OP_MATMUL || of->kind == OP_CONV_GRAD_W
		|| of->kind == OP_GATHER_GRAD || is_sum_of_products(of));
}

/* Whether the op that makes the 16-bit value y can make it in f32: a product, a sum, rows that are added up, and what a
 * norm's gradient sums over rows. */
static bool can_widen(const Value *y)
{
	OpKind kind = y->op->kind;
	return kind == OP_MATMUL || kind == OP_CONV_GRAD_W || kind == OP_GATHER_GRAD || kind == OP_REDUCE_SUM
		|| (is_norm_grad(y->op) && y->index > 0);
}

/* Sums over rows in f32.  What is not wanted in f32 is rounded behind the op. */
static void widen_norm_grad(Module *m, Op *op, const Value *wanted)
{
	DType was = wanted->type.dtype;
	op->attrs = attr_dtype(m, op->attrs, "to", DT_F32);
	for (int i = 1; i < op->n_out; i++) {
		Value *v = op->out[i];
		v->type.dtype = DT_F32;
		if (v == wanted || all_uses_cast_to(v, DT_F32))
			continue;
		Value *back = cast_of(m, op, op->next, v, was);
		ir_replace_uses(v, back);
		ir_set_in(back->op, 0, v);
	}
}

static void widen(Module *m, Value *y)
{
	Op *op = y->op;
	Value *x = op_in(op, 0);
	if (is_norm_grad(op)) {
		widen_norm_grad(m, op, y);
	} else if (is_sum_of_products(op)) {
		Op *of = made_by(x);
		widen(m, of->out[0]);
		retype_views(x, of, DT_F32);
	} else if (op->kind == OP_GATHER_GRAD) { /* the rows are few, compared with the result */
		ir_set_in(op, 0, cast_of(m, op, op, x, DT_F32));
		if (op_in(op, 2)) /* the sum to which rows are added */
			ir_set_in(op, 2, cast_of(m, op, op, op_in(op, 2), DT_F32));
	} else {
		op->attrs = attr_dtype(m, op->attrs, "to", DT_F32);
	}
	y->type.dtype = DT_F32;
}

/* cast of a 16-bit product to f32 -> the product, in f32.  Where 16 bits are all that is wanted in the end, the op
 * rounds its f32 sum to them itself. */
static bool widen_product(Module *m, Op *cast)
{
	Value *x = op_in(cast, 0), *y = shown(x);
	bool alone = x == y ? all_uses_cast_to(y, DT_F32) : x->n_uses == 1 && y->n_uses == 1;
	if (!alone || !is_half(y) || cast->out[0]->type.dtype != DT_F32 || !can_widen(y))
		return false;
	if (all_uses_cast_to(cast->out[0], y->type.dtype) && !is_sum_of_products(y->op))
		return false;
	widen(m, y);
	retype_views(x, y->op, DT_F32);
	return true; /* the cast now converts f32 to f32 */
}

/* A cast of a cast becomes one, or none, where the inner one loses nothing or was inserted by the compiler.  A rounding
 * that anybody else reads stays: its readers would compute with different values, and both would be kept. */
static bool fold_pair(Op *cast)
{
	Value *x = op_in(cast, 0);
	Op *inner = made_by(x);
	DType to = cast->out[0]->type.dtype, from, mid;
	if (inner->kind != OP_CAST)
		return false;
	from = op_in(inner, 0)->type.dtype;
	mid = inner->out[0]->type.dtype;
	if (!dtype_is_float(from) || !dtype_is_float(mid) || !dtype_is_float(to))
		return false;
	bool exact = dtype_info[mid].bytes > dtype_info[from].bytes;
	if (!exact && (from != to || !is_ours(inner) || op_is_param_cast(inner) || !all_uses_cast_to(x, to)))
		return false;
	if (x->op == inner) {
		ir_set_in(cast, 0, op_in(inner, 0));
		return true;
	}
	if (from != to || x->n_uses != 1)
		return false;
	Op *view = x->op;
	while (op_in(view, 0)->op != inner)
		view = op_in(view, 0)->op;
	retype_views(x, inner, from);
	ir_set_in(view, 0, op_in(inner, 0));
	return true;
}

static void fold_casts(Module *m)
{
	for (int s = 0; s < SEC_COUNT; s++) {
		IR_FOR_OPS_SAFE(m, s, op) {
			if (op->kind != OP_CAST)
				continue;
			while (op_in(op, 0)->type.dtype != op->out[0]->type.dtype && (fold_pair(op) || widen_product(m, op)))
				;
			if (op_in(op, 0)->type.dtype != op->out[0]->type.dtype)
				continue;
			ir_replace_uses(op->out[0], op_in(op, 0));
			ir_remove(m, op);
		}
	}
}

/* ---- casts of parameters ---- */

static bool is_cast_param(const Op *op)
{
	if (op->kind != OP_PARAM)
		return op_is_param_cast(op);
	for (const Use *u = op->out[0]->uses; u; u = u->next)
		if (op_is_param_cast(u->op))
			return true;
	return false;
}

/* Moves casts of parameters to the front of the section.  They cost nothing there, since they generate no code. */
static void hoist_param_casts(Module *m, SectionKind s)
{
	Op *front = m->first[s];
	while (front && is_cast_param(front))
		front = front->next;
	IR_FOR_OPS_SAFE(m, s, op)
		if (front && is_cast_param(op) && op->order > front->order)
			ir_move_before(m, op, front);
}

static bool any_halves(const Module *m)
{
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			for (int i = 0; i < op->n_out; i++)
				if (is_half(op->out[i]))
					return true;
	return false;
}

bool pass_legalize(Module *m, const Options *o, Diag *d)
{
	if (!any_halves(m))
		return true;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS_SAFE(m, s, op) {
			if (has_halves(op) && (!computes_halves(op) || is_slow(op, o)))
				compute_in_f32(m, op);
			else
				widen_class_weights(m, op);
		}
	fold_casts(m);
	ir_number(m);
	for (int s = 0; s < SEC_COUNT; s++)
		hoist_param_casts(m, (SectionKind)s);
	return pass_dce(m, o, d);
}
