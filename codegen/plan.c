/* codegen/plan.c: what `shardc plan` prints: units, memory by category, the peak.
 *
 * Text for people, JSON with the same numbers for programs.  Computes nothing: sizes are the memory pass's
 * and base/layout's, which the runtime uses too. */
#include "codegen/codegen.h"

#include <inttypes.h>
#include <string.h>

typedef struct Category { const char *name; int64_t bytes; } Category;
enum { CATEGORIES = 9 };

static void categories(const LayoutMemory *m, Category out[CATEGORIES])
{
	const Category all[CATEGORIES] = {
		{"parameters", m->params}, {"gathered", m->gathered}, {"gradients", m->grads},
		{"optimizer states", m->states}, {"buffers", m->buffers}, {"inputs", m->inputs},
		{"activations", m->activations}, {"workspace", m->workspace}, {"communication", m->comm},
	};
	memcpy(out, all, sizeof(all));
}

/* "1.5 MiB" */
static const char *human(Arena *a, int64_t bytes)
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double v = (double)bytes;
	int u = 0;
	for (; v >= 1024 && u < COUNT_OF(unit) - 1; u++)
		v /= 1024;
	return arena_printf(a, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

/* One line of the units table. */
typedef struct Row {
	const Unit *unit;
	int64_t numel, trainable, bytes; /* bytes: of one rank's shard */
	int gathers, reduces;            /* of a training step */
} Row;

static Row row_of(const Module *m, const Unit *u, int64_t world)
{
	Row r = {.unit = u};
	for (int f = 0; f < u->n_flats; f++) {
		r.numel += u->flat[f].numel;
		r.trainable += u->flat[f].trainable ? u->flat[f].numel : 0;
		r.bytes += layout_shard_numel(u->flat[f].numel, world) * dtype_info[u->flat[f].dtype].bytes;
	}
	for (int s = 0; s < SEC_EVAL; s++) {
		IR_FOR_OPS(m, s, op) {
			r.gathers += op->kind == OP_ALL_GATHER && op->unit == u;
			r.reduces += (op->kind == OP_REDUCE_SCATTER || op->kind == OP_ALL_REDUCE) && op->unit == u;
		}
	}
	return r;
}

/* ---- text ---- */

static void text_units(FILE *f, const Module *m, int64_t world, Arena *a)
{
	int width = 4;
	for (int u = 0; u < m->n_units; u++)
		width = MAX(width, (int)strlen(m->units[u]->name));
	fprintf(f, "%-*s  %-12s %6s %14s %14s %12s %7s %7s\n", width, "unit", "strategy", "params", "elements",
		"trainable", "bytes/rank", "gathers", "reduces");
	for (int i = 0; i < m->n_units; i++) {
		Row r = row_of(m, m->units[i], world);
		fprintf(f, "%-*s  %-12s %6d %14" PRId64 " %14" PRId64 " %12s %7d %7d\n", width,
			str_escape(a, ESCAPE_IR, r.unit->name), str_escape(a, ESCAPE_IR, strategy_info[r.unit->strategy].text),
			r.unit->n_params, r.numel, r.trainable, human(a, r.bytes), r.gathers, r.reduces);
	}
	fputc('\n', f);
}

static void text_peak(FILE *f, const CodegenPlan *p, Arena *a)
{
	const Op *op = p->peak_op;
	if (!op)
		return;
	fprintf(f, "\nactivations peak at %s, at %s", human(a, p->peak_bytes), op_info[op->kind].text);
	if (*op->loc->node)
		fprintf(f, " of node \"%s\"", str_escape(a, ESCAPE_IR, op->loc->node));
	if (*op->loc->role)
		fprintf(f, " (%s)", op->loc->role);
	fputs("; largest values live there:\n", f);
	for (int i = 0; i < p->n_largest; i++) {
		const Value *v = p->largest[i];
		fprintf(f, "  %10s  %%%s : %s  %s\n", human(a, p->largest_bytes[i]), v->name, type_str(a, &v->type),
			str_escape(a, ESCAPE_IR, v->op->loc->node));
	}
}

void codegen_plan_text(FILE *f, const Module *m, const CodegenPlan *p)
{
	Arena *a = arena_new();
	Category c[CATEGORIES];
	categories(&p->memory, c);
	if (m->n_units)
		text_units(f, m, p->who.world, a);
	fprintf(f, "memory per rank, %" PRId64 " rank%s\n", p->who.world, p->who.world == 1 ? "" : "s");
	for (int i = 0; i < CATEGORIES; i++)
		fprintf(f, "  %-18s %16" PRId64 "  %10s\n", c[i].name, c[i].bytes, human(a, c[i].bytes));
	fprintf(f, "  %-18s %16" PRId64 "  %10s\n", "total", p->memory.total, human(a, p->memory.total));
	text_peak(f, p, a);
	arena_free(a);
}

/* ---- JSON ---- */

static void json_units(FILE *f, const Module *m, int64_t world, Arena *a)
{
	fputs("  \"units\": [", f);
	for (int i = 0; i < m->n_units; i++) {
		Row r = row_of(m, m->units[i], world);
		fprintf(f, "%s\n    {\"name\": \"%s\", \"strategy\": \"%s\", \"params\": %d, ", i ? "," : "",
			str_escape(a, ESCAPE_JSON, r.unit->name), str_escape(a, ESCAPE_JSON, strategy_info[r.unit->strategy].text),
			r.unit->n_params);
		fprintf(f, "\"elements\": %" PRId64 ", \"trainable\": %" PRId64 ", \"bytes_per_rank\": %" PRId64
			", \"gathers\": %d, \"reduces\": %d}", r.numel, r.trainable, r.bytes, r.gathers, r.reduces);
	}
	fputs(m->n_units ? "\n  ],\n" : "],\n", f);
}

static void json_peak(FILE *f, const CodegenPlan *p, Arena *a)
{
	const Op *op = p->peak_op;
	const char *node = op ? str_escape(a, ESCAPE_JSON, op->loc->node) : "";
	fprintf(f, "  \"peak\": {\"bytes\": %" PRId64 ", \"op\": \"%s\", \"node\": \"%s\", \"role\": \"%s\", "
		"\"largest\": [", p->peak_bytes, op ? op_info[op->kind].text : "", node, op ? op->loc->role : "");
	for (int i = 0; i < p->n_largest; i++) {
		const Value *v = p->largest[i];
		fprintf(f, "%s\n    {\"value\": \"%s\", \"type\": \"%s\", \"bytes\": %" PRId64 ", \"node\": \"%s\"}",
			i ? "," : "", v->name, type_str(a, &v->type), p->largest_bytes[i],
			str_escape(a, ESCAPE_JSON, v->op->loc->node));
	}
	fputs(p->n_largest ? "\n  ]}\n" : "]}\n", f);
}

void codegen_plan_json(FILE *f, const Module *m, const CodegenPlan *p)
{
	Arena *a = arena_new();
	Category c[CATEGORIES];
	categories(&p->memory, c);
	fprintf(f, "{\n  \"module\": \"%s\",\n  \"world\": %" PRId64 ",\n", str_escape(a, ESCAPE_JSON, m->name),
		p->who.world);
	json_units(f, m, p->who.world, a);
	fputs("  \"memory\": {", f);
	for (int i = 0; i < CATEGORIES; i++)
		fprintf(f, "\"%s\": %" PRId64 ", ", c[i].name, c[i].bytes);
	fprintf(f, "\"total\": %" PRId64 "},\n", p->memory.total);
	json_peak(f, p, a);
	fputs("}\n", f);
	arena_free(a);
}
