/* passes/columns.c: makes views of what is split or joined along rows.
 *
 * Requires SHARD, behind all passes that make loops, and before schedule, since it changes where values live.  Ensures
 * that a split along the last axis whose parts loops read, or attention by heads, copies nothing (columns: they read
 * the rows of the whole), and that neither does a concat along it of results of one loop or of one attention_grad
 * (join: it writes the rows of the whole; a loop in place of the columns that it reads where they die).  A tensor with
 * a part that another op reads, or that nothing reads, is copied into parts as before. */
#include "passes/passes.h"

static bool is_last_axis(const Op *op, const Value *v)
{
	return attr_get_int(op->attrs, "axis", 0) == v->type.rank - 1;
}

static bool show_parts(Module *m, Op *split)
{
	Value *x = op_in(split, 0);
	if (!is_last_axis(split, x) || x->op->kind == OP_COLUMNS || parts_unreadable(m, split->out, split->n_out))
		return false;
	parts_show(m, x, split->out, split->n_out, split);
	ir_remove(m, split);
	return true;
}

static bool join_results(Module *m, Op *concat)
{
	int n = concat->n_in;
	Value *v = concat->out[0], **part = NEW_N(m->arena, Value *, n);
	bool may = is_last_axis(concat, v);
	for (int i = 0; i < n; i++) {
		part[i] = op_in(concat, i);
		may = may && part[i]->n_uses == 1;
	}
	if (!may || parts_maker(part, n) == PARTS_APART)
		return false;
	Value *wide = parts_join(m, part, n);
	ir_replace_uses(v, wide);
	ir_remove(m, concat);
	wide->name = v->name;
	for (int i = 0; i < n; i++)
		parts_drop(m, part[i]);
	return true;
}

bool pass_columns(Module *m, const Options *o, Diag *d)
{
	int n_split = 0, n_joined = 0;
	Arena *a = arena_new();
	VEC(Op *) ops = {0};
	(void)o;
	ir_number(m);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_SPLIT || op->kind == OP_CONCAT)
				vec_push(a, &ops, op);
	for (int i = 0; i < ops.n; i++) {
		bool split = ops.at[i]->kind == OP_SPLIT;
		n_split += split && show_parts(m, ops.at[i]);
		n_joined += !split && join_results(m, ops.at[i]);
	}
	if (n_split + n_joined)
		diag_info(d, "columns", "the parts of %d tensors are read in their rows, and those of %d written there",
			n_split, n_joined);
	arena_free(a);
	return true;
}
