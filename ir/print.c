/* ir/print.c: a module as text; the exact inverse of parse.c.  Grammar: docs/ir.md.
 *
 * One op per line, attributes sorted by name, floats with the fewest digits that read back to the same
 * bits.  What is at its default is not printed, so that dumps stay short. */
#include "ir/ir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const symbol_text[] = {"input", "output", "param", "buffer", "data", "state"};
static const char *const region_text[] = {"", "act", "input", "param", "grad", "state"};

typedef struct Printer {
	FILE *f;
	Arena *scratch;
} Printer;

static void print_string(Printer *p, const char *s)
{
	ArenaMark mark = arena_mark(p->scratch);
	fprintf(p->f, "\"%s\"", str_escape(p->scratch, ESCAPE_IR, s));
	arena_rewind(p->scratch, mark);
}

static void print_type(Printer *p, const Type *t)
{
	ArenaMark mark = arena_mark(p->scratch);
	fputs(type_str(p->scratch, t), p->f);
	arena_rewind(p->scratch, mark);
}

static void print_unit(Printer *p, const Unit *u)
{
	ArenaMark mark = arena_mark(p->scratch);
	fputs(ir_unit_str(p->scratch, u), p->f);
	arena_rewind(p->scratch, mark);
}

static void print_float(Printer *p, double v)
{
	char s[40];
	if (isnan(v) || isinf(v)) {
		fputs(isnan(v) ? "nan" : v > 0 ? "inf" : "-inf", p->f);
		return;
	}
	for (int digits = 6; digits <= 17; digits++) {
		snprintf(s, sizeof(s), "%.*g", digits, v);
		if (strtod(s, NULL) == v)
			break;
	}
	fprintf(p->f, strpbrk(s, ".e") ? "%s" : "%s.0", s);
}

static void print_ints(Printer *p, int n, const int64_t *v)
{
	fputc('[', p->f);
	for (int i = 0; i < n; i++)
		fprintf(p->f, i ? ",%lld" : "%lld", (long long)v[i]);
	fputc(']', p->f);
}

static void print_attr(Printer *p, const Attr *a)
{
	fprintf(p->f, "%s=", a->name);
	switch (a->kind) {
	case ATTR_INT: fprintf(p->f, "%lld", (long long)a->i); break;
	case ATTR_FLOAT: print_float(p, a->f); break;
	case ATTR_STR: print_string(p, a->s); break;
	case ATTR_DTYPE: fputs(dtype_info[a->dtype].text, p->f); break;
	case ATTR_INTS: print_ints(p, a->n, a->ints); break;
	case ATTR_FLOATS:
		fputc('[', p->f);
		for (int i = 0; i < a->n; i++) {
			if (i)
				fputc(',', p->f);
			print_float(p, a->floats[i]);
		}
		fputc(']', p->f);
	}
}

static void print_attrs(Printer *p, const Attr *list)
{
	const char *before = " {";
	for (const Attr *a = list; a; a = a->next, before = ", ") {
		fputs(before, p->f);
		print_attr(p, a);
	}
	if (list)
		fputc('}', p->f);
}

static void print_loc(Printer *p, const Loc *l)
{
	if (!*l->node && !*l->onnx && !*l->scope && !*l->role)
		return;
	fputs(" loc(", p->f);
	print_string(p, l->node);
	if (*l->onnx) {
		fputc(':', p->f);
		print_string(p, l->onnx);
	}
	if (*l->scope) {
		fputc('@', p->f);
		print_string(p, l->scope);
	}
	if (*l->role)
		fprintf(p->f, " %s", l->role);
	fputc(')', p->f);
}

static void print_place(Printer *p, const Place *at)
{
	if (at->region == REGION_NONE)
		return;
	fprintf(p->f, " @%s", region_text[at->region]);
	if (at->region == REGION_PARAM || at->region == REGION_GRAD) {
		fputc(' ', p->f);
		print_unit(p, at->unit);
		if (at->flat)
			fprintf(p->f, "/%d", at->flat);
	}
	fprintf(p->f, "+%lld", (long long)at->offset);
}

/* ---- ops ---- */

static void print_operands(Printer *p, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op->in[i].value;
		fputs(i ? ", " : " ", p->f);
		if (v)
			fprintf(p->f, "%%%s", v->name);
		else
			fputc('_', p->f);
	}
}

/* Body values are numbered: arguments first, then results in order. */
static int body_number(const Op *fused, const Value *v)
{
	if (v->op == fused)
		return v->index;
	int n = fused->n_in;
	for (const Op *op = fused->body_first; op && op != v->op; op = op->next)
		n += op->n_out;
	return n;
}

static void print_body(Printer *p, const Op *fused)
{
	fputs(" do {\n", p->f);
	for (const Op *op = fused->body_first; op; op = op->next) {
		fputs("      ", p->f);
		if (op->n_out)
			fprintf(p->f, "$%d : %s = ", body_number(fused, op->out[0]),
				dtype_info[op->out[0]->type.dtype].text);
		fputs(op_info[op->kind].text, p->f);
		for (int i = 0; i < op->n_in; i++)
			fprintf(p->f, i ? ", $%d" : " $%d", body_number(fused, op->in[i].value));
		print_attrs(p, op->attrs);
		fputc('\n', p->f);
	}
	fputs("    }", p->f);
}

static void print_op(Printer *p, const Op *op)
{
	for (int i = 0; i < op->n_out; i++) {
		const Value *v = op->out[i];
		fprintf(p->f, i ? ", %%%s : " : "%%%s : ", v->name);
		print_type(p, &v->type);
		print_place(p, &v->place);
	}
	fprintf(p->f, op->n_out ? " = %s" : "%s", op_info[op->kind].text);
	if (op->unit) {
		fputc(' ', p->f);
		print_unit(p, op->unit);
	}
	if (op->sym) {
		fputc(' ', p->f);
		print_string(p, op->sym->name);
	}
	print_operands(p, op);
	print_attrs(p, op->attrs);
	if (op->kind == OP_FUSED)
		print_body(p, op);
	print_loc(p, op->loc);
}

void ir_print_op(FILE *f, const Module *m, const Op *op)
{
	(void)m;
	Printer p = {f, arena_new()};
	print_op(&p, op);
	arena_free(p.scratch);
}

/* ---- symbols and units ---- */

/* Starts or continues the attribute list of a symbol line. */
static void sep(Printer *p, bool *open)
{
	fputs(*open ? ", " : " {", p->f);
	*open = true;
}

static void print_source(Printer *p, const Symbol *s, bool *open)
{
	const Source *src = &s->src;
	bool plain = src->dtype == s->type.dtype && src->rank == s->type.rank;
	if (src->fill != 0) {
		sep(p, open);
		fputs("fill=", p->f);
		print_float(p, src->fill);
	}
	if (src->init) {
		sep(p, open);
		fputs("init=", p->f);
		print_string(p, src->init);
		fputs(", scale=", p->f);
		print_float(p, src->scale);
		fprintf(p->f, ", seed=%lld", (long long)src->seed);
	}
	if (!src->file)
		return;
	sep(p, open);
	fputs("file=", p->f);
	print_string(p, src->file);
	fprintf(p->f, ", offset=%lld, bytes=%lld", (long long)src->offset, (long long)src->bytes);
	for (int i = 0; plain && i < src->rank; i++)
		plain = src->perm[i] == i && src->dim[i] == s->type.dim[i];
	if (plain)
		return;
	int64_t perm[IR_MAX_RANK];
	for (int i = 0; i < src->rank; i++)
		perm[i] = src->perm[i];
	fprintf(p->f, ", dtype=%s, dims=", dtype_info[src->dtype].text);
	print_ints(p, src->rank, src->dim);
	fputs(", perm=", p->f);
	print_ints(p, src->rank, perm);
}

static void print_symbol(Printer *p, const Symbol *s)
{
	bool open = false;
	fprintf(p->f, "  %s ", symbol_text[s->kind]);
	print_string(p, s->name);
	fputs(" : ", p->f);
	print_type(p, &s->type);
	if (s->trainable) {
		sep(p, &open);
		fputs("trainable=1", p->f);
	}
	for (int i = 0; i < s->n_aliases; i++) {
		sep(p, &open);
		fputs("alias=", p->f);
		print_string(p, s->alias[i]);
	}
	if (s->group) {
		sep(p, &open);
		fprintf(p->f, "group=%d", s->group);
	}
	if (s->batched) {
		sep(p, &open);
		fputs("batched=1", p->f);
	}
	if (s->narrowed) {
		sep(p, &open);
		fprintf(p->f, "saved=%s", dtype_info[s->saved].text);
	}
	if (s->param) {
		sep(p, &open);
		fputs("param=", p->f);
		print_string(p, s->param);
	}
	if (strcmp(s->onnx, s->name)) {
		sep(p, &open);
		fputs("onnx=", p->f);
		print_string(p, s->onnx);
	}
	if (s->offset && s->kind != SYM_PARAM) {
		sep(p, &open);
		fprintf(p->f, "at=%lld", (long long)s->offset);
	}
	print_source(p, s, &open);
	fputs(open ? "}\n" : "\n", p->f);
}

/* Roles in which the flat has another dtype than at rest are named. */
static void print_flat(Printer *p, const Flat *f)
{
	const struct { const char *role; DType dtype; } roles[] = {
		{"param", f->param}, {"grad", f->grad}, {"reduce", f->reduce}, {"kept", f->kept}, {"bcast", f->bcast}};
	fprintf(p->f, "%s %s %lld", dtype_info[f->dtype].text, f->trainable ? "trainable" : "frozen", (long long)f->numel);
	for (int i = 0; i < COUNT_OF(roles); i++)
		if (roles[i].dtype != f->dtype)
			fprintf(p->f, " %s=%s", roles[i].role, dtype_info[roles[i].dtype].text);
	if (f->master)
		fputs(" master", p->f);
	if (f->away)
		fputs(" away", p->f);
}

static void print_unit_line(Printer *p, const Unit *u)
{
	fputs("  unit ", p->f);
	print_unit(p, u);
	fputs(" {strategy=", p->f);
	print_string(p, strategy_info[u->strategy].text);
	if (u->owner >= 0)
		fprintf(p->f, ", owner=%d", u->owner);
	fputs(", flats=[", p->f);
	for (int i = 0; i < u->n_flats; i++) {
		fputs(i ? ", " : "", p->f);
		print_flat(p, &u->flat[i]);
	}
	fputs("], params=[", p->f);
	for (int i = 0; i < u->n_params; i++) {
		const Symbol *s = u->params[i];
		fputs(i ? ", " : "", p->f);
		print_string(p, s->name);
		fprintf(p->f, " @%lld", (long long)s->offset);
		if (s->flat)
			fprintf(p->f, "/%d", s->flat);
	}
	fputs("]}\n", p->f);
}

static void print_header(Printer *p, const Module *m)
{
	const struct { const char *name; int64_t v; } field[] = {
		{"world", m->world}, {"batch", m->batch}, {"act_bytes", m->act_bytes}, {"input_bytes", m->input_bytes},
		{"state_bytes", m->state_bytes}, {"work_bytes", m->work_bytes},
	};
	fputs("module ", p->f);
	print_string(p, m->name);
	fprintf(p->f, " level=%s", level_text[m->level]);
	if (m->variant != VARIANT_ONLY)
		fprintf(p->f, " variant=%s", variant_text[m->variant]);
	if (m->sync != SYNC_NONE)
		fprintf(p->f, " sync=%s", sync_text[m->sync]);
	if (m->file) {
		fputs(" file=", p->f);
		print_string(p, m->file);
	}
	for (int i = 0; i < COUNT_OF(field); i++)
		if (field[i].v)
			fprintf(p->f, " %s=%lld", field[i].name, (long long)field[i].v);
	fputs(" {\n", p->f);
}

void ir_print(FILE *f, const Module *m)
{
	Printer p = {f, arena_new()};
	print_header(&p, m);
	for (int i = 0; i < m->n_units; i++)
		print_unit_line(&p, m->units[i]);
	for (int i = 0; i < m->n_symbols; i++)
		print_symbol(&p, m->symbols[i]);
	for (int s = 0; s < SEC_COUNT; s++) {
		if (!m->first[s])
			continue;
		fprintf(f, "  %s {\n", section_text[s]);
		IR_FOR_OPS(m, s, op) {
			fputs("    ", f);
			print_op(&p, op);
			fputc('\n', f);
		}
		fputs("  }\n", f);
	}
	fputs("}\n", f);
	arena_free(p.scratch);
}

char *ir_text(const Module *m, Arena *a)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	if (!f)
		ice("out of memory");
	ir_print(f, m);
	fclose(f);
	char *copy = arena_strndup(a, text, n);
	free(text);
	return copy;
}
