/* frontend/source.c: the initial contents of a symbol, read as its Source says. */
#include "frontend/onnx_file.h"

#include <string.h>

static void permute(const Symbol *s, const uint8_t *from, uint8_t *to, size_t size)
{
	int64_t stride[IR_MAX_RANK], at[IR_MAX_RANK] = {0}, n = type_numel(&s->type);
	Type file = type_tensor(s->src.dtype, s->src.rank, s->src.dim);
	type_strides(&file, stride);
	for (int64_t i = 0; i < n; i++) {
		int64_t offset = 0;
		for (int k = 0; k < s->type.rank; k++)
			offset += at[k] * stride[s->src.perm[k]];
		memcpy(to + (size_t)i * size, from + (size_t)offset * size, size);
		for (int k = s->type.rank - 1; k >= 0 && ++at[k] == s->type.dim[k]; k--)
			at[k] = 0;
	}
}

static void fill(const Type *t, double v, uint8_t *to)
{
	int64_t n = type_numel(t), i64 = int_of_double(v);
	float f32 = (float)v;
	uint16_t half = t->dtype == DT_BF16 ? bf16_from_float(f32) : f16_from_float(f32);
	const void *from = !dtype_is_float(t->dtype) ? (const void *)&i64 : t->dtype == DT_F64 ? (const void *)&v
		: t->dtype == DT_F32 ? (const void *)&f32 : (const void *)&half;
	size_t size = (size_t)dtype_info[t->dtype].bytes;
	for (int64_t i = 0; i < n; i++)
		memcpy(to + (size_t)i * size, from, size);
}

bool source_load(const Module *m, const Symbol *s, Arena *a, HostTensor *out, Diag *d)
{
	const char *where = arena_printf(a, "%s: tensor \"%s\"", m->file ? m->file : m->name,
		str_escape(a, ESCAPE_IR, s->name));
	uint8_t *data = arena_alloc(a, (size_t)MAX(type_bytes(&s->type), 1));
	*out = (HostTensor){s->type, data};
	if (s->src.init) {
		diag_error(d, where, "its contents are random, made when the program starts");
		return false;
	}
	if (!s->src.file) {
		fill(&s->type, s->src.fill, data);
		return true;
	}
	FileMap *f = file_map(a, s->src.file, where, d);
	if (!f)
		return false;
	int64_t size = (int64_t)f->bytes.n;
	bool good = s->src.dtype == s->type.dtype && s->src.bytes == type_bytes(&s->type) && s->src.offset >= 0
		&& s->src.offset <= size && s->src.bytes <= size - s->src.offset;
	if (good)
		permute(s, f->bytes.at + s->src.offset, data, (size_t)dtype_info[s->type.dtype].bytes);
	else
		diag_error(d, where, "\"%s\" does not hold its %lld bytes at offset %lld", s->src.file, (long long)s->src.bytes,
			(long long)s->src.offset);
	file_unmap(f);
	return good;
}
