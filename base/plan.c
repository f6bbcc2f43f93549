/* base/plan.c: prints units, collectives and memory, as text for people and as JSON with the same numbers.
 *
 * Everything that is printed follows from flats, slots and the rank that asks, by base/layout.h.  The compiler's
 * plan and that of the running program are therefore the same text, and neither needs the weights. */
#include "base/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *plan_human(Arena *a, int64_t bytes)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double v = (double)bytes;
	int u = 0;
	for (; v >= 1024 && u < COUNT_OF(unit) - 1; u++)
		v /= 1024;
	return arena_printf(a, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

/* ---- bytes ---- */

/* Bytes of one rank's part of the unit's flats, in the dtype in which they are sent; for a reduce only the
 * trainable flats. */
static int64_t shard_bytes(const LayoutUnit *u, int64_t ranks, bool reduced)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		if (u->flat[f].trainable || !reduced)
			sum += layout_shard_numel(u->flat[f].numel, ranks) *
				dtype_info[reduced ? u->flat[f].reduce : u->flat[f].param].bytes;
	return sum;
}

static int64_t broadcast_bytes(const LayoutUnit *u)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		sum += u->flat[f].trainable ? layout_flat_numel(u->flat[f].numel, 1) * dtype_info[u->flat[f].bcast].bytes : 0;
	return sum;
}

static int64_t rest_bytes(const LayoutUnit *u, int64_t ranks)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		sum += layout_shard_numel(u->flat[f].numel, ranks) * dtype_info[u->flat[f].dtype].bytes;
	return sum;
}

int64_t plan_padding(const LayoutUnit *u, int64_t elements, const LayoutRank *who)
{
	int64_t sum = 0, ranks = layout_split(u->strategy, who).ranks;
	for (int f = 0; f < u->n_flats; f++)
		sum += layout_flat_numel(u->flat[f].numel, ranks);
	return sum - elements;
}

/* A rank receives one piece from each other rank, to add them up; where the sum is kept by all, also the other
 * summed pieces. */
static int64_t all_reduced(const LayoutUnit *u, int64_t ranks, int64_t members, int64_t me, bool keeps)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++) {
		int64_t n = layout_shard_numel(u->flat[f].numel, ranks), mine = layout_piece(n, members, me).n;
		if (u->flat[f].trainable)
			sum += ((members - 1) * mine + (keeps ? n - mine : 0)) * dtype_info[u->flat[f].reduce].bytes;
	}
	return sum;
}

int64_t plan_received(const Plan *p, const PlanCollective *c)
{
	const LayoutRank *who = &p->who;
	const LayoutUnit *u = c->unit < 0 ? NULL : &p->layout->unit[c->unit];
	LayoutSplit split = u ? layout_split(u->strategy, who) : (LayoutSplit){1, 0, 0, who->world};
	bool owner = u && u->owner == who->rank;
	switch (collective_info[c->kind].bytes) {
	case BYTES_SHARDS: return (split.ranks - 1) * shard_bytes(u, split.ranks, false);
	case BYTES_GRADIENTS: return (split.ranks - 1) * shard_bytes(u, split.ranks, true);
	case BYTES_SUM_TO_ALL: return all_reduced(u, 1, who->world, who->rank, true);
	case BYTES_SUM_OVER_GROUPS: return all_reduced(u, split.ranks, split.groups, split.group, true);
	case BYTES_SUM_TO_OWNER: return all_reduced(u, 1, who->world, who->rank, owner);
	case BYTES_FLATS_OF_OWNER: return owner || who->world == 1 ? 0 : broadcast_bytes(u);
	case BYTES_BUFFERS_OF_FIRST: return who->rank ? c->message : 0;
	case BYTES_SCALES_OF_WEIGHTS:
	case BYTES_OPERANDS: return (who->world - 1) * c->message;
	case BYTES_SCALARS: return (who->world - 1) * LAYOUT_SCALARS * (int64_t)sizeof(double);
	}
	ice("collective %d", (int)c->kind);
}

typedef struct Sums { int n; int64_t bytes; } Sums;

static void sum_by_kind(const Plan *p, const PlanCollective *c, int n, Sums out[RT_COLLECTIVE_KINDS])
{
	memset(out, 0, sizeof(*out) * RT_COLLECTIVE_KINDS);
	for (int i = 0; i < n; i++) {
		out[c[i].kind].n++;
		out[c[i].kind].bytes += plan_received(p, &c[i]);
	}
}

typedef struct Counts { int gathers, reduces, broadcasts; } Counts;

static void count_collectives(Counts *of, const PlanCollective *c, int n, int times)
{
	for (int i = 0; i < n; i++) {
		CollectiveAct act = collective_info[c[i].kind].act;
		if (c[i].unit < 0)
			continue;
		of[c[i].unit].gathers += act == ACT_GATHER ? times : 0;
		of[c[i].unit].reduces += act == ACT_REDUCE ? times : 0;
		of[c[i].unit].broadcasts += act == ACT_BROADCAST ? times : 0;
	}
}

/* Counts the collectives of every unit in a training step.  An all_reduce of shards completes a reduce_scatter and
 * is not counted. */
static Counts *count_by_unit(const Plan *p, Arena *a)
{
	Counts *of = NEW_N(a, Counts, p->layout->n_units);
	if (!p->n_micro)
		count_collectives(of, p->step, p->n_step, 1);
	for (int i = 0; i < p->n_micro; i++)
		count_collectives(of, p->micro[i].at, p->micro[i].n, (int)p->micro[i].times);
	return of;
}

void plan_categories(const LayoutMemory *m, PlanCategory out[PLAN_CATEGORIES])
{
	const PlanCategory all[PLAN_CATEGORIES] = {
		{"parameters", m->params, false}, {"gathered", m->gathered, false}, {"gradients", m->grads, false},
		{"sent copies", m->send, true}, {"optimizer states", m->states, false}, {"buffers", m->buffers, false},
		{"inputs", m->inputs, false}, {"activations", m->activations, false}, {"workspace", m->workspace, false},
		{"communication", m->comm, false}, {"device tables", m->tables, true}, {"snapshot", m->snapshot, true},
	};
	memcpy(out, all, sizeof(all));
}

static int most_bytes(const void *a, const void *b)
{
	int64_t x = ((const PlanCategory *)a)->bytes, y = ((const PlanCategory *)b)->bytes;
	return (x < y) - (x > y);
}

const char *plan_memory_text(const LayoutMemory *m, Arena *a)
{
	PlanCategory c[PLAN_CATEGORIES];
	const char *text = "";
	plan_categories(m, c);
	qsort(c, PLAN_CATEGORIES, sizeof(c[0]), most_bytes);
	for (int i = 0; i < PLAN_CATEGORIES && c[i].bytes; i++)
		text = arena_printf(a, "%s%s%s %s", text, i ? ", " : "", c[i].name, plan_human(a, c[i].bytes));
	return text;
}

/* --offload */
enum { SECTIONS = 4 };
static void file_sections(const LayoutMemory *m, PlanCategory out[SECTIONS])
{
	const PlanCategory all[SECTIONS] = {{"parameters", m->file.params, false}, {"gradients", m->file.grads, false},
		{"optimizer states", m->file.states, false}, {"total", m->file.total, false}};
	memcpy(out, all, sizeof(all));
}

/* For GPUs: sections of the host's memory. */
enum { HOST_SECTIONS = 7 };
static void host_sections(const LayoutMemory *m, PlanCategory out[HOST_SECTIONS])
{
	const PlanCategory all[HOST_SECTIONS] = {{"parameters", m->host.params, false},
		{"optimizer states", m->host.states, false}, {"activations", m->host.activations, true},
		{"pinned", m->host.pinned, false}, {"communication", m->host.comm, false},
		{"snapshot", m->host.snapshot, true}, {"total", m->host.total, false}};
	memcpy(out, all, sizeof(all));
}

/* ---- text ---- */

static void text_categories(FILE *f, const PlanCategory *c, int n, Arena *a)
{
	for (int i = 0; i < n; i++)
		if (c[i].bytes || !c[i].optional)
			fprintf(f, "  %-18s %16" PRId64 "  %10s\n", c[i].name, c[i].bytes, plan_human(a, c[i].bytes));
}

static int name_width(const Plan *p)
{
	int width = 4;
	for (int u = 0; u < p->layout->n_units; u++)
		width = MAX(width, (int)strlen(p->unit[u].name));
	return width;
}

static bool any_owner(const Plan *p)
{
	for (int u = 0; u < p->layout->n_units; u++)
		if (p->layout->unit[u].owner >= 0)
			return true;
	return false;
}

/* "f32>bf16>f32>f32" for each flat: at rest, gathered, gradient, sent; "f32" if all are the same. */
static const char *dtypes_of(const LayoutUnit *u, Arena *a)
{
	const char *text = "";
	for (int i = 0; i < u->n_flats; i++) {
		const LayoutFlat *f = &u->flat[i];
		bool same = f->param == f->dtype && (!f->trainable || (f->grad == f->dtype && f->reduce == f->dtype));
		const char *one = dtype_info[f->dtype].text;
		if (!same)
			one = arena_printf(a, "%s>%s", one, dtype_info[f->param].text);
		if (!same && f->trainable)
			one = arena_printf(a, "%s>%s>%s", one, dtype_info[f->grad].text, dtype_info[f->reduce].text);
		text = arena_printf(a, "%s%s%s", text, i ? "+" : "", one);
	}
	return text;
}

/* The width of the column of dtypes; 0: everything is f32, and there is no such column. */
static int dtypes_width(const Plan *p, Arena *a)
{
	int width = 0;
	for (int i = 0; i < p->layout->n_units; i++) {
		const char *text = dtypes_of(&p->layout->unit[i], a);
		if (strcmp(text, "f32"))
			width = MAX(width, MAX((int)strlen(text), 6));
	}
	return width;
}

/* Whether units differ in what of them lies elsewhere. */
static bool offloads_differ(const Plan *p)
{
	bool differ = false;
	for (int i = 1; i < p->layout->n_units; i++)
		differ = differ || p->layout->unit[i].offload != p->layout->unit[0].offload;
	return differ;
}

/* dtypes: the width of their column. owners: there is a column of them. */
static void text_unit(FILE *f, const Plan *p, int i, const Counts *c, int dtypes, bool owners, Arena *a)
{
	const LayoutUnit *u = &p->layout->unit[i];
	const PlanUnit *unit = &p->unit[i];
	int64_t bytes = rest_bytes(u, layout_split(u->strategy, &p->who).ranks);
	if (dtypes)
		fprintf(f, " %-*s", dtypes, dtypes_of(u, a));
	if (offloads_differ(p))
		fprintf(f, " %-7s", offload_text[u->offload]);
	if (owners)
		fprintf(f, " %6s", u->owner < 0 ? "-" : arena_printf(a, "%d", u->owner));
	fprintf(f, " %6d %13" PRId64 " %13" PRId64 " %9" PRId64 " %10s %7d %7d", unit->n_params, unit->elements,
		unit->trainable, plan_padding(u, unit->elements, &p->who), plan_human(a, bytes), c->gathers, c->reduces);
	if (owners)
		fprintf(f, " %10d", c->broadcasts);
	if (*unit->first)
		fprintf(f, "  %s .. %s", str_escape(a, ESCAPE_IR, unit->first), str_escape(a, ESCAPE_IR, unit->last));
	fputc('\n', f);
}

void plan_text_units(FILE *f, const Plan *p)
{
	Arena *a = arena_new();
	const Counts *counts = count_by_unit(p, a);
	int width = name_width(p), dtypes = dtypes_width(p, a);
	bool owners = any_owner(p);
	if (p->layout->n_units)
		fprintf(f, "%-*s  %-13s%s%s%s %6s %13s %13s %9s %10s %7s %7s%s  %s\n", width, "unit", "strategy",
			dtypes ? arena_printf(a, " %-*s", dtypes, "dtypes") : "", offloads_differ(p) ? " offload" : "",
			owners ? "  owner" : "",
			"params", "elements", "trainable", "padding", "bytes/rank", "gathers", "reduces",
			owners ? " broadcasts" : "", "first .. last use");
	for (int i = 0; i < p->layout->n_units; i++) {
		fprintf(f, "%-*s  %-13s", width, str_escape(a, ESCAPE_IR, p->unit[i].name),
			strategy_info[p->layout->unit[i].strategy].text);
		text_unit(f, p, i, &counts[i], dtypes, owners, a);
	}
	if (p->layout->n_units)
		fputc('\n', f);
	arena_free(a);
}

static void text_program(FILE *f, const Plan *p, const char *what, const PlanCollective *c, int n, Arena *a)
{
	Sums sums[RT_COLLECTIVE_KINDS];
	int width = name_width(p);
	sum_by_kind(p, c, n, sums);
	fprintf(f, "collectives of %s, bytes received by rank %" PRId64 "\n%5s  %-18s  %-*s  %-6s  %4s %16s\n", what,
		p->who.rank, "no", "op", width, "unit", "stream", "slot", "bytes");
	for (int i = 0; i < n; i++) {
		const char *slot = c[i].slot < 0 ? "-" : arena_printf(a, "%d", c[i].slot);
		fprintf(f, "%5d  %-18s  %-*s  %-6s  %4s %16" PRId64 "\n", i + 1, collective_info[c[i].kind].text, width,
			c[i].unit < 0 ? "-" : str_escape(a, ESCAPE_IR, p->unit[c[i].unit].name), stream_info[c[i].stream].text,
			slot, plan_received(p, &c[i]));
	}
	for (int k = 0; k < RT_COLLECTIVE_KINDS; k++)
		if (sums[k].n)
			fprintf(f, "  sum  %-18s  %-*s  %-6s  %4s %16" PRId64 "\n", collective_info[k].text, width,
				arena_printf(a, "x%d", sums[k].n), "", "", sums[k].bytes);
	fputc('\n', f);
}

void plan_text_collectives(FILE *f, const Plan *p)
{
	Arena *a = arena_new();
	if (p->layout->cuda.on && (p->who.world > 1 || !strcmp(p->comm, "nccl")))
		fprintf(f, "ranks talk over %s\n\n", p->comm);
	if (p->n_step && !p->n_micro)
		text_program(f, p, "a step", p->step, p->n_step, a);
	for (int i = 0; i < p->n_micro; i++)
		if (p->micro[i].n)
			text_program(f, p, arena_printf(a, "micro-batch %s, %" PRId64 " in a step", p->micro[i].name,
				p->micro[i].times), p->micro[i].at, p->micro[i].n, a);
	if (p->n_eval)
		text_program(f, p, "an evaluation", p->eval, p->n_eval, a);
	arena_free(a);
}

void plan_text_memory(FILE *f, const Plan *p)
{
	Arena *a = arena_new();
	PlanCategory c[PLAN_CATEGORIES];
	plan_categories(&p->memory, c);
	fprintf(f, "memory: planned bytes of rank %" PRId64 " of %" PRId64 "%s\n", p->who.rank, p->who.world,
		p->most && any_owner(p) && p->who.world > 1 ? ", which needs most" : "");
	text_categories(f, c, PLAN_CATEGORIES, a);
	fprintf(f, "  %-18s %16" PRId64 "  %10s\n", "total", p->memory.total, plan_human(a, p->memory.total));
	file_sections(&p->memory, c);
	if (p->memory.file.total) {
		fputs("in a file of this rank, outside that total:\n", f);
		text_categories(f, c, SECTIONS, a);
	}
	if (p->memory.host.total) {
		host_sections(&p->memory, c);
		fputs("in memory of the host, outside that total:\n", f);
		int first = p->memory.host.params ? 0 : p->memory.host.states ? 1 : 2; /* only those of all plans */
		text_categories(f, c + first, HOST_SECTIONS - first, a);
	}
	arena_free(a);
}

/* ---- JSON ---- */

static void json_flats(FILE *f, const LayoutUnit *u)
{
	fputs("\"flats\": [", f);
	for (int i = 0; i < u->n_flats; i++) {
		const LayoutFlat *x = &u->flat[i];
		fprintf(f, "%s{\"dtype\": \"%s\", \"gathered\": \"%s\"", i ? ", " : "", dtype_info[x->dtype].text,
			dtype_info[x->param].text);
		if (x->trainable)
			fprintf(f, ", \"gradient\": \"%s\", \"sent\": \"%s\", \"kept\": \"%s\", \"broadcast\": \"%s\", "
				"\"master\": %s", dtype_info[x->grad].text, dtype_info[x->reduce].text, dtype_info[x->kept].text,
				dtype_info[x->bcast].text, x->master ? "true" : "false");
		fputs("}", f);
	}
	fputs("], ", f);
}

static void json_unit(FILE *f, const Plan *p, int i, const Counts *c, Arena *a)
{
	const LayoutUnit *u = &p->layout->unit[i];
	const PlanUnit *unit = &p->unit[i];
	fprintf(f, "\n    {\"name\": \"%s\", \"strategy\": \"%s\", \"offload\": \"%s\", \"owner\": %s, \"params\": %d, ",
		str_escape(a, ESCAPE_JSON, unit->name), strategy_info[u->strategy].text, offload_text[u->offload],
		u->owner < 0 ? "null" : arena_printf(a, "%d", u->owner), unit->n_params);
	fprintf(f, "\"elements\": %" PRId64 ", \"trainable\": %" PRId64 ", \"padding\": %" PRId64
		", \"bytes_per_rank\": %" PRId64 ", ", unit->elements, unit->trainable,
		plan_padding(u, unit->elements, &p->who),
		rest_bytes(u, layout_split(u->strategy, &p->who).ranks));
	json_flats(f, u);
	fprintf(f, "\"gathers\": %d, \"reduces\": %d, \"broadcasts\": %d, \"first_use\": \"%s\", \"last_use\": \"%s\"}",
		c->gathers, c->reduces, c->broadcasts, str_escape(a, ESCAPE_JSON, unit->first),
		str_escape(a, ESCAPE_JSON, unit->last));
}

static void json_program(FILE *f, const Plan *p, const char *key, const PlanCollective *c, int n, Arena *a)
{
	Sums sums[RT_COLLECTIVE_KINDS];
	sum_by_kind(p, c, n, sums);
	fprintf(f, "  \"%s\": {\n    \"collectives\": [", key);
	for (int i = 0; i < n; i++) {
		const char *slot = c[i].slot < 0 ? "null" : arena_printf(a, "%d", c[i].slot);
		const char *unit = c[i].unit < 0 ? "null"
			: arena_printf(a, "\"%s\"", str_escape(a, ESCAPE_JSON, p->unit[c[i].unit].name));
		fprintf(f, "%s\n      {\"number\": %d, \"op\": \"%s\", \"unit\": %s, \"stream\": \"%s\", \"slot\": %s, "
			"\"bytes\": %" PRId64 "}", i ? "," : "", i + 1, collective_info[c[i].kind].text, unit,
			stream_info[c[i].stream].text, slot, plan_received(p, &c[i]));
	}
	fputs("],\n    \"sums\": {", f);
	bool first = true;
	for (int k = 0; k < RT_COLLECTIVE_KINDS; k++) {
		if (sums[k].n)
			fprintf(f, "%s\"%s\": {\"count\": %d, \"bytes\": %" PRId64 "}", first ? "" : ", ", collective_info[k].text,
				sums[k].n, sums[k].bytes);
		first = first && !sums[k].n;
	}
	fputs("}\n  },\n", f);
}

void plan_json(FILE *f, const Plan *p)
{
	Arena *a = arena_new();
	PlanCategory c[PLAN_CATEGORIES];
	const Counts *counts = count_by_unit(p, a);
	plan_categories(&p->memory, c);
	fprintf(f, "  \"module\": \"%s\",\n  \"world\": %" PRId64 ", \"shard_size\": %" PRId64 ", \"hosts\": %" PRId64
		", \"comm\": \"%s\", \"rank\": %" PRId64 ",\n", str_escape(a, ESCAPE_JSON, p->module), p->who.world,
		p->who.shard_size, MAX(p->layout->hosts, 1), p->comm, p->who.rank);
	fputs("  \"units\": [", f);
	for (int i = 0; i < p->layout->n_units; i++) {
		fputs(i ? "," : "", f);
		json_unit(f, p, i, &counts[i], a);
	}
	fputs(p->layout->n_units ? "\n  ],\n" : "],\n", f);
	json_program(f, p, "step", p->step, p->n_step, a);
	json_program(f, p, "eval", p->eval, p->n_eval, a);
	fputs("  \"memory\": {", f);
	for (int i = 0; i < PLAN_CATEGORIES; i++)
		fprintf(f, "\"%s\": %" PRId64 ", ", c[i].name, c[i].bytes);
	fprintf(f, "\"total\": %" PRId64 "},\n  \"file\": {", p->memory.total);
	file_sections(&p->memory, c);
	for (int i = 0; i < SECTIONS; i++)
		fprintf(f, "%s\"%s\": %" PRId64, i ? ", " : "", c[i].name, c[i].bytes);
	fputs("},\n  \"host\": {", f);
	host_sections(&p->memory, c);
	for (int i = 0; i < HOST_SECTIONS; i++)
		fprintf(f, "%s\"%s\": %" PRId64, i ? ", " : "", c[i].name, c[i].bytes);
	fputs("},\n", f);
	arena_free(a);
}
