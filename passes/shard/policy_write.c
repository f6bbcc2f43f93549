/* passes/shard/policy_write.c: units -> the file of --wrap=file:POLICY.json that makes the same ones.
 *
 * Requires SHARD or PLAN.  Every unit but the root lists its parameters by name, in its own order, which is that of
 * its flats; the order of the units is that of the file.  What the options say of all units stands at the top, where
 * the file has a member for it.  So the file makes the same program whatever --wrap, --ignore and --unit-strategy made
 * these units, beside the same other options (--world and --shard-size among them). */
#include "passes/passes.h"

#include <string.h>

/* Writes members of an object, each on a line of its own or side by side. */
typedef struct Writer {
	FILE *f;
	const Module *m;
	const Options *o;
	Arena *a;
	const char *between; /* what separates members */
	bool some;           /* a member of the object is written */
} Writer;

static void begin(Writer *w, const char *key)
{
	fprintf(w->f, "%s\"%s\": ", w->some ? w->between : "", key);
	w->some = true;
}

static const char *json(const Writer *w, const char *text)
{
	return arena_printf(w->a, "\"%s\"", str_escape(w->a, ESCAPE_JSON, text));
}

static void write_params(Writer *w, const char *key, const Unit *u)
{
	begin(w, key);
	for (int i = 0; i < u->n_params; i++) {
		const char *name = u->params[i]->name;
		fprintf(w->f, "%s%s", i ? ", " : "[", json(w, pattern_of_names(&name, 1, w->a)));
	}
	fputc(']', w->f);
}

static bool is_root(const Unit *u)
{
	return !strcmp(u->name, "root");
}

/* The unit of what --ignore and $.ignore match, which stands in front of the root or, where that is not last, last. */
static const Unit *ignored_of(const Module *m)
{
	int at = m->n_units - 1;
	at -= at >= 0 && is_root(m->units[at]);
	const Unit *u = at >= 0 ? m->units[at] : NULL;
	return u && !strcmp(u->name, "ignored") && u->strategy == STRATEGY_NO_SHARD ? u : NULL;
}

/* ---- members of a unit: unit_KEY writes the one of that key, if there is something to say ---- */

static void unit_name(Writer *w, const Unit *u)
{
	begin(w, "name");
	fputs(json(w, u->name), w->f);
}

static void unit_scope(Writer *w, const Unit *u)
{
	(void)w, (void)u; /* params say it */
}

static void unit_params(Writer *w, const Unit *u)
{
	if (!is_root(u))
		write_params(w, "params", u);
}

static void unit_strategy(Writer *w, const Unit *u)
{
	if (u->strategy == w->o->sharding.strategy)
		return;
	begin(w, "strategy");
	fputs(json(w, strategy_info[u->strategy].text), w->f);
}

static void unit_reshard_after_forward(Writer *w, const Unit *u)
{
	bool asked = is_root(u) && w->o->sharding.reshard_root;
	if (!asked && u->reshard_after_forward < 0)
		return;
	begin(w, "reshard_after_forward");
	fputs(asked || u->reshard_after_forward ? "true" : "false", w->f);
}

static void write_count(Writer *w, const char *key, int64_t n)
{
	if (n < 0)
		return;
	begin(w, key);
	fprintf(w->f, "%lld", (long long)n);
}

static void unit_forward_prefetch(Writer *w, const Unit *u)
{
	write_count(w, "forward_prefetch", u->forward_prefetch);
}

static void unit_backward_prefetch(Writer *w, const Unit *u)
{
	write_count(w, "backward_prefetch", u->backward_prefetch);
}

static void write_dtype(Writer *w, const char *key, int t)
{
	if (t < 0)
		return;
	begin(w, key);
	fputs(json(w, dtype_info[t].text), w->f);
}

static void unit_param_dtype(Writer *w, const Unit *u)
{
	write_dtype(w, "param_dtype", u->param_dtype);
}

static void unit_reduce_dtype(Writer *w, const Unit *u)
{
	write_dtype(w, "reduce_dtype", u->reduce_dtype);
}

static void unit_offload(Writer *w, const Unit *u)
{
	if (u->offload < 0)
		return;
	begin(w, "offload");
	fputs(json(w, offload_text[u->offload]), w->f);
}

/* ---- members of the file ---- */

static void file_strategy(Writer *w)
{
	begin(w, "strategy");
	fputs(json(w, strategy_info[w->o->sharding.strategy].text), w->f);
}

static void file_forward_prefetch(Writer *w)
{
	int64_t n = -1;
	if (w->o->sharding.forward_prefetch)
		str_to_size(w->o->sharding.forward_prefetch, false, &n);
	write_count(w, "forward_prefetch", n);
}

static void file_backward_prefetch(Writer *w)
{
	if (!w->o->sharding.backward_prefetch)
		return;
	begin(w, "backward_prefetch");
	fputs(json(w, w->o->sharding.backward_prefetch), w->f);
}

static void file_limit_all_gathers(Writer *w)
{
	int64_t n = -1;
	if (w->o->sharding.limit_all_gathers)
		str_to_size(w->o->sharding.limit_all_gathers, false, &n);
	write_count(w, "limit_all_gathers", n);
}

static void file_param_dtype(Writer *w)
{
	write_dtype(w, "param_dtype", w->o->given.param_dtype ? (int)w->o->precision.param_dtype : -1);
}

static void file_reduce_dtype(Writer *w)
{
	write_dtype(w, "reduce_dtype", w->o->given.reduce_dtype ? (int)w->o->precision.reduce_dtype : -1);
}

static void file_offload(Writer *w)
{
	if (!w->o->given.offload)
		return;
	begin(w, "offload");
	fputs(json(w, offload_text[w->o->memory.offload]), w->f);
}

static void file_ignore(Writer *w)
{
	const Unit *u = ignored_of(w->m);
	if (u)
		write_params(w, "ignore", u);
}

static void file_order(Writer *w)
{
	begin(w, "order");
	fputs("\"file\"", w->f);
}

static void file_units(Writer *w)
{
	bool any = false;
	begin(w, "units");
	for (int i = 0; i < w->m->n_units; i++) {
		const Unit *u = w->m->units[i];
		if (u == ignored_of(w->m))
			continue;
		Writer of_unit = {.f = w->f, .m = w->m, .o = w->o, .a = w->a, .between = ", "};
		fputs(any ? ",\n    {" : "[\n    {", w->f);
		any = true;
#define UNIT_MEMBER(key, kind, doc) unit_##key(&of_unit, u);
#include "passes/shard/policy.def"
		fputc('}', w->f);
	}
	fputs(any ? "\n  ]" : "[]", w->f);
}

bool policy_writable(const Module *m, const char *where, Diag *d)
{
	int before = d->errors;
	for (int i = 0; i < m->n_units; i++) {
		const Unit *u = m->units[i];
		bool rest = is_root(u) && (i == m->n_units - 1 || strategy_info[u->strategy].owned);
		if ((is_root(u) || !strcmp(u->name, "ignored")) && !rest && u != ignored_of(m))
			diag_error(d, where, "a module of the model is called \"%s\", which in a policy file is the name of "
				"another unit; give another --wrap, whose units are not called so", u->name);
	}
	return d->errors == before;
}

void policy_write(FILE *f, const Module *m, const Options *o)
{
	Writer w = {.f = f, .m = m, .o = o, .a = arena_new(), .between = ",\n  "};
	fputs("{\n  ", f);
#define POLICY_MEMBER(key, kind, option, doc) file_##key(&w);
#include "passes/shard/policy.def"
	fputs("\n}\n", f);
	arena_free(w.a);
}
