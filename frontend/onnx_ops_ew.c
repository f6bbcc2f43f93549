/* frontend/onnx_ops_ew.c: elementwise ops that the IR has, or that take a few of its ops. */
#include "frontend/onnx_blocks.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

bool import_ew_unary(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = ir_emit1(n->b, n->kind, n->in[0]);
	return true;
}

/* Before opset 7 the attribute axis says at which dim of the first operand the second operand's first dim stands. */
static Value *align_old(Node *n, Value *x, Value *y)
{
	int64_t dim[IR_MAX_RANK];
	if (n->opset >= 7 || !node_has(n, "axis") || y->type.rank >= x->type.rank)
		return y;
	int axis = node_axis(n, node_int(n, "axis", 0), x->type.rank), rank = x->type.rank - MAX(axis, 0);
	if (axis < 0 || rank < y->type.rank)
		return &n->im->m->poison;
	for (int i = 0; i < rank; i++)
		dim[i] = i < y->type.rank ? y->type.dim[i] : 1;
	return ir_reshape(n->b, y, rank, dim);
}

/* Whether all elements of v are one number, known when compiling. */
static bool is_number(Node *n, Value *v, double *number)
{
	while (v->op->kind == OP_BROADCAST)
		v = v->op->in[0].value;
	const EvalTensor *t = eval_constant(n->im->eval, v, 1);
	if (t && type_numel(&t->type) == 1)
		*number = dtype_is_float(t->type.dtype) ? t->f[0] : (double)t->i[0];
	return t && type_numel(&t->type) == 1;
}

/* Whether the power of `exponent` is a norm's root: of a sum of |x|^p, p = 1 / exponent above 1, or x^p for even p. */
static bool is_norm_root(Node *n, double exponent)
{
	const Op *sum = n->in[0]->op, *power = sum && sum->kind == OP_REDUCE_SUM ? op_in(sum, 0)->op : NULL;
	double p;
	return power && power->kind == OP_POW && is_number(n, power->in[1].value, &p) && p > 1
		&& fabs(p * exponent - 1) < 1e-6 && (fmod(p, 2) == 0 || op_in(power, 0)->op->kind == OP_ABS);
}

bool import_pow(Node *n)
{
	double exponent;
	if (!node_want(n, 2, 2))
		return false;
	if (is_number(n, n->in[1], &exponent) && is_norm_root(n, exponent))
		n->out[0] = emit_norm_root(n->b, n->in[0], 1 / exponent);
	else
		n->out[0] = ir_emit2(n->b, OP_POW, n->in[0], align_old(n, n->in[0], n->in[1]));
	return true;
}

/* Whether x is a sum or mean of squares, times a number: of an exporter's standard deviation or norm. */
static bool is_of_squares(Node *n, const Value *x)
{
	double number;
	while (x->op->kind == OP_RESHAPE)
		x = op_in(x->op, 0);
	while ((x->op->kind == OP_MUL || x->op->kind == OP_DIV) && is_number(n, x->op->in[1].value, &number))
		x = op_in(x->op, 0);
	const Op *square = x->op->kind == OP_REDUCE_SUM || x->op->kind == OP_REDUCE_MEAN ? op_in(x->op, 0)->op : NULL;
	return square && ((square->kind == OP_MUL && op_in(square, 0) == op_in(square, 1))
		|| (square->kind == OP_POW && is_number(n, square->in[1].value, &number) && number == 2));
}

bool import_sqrt(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = is_of_squares(n, n->in[0]) ? emit_norm_root(n->b, n->in[0], 2) : ir_emit1(n->b, OP_SQRT, n->in[0]);
	return true;
}

/* max(log(x), lo), as binary cross-entropy has it with lo = -100.  A gradient of 0 comes back to where the maximum is
 * lo, and times that of log, which is infinite at 0, it would be NaN.  The log of a number below 0 stays NaN. */
static Value *clipped_log(Node *n, Value *y, double lo)
{
	Value *x = op_in(y->op, 0), *low = emit_float(n->b, x, lo);
	Value *none = ir_emit2(n->b, OP_AND, ir_emit2(n->b, OP_GE, x, emit_float(n->b, x, 0)),
		ir_emit2(n->b, OP_LE, x, emit_float(n->b, x, exp(lo))));
	Value *log = ir_emit1(n->b, OP_LOG, ir_emit3(n->b, OP_WHERE, none, emit_float(n->b, x, 1), x));
	return ir_emit3(n->b, OP_WHERE, none, low, log);
}

bool import_ew_binary(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	n->out[0] = ir_emit2(n->b, n->kind, n->in[0], align_old(n, n->in[0], n->in[1]));
	return true;
}

/* Whether the last operand is one known number and the result has the shape of the first. */
static bool has_bound(Node *n, double *bound)
{
	const Type *x = &n->in[0]->type, *y = &n->in[n->n_in - 1]->type;
	bool fits = n->n_in == 2 && dtype_is_float(x->dtype) && y->rank <= x->rank;
	for (int i = 1; fits && i <= y->rank; i++)
		fits = y->dim[y->rank - i] == 1 || y->dim[y->rank - i] == x->dim[x->rank - i];
	return fits && is_number(n, n->in[1], bound);
}

/* PyTorch's clamp to one known number, which dynamo writes as Max or Min; it passes gradients at its bound, which
 * PyTorch's maximum and minimum halve. */
static bool is_clamp(Node *n, double *bound)
{
	return node_is_call(n, "aten.clamp") && has_bound(n, bound);
}

bool import_ew_variadic(Node *n)
{
	OpKind kind = n->kind;
	if (!node_want(n, 1, n->n_in))
		return false;
	Value *v = n->in[0];
	double bound;
	if (kind == OP_MAX && v->op->kind == OP_LOG && has_bound(n, &bound)) {
		n->out[0] = clipped_log(n, n->in[0], bound);
		return true;
	}
	if (is_clamp(n, &bound)) {
		n->out[0] = kind == OP_MAX ? emit_clip(n->b, v, bound, INFINITY) : emit_clip(n->b, v, -INFINITY, bound);
		return true;
	}
	for (int i = 1; i < n->n_in; i++)
		v = ir_emit2(n->b, kind, v, n->in[i]);
	n->out[0] = strcmp(n->op, "Mean") ? v : emit_scale(n->b, v, 1.0 / n->n_in);
	return true;
}

bool import_identity(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	n->out[0] = n->in[0];
	return true;
}

bool import_mod(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	Attr *a = attr_int(n->b->m, NULL, "fmod", node_int(n, "fmod", 0));
	n->out[0] = ir_emit(n->b, OP_MOD, 2, n->in, a);
	return true;
}

bool import_bit_shift(Node *n)
{
	const char *direction = node_str(n, "direction", "");
	bool left = !strcmp(direction, "LEFT");
	if (!node_want(n, 2, 2))
		return false;
	if (!left && strcmp(direction, "RIGHT"))
		return node_error(n, "direction is \"%s\", neither LEFT nor RIGHT", direction);
	n->out[0] = ir_emit2(n->b, left ? OP_SHL : OP_SHR, n->in[0], n->in[1]);
	return true;
}

bool import_is_inf(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	Attr *a = attr_int(n->b->m, NULL, "pos", node_int(n, "detect_positive", 1));
	n->out[0] = ir_emit(n->b, OP_ISINF, 1, n->in, attr_int(n->b->m, a, "neg", node_int(n, "detect_negative", 1)));
	return true;
}

bool import_where(Node *n)
{
	if (!node_want(n, 3, 3))
		return false;
	n->out[0] = ir_emit3(n->b, OP_WHERE, n->in[0], n->in[1], n->in[2]);
	return true;
}

/* TorchScript's exporter writes PyTorch's own number of bfloat16, which is ONNX's of a complex type, where it promotes
 * an operand to bfloat16.  It exports no complex tensors. */
static bool is_torch_bf16(Node *n)
{
	enum { TORCH_BF16 = 15 };
	if (!n->im->pytorch || node_int(n, "to", 0) != TORCH_BF16 || names_metadata(n->proto, "pkg.torch.onnx.fx_node"))
		return false;
	diag_warn(n->im->d, loc_where(n->im->m, n->b->loc), "it casts to %s, which PyTorch's exporter writes for bfloat16: "
		"bf16 is computed", onnx_dtype_name(TORCH_BF16));
	return true;
}

bool import_cast(Node *n)
{
	DType to;
	if (node_want(n, 1, 1) && is_torch_bf16(n)) {
		n->out[0] = ir_cast(n->b, n->in[0], DT_BF16);
		return true;
	}
	if (!node_want(n, 1, 1) || !node_element(n, "to", &to, &n->out_narrow[0]))
		return false;
	n->out[0] = emit_cast(n, n->in[0], to, n->out_narrow[0]);
	return n->out[0] != &n->im->m->poison;
}

bool import_cast_like(Node *n)
{
	if (!node_want(n, 2, 2))
		return false;
	n->out_narrow[0] = n->in_narrow[1];
	n->out[0] = emit_cast(n, n->in[0], n->in[1]->type.dtype, n->out_narrow[0]);
	return n->out[0] != &n->im->m->poison;
}

/* ---- Clip ---- */

/* A bound as operand (from opset 11) or attribute.  If its number is known, *known is true and *v is the number. */
static Value *clip_bound(Node *n, int operand, const char *attr, bool *known, double *v)
{
	if (n->opset < 11) {
		*v = node_float(n, attr, *v);
		return NULL;
	}
	Value *bound = node_in(n, operand);
	EvalTensor *t = bound ? node_known(n, operand) : NULL;
	*known = !bound || (t && type_numel(&t->type) == 1);
	if (t && *known)
		*v = dtype_is_float(t->type.dtype) ? t->f[0] : (double)t->i[0];
	return bound ? ir_reshape(n->b, bound, 0, NULL) : NULL;
}

bool import_clip(Node *n)
{
	bool known_lo = true, known_hi = true;
	double lo = -INFINITY, hi = INFINITY;
	if (!node_want(n, 1, n->opset < 11 ? 1 : 3))
		return false;
	Value *x = n->in[0];
	Value *vlo = clip_bound(n, 1, "min", &known_lo, &lo), *vhi = clip_bound(n, 2, "max", &known_hi, &hi);
	if (known_lo && known_hi && dtype_is_float(x->type.dtype)) {
		Attr *a = attr_float(n->b->m, attr_float(n->b->m, NULL, "lo", lo), "hi", hi);
		if (x->op->kind == OP_LOG && isfinite(lo) && isinf(hi))
			n->out[0] = clipped_log(n, x, lo);
		else
			n->out[0] = isinf(lo) && isinf(hi) ? x : ir_emit(n->b, OP_CLIP, 1, &x, a);
		return true;
	}
	if (vlo)
		x = ir_emit2(n->b, OP_MAX, x, vlo);
	if (vhi)
		x = ir_emit2(n->b, OP_MIN, x, vhi);
	n->out[0] = x;
	return true;
}

/* ---- Dropout ---- */

static bool dropout_args(Node *n, double *p, DropoutSays *says)
{
	EvalTensor *ratio = node_known(n, 1), *train = node_known(n, 2);
	*p = n->opset < 12 ? node_float(n, "ratio", 0.5) : 0.5;
	*says = DROPOUT_SAYS_NOTHING;
	if ((node_in(n, 1) && !ratio) || (node_in(n, 2) && !train))
		return node_refuse(n, "its ratio or training_mode depends on data");
	if (ratio && type_numel(&ratio->type) == 1 && dtype_is_float(ratio->type.dtype))
		*p = ratio->f[0];
	if (train && type_numel(&train->type) == 1)
		*says = train->i[0] ? DROPOUT_SAYS_TRAIN : DROPOUT_SAYS_EVAL;
	if (n->opset < 7)
		*says = node_int(n, "is_test", 0) ? DROPOUT_SAYS_EVAL : DROPOUT_SAYS_TRAIN;
	return *p >= 0 && *p < 1 ? true : node_error(n, "ratio %g is outside [0, 1)", *p);
}

/* Refuses a dropout for which no mask exists that belongs to a sample and does not depend on the batch size. */
static bool refuse_dropout(Node *n, const Samples *x)
{
	static const char otherwise[] = "so masks would depend on the batch size: give --dropout=off";
	const Op *op = x->mixes ? x->mixes : x->kind == SAMPLES_LOST ? x->lost : NULL;
	const char *at = !op ? "" : arena_printf(n->im->arena, "%s \"%s\"", *op->loc->onnx ? op->loc->onnx
		: op_info[op->kind].text, str_escape(n->im->arena, ESCAPE_IR, op->loc->node));
	if (x->mixes)
		return node_refuse(n, "samples have met before it, in %s, %s.  Is the first axis of the inputs, %" PRId64
			" long, that of the samples (batch_first=True)?", at, otherwise, n->im->m->batch);
	if (op)
		return node_refuse(n, "the sample axis is lost before it, in %s, %s", at, otherwise);
	return node_refuse(n, "%s, %s", x->kind == SAMPLES_NONE ? "no input of the model has a sample axis"
		: "the sample axis is lost before it", otherwise);
}

/* Reshapes x to [k, samples, rest], which numbers the elements of a sample independently of the batch size. */
static Value *by_samples(Builder *b, Value *x, const Samples *rows)
{
	int64_t dim[3] = {rows->batches, b->m->batch, 1};
	for (int i = 0; i < rows->axis; i++)
		dim[0] *= x->type.dim[i];
	dim[2] = type_numel(&x->type) / (dim[0] * dim[1]);
	return ir_reshape(b, x, 3, dim);
}

bool emit_dropout(Node *n, Value *x, double p, DropoutSays says)
{
	Import *im = n->im;
	bool acts = modes_dropout_acts(n, p, says);
	int64_t id = im->n_dropouts++;
	Type type = x->type, mask = x->type;
	mask.dtype = DT_BOOL;
	if (!acts) {
		n->out[0] = x;
		if (n->n_out > 1)
			n->out[1] = ir_const_full(n->b, mask, 1);
		return true;
	}
	Samples rows = samples_of(im->samples, x);
	/* x has no sample axis, as a table of positions: one mask serves all samples */
	bool none = im->o->infer || (rows.kind == SAMPLES_NONE && im->m->batch);
	if (!none && (rows.kind != SAMPLES_AXIS || !rows.batches || rows.mixes))
		return refuse_dropout(n, &rows);
	bool alone = none || type.dim[rows.axis] == im->m->batch;
	x = alone ? x : by_samples(n->b, x, &rows);
	Attr *a = attr_int(im->m, attr_float(im->m, NULL, "p", p), "id", id);
	a = attr_int(im->m, a, "axis", none ? -1 : alone ? rows.axis : 1);
	n->out[0] = ir_reshape(n->b, ir_emit(n->b, OP_DROPOUT, 1, &x, a), type.rank, type.dim);
	if (n->n_out > 1)
		n->out[1] = ir_reshape(n->b, ir_emit(n->b, OP_DROPOUT_MASK, 1, &x, a), type.rank, type.dim);
	return true;
}

bool import_dropout(Node *n)
{
	double p;
	DropoutSays says;
	return node_want(n, 1, 3) && dropout_args(n, &p, &says) && emit_dropout(n, n->in[0], p, says);
}
