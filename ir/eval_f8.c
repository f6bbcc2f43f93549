/* ir/eval_f8.c: values of products of 8-bit floats, by the table of narrow types; written apart from kernels/f8.h.
 *
 * A tensor of 8-bit floats holds the numbers that its bits stand for. */
#include "base/narrow.h"
#include "ir/eval.h"

#include <math.h>

static const Narrow *narrow_of(const Op *op)
{
	return narrow_from_text(attr_find(op->attrs, "to")->dtype == DT_E4M3 ? "f8e4m3fn" : "f8e5m2");
}

/* The larger of `most` and of the magnitudes of n numbers; NaN is the largest. */
static double largest(double most, const double *x, int64_t n)
{
	for (int64_t i = 0; i < n && !isnan(most); i++)
		most = fabs(x[i]) > most || isnan(x[i]) ? fabs(x[i]) : most;
	return most;
}

RULE(f8_scale)
{
	double most = largest(0x1p-100, in[0]->f, type_numel(&in[0]->type));
	out[0]->f[0] = (float)((float)most / (float)narrow_of(op)->max);
	return true;
}

/* ---- weights that are gathered in 8 bits ---- */

static double as_bf16(const EvalEnv *e, double x)
{
	return eval_rounds(e, DT_BF16) ? eval_fit(DT_BF16, (Scalar){.f = x}, true).f : x;
}

bool eval_weight_scale(EvalEnv *e, const Symbol *scale, float *out)
{
	double most = 0;
	const Symbol *first = scale_param(e->m, scale);
	for (int64_t i = 0; first && i < scale->n_params; i++) {
		const EvalTensor *w = eval_symbol(e, first->unit->params[first->member + i]);
		if (!w)
			return false;
		most = largest(most, w->f, type_numel(&w->type));
	}
	*out = (float)fmax(as_bf16(e, most), 0x1p-100) / (float)narrow_from_text("f8e4m3fn")->max;
	if (isnan(most))
		*out = NAN;
	return true;
}

bool eval_weight_f8(EvalEnv *e, const Symbol *param, EvalTensor *t)
{
	const Symbol *scale = param_scale(e->m, param);
	float s;
	if (!scale || !eval_weight_scale(e, scale, &s))
		return false;
	float inverse = 1 / s;
	for (int64_t i = 0, n = type_numel(&t->type); i < n; i++)
		t->f[i] = narrow_round(narrow_from_text("f8e4m3fn"), (float)as_bf16(e, t->f[i]) * inverse);
	return true;
}

/* ---- tensors ---- */

RULE(to_f8)
{
	const Type *x = &in[0]->type;
	int64_t cols = x->dim[x->rank - 1], rows = cols ? type_numel(x) / cols : 0;
	float inverse = 1 / (float)in[1]->f[0];
	bool first = attr_get_int(op->attrs, "rows", 0), second = attr_get_int(op->attrs, "columns", 0);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++) {
			double y = in[0]->f[r * cols + c];
			if (!dtype_is_scaled(x->dtype))
				y = narrow_round(narrow_of(op), (float)y * inverse);
			if (first)
				out[0]->f[r * cols + c] = y;
			if (second)
				out[first]->f[c * rows + r] = y;
		}
	return true;
}

RULE(matmul_f8)
{
	int64_t n = in[1]->type.dim[0], k = in[1]->type.dim[1], rows = k ? type_numel(&in[0]->type) / k : 0;
	double scale = (double)((float)in[2]->f[0] * (float)in[3]->f[0]);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t j = 0; j < n; j++) {
			double sum = 0;
			for (int64_t i = 0; i < k; i++)
				sum += in[0]->f[r * k + i] * in[1]->f[j * k + i];
			sum *= scale;
			if (op_in(op, 4))
				sum += in[4]->f[j];
			if (op_in(op, 5))
				sum += in[5]->f[r * n + j];
			out[0]->f[r * n + j] = sum;
		}
	return true;
}
