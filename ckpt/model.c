/* ckpt/model.c: the model that a checkpoint is of, read as it was when it was compiled, and its tensors beside the
 * checkpoint's. */
#include <string.h>

#include "ckpt/model.h"

/* ---- the model ---- */

/* Values of an option in a text of options, "--bind=batch=2;seq=8 --untie=all": they end where the next one begins. */
static int values_of(const char *options, const char *name, Arena *a, const char ***out)
{
	VEC(const char *) list = {0};
	size_t n = strlen(name);
	for (const char *s = options; s && (s = strstr(s, name)); s += n) {
		const char *end = strstr(s, " -");
		if ((s > options && s[-1] != ' ') || s[n] != '=')
			continue;
		for (const char *v = s + n + 1, *stop = end ? end : s + strlen(s); v < stop; v++) {
			size_t k = MIN(strcspn(v, ";"), (size_t)(stop - v));
			const char *value = arena_strndup(a, v, k);
			vec_push(a, &list, value);
			v += k;
		}
	}
	*out = list.at;
	return list.n;
}

OnnxWriter *ckpt_model(const char *path, const char *options, Arena *a, Diag *d)
{
	FrontendOptions o = {0};
	const char **binds, **shapes, **consts, **untie;
	o.n_binds = values_of(options, "--bind", a, &binds);
	o.n_shapes = values_of(options, "--input-shape", a, &shapes);
	o.n_consts = values_of(options, "--const", a, &consts);
	o.binds = binds;
	o.shapes = shapes;
	o.consts = consts;
	if (values_of(options, "--untie", a, &untie))
		o.untie = !strcmp(untie[0], "all") ? UNTIE_ALL : !strcmp(untie[0], "none") ? UNTIE_NONE : UNTIE_AUTO;
	return onnx_writer_open(path, &o, d);
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
