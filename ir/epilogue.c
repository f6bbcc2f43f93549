/* ir/epilogue.c: the table of epilogues, and the values of products with one. */
#include "ir/epilogue.h"
#include "ir/eval.h"

#include <string.h>

const EpilogueInfo epilogue_info[EPILOGUES] = {
#define EPILOGUE(id, text, results, wide) {#id, text, results, wide},
#include "base/epilogues.def"
};

Epilogue op_epilogue(const Op *op)
{
	const char *text = attr_get_str(op->attrs, "epilogue", "");
	int e = 0;
	while (e < EPILOGUES && strcmp(epilogue_info[e].text, text))
		e++;
	return (Epilogue)e;
}

int epilogue_summed(Epilogue e)
{
	return e == EPILOGUE_SUMS_A ? 0 : e == EPILOGUE_SUMS_B ? 1 : -1;
}

/* ---- values ---- */

/* gelu(x), or dy * gelu'(x), of the tanh form. */
static double gelu(OpKind kind, double x, double dy)
{
	Attr tanh_form = {.name = "tanh", .kind = ATTR_INT, .i = 1};
	Op op = {.kind = kind, .attrs = &tanh_form};
	Scalar s[] = {{.f = x}, {.f = dy}};
	return eval_scalar_fn(kind, DT_F32)(&op, s).f;
}

static void sum_columns(const EvalTensor *x, EvalTensor *sums)
{
	int64_t rows = x->type.dim[0], cols = x->type.dim[1];
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++)
			sums->f[c] += x->f[r * cols + c];
}

RULE(matmul_epilogue)
{
	Epilogue kind = op_epilogue(op);
	int summed = epilogue_summed(kind);
	EvalTensor *operands[4] = {in[0], in[1], NULL, op_in(op, 3) ? in[3] : NULL};
	if (kind == EPILOGUE_GELU && op_in(op, 2))
		operands[2] = in[2];
	eval_product(op, operands, out[0]);
	if (summed >= 0)
		sum_columns(in[summed], out[1]);
	for (int64_t i = 0, n = summed < 0 ? type_numel(&out[0]->type) : 0; i < n; i++) {
		double p = out[0]->f[i];
		if (kind == EPILOGUE_GELU)
			out[1]->f[i] = p;
		out[0]->f[i] = kind == EPILOGUE_GELU ? gelu(OP_GELU, p, 0) : gelu(OP_GELU_GRAD, in[2]->f[i], p);
	}
	return true;
}
