/* codegen/plan.c: prepares what `shardc plan` prints: units, collectives, memory by category, the peak.
 *
 * It converts the module into a Plan, which base/plan.c prints, and adds the peak of the activation arena, which
 * only the compiler knows.  It computes no sizes: these come from pass memory and base/layout. */
#include "codegen/emit.h"
#include "passes/passes.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

/* ---- the module as a Plan ---- */

/* "backward:/h.0/ln_1/Add"; an op that comes from no node is named by its kind. */
static const char *point_of(const Op *op, Arena *a)
{
	return arena_printf(a, "%s:%s", section_text[op->section], *op->loc->node ? op->loc->node : op_info[op->kind].text);
}

/* The unit whose parameters the operand shows. */
static const Unit *unit_read(const Value *v)
{
	while (v && op_info[v->op->kind].flags & VIEW && v->op->n_in && v->op->kind != OP_VIEW_OP)
		v = op_in(v->op, 0);
	return v && v->op->kind == OP_VIEW_OP ? v->op->sym->unit : NULL;
}

typedef struct Reads { const Op *first, *last; } Reads;

static void find_uses(const Module *m, Reads *of)
{
	for (int s = 0; s < SEC_EVAL; s++) {
		IR_FOR_OPS(m, s, op) {
			for (int i = 0; !(op_info[op->kind].flags & VIEW) && i < op->n_in; i++) {
				const Unit *u = unit_read(op_in(op, i));
				if (!u)
					continue;
				of[u->index].first = of[u->index].first ? of[u->index].first : op;
				of[u->index].last = op;
			}
		}
	}
}

PlanUnit *plan_units(const Module *m, Arena *a)
{
	PlanUnit *units = NEW_N(a, PlanUnit, m->n_units);
	Reads *reads = NEW_N(a, Reads, m->n_units);
	find_uses(m, reads);
	for (int i = 0; i < m->n_units; i++) {
		const Unit *u = m->units[i];
		units[i] = (PlanUnit){.name = u->name, .n_params = u->n_params, .first = "", .last = ""};
		for (int k = 0; k < u->n_params; k++) {
			int64_t n = type_numel(&u->params[k]->type);
			units[i].elements += n;
			units[i].trainable += u->params[k]->trainable ? n : 0;
		}
		if (reads[i].first) {
			units[i].first = point_of(reads[i].first, a);
			units[i].last = point_of(reads[i].last, a);
		}
	}
	return units;
}

static PlanCollective *collectives(const Module *m, SectionKind from, SectionKind to, int *n, Arena *a)
{
	struct { PlanCollective *at; int n, cap; } list = {0};
	for (int s = (int)from; s <= (int)to; s++) {
		IR_FOR_OPS(m, s, op) {
			PlanCollective c = {.unit = op->unit ? op->unit->index : -1,
				.slot = (int)attr_get_int(op->attrs, "slot", -1)};
			if (!(op_info[op->kind].flags & COMM))
				continue;
			c.kind = op_collective(op);
			c.stream = op_stream(op->kind);
			c.message = plan_message(m, op);
			vec_push(a, &list, c);
		}
	}
	*n = list.n;
	return list.at;
}

/* ---- several micro-batches ---- */

/* The memory of each variant alone, then of steps of one, two and more micro-batches. */
enum { OF_STEPS = VARIANT_COUNT, MEMORIES = OF_STEPS + 3 };
typedef struct Memories { LayoutMemory of[MEMORIES]; int64_t rank[MEMORIES]; } Memories;
static const char *const memory_name[MEMORIES] = {"only", "first", "middle", "last", "1", "2", "3"};

static LayoutModel layout_at(const CodegenPlan *p, int i, Arena *a)
{
	LayoutModel l = i < OF_STEPS ? memory_layout(p->variants->of[i], a)
		: p->sizes ? memory_sizes(p->sizes, i - OF_STEPS + 1, a)
		: i == OF_STEPS ? memory_layout(p->variants->of[VARIANT_ONLY], a)
		: memory_join(p->variants, i > OF_STEPS + 1, a);
	l.hosts = p->layout->hosts;
	l.cuda = p->layout->cuda;
	l.snapshot = p->layout->snapshot;
	return l;
}

static Memories memories_of(const CodegenPlan *p, Arena *a)
{
	Memories out;
	for (int i = 0; i < MEMORIES; i++) {
		LayoutModel l = layout_at(p, i, a);
		LayoutRank who = p->who;
		who.rank = out.rank[i] = layout_rank_most(&l, &who);
		out.of[i] = layout_memory(&l, &who);
	}
	return out;
}

/* ---- the plan of a step ---- */

/* Of a program that may have several micro-batches: of a step that needs the most. */
static LayoutMemory memory_of(const CodegenPlan *p, Arena *a)
{
	LayoutModel most = p->variants ? layout_at(p, MEMORIES - 1, a) : *p->layout;
	return layout_memory(&most, &p->who);
}

static Plan plan_of(const Module *m, const CodegenPlan *p, Arena *a)
{
	bool nccl = p->layout->cuda.on && !p->layout->cuda.staged;
	Communicator fits = comm_fitting(p->who.world, p->layout->hosts, nccl && p->who.world > 1);
	Plan plan = {.module = m->name, .layout = p->layout, .who = p->who, .most = true,
		.comm = p->comm ? p->comm : comm_info[fits].text, .unit = plan_units(m, a),
		.memory = memory_of(p, a)};
	plan.step = collectives(m, SEC_FORWARD, SEC_UPDATE, &plan.n_step, a);
	plan.eval = collectives(m, SEC_EVAL, SEC_EVAL, &plan.n_eval, a);
	return plan;
}

static void text_memories(FILE *f, const CodegenPlan *p, Arena *a)
{
	if (!p->variants)
		return;
	Memories m = memories_of(p, a);
	PlanCategory of[MEMORIES][PLAN_CATEGORIES];
	fprintf(f, "\nmicro-batches: bytes of each alone, and of a step of --accum A\n  %-16s", "");
	for (int i = 0; i < MEMORIES; i++) {
		plan_categories(&m.of[i], of[i]);
		fprintf(f, " %14s", i < OF_STEPS ? memory_name[i] : arena_printf(a, "%s%s", i == MEMORIES - 1 ? "A>=" : "A=",
			memory_name[i]));
	}
	for (int row = 0; row < PLAN_CATEGORIES; row++) {
		bool any = !of[0][row].optional;
		for (int i = 0; i < MEMORIES; i++)
			any = any || of[i][row].bytes;
		if (any)
			fprintf(f, "\n  %-16s", of[0][row].name);
		for (int i = 0; any && i < MEMORIES; i++)
			fprintf(f, " %14" PRId64, of[i][row].bytes);
	}
	fprintf(f, "\n  %-16s", "total");
	for (int i = 0; i < MEMORIES; i++)
		fprintf(f, " %14" PRId64, m.of[i].total);
	fputc('\n', f);
}

static void json_memories(FILE *f, const CodegenPlan *p, Arena *a)
{
	if (!p->variants)
		return;
	Memories m = memories_of(p, a);
	fputs("  \"micro_batches\": {", f);
	for (int i = 0; i < MEMORIES; i++) {
		PlanCategory c[PLAN_CATEGORIES];
		plan_categories(&m.of[i], c);
		fprintf(f, "%s\n    \"%s\": {\"rank\": %" PRId64, i ? "," : "", memory_name[i], m.rank[i]);
		for (int k = 0; k < PLAN_CATEGORIES; k++)
			fprintf(f, ", \"%s\": %" PRId64, c[k].name, c[k].bytes);
		fprintf(f, ", \"total\": %" PRId64 "}", m.of[i].total);
	}
	fputs("\n  },\n", f);
}

/* ---- several sizes ---- */

static void text_sizes(FILE *f, const CodegenPlan *p, Arena *a)
{
	int n = p->sizes ? p->sizes->n : 0;
	if (n)
		fputs("\nsizes: they share all memory, of which each needs\n", f);
	for (int k = 0; k < n; k++) {
		const Module *m = p->sizes->of[k].of[VARIANT_ONLY];
		fprintf(f, "  %-20s  activations %10s, workspace %10s\n", p->sizes->name[k], plan_human(a, m->act_bytes),
			plan_human(a, m->work_bytes));
	}
}

static void json_sizes(FILE *f, const CodegenPlan *p, Arena *a)
{
	int n = p->sizes ? p->sizes->n : 0;
	if (!n)
		return;
	fputs("  \"sizes\": [", f);
	for (int k = 0; k < n; k++) {
		const Module *m = p->sizes->of[k].of[VARIANT_ONLY];
		fprintf(f, "%s\n    {\"size\": \"%s\", \"activations\": %" PRId64 ", \"workspace\": %" PRId64 "}",
			k ? "," : "", str_escape(a, ESCAPE_JSON, p->sizes->name[k]), m->act_bytes, m->work_bytes);
	}
	fputs("\n  ],\n", f);
}

/* ---- masks ---- */

/* A mask with a row of keys for each query, and how many attentions read it. */
typedef struct BigMask { const Value *v; const char *why; int readers; } BigMask;
typedef struct BigMasks { BigMask *at; int n, cap; } BigMasks;

static BigMasks big_masks(const Module *m, Arena *a)
{
	BigMasks list = {0};
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		const Value *v = op->kind == OP_ATTENTION ? op_in(op, 3) : NULL;
		int rank = v ? v->type.rank : 0, i = 0;
		if (rank < 2 || v->type.dim[rank - 1] == 1 || v->type.dim[rank - 2] == 1)
			continue;
		while (i < list.n && list.at[i].v != v)
			i++;
		if (i == list.n)
			vec_push(a, &list, ((BigMask){v, attr_get_str(op->attrs, "why", "nothing else is known of it"), 0}));
		list.at[i].readers++;
	}
	return list;
}

static void text_masks(FILE *f, const Module *m, Arena *a)
{
	BigMasks list = big_masks(m, a);
	if (list.n)
		fputs("\nmasks that are kept for each query and key (bytes grow with the square of the length):\n", f);
	for (int i = 0; i < list.n; i++) {
		const Value *v = list.at[i].v;
		fprintf(f, "  %10s  %%%s : %s  %s  read by %d attention%s: %s\n", plan_human(a, type_bytes(&v->type)), v->name,
			type_str(a, &v->type), str_escape(a, ESCAPE_IR, v->op->loc->node), list.at[i].readers,
			list.at[i].readers == 1 ? "" : "s", str_escape(a, ESCAPE_IR, list.at[i].why));
	}
}

/* Buffers of a size that no op reads: `patterns` has looked at their numbers, and checkpoints have them still. */
static void text_unread(FILE *f, const Module *m, Arena *a)
{
	enum { SMALL = 1 << 20 };
	PtrMap *used = ptrmap_new(a);
	bool any = false;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			if (op->sym)
				ptrmap_put(used, op->sym, op->sym);
	for (int i = 0; i < m->n_symbols; i++) {
		Symbol *s = m->symbols[i];
		if (s->kind != SYM_BUFFER || type_bytes(&s->type) < SMALL || ptrmap_get(used, s))
			continue;
		fputs(any ? "" : "\nbuffers that no op reads; they are kept for checkpoints:\n", f);
		fprintf(f, "  %10s  \"%s\" : %s\n", plan_human(a, type_bytes(&s->type)), str_escape(a, ESCAPE_IR, s->name),
			type_str(a, &s->type));
		any = true;
	}
}

static void json_masks(FILE *f, const Module *m, Arena *a)
{
	BigMasks list = big_masks(m, a);
	fputs("  \"masks\": [", f);
	for (int i = 0; i < list.n; i++) {
		const Value *v = list.at[i].v;
		fprintf(f, "%s\n    {\"value\": \"%s\", \"type\": \"%s\", \"bytes\": %" PRId64 ", \"node\": \"%s\", "
			"\"attentions\": %d, \"why\": \"%s\"}", i ? "," : "", v->name, type_str(a, &v->type),
			type_bytes(&v->type), str_escape(a, ESCAPE_JSON, v->op->loc->node), list.at[i].readers,
			str_escape(a, ESCAPE_JSON, list.at[i].why));
	}
	fputs(list.n ? "\n  ],\n" : "],\n", f);
}

/* ---- text ---- */

static void text_peak(FILE *f, const CodegenPlan *p, Arena *a)
{
	const Op *op = p->peak_op;
	if (!op)
		return;
	fprintf(f, "\nactivations peak at %s, at %s", plan_human(a, p->peak_bytes), op_info[op->kind].text);
	if (*op->loc->node)
		fprintf(f, " of node \"%s\"", str_escape(a, ESCAPE_IR, op->loc->node));
	if (*op->loc->role)
		fprintf(f, " (%s)", op->loc->role);
	fputs("; largest values live there:\n", f);
	for (int i = 0; i < p->n_largest; i++) {
		const Value *v = p->largest[i];
		fprintf(f, "  %10s  %%%s : %s  %s\n", plan_human(a, p->largest_bytes[i]), v->name, type_str(a, &v->type),
			str_escape(a, ESCAPE_IR, v->op->loc->node));
	}
}

void codegen_plan_text(FILE *f, const Module *m, const CodegenPlan *p)
{
	Arena *a = arena_new();
	Plan plan = plan_of(m, p, a);
	plan_text_units(f, &plan);
	if (!p->brief)
		plan_text_collectives(f, &plan);
	plan_text_memory(f, &plan);
	text_peak(f, p, a);
	plan_text_attention(f, m, p, a);
	text_masks(f, m, a);
	text_unread(f, m, a);
	text_memories(f, p, a);
	text_sizes(f, p, a);
	arena_free(a);
}

/* ---- JSON ---- */

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
	fputs(p->n_largest ? "\n  ]},\n" : "]},\n", f);
}

void codegen_plan_json(FILE *f, const Module *m, const CodegenPlan *p)
{
	Arena *a = arena_new();
	Plan plan = plan_of(m, p, a);
	fputs("{\n", f);
	plan_json(f, &plan);
	json_memories(f, p, a);
	json_sizes(f, p, a);
	plan_json_attention(f, m, p, a);
	json_masks(f, m, a);
	json_peak(f, p, a);
	arena_free(a);
}

/* ---- hints ---- */

void codegen_hints_text(FILE *f, const CodegenHint *hint, int n)
{
	Arena *a = arena_new();
	if (n)
		fprintf(f, "\nless memory than %s, the most that a step takes, planned with each option alone\n",
			plan_human(a, hint[0].saves + hint[0].total));
	for (int i = 0; i < n; i++)
		fprintf(f, "  %-24s saves %10s, total %10s  %s\n", hint[i].option, plan_human(a, hint[i].saves),
			plan_human(a, hint[i].total), hint[i].what);
	arena_free(a);
}

void codegen_hints_json(FILE *f, const CodegenHint *hint, int n)
{
	fputs("  \"hints\": [", f);
	for (int i = 0; i < n; i++)
		fprintf(f, "%s\n    {\"option\": \"%s\", \"saves\": %" PRId64 ", \"total\": %" PRId64 "}", i ? "," : "",
			hint[i].option, hint[i].saves, hint[i].total);
	fputs(n ? "\n  ]\n}\n" : "]\n}\n", f);
}
