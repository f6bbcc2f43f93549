/* frontend/onnx_trainable.c: --trainable=FILE, a list of the parameters that are trained.
 *
 * One name a line, as the framework has it; blank lines and those that begin with # are passed over.  What the list
 * names is a trained parameter, whatever it was taken for; other parameters are frozen.  So no guess is left.
 * Refuses names that the model does not have, and tensors that cannot be trained. */
#include "frontend/onnx_params.h"

#include <string.h>

typedef struct Listed { const char *where; bool found; } Listed;

bool trainable_read(Import *im, const char *path)
{
	char *text = diag_read_file(im->d, path, im->arena), *line;
	im->trainable = map_new(im->arena);
	for (int n = 1; text && (line = strsep(&text, "\n")); n++) {
		line += strspn(line, " \t");
		size_t length = strlen(line);
		while (length && strchr(" \t\r", line[length - 1]))
			line[--length] = 0;
		if (!length || *line == '#' || map_has(im->trainable, line))
			continue;
		Listed *l = NEW(im->arena, Listed);
		l->where = arena_printf(im->arena, "%s:%d", path, n);
		map_put(im->trainable, line, l);
	}
	return !im->d->errors;
}

/* Its line; NULL: the list lacks it. */
static Listed *find(const Import *im, const char *name)
{
	Listed *l = map_get(im->trainable, name);
	if (l)
		l->found = true;
	return l;
}

bool trainable_has(const Import *im, const Weight *w, const char *name)
{
	bool any = find(im, name) != NULL;
	for (int i = 0; w && i < w->alias.n; i++)
		any = find(im, w->alias.at[i]) || any;
	return any;
}

/* The first of the weight's names that is listed. */
static Listed *listed(Import *im, const Weight *w)
{
	Listed *l = find(im, w->as);
	if (!l)
		l = find(im, w->t->name);
	for (int i = 0; !l && i < w->alias.n; i++)
		l = find(im, w->alias.at[i]);
	for (int i = 0; !l && w->split && i < w->uses.n; i++) {
		const WeightUse *u = &w->uses.at[i];
		l = find(im, weight_name(im, w, u->op, u->operand, u->scope, u->alias));
	}
	return l;
}

static void apply(Import *im, Weight *w)
{
	const Listed *l = listed(im, w);
	const char *name = str_escape(im->arena, ESCAPE_IR, w->as);
	if (l && (!w->typed || !dtype_is_float(w->type.dtype)))
		diag_error(im->d, l->where, "\"%s\" holds no floats, so it cannot be trained", name);
	else if (l && weight_only_statistics(w))
		diag_error(im->d, l->where, "\"%s\" is the running statistics of a batch norm, which are not trained", name);
	else if (l) {
		w->class = WEIGHT_PARAM;
		w->frozen = false;
		w->evidence = EVIDENCE_LIST;
		w->why = "listed";
	} else if (w->class == WEIGHT_PARAM || evidence_info[w->evidence].guess) {
		w->frozen = w->class == WEIGHT_PARAM;
		w->evidence = EVIDENCE_LIST;
		w->why = "not listed";
	}
	w->split_why = NULL;
}

void trainable_apply(Import *im)
{
	for (int i = 0; i < map_count(im->weights); i++)
		apply(im, map_get(im->weights, map_key(im->weights, i)));
}

/* Whether the module has a tensor of this name, which the graph does not use. */
static bool is_unused(const Import *im, const char *name)
{
	bool known = im->signature && map_has(im->signature, name);
	for (int i = 0; im->meta && !known && i < im->meta->tensors.n; i++)
		known = !strcmp(im->meta->tensors.at[i]->name, name);
	return known;
}

/* Up to four parameters that the list leaves out. */
static const char *left_out(const Import *im)
{
	const char *text = "";
	int n = 0;
	for (int i = 0; i < map_count(im->weights); i++) {
		const Weight *w = map_get(im->weights, map_key(im->weights, i));
		if (w->evidence != EVIDENCE_LIST || w->class != WEIGHT_PARAM || !w->frozen)
			continue;
		if (n < 4)
			text = arena_printf(im->arena, "%s%s\"%s\"", text, n ? ", " : "",
				str_escape(im->arena, ESCAPE_IR, w->as));
		n++;
	}
	return n > 4 ? arena_printf(im->arena, "%s, ..", text) : text;
}

/* Of a tied parameter dynamo's graph has one name, and named_parameters() another.  It does not say which is tied to
 * which. */
static void warn_of_ties(Import *im, const char *where, const char *unused)
{
	const char *names = left_out(im);
	if (*names)
		diag_warn(im->d, where, "the graph has no \"%s\", and the list leaves out %s, now frozen: where these are "
			"tied, the graph has one of the names alone; list that one too, or export with shardc.export, which writes "
			"all of them", unused, names);
}

void trainable_check(Import *im)
{
	bool warned = false;
	for (int i = 0; i < map_count(im->trainable); i++) {
		const char *name = map_key(im->trainable, i), *shown = str_escape(im->arena, ESCAPE_IR, name);
		const Listed *l = map_get(im->trainable, name);
		if (!l->found && is_unused(im, name)) {
			diag_note(im->d, l->where, "the graph does not use \"%s\", so it is not trained", shown);
			if (!im->meta && !warned)
				warn_of_ties(im, l->where, shown);
			warned = true;
		} else if (!l->found)
			diag_error(im->d, l->where, "no tensor of the model is called \"%s\" (shardc params lists them)", shown);
	}
}
