/* predict/largest.c: `shardc plan --machine --ask`: the largest batch, and the largest of each other dim that --bind
 * gives a size, with which a rank has enough memory.
 *
 * Each dim grows alone, with all other options as they are.  The model is read and planned for each size that is tried,
 * so the memory is that of the plan by hand. */
#include <inttypes.h>
#include <string.h>

#include "predict/private.h"

enum { SIZE_MAX_ASKED = 1 << 24 };

typedef struct Largest {
	const PredictOf *of;
	const Options *o;
	int at;                  /* in --bind */
	int64_t limit;
	Arena *a;
} Largest;

static const char *bind_of(const Largest *l, int64_t size)
{
	const char *bind = l->o->graph.bind.at[l->at];
	return arena_printf(l->a, "%.*s=%" PRId64, (int)strcspn(bind, "="), bind, size);
}

/* The bytes that a rank needs at this size; -1: it is refused, or too much. */
static int64_t fitting(const Largest *l, int64_t size)
{
	Options o = *l->o;
	o.graph.bind.at[l->at] = bind_of(l, size);
	o.memory.memory_limit = 0;
	int64_t bytes = l->of->again->memory(&o, l->of->again->context);
	return bytes <= l->limit ? bytes : -1;
}

/* The largest size that fits, with its bytes; 0: not even 1 does.  *more: larger ones were not tried. */
static int64_t largest(const Largest *l, int64_t now, int64_t *bytes, bool *more)
{
	int64_t low = fitting(l, now) >= 0 ? now : 0, high = low ? 2 * now : now;
	while (low && high <= SIZE_MAX_ASKED && fitting(l, high) >= 0) {
		low = high;
		high *= 2;
	}
	*more = low && high > SIZE_MAX_ASKED;
	while (high - low > 1 && !*more) {
		int64_t middle = low + (high - low) / 2;
		if (fitting(l, middle) >= 0)
			low = middle;
		else
			high = middle;
	}
	*bytes = low ? fitting(l, low) : 0;
	return low;
}

void largest_show(FILE *f, const PredictOf *of, const Options *o)
{
	bool json = o->what.format == FORMAT_JSON, asked = of->again && !options_sizes(o);
	Largest l = {.of = of, .o = o, .a = arena_new(),
		.limit = o->memory.memory_limit ? o->memory.memory_limit : (int64_t)of->machine->of[MACHINE_MEMORY]};
	int n = asked ? o->graph.bind.n : 0, shown = 0;
	fputs(json ? "  \"largest\": [" : "", f);
	for (l.at = 0; l.at < n; l.at++) {
		const char *bind = o->graph.bind.at[l.at], *equals = strrchr(bind, '=');
		int64_t now, bytes;
		bool more;
		if (!equals || !str_to_size(equals + 1, false, &now) || now < 1)
			continue;
		int64_t size = largest(&l, now, &bytes, &more);
		const char *text = size ? str_escape(l.a, json ? ESCAPE_JSON : ESCAPE_SHELL, bind_of(&l, size)) : "";
		if (json)
			fprintf(f, "%s\n    {\"now\": \"%s\", \"option\": \"%s%s\", \"total\": %" PRId64 ", "
				"\"more\": %s}", shown ? "," : "",
				str_escape(l.a, ESCAPE_JSON, bind), size ? "--bind=" : "", text, bytes, more ? "true" : "false");
		else if (!shown)
			fprintf(f, "\nlargest sizes, each alone, with which a rank needs no more than %s\n",
				plan_human(l.a, l.limit));
		if (!json && size)
			fprintf(f, "  --bind=%-39s %10s, now %s%s\n", text, plan_human(l.a, bytes), equals + 1,
				more ? "; larger ones were not tried" : "");
		else if (!json)
			fprintf(f, "  %s: none fits\n", str_escape(l.a, ESCAPE_SHELL, bind));
		shown++;
	}
	fputs(json ? shown ? "\n  ],\n" : "],\n" : "", f);
	arena_free(l.a);
}
