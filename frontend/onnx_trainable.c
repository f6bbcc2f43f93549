/* frontend/onnx_trainable.c: --trainable=FILE, a list of the parameters that are trained.
 *
 * The file has one name per line, as the framework has it; blank lines and lines that begin with # are skipped.  Listed
 * tensors are trained parameters, whatever they were taken for before.  All other parameters are frozen, so no guess
 * remains.  Refuses names that the model does not have, and tensors that cannot be trained. */
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

/* The list's line for the name, marked as found; NULL: it is not listed. */
static Listed *find(const Import *im, const char *name)
{
	Listed *l = map_get(im->trainable, name);
	if (l)
		l->found = true;
	return l;
}

bool trainable_has(const Import *im, const char *name)
{
	return find(im, name) != NULL;
}

/* The line of the first of the weight's names that is listed; all its listed names are marked as found.  For a part,
 * the tensor's name in the file counts only if the exporter made it up: otherwise it is the name of another part. */
static const Listed *listed(const Import *im, const Weight *w)
{
	const Listed *l = find(im, w->as), *other = NULL;
	if (!w->whole || names_is_made_up(w->t->name))
		other = find(im, w->t->name);
	l = l ? l : other;
	for (int i = 0; i < w->alias.n; i++) {
		other = find(im, w->alias.at[i]);
		l = l ? l : other;
	}
	return l;
}

/* If a name of w is listed, marks the tensor that is trained for w. */
static void look_up(Import *im, Weight *w)
{
	const Listed *l = listed(im, w);
	const char *name = str_escape(im->arena, ESCAPE_IR, w->as);
	if (l && (!w->typed || !dtype_is_float(w->type.dtype)))
		diag_error(im->d, l->where, "\"%s\" holds no floats, so it cannot be trained", name);
	else if (l && weight_only_statistics(w))
		diag_error(im->d, l->where, "\"%s\" is the running statistics of a batch norm, which are not trained", name);
	else if (l)
		weight_held(w)->listed = true;
}

static void apply(Weight *w)
{
	bool is_listed = weight_held(w)->listed;
	if (is_listed)
		w->class = WEIGHT_PARAM;
	else if (w->class != WEIGHT_PARAM && !evidence_info[w->evidence].guess)
		return;
	w->frozen = !is_listed && w->class == WEIGHT_PARAM;
	w->evidence = EVIDENCE_LIST;
	w->why = is_listed ? "listed" : "not listed";
}

void trainable_apply_one(Import *im, Weight *w)
{
	look_up(im, w);
	apply(w);
}

void trainable_apply(Import *im)
{
	for (int i = 0; i < map_count(im->weights); i++) {
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		for (int k = 0; k < w->parts.n; k++)
			look_up(im, w->parts.at[k]);
		if (!w->parts.n)
			look_up(im, w);
	}
	for (int i = 0; i < map_count(im->weights); i++) {
		Weight *w = map_get(im->weights, map_key(im->weights, i));
		for (int k = 0; k < w->parts.n; k++)
			apply(w->parts.at[k]);
		if (!w->parts.n)
			apply(w);
		w->split_why = NULL;
	}
}

/* The constant into which an exporter's optimizer folded this parameter; NULL: there is none. */
static const Weight *folded_into(const Import *im, const char *name)
{
	for (int i = 0; i < map_count(im->weights); i++) {
		const Weight *w = map_get(im->weights, map_key(im->weights, i));
		for (int k = 0; w->class == WEIGHT_CONST && k < w->folded.n; k++)
			if (!strcmp(w->folded.at[k], name))
				return w;
	}
	return NULL;
}

/* Whether the module has a tensor of this name; call it for names that the graph does not use. */
static bool is_unused(const Import *im, const char *name)
{
	bool known = im->signature && map_has(im->signature, name);
	for (int i = 0; im->meta && !known && i < im->meta->tensors.n; i++)
		known = !strcmp(im->meta->tensors.at[i]->name, name);
	return known;
}

/* The names of up to four parameters that the list leaves out, for a message. */
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

/* dynamo's graph has only one name of a tied parameter, and named_parameters() may list another one.  The model does
 * not say which names are tied. */
static void warn_of_ties(Import *im, const char *where, const char *unused)
{
	const char *names = left_out(im);
	if (*names)
		diag_warn(im->d, where, "the graph has no \"%s\", and the list leaves out %s, now frozen: if they are tied, "
			"the graph has only one of their names; list that one, too, or export with shardc.export, which writes all "
			"names", unused, names);
}

void trainable_check(Import *im)
{
	bool warned = false;
	for (int i = 0; i < map_count(im->trainable); i++) {
		const char *name = map_key(im->trainable, i), *shown = str_escape(im->arena, ESCAPE_IR, name);
		const Listed *l = map_get(im->trainable, name);
		const Weight *constant = l->found ? NULL : folded_into(im, name);
		if (constant) {
			diag_error(im->d, l->where, "\"%s\" cannot be trained: the exporter folded it into the constant \"%s\": "
				"export with optimize=False", shown, str_escape(im->arena, ESCAPE_IR, constant->t->name));
		} else if (!l->found && is_unused(im, name)) {
			diag_note(im->d, l->where, "the graph does not use \"%s\", so it is not trained", shown);
			if (!im->meta && !warned)
				warn_of_ties(im, l->where, shown);
			warned = true;
		} else if (!l->found)
			diag_error(im->d, l->where, "no tensor of the model is called \"%s\" (shardc params lists them)", shown);
	}
}
