/* frontend/onnx_params.c: what an initializer is: parameter, buffer, datum or literal; merged ones untied.
 *
 * The exporter's metadata decides where it exists, else the role in the ops that use it and the name.
 * Exporters merge tensors that are equal when they export: all zero biases become one.  Such a tensor becomes
 * one parameter per module again; tensors tied by the model's code (embedding and output head) stay one, also
 * where constant folding stored the head's transpose beside the embedding. */
#include "frontend/onnx_params.h"

#include <string.h>

typedef struct Role {
	const char *op;
	int operand;
	const char *suffix;
	bool strong;
} Role;

static const Role roles[] = {
#define ROLE(op, operand, suffix, strong) {#op, operand, suffix, strong},
#include "frontend/roles.def"
};

static const Role *role_of(const char *op, int operand)
{
	for (int i = 0; i < COUNT_OF(roles); i++)
		if (roles[i].operand == operand && !strcmp(roles[i].op, op))
			return &roles[i];
	return NULL;
}

static bool is_statistic(const char *op, int operand)
{
	return operand >= 3 && !strcmp(op, "BatchNormalization");
}

/* ---- collecting ---- */

Weight *params_add(Import *im, const OnnxTensor *t)
{
	Weight *w = NEW(im->arena, Weight);
	w->t = t;
	w->typed = onnx_tensor_type(t, &w->type);
	w->as = t->name;
	map_put(im->weights, t->name, w);
	return w;
}

static const char *metadata(const Onnx__ValueInfoProto *v, const char *key)
{
	for (size_t i = 0; i < v->n_metadata_props; i++)
		if (v->metadata_props[i]->key && !strcmp(v->metadata_props[i]->key, key))
			return v->metadata_props[i]->value;
	return NULL;
}

static void collect_metadata(Import *im, const OnnxInfoVec *infos)
{
	for (int i = 0; i < infos->n; i++) {
		const Onnx__ValueInfoProto *v = infos->at[i];
		Weight *w = v->name ? map_get(im->weights, v->name) : NULL;
		if (!w)
			continue;
		const char *persistent = metadata(v, "pkg.torch.export.graph_signature.InputSpec.persistent");
		w->kind = metadata(v, "pkg.torch.export.graph_signature.InputSpec.kind");
		w->folded_from = metadata(v, "pkg.onnxscript.optimizer.folded_from");
		w->transient = persistent && !strcmp(persistent, "False");
	}
}

typedef struct Alias { Weight *w; const char *name; } Alias;

static Alias *find_weight(Import *im, const Map *aliases, const char *name)
{
	Alias *a = map_get(aliases, name);
	Weight *w = a ? NULL : map_get(im->weights, name);
	if (w) {
		a = NEW(im->arena, Alias);
		a->w = w;
	}
	return a;
}

static void collect_uses(Import *im)
{
	const OnnxGraph *g = &im->onnx->graph;
	Frame top = {.prefix = "", .scope = ""};
	Map *aliases = map_new(im->arena);
	for (int i = 0; i < g->nodes.n; i++) {
		const Onnx__NodeProto *n = g->nodes.at[i];
		const char *op = n->op_type ? n->op_type : "";
		for (int k = 0; k < (int)n->n_input; k++) {
			Alias *a = find_weight(im, aliases, n->input[k]);
			if (a && !strcmp(op, "Identity") && n->n_output) {
				Alias *now = NEW(im->arena, Alias);
				*now = (Alias){a->w, n->output[0]};
				map_put(aliases, n->output[0], now);
			} else if (a) {
				vec_push(im->arena, &a->w->uses, ((WeightUse){.op = op, .operand = k,
					.scope = names_scope(im, &top, n), .alias = a->name}));
			}
		}
	}
}

/* ---- classes ---- */

static bool has_use(const Weight *w, const char *op, int operand)
{
	for (int i = 0; i < w->uses.n; i++)
		if (w->uses.at[i].operand == operand && !strcmp(w->uses.at[i].op, op))
			return true;
	return false;
}

static const WeightUse *strong_use(const Weight *w)
{
	for (int i = 0; i < w->uses.n; i++) {
		const Role *r = role_of(w->uses.at[i].op, w->uses.at[i].operand);
		if (r && r->strong)
			return &w->uses.at[i];
	}
	return NULL;
}

static bool only_statistics(const Weight *w)
{
	bool all = w->uses.n > 0;
	for (int i = 0; i < w->uses.n; i++)
		all = all && is_statistic(w->uses.at[i].op, w->uses.at[i].operand);
	return all;
}

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), k = strlen(end);
	return n >= k && !strcmp(s + n - k, end);
}

static bool named_as_buffer(const char *name)
{
	static const char *const ends[] = {"running_mean", "running_var", "inv_freq", "_ids", "mask", "masked_bias",
		".pe", "cos_cached", "sin_cached", "relative_position_index"};
	for (int i = 0; i < COUNT_OF(ends); i++)
		if (ends_with(name, ends[i]))
			return true;
	return false;
}

/* The only name in "['fc.weight']", NULL when there are more. */
static const char *folded_from_one(Import *im, const Weight *w)
{
	const char *s = w->folded_from ? strchr(w->folded_from, '\'') : NULL;
	const char *end = s ? strchr(s + 1, '\'') : NULL;
	if (!end || strchr(end + 1, '\''))
		return NULL;
	return arena_strndup(im->arena, s + 1, (size_t)(end - s - 1));
}

/* A name that no framework gave, though weights carry it. */
static bool made_up_weight(const char *name)
{
	return !strncmp(name, "onnx::", 6) || !strncmp(name, "const_fold", 10) || (*name >= '0' && *name <= '9');
}

/* TorchScript folds the unsqueezed scale and shift of a norm into onnx::Mul_7 of [C,1,1]. */
static bool is_folded_vector(const Weight *w)
{
	int wide = 0;
	for (int i = 0; i < w->type.rank; i++)
		wide += w->type.dim[i] != 1;
	return wide == 1 && w->type.rank > 1 && w->uses.n > 0 && *w->uses.at[0].scope
		&& (!strncmp(w->t->name, "onnx::Mul_", 10) || !strncmp(w->t->name, "onnx::Add_", 10));
}

static WeightClass class_of(Import *im, const Weight *w)
{
	bool made_up = names_is_made_up(w->t->name);
	if (!w->typed || !dtype_is_float(w->type.dtype))
		return WEIGHT_CONST;
	if (only_statistics(w))
		return WEIGHT_BUFFER;
	if (w->kind && strcmp(w->kind, "PARAMETER"))
		return strcmp(w->kind, "BUFFER") || w->transient ? WEIGHT_CONST : WEIGHT_BUFFER;
	if (w->kind)
		return WEIGHT_PARAM;
	if (w->folded_from)
		return folded_from_one(im, w) && strong_use(w) ? WEIGHT_PARAM : WEIGHT_CONST;
	if (is_folded_vector(w))
		return WEIGHT_PARAM;
	if (strong_use(w))
		return !made_up || made_up_weight(w->t->name) ? WEIGHT_PARAM : WEIGHT_CONST;
	if (named_as_buffer(w->t->name))
		return WEIGHT_BUFFER;
	return made_up || (type_numel(&w->type) == 1 && !strchr(w->t->name, '.')) ? WEIGHT_CONST : WEIGHT_PARAM;
}

/* ---- values, sampled ---- */

typedef struct Bytes { Span at; const FileMap *file; int size; } Bytes;

static bool weight_bytes(Import *im, const Weight *w, Bytes *out)
{
	Diag quiet = *im->d;
	quiet.max_errors = -1; /* reported when the value is read */
	out->size = dtype_info[w->type.dtype].bytes;
	return (!w->t->typed || w->t->has_raw) && onnx_tensor_bytes(im->onnx, w->t, &out->at, &out->file, &quiet);
}

bool weight_is_splat(Import *im, const Weight *w, double *value)
{
	Bytes b;
	int64_t n = type_numel(&w->type);
	if (!n || !weight_bytes(im, w, &b))
		return false;
	for (int64_t i = 1; i < n; i++)
		if (memcmp(b.at.at, b.at.at + i * b.size, (size_t)b.size))
			return false;
	HostTensor t = {w->type, b.at.at};
	*value = host_get_float(&t, 0);
	return true;
}

enum { SAMPLES = 4096 };

/* Whether w holds other's transpose.  Compared at 4096 positions spread over rows and columns, so that a
 * model's largest tensors are not read; equal tensors that are all one number do not count. */
static bool is_transpose(Import *im, const Weight *w, const Weight *other)
{
	Bytes a, b;
	if (w == other || other->tie || !other->typed || w->type.rank != 2 || other->type.rank != 2
		|| w->type.dtype != other->type.dtype || w->type.dim[0] != other->type.dim[1]
		|| w->type.dim[1] != other->type.dim[0] || !weight_bytes(im, w, &a) || !weight_bytes(im, other, &b))
		return false;
	int64_t rows = w->type.dim[0], cols = w->type.dim[1], n = MIN(rows * cols, (int64_t)SAMPLES);
	bool varied = false;
	for (int64_t k = 0; k < n; k++) {
		int64_t i = n == SAMPLES ? (k * 2654435761) % rows : k / cols;
		int64_t j = n == SAMPLES ? (k * 40503 + k / cols) % cols : k % cols;
		const uint8_t *p = a.at.at + (i * cols + j) * a.size;
		if (memcmp(p, b.at.at + (j * rows + i) * b.size, (size_t)a.size))
			return false;
		varied = varied || memcmp(p, a.at.at, (size_t)a.size);
	}
	return varied;
}

/* ---- names, ties and merged tensors ---- */

static const char *name_by_use(Import *im, const Weight *w, const char *op, int operand, const char *scope,
	const char *alias)
{
	const Role *r = role_of(op, operand);
	if (alias && !names_is_made_up(alias))
		return alias;
	if (r && *scope)
		return arena_printf(im->arena, "%s.%s", scope, r->suffix);
	return w->as;
}

static void name_folded(Import *im, Weight *w)
{
	const WeightUse *u = strong_use(w);
	const char *from = folded_from_one(im, w);
	bool right = w->type.rank == 2 && has_use(w, "MatMul", 1);
	if (from) {
		w->as = from;
		w->transposed = w->type.rank == 2;
	} else if (u && names_is_made_up(w->t->name)) {
		w->as = name_by_use(im, w, u->op, u->operand, u->scope, u->alias);
		w->transposed = right && !strncmp(w->t->name, "onnx::MatMul", 12);
	}
	if (is_folded_vector(w)) {
		u = &w->uses.at[0];
		w->as = name_by_use(im, w, u->op, u->operand, u->scope, u->alias);
		w->flat = true;
	}
	if (strcmp(w->as, w->t->name))
		diag_info(im->d, im->onnx->path, "tensor \"%s\" is parameter \"%s\"%s", w->t->name, w->as,
			w->transposed ? ", transposed" : "");
}

typedef VEC(Weight *) WeightVec;

static void find_tie(Import *im, Weight *w, const WeightVec *tables)
{
	Weight *other = map_get(im->weights, w->as);
	if (!w->transposed)
		return;
	if (!other || !is_transpose(im, w, other))
		other = NULL;
	for (int i = 0; !other && i < tables->n; i++)
		if (is_transpose(im, w, tables->at[i]))
			other = tables->at[i];
	w->tie = other;
	if (other)
		diag_info(im->d, im->onnx->path, "tie recovered: \"%s\" (tensor \"%s\") is the transpose of \"%s\"", w->as,
			w->t->name, other->as);
}

static void decide_untie(Import *im, Weight *w)
{
	Map *names = map_new(im->arena);
	double v = 0;
	for (int i = 0; i < w->uses.n; i++) {
		const WeightUse *u = &w->uses.at[i];
		map_put(names, name_by_use(im, w, u->op, u->operand, u->scope, u->alias), w);
	}
	if (map_count(names) < 2)
		return;
	bool initial = w->type.rank == 1 && weight_is_splat(im, w, &v) && (v == 0 || v == 1);
	w->split = im->o->untie == UNTIE_ALL || (im->o->untie == UNTIE_AUTO && initial);
	if (!w->split) {
		diag_info(im->d, im->onnx->path, "\"%s\" stays one %s for its %d uses", w->as,
			w->class == WEIGHT_PARAM ? "parameter" : "buffer", w->uses.n);
		return;
	}
	for (int i = 0; i < map_count(names); i++)
		diag_info(im->d, im->onnx->path, "untied: \"%s\" from tensor \"%s\"%s", map_key(names, i), w->t->name,
			initial ? (v == 0 ? ", all zeros" : ", all ones") : "");
}

/* Says which parameters constant folding took away. */
static void warn_lost(Import *im, const Weight *w)
{
	const char *list = w->class == WEIGHT_CONST && w->folded_from ? w->folded_from : "";
	for (const char *s = strchr(list, '\''), *end; s && (end = strchr(s + 1, '\'')); s = strchr(end + 1, '\'')) {
		const char *name = arena_strndup(im->arena, s + 1, (size_t)(end - s - 1));
		if (!im->o->infer && strchr(name, '.') && !named_as_buffer(name) && !map_has(im->weights, name))
			diag_warn(im->d, im->onnx->path, "parameter \"%s\" is lost: the exporter folded it into the constant "
				"\"%s\"; export with optimize=False to train it", name, w->t->name);
	}
}

void params_classify(Import *im)
{
	collect_metadata(im, &im->onnx->graph.infos);
	WeightVec tables = {0}; /* embeddings */
	collect_uses(im);
	for (int i = 0; i < map_count(im->weights); i++) {
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		w->class = class_of(im, w);
		if (has_use(w, "Gather", 0) && w->class == WEIGHT_PARAM)
			vec_push(im->arena, &tables, w);
		if (w->class == WEIGHT_PARAM)
			name_folded(im, w);
		warn_lost(im, w);
	}
	for (int i = 0; i < map_count(im->weights); i++) {
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		if (w->class == WEIGHT_PARAM)
			find_tie(im, w, &tables);
		if (w->class != WEIGHT_CONST && !w->tie)
			decide_untie(im, w);
	}
}

/* ---- symbols ---- */

static bool fill_source(Import *im, const Weight *w, Source *src)
{
	const OnnxTensor *t = w->t;
	Span bytes;
	const FileMap *file;
	if (t->typed && !t->has_raw && !t->problem && !t->external) {
		diag_error(im->d, im->onnx->path, "tensor \"%s\" is stored element by element: save the model with raw data",
			str_escape(im->arena, ESCAPE_IR, t->name));
		return false;
	}
	if (t->external && im->o->shapes_only) {
		const char *path;
		if (!onnx_tensor_external(im->onnx, t, &path, &src->bytes, im->d))
			return false;
		src->file = ir_intern(im->m, path);
		src->offset = t->offset;
	} else {
		if (!onnx_tensor_bytes(im->onnx, t, &bytes, &file, im->d)) {
			if (t->external && w->class == WEIGHT_PARAM && !im->said_init)
				diag_note(im->d, im->onnx->path, "--init=random:SEED wants the shapes of weights only");
			im->said_init = true;
			return false;
		}
		src->file = ir_intern(im->m, file->path);
		src->offset = (int64_t)(bytes.at - file->bytes.at);
		src->bytes = (int64_t)bytes.n;
	}
	src->dtype = w->type.dtype;
	src->rank = w->type.rank;
	for (int i = 0; i < src->rank; i++) {
		src->dim[i] = w->type.dim[i];
		src->perm[i] = w->transposed ? 1 - i : i;
	}
	return true;
}

/* As the symbol itself, in a file or not. */
static void source_plain(Source *src, const Type *t)
{
	src->dtype = t->dtype;
	src->rank = t->rank;
	for (int i = 0; i < t->rank; i++) {
		src->dim[i] = t->dim[i];
		src->perm[i] = i;
	}
}

/* What --init gives its contents: parameters, and the statistics of batch norms, which start anew with them. */
static bool starts_elsewhere(const Import *im, const Weight *w, SymbolKind kind)
{
	return im->o->init_elsewhere && (kind == SYM_PARAM || (kind == SYM_BUFFER && only_statistics(w)));
}

static Symbol *make_symbol(Import *im, Weight *w, SymbolKind kind, const char *name)
{
	Type t = w->type;
	Source src = {0};
	bool elsewhere = starts_elsewhere(im, w, kind);
	if (w->transposed) {
		t.dim[0] = w->type.dim[1];
		t.dim[1] = w->type.dim[0];
	}
	if (elsewhere)
		src.fill = has_use(w, "BatchNormalization", 4);
	else if (!fill_source(im, w, &src))
		return NULL;
	if (w->flat && elsewhere)
		t = type_tensor(t.dtype, 1, (int64_t[]){type_numel(&w->type)});
	else if (w->flat) {
		t = type_tensor(t.dtype, 1, (int64_t[]){type_numel(&w->type)});
		src.rank = 1;
		src.dim[0] = t.dim[0];
		src.perm[0] = 0;
	}
	if (elsewhere)
		source_plain(&src, &t);
	if (!str_is_utf8(name))
		diag_error(im->d, im->onnx->path, "the name of tensor \"%s\" is not UTF-8, as the names in checkpoints are",
			str_escape(im->arena, ESCAPE_JSON, name));
	Symbol *s = ir_add_symbol(im->m, kind, name, t);
	s->onnx = ir_intern(im->m, w->t->name);
	s->src = src;
	s->trainable = kind == SYM_PARAM;
	return s;
}

static Value *symbol_value(Import *im, Weight *w, SymbolKind kind, const char *name)
{
	for (int i = 0; i < w->made.n; i++)
		if (w->made.at[i].kind == kind && !strcmp(w->made.at[i].name, name))
			return w->made.at[i].v;
	Symbol *s = make_symbol(im, w, kind, name);
	Value *v = s ? ir_read(&im->b, s) : &im->m->poison;
	if (s && w->transposed)
		v = ir_transpose(&im->b, v, (int[]){1, 0});
	if (s && w->flat)
		v = ir_reshape(&im->b, v, w->type.rank, w->type.dim);
	vec_push(im->arena, &w->made, ((WeightMade){kind, name, v}));
	return v;
}

/* Position tables too long to print: a vector whose neighbours differ by one number. */
static Value *progression(Import *im, const Weight *w)
{
	int64_t n = type_numel(&w->type), *v;
	int axis = -1;
	for (int i = 0; i < w->type.rank; i++)
		if (w->type.dim[i] == n)
			axis = i;
	if (axis < 0 || w->type.dtype == DT_BOOL || !onnx_tensor_ints(im->onnx, w->t, im->arena, &v, im->d))
		return NULL;
	for (int64_t i = 2; i < n; i++)
		if ((uint64_t)v[i] - (uint64_t)v[i - 1] != (uint64_t)v[1] - (uint64_t)v[0])
			return NULL;
	return emit_iota(&im->b, w->type.dtype, w->type.rank, w->type.dim, axis, (double)v[0],
		(double)v[1] - (double)v[0]);
}

/* Literals are for what passes must see through: few numbers, one number repeated, positions. */
static Value *literal_value(Import *im, const Weight *w)
{
	EvalTensor t = {.type = w->type};
	int64_t n = type_numel(&w->type);
	bool is_float = dtype_is_float(t.type.dtype);
	double splat;
	if (n > (is_float ? LITERAL_FLOATS_MAX : LITERAL_MAX))
		return weight_is_splat(im, w, &splat) ? ir_const_full(&im->b, w->type, splat)
			: is_float ? NULL : progression(im, w);
	bool read = is_float ? onnx_tensor_floats(im->onnx, w->t, im->arena, &t.f, im->d)
		: onnx_tensor_ints(im->onnx, w->t, im->arena, &t.i, im->d);
	return read ? emit_literal(&im->b, &t) : NULL;
}

static Value *const_value(Import *im, Weight *w)
{
	int before = im->d->errors;
	if (w->made.n)
		return w->made.at[0].v;
	Value *v = literal_value(im, w);
	if (!v && im->d->errors == before)
		v = onnx_mask_value(im, w);
	if (v) {
		vec_push(im->arena, &w->made, ((WeightMade){SYM_DATA, w->as, v}));
		return v;
	}
	if (im->d->errors == before)
		return symbol_value(im, w, SYM_DATA, w->as);
	return &im->m->poison;
}

Value *params_constant(Import *im, const OnnxTensor *t, bool in_file)
{
	Weight w = {.t = t, .as = t->name, .class = WEIGHT_CONST};
	w.typed = onnx_tensor_type(t, &w.type);
	if (!in_file && w.typed && !t->external) {
		/* Bytes that the decoder copied have no place in the file to be read from later. */
		EvalTensor e = {.type = w.type};
		bool read = dtype_is_float(w.type.dtype) ? onnx_tensor_floats(im->onnx, t, im->arena, &e.f, im->d)
			: onnx_tensor_ints(im->onnx, t, im->arena, &e.i, im->d);
		return read ? emit_literal(&im->b, &e) : NULL;
	}
	Value *v = params_value(im, &w, NULL, NULL, -1);
	return v == &im->m->poison ? NULL : v;
}

/* v: a symbol as a node reads it, moved or not. */
static void add_place(Import *im, const Node *n, const Weight *w, const Value *v, const char *alias, int input)
{
	while (v->op && !v->op->sym)
		v = op_in(v->op, 0);
	if (!v->op)
		return; /* poison */
	OnnxPlace p = {.tensor = w ? w->t : NULL, .symbol = v->op->sym, .alias = alias, .node = n->proto, .operand = input,
		.inner = n->frame->function || n->frame->outer};
	const Role *r = role_of(n->op, input);
	if (w && !w->split && r && !strcmp(r->suffix, "weight") && *n->scope)
		p.module_name = arena_printf(im->arena, "%s.%s", n->scope, r->suffix);
	p.transposed = w && (w->tie ? !w->tie->transposed : w->transposed);
	vec_push(im->arena, &im->places, p);
}

Value *params_value(Import *im, Weight *w, const char *alias, const Node *n, int input)
{
	if (w->t->problem) {
		Span bytes;
		const FileMap *file;
		if (!w->reported)
			onnx_tensor_bytes(im->onnx, w->t, &bytes, &file, im->d);
		w->reported = true;
		return &im->m->poison;
	}
	if (!w->typed) {
		if (!w->reported)
			diag_error(im->d, im->onnx->path, "refused: tensor \"%s\" has dtype %s, which is not supported",
				str_escape(im->arena, ESCAPE_IR, w->t->name), onnx_dtype_name(w->t->data_type));
		w->reported = true;
		return &im->m->poison;
	}
	if (w->class == WEIGHT_CONST)
		return const_value(im, w);
	if (w->tie) {
		Value *v = symbol_value(im, w->tie, SYM_PARAM, w->tie->as);
		add_place(im, n, w, v, alias, input);
		return v->op ? ir_transpose(&im->b, v, (int[]){1, 0}) : v;
	}
	bool statistic = is_statistic(n->op, input);
	const char *name = w->split || (statistic && w->class == WEIGHT_PARAM)
		? name_by_use(im, w, n->op, input, n->scope, alias) : w->as;
	Value *v = symbol_value(im, w, statistic || w->class == WEIGHT_BUFFER ? SYM_BUFFER : SYM_PARAM, name);
	add_place(im, n, w, v, alias, input);
	return v;
}

Value *params_restore(Node *n, int input, const char *suffix, Type type, double fill)
{
	Import *im = n->im;
	const char *name = arena_printf(im->arena, "%s.%s", n->scope, suffix);
	Symbol *s = ir_add_symbol(im->m, SYM_PARAM, name, type);
	s->onnx = "";
	s->trainable = true;
	s->src.fill = fill;
	diag_info(im->d, im->onnx->path, "restored: parameter \"%s\", which the exporter dropped because it is all %g",
		s->name, fill);
	Value *v = ir_read(&im->b, s);
	add_place(im, n, NULL, v, NULL, input);
	return v;
}
