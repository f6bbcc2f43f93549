/* predict/answers_show.c: the answers of --ask as text and as JSON. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "predict/answers.h"

enum { OPTION_WIDTH = 46, HOLDERS = 4 };
#define GIB ((double)((int64_t)1 << 30))

/* The answers about a kind, the fastest first, and those without a time last. */
static int faster(const void *x, const void *y)
{
	const Answer *a = *(const Answer *const *)x, *b = *(const Answer *const *)y;
	return a->samples != b->samples ? (a->samples < b->samples ? 1 : -1) : strcmp(a->option, b->option);
}

static int of_kind(const AnswerList *l, ChangeKind kind, const Answer **out)
{
	int n = 0;
	for (int i = 0; i < l->n; i++)
		if (l->at[i].kind == kind)
			out[n++] = &l->at[i];
	qsort(out, (size_t)n, sizeof(*out), faster);
	return n;
}

static bool fits(const Answer *x, const Machine *m)
{
	return (double)x->bytes <= m->of[MACHINE_MEMORY] && !machine_overpins(m, x->pinned);
}

/* ---- text ---- */

/* Reasons have names of the model. */
static const char *reason(const char *why, Arena *a)
{
	return why ? str_escape(a, ESCAPE_TERMINAL, why) : "";
}

/* An option, and where the numbers of a long one begin. */
static void text_option(FILE *f, const char *option)
{
	if (strlen(option) > OPTION_WIDTH)
		fprintf(f, "  %s\n  %*s", option, OPTION_WIDTH, "");
	else
		fprintf(f, "  %-*s", OPTION_WIDTH, option);
}

static void text_answer(FILE *f, const Answer *x, const Answers *all, const Machine *m, Arena *a)
{
	const Answer *now = &all->plan.at[0];
	const char *over = machine_overpins(m, x->pinned) ? ", more than its host has" : !fits(x, m)
		? ", more than a rank has" : x->bytes > all->limit ? ", above --memory-limit" : "";
	text_option(f, x->option);
	if (x->seconds > 0)
		fprintf(f, " %12.3f %12.2f %+8.1f%%", x->seconds * 1e3, x->samples, 100 * (x->samples / now->samples - 1));
	else
		fprintf(f, " %12s %12s %9s", "-", "-", "-");
	fprintf(f, " %12s%s%s%s\n", plan_human(a, x->bytes), over, x->why ? "; " : "", reason(x->why, a));
}

/* What makes the same plan is said in one line. */
static void text_left_out(FILE *f, const Answer *const *x, int n, Arena *a)
{
	int same = 0;
	for (int i = 0; i < n; i++)
		if (x[i]->bytes)
			fprintf(f, "%s %s", same++ ? "," : "  the same plan:", x[i]->option);
	fputs(same ? "\n" : "", f);
	for (int i = 0; i < n; i++) {
		int before = 0;
		while (before < i && (x[before]->bytes || strcmp(x[before]->why, x[i]->why)))
			before++;
		if (x[i]->bytes || before < i)
			continue; /* it was said with another of the same reason */
		fprintf(f, "  no answer: %s", x[i]->option);
		for (int k = i + 1; k < n; k++)
			if (!x[k]->bytes && !strcmp(x[k]->why, x[i]->why))
				fprintf(f, ", %s", x[k]->option);
		fprintf(f, ": %s\n", reason(x[i]->why, a));
	}
}

static void text_plans(FILE *f, const Answers *all, const Machine *m, Arena *a)
{
	const Answer **x = NEW_N(a, const Answer *, all->plan.n + all->left_out.n);
	fprintf(f, "\nother plans, each predicted with its option alone, of each kind the fastest first\n"
		"  %-*s %12s %12s %9s %12s\n", OPTION_WIDTH, "option", "step ms", "samples/s", "rate", "total memory");
	for (int k = 0; k < CHANGE_KINDS; k++) {
		int n = of_kind(&all->plan, (ChangeKind)k, x), left = of_kind(&all->left_out, (ChangeKind)k, x + n);
		if (n + left && *change_kind_info[k].title)
			fprintf(f, " %s\n", change_kind_info[k].title);
		for (int i = 0; i < n; i++)
			text_answer(f, x[i], all, m, a);
		text_left_out(f, x + n, left, a);
	}
}

static void text_shares(FILE *f, const char *what, const HeldShares *of, Arena *a)
{
	for (int i = 0; i < of->n && i < HOLDERS; i++)
		fprintf(f, "%s %s %s", i ? "," : what, str_escape(a, ESCAPE_TERMINAL, of->at[i].name),
			plan_human(a, of->at[i].bytes));
	fputs(of->n > HOLDERS ? arena_printf(a, ", and %d others\n", of->n - HOLDERS) : of->n ? "\n" : "", f);
}

static void text_peak(FILE *f, const Answers *all, Arena *a)
{
	fprintf(f, "\nmost is in use at %s: %s of %s\n", str_escape(a, ESCAPE_TERMINAL, all->peak_op),
		plan_human(a, all->peak_bytes), plan_human(a, all->plan.at[0].bytes));
	text_shares(f, "  of modules, values:", &all->modules, a);
	text_shares(f, "  of units, what is gathered and gradients:", &all->units, a);
}

static void text_hybrid(FILE *f, const Hybrid *x, Arena *a)
{
	fputs("\n--strategy=hybrid_shard beside full_shard, on all ranks of so many hosts, a rank with as many samples\n",
		f);
	if (x->why)
		fprintf(f, "  no answer: %s\n", reason(x->why, a));
	for (int i = 0; i < x->at.n; i++) {
		const HybridAt *at = &x->at.at[i];
		fprintf(f, "  --world=%-6" PRId64 " %4" PRId64 " hosts: %.3f ms beside %.3f ms, by %s%s\n", at->world,
			at->hosts, at->hybrid * 1e3, at->full * 1e3, plan_human(a, at->hybrid_bytes),
			at->pays && (!i || !at[-1].pays) ? ": it pays from here on" : "");
	}
	if (x->at.n && !x->at.at[x->at.n - 1].pays)
		fputs("  it pays on none of them: it is no faster, or a rank has not the memory\n", f);
}

/* Milliseconds that a GiB buys between two points. */
static double rate(const CurvePoint *from, const CurvePoint *to)
{
	double bytes = (double)(to->bytes - from->bytes) / GIB;
	return bytes > 0 ? (from->seconds - to->seconds) * 1e3 / bytes : 0;
}

static void text_step(FILE *f, const CurvePoint *to, const Answer *now, int64_t step, bool more, Arena *a)
{
	double ms = (to->seconds - now->seconds) * 1e3;
	fprintf(f, "  %s %s than this plan ", plan_human(a, step), more ? "more" : "less");
	if (to->seconds <= 0)
		fputs("has no plan\n", f);
	else if (more && ms < 0)
		fprintf(f, "buys %.3f ms: %s\n", -ms, to->option);
	else if (more)
		fputs("buys nothing: no plan that was tried is faster\n", f);
	else
		fprintf(f, "%s %.3f ms: %s\n", ms < 0 ? "saves" : "costs", ms < 0 ? -ms : ms, to->option);
}

static void text_curve(FILE *f, const Answers *all, Arena *a)
{
	const Curve *c = &all->curve;
	fprintf(f, "\nmemory and time: the fastest plan within each limit, of --strategy and --remat\n");
	if (c->why) {
		fprintf(f, "  no answer: %s\n", reason(c->why, a));
		return;
	}
	fprintf(f, "  %-*s %12s %12s %12s %12s\n", OPTION_WIDTH, "option", "limit", "total memory", "step ms",
		"ms per GiB");
	for (int i = 0; i < c->at.n; i++) {
		const CurvePoint *p = &c->at.at[i];
		text_option(f, p->option);
		fprintf(f, " %12s %12s %12.3f %12s\n", plan_human(a, p->limit), plan_human(a, p->bytes), p->seconds * 1e3,
			i ? arena_printf(a, "%.3f", rate(p - 1, p)) : "-");
	}
	text_step(f, &c->more, &all->plan.at[0], c->step, true, a);
	text_step(f, &c->less, &all->plan.at[0], c->step, false, a);
}

static void text_largest(FILE *f, const Answers *all, Arena *a)
{
	fprintf(f, "\nlargest sizes, each alone, with which a rank needs no more than %s\n",
		plan_human(a, all->limit));
	if (all->largest_why)
		fprintf(f, "  no answer: %s\n", reason(all->largest_why, a));
	for (int i = 0; i < all->largest.n; i++) {
		const Largest *l = &all->largest.at[i];
		if (l->size)
			fprintf(f, "  %-*s %12s, now %s%s\n", OPTION_WIDTH, l->option, plan_human(a, l->bytes),
				strrchr(l->now, '=') + 1, l->more ? "; larger ones were not tried"
				: l->held ? "; larger ones fit, but do not divide --global-batch" : "");
		else
			fprintf(f, "  %s: none fits\n", str_escape(a, ESCAPE_SHELL, l->now));
	}
}

void answers_text(FILE *f, const Answers *x, const Machine *m)
{
	Arena *a = arena_new();
	text_peak(f, x, a);
	text_plans(f, x, m, a);
	text_hybrid(f, &x->hybrid, a);
	text_curve(f, x, a);
	text_largest(f, x, a);
	arena_free(a);
}

/* ---- JSON ---- */

static const char *quoted(const char *text, Arena *a)
{
	return text ? arena_printf(a, "\"%s\"", str_escape(a, ESCAPE_JSON, text)) : "null";
}

static const char *ms(double seconds, Arena *a)
{
	return seconds > 0 ? arena_printf(a, "%.6g", seconds * 1e3) : "null";
}

static void json_plans(FILE *f, const Answers *all, const Machine *m, Arena *a)
{
	const Answer **x = NEW_N(a, const Answer *, all->plan.n + all->left_out.n);
	int shown = 0;
	fputs("  \"alternatives\": [", f);
	for (int k = 0; k < CHANGE_KINDS; k++) {
		int n = of_kind(&all->plan, (ChangeKind)k, x);
		for (int i = 0; i < n; i++)
			fprintf(f, "%s\n    {\"kind\": \"%s\", \"option\": %s, \"step_ms\": %s, \"samples_per_s\": %s, "
				"\"total\": %" PRId64 ", \"fits\": %s, \"why\": %s}", shown++ ? "," : "", change_kind_info[k].key,
				quoted(x[i]->option, a), ms(x[i]->seconds, a),
				x[i]->samples > 0 ? arena_printf(a, "%.6g", x[i]->samples) : "null", x[i]->bytes,
				fits(x[i], m) ? "true" : "false", quoted(x[i]->why, a));
	}
	fputs("\n  ],\n  \"left_out\": [", f);
	for (int i = 0; i < all->left_out.n; i++)
		fprintf(f, "%s\n    {\"kind\": \"%s\", \"option\": %s, \"why\": %s}", i ? "," : "",
			change_kind_info[all->left_out.at[i].kind].key, quoted(all->left_out.at[i].option, a),
			quoted(all->left_out.at[i].why, a));
	fputs("\n  ],\n", f);
}

static void json_shares(FILE *f, const char *key, const HeldShares *of, Arena *a)
{
	fprintf(f, ", \"%s\": [", key);
	for (int i = 0; i < of->n; i++)
		fprintf(f, "%s{\"name\": %s, \"bytes\": %" PRId64 "}", i ? ", " : "", quoted(of->at[i].name, a),
			of->at[i].bytes);
	fputc(']', f);
}

static void json_hybrid(FILE *f, const Hybrid *x, Arena *a)
{
	fprintf(f, "  \"hybrid\": {\"why\": %s, \"tried\": [", quoted(x->why, a));
	for (int i = 0; i < x->at.n; i++) {
		const HybridAt *at = &x->at.at[i];
		fprintf(f, "%s\n    {\"hosts\": %" PRId64 ", \"world\": %" PRId64 ", \"full_shard_ms\": %s, ", i ? "," : "",
			at->hosts, at->world, ms(at->full, a));
		fprintf(f, "\"hybrid_shard_ms\": %s, \"hybrid_shard_total\": %" PRId64 ", \"pays\": %s}", ms(at->hybrid, a),
			at->hybrid_bytes, at->pays ? "true" : "false");
	}
	fputs("]},\n", f);
}

static void json_point(FILE *f, const CurvePoint *p, Arena *a)
{
	fprintf(f, "{\"limit\": %" PRId64 ", \"option\": %s, \"total\": %" PRId64 ", \"step_ms\": %s}", p->limit,
		quoted(p->option, a), p->bytes, ms(p->seconds, a));
}

static void json_curve(FILE *f, const Curve *c, Arena *a)
{
	fprintf(f, "  \"curve\": {\"why\": %s, \"step\": %" PRId64 ", \"points\": [", quoted(c->why, a), c->step);
	for (int i = 0; i < c->at.n; i++) {
		fputs(i ? ",\n    " : "\n    ", f);
		json_point(f, &c->at.at[i], a);
	}
	fputs("], \"more\": ", f);
	json_point(f, &c->more, a);
	fputs(", \"less\": ", f);
	json_point(f, &c->less, a);
	fputs("},\n", f);
}

static void json_largest(FILE *f, const Answers *all, Arena *a)
{
	fprintf(f, "  \"largest_why\": %s,\n  \"largest\": [", quoted(all->largest_why, a));
	for (int i = 0; i < all->largest.n; i++) {
		const Largest *l = &all->largest.at[i];
		fprintf(f, "%s\n    {\"now\": %s, \"option\": %s, \"total\": %" PRId64 ", \"more\": %s, "
			"\"held_by_global_batch\": %s}", i ? "," : "", quoted(l->now, a), quoted(l->option, a), l->bytes,
			l->more ? "true" : "false", l->held ? "true" : "false");
	}
	fputs(all->largest.n ? "\n  ],\n" : "],\n", f);
}

void answers_json(FILE *f, const Answers *x, const Machine *m)
{
	Arena *a = arena_new();
	json_plans(f, x, m, a);
	fprintf(f, "  \"asked_micro_batches\": %" PRId64 ",\n", x->micro_batches);
	fprintf(f, "  \"held\": {\"at\": %s, \"bytes\": %" PRId64, quoted(x->peak_op, a), x->peak_bytes);
	json_shares(f, "modules", &x->modules, a);
	json_shares(f, "units", &x->units, a);
	fputs("},\n", f);
	json_hybrid(f, &x->hybrid, a);
	json_curve(f, &x->curve, a);
	json_largest(f, x, a);
	arena_free(a);
}
