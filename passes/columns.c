/* passes/columns.c: makes views of what is split or joined along rows.
 *
 * Requires SHARD, behind all passes that make loops, and before schedule, since it changes where values live.  Ensures
 * that a split along the last axis whose parts only loops read copies nothing (columns: the loops read the rows of the
 * whole), and that neither does a concat along it of results of one loop (join: the loop writes the rows of the whole,
 * in place of the columns that it reads where they die).  A tensor with a part that another op reads, or that nothing
 * reads, is copied into parts as before. */
#include "passes/passes.h"

static bool is_loop(const Op *op)
{
	return op->kind == OP_FUSED || op_info[op->kind].flags & EW;
}

static bool columns_may_show(const Value *v)
{
	bool any = v->n_uses > 0;
	for (const Use *u = v->uses; u; u = u->next)
		any = any && is_loop(u->op);
	return any && v->type.dim[v->type.rank - 1] > 0;
}

static bool is_last_axis(const Op *op, const Value *v)
{
	return attr_get_int(op->attrs, "axis", 0) == v->type.rank - 1;
}

static bool show_parts(Module *m, Op *split)
{
	Value *x = op_in(split, 0);
	bool may = is_last_axis(split, x) && x->op->kind != OP_COLUMNS;
	for (int i = 0; i < split->n_out; i++)
		may = may && columns_may_show(split->out[i]);
	if (!may)
		return false;
	int64_t start = 0;
	for (int i = 0; i < split->n_out; i++) {
		Value *part = split->out[i];
		int64_t size = part->type.dim[part->type.rank - 1];
		Builder b = {.m = m, .section = split->section, .before = split, .loc = split->loc, .name = part->name};
		Value *v = ir_emit(&b, OP_COLUMNS, 1, &x, attr_int(m, attr_int(m, NULL, "start", start), "size", size));
		ir_replace_uses(part, v);
		v->name = part->name;
		start += size;
	}
	ir_remove(m, split);
	return true;
}

static bool join_results(Module *m, Op *concat)
{
	Op *loop = op_in(concat, 0)->op;
	bool may = loop->kind == OP_FUSED && is_last_axis(concat, concat->out[0]);
	for (int i = 0; i < concat->n_in; i++) {
		const Value *x = op_in(concat, i);
		may = may && x->op == loop && x->n_uses == 1 && type_equal(&x->type, &op_in(concat, 0)->type)
			&& type_numel(&x->type);
	}
	if (!may)
		return false;
	Builder b = {.m = m, .section = concat->section, .before = concat, .loc = concat->loc};
	Value **in = NEW_N(m->arena, Value *, concat->n_in);
	for (int i = 0; i < concat->n_in; i++)
		in[i] = op_in(concat, i);
	int n = concat->n_in;
	Value *v = concat->out[0];
	Attr *attrs = concat->attrs;
	Op *join = ir_emit_op(&b, OP_JOIN, n, in, attrs, NULL);
	ir_replace_uses(v, join->out[0]);
	ir_remove(m, concat);
	join->out[0]->name = v->name;
	return true;
}

bool pass_columns(Module *m, const Options *o, Diag *d)
{
	int n_split = 0, n_joined = 0;
	(void)o;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS_SAFE(m, s, op) {
			n_split += op->kind == OP_SPLIT && show_parts(m, op);
			n_joined += op->kind == OP_CONCAT && join_results(m, op);
		}
	if (n_split + n_joined)
		diag_info(d, "columns", "loops read the parts of %d tensors in their rows, and write those of %d", n_split,
			n_joined);
	return true;
}
