/* passes/patterns/data.c: reads constants from the model's file, for proofs about masks and tables.
 *
 * Reads only what passes may treat by value: data, and buffers that no op writes; never parameters.  Contents that
 * are larger than DATA_MAX or cannot be read stay unknown, in which case at most a pattern is not recognised. */
#include "passes/patterns/mask.h"
#include "passes/passes.h"

#include <math.h>
#include <stdlib.h>
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
	case CLASS_SCALED: break;
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

/* ---- tables of any size, row by row ---- */

/* What r->memo has for a table whose diagonals are no runs, and for one that an op writes. */
static const Stripes no_stripes, is_written;

/* Rows of C elements of `each` bytes, from memory or from a file. */
typedef struct Rows { const char *memory; int fd; int64_t offset; size_t bytes, each; } Rows;

static bool read_row(const Rows *rows, int64_t r, char *to)
{
	int64_t at = rows->offset + r * (int64_t)rows->bytes;
	if (!rows->memory)
		return pread(rows->fd, to, rows->bytes, (off_t)at) == (ssize_t)rows->bytes;
	memcpy(to, rows->memory + at, rows->bytes);
	return true;
}

/* Whether row r of each matrix of R rows is line[R-1-r ..]: the same along each diagonal.  Fills line. */
static bool is_striped(const Rows *rows, int64_t matrices, int64_t R, char *line, char *row)
{
	for (int64_t i = 0; i < matrices * R; i++) {
		char *window = line + (size_t)(R - 1 - i % R) * rows->each;
		if (!read_row(rows, i, row))
			return false;
		if (i < R)
			memcpy(window, row, i ? rows->each : rows->bytes);
		if (memcmp(window, row, rows->bytes) != 0)
			return false;
	}
	return true;
}

typedef struct StripeList { Stripe *at; int n, cap; } StripeList;

/* Two numbers that differ are a run only if a third goes on like that. */
static void split_pair(StripeList *list, Arena *a)
{
	Stripe *s = list->n ? &list->at[list->n - 1] : NULL;
	if (!s || s->hi != s->lo + 1 || s->step == 0)
		return;
	Stripe second = {s->hi, s->hi, s->first + s->step, 0};
	s->hi = s->lo;
	s->step = 0;
	vec_push(a, list, second);
}

/* Whether the number of diagonal d goes on with the run. */
static bool extend(Stripe *s, int64_t d, double x)
{
	double step = x - (s->first + s->step * (double)(s->hi - s->lo));
	if (s->lo == s->hi && isfinite(step) && step == floor(step) && s->first == floor(s->first))
		s->step = step;
	if (step != s->step && !(x == s->first && s->step == 0)) /* inf - inf is no step */
		return false;
	s->hi = d;
	return true;
}

static void add_diagonal(StripeList *list, int64_t d, double x, Arena *a)
{
	if (list->n && extend(&list->at[list->n - 1], d, x))
		return;
	split_pair(list, a);
	if (!list->n || !extend(&list->at[list->n - 1], d, x))
		vec_push(a, list, ((Stripe){d, d, x, 0}));
}

static const Stripes *stripes_of_line(DType t, const char *line, size_t each, int64_t R, int64_t C, Arena *a)
{
	StripeList list = {0};
	for (int64_t d = 1 - C; d < R && list.n <= MASK_RUNS; d++) {
		double x = 0;
		int64_t i = 0;
		if (!decode(t, line + (size_t)(R - 1 - d) * each, &x, &i) || llabs(i) > INT64_C(1) << 52)
			return NULL;
		add_diagonal(&list, d, dtype_is_float(t) ? x : (double)i, a);
	}
	split_pair(&list, a);
	Stripes *s = NEW(a, Stripes);
	*s = (Stripes){list.n, list.at};
	return list.n <= MASK_RUNS ? s : NULL;
}

/* The rows of a literal, whose numbers are 8 bytes each whatever its dtype, or of data in the file. */
static bool open_rows(const Value *v, Rows *rows, DType *stored)
{
	const Symbol *sym = v->op->kind == OP_READ ? v->op->sym : NULL;
	const Attr *value = sym ? NULL : attr_find(v->op->attrs, "value");
	int64_t C = v->type.dim[v->type.rank - 1];
	struct stat st;
	const char *why;
	*stored = sym ? v->type.dtype : dtype_is_float(v->type.dtype) ? DT_F64 : DT_I64;
	*rows = (Rows){.fd = -1, .each = (size_t)dtype_info[*stored].bytes};
	rows->bytes = rows->each * (size_t)C;
	if (!sym) {
		rows->memory = value->kind == ATTR_INTS ? (const void *)value->ints : (const void *)value->floats;
		return value->n == type_numel(&v->type);
	}
	rows->offset = sym->src.offset;
	if ((sym->kind != SYM_DATA && sym->kind != SYM_BUFFER) || !is_plain(sym))
		return false;
	rows->fd = file_open(sym->src.file, &st, &why);
	return rows->fd >= 0;
}

static const Stripes *find_stripes(Rewriter *r, const Value *v)
{
	int64_t R = v->type.dim[v->type.rank - 2], C = v->type.dim[v->type.rank - 1], n = type_numel(&v->type);
	const Stripes *s = NULL;
	DType stored;
	Rows rows;
	if (!n || !open_rows(v, &rows, &stored))
		return NULL;
	Arena *a = arena_new();
	char *line = arena_alloc(a, rows.each * (size_t)(R + C - 1));
	if (is_striped(&rows, n / (R * C), R, line, arena_alloc(a, rows.bytes)))
		s = stripes_of_line(stored, line, rows.each, R, C, r->scratch);
	arena_free(a);
	if (rows.fd >= 0)
		close(rows.fd);
	return s;
}

/* An exporter's triangle is not stored: what attends by other ops than `attention` compares positions, too. */
Value *pattern_banded_data(Rewriter *r, Op *op)
{
	enum { BANDS_MAX = 3 };
	Builder *b = &r->b;
	const Type *t = &op->out[0]->type;
	int rank = t->rank;
	const Stripes *s = rank >= 2 && t->dim[rank - 2] > 1 && t->dim[rank - 1] > 1 ? data_stripes(r, op->out[0]) : NULL;
	if (!s || s->n < 2 || s->n > BANDS_MAX)
		return NULL;
	int64_t rows[2] = {t->dim[rank - 2], 1}, columns[2] = {1, t->dim[rank - 1]};
	Value *v = ir_const_full(b, type_scalar(t->dtype), s->at[0].first);
	for (int i = 1; i < s->n; i++) {
		Attr *a = attr_float(r->m, attr_int(r->m, NULL, "axis", 0), "start", -(double)s->at[i].lo);
		Value *row = ir_emit_typed(b, OP_IOTA, 0, NULL, a, type_tensor(DT_I64, 2, rows));
		Value *column = ir_emit_typed(b, OP_IOTA, 0, NULL, attr_int(r->m, NULL, "axis", 1),
			type_tensor(DT_I64, 2, columns));
		if (s->at[i].step != 0 || s->at[0].step != 0)
			return NULL;
		v = ir_emit3(b, OP_WHERE, ir_emit2(b, OP_GE, row, column),
			ir_const_full(b, type_scalar(t->dtype), s->at[i].first), v);
	}
	return ir_broadcast(b, v, t);
}

/* Whether all elements of a row stand twice in it: as two halves, or next to each other. */
static bool row_is_doubled(const char *row, size_t bytes, size_t each, bool pairs)
{
	if (!pairs)
		return bytes % (2 * each) == 0 && memcmp(row, row + bytes / 2, bytes / 2) == 0;
	for (size_t i = 0; i < bytes; i += 2 * each)
		if (i + 2 * each > bytes || memcmp(row + i, row + i + each, each) != 0)
			return false;
	return true;
}

bool data_is_doubled(Rewriter *r, const Value *v, bool pairs)
{
	int64_t n = type_numel(&v->type), C = v->type.rank ? v->type.dim[v->type.rank - 1] : 0;
	bool doubled = C > 0;
	DType stored;
	Rows rows;
	if (!doubled || ptrmap_get(r->memo, v->op->sym) == &is_written || !open_rows(v, &rows, &stored))
		return false;
	Arena *a = arena_new();
	char *row = arena_alloc(a, rows.bytes);
	for (int64_t i = 0; doubled && i < n / C; i++)
		doubled = read_row(&rows, i, row) && row_is_doubled(row, rows.bytes, rows.each, pairs);
	arena_free(a);
	close(rows.fd);
	return doubled;
}


const Stripes *data_stripes(Rewriter *r, const Value *v)
{
	const void *key = v->op->kind == OP_READ ? (const void *)v->op->sym : v;
	const Stripes *s = ptrmap_get(r->memo, key);
	if (!s) {
		s = find_stripes(r, v);
		s = s ? s : &no_stripes;
		ptrmap_put(r->memo, key, (void *)(intptr_t)s);
	}
	return s->n ? s : NULL;
}

void patterns_see_data(Rewriter *r)
{
	PtrMap *written = ptrmap_new(r->scratch);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(r->m, s, op)
			if (op_has_effect(op) && op->sym) {
				ptrmap_put(written, op->sym, op);
				ptrmap_put(r->memo, op->sym, (void *)(intptr_t)&is_written);
			}
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(r->m, s, op) {
			EvalTensor t;
			if (op->kind == OP_READ && (op->sym->kind == SYM_DATA || op->sym->kind == SYM_BUFFER)
					&& !ptrmap_get(written, op->sym) && data_contents(op->sym, r->scratch, &t))
				eval_assume(r->env, op->out[0], t);
		}
}
