/* passes/init.c: --init: sets where the first contents of parameters come from instead of the model's data.
 *
 * random:SEED gives each parameter a distribution by its role in the graph (init.def).  Each rank makes the numbers
 * of what it holds when the program starts.  zeros fills with zeros.  FILE.safetensors gives each parameter and
 * buffer the file's tensor of the same name.  Refuses, all at once, tensors that the file lacks, that it has in
 * another shape, and that the model does not have (tensors of integers and other copies of a used tensor are
 * skipped).  Constants keep the model's data.
 *
 * A role is found by following the uses of a parameter through ops that only move it. */
#include "passes/passes.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/safetensors.h"

/* ---- what the user chose ---- */

typedef struct Choice {
	enum { FROM_MODEL, ZEROS, RANDOM, FROM_FILE } from;
	int64_t seed;
	const char *path;
} Choice;

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return n > k && !strcmp(s + n - k, end);
}

static bool read_seed(const char *text, int64_t *seed)
{
	return str_to_size(text, false, seed) && *seed < INT64_C(1000000000000000000);
}

static bool read_choice(const char *text, Choice *out, Diag *d)
{
	*out = (Choice){.from = FROM_MODEL};
	if (!text || !strcmp(text, "onnx"))
		return true;
	if (!strcmp(text, "zeros")) {
		out->from = ZEROS;
	} else if (!strncmp(text, "random:", 7) && read_seed(text + 7, &out->seed)) {
		out->from = RANDOM;
	} else if (ends_with(text, ".safetensors")) {
		out->from = FROM_FILE;
		out->path = text;
	} else {
		diag_error(d, "--init", "\"%s\" is refused; accepted: onnx, random:SEED (an integer from 0), zeros, "
			"FILE.safetensors", text);
		return false;
	}
	return true;
}

/* ---- roles ---- */

typedef enum Role {
#define INIT_ROLE(id, ...) ROLE_##id,
#include "passes/init.def"
	ROLE_COUNT
} Role;
typedef enum Law { LAW_UNIFORM, LAW_NORMAL, LAW_FILL } Law;

static const struct { Law law; double scale; const char *doc; } roles[ROLE_COUNT] = {
#define INIT_ROLE(id, law, scale, doc) {LAW_##law, scale, doc},
#include "passes/init.def"
};

typedef struct Found { Role role; int64_t fan_in; } Found;

static bool is_float_param(const Symbol *s)
{
	return s->kind == SYM_PARAM && dtype_is_float(s->type.dtype);
}

static void offer(Found *best, Role role, int64_t fan_in)
{
	if (role < best->role)
		*best = (Found){role, fan_in};
}

static bool moves(OpKind kind)
{
	return kind == OP_RESHAPE || kind == OP_TRANSPOSE || kind == OP_BROADCAST || kind == OP_CAST || kind == OP_SPLIT ||
		kind == OP_SLICE;
}

/* The contracted dimension of a matmul's operand. */
static int64_t contracted(const Op *op, int operand)
{
	const Type *t = &op_in(op, operand)->type;
	bool turned = attr_get_int(op->attrs, operand ? "tb" : "ta", 0);
	return t->dim[t->rank - (turned == (operand == 0) ? 2 : 1)];
}

static int64_t kernel_fan_in(const Op *op)
{
	const Type *w = &op_in(op, 1)->type;
	int64_t n = 1;
	for (int i = 1; i < w->rank; i++)
		n *= w->dim[i];
	return n;
}

/* The fan-in of the product that v is, possibly moved; 0 = v is no product. */
static int64_t product_fan_in(const Value *v)
{
	for (; v && v->op; v = op_in(v->op, 0)) {
		if (v->op->kind == OP_MATMUL)
			return contracted(v->op, 0);
		if (v->op->kind == OP_CONV || v->op->kind == OP_CONV_GRAD_X)
			return kernel_fan_in(v->op);
		if (!moves(v->op->kind))
			return 0;
	}
	return 0;
}

static bool is_vector(const Type *t)
{
	int wide = 0;
	for (int i = 0; i < t->rank; i++)
		wide += t->dim[i] != 1;
	return wide <= 1;
}

static void offer_sum(Found *best, const Op *op, int operand)
{
	int64_t fan_in = product_fan_in(op_in(op, 1 - operand));
	if (!is_vector(&op_in(op, operand)->type))
		offer(best, ROLE_OTHER, 0);
	else if (fan_in)
		offer(best, ROLE_BIAS, fan_in);
	else
		offer(best, ROLE_SHIFT, 0);
}

/* Offers the role that operand `operand` has for an op that computes with it. */
static void offer_use(Found *best, const Op *op, int operand)
{
	switch (op->kind) {
	case OP_MATMUL:
		offer(best, operand < 2 ? ROLE_WEIGHT : ROLE_BIAS, contracted(op, operand == 1));
		break;
	case OP_CONV: case OP_CONV_GRAD_X:
		offer(best, operand == 1 ? ROLE_WEIGHT : operand == 2 ? ROLE_BIAS : ROLE_OTHER, kernel_fan_in(op));
		break;
	case OP_GATHER:
		offer(best, operand == 0 ? ROLE_TABLE : ROLE_OTHER, 0);
		break;
	case OP_LAYER_NORM: case OP_RMS_NORM: case OP_BATCH_NORM:
		offer(best, operand == 1 ? ROLE_SCALE : operand == 2 ? ROLE_SHIFT : ROLE_OTHER, 0);
		break;
	case OP_ADD: case OP_SUB:
		offer_sum(best, op, operand);
		break;
	case OP_MUL:
		offer(best, ir_user(op->out[0], OP_WHERE) ? ROLE_SLOPE : ROLE_SCALE, 0);
		break;
	case OP_DIV:
		offer(best, ROLE_SCALE, 0);
		break;
	default:
		offer(best, ROLE_OTHER, 0);
	}
}

static void follow(const Value *v, Found *best)
{
	for (const Use *u = v->uses; u; u = u->next) {
		const Op *op = u->op;
		if (!moves(op->kind)) {
			offer_use(best, op, (int)(u - op->in));
			continue;
		}
		for (int i = 0; i < op->n_out; i++)
			follow(op->out[i], best);
	}
}

static void set_random(Symbol *s, const Found *f, int64_t seed)
{
	double scale = roles[f->role].scale != 0 || roles[f->role].law == LAW_FILL ? roles[f->role].scale
		: 1 / sqrt((double)MAX(f->fan_in, 1));
	s->src.fill = roles[f->role].law == LAW_FILL ? scale : 0;
	if (roles[f->role].law == LAW_FILL)
		return;
	s->src.init = roles[f->role].law == LAW_NORMAL ? "normal" : "uniform";
	s->src.scale = scale;
	s->src.seed = seed;
}

static void fill_random(Module *m, int64_t seed, Arena *a, Diag *d)
{
	PtrMap *found = ptrmap_new(a);
	for (int i = 0; i < m->n_symbols; i++) {
		Found *f = NEW(a, Found);
		f->role = ROLE_OTHER;
		ptrmap_put(found, m->symbols[i], f);
	}
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (op->kind == OP_PARAM)
				follow(op->out[0], ptrmap_get(found, op->sym));
	for (int i = 0; i < m->n_symbols; i++) {
		const Found *f = ptrmap_get(found, m->symbols[i]);
		if (!is_float_param(m->symbols[i]))
			continue;
		set_random(m->symbols[i], f, seed);
		diag_info(d, "--init", "\"%s\": %s", m->symbols[i]->name, roles[f->role].doc);
	}
}

/* ---- a file ---- */

static void source_from(Module *m, Symbol *s, const char *path, const SafeTensor *t)
{
	s->src = (Source){.file = ir_intern(m, path), .offset = t->offset, .bytes = t->bytes, .dtype = t->dtype,
		.rank = t->rank};
	for (int i = 0; i < t->rank; i++) {
		s->src.dim[i] = t->dim[i];
		s->src.perm[i] = i;
	}
}

static bool fits(const Symbol *s, const SafeTensor *t, const char *path, Arena *a, Diag *d)
{
	Type type = type_tensor(t->dtype, t->rank, t->dim);
	bool same = type_same_shape(&type, &s->type), good = same && (t->dtype == s->type.dtype ||
		(dtype_is_float(t->dtype) && dtype_is_float(s->type.dtype)));
	if (!good)
		diag_error(d, path, "tensor \"%s\" is %s, the model's is %s", str_escape(a, ESCAPE_IR, s->name),
			type_str(a, &type), type_str(a, &s->type));
	return good;
}

/* A buffer for which the model has contents may be missing in the file: frameworks do not save all of them. */
static void take_tensor(Module *m, Symbol *s, const SafeFile *f, Arena *a, Diag *d)
{
	const SafeTensor *t = safetensors_find(f, s->name);
	if (t && fits(s, t, f->path, a, d))
		source_from(m, s, f->path, t);
	else if (!t && (s->kind == SYM_PARAM || !s->src.file))
		diag_error(d, f->path, "there is no tensor \"%s\", which the model has as %s",
			str_escape(a, ESCAPE_IR, s->name), type_str(a, &s->type));
}

/* Whether the module uses the same tensor under another name: frameworks may save tied tensors twice. */
static bool is_copy(const SafeTensor *t, const Module *m, const SafeFile *f)
{
	for (int i = 0; i < m->n_symbols; i++) {
		const SafeTensor *used = m->symbols[i]->src.file ? safetensors_find(f, m->symbols[i]->name) : NULL;
		if (used && used != t && used->dtype == t->dtype && used->bytes == t->bytes &&
			!memcmp(used->data, t->data, (size_t)t->bytes))
			return true;
	}
	return false;
}

static void report_others(const Module *m, const SafeFile *f, Arena *a, Diag *d)
{
	for (int i = 0; i < f->n; i++) {
		const SafeTensor *t = &f->tensors[i];
		const Symbol *s = ir_find_symbol(m, t->name);
		const char *name = str_escape(a, ESCAPE_IR, t->name);
		if (s && (s->kind == SYM_PARAM || s->kind == SYM_BUFFER))
			continue;
		if (!dtype_is_float(t->dtype))
			diag_info(d, f->path, "tensor \"%s\" is left out: %s are no weights", name, dtype_info[t->dtype].text);
		else if (is_copy(t, m, f))
			diag_info(d, f->path, "tensor \"%s\" is left out: a copy of one that is used", name);
		else
			diag_error(d, f->path, "the model has no tensor \"%s\"", name);
	}
}

static void take_file(Module *m, const char *path, Arena *a, Diag *d)
{
	SafeFile *f = safetensors_open(a, path, d);
	if (!f)
		return;
	for (int i = 0; i < m->n_symbols; i++)
		if (m->symbols[i]->kind == SYM_PARAM || m->symbols[i]->kind == SYM_BUFFER)
			take_tensor(m, m->symbols[i], f, a, d);
	report_others(m, f, a, d);
	safetensors_close(f);
}

/* ---- the pass ---- */

bool pass_init(Module *m, const Options *o, Diag *d)
{
	Choice c;
	int before = d->errors;
	if (!read_choice(o->graph.init, &c, d) || c.from == FROM_MODEL)
		return d->errors == before;
	Arena *a = arena_new();
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (is_float_param(s) && c.from != FROM_FILE)
			s->src = (Source){.dtype = s->type.dtype};
	}
	if (c.from == RANDOM)
		fill_random(m, c.seed, a, d);
	else if (c.from == FROM_FILE)
		take_file(m, c.path, a, d);
	arena_free(a);
	return d->errors == before;
}
