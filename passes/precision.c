/* passes/precision.c: moves the forward to --param-dtype, and buffers to --buffer-dtype, by explicit casts.
 *
 * Requires MODEL before the loss.  Ensures that whatever depends on parameters or on float inputs is computed in
 * the requested dtype: each read of these is cast, ops take the dtype of their operands, and outputs are cast back,
 * so that the loss is computed in f32.  A cross-entropy reads logits as they are stored and computes in f32 inside,
 * since they are the largest values of a language model and their gradient overwrites them.  Every use of a
 * parameter has a cast of its own, so that gradients of several uses are summed in f32.  Values that depend on
 * neither (tables of positions, masks) keep their dtype up to the op where they meet the others.  Batch norms compute
 * in f32, with one note: what they read and give is 16 bits wide, their parameters and all statistics are f32.
 *
 * A literal beyond the range of the dtype becomes the dtype's largest number, and values computed from such
 * literals are clipped before their cast.  A mask therefore stays finite unless it was made of infinities.
 *
 * A policy file may give the parameters of a unit a dtype of their own.  An op then computes in the dtype of the
 * parameters that it reads or, where it reads none, in that in which its operands were computed; where these differ, in
 * that of the program, --param-dtype.  So sums of what two units give keep the program's dtype.
 *
 * This pass does not ask which ops have 16-bit kernels: legalize.c puts casts around those that have none.
 * Refuses options of precision that contradict each other. */
#include "passes/passes.h"

#include <math.h>
#include <string.h>

typedef struct Precision {
	Module *m;
	Diag *d;
	DType to;          /* of the program */
	const PtrMap *said; /* Symbol -> dtype, of parameters that have one of their own */
	int n_values;      /* values of the model; those added later are not in the arrays below */
	bool *moved;       /* by Value.id: floats that depend on parameters or float inputs */
	DType *in;         /* by Value.id: of those, the dtype in which they are computed */
	bool *weight;      /* by Value.id: a parameter, or a view of one */
	Value **cast[DT_COUNT]; /* by Value.id: the same value in that dtype */
	int n_kept;        /* batch norms that stay f32 */
	const Op *kept, *last_kept; /* an op of the first and one of the last of them */
	int n_loops;       /* loops that do */
	const Op *loop;    /* the first of them */
} Precision;

/* With stored statistics a batch norm is several elementwise ops, which are recognised by the node that they come
 * from. */
static bool is_batch_norm(const Op *op)
{
	return op->kind == OP_BATCH_NORM || !strcmp(op->loc->onnx, "BatchNormalization");
}

/* Rounding to few bits: numbers on a grid stay on it only where 16-bit floats hold the whole grid, and bits are those
 * of the dtype that the model has. */
static bool is_rounding(const Op *op)
{
	static const char *const nodes[] = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear",
		"QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger"};
	for (int i = 0; i < COUNT_OF(nodes); i++)
		if (!strcmp(op->loc->onnx, nodes[i]))
			return true;
	return op->kind == OP_ROUND_TO || op->kind == OP_QUANTIZE || op->kind == OP_BITCAST;
}

/* Ops that compute statistics over many elements, whose errors would not average out (F56 of
 * docs/compatibility.md), and losses, except for their logits. */
static bool stays_f32(const Op *op)
{
	bool computes = op->kind != OP_CAST && !op_has_effect(op) && !(op_info[op->kind].flags & SRC);
	return op->kind == OP_CROSS_ENTROPY || op->kind == OP_LOOP || (computes && (is_batch_norm(op) || is_rounding(op)));
}

/* ---- casts ---- */

static Value *cast_before(Precision *p, Op *op, Value *v, DType to)
{
	if (v->type.dtype == to)
		return v;
	Builder b = {.m = p->m, .section = op->section, .before = op, .loc = loc_with_role(p->m, op->loc, "precision"),
		.name = arena_printf(p->m->arena, "%s.%s", v->name, dtype_info[to].text)};
	return ir_cast(&b, v, to);
}

static double largest(DType t)
{
	return t == DT_F16 ? 65504 : t == DT_BF16 ? 0x1.fep127 : INFINITY;
}

/* A literal in the dtype itself: a cast of a number that the dtype cannot hold would be infinite. */
static Value *literal(Precision *p, Op *op, const Value *v, DType to)
{
	const Attr *value = attr_find(v->op->attrs, "value");
	double *now = NEW_N(p->m->arena, double, value->n);
	for (int i = 0; i < value->n; i++) {
		double x = value->floats[i];
		now[i] = isfinite(x) ? fmax(fmin(x, largest(to)), -largest(to)) : x;
	}
	Type t = v->type;
	t.dtype = to;
	Builder b = {.m = p->m, .section = op->section, .before = op, .loc = v->op->loc,
		.name = arena_printf(p->m->arena, "%s.%s", v->name, dtype_info[to].text)};
	return ir_emit_typed(&b, OP_CONST, 0, NULL, attr_floats(p->m, NULL, "value", value->n, now), t);
}

/* The largest magnitude of a literal from which v is computed.  v depends on no parameter and no float input. */
static double largest_literal(const Precision *p, const Value *v, PtrMap *seen)
{
	double most = 0;
	const Attr *value = v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	if (v->id >= p->n_values || p->moved[v->id] || ptrmap_get(seen, v->op))
		return 0;
	ptrmap_put(seen, v->op, v->op);
	for (int i = 0; value && value->kind == ATTR_FLOATS && i < value->n; i++)
		most = fmax(most, fabs(value->floats[i]));
	for (int i = 0; i < v->op->n_in; i++)
		if (op_in(v->op, i))
			most = fmax(most, largest_literal(p, op_in(v->op, i), seen));
	return most;
}

/* Clips v, which was not moved yet, if it may exceed the range of `to`, as a mask of -3.4e38 does. */
static Value *within_range(Precision *p, Op *op, Value *v, DType to)
{
	double most = largest_literal(p, v, ptrmap_new(p->m->arena)), end = largest(to);
	if (most <= end || !isfinite(most))
		return v;
	Builder b = {.m = p->m, .section = op->section, .before = op, .loc = loc_with_role(p->m, op->loc, "precision"),
		.name = arena_printf(p->m->arena, "%s.finite", v->name)};
	return ir_emit(&b, OP_CLIP, 1, &v, attr_float(p->m, attr_float(p->m, NULL, "lo", -end), "hi", end));
}

/* v in dtype `to`, as an operand of op.  Casts of parameters are not shared.  Where f32 is wanted, what has more bits
 * stays. */
static Value *lowered(Precision *p, Op *op, Value *v, DType to)
{
	if (v->type.dtype == to || (to == DT_F32 && !dtype_is_half(v->type.dtype)))
		return v;
	if (v->op->kind == OP_PARAM)
		return cast_before(p, op, v, to);
	Value **known = &p->cast[to][v->id];
	if (!*known)
		*known = v->op->kind == OP_CONST ? literal(p, op, v, to)
			: cast_before(p, op, within_range(p, op, v, to), to);
	return *known;
}

/* ---- ops ---- */

/* Gives the results of op their new dtypes after its operands have changed. */
static void retype(Module *m, Op *op)
{
	Type *out = NEW_N(m->arena, Type, op->n_out);
	Buf err = {0};
	if (!ir_infer(m, op, NULL, out, &err))
		ice("%s in another dtype: %s", op_info[op->kind].text, err.at ? err.at : "");
	buf_free(&err);
	for (int i = 0; i < op->n_out; i++)
		op->out[i]->type = out[i];
}

static bool is_float(const Value *v)
{
	return v && dtype_is_float(v->type.dtype);
}

/* Whether operand i keeps its dtype: a mask that is added to scores may have another dtype than they. */
static bool keeps_operand(const Op *op, int i)
{
	return op->kind == OP_ATTENTION && i == 3;
}

/* Whether op reads operand i in 16 bits and computes in f32 inside: logits of a cross-entropy, features of a batch norm
 * that takes statistics of them. */
static bool widens_operand(const Op *op, int i)
{
	return i == 0 && (op->kind == OP_CROSS_ENTROPY || op->kind == OP_BATCH_NORM);
}

static bool reads_moved(const Precision *p, const Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		if (is_float(op_in(op, i)) && p->moved[op_in(op, i)->id] && !keeps_operand(op, i))
			return true;
	return false;
}

/* Sets *to to the dtype in which the float operands of op that are weights, or that are not, are computed, or to the
 * program's where they differ; false: there are none. */
static bool common_dtype(const Precision *p, const Op *op, bool weights, DType *to)
{
	bool found = false;
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		if (!is_float(v) || keeps_operand(op, i) || !p->moved[v->id] || p->weight[v->id] != weights)
			continue;
		if (found && *to != p->in[v->id]) {
			*to = p->to;
			return true;
		}
		*to = p->in[v->id];
		found = true;
	}
	return found;
}

/* The dtype of op: that of the weights that it reads or, where it reads none, of its other operands. */
static DType computed_in(const Precision *p, const Op *op)
{
	DType to = p->to;
	if (!common_dtype(p, op, true, &to))
		common_dtype(p, op, false, &to);
	return to;
}

static void mark(Precision *p, const Op *op, DType in)
{
	for (int i = 0; i < op->n_out; i++)
		p->in[op->out[i]->id] = in;
}

/* Takes note of a batch norm or a loop that would else compute in 16 bits. */
static void count_kept(Precision *p, const Op *op)
{
	if (op->kind == OP_LOOP) {
		p->loop = p->loop ? p->loop : op;
		p->n_loops++;
	}
	if (!is_batch_norm(op))
		return;
	p->n_kept += !p->kept || op->kind == OP_BATCH_NORM || strcmp(op->loc->node, p->last_kept->loc->node);
	p->kept = p->kept ? p->kept : op;
	p->last_kept = op;
}

static void keep_f32(Precision *p, Op *op)
{
	bool any = reads_moved(p, op);
	DType in = computed_in(p, op);
	mark(p, op, in);
	for (int i = 0; i < op->n_in; i++)
		if (is_float(op_in(op, i)) && dtype_is_half(op_in(op, i)->type.dtype) && !widens_operand(op, i))
			ir_set_in(op, i, cast_before(p, op, op_in(op, i), DT_F32));
	retype(p->m, op);
	for (int i = 0; i < op->n_out && (is_rounding(op) || op->kind == OP_LOOP); i++)
		p->moved[op->out[i]->id] = any && is_float(op->out[i]);
	if (is_batch_norm(op))
		p->moved[op->out[0]->id] = any; /* the statistics stay f32, as the running ones that they update */
	if (any && dtype_is_half(in))
		count_kept(p, op);
}

/* Whether op shows a weight in another shape. */
static bool shows_weight(const Precision *p, const Op *op)
{
	bool moves = op_info[op->kind].flags & VIEW || op->kind == OP_TRANSPOSE;
	return moves && op->n_in && op_in(op, 0) && p->weight[op_in(op, 0)->id];
}

static void lower_op(Precision *p, Op *op)
{
	DType to = computed_in(p, op);
	bool weight = shows_weight(p, op);
	for (int i = 0; i < op->n_in; i++)
		if (is_float(op_in(op, i)) && !keeps_operand(op, i))
			ir_set_in(op, i, lowered(p, op, op_in(op, i), to));
	retype(p->m, op);
	mark(p, op, to);
	for (int i = 0; i < op->n_out; i++) {
		p->moved[op->out[i]->id] = is_float(op->out[i]);
		p->weight[op->out[i]->id] = weight;
	}
}

static void move_op(Precision *p, Op *op)
{
	if (op->kind == OP_INPUT || op->kind == OP_PARAM) {
		p->moved[op->out[0]->id] = is_float(op->out[0]);
		p->weight[op->out[0]->id] = op->kind == OP_PARAM;
		mark(p, op, op->kind == OP_PARAM ? dtype_said(p->said, op->sym, p->to) : p->to);
	}
	if (op->kind == OP_OUTPUT || op->kind == OP_WRITE)
		ir_set_in(op, 0, cast_before(p, op, op_in(op, 0), op->sym->type.dtype));
	else if (stays_f32(op))
		keep_f32(p, op);
	else if (op->kind != OP_CAST && !op_has_effect(op) && reads_moved(p, op))
		lower_op(p, op);
}

static void say_kept(const Precision *p)
{
	if (p->n_kept)
		diag_warn(p->d, loc_where(p->m, p->kept->loc), "%d batch norm%s in f32 from 16-bit features: their parameters "
			"and statistics stay f32", p->n_kept, p->n_kept > 1 ? "s compute" : " computes");
	if (p->n_loops)
		diag_warn(p->d, loc_where(p->m, p->loop->loc), "%d loop%s in f32 from 16-bit operands (--loops=unroll: in the "
			"dtype of --param-dtype, where the loop is short enough)", p->n_loops,
			p->n_loops > 1 ? "s compute" : " computes");
}

static void move_params(Module *m, DType to, const ParamDtypes *dtypes, Diag *d)
{
	Precision p = {.m = m, .d = d, .to = to, .said = dtypes->param, .n_values = m->n_values,
		.moved = NEW_N(m->arena, bool, m->n_values), .in = NEW_N(m->arena, DType, m->n_values),
		.weight = NEW_N(m->arena, bool, m->n_values)};
	for (int t = 0; t < DT_COUNT; t++)
		p.cast[t] = NEW_N(m->arena, Value *, m->n_values);
	IR_FOR_OPS_SAFE(m, SEC_FORWARD, op)
		move_op(&p, op);
	say_kept(&p);
}

/* ---- buffers ---- */

/* The running statistics, whose dtype must not change. */
static PtrMap *statistics(const Module *m, Arena *scratch)
{
	static const char *const names[] = {"mean", "var"};
	PtrMap *found = ptrmap_new(scratch);
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		if (op->kind == OP_READ && is_batch_norm(op))
			ptrmap_put(found, op->sym, op->sym);
		for (int i = 0; i < COUNT_OF(names) && op->kind == OP_BATCH_NORM; i++) {
			const char *name = attr_get_str(op->attrs, names[i], NULL);
			Symbol *s = name ? ir_find_symbol(m, name) : NULL;
			if (s)
				ptrmap_put(found, s, s);
		}
	}
	return found;
}

/* Stores s in `to`, while it is computed with in the dtype that it had. */
static void store_as(Precision *p, const Symbol *s, DType was)
{
	IR_FOR_OPS_SAFE(p->m, SEC_FORWARD, op) {
		if (op->kind == OP_WRITE && op->sym == s)
			ir_set_in(op, 0, cast_before(p, op, op_in(op, 0), p->to));
		if (op->kind != OP_READ || op->sym != s)
			continue;
		Value *v = op->out[0];
		Builder b = {.m = p->m, .section = SEC_FORWARD, .before = op->next,
			.loc = loc_with_role(p->m, op->loc, "precision"),
			.name = arena_printf(p->m->arena, "%s.%s", v->name, dtype_info[was].text)};
		v->type.dtype = p->to;
		Value *now = ir_cast(&b, v, was);
		ir_replace_uses(v, now);
		ir_set_in(now->op, 0, v);
	}
}

static void store_buffers(Module *m, DType to, Diag *d)
{
	Arena *scratch = arena_new();
	PtrMap *kept = statistics(m, scratch);
	Precision p = {.m = m, .d = d, .to = to};
	int n = 0;
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		DType was = s->type.dtype;
		bool stored = s->kind == SYM_BUFFER || s->kind == SYM_DATA;
		if (!stored || !dtype_is_float(was) || dtype_info[was].bytes <= 2 || ptrmap_get(kept, s))
			continue;
		s->type.dtype = to;
		s->narrowed = s->kind == SYM_BUFFER;
		s->saved = was;
		store_as(&p, s, was);
		n++;
	}
	if (!n)
		diag_warn(d, "--buffer-dtype", "the model has no buffer of floats besides statistics of batch norms, which "
			"stay f32: %s is not used", dtype_info[to].text);
	arena_free(scratch);
}

/* ---- options ---- */

/* Reports options that contradict each other, and options without effect. */
static bool check_options(const Options *o, const ParamDtypes *dtypes, Diag *d)
{
	bool halves = o->precision.param_dtype != DT_F32 || dtypes->halves;
	bool ok = !o->precision.keep_low_precision_grads || halves;
	if (!ok)
		diag_error(d, "--keep-low-precision-grads", "gradients would be kept in --param-dtype, which is f32: give "
			"--param-dtype=bf16 or f16, or leave it out");
	if (o->precision.stochastic_rounding && !halves) {
		diag_error(d, "--stochastic-rounding", "there is nothing to round: parameters are read in --param-dtype, "
			"which is f32; give --param-dtype=bf16 or f16, or leave it out");
		ok = false;
	}
	if (o->precision.stochastic_rounding && options_infer(o)) {
		diag_error(d, "--stochastic-rounding", "evaluations round to nearest, and this program has no training "
			"step: leave it out");
		ok = false;
	}
	if (o->precision.matmul_dtype == MATMUL_FP8 && o->precision.param_dtype != DT_BF16) {
		diag_error(d, "--matmul-dtype", "fp8 is made of products that are computed in bf16, and --param-dtype is %s: "
			"give --param-dtype=bf16", dtype_info[o->precision.param_dtype].text);
		ok = false;
	}
	LossScale scale;
	if (!loss_scale_parse(o->precision.loss_scale, &scale, d))
		return false;
	if (scale.kind != LOSS_SCALE_NONE && !halves && o->precision.reduce_dtype == DT_F32)
		diag_warn(d, "--loss-scale", "nothing is computed or sent in 16 bits, f32 gradients need no scale");
	return ok;
}

bool pass_precision(Module *m, const Options *o, Diag *d)
{
	ParamDtypes dtypes;
	Arena *scratch = arena_new();
	bool ok = policy_dtypes(m, o, &dtypes, scratch, d) && check_options(o, &dtypes, d);
	if (ok && o->precision.buffer_dtype != DT_F32)
		store_buffers(m, o->precision.buffer_dtype, d);
	if (ok && (o->precision.param_dtype != DT_F32 || dtypes.halves))
		move_params(m, o->precision.param_dtype, &dtypes, d);
	arena_free(scratch);
	return ok;
}
