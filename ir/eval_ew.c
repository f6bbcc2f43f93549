/* ir/eval_ew.c: elementwise ops, one element at a time; floats in f64, integers in int64.
 *
 * Rows of ir/ops.def give an op's value as a C expression of x and y; this file has what these expressions call.
 * Integers are stored sign- or zero-extended.  u64 keeps its bits, so the few ops for which the sign bit matters look
 * at the dtype. */
#include "ir/eval.h"

#include <math.h>
#include <string.h>

/* ---- floats to floats ---- */

static double sign_of(double x) { return x != x ? x : (x > 0) - (x < 0); }
static double sigmoid(double x) { return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x)); }
static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double max_of(double x, double y) { return x != x ? x : y != y ? y : x > y ? x : y; }
static double min_of(double x, double y) { return x != x ? x : y != y ? y : x < y ? x : y; }

static const double SQRT_HALF = 0.70710678118654752440, TWO_OVER_SQRT_PI = 1.12837916709551257390;
enum { GELU_ERF, GELU_TANH };

static double gelu(const Op *op, double x)
{
	if (attr_get_int(op->attrs, "tanh", 0) == GELU_ERF)
		return 0.5 * x * erfc(-x * SQRT_HALF);
	return 0.5 * x * (1 + tanh(SQRT_HALF * TWO_OVER_SQRT_PI * (x + 0.044715 * x * x * x)));
}

/* Phi(x) + x phi(x), or the derivative of the tanh form. */
static double gelu_grad(const Op *op, double x, double dy)
{
	if (attr_get_int(op->attrs, "tanh", 0) == GELU_ERF)
		return dy * (0.5 * erfc(-x * SQRT_HALF) + x * exp(-0.5 * x * x) * 0.5 * SQRT_HALF * TWO_OVER_SQRT_PI);
	double c = SQRT_HALF * TWO_OVER_SQRT_PI, t = tanh(c * (x + 0.044715 * x * x * x));
	return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x));
}

static double clip(const Op *op, double x)
{
	double lo = attr_get_float(op->attrs, "lo", 0), hi = attr_get_float(op->attrs, "hi", 0);
	double low = x < lo ? lo : x;
	return low > hi ? hi : low;
}

static double float_mod(const Op *op, double x, double y)
{
	double r = fmod(x, y);
	if (attr_get_int(op->attrs, "fmod", 0))
		return r;
	return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

static bool is_infinite(const Op *op, double x)
{
	return isinf(x) && attr_get_int(op->attrs, x > 0 ? "pos" : "neg", 1);
}


/* ---- integers to integers ---- */

static bool is_u64(const Op *op, int operand)
{
	return op_in(op, operand)->type.dtype == DT_U64;
}

static int64_t int_less(const Op *op, int64_t x, int64_t y)
{
	return is_u64(op, 0) ? (uint64_t)x < (uint64_t)y : x < y;
}

/* Division by zero gives 0; the most negative number by -1 wraps. */
static int64_t int_div(const Op *op, int64_t x, int64_t y)
{
	if (y == 0)
		return 0;
	if (is_u64(op, 0))
		return (int64_t)((uint64_t)x / (uint64_t)y);
	return y == -1 ? (int64_t)-(uint64_t)x : x / y;
}

static int64_t int_mod(const Op *op, int64_t x, int64_t y)
{
	if (y == 0 || (y == -1 && !is_u64(op, 0)))
		return 0;
	if (is_u64(op, 0))
		return (int64_t)((uint64_t)x % (uint64_t)y);
	int64_t r = x % y;
	return !attr_get_int(op->attrs, "fmod", 0) && r && (r < 0) != (y < 0) ? r + y : r;
}

static int64_t int_shl(int64_t x, int64_t y)
{
	return y < 0 || y > 63 ? 0 : (int64_t)((uint64_t)x << y);
}

static int64_t int_shr(const Op *op, int64_t x, int64_t y)
{
	if (y < 0 || y > 63)
		return x < 0 && !is_u64(op, 0) ? -1 : 0;
	return is_u64(op, 0) ? (int64_t)((uint64_t)x >> y) : x >> y;
}

static int64_t int_clip(const Op *op, int64_t x)
{
	double lo = attr_get_float(op->attrs, "lo", 0), hi = attr_get_float(op->attrs, "hi", 0);
	int64_t low = (double)x < lo ? int_of_double(lo) : x;
	return (double)low > hi ? int_of_double(hi) : low;
}

static int64_t int_not(const Op *op, int64_t x)
{
	return op_in(op, 0)->type.dtype == DT_BOOL ? !x : ~x;
}

/* Two's complement arithmetic: add, sub and mul wrap. */
#define WRAP(x, sign, y) (int64_t)((uint64_t)(x) sign (uint64_t)(y))


/* ---- ops whose operands differ in dtype ---- */

static double to_float(DType from, Scalar s)
{
	if (dtype_is_float(from))
		return s.f;
	return from == DT_U64 ? (double)(uint64_t)s.i : (double)s.i;
}

static int64_t to_int(DType to, double x)
{
	if (to == DT_U64 && x >= 0x1p63 && x < 0x1p64)
		return (int64_t)(uint64_t)x;
	return int_of_double(x);
}

static Scalar ew_cast(const Op *op, const Scalar *s)
{
	DType from = op_in(op, 0)->type.dtype, to = attr_find(op->attrs, "to")->dtype;
	if (dtype_is_float(to))
		return (Scalar){.f = to_float(from, s[0])};
	if (to == DT_BOOL)
		return (Scalar){.i = dtype_is_float(from) ? s[0].f != 0 : s[0].i != 0};
	return dtype_is_float(from) ? (Scalar){.i = to_int(to, s[0].f)} : s[0];
}

static int64_t int_power(int64_t x, int64_t y)
{
	uint64_t r = 1, base = (uint64_t)x;
	if (y < 0)
		return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;
	for (; y; y >>= 1, base *= base)
		if (y & 1)
			r *= base;
	return (int64_t)r;
}

static Scalar ew_pow(const Op *op, const Scalar *s)
{
	DType base = op_in(op, 0)->type.dtype, power = op_in(op, 1)->type.dtype;
	if (dtype_is_float(base))
		return (Scalar){.f = pow(s[0].f, to_float(power, s[1]))};
	if (dtype_is_float(power))
		return (Scalar){.i = to_int(base, pow(to_float(base, s[0]), s[1].f))};
	return (Scalar){.i = int_power(s[0].i, s[1].i)};
}

static Scalar ew_where(const Op *op, const Scalar *s)
{
	(void)op;
	return s[0].i ? s[1] : s[2];
}

/* ---- the table ---- */

static inline Scalar scalar_of_float(double x) { return (Scalar){.f = x}; }
static inline Scalar scalar_of_int(int64_t x) { return (Scalar){.i = x}; }
#define SCALAR(value) _Generic((value), double: scalar_of_float, default: scalar_of_int)(value)

#define FN(id, field, T, value) \
	static Scalar field##_##id(const Op *op, const Scalar *s) \
	{ \
		T x = s[0].field, y = s[1].field; \
		(void)op, (void)x, (void)y; \
		return SCALAR(value); \
	}
#define OP(...)
#define EW_FLOAT(id, text, in, flags, first, attrs, shape, grad, value, doc) FN(id, f, double, value)
#define EW_INT(id, text, in, flags, first, attrs, shape, grad, value, doc) FN(id, i, int64_t, value)
#define EW_BOTH(id, text, in, flags, first, attrs, shape, grad, of_floats, of_ints, doc) \
	FN(id, f, double, of_floats) FN(id, i, int64_t, of_ints)
#include "ir/ops.def"

enum { OF_FLOAT, OF_INT };
static ScalarFn *const scalar_fn[OP_COUNT][2] = {
#define OP(...)
#define EW_FLOAT(id, ...) [OP_##id] = {f_##id, NULL},
#define EW_INT(id, ...) [OP_##id] = {NULL, i_##id},
#define EW_BOTH(id, ...) [OP_##id] = {f_##id, i_##id},
#include "ir/ops.def"
	[OP_CAST] = {ew_cast, ew_cast}, [OP_BITCAST] = {eval_bitcast, eval_bitcast},
	[OP_POW] = {ew_pow, ew_pow}, [OP_WHERE] = {ew_where, ew_where},
};

ScalarFn *eval_scalar_fn(OpKind kind, DType of)
{
	return scalar_fn[kind][dtype_is_float(of) ? OF_FLOAT : OF_INT];
}

Scalar eval_fit(DType t, Scalar s, bool round)
{
	int spare = 64 - 8 * dtype_info[t].bytes;
	switch (dtype_info[t].kind) {
	case CLASS_FLOAT:
		if (round)
			s.f = dtype_round(t, s.f);
		break;
	case CLASS_INT: s.i = (int64_t)((uint64_t)s.i << spare) >> spare; break;
	case CLASS_UINT: s.i = (int64_t)((uint64_t)s.i << spare >> spare); break;
	case CLASS_BOOL: s.i = s.i != 0; break;
	case CLASS_SCALED: break; /* rules round */
	}
	return s;
}

void eval_broadcast_strides(const Type *x, const Type *to, int64_t *stride)
{
	int64_t own[IR_MAX_RANK];
	type_strides(x, own);
	for (int i = 0; i < to->rank; i++) {
		int k = i - (to->rank - x->rank);
		stride[i] = k < 0 || x->dim[k] == 1 ? 0 : own[k];
	}
}

enum { EW_MAX_IN = 3 };

bool eval_element(const Op *op, const double *in, double *out)
{
	ScalarFn *fn = op->n_in ? eval_scalar_fn(op->kind, op_in(op, op->n_in - 1)->type.dtype) : NULL;
	DType to = op->out[0]->type.dtype;
	Scalar s[EW_MAX_IN] = {0};
	if (!fn || op->n_in > EW_MAX_IN)
		return false;
	for (int i = 0; i < op->n_in; i++)
		s[i] = dtype_is_float(op_in(op, i)->type.dtype) ? (Scalar){.f = in[i]} : (Scalar){.i = (int64_t)in[i]};
	Scalar y = eval_fit(to, fn(op, s), true);
	*out = dtype_is_float(to) ? y.f : (double)y.i;
	return dtype_is_float(to) || fabs(*out) <= 0x1p53;
}

RULE(ew)
{
	ScalarFn *fn = eval_scalar_fn(op->kind, in[op->n_in - 1]->type.dtype);
	int64_t stride[EW_MAX_IN][IR_MAX_RANK];
	if (!fn)
		return false;
	for (int i = 0; i < op->n_in; i++)
		eval_broadcast_strides(&in[i]->type, &out[0]->type, stride[i]);
	for (Walk w = walk_over(out[0]->type.rank, out[0]->type.dim); w.left; walk_next(&w)) {
		Scalar s[EW_MAX_IN] = {0};
		for (int i = 0; i < op->n_in; i++)
			s[i] = eval_get(in[i], walk_offset(&w, stride[i]));
		eval_put(out[0], w.k, fn(op, s));
	}
	return true;
}

/* ---- fused: evaluates the body element by element ---- */

typedef struct BodyOp { ScalarFn *fn; const Op *op; int in[EW_MAX_IN], to; DType dtype; } BodyOp;
typedef struct Body {
	BodyOp *at;
	int n, n_registers;
	int *yield; /* registers of the results */
	Scalar *reg;
} Body;

static bool body_read(EvalEnv *e, const Op *op, Body *b)
{
	PtrMap *reg = ptrmap_new(e->arena); /* Value -> register + 1 */
	int n_ops = 0;
	for (const Op *inner = op->body_first; inner; inner = inner->next)
		n_ops++;
	b->at = NEW_N(e->arena, BodyOp, n_ops);
	b->reg = NEW_N(e->arena, Scalar, op->n_in + n_ops);
	b->yield = NEW_N(e->arena, int, op->n_out);
	for (int i = 0; i < op->n_in; i++)
		ptrmap_put(reg, op->args[i], (void *)(intptr_t)++b->n_registers);
	for (const Op *inner = op->body_first; inner; inner = inner->next) {
		int of[EW_MAX_IN] = {0}, to = b->n_registers;
		if (inner->kind != OP_YIELD && inner->n_in > EW_MAX_IN)
			return false;
		for (int i = 0; i < inner->n_in; i++) {
			int r = (int)(intptr_t)ptrmap_get(reg, op_in(inner, i)) - 1;
			if (inner->kind == OP_YIELD)
				b->yield[i] = r;
			else
				of[i] = r;
		}
		if (inner->kind == OP_YIELD)
			return true;
		const Value *v = inner->out[0];
		BodyOp *next = &b->at[b->n++];
		*next = (BodyOp){.op = inner, .in = {of[0], of[1], of[2]}, .to = to, .dtype = v->type.dtype};
		if (inner->n_in && inner->kind != OP_BROADCAST)
			next->fn = eval_scalar_fn(inner->kind, op_in(inner, inner->n_in - 1)->type.dtype);
		if (!next->fn && inner->kind != OP_BROADCAST && inner->kind != OP_CONST)
			return false;
		ptrmap_put(reg, v, (void *)(intptr_t)++b->n_registers);
	}
	return false;
}

static Scalar body_step(const BodyOp *step, const Scalar *reg)
{
	if (step->op->kind == OP_CONST) {
		const Attr *a = attr_find(step->op->attrs, "value");
		return a->kind == ATTR_FLOATS ? (Scalar){.f = a->floats[0]} : (Scalar){.i = a->ints[0]};
	}
	if (!step->fn)
		return reg[step->in[0]];
	return step->fn(step->op, (Scalar[]){reg[step->in[0]], reg[step->in[1]], reg[step->in[2]]});
}

RULE(fused)
{
	Body b = {0};
	if (!op->n_out)
		return true;
	if (!body_read(e, op, &b))
		return false;
	int64_t (*stride)[IR_MAX_RANK] = arena_alloc(e->arena, sizeof(*stride) * (size_t)MAX(op->n_in, 1));
	for (int i = 0; i < op->n_in; i++)
		eval_broadcast_strides(&in[i]->type, &out[0]->type, stride[i]);
	for (Walk w = walk_over(out[0]->type.rank, out[0]->type.dim); w.left; walk_next(&w)) {
		for (int i = 0; i < op->n_in; i++)
			b.reg[i] = eval_get(in[i], walk_offset(&w, stride[i]));
		for (int i = 0; i < b.n; i++)
			b.reg[b.at[i].to] = eval_fit(b.at[i].dtype, body_step(&b.at[i], b.reg),
				eval_rounds(e, b.at[i].dtype));
		for (int i = 0; i < op->n_out; i++)
			eval_put(out[i], w.k, b.reg[b.yield[i]]);
	}
	return true;
}
