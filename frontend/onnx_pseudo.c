/* frontend/onnx_pseudo.c: sequences and optionals, which are values in ONNX but not in the IR: lists of values, whose
 * length and order are known at compile time. */
#include "frontend/onnx_pseudo.h"

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

bool pseudo_import(Node *n)
{
	if (strcmp(n->op, "Identity") != 0)
		return node_refuse(n, "it takes a sequence or an optional, which is not supported");
	n->out[0] = n->in[0];
	return true;
}
