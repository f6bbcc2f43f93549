/* frontend/onnx_params.c: makes the IR value of an initializer: a parameter, a buffer, data or a literal.
 *
 * onnx_roles.c and onnx_ties.c have decided what the initializer is.  When the first node reads it, it becomes a
 * symbol, or several symbols if it is untied.  Tensors of few numbers, of one repeated number and of positions become
 * literals, because passes can see through these. */
#include "base/safetensors.h"
#include "frontend/onnx_params.h"

#include <string.h>

static Weight *add_weight(Import *im, const OnnxTensor *t, const char *name)
{
	Weight *w = NEW(im->arena, Weight);
	w->t = t;
	w->typed = onnx_tensor_type(t, &w->type);
	w->narrow = narrow_from_onnx(t->data_type);
	w->as = name;
	map_put(im->weights, name, w);
	return w;
}

Weight *params_add(Import *im, const OnnxTensor *t)
{
	return add_weight(im, t, t->name);
}

/* Adds the initializers of all subgraphs.  One whose name is taken is called after the node that has the subgraph. */
static void add_inner(Import *im, const OnnxGraph *g, int depth)
{
	for (int i = 0; i < g->nodes.n; i++) {
		const Onnx__NodeProto *n = g->nodes.at[i];
		for (size_t k = 0; depth < SUBGRAPHS_MAX && k < n->n_attribute; k++) {
			const OnnxGraph *sub = n->attribute[k]->has_g ? onnx_subgraph(im->onnx, n->attribute[k], im->d) : NULL;
			for (int t = 0; sub && t < sub->tensors.n; t++) {
				const char *name = sub->tensors.at[t].name;
				if (map_has(im->weights, name) && n->name && *n->name)
					name = arena_printf(im->arena, "%s.%s", n->name, name);
				for (int j = 1; map_has(im->weights, name); j++)
					name = arena_printf(im->arena, "%s.%d", sub->tensors.at[t].name, j);
				Weight *w = add_weight(im, &sub->tensors.at[t], name);
				w->inner = true;
				ptrmap_put(im->inner, &sub->tensors.at[t], w);
			}
			if (sub)
				add_inner(im, sub, depth + 1);
		}
	}
}

void params_add_inner(Import *im)
{
	add_inner(im, &im->onnx->graph, 0);
}

void params_classify(Import *im)
{
	uses_collect(im);
	for (int i = 0; i < map_count(im->weights); i++)
		weight_decide(im, map_get(im->weights, map_key(im->weights, i)));
	ties_find(im);
	if (im->trainable)
		trainable_apply(im);
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

/* A source of the symbol's own type, without a permutation; it may lie in a file or not. */
static void source_plain(Source *src, const Type *t)
{
	src->dtype = t->dtype;
	src->rank = t->rank;
	for (int i = 0; i < t->rank; i++) {
		src->dim[i] = t->dim[i];
		src->perm[i] = i;
	}
}

/* Whether --init gives its contents: true of parameters, and of batch norm statistics, which start anew with them. */
static bool starts_elsewhere(const Import *im, const Weight *w, SymbolKind kind)
{
	return im->o->init_elsewhere && (kind == SYM_PARAM || (kind == SYM_BUFFER && weight_only_statistics(w)));
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
		src.fill = weight_has_use(w, "BatchNormalization", 4);
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
	const char *lost = safetensors_refuses(name);
	if (lost)
		diag_error(im->d, im->onnx->path, "the name of tensor \"%s\" %s: checkpoints cannot hold it, give it another",
			str_escape(im->arena, ESCAPE_JSON, name), lost);
	Symbol *s = ir_add_symbol(im->m, kind, name, t);
	s->onnx = ir_intern(im->m, w->t->name);
	s->src = src;
	s->trainable = kind == SYM_PARAM && !w->frozen;
	s->n_aliases = w->alias.n;
	s->alias = NEW_N(im->m->arena, const char *, w->alias.n);
	for (int i = 0; i < w->alias.n; i++)
		s->alias[i] = ir_intern(im->m, w->alias.at[i]);
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

/* Position tables too long to print: a vector in which neighbours differ by a constant becomes an iota. */
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

/* The literal for a tensor that passes must see through (few numbers, one repeated number, positions); else NULL. */
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
	if (v) {
		vec_push(im->arena, &w->made, ((WeightMade){SYM_DATA, w->as, v}));
		return v;
	}
	if (im->d->errors == before)
		return symbol_value(im, w, SYM_DATA, w->as);
	return &im->m->poison;
}

/* The value of a tensor of a narrow type: a literal, or its packed bytes, spread. */
static Value *narrow_value(Import *im, Weight *w, bool in_file)
{
	EvalTensor e;
	Type wide = type_tensor(w->narrow->wide, w->t->rank, w->t->dim);
	OnnxTensor *bytes = NEW(im->arena, OnnxTensor);
	*bytes = narrow_packed_tensor(w->t, w->narrow);
	Weight packed = {.t = bytes, .as = w->as, .class = WEIGHT_CONST, .type = type_tensor(DT_U8, 1, bytes->dim)};
	if (w->made.n)
		return w->made.at[0].v;
	Value *v = &im->m->poison;
	if (type_numel(&wide) <= LITERAL_MAX || !in_file)
		v = narrow_tensor(im, w->t, w->narrow, &e) ? emit_literal(&im->b, &e) : v;
	else
		v = symbol_value(im, &packed, SYM_DATA, w->as);
	if (packed.made.n && v != &im->m->poison)
		v = narrow_spread(&im->b, v, w->narrow, &wide);
	vec_push(im->arena, &w->made, ((WeightMade){SYM_DATA, w->as, v}));
	return v;
}

Value *params_constant(Import *im, const OnnxTensor *t, bool in_file)
{
	Weight w = {.t = t, .as = t->name, .class = WEIGHT_CONST, .narrow = narrow_from_onnx(t->data_type)};
	w.typed = onnx_tensor_type(t, &w.type);
	if (w.narrow && !t->problem) {
		Value *v = narrow_value(im, &w, in_file || t->external);
		return v == &im->m->poison ? NULL : v;
	}
	if (!in_file && w.typed && !t->external) {
		/* The decoder copied these bytes out of the file, so they have no offset to be read from later. */
		EvalTensor e = {.type = w.type};
		bool read = dtype_is_float(w.type.dtype) ? onnx_tensor_floats(im->onnx, t, im->arena, &e.f, im->d)
			: onnx_tensor_ints(im->onnx, t, im->arena, &e.i, im->d);
		return read ? emit_literal(&im->b, &e) : NULL;
	}
	Value *v = params_value(im, &w, NULL, NULL, -1);
	return v == &im->m->poison ? NULL : v;
}

/* Whether scope is another call of the module that owns the parameter: TorchScript writes "h_1" for the second call of
 * "h". */
static bool is_call_again(Import *im, const char *scope, const char *param)
{
	const char *dot = strrchr(param, '.');
	const char *module = arena_strndup(im->arena, param, dot ? (size_t)(dot - param) : 0);
	return strcmp(scope, module) != 0 && names_same_module(scope, module);
}

/* The name that the module around a node gives a weight or bias; NULL where it would not be a name of the framework. */
static const char *module_name(Import *im, const Node *n, const Weight *w, const Symbol *s, int input)
{
	const Role *r = role_of(n->op, input);
	bool named = r && (!strcmp(r->suffix, "weight") || !strcmp(r->suffix, "bias")) && *n->scope;
	if (!w || w->whole || !named || im->meta || strstr(s->name, ".parametrizations."))
		return NULL;
	const char *name = arena_printf(im->arena, "%s.%s", n->scope, r->suffix);
	if (im->signature)
		return map_has(im->signature, name) ? name : NULL;
	return is_call_again(im, n->scope, s->name) ? NULL : name;
}

/* Records that a node reads symbol v, possibly transposed or reshaped. */
static void add_place(Import *im, const Node *n, const Weight *w, const Value *v, const char *alias, int input)
{
	while (v->op && !v->op->sym)
		v = op_in(v->op, 0);
	if (!v->op)
		return; /* the value is poison */
	OnnxPlace p = {.tensor = w ? w->t : NULL, .symbol = v->op->sym, .alias = alias, .node = n->proto, .operand = input,
		.inner = n->frame->function || n->frame->outer};
	p.module_name = module_name(im, n, w, p.symbol, input);
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
	if (w->narrow)
		return narrow_value(im, w, true);
	if (!w->typed) {
		if (!w->reported)
			diag_error(im->d, im->onnx->path, "refused: tensor \"%s\" has dtype %s, which is not supported",
				str_escape(im->arena, ESCAPE_IR, w->t->name), onnx_dtype_name(w->t->data_type));
		w->reported = true;
		return &im->m->poison;
	}
	WeightUse use = {.operand = input, .alias = alias};
	if (n) {
		use.op = n->op;
		use.scope = n->scope;
		use.fx = n->proto ? names_metadata(n->proto, "pkg.torch.onnx.fx_node") : NULL;
		w = weight_part(im, w, &use);
	}
	if (w->class == WEIGHT_CONST)
		return const_value(im, w);
	if (w->tie) {
		Weight *held = weight_held(w);
		Value *v = symbol_value(im, held, SYM_PARAM, held->as);
		add_place(im, n, w, v, alias, input);
		return v->op ? ir_transpose(&im->b, v, (int[]){1, 0}) : v;
	}
	bool statistic = is_statistic(n->op, input);
	const char *name = statistic && w->class == WEIGHT_PARAM && !w->whole ? weight_name(im, w, &use) : w->as;
	Value *v = symbol_value(im, w, statistic || w->class == WEIGHT_BUFFER ? SYM_BUFFER : SYM_PARAM, name);
	add_place(im, n, w, v, alias, input);
	return v;
}

/* Appends a name that the module lacks.  num_batches_tracked is left out: PyTorch counts anew where a file lacks it. */
static void add_absent(Import *im, Map *has, NameVec *names, const char *name)
{
	static const char count[] = "num_batches_tracked";
	size_t n = strlen(name), k = sizeof(count) - 1;
	if (!map_has(has, name) && (n < k || strcmp(name + n - k, count) != 0))
		vec_push(im->arena, names, name);
}

void params_absent(Import *im, NameVec *names)
{
	Map *has = map_new(im->arena);
	for (int i = 0; i < im->m->n_symbols; i++) {
		const Symbol *s = im->m->symbols[i];
		map_put(has, s->name, has);
		for (int k = 0; k < s->n_aliases; k++)
			map_put(has, s->alias[k], has);
	}
	for (int i = 0; im->meta && i < im->meta->tensors.n; i++) {
		const MetaTensor *t = im->meta->tensors.at[i];
		if (t->kind == META_PARAMETER || (t->kind == META_BUFFER && t->persistent))
			add_absent(im, has, names, t->name);
		for (int k = 0; k < t->alias.n && !map_has(has, t->name); k++)
			add_absent(im, has, names, t->alias.at[k]);
	}
	for (int i = 0; !im->meta && im->signature && i < map_count(im->signature); i++)
		if (signature_is_saved(map_get(im->signature, map_key(im->signature, i))))
			add_absent(im, has, names, map_key(im->signature, i));
}

Value *params_restore(Node *n, int input, const char *suffix, Type type, double fill)
{
	Import *im = n->im;
	const char *fx = names_metadata(n->proto, "pkg.torch.onnx.fx_node");
	const char *name = im->signature && fx ? weight_absent_from(im, fx) : NULL;
	if (!name)
		name = arena_printf(im->arena, "%s.%s", n->scope, suffix);
	Symbol *s = ir_add_symbol(im->m, SYM_PARAM, name, type);
	s->onnx = "";
	s->trainable = !im->trainable || trainable_has(im, name);
	s->src.fill = fill;
	diag_info(im->d, im->onnx->path, "restored: parameter \"%s\", which the exporter dropped because it is all %g",
		str_escape(im->arena, ESCAPE_IR, s->name), fill);
	Value *v = ir_read(&im->b, s);
	add_place(im, n, NULL, v, NULL, input);
	return v;
}
