/* frontend/onnx_given.c: inputs whose contents are given at compile time (`shardc run`).
 *
 * When an importer must know an operand, such as the axes of a reduction, the ops from the inputs to that operand are
 * emitted again with literals in place of the inputs, and evaluated.  All other ops still read the inputs at run
 * time. */
#include "frontend/onnx_import.h"

#include <string.h>
#include <unistd.h>

#include "base/npy.h"

enum { CHAIN_MAX = 256 };

/* The position of an input among the module's inputs: the K of input_K.npy. */
static int input_index(const Module *m, const Symbol *s)
{
	int k = 0;
	for (int i = 0; i < m->n_symbols && m->symbols[i] != s; i++)
		k += m->symbols[i]->kind == SYM_INPUT;
	return k;
}

static bool load(Import *im, const Symbol *s, HostTensor *out)
{
	int k = input_index(im->m, s);
	const char *dir = im->o->inputs, *pb = onnx_input_path(im->m, s, dir, im->arena);
	const char *npy[] = {arena_printf(im->arena, "%s/%s.npy", dir, s->name),
		arena_printf(im->arena, "%s/input_%d.npy", dir, k)};
	for (int i = 0; i < COUNT_OF(npy); i++) {
		Npy file;
		if (access(npy[i], R_OK) || !npy_open_any(&file, npy[i], im->d))
			continue;
		const NpyHeader *h = &file.header;
		const Narrow *narrow = h->narrow && s->narrow ? narrow_from_text(s->narrow) : NULL;
		out->type = type_tensor(narrow ? narrow->wide : h->dtype, h->rank, h->dim);
		void *data = arena_alloc(im->arena, (size_t)type_bytes(&out->type) + 1);
		out->data = data;
		if (narrow)
			narrow_widen(narrow, data, file.data, h->numel);
		else
			memcpy(data, file.data, (size_t)h->bytes);
		npy_close(&file);
		return true;
	}
	return !access(pb, R_OK) && onnx_input_load(im->m, s, dir, im->arena, out, im->d);
}

static Value *input_literal(Import *im, const Symbol *s)
{
	HostTensor h;
	if (!load(im, s, &h) || !type_equal(&h.type, &s->type))
		return NULL;
	EvalTensor t = {.type = h.type};
	int64_t n = type_numel(&h.type);
	if (dtype_is_float(h.type.dtype))
		t.f = NEW_N(im->arena, double, n + 1);
	else
		t.i = NEW_N(im->arena, int64_t, n + 1);
	for (int64_t i = 0; i < n; i++) {
		if (dtype_is_float(h.type.dtype))
			t.f[i] = host_get_float(&h, i);
		else
			t.i[i] = host_get_int(&h, i);
	}
	return emit_literal(&im->b, &t);
}

static Value *repeat(Import *im, Value *v, int depth)
{
	Value *now = ptrmap_get(im->given, v);
	if (now || im->known[v->id] == KNOWN_LITERALLY || depth > CHAIN_MAX)
		return now ? now : depth > CHAIN_MAX ? NULL : v;
	if (v->op->kind == OP_INPUT) {
		now = input_literal(im, v->op->sym);
		if (now)
			ptrmap_put(im->given, v, now);
		return now;
	}
	for (int i = 0; i < v->op->n_in; i++)
		if (op_in(v->op, i) && !repeat(im, op_in(v->op, i), depth + 1))
			return NULL;
	ir_clone(&im->b, v->op, im->given);
	return ptrmap_get(im->given, v);
}

Value *given_value(Import *im, Value *v)
{
	const Op *last = im->m->last[SEC_FORWARD];
	Value *now = repeat(im, v, 0);
	import_mark(im, last);
	return now;
}
