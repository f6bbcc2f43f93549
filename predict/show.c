/* predict/show.c: predictions as text and JSON. */
#include <inttypes.h>
#include <string.h>

#include "predict/timeline.h"

static const char *const evidence_text[COST_EVIDENCES] = {"measured", "near a measured one", "by the roofline"};
static const char *const evidence_key[COST_EVIDENCES] = {"measured", "near", "roofline"};

/* What the step's products would take at the peak, as a share of the step; with_again: those of recomputation too. */
static double utilisation(const Timeline *t, bool with_again)
{
	return t->seconds > 0 ? (t->ideal - (with_again ? 0 : t->ideal_again)) / t->seconds : 0;
}

static double transferring(const Timeline *t)
{
	double sum = 0;
	for (int i = 0; i < t->n_transfers; i++)
		sum += t->transfer[i]->end - t->transfer[i]->begin;
	return sum;
}

static double rate(const Timeline *t, int64_t n)
{
	return t->seconds > 0 ? (double)n / t->seconds : 0;
}

static bool fits(const Prediction *p)
{
	return (double)p->bytes <= p->of[VARIANT_ONLY]->machine->of[MACHINE_MEMORY];
}

/* ---- text ---- */

static void text_classes(FILE *f, const Timeline *t)
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

static void text_transfers(FILE *f, const Timeline *t, Arena *a)
{
	int shown = 0, width = 4, hidden = 0;
	if (transferring(t) <= 0)
		return;
	fprintf(f, "  compute waits %.3f ms (%.1f%%) for collectives, which take %.3f ms\n", t->exposed * 1e3,
		100 * t->exposed / t->seconds, transferring(t) * 1e3);
	for (int i = 0; i < t->n_transfers; i++)
		if (t->transfer[i]->op->unit)
			width = MAX(width, (int)strlen(t->transfer[i]->op->unit->name));
	for (int i = 0; i < t->n_transfers; i++) {
		const Transfer *x = t->transfer[i];
		if (x->exposed < 1e-4 * t->seconds) {
			hidden++;
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
		fprintf(f, "  %d %s hidden\n", hidden, shown ? "others are" : hidden == 1 ? "is" : "are");
}

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
	int64_t n = p->tokens ? p->tokens : p->samples;
	fprintf(f, "\nprediction for %s, %" PRId64 " rank%s", str_escape(a, ESCAPE_IR, t->machine->name), t->who.world,
		t->who.world == 1 ? "" : "s");
	if (!t->machine->cuda)
		fprintf(f, " of %d thread%s", t->layout.threads, t->layout.threads == 1 ? "" : "s");
	fprintf(f, ": a step takes %.3f ms, %.1f %s/s", t->seconds * 1e3, rate(t, n * t->who.world),
		p->tokens ? "tokens" : "samples");
	if (t->who.world > 1)
		fprintf(f, " (%.1f a rank)", rate(t, n));
	if (t->ideal > 0)
		fprintf(f, ", %.1f%% of the peak", 100 * utilisation(t, false));
	if (t->ideal_again > 0)
		fprintf(f, " (%.1f%% with what is recomputed)", 100 * utilisation(t, true));
	fputc('\n', f);
	if (!fits(p))
		fprintf(f, "  it does not fit: a rank needs %s and has %s\n", plan_human(a, p->bytes),
			plan_human(a, (int64_t)t->machine->of[MACHINE_MEMORY]));
	text_classes(f, t);
	text_transfers(f, t, a);
	text_micro(f, p);
	arena_free(a);
}

/* ---- JSON ---- */

static void json_transfer(FILE *f, const Transfer *x, Arena *a)
{
	const char *unit = x->op->unit ? arena_printf(a, "\"%s\"", str_escape(a, ESCAPE_JSON, x->op->unit->name)) : "null";
	fprintf(f, "\n      {\"number\": %d, \"op\": \"%s\", \"unit\": %s, \"bytes\": %" PRId64 ", \"issued_ms\": %.6g, "
		"\"begin_ms\": %.6g, \"end_ms\": %.6g, \"exposed_ms\": %.6g, \"reason\": \"%s\"}", x->seq,
		collective_info[x->row->kind].text, unit, x->bytes, x->issued * 1e3, x->begin * 1e3, x->end * 1e3,
		x->exposed * 1e3, str_escape(a, ESCAPE_JSON, exposed_text(x, a)));
}

static void json_micro(FILE *f, const Prediction *p)
{
	const Timeline *const *v = p->of;
	if (v[VARIANT_FIRST])
		fprintf(f, "    \"micro_batches_ms\": {\"first\": %.6g, \"middle\": %.6g, \"last\": %.6g},\n",
			v[VARIANT_FIRST]->seconds * 1e3, v[VARIANT_MIDDLE]->seconds * 1e3, v[VARIANT_LAST]->seconds * 1e3);
}

void prediction_json(FILE *f, const Prediction *p)
{
	Arena *a = arena_new();
	const Timeline *t = p->of[VARIANT_ONLY];
	fprintf(f, "  \"prediction\": {\n    \"machine\": \"%s\", \"threads\": %d, \"step_ms\": %.6g, ",
		str_escape(a, ESCAPE_JSON, t->machine->name), t->layout.threads, t->seconds * 1e3);
	fprintf(f, "\"samples_per_s\": %.6g, \"tokens_per_s\": %.6g, \"tokens_per_s_per_rank\": %.6g,\n",
		rate(t, p->samples * t->who.world), rate(t, p->tokens * t->who.world), rate(t, p->tokens));
	fprintf(f, "    \"fits\": %s,\n", fits(p) ? "true" : "false");
	fprintf(f, "    \"mfu\": %.4g, \"hfu\": %.4g, \"flops\": %.6g, \"computing_ms\": %.6g, \"exposed_ms\": %.6g, "
		"\"transferring_ms\": %.6g,\n    \"classes_ms\": {", utilisation(t, false), utilisation(t, true), t->flops,
		t->computing * 1e3, t->exposed * 1e3, transferring(t) * 1e3);
	for (int c = COST_NONE + 1; c < COST_COLLECTIVE; c++)
		fprintf(f, "%s\"%s\": %.6g", c > COST_NONE + 1 ? ", " : "", cost_class_text[c], t->of_class[c] * 1e3);
	fputs("},\n    \"evidence_ms\": {", f);
	for (int e = 0; e < COST_EVIDENCES; e++)
		fprintf(f, "%s\"%s\": %.6g", e ? ", " : "", evidence_key[e], t->of_evidence[e] * 1e3);
	fputs("},\n", f);
	json_micro(f, p);
	fputs("    \"collectives\": [", f);
	for (int i = 0; i < t->n_transfers; i++) {
		fputs(i ? "," : "", f);
		json_transfer(f, t->transfer[i], a);
	}
	fputs(t->n_transfers ? "\n    ]\n  },\n" : "]\n  },\n", f);
	arena_free(a);
}
