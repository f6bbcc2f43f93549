/* frontend/onnx_ties.c: finds names of initializers, ties, and tensors that the exporter merged.
 *
 * Exporters merge tensors that are equal at the time of export: all biases of zeros become one.  Such a tensor becomes
 * one parameter per module again.  Tensors that the model's code ties (embedding and output head) stay one, even if
 * constant folding stored the head's transpose beside the embedding.  A module that is called twice reads its tensors
 * twice; that is not a merge.  The metadata or the tensor's own name show that the calls belong to one module. */
#include "frontend/onnx_params.h"

#include <string.h>

/* Whether the scope is the module of a tensor of this name, at its first or a further call, or a module around it. */
static bool is_own_scope(const char *scope, const char *name)
{
	const char *end = strrchr(name, '.');
	for (const char *s = scope, *m = name; end && *s;) {
		size_t n = strcspn(s, "."), k = strcspn(m, ".");
		if (m >= end || !names_same_part(s, n, m, k))
			return false;
		s += n + (s[n] == '.');
		m += k + 1;
	}
	return end != NULL || !*scope;
}

/* Whether some tensor's name begins with the module's name: then "fc_1" is a module, not the second call of "fc". */
static bool is_module(Import *im, const char *scope)
{
	if (im->weight_names.n != map_count(im->weights))
		im->weight_names = map_sorted(im->weights, im->arena);
	return sorted_has_inside(&im->weight_names, scope, strlen(scope));
}

/* Whether the name belongs to another role, as "bn.bias" where running_mean is read: merged within one module. */
static bool plays_another(const char *name, const Role *r)
{
	const char *last = strrchr(name, '.');
	return r->strong && last && strcmp(last + 1, r->suffix) != 0 && role_has_suffix(last + 1);
}

/* The name that the user's place in the graph gives w: that of an Identity, or one made of the module around the
 * node. */
static const char *name_of_place(Import *im, const Weight *w, const WeightUse *u)
{
	const Role *r = role_of(u->op, u->operand);
	if (im->meta && w->meta)
		return w->as;
	if (u->alias && !names_is_made_up(u->alias))
		return u->alias;
	if (!r || !*u->scope || (w->named && !im->signature))
		return w->as;
	size_t n = strlen(u->scope);
	bool inside = !strncmp(w->as, u->scope, n) && w->as[n] == '.';
	bool own = !names_is_made_up(w->as) && is_own_scope(u->scope, w->as) && (inside || !is_module(im, u->scope))
		&& !plays_another(w->as, r);
	return own ? w->as : arena_printf(im->arena, "%s.%s", u->scope, r->suffix);
}

/* Whether the file has a tensor for the parameter or buffer: under its name, or as something folded from it. */
static bool is_held(Import *im, const char *name)
{
	if (!im->held)
		im->held = map_new(im->arena);
	for (; im->n_held < map_count(im->weights); im->n_held++) {
		const Weight *w = map_get(im->weights, map_key(im->weights, im->n_held));
		for (int k = 0; k < w->folded.n; k++)
			map_add(im->held, w->folded.at[k]);
	}
	return map_has(im->weights, name) || map_has(im->held, name);
}

const char *weight_absent_from(Import *im, const char *fx)
{
	const char *only = NULL;
	NameVec read = names_of_fx(fx, im->arena);
	for (int i = 0; i < read.n; i++) {
		const char *name = map_get(im->arguments, read.at[i]);
		if (!name || name == only || is_held(im, name))
			continue;
		if (only)
			return NULL;
		only = name;
	}
	return only;
}

const char *weight_name(Import *im, const Weight *w, const WeightUse *u)
{
	const char *name = name_of_place(im, w, u);
	if (!im->signature || !u->fx)
		return name;
	const char *argument = map_get(im->signature, name), *own = map_get(im->signature, w->as);
	if (argument && names_fx_reads(u->fx, argument))
		return name;
	const char *other = own && !names_fx_reads(u->fx, own) ? weight_absent_from(im, u->fx) : NULL;
	return other ? other : w->as;
}

/* ---- names ---- */

static const char *shown(Import *im, const char *name)
{
	return str_escape(im->arena, ESCAPE_IR, name);
}

static void name_weight(Import *im, Weight *w)
{
	const WeightUse *u = weight_strong_use(w);
	const char *from = weight_transposed_from(im, w);
	bool right = w->type.rank == 2 && weight_has_use(w, "MatMul", 1);
	if (w->meta) {
		w->as = w->meta->name;
		return;
	}
	if (from) {
		w->as = from;
		w->transposed = true;
	} else if (u && names_is_made_up(w->t->name)) {
		w->as = name_of_place(im, w, u);
		w->transposed = right && !strncmp(w->t->name, "onnx::MatMul", 12);
	}
	if (weight_is_folded_vector(w)) {
		w->as = name_of_place(im, w, &w->uses.at[0]);
		w->flat = true;
	}
	if (strcmp(w->as, w->t->name) != 0)
		diag_info(im->d, im->onnx->path, "tensor \"%s\" is parameter \"%s\"%s", shown(im, w->t->name), shown(im, w->as),
			w->transposed ? ", transposed" : "");
}

/* ---- ties ---- */

/* An embedding table, and the next one of the same key. */
typedef struct Table { Weight *w; struct Table *next; } Table;

/* The shape of w, or of its transpose, with a hash of 64 elements: tensors of different keys differ.  NULL: w is no
 * matrix or cannot be read. */
static const char *key_of(Import *im, const Weight *w, bool transposed)
{
	HostTensor h;
	if (!w->typed || w->type.rank != 2 || !type_numel(&w->type) || !weight_values(im, w, &h))
		return NULL;
	int64_t rows = w->type.dim[transposed], cols = w->type.dim[!transposed];
	size_t size = (size_t)dtype_info[w->type.dtype].bytes;
	uint64_t hash = 0;
	for (int64_t k = 0; k < 64; k++) {
		int64_t i = k * 2654435761 % rows, j = k * 40503 % cols, at = transposed ? j * rows + i : i * cols + j;
		hash = hash_bytes((const char *)h.data + (size_t)at * size, size, hash);
	}
	return arena_printf(im->arena, "%d %lld %lld %llx", (int)w->type.dtype, (long long)rows, (long long)cols,
		(unsigned long long)hash);
}

/* The first embedding table of each key. */
static Map *tables_collect(Import *im)
{
	Map *tables = map_new(im->arena);
	for (int i = map_count(im->weights) - 1; i >= 0; i--) { /* each is put before the later ones */
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		const char *key = w->class == WEIGHT_PARAM && weight_has_use(w, "Gather", 0) ? key_of(im, w, false) : NULL;
		if (!key)
			continue;
		Table *table = NEW(im->arena, Table);
		*table = (Table){w, map_get(tables, key)};
		map_put(tables, key, table);
	}
	return tables;
}

/* The first table whose transpose w is; NULL: there is none. */
static Weight *tables_find(Import *im, const Map *tables, const Weight *w)
{
	const char *key = map_count(tables) ? key_of(im, w, true) : NULL;
	for (const Table *t = key ? map_get(tables, key) : NULL; t; t = t->next)
		if (weight_is_transpose(im, w, t->w))
			return t->w;
	return NULL;
}

static void add_alias(Import *im, Weight *w, const char *name)
{
	if (!w->alias_names)
		w->alias_names = map_new(im->arena);
	if (strcmp(w->as, name) != 0 && map_add(w->alias_names, name))
		vec_push(im->arena, &w->alias, name);
}

static void find_tie(Import *im, Weight *w, const Map *tables)
{
	Weight *other = map_get(im->weights, w->as);
	if (!w->transposed)
		return;
	if (!other || !weight_is_transpose(im, w, other))
		other = tables_find(im, tables, w);
	w->tie = other;
	if (!other)
		return;
	if (!names_is_made_up(w->as))
		add_alias(im, other, w->as);
	diag_info(im->d, im->onnx->path, "tie recovered: \"%s\" (tensor \"%s\") is the transpose of \"%s\"",
		shown(im, w->as), shown(im, w->t->name), shown(im, other->as));
}

/* Adds as aliases the names that the modules which share w have for it.  If the model has a signature, only names that
 * it lists count. */
static void name_shared(Import *im, Weight *w)
{
	for (int i = 0; w->meta && i < w->meta->alias.n; i++)
		add_alias(im, w, w->meta->alias.at[i]);
	for (int i = 0; !im->meta && i < w->uses.n; i++) {
		const WeightUse *u = &w->uses.at[i];
		const Role *r = role_of(u->op, u->operand);
		bool shows = (u->alias && !names_is_made_up(u->alias)) || (r && (r->strong || !strcmp(u->op, "Transpose")));
		const char *name = name_of_place(im, w, u);
		if (shows && !map_has(im->weights, name) && (!im->signature || map_has(im->signature, name)))
			add_alias(im, w, name);
	}
}

/* ---- merged tensors ---- */

static Weight *part_called(const Weight *w, const char *name)
{
	return w->parts.n ? map_get(w->part_of, name) : NULL;
}

static Weight *add_part(Import *im, Weight *w, const char *name)
{
	Weight *part = NEW(im->arena, Weight);
	*part = (Weight){.t = w->t, .type = w->type, .typed = w->typed, .folded_from = w->folded_from,
		.folded = w->folded, .class = w->class, .frozen = w->frozen, .evidence = w->evidence, .why = w->why,
		.as = name, .transposed = w->transposed, .flat = w->flat, .whole = w};
	vec_push(im->arena, &w->parts, part);
	map_put(w->part_of, name, part);
	return part;
}

Weight *weight_part(Import *im, Weight *w, const WeightUse *u)
{
	if (!w->parts.n)
		return w;
	const char *name = weight_name(im, w, u);
	Weight *part = part_called(w, name);
	if (part)
		return part;
	/* Only a subgraph reads it. */
	part = add_part(im, w, name);
	vec_push(im->arena, &part->uses, *u);
	weight_decide_part(im, part);
	if (im->trainable)
		trainable_apply_one(im, part);
	return part;
}

Weight *weight_held(const Weight *w)
{
	Weight *part = w->tie ? part_called(w->tie, w->tie->as) : NULL;
	return part ? part : w->tie ? w->tie : (Weight *)(uintptr_t)w;
}

/* Fills parts, one for each name that users have for w. */
static void find_parts(Import *im, Weight *w)
{
	w->part_of = map_new(im->arena);
	for (int i = 0; i < w->uses.n; i++) {
		const char *name = weight_name(im, w, &w->uses.at[i]);
		Weight *part = part_called(w, name);
		if (!part)
			part = add_part(im, w, name);
		vec_push(im->arena, &part->uses, w->uses.at[i]);
	}
}

/* Whether the model itself has the name of every part: TorchScript leaves an Identity for each tensor that it
 * merged. */
static bool all_named(const Import *im, const Weight *w)
{
	int n = 0;
	for (int i = 0; i < w->parts.n; i++) {
		const Weight *part = w->parts.at[i];
		bool named = !strcmp(part->as, w->t->name) || map_has(im->weights, part->as)
			|| (im->signature && map_has(im->signature, part->as));
		for (int k = 0; !named && k < part->uses.n; k++)
			named = part->uses.at[k].alias && !strcmp(part->uses.at[k].alias, part->as);
		n += named;
	}
	return n == w->parts.n;
}

/* The names of the first four parts, for a message. */
static const char *parts_listed(Import *im, const Weight *w)
{
	const char *list = "";
	for (int i = 0; i < w->parts.n && i < 4; i++)
		list = arena_printf(im->arena, "%s%s\"%s\"", list, i ? ", " : "", shown(im, w->parts.at[i]->as));
	return w->parts.n > 4 ? arena_printf(im->arena, "%s, ..", list) : list;
}

/* Decides each part and reports what is untied.  Where no name in the model shows it, the untying is noted as a
 * guess. */
static void untie(Import *im, Weight *w, bool initial, double v)
{
	for (int i = 0; i < w->parts.n; i++) {
		weight_decide_part(im, w->parts.at[i]);
		diag_info(im->d, im->onnx->path, "untied: \"%s\" from tensor \"%s\"%s", shown(im, w->parts.at[i]->as),
			shown(im, w->t->name), initial ? (v == 0 ? ", all zeros" : ", all ones") : "");
	}
	if (im->o->graph.untie == UNTIE_AUTO && !w->named && !all_named(im, w))
		w->split_why = arena_printf(im->arena, "is all %s and used by several modules, so it is guessed to be %d "
			"tensors that the exporter merged: %s", v == 0 ? "zeros" : "ones", w->parts.n, parts_listed(im, w));
}

/* Whether the exporter merged w with tensors that had equal values.  In eval mode TorchScript merges equal parameters,
 * such as copies of a layer, and leaves an Identity for each name.  dynamo's optimizer merges small ones, and its
 * nodes' metadata say which parameter they read.  A tensor that the module itself ties has only one name. */
static bool is_merged_by_value(Import *im, const Weight *w)
{
	bool any = false;
	for (int i = 0; im->pytorch && i < w->uses.n; i++) {
		const WeightUse *u = &w->uses.at[i];
		const char *name = im->signature ? weight_name(im, w, u) : u->alias;
		any = any || (name && strcmp(name, im->signature ? w->as : w->t->name) != 0 && !names_is_made_up(name));
	}
	return any;
}

/* Whether w is used under several names.  The option --untie, or what was found, decides if it is split. */
static bool decide_untie(Import *im, Weight *w)
{
	double v = 0;
	w->named = im->o->graph.untie == UNTIE_AUTO && is_merged_by_value(im, w);
	find_parts(im, w);
	int n = w->parts.n;
	if (n < 2) {
		w->named = false;
		w->parts.n = 0;
		return false;
	}
	bool folded = im->pytorch && !im->signature && names_is_made_up(w->t->name);
	bool initial = (w->type.rank == 1 || folded) && weight_is_splat(im, w, &v) && (v == 0 || v == 1);
	if (im->o->graph.untie == UNTIE_ALL || (im->o->graph.untie == UNTIE_AUTO && (initial || w->named))) {
		untie(im, w, initial && !w->named, v);
		return true;
	}
	if (folded && im->o->graph.untie == UNTIE_AUTO && w->class == WEIGHT_PARAM)
		w->split_why = arena_printf(im->arena, "stands in %d modules, so it is guessed to be one tied parameter: %s; "
			"equal ones are merged in eval mode, too: --untie=all makes them separate, --untie=none is a tie", n,
			parts_listed(im, w));
	else
		diag_info(im->d, im->onnx->path, "\"%s\" stays one %s for its %d uses", shown(im, w->as),
			w->class == WEIGHT_PARAM ? "parameter" : "buffer", w->uses.n);
	w->parts.n = 0;
	return true;
}

/* Whether w may be several tensors.  A constant may only if tensors were merged into it: a buffer that is not saved may
 * be equal to a bias. */
static bool may_be_several(Import *im, const Weight *w)
{
	bool floats = w->typed && dtype_is_float(w->type.dtype);
	return !im->meta && !w->tie && floats
		&& (w->class != WEIGHT_CONST || (!w->folded_from && is_merged_by_value(im, w)));
}

/* Whether the name, from which an optimizer folded a constant, was that of a parameter. */
static bool was_parameter(const Import *im, const char *name)
{
	const char *argument = im->signature ? map_get(im->signature, name) : NULL;
	if (im->signature)
		return argument && !strcmp(signature_kind(argument), "PARAMETER");
	return !names_is_made_up(name) && !name_is_buffer(name) && !map_has(im->weights, name);
}

/* Warns of parameters that constant folding removed. */
static void warn_lost(Import *im, const Weight *w)
{
	bool constant = w->class == WEIGHT_CONST && w->typed && dtype_is_float(w->type.dtype) && !im->o->infer;
	for (int k = 0; constant && k < w->folded.n; k++) {
		const char *name = w->folded.at[k];
		if (was_parameter(im, name))
			diag_warn(im->d, im->onnx->path, "parameter \"%s\" is lost%s: the exporter folded it into the constant "
				"\"%s\"; export with optimize=False to train it", shown(im, name),
				map_has(im->weights, name) ? " where a function of it is used" : "", shown(im, w->t->name));
	}
}

void ties_find(Import *im)
{
	bool shared = false;
	for (int i = 0; i < map_count(im->weights); i++) {
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		if (w->class == WEIGHT_PARAM || w->meta)
			name_weight(im, w);
		if (!im->meta)
			warn_lost(im, w);
	}
	const Map *tables = tables_collect(im);
	for (int i = 0; i < map_count(im->weights); i++) {
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		if (w->class == WEIGHT_PARAM)
			find_tie(im, w, tables);
		if (may_be_several(im, w))
			shared = decide_untie(im, w) || shared;
		if (w->class == WEIGHT_PARAM && !w->tie && !w->parts.n)
			name_shared(im, w);
	}
	if (!shared && im->o->graph.untie != UNTIE_AUTO)
		diag_warn(im->d, "--untie", im->meta ? "the model's metadata say what is tied: it is not used"
			: "no tensor stands for several parameters: it is not used");
}
