/* predict/search_show.c: what --wrap=auto prints of what it has found. */
#include <inttypes.h>

#include "predict/searching.h"

static const char **options_text(const Search *s, const Trial *x)
{
	const char **text = NEW_N(s->a, const char *, KNOBS + 3);
	int n = 0;
	for (int k = 0; k < KNOBS; k++)
		if (search_says(s, x, k))
			text[n++] = arena_printf(s->a, "%s=%s", s->knob[k].option, s->knob[k].value[x->pick[k]]);
	if (search_adds_many(s, x))
		text[n++] = "--accum=many";
	if (x->keep)
		text[n++] = arena_printf(s->a, "--unit-strategy=%s=shard_grad_op", x->keep);
	return text;
}

const char *const *search_options(const Search *s)
{
	return options_text(s, s->best);
}

const char *search_flags(const Search *s)
{
	const Trial *x = s->best;
	int64_t n = search_micro_batches(s, x);
	const char *accum = n > 1 ? arena_printf(s->a, "--accum %" PRId64, n) : "";
	if (!search_says(s, x, KNOB_SHARD_SIZE))
		return accum;
	const char *size = s->knob[KNOB_SHARD_SIZE].value[x->pick[KNOB_SHARD_SIZE]];
	return arena_printf(s->a, "%s%s--shard-size %s", accum, *accum ? " " : "", size);
}

const Machine *search_machine(const Search *s)
{
	return s->m;
}

int64_t search_over(const Search *s)
{
	return s->best->over;
}

/* Whether x differs from the best plan in one choice.  Which units stay gathered was chosen last, for all the others,
 * so plans without that choice count as well. */
static bool one_other(const Search *s, const Trial *x, int *knob)
{
	int n = 0;
	*knob = KNOBS;
	for (int k = 0; k < KNOBS; k++)
		if (x->pick[k] != s->best->pick[k]) {
			*knob = k;
			n++;
		}
	bool keeps = !same_text(x->keep, s->best->keep);
	return !x->refused && (keeps ? n == 0 || (n == 1 && !x->keep) : n == 1);
}

static const char *other_text(const Search *s, const Trial *x, int knob)
{
	const char *without = s->best->keep && !x->keep ? "without --unit-strategy" : "";
	if (knob == KNOBS)
		return x->keep ? arena_printf(s->a, "--unit-strategy=%s=shard_grad_op", x->keep) : without;
	const char *value = s->knob[knob].value[x->pick[knob]];
	const char *text = *value ? arena_printf(s->a, "%s=%s", s->knob[knob].option, value)
		: arena_printf(s->a, "without %s", s->knob[knob].option);
	return *without ? arena_printf(s->a, "%s, %s", text, without) : text;
}

static void text_trial(FILE *f, const Search *s, const Trial *x, int knob)
{
	fprintf(f, "  %-46s %12.3f %+8.2f%% %12s%s\n", other_text(s, x, knob), x->of.seconds * 1e3,
		100 * (x->of.seconds / s->best->of.seconds - 1), plan_human(s->a, x->of.memory.total),
		x->over ? ", too much" : "");
}

void search_text(FILE *f, const Search *s)
{
	fprintf(f, "\n--wrap=auto made and played %d plans%s and chose\n ", s->n,
		s->n == s->most ? ", the most that it makes," : "");
	for (const char *const *o = search_options(s); *o; o++) {
		fputc(' ', f);
		fputs(str_escape(s->a, ESCAPE_SHELL, *o), f);
	}
	if (*search_flags(s))
		fprintf(f, "\n  the binary then wants %s", search_flags(s));
	if (s->bound > s->best->of.seconds)
		fprintf(f, "\n  the bound by relaxation, %.3f ms, is above this plan: it does not hold for this model, so "
			"there may be a better one; please report this\n", s->bound * 1e3);
	else
		fprintf(f, "\n  no plan of the options that it tries takes less than %.3f ms (bound by relaxation), so the gap "
			"is at most %.2f%%\n", s->bound * 1e3, 100 * (s->best->of.seconds / s->bound - 1));
	if (s->best->over)
		fprintf(f, "  no plan fits %s; this one needs least\n", plan_human(s->a, s->limit));
	fprintf(f, "  %-46s %12s %9s %12s\n", "with one other choice", "step ms", "slower", "memory");
	for (int i = 0, knob; i < s->n; i++)
		if (one_other(s, s->trial[i], &knob))
			text_trial(f, s, s->trial[i], knob);
	if (s->given.what.ask)
		fprintf(f, "  what --ask answers is of this plan: an answer's options go with those that auto chose, in place "
			"of those of the same name\n");
}

static void json_options(FILE *f, const Search *s, const Trial *x)
{
	const char *const *o = options_text(s, x);
	fputs("[", f);
	for (int i = 0; o[i]; i++)
		fprintf(f, "%s\"%s\"", i ? ", " : "", str_escape(s->a, ESCAPE_JSON, o[i]));
	fputs("]", f);
}

void search_json(FILE *f, const Search *s)
{
	fprintf(f, "  \"search\": {\n    \"bound_ms\": %.6g, \"gap\": %.4g, \"limit\": %" PRId64 ", \"options\": ",
		s->bound * 1e3, s->best->of.seconds / s->bound - 1, s->limit);
	json_options(f, s, s->best);
	fprintf(f, ",\n    \"flags\": \"%s\", \"plans\": [", search_flags(s));
	for (int i = 0, n = 0; i < s->n; i++) {
		if (s->trial[i]->refused)
			continue;
		fprintf(f, "%s\n      {\"step_ms\": %.6g, \"total\": %" PRId64 ", \"fits\": %s, \"options\": ", n++ ? "," : "",
			s->trial[i]->of.seconds * 1e3, s->trial[i]->of.memory.total, s->trial[i]->over ? "false" : "true");
		json_options(f, s, s->trial[i]);
		fputs("}", f);
	}
	fputs("\n    ]\n  },\n", f);
}
