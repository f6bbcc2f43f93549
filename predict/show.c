/* predict/show.c: predictions as text and JSON. */
#include <inttypes.h>
#include <string.h>

#include "predict/private.h"

static const char *const evidence_text[COST_EVIDENCES] = {"measured", "near a measured one", "by the roofline"};
static const char *const evidence_key[COST_EVIDENCES] = {"measured", "near", "roofline"};

/* What all micro-batches of a step are together. */
typedef struct Totals {
	double seconds, computing, exposed, transferring, gather_copies, copying, copies_exposed;
	double of_class[COST_CLASSES], of_evidence[COST_EVIDENCES];
	double flops, ideal, ideal_again;
} Totals;

static Totals totals_of(const Prediction *p)
{
	Totals sum = {0};
	for (int k = 0; k < VARIANT_COUNT; k++) {
		const Timeline *t = p->of[k];
		double times = (double)predict_runs(p->micro_batches, (Variant)k);
		if (!t)
			continue;
		sum.seconds += times * t->seconds;
		sum.computing += times * t->computing;
		sum.exposed += times * t->exposed;
		sum.copying += times * t->copying;
		sum.copies_exposed += times * t->copies_exposed;
		for (int i = 0; i < t->n_transfers; i++) {
			const Transfer *x = t->transfer[i];
			sum.transferring += times * (x->end - x->begin);
			sum.gather_copies += x->row->kind == RT_ALL_GATHER ? times * (x->talks - x->begin) : 0;
		}
		for (int c = 0; c < COST_CLASSES; c++)
			sum.of_class[c] += times * t->of_class[c];
		for (int e = 0; e < COST_EVIDENCES; e++)
			sum.of_evidence[e] += times * t->of_evidence[e];
		sum.flops += times * t->flops;
		sum.ideal += times * t->ideal;
		sum.ideal_again += times * t->ideal_again;
	}
	return sum;
}

/* What the step's products would take at the peak, as a share of the step; with_again: those of recomputation too. */
static double utilisation(const Totals *t, bool with_again)
{
	return t->seconds > 0 ? (t->ideal - (with_again ? 0 : t->ideal_again)) / t->seconds : 0;
}

static double rate(const Totals *t, int64_t n)
{
	return t->seconds > 0 ? (double)n / t->seconds : 0;
}

static bool fits_device(const Prediction *p)
{
	return (double)p->bytes <= p->of[VARIANT_ONLY]->machine->of[MACHINE_MEMORY];
}

static bool fits_host(const Prediction *p)
{
	return !machine_overpins(p->of[VARIANT_ONLY]->machine, p->pinned);
}

/* ---- text ---- */

static void text_classes(FILE *f, const Totals *t)
{
	fprintf(f, "  computing %.3f ms:", t->computing * 1e3);
	for (int c = COST_NONE + 1, n = 0; c < COST_COLLECTIVE; c++)
		if (t->of_class[c] > 0)
			fprintf(f, "%s %s %.3f", n++ ? "," : "", cost_class_text[c], t->of_class[c] * 1e3);
	fputs("\n  evidence:", f);
	for (int e = 0, n = 0; e < COST_EVIDENCES; e++)
		if (t->of_evidence[e] > 0)
			fprintf(f, "%s %.0f%% of it %s", n++ ? "," : "", 100 * t->of_evidence[e] / t->computing, evidence_text[e]);
	fputc('\n', f);
}

/* The exposed collectives of one micro-batch; step: the seconds of all. */
static void text_transfers(FILE *f, const Timeline *t, double step, Arena *a)
{
	int shown = 0, width = 4, hidden = 0;
	double rest = 0; /* exposed, of those that have no line */
	for (int i = 0; i < t->n_transfers; i++)
		if (t->transfer[i]->op->unit)
			width = MAX(width, (int)strlen(t->transfer[i]->op->unit->name));
	for (int i = 0; i < t->n_transfers; i++) {
		const Transfer *x = t->transfer[i];
		if (x->exposed < 1e-4 * step) {
			hidden++;
			rest += x->exposed;
			continue;
		}
		if (!shown++)
			fprintf(f, "  %5s  %-18s  %-*s  %10s %10s %10s  %s\n", "no", "op", width, "unit", "takes ms", "hidden",
				"exposed", "why");
		fprintf(f, "  %5d  %-18s  %-*s  %10.3f %10.3f %10.3f  %s\n", x->seq, collective_info[x->row->kind].text, width,
			x->op->unit ? str_escape(a, ESCAPE_IR, x->op->unit->name) : "-", (x->end - x->begin) * 1e3,
			MAX(x->end - x->begin - x->exposed, 0) * 1e3, x->exposed * 1e3, exposed_text(x, a));
	}
	if (hidden)
		fprintf(f, "  %d %s hidden%s\n", hidden, shown ? "others are" : hidden == 1 ? "is" : "are",
			rest < 1e-4 * step ? "" : arena_printf(a, ", but for %.3f ms together", rest * 1e3));
}

/* The waits of the step: of several micro-batches, each variant with its own collectives. */
static void text_waits(FILE *f, const Prediction *p, const Totals *all, Arena *a)
{
	if (all->transferring <= 0)
		return;
	double exposed = all->exposed - all->copies_exposed;
	fprintf(f, "  compute waits %.3f ms (%.1f%%) for collectives, which take %.3f ms", exposed * 1e3,
		100 * exposed / all->seconds, all->transferring * 1e3);
	if (all->gather_copies > 0)
		fprintf(f, ", %.3f of it to copy from memory of the host", all->gather_copies * 1e3);
	fputc('\n', f);
	for (int k = 0; k < VARIANT_COUNT; k++) {
		int64_t times = predict_runs(p->micro_batches, (Variant)k);
		if (times && p->micro_batches > 1)
			fprintf(f, "  micro-batch %s%s takes %.3f ms\n", variant_text[k],
				times > 1 ? arena_printf(a, ", %" PRId64 " times,", times) : "", p->of[k]->seconds * 1e3);
		if (times)
			text_transfers(f, p->of[k], all->seconds, a);
	}
}

static void text_copies(FILE *f, const Totals *all)
{
	if (all->copying > 0)
		fprintf(f, "  compute waits %.3f ms (%.1f%%) for copies to and from memory of the host, which take %.3f ms\n",
			all->copies_exposed * 1e3, 100 * all->copies_exposed / all->seconds, all->copying * 1e3);
}

/* How long steps of other numbers of micro-batches take. */
static void text_micro(FILE *f, const Prediction *p)
{
	const Timeline *const *v = p->of;
	if (v[VARIANT_FIRST])
		fprintf(f, "  a step of A micro-batches takes %.3f + (A - 2) x %.3f + %.3f ms\n",
			v[VARIANT_FIRST]->seconds * 1e3, v[VARIANT_MIDDLE]->seconds * 1e3, v[VARIANT_LAST]->seconds * 1e3);
}

void prediction_text(FILE *f, const Prediction *p)
{
	Arena *a = arena_new();
	const Timeline *t = p->of[VARIANT_ONLY];
	const Totals all = totals_of(p);
	int64_t n = p->micro_batches * (p->tokens ? p->tokens : p->samples);
	fprintf(f, "\nprediction for %s, %" PRId64 " rank%s", str_escape(a, ESCAPE_IR, t->machine->name), t->who.world,
		t->who.world == 1 ? "" : "s");
	if (!t->machine->cuda)
		fprintf(f, " of %d thread%s", t->layout.threads, t->layout.threads == 1 ? "" : "s");
	fprintf(f, ": a step%s takes %.3f ms, %.1f %s/s",
		p->micro_batches > 1 ? arena_printf(a, " of %" PRId64 " micro-batches", p->micro_batches) : "",
		all.seconds * 1e3, rate(&all, n * t->who.world), p->tokens ? "tokens" : "samples");
	if (t->who.world > 1)
		fprintf(f, " (%.1f a rank)", rate(&all, n));
	if (all.ideal > 0)
		fprintf(f, ", %.1f%% of the peak", 100 * utilisation(&all, false));
	if (all.ideal_again > 0)
		fprintf(f, " (%.1f%% with what is recomputed)", 100 * utilisation(&all, true));
	fputc('\n', f);
	if (!fits_device(p))
		fprintf(f, "  it does not fit: a rank needs %s and has %s\n", plan_human(a, p->bytes),
			plan_human(a, (int64_t)t->machine->of[MACHINE_MEMORY]));
	if (!fits_host(p))
		fprintf(f, "  it does not fit: a rank pins %s of its host's memory and may pin %s\n", plan_human(a, p->pinned),
			plan_human(a, (int64_t)t->machine->of[MACHINE_HOST_MEMORY]));
	text_classes(f, &all);
	text_waits(f, p, &all, a);
	text_copies(f, &all);
	text_micro(f, p);
	arena_free(a);
}

/* ---- JSON ---- */

static void json_transfer(FILE *f, Variant of, const Transfer *x, Arena *a)
{
	const char *unit = x->op->unit ? arena_printf(a, "\"%s\"", str_escape(a, ESCAPE_JSON, x->op->unit->name)) : "null";
	fprintf(f, "\n      {\"micro_batch\": \"%s\", \"number\": %d, \"op\": \"%s\", \"unit\": %s, \"bytes\": %" PRId64
		", \"issued_ms\": %.6g, \"begin_ms\": %.6g, \"copied_ms\": %.6g, \"end_ms\": %.6g, "
		"\"exposed_ms\": %.6g, \"reason\": \"%s\"}", variant_text[of], x->seq,
		collective_info[x->row->kind].text, unit, x->bytes, x->issued * 1e3, x->begin * 1e3,
		(x->talks - x->begin) * 1e3, x->end * 1e3, x->exposed * 1e3, str_escape(a, ESCAPE_JSON, exposed_text(x, a)));
}

static void json_micro(FILE *f, const Prediction *p)
{
	const Timeline *const *v = p->of;
	if (v[VARIANT_FIRST])
		fprintf(f, "    \"micro_batches_ms\": {\"first\": %.6g, \"middle\": %.6g, \"last\": %.6g},\n",
			v[VARIANT_FIRST]->seconds * 1e3, v[VARIANT_MIDDLE]->seconds * 1e3, v[VARIANT_LAST]->seconds * 1e3);
}

static void json_transfers(FILE *f, const Prediction *p, Arena *a)
{
	int n = 0;
	fputs("    \"collectives\": [", f);
	for (int k = 0; k < VARIANT_COUNT; k++)
		for (int i = 0; predict_runs(p->micro_batches, (Variant)k) && i < p->of[k]->n_transfers; i++) {
			fputs(n++ ? "," : "", f);
			json_transfer(f, (Variant)k, p->of[k]->transfer[i], a);
		}
	fputs(n ? "\n    ]\n  },\n" : "]\n  },\n", f);
}

void prediction_json(FILE *f, const Prediction *p)
{
	Arena *a = arena_new();
	const Timeline *t = p->of[VARIANT_ONLY];
	const Totals all = totals_of(p);
	int64_t samples = p->micro_batches * p->samples, tokens = p->micro_batches * p->tokens;
	fprintf(f, "  \"prediction\": {\n    \"machine\": \"%s\", \"threads\": %d, \"micro_batches\": %" PRId64
		", \"step_ms\": %.6g, ", str_escape(a, ESCAPE_JSON, t->machine->name), t->layout.threads, p->micro_batches,
		all.seconds * 1e3);
	fprintf(f, "\"samples_per_s\": %.6g, \"tokens_per_s\": %.6g, \"tokens_per_s_per_rank\": %.6g,\n",
		rate(&all, samples * t->who.world), rate(&all, tokens * t->who.world), rate(&all, tokens));
	fprintf(f, "    \"fits\": %s,\n", fits_device(p) && fits_host(p) ? "true" : "false");
	fprintf(f, "    \"mfu\": %.4g, \"hfu\": %.4g, \"flops\": %.6g, \"computing_ms\": %.6g, \"exposed_ms\": %.6g, "
		"\"transferring_ms\": %.6g, \"gather_copies_ms\": %.6g, \"copying_ms\": %.6g, \"copies_exposed_ms\": %.6g,\n"
		"    \"classes_ms\": {", utilisation(&all, false), utilisation(&all, true), all.flops, all.computing * 1e3,
		all.exposed * 1e3, all.transferring * 1e3, all.gather_copies * 1e3, all.copying * 1e3,
		all.copies_exposed * 1e3);
	for (int c = COST_NONE + 1; c < COST_COLLECTIVE; c++)
		fprintf(f, "%s\"%s\": %.6g", c > COST_NONE + 1 ? ", " : "", cost_class_text[c], all.of_class[c] * 1e3);
	fputs("},\n    \"evidence_ms\": {", f);
	for (int e = 0; e < COST_EVIDENCES; e++)
		fprintf(f, "%s\"%s\": %.6g", e ? ", " : "", evidence_key[e], all.of_evidence[e] * 1e3);
	fputs("},\n", f);
	json_micro(f, p);
	json_transfers(f, p, a);
	arena_free(a);
}
