/* ir/eval.h: what the rules of the reference evaluator share.  Private to ir/eval*.c.
 *
 * A rule reads in[] (NULL = absent operand) and fills out[], which is allocated and zeroed unless the op's results
 * alias an operand.  It returns false when the data is bad, such as an index out of range. */
#ifndef SHARDC_EVAL_H
#define SHARDC_EVAL_H

#include "ir/ir.h"

#define UNUSED __attribute__((unused))
#define RULE(name) \
	bool eval_##name(UNUSED EvalEnv *e, UNUSED const Op *op, UNUSED EvalTensor *const *in, \
		UNUSED EvalTensor *const *out)

#define OP(id, text, imin, imax, n_out, flags, first, last, attrs, shape, grad, eval, ...) EvalFn eval_##eval;
#include "ir/ops.def"

struct EvalEnv {
	Module *m;
	Arena *arena;
	bool round, exact, even_dropout;
	const EvalEnv *through; /* what eval_set_through was given; NULL = THROUGH ops round */
	PtrMap *pinned;       /* Value -> EvalTensor; NULL = none */
	uint64_t seed, step, sample0;
	PtrMap *symbols;      /* Symbol -> EvalTensor */
	EvalTensor *args;     /* of a step of a loop: its arguments; NULL = it is none */
	EvalTensor **value;   /* by Value.id */
	int64_t *refused;     /* by Value.id: the largest max_numel that eval_constant failed at; -1 = none */
	bool *constant;       /* by Value.id: value[] was computed from constants alone */
	int n;                /* length of these three tables */
	double folded;        /* steps that eval_constant has taken so far; EVAL_STEPS are the limit */
};

/* The most steps that eval_constant takes for all constants of one environment: some seconds, and at most four
 * gigabytes.  Without a limit, a model of a few hundred bytes could ask for years. */
#define EVAL_STEPS 0x1p34

/* eval_nn.c: the product of in[0] and in[1], transposed as op's ta and tb say, plus in[2], a bias, and in[3], a sum;
 * these may be NULL. */
void eval_product(const Op *op, EvalTensor *const *in, EvalTensor *out);

/* One element: f for dtypes of floats, i for the others. */
typedef union Scalar { double f; int64_t i; } Scalar;

/* eval_ew.c: one element of an elementwise op; s[k] is an element of operand k. */
typedef Scalar ScalarFn(const Op *op, const Scalar *s);
ScalarFn *eval_scalar_fn(OpKind kind, DType of); /* of: dtype of the last operand; NULL = the op is not elementwise */
/* Whether floats of dtype t are rounded to it.  16-bit floats always are, because their values are defined that way,
 * unless the environment is exact. */
static inline bool eval_rounds(const EvalEnv *e, DType t)
{
	if (e->exact)
		return false;
	return dtype_info[t].bytes == 2 || (e->round && t != DT_F64);
}
/* The nearest value that an element of dtype t can hold: integers wrap; floats are rounded if `round` is set. */
Scalar eval_fit(DType t, Scalar s, bool round);

static inline Scalar eval_get(const EvalTensor *t, int64_t at)
{
	if (dtype_is_float(t->type.dtype))
		return (Scalar){.f = t->f[at]};
	return (Scalar){.i = t->i[at]};
}

static inline void eval_put(EvalTensor *t, int64_t at, Scalar s)
{
	if (dtype_is_float(t->type.dtype))
		t->f[at] = s.f;
	else
		t->i[at] = s.i;
}

/* eval_f8.c: a scale of weights, and a tensor of weights that is divided by its scale and rounded to e4m3; false where
 * a weight has no value. */
bool eval_weight_scale(EvalEnv *e, const Symbol *scale, float *out);
bool eval_weight_f8(EvalEnv *e, const Symbol *param, EvalTensor *t);

/* eval_quant.c: the value of a THROUGH op as eval_set_through says; false where e->through lacks its values. */
bool eval_through(const EvalEnv *e, const Op *op, EvalTensor *const *in, EvalTensor *out);
/* The values of elementwise ops of ops.def. */
double eval_round_to(const Op *op, double x);
double eval_quantize(const Op *op, double x, double zero);
Scalar eval_bitcast(const Op *op, const Scalar *s);

/* Visits all index tuples of a shape in row-major order:  for (Walk w = walk_over(n, dim); w.left; walk_next(&w)) */
typedef struct Walk {
	int rank;
	const int64_t *dim;
	int64_t at[IR_MAX_RANK];
	int64_t k, left; /* k: position of the tuple; left: tuples not yet visited, including this one */
} Walk;

static inline Walk walk_over(int rank, const int64_t *dim)
{
	Walk w = {.rank = rank, .dim = dim, .left = 1};
	for (int i = 0; i < rank; i++)
		w.left *= dim[i];
	return w;
}

static inline void walk_next(Walk *w)
{
	w->k++;
	w->left--;
	for (int i = w->rank - 1; i >= 0; i--) {
		if (++w->at[i] < w->dim[i])
			return;
		w->at[i] = 0;
	}
}

static inline int64_t walk_offset(const Walk *w, const int64_t *stride)
{
	int64_t at = 0;
	for (int i = 0; i < w->rank; i++)
		at += w->at[i] * stride[i];
	return at;
}

/* The strides of x as if it were broadcast to the shape of `to`; 0 where x repeats. */
void eval_broadcast_strides(const Type *x, const Type *to, int64_t *stride);

/* The dims of x as [outer, axis, inner]. */
typedef struct Axis { int64_t outer, n, inner; } Axis;
Axis eval_axis(const Type *x, int axis);

#endif
