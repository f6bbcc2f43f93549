/* frontend/onnx_ties.c: names of initializers, ties, and merged tensors that are separate again.
 *
 * Exporters merge tensors that are equal when they export: all zero biases become one.  Such a tensor becomes
 * one parameter per module again; tensors tied by the model's code (embedding and output head) stay one, also
 * where constant folding stored the head's transpose beside the embedding.  A module that is called twice reads its
 * tensors twice, which is no merge: what the metadata or the tensor's own name call one module is one. */
#include "frontend/onnx_params.h"

#include <string.h>

/* Whether the scope is the module of a tensor of this name, called for the first time or again, or one around it. */
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

/* Whether tensors are known by the module's name: then "fc_1" is a module, and no second call of "fc". */
static bool is_module(const Import *im, const char *scope)
{
	size_t n = strlen(scope);
	for (int i = 0; i < map_count(im->weights); i++) {
		const char *name = map_key(im->weights, i);
		if (!strncmp(name, scope, n) && name[n] == '.')
			return true;
	}
	return false;
}

/* "bn.bias" where running_mean stands: merged within one module. */
static bool plays_another(const char *name, const Role *r)
{
	const char *last = strrchr(name, '.');
	return r->strong && last && strcmp(last + 1, r->suffix) != 0 && role_has_suffix(last + 1);
}

const char *weight_name(Import *im, const Weight *w, const char *op, int operand, const char *scope, const char *alias)
{
	const Role *r = role_of(op, operand);
	if (im->meta && w->meta)
		return w->as;
	if (alias && !names_is_made_up(alias))
		return alias;
	if (!r || !*scope || w->named)
		return w->as;
	size_t n = strlen(scope);
	bool inside = !strncmp(w->as, scope, n) && w->as[n] == '.';
	bool own = !names_is_made_up(w->as) && is_own_scope(scope, w->as) && (inside || !is_module(im, scope))
		&& !plays_another(w->as, r);
	return own ? w->as : arena_printf(im->arena, "%s.%s", scope, r->suffix);
}

/* ---- names ---- */

static void name_weight(Import *im, Weight *w)
{
	const WeightUse *u = weight_strong_use(w);
	const char *from = weight_folded_from(im, w);
	bool right = w->type.rank == 2 && weight_has_use(w, "MatMul", 1);
	if (w->meta) {
		w->as = w->meta->name;
		return;
	}
	if (from) {
		w->as = from;
		w->transposed = w->type.rank == 2;
	} else if (u && names_is_made_up(w->t->name)) {
		w->as = weight_name(im, w, u->op, u->operand, u->scope, u->alias);
		w->transposed = right && !strncmp(w->t->name, "onnx::MatMul", 12);
	}
	if (weight_is_folded_vector(w)) {
		u = &w->uses.at[0];
		w->as = weight_name(im, w, u->op, u->operand, u->scope, u->alias);
		w->flat = true;
	}
	if (strcmp(w->as, w->t->name) != 0)
		diag_info(im->d, im->onnx->path, "tensor \"%s\" is parameter \"%s\"%s", w->t->name, w->as,
			w->transposed ? ", transposed" : "");
}

/* ---- ties ---- */

typedef VEC(Weight *) WeightVec;

static void add_alias(Import *im, Weight *w, const char *name)
{
	for (int i = 0; i < w->alias.n; i++)
		if (!strcmp(w->alias.at[i], name))
			return;
	if (strcmp(w->as, name) != 0)
		vec_push(im->arena, &w->alias, name);
}

static void find_tie(Import *im, Weight *w, const WeightVec *tables)
{
	Weight *other = map_get(im->weights, w->as);
	if (!w->transposed)
		return;
	if (!other || !weight_is_transpose(im, w, other))
		other = NULL;
	for (int i = 0; !other && i < tables->n; i++)
		if (weight_is_transpose(im, w, tables->at[i]))
			other = tables->at[i];
	w->tie = other;
	if (!other)
		return;
	if (!names_is_made_up(w->as))
		add_alias(im, other, w->as);
	diag_info(im->d, im->onnx->path, "tie recovered: \"%s\" (tensor \"%s\") is the transpose of \"%s\"", w->as,
		w->t->name, other->as);
}

/* The names that modules which share w have for it; those that the module's signature lacks, if there is one, are no
 * names. */
static void name_shared(Import *im, Weight *w)
{
	for (int i = 0; w->meta && i < w->meta->alias.n; i++)
		add_alias(im, w, w->meta->alias.at[i]);
	for (int i = 0; !im->meta && i < w->uses.n; i++) {
		const WeightUse *u = &w->uses.at[i];
		const Role *r = role_of(u->op, u->operand);
		bool shows = (u->alias && !names_is_made_up(u->alias)) || (r && (r->strong || !strcmp(u->op, "Transpose")));
		const char *name = weight_name(im, w, u->op, u->operand, u->scope, u->alias);
		if (shows && !map_has(im->weights, name) && (!im->signature || map_has(im->signature, name)))
			add_alias(im, w, name);
	}
}

/* ---- merged tensors ---- */

/* Whether the model itself has every name: TorchScript leaves an Identity for each tensor that it merged. */
static bool all_named(const Import *im, const Weight *w, const Map *names)
{
	int n = 0;
	for (int i = 0; i < map_count(names); i++) {
		bool named = !strcmp(map_key(names, i), w->t->name) || map_has(im->weights, map_key(names, i))
			|| (im->signature && map_has(im->signature, map_key(names, i)));
		for (int k = 0; !named && k < w->uses.n; k++)
			named = w->uses.at[k].alias && !strcmp(w->uses.at[k].alias, map_key(names, i));
		n += named;
	}
	return n == map_count(names);
}

/* The first four. */
static const char *names_listed(const Import *im, const Map *names)
{
	const char *list = "";
	for (int i = 0; i < map_count(names) && i < 4; i++)
		list = arena_printf(im->arena, "%s%s\"%s\"", list, i ? ", " : "", map_key(names, i));
	return map_count(names) > 4 ? arena_printf(im->arena, "%s, ..", list) : list;
}

/* Says what is untied, and notes it as a guess where no name in the model shows it. */
static void split_weight(Import *im, Weight *w, const Map *names, bool initial, double v)
{
	for (int i = 0; i < map_count(names); i++)
		diag_info(im->d, im->onnx->path, "untied: \"%s\" from tensor \"%s\"%s", map_key(names, i), w->t->name,
			initial ? (v == 0 ? ", all zeros" : ", all ones") : "");
	if (im->o->untie == UNTIE_AUTO && !w->named && !all_named(im, w, names) && w->class == WEIGHT_PARAM)
		w->split_why = arena_printf(im->arena, "is all %s and used by several modules, so it is guessed to be %d "
			"tensors that the exporter merged: %s", v == 0 ? "zeros" : "ones", map_count(names),
			names_listed(im, names));
}

/* What the decomposed node calls its operand settles whether it is another tensor, or the same one that is tied. */
static const char *name_of_use(Import *im, const Weight *w, const WeightUse *u)
{
	const char *name = weight_name(im, w, u->op, u->operand, u->scope, u->alias);
	const char *argument = im->signature ? map_get(im->signature, name) : NULL;
	if (!im->signature || !u->fx)
		return name;
	const char *at = argument ? strstr(u->fx, arena_printf(im->arena, "%%%s,", argument)) : NULL;
	if (!at && argument)
		at = strstr(u->fx, arena_printf(im->arena, "%%%s)", argument));
	return at ? name : w->as;
}

/* In eval mode TorchScript merges parameters that are equal, as copies of a layer are, and leaves an Identity of each
 * name; what the module itself ties has one name. */
static bool is_merged_by_value(const Import *im, const Weight *w)
{
	bool any = false;
	for (int i = 0; im->pytorch && !im->signature && i < w->uses.n; i++) {
		const char *alias = w->uses.at[i].alias;
		any = any || (alias && strcmp(alias, w->t->name) != 0 && !names_is_made_up(alias));
	}
	return any;
}

/* Whether it stands in the place of several tensors, of which --untie decides. */
static bool decide_untie(Import *im, Weight *w)
{
	Map *names = map_new(im->arena);
	double v = 0;
	w->named = im->o->untie == UNTIE_AUTO && is_merged_by_value(im, w);
	for (int i = 0; i < w->uses.n; i++) {
		map_put(names, name_of_use(im, w, &w->uses.at[i]), w);
	}
	if (map_count(names) < 2) {
		w->named = false;
		return false;
	}
	bool folded = im->pytorch && !im->signature && names_is_made_up(w->t->name);
	bool initial = (w->type.rank == 1 || folded) && weight_is_splat(im, w, &v) && (v == 0 || v == 1);
	w->split = im->o->untie == UNTIE_ALL || (im->o->untie == UNTIE_AUTO && (initial || w->named));
	if (w->split)
		split_weight(im, w, names, initial && !w->named, v);
	else if (folded && im->o->untie == UNTIE_AUTO && w->class == WEIGHT_PARAM)
		w->split_why = arena_printf(im->arena, "stands in %d modules, so it is guessed to be one tied parameter: %s; "
			"equal ones are merged in eval mode, too: --untie=all makes them separate, --untie=none is a tie",
			map_count(names), names_listed(im, names));
	else
		diag_info(im->d, im->onnx->path, "\"%s\" stays one %s for its %d uses", w->as,
			w->class == WEIGHT_PARAM ? "parameter" : "buffer", w->uses.n);
	return true;
}

/* Says which parameters constant folding took away. */
static void warn_lost(Import *im, const Weight *w)
{
	const char *list = w->class == WEIGHT_CONST && w->folded_from ? w->folded_from : "";
	for (const char *s = strchr(list, '\''), *end; s && (end = strchr(s + 1, '\'')); s = strchr(end + 1, '\'')) {
		const char *name = arena_strndup(im->arena, s + 1, (size_t)(end - s - 1));
		if (!im->o->infer && strchr(name, '.') && !name_is_buffer(name) && !map_has(im->weights, name))
			diag_warn(im->d, im->onnx->path, "parameter \"%s\" is lost: the exporter folded it into the constant "
				"\"%s\"; export with optimize=False to train it", name, w->t->name);
	}
}

void ties_find(Import *im)
{
	WeightVec tables = {0}; /* embeddings */
	bool shared = false;
	for (int i = 0; i < map_count(im->weights); i++) {
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		if (w->class == WEIGHT_PARAM && weight_has_use(w, "Gather", 0))
			vec_push(im->arena, &tables, w);
		if (w->class == WEIGHT_PARAM || w->meta)
			name_weight(im, w);
		if (!im->meta)
			warn_lost(im, w);
	}
	for (int i = 0; i < map_count(im->weights); i++) {
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		if (w->class == WEIGHT_PARAM)
			find_tie(im, w, &tables);
		if (w->class != WEIGHT_CONST && !w->tie && !im->meta)
			shared = decide_untie(im, w) || shared;
		if (w->class == WEIGHT_PARAM && !w->tie && !w->split)
			name_shared(im, w);
	}
	if (!shared && im->o->untie != UNTIE_AUTO)
		diag_warn(im->d, "--untie", im->meta ? "the model's metadata say what is tied: it is not used"
			: "no parameter stands in the place of several: it is not used");
}
