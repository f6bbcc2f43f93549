/* passes/patterns/data.c: reads constants from the model's file, for proofs about masks and tables.
 *
 * Reads only what passes may treat by value: data, and buffers that no op writes; never parameters.  Contents that
 * are larger than DATA_MAX or cannot be read stay unknown, in which case at most a pattern is not recognised. */
#include "passes/patterns/patterns.h"
#include "passes/passes.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { DATA_MAX = 1 << 22 };

/* The element at p as a double or an int64; false for a dtype that masks and tables never have. */
static bool decode(DType t, const char *p, double *f, int64_t *i)
{
	union { float f; double d; uint16_t h; int64_t l; int32_t w; uint8_t b; } u;
	memcpy(&u, p, (size_t)dtype_info[t].bytes);
	switch (dtype_info[t].kind) {
	case CLASS_FLOAT:
		*f = t == DT_F64 ? u.d : t == DT_F32 ? (double)u.f : t == DT_F16 ? (double)f16_to_float(u.h)
			: (double)bf16_to_float(u.h);
		return t == DT_F64 || t == DT_F32 || t == DT_F16 || t == DT_BF16;
	case CLASS_BOOL: *i = u.b != 0; return true;
	case CLASS_INT: *i = t == DT_I64 ? u.l : u.w; return t == DT_I64 || t == DT_I32;
	case CLASS_UINT: *i = u.b; return t == DT_U8;
	}
	return false;
}

static bool is_plain(const Symbol *s)
{
	const Source *src = &s->src;
	if (!src->file || src->dtype != s->type.dtype || src->rank != s->type.rank
			|| src->bytes != type_bytes(&s->type))
		return false;
	for (int k = 0; k < src->rank; k++)
		if (src->perm[k] != k)
			return false;
	return true;
}

bool data_contents(const Symbol *s, Arena *a, EvalTensor *t)
{
	if (!is_plain(s) || type_numel(&s->type) > DATA_MAX)
		return false;
	size_t bytes = (size_t)s->src.bytes, each = (size_t)dtype_info[s->type.dtype].bytes;
	struct stat st;
	const char *why;
	int fd = file_open(s->src.file, &st, &why);
	char *at = arena_alloc(a, bytes);
	bool ok = fd >= 0 && pread(fd, at, bytes, (off_t)s->src.offset) == (ssize_t)bytes;
	if (fd >= 0)
		close(fd);
	*t = (EvalTensor){.type = s->type};
	t->i = NEW_N(a, int64_t, type_numel(&s->type));
	for (int64_t k = 0, n = type_numel(&s->type); ok && k < n; k++) {
		double x = 0;
		int64_t i = 0;
		ok = decode(s->type.dtype, at + (size_t)k * each, &x, &i);
		if (dtype_is_float(s->type.dtype))
			t->f[k] = x;
		else
			t->i[k] = i;
	}
	return ok;
}

void patterns_see_data(Rewriter *r)
{
	PtrMap *written = ptrmap_new(r->scratch);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(r->m, s, op)
			if (op_has_effect(op) && op->sym)
				ptrmap_put(written, op->sym, op);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(r->m, s, op) {
			EvalTensor t;
			if (op->kind == OP_READ && (op->sym->kind == SYM_DATA || op->sym->kind == SYM_BUFFER)
					&& !ptrmap_get(written, op->sym) && data_contents(op->sym, r->scratch, &t))
				eval_assume(r->env, op->out[0], t);
		}
}
