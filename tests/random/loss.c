/* tests/random/loss.c: the loss of a random module, and the options it is compiled with. */
#include "tests/random/random.h"

#include <math.h>
#include <string.h>

#include "passes/check/check.h"

static bool all_finite(const EvalTensor *t)
{
	for (int64_t i = 0, n = t ? type_numel(&t->type) : 0; i < n; i++)
		if (!isfinite(t->f[i]))
			return false;
	return t;
}

/* sum of w * y, w fixed and different everywhere. */
static Value *weighed_sum(Builder *b, Rng *r, Value *y)
{
	int64_t axes[IR_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7}, n = type_numel(&y->type);
	double *w = NEW_N(b->m->arena, double, n + 1);
	for (int64_t i = 0; i < n; i++)
		w[i] = (double)(float)rng_unit(r);
	y = ir_cast(b, y, DT_F32);
	if (n) {
		Value *weights = ir_emit_typed(b, OP_CONST, 0, NULL, attr_floats(b->m, NULL, "value", (int)n, w), y->type);
		y = ir_emit2(b, OP_MUL, y, weights);
	}
	return ir_reduce(b, OP_REDUCE_SUM, y, y->type.rank, axes, false);
}

static void output(Builder *b, const char *name, Value *v)
{
	b->sym = ir_add_symbol(b->m, SYM_OUTPUT, name, v->type);
	b->sym->onnx = b->sym->name;
	ir_emit1(b, OP_OUTPUT, v);
}

/* Whether values of forward are all finite on random data, by Value.id; false where they could not be computed. */
static bool *finite_values(Module *m)
{
	Arena *a = arena_new();
	CheckData data = {a, map_new(a)};
	CheckResult *r = check_evaluate(m, &data, 0);
	bool *ok = NEW_N(m->arena, bool, m->n_values);
	IR_FOR_OPS(m, SEC_FORWARD, op)
		for (int i = 0; i < op->n_out; i++)
			ok[op->out[i]->id] = !dtype_is_float(op->out[i]->type.dtype)
				|| all_finite(eval_value(r->env[0], op->out[i]));
	check_result_free(r);
	arena_free(a);
	return ok;
}

static bool is_read(const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->kind != OP_OUTPUT)
			return true;
	return false;
}

void random_loss(Module *m, Rng *r)
{
	Builder b = {.m = m, .section = SEC_FORWARD, .loc = loc_new(m, "tail", "", "", "")};
	bool *finite = finite_values(m);
	const Op *last = m->last[SEC_FORWARD];
	VEC(Value *) in_loss = {0}, apart = {0};
	IR_FOR_OPS(m, SEC_FORWARD, op)
		for (int i = 0; i < op->n_out; i++) {
			Value *v = op->out[i];
			bool in_use = is_read(v);
			if (v->type.kind != TYPE_TENSOR || (in_use ? !rng_one_of(r, 8) : rng_one_of(r, 10)))
				continue;
			bool counts = dtype_is_float(v->type.dtype) && (finite[v->id] || rng_one_of(r, 8));
			if (counts)
				vec_push(m->arena, &in_loss, v);
			if (!counts || rng_one_of(r, 6))
				vec_push(m->arena, &apart, v);
		}
	if (!last)
		return;
	Symbol *s = ir_add_symbol(m, SYM_PARAM, "w_tail", type_scalar(DT_F32));
	s->trainable = true;
	Value *sum = ir_read(&b, s);
	for (int i = 0; i < in_loss.n; i++)
		sum = ir_emit2(&b, OP_ADD, sum, weighed_sum(&b, r, in_loss.at[i]));
	for (int i = 0; i < apart.n; i++)
		output(&b, arena_printf(m->arena, "y%d", i), apart.at[i]);
	output(&b, "loss", sum);
}

Options random_options(uint64_t seed)
{
	Rng r = {seed * 7 + 1};
	Options o = {.graph = {.loss = "output:loss", .dropout = rng_one_of(&r, 8) ? DROPOUT_OFF : DROPOUT_AUTO},
		.sharding.world = 1, .memory.workspace = 1 << 20};
	if (rng_one_of(&r, 6))
		o.precision.param_dtype = rng_one_of(&r, 2) ? DT_F16 : DT_BF16;
	if (rng_one_of(&r, 10))
		o.precision.reduce_dtype = DT_BF16;
	o.memory.remat = rng_one_of(&r, 4) ? "block" : "none";
	o.graph.bn.all = rng_one_of(&r, 4) ? NORM_FROZEN : NORM_AUTO;
	o.graph.bn_sync = rng_one_of(&r, 6) ? BN_SYNC_SYNC : BN_SYNC_OFF;
	o.graph.loss_norm = rng_one_of(&r, 8) ? LOSS_NORM_RANK : LOSS_NORM_GLOBAL;
	o.precision.loss_scale = rng_one_of(&r, 10) ? "dynamic" : NULL;
	o.graph.clip = rng_one_of(&r, 6) ? "2" : NULL;
	return o;
}
