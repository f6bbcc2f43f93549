/* passes/loss/pads.c: what short samples of each input are filled up with, where a program has several sizes.
 *
 * An input's role follows from what the graph does with it: labels of a cross-entropy are ignored where they are
 * ignore_index; an input that is compared with one number, as token ids are with the padding's id, is filled with that;
 * ids by which rows are looked up may be any row's.  A few names that every exporter uses have their meaning; for
 * anything else the user says it (--pad).  Inputs with the same shape at all sizes are never filled up. */
#include "passes/loss/loss.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the graph does with an input. */
typedef struct Role {
	const Op *label, *compare, *index;
	double number;  /* with which it is compared */
	int64_t rows;   /* that all tables have which are looked up by it */
} Role;

static const struct { const char *name, *what; } names[] = {
	{"attention_mask", "masks are 0 where there is nothing"}, {"position_ids", "positions of padding are not used"},
	{"token_type_ids", "types of padding are not used"},
};

/* The single number that a constant holds, by way of what only changes its shape or type. */
static bool single_number(const Value *v, double *out)
{
	while (v->op->kind == OP_CAST || v->op->kind == OP_BROADCAST || v->op->kind == OP_RESHAPE)
		v = op_in(v->op, 0);
	const Attr *a = v->op->kind == OP_CONST ? attr_find(v->op->attrs, "value") : NULL;
	if (!a || (a->kind != ATTR_FLOATS && a->kind != ATTR_INTS) || a->n != 1)
		return false;
	*out = a->kind == ATTR_INTS ? (double)a->ints[0] : a->floats[0];
	return true;
}

/* Whether the result holds the operand's numbers, at other places or as they are where they are valid. */
static bool passes_on(const Op *op)
{
	switch (op->kind) {
	case OP_RESHAPE: case OP_TRANSPOSE: case OP_CAST: case OP_SLICE: case OP_CONCAT: case OP_BROADCAST:
	case OP_PAD: case OP_SPLIT: case OP_STOP_GRADIENT: case OP_WHERE: case OP_MAX: case OP_MIN:
		return true;
	default:
		return false;
	}
}

static int64_t rows_of(const Op *gather)
{
	const Type *table = &op_in(gather, 0)->type;
	int64_t axis = attr_get_int(gather->attrs, "axis", 0);
	return table->dim[axis < 0 ? axis + table->rank : axis];
}

static void follow(const Value *v, Role *role, PtrMap *seen)
{
	if (ptrmap_get(seen, v))
		return;
	ptrmap_put(seen, v, (void *)v);
	for (const Use *u = v->uses; u; u = u->next) {
		const Op *op = u->op;
		double number;
		if (op->kind == OP_CROSS_ENTROPY && op_in(op, 1) == v)
			role->label = op;
		else if (op->kind == OP_EQ && single_number(op_in(op, op_in(op, 0) == v), &number)) {
			role->compare = op;
			role->number = number;
		} else if (op->kind == OP_GATHER && op_in(op, 1) == v && op_in(op, 0) != v) {
			role->rows = role->index ? MIN(role->rows, rows_of(op)) : rows_of(op);
			role->index = op;
		} else if (passes_on(op))
			for (int i = 0; i < op->n_out; i++)
				follow(op->out[i], role, seen);
	}
}

static const char *known_name(const char *name)
{
	for (int i = 0; i < COUNT_OF(names); i++)
		if (!strcmp(names[i].name, name))
			return names[i].what;
	return NULL;
}

static void set(Module *m, Symbol *s, double pad, const char *why)
{
	s->pads = true;
	s->pad = pad;
	s->pad_why = ir_intern(m, why);
}

static void set_by_role(Module *m, Symbol *s, const Role *r)
{
	Arena *a = m->arena;
	const char *known = known_name(s->name);
	int64_t ignored = r->label ? attr_get_int(r->label->attrs, "ignore_index", -100) : 0;
	if (r->label && r->index && (ignored < 0 || ignored >= r->rows))
		s->pad_why = arena_printf(a, "its numbers are labels, which are ignored where they are %" PRId64 ", and ids by "
			"which node \"%s\" looks rows up, which has none of that number; make the labels an input of their own, or "
			"give --pad %s=ID, whose labels count then", ignored, r->index->loc->node, s->name);
	else if (r->label)
		set(m, s, (double)ignored,
			arena_printf(a, "ignore_index of the cross-entropy of node \"%s\"", r->label->loc->node));
	else if (r->compare)
		set(m, s, r->number, arena_printf(a, "node \"%s\" compares it with that", r->compare->loc->node));
	else if (r->index) {
		set(m, s, 0, arena_printf(a, "node \"%s\" looks rows up by it, and row 0 exists", r->index->loc->node));
		s->pad_free = r->rows > 1;
	} else if (known)
		set(m, s, 0, arena_printf(a, "by its name: %s", known));
}

/* The value that --pad gives for an input; NULL: none.  Two values are an error. */
static const char *asked_for(const Options *o, const char *name, Diag *d)
{
	const char *found = NULL;
	size_t n = strlen(name);
	for (int i = 0; i < o->graph.pad.n; i++) {
		const char *text = o->graph.pad.at[i];
		if (strncmp(text, name, n) || text[n] != '=')
			continue;
		if (found && strcmp(found, text + n + 1))
			diag_error(d, "--pad", "input \"%s\" is given twice, %s and %s", name, found, text + n + 1);
		found = text + n + 1;
	}
	return found;
}

/* Whether an integer type has the number, and a double every number up to it. */
static bool has_number(DType t, double x)
{
	bool natural = dtype_info[t].kind == CLASS_UINT || t == DT_BOOL;
	int bits = t == DT_BOOL ? 1 : MIN(8 * dtype_info[t].bytes - !natural, 53);
	return x == trunc(x) && x < ldexp(1, bits) && x >= (natural ? 0 : -ldexp(1, bits));
}

static void set_asked(Module *m, Symbol *s, const char *text, Diag *d)
{
	char *end;
	double pad = strtod(text, &end);
	if (end == text || *end || (!dtype_is_float(s->type.dtype) && !has_number(s->type.dtype, pad)))
		diag_error(d, "--pad", "\"%s=%s\": %s is no number of type %s", s->name, text, text,
			dtype_info[s->type.dtype].text);
	else
		set(m, s, pad, "by --pad");
}

/* Refuses --pad for what is no input with samples. */
static void check_names(const Module *m, const Options *o, Diag *d)
{
	for (int i = 0; i < o->graph.pad.n; i++) {
		bool found = false;
		for (int k = 0; k < m->n_symbols; k++) {
			const Symbol *s = m->symbols[k];
			size_t n = strlen(s->name);
			found = found || (s->kind == SYM_INPUT && s->batched && !strncmp(o->graph.pad.at[i], s->name, n)
				&& o->graph.pad.at[i][n] == '=');
		}
		if (!found)
			diag_error(d, "--pad", "\"%s\" is not NAME=VALUE with the name of an input that has samples",
				o->graph.pad.at[i]);
	}
}

/* What padding changes whatever it is. */
static void warn_statistics(Module *m, const Op *op, Diag *d)
{
	if (op->kind == OP_BATCH_NORM && op_in(op, 0)->type.rank > 2)
		diag_warn(d, loc_where(m, op->loc), "its statistics are over the padding of short samples, too (several sizes "
			"in --bind): the same batch gives other numbers at another size");
}

bool loss_pads(Module *m, const Options *o, bool counted, Diag *d)
{
	Arena *scratch = arena_new();
	int before = d->errors;
	IR_FOR_OPS(m, SEC_FORWARD, op) {
		warn_statistics(m, op, d);
		Symbol *s = op->kind == OP_INPUT ? (Symbol *)op->sym : NULL;
		Role role = {0};
		if (!s || !s->batched)
			continue;
		const char *asked = asked_for(o, s->name, d);
		if (counted && !strcmp(s->name, "target"))
			s->pad_why = "the loss counts every element of it, padding too: a cross_entropy ignores labels of "
				"ignore_index, and a loss that the model computes (output:NAME) may leave padding out";
		else if (asked)
			set_asked(m, s, asked, d);
		else {
			follow(op->out[0], &role, ptrmap_new(scratch));
			set_by_role(m, s, &role);
		}
	}
	check_names(m, o, d);
	arena_free(scratch);
	return d->errors == before;
}
