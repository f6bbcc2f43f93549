/* ir/print.c: prints a module as text; the exact inverse of parse.c.  Grammar: docs/ir.md.
 *
 * There is one op per line.  Attributes are sorted by name, and floats have the fewest digits that read back to the
 * same bits.  Fields that have their default are not printed, so that dumps stay short. */
#include "base/crc32.h"
#include "ir/ir.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Printer {
	FILE *f;
	Arena *scratch;
	int depth;  /* of loops around the op */
	bool inner; /* also print locations of ops in fused bodies: programs that check their results name these */
	struct Locations *locations; /* NULL: each op has its whole location */
} Printer;

/* The locations that ops of the module have, without roles; they are printed once, behind the ops. */
typedef struct Locations {
	PtrMap *by_number;     /* Loc.number -> the location that stands for it */
	Map *by_names;         /* its names -> the same */
	VEC(const Loc *) all;
} Locations;

static void print_quoted(Printer *p, const char *s)
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
	case ATTR_STR: print_quoted(p, a->s); break;
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

static void print_names(Printer *p, const Loc *l)
{
	print_quoted(p, l->node);
	if (*l->onnx) {
		fputc(':', p->f);
		print_quoted(p, l->onnx);
	}
	if (*l->scope) {
		fputc('@', p->f);
		print_quoted(p, l->scope);
	}
}

/* The number that the location's names are printed with.  Locations that were made apart may have the same names; the
 * number of the first is that of all. */
static int number_of(Printer *p, const Loc *l)
{
	Locations *t = p->locations;
	const void *key = (const void *)(intptr_t)l->number;
	const Loc *first = ptrmap_get(t->by_number, key);
	if (first)
		return first->number;
	const char *names = arena_printf(p->scratch, "%p %p %p", (const void *)l->node, (const void *)l->onnx,
		(const void *)l->scope); /* strings of a module are interned */
	first = map_get(t->by_names, names);
	if (!first) {
		first = l;
		map_put(t->by_names, names, (void *)l);
		vec_push(p->scratch, &t->all, l);
	}
	ptrmap_put(t->by_number, key, (void *)first);
	return first->number;
}

static void print_loc(Printer *p, const Loc *l)
{
	if (!l->number && !*l->role)
		return;
	fputs(" loc(", p->f);
	if (p->locations && l->number)
		fprintf(p->f, "%d", number_of(p, l));
	else
		print_names(p, l);
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

/* Values of a body are numbered: first the arguments, then the results in order. */
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
		fprintf(p->f, "%*s", 6 + 2 * p->depth, "");
		if (op->n_out)
			fprintf(p->f, "$%d : %s = ", body_number(fused, op->out[0]),
				dtype_info[op->out[0]->type.dtype].text);
		fputs(op_info[op->kind].text, p->f);
		for (int i = 0; i < op->n_in; i++)
			fprintf(p->f, i ? ", $%d" : " $%d", body_number(fused, op->in[i].value));
		print_attrs(p, op->attrs);
		if (p->inner)
			print_loc(p, op->loc);
		fputc('\n', p->f);
	}
	fprintf(p->f, "%*s}", 4 + 2 * p->depth, "");
}

static void print_steps(Printer *p, const Op *loop);

static void print_op(Printer *p, const Op *op)
{
	for (int i = 0; i < op->n_out; i++) {
		const Value *v = op->out[i];
		fprintf(p->f, i ? ", %%%s : " : "%%%s : ", v->name);
		print_type(p, &v->type);
		if (!p->depth) /* those in a body follow from it */
			print_place(p, &v->place);
	}
	fprintf(p->f, op->n_out ? " = %s" : "%s", op_info[op->kind].text);
	if (op->unit) {
		fputc(' ', p->f);
		print_unit(p, op->unit);
	}
	if (op->sym) {
		fputc(' ', p->f);
		print_quoted(p, op->sym->name);
	}
	print_operands(p, op);
	print_attrs(p, op->attrs);
	if (op->kind == OP_FUSED)
		print_body(p, op);
	if (op->body)
		print_steps(p, op);
	print_loc(p, op->loc);
}

/* The ops of a loop's body stand one step further in than the loop. */
static void print_steps(Printer *p, const Op *loop)
{
	p->depth++;
	fputs(" do {\n", p->f);
	IR_FOR_OPS(loop->body, SEC_FORWARD, op) {
		fprintf(p->f, "%*s", 4 + 2 * p->depth, "");
		print_op(p, op);
		fputc('\n', p->f);
	}
	p->depth--;
	fprintf(p->f, "%*s}", 4 + 2 * p->depth, "");
}

static Printer printer_open(FILE *f, const Module *m)
{
	return (Printer){.f = f, .scratch = arena_new(), .inner = ir_train(m)->check_nan};
}

void ir_print_op(FILE *f, const Module *m, const Op *op)
{
	Printer p = printer_open(f, m);
	print_op(&p, op);
	arena_free(p.scratch);
}

/* ---- signatures ---- */

/* Attributes that say where and when an op runs, or which random numbers it draws, not what it computes. */
static bool is_of_place(const char *attr)
{
	static const char *const names[] = {"id", "seq", "slot", "stream", "why"};
	for (int i = 0; i < COUNT_OF(names); i++)
		if (!strcmp(attr, names[i]))
			return true;
	return false;
}

static void sign_attrs(Printer *p, const Op *op)
{
	const char *before = " {";
	for (const Attr *a = op->attrs; a; a = a->next) {
		if (is_of_place(a->name))
			continue;
		fputs(before, p->f);
		print_attr(p, a);
		before = ", ";
	}
	fputs(*before == ',' ? "}" : "", p->f);
}

/* The checksum of a body, whose text has no names but those of a loop's values. */
static uint32_t sign_body(const Printer *p, const Op *op)
{
	char *text = NULL;
	size_t n = 0;
	Printer body = {.f = open_memstream(&text, &n), .scratch = p->scratch};
	(op->body ? print_steps : print_body)(&body, op);
	fclose(body.f);
	uint32_t sum = crc32_more(0, text, (int64_t)n);
	free(text);
	return sum;
}

char *ir_signature(const Op *op, Arena *a)
{
	char *text = NULL;
	size_t n = 0;
	Printer p = {.f = open_memstream(&text, &n), .scratch = a};
	fputs(op_info[op->kind].text, p.f);
	for (int i = 0; i < op->n_in; i++) {
		const Value *v = op_in(op, i);
		fprintf(p.f, " %s", v ? type_str(a, &v->type) : "_");
	}
	fputs(" ->", p.f);
	for (int i = 0; i < op->n_out; i++)
		fprintf(p.f, " %s", type_str(a, &op->out[i]->type));
	sign_attrs(&p, op);
	if (op->body || op->kind == OP_FUSED)
		fprintf(p.f, " body %08x", sign_body(&p, op));
	fclose(p.f);
	char *signature = arena_strdup(a, text);
	free(text);
	return signature;
}

/* ---- fields: what module_fields.def, train_fields.def, unit_fields.def and symbol_fields.def list ---- */

typedef struct FieldAt {
	const char *key;
	const void *owner, *at; /* owner: the symbol, unit, block or module; at: the field in it */
} FieldAt;

static void print_flag(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=%d", f->key, *(const bool *)f->at);
}

static void print_count(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=%d", f->key, *(const int *)f->at);
}

static void print_integer(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=%lld", f->key, (long long)*(const int64_t *)f->at);
}

static void print_size(Printer *p, const FieldAt *f)
{
	print_integer(p, f);
}

static void print_real(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=", f->key);
	print_float(p, *(const double *)f->at);
}

static void print_text(Printer *p, const char *key, const char *text)
{
	fprintf(p->f, "%s=", key);
	print_quoted(p, text);
}

static void print_string(Printer *p, const FieldAt *f)
{
	print_text(p, f->key, *(const char *const *)f->at);
}

static void print_dtype(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=%s", f->key, dtype_info[*(const DType *)f->at].text);
}

static void print_offload(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=%s", f->key, offload_text[*(const LayoutOffload *)f->at]);
}

/* Prints a field that is shown; `before` is what stands in front of the first one. */
#define PRINT_FIELD(key, kind, owner, at, shown) \
	if (shown) { \
		fputs(before, p->f); \
		before = ", "; \
		print_##kind(p, &(FieldAt){key, owner, at}); \
	}

/* ---- symbols ---- */

bool is_as_in_file(const Symbol *s)
{
	const Source *src = &s->src;
	bool same = src->dtype == s->type.dtype && src->rank == s->type.rank;
	for (int i = 0; same && i < src->rank; i++)
		same = src->perm[i] == i && src->dim[i] == s->type.dim[i];
	return same;
}

/* Prints one field for each alias. */
static void print_aliases(Printer *p, const FieldAt *f)
{
	const Symbol *s = f->owner;
	for (int i = 0; i < s->n_aliases; i++) {
		fputs(i ? ", " : "", p->f);
		print_text(p, f->key, s->alias[i]);
	}
}

static void print_saved(Printer *p, const FieldAt *f)
{
	print_dtype(p, f);
}

static void print_law(Printer *p, const FieldAt *f)
{
	print_string(p, f);
}

static void print_dims(Printer *p, const FieldAt *f)
{
	const Symbol *s = f->owner;
	fprintf(p->f, "%s=", f->key);
	print_ints(p, s->src.rank, s->src.dim);
}

static void print_perm(Printer *p, const FieldAt *f)
{
	const Symbol *s = f->owner;
	int64_t perm[IR_MAX_RANK];
	for (int i = 0; i < s->src.rank; i++)
		perm[i] = s->src.perm[i];
	fprintf(p->f, "%s=", f->key);
	print_ints(p, s->src.rank, perm);
}

static void print_symbol(Printer *p, const Symbol *s)
{
	const char *before = " {";
	fprintf(p->f, "  %s ", symbol_kind_text[s->kind]);
	print_quoted(p, s->name);
	fputs(" : ", p->f);
	print_type(p, &s->type);
#define SYMBOL_FIELD(key, kind, field, shown) PRINT_FIELD(#key, kind, s, &s->field, shown)
#include "ir/symbol_fields.def"
	fputs(*before == ',' ? "}\n" : "\n", p->f);
}

/* ---- units ---- */

static void print_strategy(Printer *p, const FieldAt *f)
{
	print_text(p, f->key, strategy_info[*(const Strategy *)f->at].text);
}

/* Prints a dtype of the flat if it differs from the one at rest. */
static void print_role(Printer *p, const FieldAt *f)
{
	if (*(const DType *)f->at == ((const Flat *)f->owner)->dtype)
		return;
	fputc(' ', p->f);
	print_dtype(p, f);
}

static void print_gathered(Printer *p, const FieldAt *f)
{
	print_role(p, f);
}

static void print_word(Printer *p, const FieldAt *f)
{
	if (*(const bool *)f->at)
		fprintf(p->f, " %s", f->key);
}

static void print_flat(Printer *p, const Flat *f)
{
	fprintf(p->f, "%s %s %lld", dtype_info[f->dtype].text, f->trainable ? "trainable" : "frozen", (long long)f->numel);
#define FLAT_FIELD(key, kind, field) print_##kind(p, &(FieldAt){#key, f, &f->field});
#include "ir/unit_fields.def"
}

static void print_flats(Printer *p, const FieldAt *f)
{
	const Unit *u = f->owner;
	fprintf(p->f, "%s=[", f->key);
	for (int i = 0; i < u->n_flats; i++) {
		fputs(i ? ", " : "", p->f);
		print_flat(p, &u->flat[i]);
	}
	fputc(']', p->f);
}

static void print_members(Printer *p, const FieldAt *f)
{
	const Unit *u = f->owner;
	fprintf(p->f, "%s=[", f->key);
	for (int i = 0; i < u->n_params; i++) {
		const Symbol *s = u->params[i];
		fputs(i ? ", " : "", p->f);
		print_quoted(p, s->name);
		fprintf(p->f, " @%lld", (long long)s->offset);
		if (s->flat)
			fprintf(p->f, "/%d", s->flat);
	}
	fputc(']', p->f);
}

static void print_unit_line(Printer *p, const Unit *u)
{
	const char *before = " {";
	fputs("  unit ", p->f);
	print_unit(p, u);
#define UNIT_FIELD(key, kind, field, shown) PRINT_FIELD(#key, kind, u, &u->field, shown)
#include "ir/unit_fields.def"
	fputs("}\n", p->f);
}

/* ---- the train block ---- */

/* Prints the numbers that the group has of its own. */
static void print_group(Printer *p, const ParamGroup *g)
{
	fputc('{', p->f);
	print_text(p, "match", g->regex);
	for (int k = 0; k < GROUP_KEYS; k++) {
		if (isnan(g->value[k]))
			continue;
		fprintf(p->f, ", %s=", group_key_info[k].name);
		print_float(p, g->value[k]);
	}
	fputc('}', p->f);
}

static void print_groups(Printer *p, const FieldAt *f)
{
	const Train *t = f->owner;
	fprintf(p->f, "%s=[", f->key);
	for (int i = 0; i < t->n_groups; i++) {
		fputs(i ? ", " : "", p->f);
		print_group(p, &t->group[i]);
	}
	fputc(']', p->f);
}

static void print_train(Printer *p, const Train *t)
{
	const char *before = "  train {";
#define TRAIN_FIELD(key, kind, field, shown) PRINT_FIELD(#key, kind, t, &t->field, shown)
#include "ir/train_fields.def"
	fputs("}\n", p->f);
}

/* ---- modules ---- */

static void print_level(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=%s", f->key, level_text[*(const Level *)f->at]);
}

static void print_variant(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=%s", f->key, variant_text[*(const Variant *)f->at]);
}

static void print_sync(Printer *p, const FieldAt *f)
{
	fprintf(p->f, "%s=%s", f->key, sync_text[*(const Sync *)f->at]);
}

static void print_header(Printer *p, const Module *m)
{
	fputs("module ", p->f);
	print_quoted(p, m->name);
#define MODULE_FIELD(key, kind, field, shown) \
	if (shown) { \
		fputc(' ', p->f); \
		print_##kind(p, &(FieldAt){#key, m, &m->field}); \
	}
#include "ir/module_fields.def"
	fputs(" {\n", p->f);
}

static void print_declarations(Printer *p, const Module *m)
{
	if (m->train)
		print_train(p, m->train);
	for (int i = 0; i < m->n_units; i++)
		print_unit_line(p, m->units[i]);
	for (int i = 0; i < m->n_symbols; i++)
		print_symbol(p, m->symbols[i]);
}

static void print_section(Printer *p, const Module *m, SectionKind s)
{
	if (!m->first[s])
		return;
	fprintf(p->f, "  %s {\n", section_text[s]);
	IR_FOR_OPS(m, s, op) {
		fputs("    ", p->f);
		print_op(p, op);
		fputc('\n', p->f);
	}
	fputs("  }\n", p->f);
}

static int compare_numbers(const void *a, const void *b)
{
	const Loc *const *x = a, *const *y = b;
	return ((*x)->number > (*y)->number) - ((*x)->number < (*y)->number);
}

/* Prints the locations that the ops before it name by number. */
static void print_locations(Printer *p)
{
	Locations *t = p->locations;
	if (!t->all.n)
		return;
	qsort(t->all.at, (size_t)t->all.n, sizeof(*t->all.at), compare_numbers);
	fputs("  locations {\n", p->f);
	for (int i = 0; i < t->all.n; i++) {
		fprintf(p->f, "    %d = ", t->all.at[i]->number);
		print_names(p, t->all.at[i]);
		fputc('\n', p->f);
	}
	fputs("  }\n", p->f);
}

void ir_print(FILE *f, const Module *m)
{
	Printer p = printer_open(f, m);
	p.locations = &(Locations){.by_number = ptrmap_new(p.scratch), .by_names = map_new(p.scratch)};
	print_header(&p, m);
	print_declarations(&p, m);
	for (int s = 0; s < SEC_COUNT; s++)
		print_section(&p, m, (SectionKind)s);
	print_locations(&p);
	fputs("}\n", f);
	arena_free(p.scratch);
}

typedef void PrintModule(FILE *f, const Module *m);

static char *text_of(const Module *m, PrintModule *print, Arena *a)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	if (!f)
		ice("out of memory");
	print(f, m);
	fclose(f);
	char *copy = arena_strndup(a, text, n);
	free(text);
	return copy;
}

char *ir_text(const Module *m, Arena *a)
{
	return text_of(m, ir_print, a);
}

static void write_declarations(FILE *f, const Module *m)
{
	Printer p = printer_open(f, m);
	print_declarations(&p, m);
	arena_free(p.scratch);
}

char *ir_declarations(const Module *m, Arena *a)
{
	return text_of(m, write_declarations, a);
}
