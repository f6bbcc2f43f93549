/* frontend/onnx_ops_flex.c: FlexAttention of ai.onnx.preview: attention whose scores and weights pass through subgraphs
 * of the model.
 *
 * It is written out as single ops with the subgraphs between them.  Where these only mask, scale or cap the scores,
 * pass `patterns` finds one op attention in it, as in any exported attention. */
#include "frontend/onnx_blocks.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Puts x through the subgraph of an attribute, whose one result must be of x's type; x itself where it is absent.  NULL
 * after an error. */
static Value *through(Node *n, Value *x, const char *attribute)
{
	Value *y = NULL;
	if (!node_has(n, attribute) || !x->op)
		return x;
	const OnnxGraph *g = import_subgraph(n, attribute);
	if (!g)
		return NULL;
	if (g->outputs.n != 1) {
		node_error(n, "%s has %d results, 1 is wanted", attribute, g->outputs.n);
		return NULL;
	}
	const char *prefix = arena_printf(n->im->arena, "%s/%s", n->name, attribute);
	if (!import_body(n, g, prefix, 1, &x, &y) || !y || !y->op)
		return NULL;
	if (!type_equal(&y->type, &x->type)) {
		node_error(n, "%s makes %s of %s, which must keep its type", attribute, type_str(n->im->arena, &y->type),
			type_str(n->im->arena, &x->type));
		return NULL;
	}
	return y;
}

static bool flex_fits(Node *n)
{
	const Type *q = &n->in[0]->type, *k = &n->in[1]->type, *v = &n->in[2]->type;
	if (q->rank == 4 && k->rank == 4 && v->rank == 4 && k->dim[1] > 0 && q->dim[1] % k->dim[1] == 0
			&& k->dim[1] == v->dim[1] && q->dim[3] == k->dim[3] && k->dim[2] == v->dim[2])
		return true;
	return node_error(n, "wants q [B,H,T,D], k [B,Hk,S,D] and v [B,Hk,S,Dv], H a multiple of Hk: %s, %s, %s",
		type_str(n->im->arena, q), type_str(n->im->arena, k), type_str(n->im->arena, v));
}

bool import_flex_attention(Node *n)
{
	if (!node_want(n, 3, 3) || !flex_fits(n))
		return false;
	Value *q = n->in[0], *k, *v;
	DType given = q->type.dtype, precise = given == DT_F64 ? DT_F64 : DT_F32;
	if (node_has(n, "softmax_precision") && !node_dtype(n, "softmax_precision", &precise))
		return false;
	double scale = node_float(n, "scale", 1 / sqrt((double)q->type.dim[3]));
	k = heads_repeat(n, ir_cast(n->b, n->in[1], precise), q->type.dim[1]);
	v = heads_repeat(n, n->in[2], q->type.dim[1]);
	Value *s = emit_matmul(n->b, emit_scale(n->b, ir_cast(n->b, q, precise), scale), k, NULL, false, true);
	s = through(n, s, "score_mod");
	s = s && s->op ? through(n, emit_softmax(n->b, OP_SOFTMAX, s, 3), "prob_mod") : NULL;
	if (!s || !s->op)
		return false;
	n->out[0] = emit_matmul(n->b, ir_cast(n->b, s, given), v, NULL, false, false);
	return n->out[0]->op != NULL;
}
