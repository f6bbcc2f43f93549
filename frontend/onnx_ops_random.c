/* frontend/onnx_ops_random.c: imports the ops that draw random numbers.
 *
 * Every draw is an op `draw` of the kinds uniform or normal; what scales, compares or rounds its numbers are other
 * ops, so that fusion and gradients work on them.  A draw that takes its shape from a tensor with samples has its
 * samples along the same axis.  Where only a shape is given, the axis is a guess until the whole model is known
 * (onnx_draws.c).
 *
 * The id by which a draw is told from others is its number among the random nodes; a node's attribute `seed` is hashed
 * into the upper half, so it chooses other numbers, while those still depend on the program's --seed. */
#include "frontend/onnx_import.h"

#include <math.h>
#include <string.h>

int64_t random_id(Node *n)
{
	float seed = (float)node_float(n, "seed", 0);
	int64_t upper = node_has(n, "seed") ? (int64_t)(hash_bytes(&seed, sizeof(seed), 0) & INT32_MAX) : 0;
	return upper << 32 | n->im->n_dropouts++;
}

static Value *emit_draw(Builder *b, const char *kind, int64_t id, int axis, Type type)
{
	Attr *a = attr_int(b->m, attr_int(b->m, attr_str(b->m, NULL, "kind", kind), "id", id), "axis", axis);
	return ir_emit_typed(b, OP_DRAW, 0, NULL, a, type);
}

/* Numbers whose samples may lie along the first axis. */
static Value *draw_of_shape(Node *n, const char *kind, Type type)
{
	Import *im = n->im;
	int64_t batch = im->o->infer ? 0 : im->m->batch, first = type.rank ? type.dim[0] : 0;
	int64_t dim[2] = {batch, batch ? type_numel(&type) / batch : 0};
	bool any = false;
	for (int i = 0; i < type.rank; i++)
		any = any || type.dim[i] == batch;
	bool merged = batch && !any && first > batch && first % batch == 0;
	Value *v = emit_draw(n->b, kind, random_id(n), batch && (merged || first == batch) ? 0 : -1,
		merged ? type_tensor(type.dtype, 2, dim) : type);
	if (batch)
		vec_push(im->arena, &im->draws, v->op);
	return ir_reshape(n->b, v, type.rank, type.dim);
}

/* Random numbers of the kind; like: a tensor whose samples they have, or NULL. */
static Value *draw(Node *n, const char *kind, Type type, Value *like)
{
	int64_t batch = n->im->m->batch, dim[3] = {1, batch, 1};
	Samples x = like ? samples_of(n->im->samples, like) : (Samples){0};
	if (n->im->o->infer || x.kind != SAMPLES_AXIS || !x.batches)
		return draw_of_shape(n, kind, type);
	if (type.dim[x.axis] == batch)
		return emit_draw(n->b, kind, random_id(n), x.axis, type);
	dim[0] = x.batches;
	for (int i = 0; i < x.axis; i++)
		dim[0] *= type.dim[i];
	dim[2] = type_numel(&type) / (dim[0] * batch);
	Value *v = emit_draw(n->b, kind, random_id(n), 1, type_tensor(type.dtype, 3, dim));
	return ir_reshape(n->b, v, type.rank, type.dim);
}

/* The largest number of dtype t below x. */
static double below(DType t, double x)
{
	int bits = t == DT_F64 ? 53 : t == DT_F32 ? 24 : t == DT_F16 ? 11 : 8, exponent;
	double m = frexp(dtype_round(t, x), &exponent);
	return x == 0 ? -0x1p-24 : ldexp(m, exponent) - ldexp(1, exponent - bits - (m == 0.5));
}

/* The dtype of the result: the attribute's, else that of `like`, else f32. */
static bool draw_dtype(Node *n, const Value *like, DType *t)
{
	*t = like ? like->type.dtype : DT_F32;
	if (node_has(n, "dtype") && !node_dtype(n, "dtype", t))
		return false;
	return dtype_is_float(*t) || node_error(n, "random numbers of %s, expected floats", dtype_info[*t].text);
}

static bool random_node(Node *n, bool normal, Value *like, int rank, const int64_t *dim)
{
	DType t;
	double low = node_float(n, "low", 0), high = node_float(n, "high", 1), scale = node_float(n, "scale", 1);
	if (!draw_dtype(n, like, &t))
		return false;
	Type type = type_tensor(t, rank, dim);
	if (normal) {
		Value *z = draw(n, "normal", type, like);
		double mean = node_float(n, "mean", 0);
		z = emit_scale(n->b, z, scale);
		n->out[0] = mean == 0 ? z : emit_shift(n->b, z, mean);
		return true;
	}
	if (!(low <= high))
		return node_error(n, "numbers between low=%g and high=%g", low, high);
	Value *u = emit_scale(n->b, draw(n, "uniform", type, like), high - low);
	if (low != 0 && low < high) { /* a sum may round up to high, which does not belong to the range */
		u = emit_shift(n->b, u, low);
		Attr *a = attr_float(n->b->m, NULL, "lo", low);
		u = ir_emit(n->b, OP_CLIP, 1, &u, attr_float(n->b->m, a, "hi", fmax(low, below(t, high))));
	}
	n->out[0] = low == high ? emit_shift(n->b, u, low) : u;
	return true;
}

static bool random_of_shape(Node *n, bool normal)
{
	const int64_t *dim;
	int rank = node_ints(n, "shape", &dim);
	if (!node_want(n, 0, 0))
		return false;
	if (rank < 0 || rank > IR_MAX_RANK)
		return node_error(n, rank < 0 ? "attribute shape is missing" : "its shape has %d dims", rank);
	for (int i = 0; i < rank; i++)
		if (dim[i] < 0)
			return node_error(n, "dim %d of its shape is negative", i);
	return random_node(n, normal, NULL, rank, dim);
}

static bool random_like(Node *n, bool normal)
{
	return node_want(n, 1, 1) && random_node(n, normal, n->in[0], n->in[0]->type.rank, n->in[0]->type.dim);
}

bool import_random_normal(Node *n) { return random_of_shape(n, true); }
bool import_random_uniform(Node *n) { return random_of_shape(n, false); }
bool import_random_normal_like(Node *n) { return random_like(n, true); }
bool import_random_uniform_like(Node *n) { return random_like(n, false); }

/* 1 with the probability that the operand says, else 0. */
bool import_bernoulli(Node *n)
{
	DType t;
	if (!node_want(n, 1, 1))
		return false;
	Value *p = n->in[0];
	t = p->type.dtype;
	if (!dtype_is_float(t))
		return node_error(n, "its probabilities are %s, expected floats", dtype_info[t].text);
	if (node_has(n, "dtype") && !node_dtype(n, "dtype", &t))
		return false;
	EvalTensor *known = node_known(n, 0);
	for (int64_t i = 0; known && i < type_numel(&known->type); i++)
		if (!(known->f[i] >= 0 && known->f[i] <= 1))
			return node_error(n, "its probability %g is outside [0, 1]", known->f[i]);
	p = dtype_is_half(p->type.dtype) ? ir_cast(n->b, p, DT_F32) : p;
	p = known ? p : emit_in_range(n->b, p, 0, 1, "probability");
	n->out[0] = ir_cast(n->b, ir_emit2(n->b, OP_LT, draw(n, "uniform", p->type, n->in[0]), p), t);
	return true;
}

/* dynamo writes this op also for draws without replacement, which it is not. */
static bool without_replacement(const Node *n)
{
	const char *fx = names_metadata(n->proto, "pkg.torch.onnx.fx_node");
	const char *call = fx ? strstr(fx, "aten.multinomial.default](args = (") : NULL;
	const char *end = call ? strchr(call, ')') : NULL, *replaces = call ? strstr(call, ", True") : NULL;
	return call && !(replaces && end && replaces < end);
}

/* Draws classes with replacement from unnormalised log-probabilities [B,C]: the first class whose cumulated probability
 * is above a uniform number times their sum.  That product is below the sum, since no uniform number is 1. */
bool import_multinomial(Node *n)
{
	DType t = DT_I32;
	int64_t count = node_int(n, "sample_size", 1), last = 1;
	if (!node_want(n, 1, 1) || (node_has(n, "dtype") && !node_dtype(n, "dtype", &t)))
		return false;
	Value *x = n->in[0];
	if (x->type.rank != 2 || x->type.dim[1] < 1 || count < 1 || !dtype_is_float(x->type.dtype))
		return node_error(n, "%lld draws from %s, expected at least one from floats [batch, classes]", (long long)count,
			type_str(n->im->arena, &x->type));
	if (t != DT_I32 && t != DT_I64)
		return node_error(n, "its dtype is %s, expected int32 or int64", dtype_info[t].text);
	if (count > 1 && without_replacement(n))
		return node_refuse(n, "the model draws %lld classes without replacement, and this op draws with replacement: "
			"take the largest of log-probabilities with Gumbel noise (torch.topk), or pass replacement=True",
			(long long)count);
	x = dtype_is_half(x->type.dtype) ? ir_cast(n->b, x, DT_F32) : x;
	int64_t rows = x->type.dim[0], classes = x->type.dim[1];
	Value *e = ir_emit1(n->b, OP_EXP, emit_sub(n->b, x, ir_reduce(n->b, OP_REDUCE_MAX, x, 1, &last, true)));
	Attr *a = attr_int(n->b->m, attr_int(n->b->m, NULL, "axis", 1), "exclusive", 0);
	Value *sums = ir_emit(n->b, OP_CUMSUM, 1, &e, attr_int(n->b->m, a, "reverse", 0));
	Type type = type_tensor(x->type.dtype, 2, (int64_t[]){rows, count});
	/* the largest counts as 1, so only NaN, +inf and a row that is all -inf give another sum */
	Value *sum = emit_in_range(n->b, emit_slice(n->b, sums, 1, classes - 1, 1, 1), 1, (double)classes,
		"sum of probabilities, the largest of which counts as 1:");
	Value *u = emit_mul(n->b, draw(n, "uniform", type, x), sum);
	Value *passed = ir_emit2(n->b, OP_GE, ir_reshape(n->b, u, 3, (int64_t[]){rows, count, 1}),
		ir_reshape(n->b, sums, 3, (int64_t[]){rows, 1, classes}));
	last = 2;
	n->out[0] = ir_reduce(n->b, OP_REDUCE_SUM, ir_cast(n->b, passed, t), 1, &last, false);
	return true;
}
