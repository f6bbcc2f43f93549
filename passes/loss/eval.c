/* passes/loss/eval.c: builds the eval section, and makes a section behave as in evaluation.
 *
 * The forward is copied while it still is the model's own; dropout and batch statistics are replaced in the copy.
 * A batch norm names the buffers of its running statistics.  One that names none was exported without them and uses
 * the batch's statistics in evaluation too, as its framework does. */
#include "passes/loss/loss.h"

#include <string.h>

PtrMap *loss_clone_eval(Module *m, Arena *scratch, bool outputs)
{
	PtrMap *map = ptrmap_new(scratch);
	Builder b = {.m = m, .section = SEC_EVAL};
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		if (op->kind == OP_WRITE || (op->kind == OP_OUTPUT && !outputs))
			continue;
		b.loc = strcmp(op->loc->role, "precision") ? loc_with_role(m, op->loc, "eval") : op->loc;
		ir_clone(&b, op, map);
	}
	return map;
}

void loss_drop_dropout(Module *m, SectionKind s)
{
	static const char *const chance[] = {"p", "id", "pre", "rows"};
	IR_FOR_OPS_SAFE(m, s, op) {
		Builder b = {.m = m, .section = s, .before = op, .loc = op->loc};
		Value *now = NULL;
		if (op->kind == OP_DROPOUT)
			now = op_in(op, 0);
		else if (op->kind == OP_DROPOUT_MASK)
			now = ir_const_full(&b, op->out[0]->type, 1);
		else if (op->kind == OP_DRAW && attr_find(op->attrs, "off"))
			now = ir_const_full(&b, op->out[0]->type, attr_get_float(op->attrs, "off", 0));
		else if (op->kind == OP_ATTENTION)
			op->attrs = attr_without(m, op->attrs, COUNT_OF(chance), chance);
		if (now) {
			ir_replace_uses(op->out[0], now);
			ir_remove(m, op);
		}
	}
}

/* ---- batch norm ---- */

/* The buffer that attribute `attr` names, NULL when it names none; the verifier has checked that it fits. */
static Symbol *running(const Module *m, const Op *op, const char *attr)
{
	const char *name = attr_get_str(op->attrs, attr, NULL);
	return name ? ir_find_symbol(m, name) : NULL;
}

static void use_running(Module *m, Op *op, Symbol *mean_sym, Symbol *var_sym)
{
	Builder b = {.m = m, .section = op->section, .before = op, .loc = op->loc};
	DType t = op->out[1]->type.dtype;
	Value *mean = ir_cast(&b, ir_read(&b, mean_sym), t), *var = ir_cast(&b, ir_read(&b, var_sym), t);
	ir_replace_uses(op->out[0], expand_normalize(&b, op, mean, var));
	ir_replace_uses(op->out[1], mean);
	ir_replace_uses(op->out[2], var);
	ir_remove(m, op);
}

/* Removes the writes of running averages, so that these symbols stay as they are. */
static void drop_writes(Module *m, SectionKind s, const PtrMap *fixed)
{
	IR_FOR_OPS_SAFE(m, s, op)
		if (op->kind == OP_WRITE && ptrmap_get(fixed, op->sym))
			ir_remove(m, op);
}

static bool is_among(const regex_t *only, const Op *op)
{
	return !only || pattern_matches(only, *op->loc->scope ? op->loc->scope : op->loc->node);
}

int loss_fix_statistics(Module *m, SectionKind s, const regex_t *only)
{
	int n = 0;
	Arena *scratch = arena_new();
	PtrMap *fixed = ptrmap_new(scratch);
	IR_FOR_OPS_SAFE(m, s, op) {
		if (op->kind != OP_BATCH_NORM || !is_among(only, op))
			continue;
		Symbol *mean = running(m, op, "mean"), *var = running(m, op, "var");
		if (!mean || !var)
			continue;
		ptrmap_put(fixed, mean, mean);
		ptrmap_put(fixed, var, var);
		use_running(m, op, mean, var);
		n++;
	}
	drop_writes(m, s, fixed);
	arena_free(scratch);
	return n;
}
