/* ir/export.c: writes a module as a Graphviz graph or as JSON for other tools; neither can be read back. */
#include "ir/ir.h"

#include <math.h>
#include <string.h>

/* ---- Graphviz ---- */

static void dot_op(FILE *f, Arena *a, const Op *op, int id)
{
	const char *subject = op->sym ? op->sym->name : op->unit ? op->unit->name : "";
	const char *type = op->n_out ? type_str(a, &op->out[0]->type) : "";
	fprintf(f, "    op%d [label=\"%s %s\\n%s\\n%s\"];\n", id, op_info[op->kind].text,
		str_escape(a, ESCAPE_DOT, subject), str_escape(a, ESCAPE_DOT, type),
		str_escape(a, ESCAPE_DOT, op->loc->node));
}

void ir_print_dot(FILE *f, const Module *m)
{
	Arena *a = arena_new();
	PtrMap *number = ptrmap_new(a);
	int n = 0;
	fputs("digraph module {\n  node [shape=box, fontname=\"monospace\", fontsize=10];\n", f);
	for (int s = 0; s < SEC_COUNT; s++) {
		if (!m->first[s])
			continue;
		fprintf(f, "  subgraph cluster_%s {\n    label=\"%s\";\n", section_text[s], section_text[s]);
		IR_FOR_OPS(m, s, op) {
			dot_op(f, a, op, ++n);
			ptrmap_put(number, op, (void *)(intptr_t)n);
		}
		fputs("  }\n", f);
	}
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			for (int i = 0; i < op->n_in; i++)
				if (op->in[i].value)
					fprintf(f, "  op%d -> op%d;\n", (int)(intptr_t)ptrmap_get(number, op->in[i].value->op),
						(int)(intptr_t)ptrmap_get(number, op));
	fputs("}\n", f);
	arena_free(a);
}

/* ---- JSON ---- */

static void json_quoted(FILE *f, Arena *a, const char *s)
{
	ArenaMark mark = arena_mark(a);
	fprintf(f, "\"%s\"", str_escape(a, ESCAPE_JSON, s));
	arena_rewind(a, mark);
}

/* JSON has no infinities or NaN; they are written as strings. */
static void json_float(FILE *f, double v)
{
	if (isfinite(v))
		fprintf(f, "%.17g", v);
	else
		fputs(isnan(v) ? "\"nan\"" : v > 0 ? "\"inf\"" : "\"-inf\"", f);
}

static void json_attr(FILE *f, Arena *a, const Attr *at)
{
	json_quoted(f, a, at->name);
	fputc(':', f);
	switch (at->kind) {
	case ATTR_INT: fprintf(f, "%lld", (long long)at->i); break;
	case ATTR_FLOAT: json_float(f, at->f); break;
	case ATTR_STR: json_quoted(f, a, at->s); break;
	case ATTR_DTYPE: json_quoted(f, a, dtype_info[at->dtype].text); break;
	case ATTR_INTS: case ATTR_FLOATS:
		fputc('[', f);
		for (int i = 0; i < at->n; i++) {
			if (i)
				fputc(',', f);
			if (at->kind == ATTR_INTS)
				fprintf(f, "%lld", (long long)at->ints[i]);
			else
				json_float(f, at->floats[i]);
		}
		fputc(']', f);
	}
}

static void json_values(FILE *f, Arena *a, const Op *op)
{
	fputs(",\"out\":[", f);
	for (int i = 0; i < op->n_out; i++) {
		fprintf(f, i ? ",{\"name\":\"%s\",\"type\":" : "{\"name\":\"%s\",\"type\":", op->out[i]->name);
		json_quoted(f, a, type_str(a, &op->out[i]->type));
		fputc('}', f);
	}
	fputs("],\"in\":[", f);
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op->in[i].value;
		fprintf(f, v ? "%s\"%s\"" : "%snull%s", i ? "," : "", v ? v->name : "");
	}
	fputc(']', f);
}

static void json_ops(FILE *f, Arena *a, const char *before, const char *key, const Op *first);

static void json_op(FILE *f, Arena *a, const Op *op)
{
	fprintf(f, "{\"op\":\"%s\"", op_info[op->kind].text);
	json_values(f, a, op);
	if (op->sym) {
		fputs(",\"symbol\":", f);
		json_quoted(f, a, op->sym->name);
	}
	if (op->unit) {
		fputs(",\"unit\":", f);
		json_quoted(f, a, op->unit->name);
	}
	fputs(",\"attrs\":{", f);
	for (const Attr *at = op->attrs; at; at = at->next) {
		json_attr(f, a, at);
		if (at->next)
			fputc(',', f);
	}
	fputs("},\"node\":", f);
	json_quoted(f, a, op->loc->node);
	fputs(",\"scope\":", f);
	json_quoted(f, a, op->loc->scope);
	fprintf(f, ",\"role\":\"%s\"", op->loc->role);
	if (op->body)
		json_ops(f, a, ",", "body", op->body->first[SEC_FORWARD]);
	fputc('}', f);
}

static void json_ops(FILE *f, Arena *a, const char *before, const char *key, const Op *first)
{
	fprintf(f, "%s\"%s\":[", before, key);
	for (const Op *op = first; op; op = op->next) {
		fputs(op->prev ? ",\n" : "\n", f);
		json_op(f, a, op);
	}
	fputc(']', f);
}

/* ---- fields: what module_fields.def, train_fields.def, unit_fields.def and symbol_fields.def list ----
 *
 * json_KIND writes the value of a field of a kind, whose key stands before it. */

typedef struct Json { FILE *f; Arena *a; } Json;
typedef struct FieldAt { const void *owner, *at; } FieldAt; /* at: the field in its owner, a symbol, unit or the like */

static void json_key(const Json *j, const char *before, const char *key)
{
	fprintf(j->f, "%s\"%s\":", before, key);
}

static void json_text(const Json *j, const char *s)
{
	json_quoted(j->f, j->a, s);
}

static void json_flag(const Json *j, const FieldAt *f)
{
	fputs(*(const bool *)f->at ? "true" : "false", j->f);
}

static void json_word(const Json *j, const FieldAt *f)
{
	json_flag(j, f);
}

static void json_count(const Json *j, const FieldAt *f)
{
	fprintf(j->f, "%d", *(const int *)f->at);
}

static void json_integer(const Json *j, const FieldAt *f)
{
	fprintf(j->f, "%lld", (long long)*(const int64_t *)f->at);
}

static void json_size(const Json *j, const FieldAt *f)
{
	json_integer(j, f);
}

static void json_real(const Json *j, const FieldAt *f)
{
	json_float(j->f, *(const double *)f->at);
}

static void json_string(const Json *j, const FieldAt *f)
{
	json_text(j, *(const char *const *)f->at);
}

static void json_law(const Json *j, const FieldAt *f)
{
	json_string(j, f);
}

static void json_dtype(const Json *j, const FieldAt *f)
{
	json_text(j, dtype_info[*(const DType *)f->at].text);
}

static void json_saved(const Json *j, const FieldAt *f)
{
	json_dtype(j, f);
}

static void json_role(const Json *j, const FieldAt *f)
{
	json_dtype(j, f);
}

static void json_gathered(const Json *j, const FieldAt *f)
{
	json_dtype(j, f);
}

static void json_strategy(const Json *j, const FieldAt *f)
{
	json_text(j, strategy_info[*(const Strategy *)f->at].text);
}

static void json_offload(const Json *j, const FieldAt *f)
{
	json_text(j, offload_text[*(const LayoutOffload *)f->at]);
}

static void json_level(const Json *j, const FieldAt *f)
{
	json_text(j, level_text[*(const Level *)f->at]);
}

static void json_variant(const Json *j, const FieldAt *f)
{
	json_text(j, variant_text[*(const Variant *)f->at]);
}

static void json_sync(const Json *j, const FieldAt *f)
{
	json_text(j, sync_text[*(const Sync *)f->at]);
}

static void json_aliases(const Json *j, const FieldAt *f)
{
	const Symbol *s = f->owner;
	for (int i = 0; i < s->n_aliases; i++) {
		fputc(i ? ',' : '[', j->f);
		json_text(j, s->alias[i]);
	}
	fputc(']', j->f);
}

static void json_dims(const Json *j, const FieldAt *f)
{
	const Source *src = &((const Symbol *)f->owner)->src;
	fputc('[', j->f);
	for (int i = 0; i < src->rank; i++)
		fprintf(j->f, i ? ",%lld" : "%lld", (long long)src->dim[i]);
	fputc(']', j->f);
}

static void json_perm(const Json *j, const FieldAt *f)
{
	const Source *src = &((const Symbol *)f->owner)->src;
	fputc('[', j->f);
	for (int i = 0; i < src->rank; i++)
		fprintf(j->f, i ? ",%d" : "%d", src->perm[i]);
	fputc(']', j->f);
}

static void json_flats(const Json *j, const FieldAt *f)
{
	const Unit *u = f->owner;
	for (int i = 0; i < u->n_flats; i++) {
		const Flat *flat = &u->flat[i];
		fprintf(j->f, "%c{\"dtype\":\"%s\",\"trainable\":%s,\"numel\":%lld", i ? ',' : '[',
			dtype_info[flat->dtype].text, flat->trainable ? "true" : "false", (long long)flat->numel);
#define FLAT_FIELD(key, kind, field) \
	json_key(j, ",", #key); \
	json_##kind(j, &(FieldAt){flat, &flat->field});
#include "ir/unit_fields.def"
		fputc('}', j->f);
	}
	fputs(u->n_flats ? "]" : "[]", j->f);
}

static void json_members(const Json *j, const FieldAt *f)
{
	const Unit *u = f->owner;
	for (int i = 0; i < u->n_params; i++) {
		fputs(i ? ",{\"name\":" : "[{\"name\":", j->f);
		json_text(j, u->params[i]->name);
		fprintf(j->f, ",\"flat\":%d,\"offset\":%lld}", u->params[i]->flat, (long long)u->params[i]->offset);
	}
	fputs(u->n_params ? "]" : "[]", j->f);
}

static void json_groups(const Json *j, const FieldAt *f)
{
	const Train *t = f->owner;
	for (int i = 0; i < t->n_groups; i++) {
		fputs(i ? ",{\"match\":" : "[{\"match\":", j->f);
		json_text(j, t->group[i].regex);
		for (int k = 0; k < GROUP_KEYS; k++) {
			if (isnan(t->group[i].value[k]))
				continue;
			json_key(j, ",", group_key_info[k].name);
			json_float(j->f, t->group[i].value[k]);
		}
		fputc('}', j->f);
	}
	fputc(']', j->f);
}

/* ---- modules ---- */

static void json_train(const Json *j, const Train *t)
{
	const char *before = "{";
	json_key(j, ",\n", "train");
#define TRAIN_FIELD(key, kind, field, shown) \
	if (shown) { \
		json_key(j, before, #key); \
		json_##kind(j, &(FieldAt){t, &t->field}); \
		before = ","; \
	}
#include "ir/train_fields.def"
	fputs(*before == '{' ? "{}" : "}", j->f);
}

static void json_unit(const Json *j, const Unit *u)
{
	json_key(j, "{", "name");
	json_text(j, u->name);
#define UNIT_FIELD(key, kind, field, shown) \
	if (shown) { \
		json_key(j, ",", #key); \
		json_##kind(j, &(FieldAt){u, &u->field}); \
	}
#include "ir/unit_fields.def"
	fputc('}', j->f);
}

/* `offset` of a symbol in a unit counts elements of its flat; that of its fields counts bytes of the file. */
static void json_symbol(const Json *j, const Symbol *s)
{
	const char *before = "{";
	fprintf(j->f, "{\"kind\":\"%s\",\"name\":", symbol_kind_text[s->kind]);
	json_text(j, s->name);
	json_key(j, ",", "type");
	json_text(j, type_str(j->a, &s->type));
	fprintf(j->f, ",\"trainable\":%s", s->trainable ? "true" : "false");
	if (s->group)
		fprintf(j->f, ",\"group\":%d", s->group);
	if (s->unit) {
		json_key(j, ",", "unit");
		json_text(j, s->unit->name);
		fprintf(j->f, ",\"flat\":%d,\"offset\":%lld", s->flat, (long long)s->offset);
	}
	json_key(j, ",", "fields");
#define SYMBOL_FIELD(key, kind, field, shown) \
	if (shown) { \
		json_key(j, before, #key); \
		json_##kind(j, &(FieldAt){s, &s->field}); \
		before = ","; \
	}
#include "ir/symbol_fields.def"
	fputs(*before == '{' ? "{}}" : "}}", j->f);
}

static void json_declarations(const Json *j, const Module *m)
{
	if (m->train)
		json_train(j, m->train);
	json_key(j, ",\n", "units");
	for (int i = 0; i < m->n_units; i++) {
		fputs(i ? ",\n" : "[\n", j->f);
		json_unit(j, m->units[i]);
	}
	fputs(m->n_units ? "]" : "[]", j->f);
	json_key(j, ",\n", "symbols");
	for (int i = 0; i < m->n_symbols; i++) {
		fputs(i ? ",\n" : "[\n", j->f);
		json_symbol(j, m->symbols[i]);
	}
	fputs(m->n_symbols ? "]" : "[]", j->f);
}

void ir_print_json(FILE *f, const Module *m)
{
	const Json j = {f, arena_new()};
	json_key(&j, "{", "module");
	json_text(&j, m->name);
#define MODULE_FIELD(key, kind, field, shown) \
	if (shown) { \
		json_key(&j, ",", #key); \
		json_##kind(&j, &(FieldAt){m, &m->field}); \
	}
#include "ir/module_fields.def"
	json_declarations(&j, m);
	for (int s = 0; s < SEC_COUNT; s++)
		json_ops(f, j.a, ",\n", section_text[s], m->first[s]);
	fputs("}\n", f);
	arena_free(j.a);
}
