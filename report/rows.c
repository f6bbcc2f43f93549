/* report/rows.c: the program as rows of the page's data: ops, parameters, and what is in memory from which op to which.
 *
 * Positions are numbers of ops, counted over forward, backward and update. */
#include <inttypes.h>
#include <string.h>

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

static void put_ops(FILE *f, const Buffers *b, const LayoutRank *who, Arena *a)
{
	fputs("\"classes\": [", f);
	for (int c = 0; c < COST_CLASSES; c++)
		fprintf(f, "%s%s", c ? ", " : "", quoted(cost_class_text[c], a));
	fputs("],\n\"streams\": [\"compute\"", f);
	for (int s = 0; s < RT_STREAMS; s++)
		fprintf(f, ", \"%s\"", stream_info[s].text);
	fputs(", \"host\"],\n\"ops\": [", f);
	for (int p = 0; p < b->n_ops; p++) {
		fputs(p ? ",\n" : "\n", f);
		put_op(f, b->op[p], who, a);
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
static const char **scopes_of(const Buffers *b, const Module *m, Arena *a)
{
	const char **scope = NEW_N(a, const char *, m->n_symbols);
	for (int p = 0; p < b->n_ops; p++) {
		const Op *op = b->op[p];
		if (op->kind == OP_VIEW_OP && !scope[op->sym->index])
			scope[op->sym->index] = blocks_scope(a, op->loc);
	}
	return scope;
}

/* [module and name, name, type, elements, trained, unit] */
static void put_params(FILE *f, const Buffers *b, const Module *m, Arena *a)
{
	const char **scope = scopes_of(b, m, a);
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

typedef struct Rows {
	FILE *f;
	const ReportOf *of;
	const Buffers *b;
	Arena *a;
	int n;
} Rows;

/* [category, name, bytes, first, last, op]; op: that made it, -1 where none did. */
static void put_row(Rows *r, const char *category, const char *name, int64_t bytes, int first, int last, int op)
{
	if (bytes > 0)
		fprintf(r->f, "%s[\"%s\",%s,%" PRId64 ",%d,%d,%d]", r->n++ ? ",\n" : "\n", category, quoted(name, r->a), bytes,
			first, MIN(last, r->b->n_ops - 1), op);
}

/* What is there all the time. */
static void put_resting(Rows *r)
{
	LayoutMemory m = layout_memory(r->of->plan->layout, &r->of->plan->who);
	const struct { const char *category, *name; int64_t bytes; } rest[] = {
		{"parameters", "parameters at rest", m.params}, {"states", "optimizer states", m.states},
		{"buffers", "buffers, data and counters", m.buffers}, {"inputs", "inputs", m.inputs},
		{"communication", "communication", m.comm}, {"communication", "sent copies", m.send},
		{"other", "device tables", m.tables}, {"other", "snapshot", m.snapshot},
	};
	for (int i = 0; i < COUNT_OF(rest); i++)
		put_row(r, rest[i].category, rest[i].name, rest[i].bytes, 0, r->b->n_ops - 1, -1);
}

static int64_t flat_gradient(const LayoutUnit *u, int64_t ranks)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		if (u->flat[f].trainable)
			sum += layout_flat_numel(u->flat[f].numel, ranks) * dtype_info[u->flat[f].grad].bytes;
	return sum;
}

static int64_t reduced_gradient(const LayoutUnit *u, const LayoutRank *who)
{
	int64_t sum = 0;
	for (int f = 0; f < u->n_flats; f++)
		if (u->flat[f].trainable && layout_range(u, f, who).n)
			sum += layout_range(u, f, who).n * dtype_info[layout_update_dtype(u, f, who)].bytes;
	return sum;
}

/* When a unit's memory was taken; -1: it is free. */
typedef struct Taken { int gathered, flat, reduced; } Taken;

static void end_row(Rows *r, const char *category, const char *what, const Unit *u, int64_t bytes, int *from, int to)
{
	if (*from >= 0)
		put_row(r, category, arena_printf(r->a, "%s @%s", what, u->name), bytes, *from, to, *from);
	*from = -1;
}

/* The op that uses or completes the unit's gradient: a wait is that of its collective. */
static const Op *ends_reduce(const Op *op)
{
	const Op *of = op->kind == OP_WAIT && op->n_in ? op_in(op, 0)->op : NULL;
	return of && op_reduces(of->kind) ? of : NULL;
}

/* Gathered from the gather to the reshard; the flat gradient from its zero_gaps to the end of its reduce or, where it
 * stays, to the update; a reduced one from its reduce to the update. */
static void put_units(Rows *r)
{
	const LayoutModel *l = r->of->plan->layout;
	const LayoutRank *who = &r->of->plan->who;
	Taken *at = NEW_N(r->a, Taken, l->n_units);
	for (int i = 0; i < l->n_units; i++)
		at[i] = (Taken){-1, -1, -1};
	for (int p = 0; p < r->b->n_ops; p++) {
		const Op *op = r->b->op[p], *reduce = ends_reduce(op);
		const Unit *u = reduce ? reduce->unit : op->unit;
		if (!u)
			continue;
		const LayoutUnit *of = &l->unit[u->index];
		Taken *t = &at[u->index];
		bool stays = layout_grad_stays(of, who), updates = op->kind == OP_UPDATE_SHARD;
		int64_t ranks = layout_split(of->strategy, who).ranks;
		if (op->kind == OP_ALL_GATHER)
			t->gathered = p;
		if (op->kind == OP_RESHARD)
			end_row(r, "gathered", "gathered", u, layout_in_slot(of, of->n_flats, ranks), &t->gathered, p);
		if (op->kind == OP_ZERO_GAPS)
			t->flat = p;
		if (op_reduces(op->kind) && t->reduced < 0 && !stays)
			t->reduced = p;
		if (stays ? updates : reduce != NULL)
			end_row(r, "gradients", "gradient of", u, flat_gradient(of, ranks), &t->flat, p);
		if (updates)
			end_row(r, "gradients", "reduced gradient of", u, reduced_gradient(of, who), &t->reduced, p);
	}
}

static void put_values(Rows *r, const Options *o)
{
	for (int i = 0; i < r->b->n; i++) {
		const Buffer *x = &r->b->at[i];
		if (x->place.region != REGION_GRAD)
			put_row(r, "activations", arena_printf(r->a, "%%%s", x->value->name), x->bytes, x->first, x->last,
				x->first);
	}
	for (int p = 0; p < r->b->n_ops; p++)
		put_row(r, "workspace", op_info[r->b->op[p]->kind].text, op_workspace(r->b->op[p], o), p, p, p);
}

void report_put_program(FILE *f, const ReportOf *of, const Options *o, Arena *a)
{
	Module *m = of->v->of[VARIANT_ONLY];
	Rows r = {.f = f, .of = of, .b = buffers_find(m, false, a), .a = a};
	put_ops(f, r.b, &of->plan->who, a);
	put_params(f, r.b, m, a);
	fputs("\"memory\": [", f);
	put_resting(&r);
	put_units(&r);
	put_values(&r, o);
	fputs("],\n", f);
}
