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

static void json_string(FILE *f, Arena *a, const char *s)
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
	json_string(f, a, at->name);
	fputc(':', f);
	switch (at->kind) {
	case ATTR_INT: fprintf(f, "%lld", (long long)at->i); break;
	case ATTR_FLOAT: json_float(f, at->f); break;
	case ATTR_STR: json_string(f, a, at->s); break;
	case ATTR_DTYPE: json_string(f, a, dtype_info[at->dtype].text); break;
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
		json_string(f, a, type_str(a, &op->out[i]->type));
		fputc('}', f);
	}
	fputs("],\"in\":[", f);
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op->in[i].value;
		fprintf(f, v ? "%s\"%s\"" : "%snull%s", i ? "," : "", v ? v->name : "");
	}
	fputc(']', f);
}

static void json_op(FILE *f, Arena *a, const Op *op)
{
	fprintf(f, "{\"op\":\"%s\"", op_info[op->kind].text);
	json_values(f, a, op);
	if (op->sym) {
		fputs(",\"symbol\":", f);
		json_string(f, a, op->sym->name);
	}
	if (op->unit) {
		fputs(",\"unit\":", f);
		json_string(f, a, op->unit->name);
	}
	fputs(",\"attrs\":{", f);
	for (const Attr *at = op->attrs; at; at = at->next) {
		json_attr(f, a, at);
		if (at->next)
			fputc(',', f);
	}
	fputs("},\"node\":", f);
	json_string(f, a, op->loc->node);
	fputs(",\"scope\":", f);
	json_string(f, a, op->loc->scope);
	fprintf(f, ",\"role\":\"%s\"}", op->loc->role);
}

static void json_symbols(FILE *f, Arena *a, const Module *m)
{
	fputs(",\n\"symbols\":[", f);
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		fprintf(f, "%s\n{\"kind\":\"%s\",\"name\":", i ? "," : "", symbol_kind_text[s->kind]);
		json_string(f, a, s->name);
		fputs(",\"type\":", f);
		json_string(f, a, type_str(a, &s->type));
		fprintf(f, ",\"trainable\":%s", s->trainable ? "true" : "false");
		if (s->group)
			fprintf(f, ",\"group\":%d", s->group);
		if (s->unit) {
			fputs(",\"unit\":", f);
			json_string(f, a, s->unit->name);
			fprintf(f, ",\"flat\":%d,\"offset\":%lld", s->flat, (long long)s->offset);
		}
		fputc('}', f);
	}
	fputc(']', f);
}

void ir_print_json(FILE *f, const Module *m)
{
	Arena *a = arena_new();
	fputs("{\"module\":", f);
	json_string(f, a, m->name);
	fprintf(f, ",\"level\":\"%s\"", level_text[m->level]);
	json_symbols(f, a, m);
	for (int s = 0; s < SEC_COUNT; s++) {
		fprintf(f, ",\n\"%s\":[", section_text[s]);
		IR_FOR_OPS(m, s, op) {
			fputs(op->prev ? ",\n" : "\n", f);
			json_op(f, a, op);
		}
		fputc(']', f);
	}
	fputs("}\n", f);
	arena_free(a);
}
