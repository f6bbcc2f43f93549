/* ckpt/model.c: reads the model that a checkpoint belongs to with the options that it was compiled with, and compares
 * its tensors with the checkpoint's. */
#include <string.h>
#include <unistd.h>

#include "ckpt/model.h"

/* ---- the model ---- */

bool ckpt_model_options(const CkptCall *call, const char *given, const Checkpoint *c, CkptModelOptions *out, Arena *a)
{
	const char *recorded = c ? json_string_value(json_object_get(c->state, "options")) : NULL;
	*out = (CkptModelOptions){.text = ""};
	if (given)
		return call->read_options(given, arena_printf(a, "shardc ckpt %s: --options", call->argv[0]), false, out, a,
			call->d);
	return !recorded || call->read_options(recorded, arena_printf(a, "%s/state.json: $.options", c->dir), true, out, a,
		call->d);
}

OnnxWriter *ckpt_model(const char *path, const CkptModelOptions *o, Diag *d)
{
	OnnxWriter *w = onnx_writer_open(path, &o->frontend, d);
	if (!w && !*o->text && !access(path, R_OK))
		diag_note(d, path, "options of shardc for this model go into --options=\"--bind=..\"");
	return w;
}

bool ckpt_fits(const char *where, const CheckpointTensor *t, const Symbol *s, bool same_dtype, Arena *a, Diag *d)
{
	Type type = type_tensor(t->dtype, t->rank, t->dim);
	bool fits = type_same_shape(&type, &s->type) && (t->dtype == s->type.dtype ||
		(!same_dtype && dtype_is_float(t->dtype) && dtype_is_float(s->type.dtype)));
	if (!fits)
		diag_error(d, where, "tensor \"%s\" is %s, the model's is %s", str_escape(a, ESCAPE_IR, t->name),
			type_str(a, &type), type_str(a, &s->type));
	return fits;
}

/* ---- elements ---- */

typedef struct Copy { char *out; int64_t first, size; } Copy;

static void copy(void *context, const char *from, int64_t first, int64_t n)
{
	const Copy *c = context;
	memcpy(c->out + (first - c->first) * c->size, from, (size_t)(n * c->size));
}

static void put_number(char *out, DType t, double x)
{
	float f32 = (float)x;
	uint16_t half = t == DT_BF16 ? bf16_from_float(f32) : f16_from_float(f32);
	const void *from = t == DT_F64 ? (const void *)&x : t == DT_F32 ? (const void *)&f32 : (const void *)&half;
	memcpy(out, from, (size_t)dtype_info[t].bytes);
}

static void convert(const CheckpointTensor *t, DType to, int64_t first, int64_t n, char *out)
{
	enum { PIECE = 4096 };
	double x[PIECE];
	for (int64_t i = 0, k; i < n; i += k) {
		k = MIN(PIECE, n - i);
		ckpt_numbers(t, first + i, k, x);
		for (int64_t j = 0; j < k; j++)
			put_number(out + (i + j) * dtype_info[to].bytes, to, x[j]);
	}
}

void ckpt_elements(const CheckpointTensor *t, DType to, int64_t first, int64_t n, void *out)
{
	if (t->dtype == to)
		checkpoint_read(t, first, n, copy, &(Copy){out, first, dtype_info[to].bytes});
	else
		convert(t, to, first, n, out);
	ckpt_release(t, first, n);
}
