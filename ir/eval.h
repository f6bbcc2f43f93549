/* ir/eval.h: what the rules of the reference evaluator share.  Private to ir/eval*.c.
 *
 * A rule reads in[] (NULL = absent), fills out[] (allocated and zeroed, but for ops that alias) and
 * returns false when the data is bad, for instance an index out of range. */
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
	PtrMap *pinned;       /* Value -> EvalTensor; NULL = none */
	uint64_t seed, step, sample0;
	PtrMap *symbols;      /* Symbol -> EvalTensor */
	EvalTensor **value;   /* by Value.id */
	int64_t *refused;     /* by Value.id: the largest max_numel that eval_constant failed at; -1 = none */
	bool *constant;       /* by Value.id: value[] was computed from constants alone */
	int n;                /* of the three */
	double folded;        /* what eval_constant has done so far, of EVAL_STEPS */
};

/* A constant is not computed where those of an environment would take more steps than this in all, which are seconds
 * and at most four gigabytes: a few hundred bytes of a model can ask for years. */
#define EVAL_STEPS 0x1p34

/* One element, of whichever class its dtype is. */
typedef union Scalar { double f; int64_t i; } Scalar;

/* eval_ew.c: one element of an elementwise op; s[k] is an element of operand k. */
typedef Scalar ScalarFn(const Op *op, const Scalar *s);
ScalarFn *eval_scalar_fn(OpKind kind, DType of); /* of: dtype of the last operand; NULL = none */
/* Whether floats of dtype t are rounded to it: 16-bit ones always, since that is what they mean, unless nothing is. */
static inline bool eval_rounds(const EvalEnv *e, DType t)
{
	if (e->exact)
		return false;
	return dtype_info[t].bytes == 2 || (e->round && t != DT_F64);
}
/* To what an element of dtype t can hold: integers wrap; floats round when `round`. */
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

/* All index tuples of a shape in row-major order:  for (Walk w = walk_over(n, dim); w.left; walk_next(&w)) */
typedef struct Walk {
	int rank;
	const int64_t *dim;
	int64_t at[IR_MAX_RANK];
	int64_t k, left; /* position of the tuple; tuples not yet visited, this one included */
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

/* Strides of x seen as if broadcast to the shape of `to`: 0 where it repeats. */
void eval_broadcast_strides(const Type *x, const Type *to, int64_t *stride);

/* x as [outer, axis, inner]. */
typedef struct Axis { int64_t outer, n, inner; } Axis;
Axis eval_axis(const Type *x, int axis);

#endif
