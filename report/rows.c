/* report/rows.c: the program as rows of the page's data: ops, parameters, and what is in memory from which op to which.
 *
 * Positions are numbers of ops, counted over forward, backward and update of each part of the step. */
#include <inttypes.h>
#include <string.h>

#include "passes/memory/held.h"
#include "predict/cost.h"
#include "report/private.h"

static const char *quoted(const char *s, Arena *a)
{
	return arena_printf(a, "\"%s\"", str_escape(a, ESCAPE_JSON, s));
}

/* ---- ops ---- */

/* [kind, result, type, section, unit, class, node, scope, role] */
static void put_op(FILE *f, const Op *op, const LayoutRank *who, Arena *a)
{
	const Value *v = op->n_out ? op->out[0] : NULL;
	fprintf(f, "[\"%s\",%s,%s,%d,%d,%d,", op_info[op->kind].text, quoted(v ? v->name : "", a),
		quoted(v ? type_str(a, &v->type) : "", a), (int)op->section, op->unit ? op->unit->index : -1,
		(int)(op_info[op->kind].flags & COMM ? COST_COLLECTIVE : cost_of(op, who).class));
	fprintf(f, "%s,%s,%s]", quoted(op->loc->node, a), quoted(blocks_scope(a, op->loc), a), quoted(op->loc->role, a));
}

static void put_ops(FILE *f, const HeldList *l, const LayoutRank *who, Arena *a)
{
	fputs("\"classes\": [", f);
	for (int c = 0; c < COST_CLASSES; c++)
		fprintf(f, "%s%s", c ? ", " : "", quoted(cost_class_text[c], a));
	fputs("],\n\"streams\": [\"compute\"", f);
	for (int s = 0; s < RT_STREAMS; s++)
		fprintf(f, ", \"%s\"", stream_info[s].text);
	fputs(", \"host\", \"copies out\", \"copies in\"],\n\"ops\": [", f);
	for (int p = 0; p < l->n_ops; p++) {
		fputs(p ? ",\n" : "\n", f);
		put_op(f, l->op[p], who, a);
	}
	fputs("],\n", f);
}

/* ---- collectives ---- */

/* [part, number in its program, kind, unit, stream, slot, bytes, op] */
static void put_collectives(FILE *f, const HeldList *l, const StepParts *parts, const Plan *plan)
{
	int shown = 0;
	fputs("\"collectives\": [", f);
	for (int i = 0; i < parts->n; i++)
		for (int p = parts->at[i].first, n = 0; p < parts->at[i].first + parts->at[i].n_ops; p++) {
			const Op *op = l->op[p];
			if (!(op_info[op->kind].flags & COMM))
				continue;
			PlanCollective c = {.kind = op_collective(op), .stream = op_stream(op->kind),
				.unit = op->unit ? op->unit->index : -1, .slot = (int)attr_get_int(op->attrs, "slot", -1),
				.message = plan_message(parts->at[i].m, op)};
			fprintf(f, "%s[%d,%d,\"%s\",%d,\"%s\",%d,%" PRId64 ",%d]", shown++ ? ",\n" : "\n", i, ++n,
				collective_info[c.kind].text, c.unit, stream_info[c.stream].text, c.slot, plan_received(plan, &c), p);
		}
	fputs("],\n", f);
}

/* ---- parameters ---- */

/* Where a name tells no module ("w", "onnx::MatMul_12"), the module of the first op that reads it does. */
static const char *path_of(const Symbol *s, const char *scope, Arena *a)
{
	bool dotted = strchr(s->name, '.') && !strstr(s->name, "::");
	return dotted || !scope || !*scope ? s->name : arena_printf(a, "%s.%s", scope, s->name);
}

/* The module of the op that first reads each parameter, by index in m->symbols. */
static const char **scopes_of(const HeldList *l, const Module *m, Arena *a)
{
	const char **scope = NEW_N(a, const char *, m->n_symbols);
	for (int p = 0; p < l->n_ops; p++) {
		const Op *op = l->op[p];
		if (op->kind == OP_VIEW_OP && !scope[op->sym->index])
			scope[op->sym->index] = blocks_scope(a, op->loc);
	}
	return scope;
}

/* [module and name, name, type, elements, trained, unit] */
static void put_params(FILE *f, const HeldList *l, const Module *m, Arena *a)
{
	const char **scope = scopes_of(l, m, a);
	int n = 0;
	fputs("\"params\": [", f);
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (s->kind != SYM_PARAM)
			continue;
		fprintf(f, "%s[%s,%s,%s,%" PRId64 ",%d,%d]", n++ ? ",\n" : "\n", quoted(path_of(s, scope[i], a), a),
			quoted(s->name, a), quoted(type_str(a, &s->type), a), type_numel(&s->type), s->trainable,
			s->unit ? s->unit->index : -1);
	}
	fputs("],\n", f);
}

/* ---- memory ---- */

/* [category, name, bytes, first, last, op]; op: that made it, -1 where none did. */
static void put_held(FILE *f, const HeldList *l, Arena *a)
{
	fputs("\"memory\": [", f);
	for (int i = 0; i < l->n; i++) {
		const Held *x = &l->at[i];
		fprintf(f, "%s[\"%s\",%s,%" PRId64 ",%d,%d,%d]", i ? ",\n" : "\n", held_text[x->kind], quoted(x->name, a),
			x->bytes, x->first, x->last, x->op);
	}
	fputs("],\n", f);
}

static void put_shares(FILE *f, const HeldShares *of, Arena *a)
{
	fputc('[', f);
	for (int i = 0; i < of->n; i++)
		fprintf(f, "%s[%s,%" PRId64 "]", i ? "," : "", quoted(of->at[i].name, a), of->at[i].bytes);
	fputc(']', f);
}

/* {"op", "categories": [[name, bytes], ..], "modules", "units"}: where most is held, and by what. */
static void put_peak(FILE *f, const HeldList *l, Arena *a)
{
	static const struct { const char *key; HeldBy by; } of[] = {{"categories", HELD_BY_CATEGORY},
		{"modules", HELD_BY_MODULE}, {"units", HELD_BY_UNIT}};
	fprintf(f, "\"peak\": {\"op\": %d", l->peak);
	for (int i = 0; i < COUNT_OF(of); i++) {
		HeldShares shares = held_shares(l, of[i].by, a);
		fprintf(f, ", \"%s\": ", of[i].key);
		put_shares(f, &shares, a);
	}
	fputs("},\n", f);
}

/* How the parts lie in memory together, and the rank that needs most then. */
static Plan plan_of(const ReportOf *of, const StepParts *parts, const Options *o, Arena *a)
{
	LayoutModel *joined = NEW(a, LayoutModel);
	Plan plan = {.layout = of->plan->layout, .who = of->plan->who};
	if (parts->n == 1)
		return plan;
	*joined = memory_join(of->v, parts->micro_batches > 2, a);
	memory_describe(joined, &plan.who, of->v->of[VARIANT_ONLY], o);
	plan.layout = joined;
	return plan;
}

void report_put_program(FILE *f, const ReportOf *of, const StepParts *parts, const Options *o, Arena *a)
{
	const Plan plan = plan_of(of, parts, o, a);
	Module *m[VARIANT_COUNT];
	for (int i = 0; i < parts->n; i++)
		m[i] = parts->at[i].m;
	const HeldList *held = held_find(&(HeldOf){m, parts->n, plan.layout, &plan.who}, o, a);
	put_ops(f, held, &plan.who, a);
	put_collectives(f, held, parts, &plan);
	put_params(f, held, of->v->of[VARIANT_ONLY], a);
	put_held(f, held, a);
	put_peak(f, held, a);
}
