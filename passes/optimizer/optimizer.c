/* passes/optimizer/optimizer.c: builds the update section: one update per gradient, the gradients' norm, the step's
 * scalars.
 *
 * Gradients are cast to the dtype of their flat: f32, or the 16-bit type in which they are sent (--reduce-dtype).
 * The norm is computed where it is logged, used for clipping, or watched by a dynamic loss scale.  step_scalars
 * turns the norm and the loss's count into the factor of every update, so it stands before the updates.  The
 * arithmetic of an update and its states belong to the kernel that --optimizer names.  Parameters get their groups
 * here, where it is known which of them are trained, and the module gets its train block (train.c).
 * Refuses what optimizer_parse, clip_parse, loss_scale_parse and param_groups_assign refuse. */
#include "passes/passes.h"

/* Takes the gradients, in order, from their `grad` ops, which become updates. */
static Value **take_gradients(Module *m, Arena *scratch, Symbol ***syms, int *n)
{
	VEC(Value *) grad = {0};
	VEC(Symbol *) sym = {0};
	IR_FOR_OPS_SAFE(m, SEC_BACKWARD, op) {
		if (op->kind != OP_GRAD)
			continue;
		vec_push(scratch, &grad, op_in(op, 0));
		vec_push(scratch, &sym, op->sym);
		ir_remove(m, op);
	}
	*syms = sym.at;
	*n = grad.n;
	return grad.at;
}

DType gradient_dtype(const Options *o, DType reduce)
{
	return options_many(o) ? DT_F32 : reduce;
}

/* Casts gradients to the dtype of their flat, right behind the ops that compute them. */
static void cast_gradients(Module *m, const Options *o, const ParamDtypes *dtypes, Symbol *const *sym, Value **grad,
	int n)
{
	for (int i = 0; i < n; i++) {
		DType to = gradient_dtype(o, dtype_said(dtypes->reduce, sym[i], o->precision.reduce_dtype));
		Op *op = grad[i]->op;
		bool older = op->section < SEC_BACKWARD;
		Builder b = {.m = m, .section = SEC_BACKWARD, .before = older ? m->first[SEC_BACKWARD] : op->next,
			.loc = loc_with_role(m, op->loc, "grad"),
			.name = arena_printf(m->arena, "%s.%s", grad[i]->name, dtype_info[to].text)};
		if (dtype_is_float(grad[i]->type.dtype))
			grad[i] = ir_cast(&b, grad[i], to);
	}
}

int update_barriers(const Options *o, UpdateBarrier out[UPDATE_BARRIERS])
{
	Arena *a = arena_new();
	Diag silent = {.silent = true};
	Clip clip;
	LossScale scale;
	bool clips = clip_parse(o->graph.clip, &clip, a, &silent) && clip.p > 0;
	bool watched = loss_scale_parse(o->precision.loss_scale, &scale, &silent) && scale.kind == LOSS_SCALE_DYNAMIC;
	const struct { UpdateBarrier is; bool given; } all[UPDATE_BARRIERS] = {
		{{"--clip=P", "it limits the norm; --clip=value does not"}, clips},
		{{"--grad-norm=on", "it is that norm"}, o->graph.grad_norm == GRAD_NORM_ON},
		{{"--loss-scale=dynamic", "it watches the norm; --loss-scale=X and bf16 do not"}, watched},
		{{"--accum=many", "gradients of all units wait for the last micro-batch"}, options_many(o)},
		{{"--check-nan", "an update that a finding leaves out would be made already"}, o->graph.check_nan},
	};
	int n = 0;
	for (int i = 0; i < UPDATE_BARRIERS; i++)
		if (all[i].given)
			out[n++] = all[i].is;
	arena_free(a);
	return n;
}

static bool check_early(const Options *o, Diag *d)
{
	UpdateBarrier barrier[UPDATE_BARRIERS];
	int n = o->graph.update == UPDATE_IN_BACKWARD ? update_barriers(o, barrier) : 0;
	for (int i = 0; i < n; i++)
		diag_error(d, "--update=backward", "units are updated before all gradients are known, so %s is not possible: "
			"%s; or take --update=end", barrier[i].option, barrier[i].why);
	return !n;
}

/* Reports --grad-norm=off when clipping or the loss scale needs the norm. */
static void check_norm(const Options *o, const Clip *clip, const LossScale *scale, Diag *d)
{
	if (o->graph.grad_norm == GRAD_NORM_OFF && clip->p > 0)
		diag_warn(d, "--grad-norm", "--clip=%s limits the norm, which is computed for it and logged: off is not "
			"used", o->graph.clip);
	else if (o->graph.grad_norm == GRAD_NORM_OFF && scale->kind == LOSS_SCALE_DYNAMIC)
		diag_warn(d, "--grad-norm", "--loss-scale=dynamic watches the norm, which is computed for it and logged: "
			"off is not used");
}

bool pass_optimizer(Module *m, const Options *o, Diag *d)
{
	OptimizerChoice optimizer;
	Clip clip;
	LossScale scale;
	bool ok = optimizer_parse(o->graph.optimizer, &optimizer, d);
	ok = loss_scale_parse(o->precision.loss_scale, &scale, d) && ok;
	if (!clip_parse(o->graph.clip, &clip, m->arena, d) || !ok)
		return false;
	if (!m->first[SEC_BACKWARD])
		return true; /* a program that only evaluates */
	if (!check_early(o, d))
		return false;
	check_norm(o, &clip, &scale, d);
	Arena *scratch = arena_new();
	Symbol **sym;
	int n;
	Value **grad = take_gradients(m, scratch, &sym, &n);
	const OptionList *groups = &o->graph.param_group;
	TrainParts parts = {.clip = clip, .scale = scale, .trained = sym, .n_trained = n, .n_groups = groups->n};
	ParamDtypes dtypes;
	if (!policy_dtypes(m, o, &dtypes, scratch, d)) {
		arena_free(scratch);
		return false;
	}
	parts.group = param_groups_parse(groups->at, groups->n, o->graph.optimizer, scratch, d);
	ok = parts.group && param_groups_assign(sym, n, parts.group, parts.n_groups, scratch, d);
	cast_gradients(m, o, &dtypes, sym, grad, n);
	Builder b = {.m = m, .section = SEC_UPDATE, .loc = loc_new(m, "", "", "", "update")};
	Value *norm = NULL;
	bool other = clip.p > 0 && clip.p != 2;
	bool wanted = o->graph.grad_norm != GRAD_NORM_OFF && o->graph.update == UPDATE_AT_END;
	if (n && (wanted || clip.p > 0 || scale.kind == LOSS_SCALE_DYNAMIC))
		norm = ir_emit(&b, OP_NORM, n, grad, other ? attr_float(m, NULL, "p", clip.p) : NULL);
	if (n)
		ir_emit(&b, OP_STEP_SCALARS, 1, &norm, clip.text ? attr_str(m, NULL, "clip", clip.text) : NULL);
	for (int i = 0; i < n; i++) {
		b.sym = sym[i];
		b.loc = loc_with_role(m, grad[i]->op->loc, "update");
		ir_emit1(&b, OP_UPDATE, grad[i]);
	}
	ok = ok && train_make(m, &parts, o, d);
	arena_free(scratch);
	return ok;
}
