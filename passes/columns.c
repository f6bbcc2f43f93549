/* passes/columns.c: makes views of what is split or joined along rows.
 *
 * Requires SHARD, behind all passes that make loops, and before schedule, since it changes where values live.  Ensures
 * that a split along the last axis whose parts loops read, or one whose parts attention reads as heads, copies nothing
 * (columns: they read the rows of the whole), and that neither does a concat of results of one loop or of one
 * attention_grad (join: it writes the rows of the whole; a loop in place of the columns that it reads where they die).
 * A tensor with a part that another op reads, or that nothing reads, is copied into parts as before, and so is a
 * parameter. */
#include "passes/passes.h"

/* Whether the value lies in a gathered unit, which is there up to the last op that reads a parameter of it now. */
static bool is_gathered(const Value *v)
{
	while (op_info[v->op->kind].flags & VIEW && v->op->kind != OP_VIEW_OP)
		v = op_in(v->op, 0);
	return v->op->kind == OP_VIEW_OP;
}

static bool show_parts(Module *m, Op *split)
{
	Value *x = op_in(split, 0);
	Parts p = {split->out, split->n_out, (int)attr_get_int(split->attrs, "axis", 0)};
	if (x->op->kind == OP_COLUMNS || is_gathered(x) || parts_unreadable(m, &p))
		return false;
	parts_show(m, x, &p, split);
	ir_remove(m, split);
	return true;
}

static bool join_results(Module *m, Op *concat)
{
	int n = concat->n_in;
	Value *v = concat->out[0], **part = NEW_N(m->arena, Value *, n);
	Parts p = {part, n, (int)attr_get_int(concat->attrs, "axis", 0)};
	bool may = true;
	for (int i = 0; i < n; i++) {
		part[i] = op_in(concat, i);
		may = may && part[i]->n_uses == 1;
	}
	if (!may || !parts_joinable(&p))
		return false;
	Builder b = {.m = m, .section = concat->section, .before = concat, .loc = concat->loc};
	Value *wide = ir_reshape(&b, parts_join(m, &p), v->type.rank, v->type.dim);
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
