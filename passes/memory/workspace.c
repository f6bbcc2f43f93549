/* passes/memory/workspace.c: computes the scratch bytes of an op's kernel by the formulas of kernels/kernels.def.
 *
 * An op that the table does not list needs none.  A product that is added to a sum needs as much as the product
 * alone. */
#include "passes/passes.h"

#include "kernels/cuda/work.h"

#include <string.h>

typedef int64_t WorkFn(const KWorkArgs *a);

static const struct { const char *op; WorkFn *work, *cuda; } kernels[] = {
#define KERNEL(op, types, work, cuda) {#op, kwork_##work, kwork_cuda_##cuda},
#include "kernels/kernels.def"
};

static KShape shape_of(const Value *v)
{
	if (!v)
		return (KShape){0};
	return (KShape){v->type.rank, v->type.dim, dtype_info[v->type.dtype].bytes};
}

int64_t op_workspace(const Op *op, const Options *o)
{
	if (op->body)
		return loop_workspace(op, o);
	bool product = op->kind == OP_ACCUMULATE && op->n_in > 1;
	const char *text = op_info[product ? OP_MATMUL : op->kind].text;
	const Attr *pads = attr_find(op->attrs, "pads");
	const Attr *to = attr_find(op->attrs, "to");
	KWorkArgs a = {.block = attr_get_int(op->attrs, "block", 0), .wide = to && to->dtype == DT_F32,
		.library = attr_get_int(op->attrs, "library", 0), .axis = attr_get_int(op->attrs, "axis", 0),
		.group = attr_get_int(op->attrs, "group", 1),
		.layout = attr_get_int(op->attrs, "layout", 0), .ta = attr_get_int(op->attrs, "ta", 0),
		.tb = attr_get_int(op->attrs, "tb", 0), .pads = pads ? pads->ints : NULL, .cap = o->memory.workspace};
	for (int i = 0; i < op->n_in && i < COUNT_OF(a.in); i++)
		a.in[i] = shape_of(op_in(op, i));
	for (int i = 0; i < op->n_out && i < COUNT_OF(a.out); i++)
		a.out[i] = shape_of(op->out[i]);
	for (int i = 0; i < COUNT_OF(kernels); i++)
		if (!strcmp(kernels[i].op, text))
			return (options_cuda(o) ? kernels[i].cuda : kernels[i].work)(&a);
	return 0;
}
