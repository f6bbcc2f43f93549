/* frontend/onnx_pseudo.c: raw random numbers, which are values in ONNX but not in the IR; and what such values share.
 *
 * Uniform random numbers are supported only where they become dropout, as PyTorch's in-place dropout is exported: x *
 * (cast(random < keep) / keep).  A pseudo-value follows them through that chain; any other use is refused. */
#include "frontend/onnx_pseudo.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

Pseudo *pseudo_of(const Import *im, const Value *v)
{
	return v ? ptrmap_get(im->pseudo, v) : NULL;
}

Value *pseudo_new(Import *im, Pseudo p)
{
	Value *v = NEW(im->arena, Value);
	Pseudo *copy = NEW(im->arena, Pseudo);
	*copy = p;
	v->op = NEW(im->arena, Op);
	ptrmap_put(im->pseudo, v, copy);
	return v;
}

bool pseudo_is(const Import *im, const Value *v)
{
	return pseudo_of(im, v);
}

/* ---- random numbers ---- */

bool import_random_uniform_like(Node *n)
{
	if (!node_want(n, 1, 1))
		return false;
	if (node_float(n, "low", 0) != 0 || node_float(n, "high", 1) != 1) /* compared exactly: exporters write these
	                                                                      numbers */
		return node_refuse(n, "random numbers are only supported in [0, 1), as dropout");
	n->out[0] = pseudo_new(n->im, (Pseudo){.kind = PSEUDO_UNIFORM, .type = n->in[0]->type});
	return true;
}

static bool as_dropout_only(Node *n)
{
	return node_refuse(n, "random numbers are only supported as dropout: x * (random < keep) / keep");
}

static const Pseudo *random_operand(Node *n, PseudoKind kind, int *other)
{
	for (int i = 0; i < n->n_in; i++) {
		const Pseudo *p = pseudo_of(n->im, n->in[i]);
		*other = 1 - i;
		if (p)
			return p->kind == kind ? p : NULL;
	}
	return NULL;
}

static bool known_number(Node *n, int i, double *v)
{
	EvalTensor *t = node_known(n, i);
	*v = t && type_numel(&t->type) == 1 && dtype_is_float(t->type.dtype) ? t->f[0] : NAN;
	return !isnan(*v);
}

static bool random_less(Node *n)
{
	int other;
	const Pseudo *p = random_operand(n, PSEUDO_UNIFORM, &other);
	double keep;
	if (!p || other != 1 || !known_number(n, 1, &keep) || !(keep > 0 && keep <= 1))
		return as_dropout_only(n);
	n->out[0] = pseudo_new(n->im, (Pseudo){.kind = PSEUDO_MASK, .type = p->type, .keep = keep});
	return true;
}

/* A cast of random numbers leaves them as they are.  CastLike may also take the type of random numbers for a number. */
static bool random_cast(Node *n)
{
	const Pseudo *p = pseudo_of(n->im, n->in[0]), *like = pseudo_of(n->im, node_in(n, 1));
	if (pseudo_is_list(p) || pseudo_is_list(like))
		return as_dropout_only(n);
	n->out[0] = p || !like ? n->in[0] : ir_cast(n->b, n->in[0], like->type.dtype);
	return true;
}

static bool pass(Node *n)
{
	n->out[0] = n->in[0];
	return true;
}

static bool random_div(Node *n)
{
	int other;
	const Pseudo *p = random_operand(n, PSEUDO_MASK, &other);
	double v;
	if (!p || other != 1 || !known_number(n, 1, &v) || fabs(v - p->keep) > 1e-6 * p->keep)
		return as_dropout_only(n);
	n->out[0] = pseudo_new(n->im, (Pseudo){.kind = PSEUDO_SCALED, .type = p->type, .keep = p->keep});
	return true;
}

static bool random_mul(Node *n)
{
	int other;
	const Pseudo *p = random_operand(n, PSEUDO_SCALED, &other);
	Value *x = p && n->n_in == 2 ? n->in[other] : NULL;
	if (!x || pseudo_of(n->im, x) || !type_same_shape(&x->type, &p->type))
		return as_dropout_only(n);
	return emit_dropout(n, x, dtype_round(DT_F32, 1 - p->keep), DROPOUT_SAYS_TRAIN);
}

/* ---- by op ---- */

typedef struct PseudoOp { const char *op; OnnxImporter *import; } PseudoOp;

static const PseudoOp pseudo_ops[] = {
	{"Less", random_less}, {"Cast", random_cast}, {"CastLike", random_cast}, {"Identity", pass},
	{"Div", random_div}, {"Mul", random_mul},
};

static const PseudoOp *find_pseudo_op(const char *op)
{
	for (int i = 0; i < COUNT_OF(pseudo_ops); i++)
		if (!strcmp(pseudo_ops[i].op, op))
			return &pseudo_ops[i];
	return NULL;
}

bool pseudo_import(Node *n)
{
	const PseudoOp *p = find_pseudo_op(n->op);
	if (p)
		return p->import(n);
	return node_refuse(n, "it takes a sequence or random numbers, which is not supported");
}
