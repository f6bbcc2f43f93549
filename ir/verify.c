/* ir/verify.c: checks a module after every pass, in every build.
 *
 * It checks structure (lists, uses, ids, names), order (a value is defined before it is read; eval reads only its own
 * values), types (each is inferred again and compared), levels, attributes, effects, fused bodies, units and gathered
 * values (verify_shard.c).  Nothing that a pass leaves behind is trusted, so a broken pass is reported by its name.
 * The time is linear in the size of the module. */
#include "ir/verify.h"

#include <stdlib.h>
#include <string.h>

/* ---- reporting ---- */

static const char *op_text(Verify *v, const Op *op)
{
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);
	if (!f)
		ice("out of memory");
	ir_print_op(f, v->m, op);
	fclose(f);
	if (n > 400)
		n = 400;
	const char *copy = arena_strndup(v->arena, text, n);
	free(text);
	return copy;
}

static void report(Verify *v, TextPlace at, const char *what)
{
	if (v->after)
		ice("the module is wrong after pass %s: %s", v->after, what);
	v->errors++;
	diag_error(v->diag, ir_where(v->m, at), "%s", what);
}

void verify_fail(Verify *v, const Op *op, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const char *what = arena_vprintf(v->arena, fmt, ap);
	va_end(ap);
	if (op && op->parent)
		op = op->parent; /* values of a body have no names, so the whole fused op is printed */
	if (op)
		what = arena_printf(v->arena, "%s, in %s: %s", what, section_text[op->section], op_text(v, op));
	report(v, op ? op->at : v->m->at, what);
}

void verify_fail_at(Verify *v, TextPlace at, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	report(v, at, arena_vprintf(v->arena, fmt, ap));
	va_end(ap);
}

/* ---- lists and uses ---- */

/* Checks that the op is linked where it is found; false: the list cannot be walked. */
static bool check_link(Verify *v, const Op *op, const Op *before, SectionKind s, const Op *parent)
{
	if (op->prev == before && op->section == s && op->parent == parent)
		return true;
	verify_fail(v, NULL, "an op of kind %d in %s is linked wrongly", (int)op->kind, section_text[s]);
	return false;
}

static bool check_last(Verify *v, const Op *end, const Op *last, SectionKind s)
{
	if (end == last)
		return true;
	verify_fail(v, NULL, "the list of %s does not end at its last op", section_text[s]);
	return false;
}

static bool check_body_links(Verify *v, const Op *op)
{
	const Op *before = NULL;
	for (const Op *inner = op->body_first; inner; before = inner, inner = inner->next)
		if (!check_link(v, inner, before, op->section, op))
			return false;
	return check_last(v, before, op->body_last, op->section);
}

/* A hash of a link in a list of uses.  Sums of these hashes compare sets of links in whatever order they are met. */
static uint32_t link_hash(const Use *from, const Use *to)
{
	uint64_t h = ((uint64_t)(uintptr_t)from * 0x9e3779b97f4a7c15u) ^ (uint64_t)(uintptr_t)to;
	h = (h ^ (h >> 29)) * 0xff51afd7ed558ccdu;
	return (uint32_t)(h >> 32);
}

/* Checks an operand slot.  The users of a value lie far apart in memory, so its list of uses is not walked.  Instead
 * the set of links forward (from the value to its first slot, and from each slot to the next) is compared with the set
 * of links backward, in the order in which ops are visited.  The sets are equal if the slots form the value's list.  A
 * separate ring of slots is not found. */
static bool check_slot(Verify *v, const Op *op, int i)
{
	const Use *u = &op->in[i];
	const Value *x = u->value;
	if (u->op != op) {
		verify_fail(v, op, "operand %d belongs to another op", i + 1);
		return false;
	}
	if (!x)
		return true;
	if (x->id < 0 || x->id >= v->m->n_values) {
		verify_fail(v, op, "operand %d is no value of the module", i + 1);
		return false;
	}
	OfValue *of = &v->of[x->id];
	of->more++;
	of->links -= link_hash(u->prev, u);
	if (u->next)
		of->links += link_hash(u, u->next);
	return true;
}

static bool check_slots(Verify *v, const Op *op)
{
	for (int i = 0; i < op->n_in; i++)
		if (!check_slot(v, op, i))
			return false;
	return true;
}

/* Counts at most one more than n_uses, because a broken list may be a ring. */
static int list_length(const Value *x)
{
	int n = 0;
	for (const Use *u = x->uses; u && n <= x->n_uses; u = u->next)
		n++;
	return n;
}

static void blame_list(Verify *v, const Op *op, const Value *x)
{
	int refs = v->of[x->id].more + x->n_uses, n = list_length(x);
	if (n != refs || n != x->n_uses)
		verify_fail(v, op, "%%%s has %d operands that name it, %d in its list of uses, %d counted",
			x->name ? x->name : "$", refs, n, x->n_uses);
}

static void blame_slots(Verify *v, const Op *op)
{
	for (int i = 0; i < op->n_in; i++) {
		const Use *u = &op->in[i];
		if (u->value && (u->prev ? u->prev->next != u : u->value->uses != u))
			verify_fail(v, op, "operand %d is not in its value's list of uses", i + 1);
	}
	for (int i = 0; i < op->n_out; i++)
		blame_list(v, op, op->out[i]);
	for (int i = 0; op->kind == OP_FUSED && i < op->n_in; i++)
		blame_list(v, op, op->args[i]);
}

/* Compares the sums that were made while ops were visited.  Only if they differ are the ops visited again, to find the
 * fault. */
static void check_uses(Verify *v)
{
	bool agree = true;
	for (int i = 0; i < v->m->n_values; i++)
		agree = agree && !v->of[i].links && !v->of[i].more;
	if (agree)
		return;
	int before = v->errors;
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(v->m, s, op) {
			blame_slots(v, op);
			for (const Op *inner = op->body_first; inner; inner = inner->next)
				blame_slots(v, inner);
		}
	if (v->errors == before)
		verify_fail(v, NULL, "a list of uses is not that of the operands");
}

/* ---- values ---- */

static bool define(Verify *v, const Op *op, const Value *x, int index, int scope)
{
	if (!x || x->op != op || x->index != index || x->id < 0 || x->id >= v->m->n_values) {
		verify_fail(v, NULL, "result %d of an op of kind %s is not its own", index,
			op_info[op->kind].text);
		return false;
	}
	OfValue *of = &v->of[x->id];
	if (of->scope) {
		verify_fail(v, op, "value number %d is defined twice", x->id);
		return false;
	}
	of->scope = scope;
	of->more -= x->n_uses;
	if (x->uses)
		of->links += link_hash(NULL, x->uses);
	return true;
}

static bool define_results(Verify *v, const Op *op, int scope)
{
	const OpInfo *info = &op_info[op->kind];
	if (!(info->flags & VAROUT) && op->n_out != info->n_out) {
		verify_fail(v, NULL, "%s has %d result(s), expected %d", info->text, op->n_out, info->n_out);
		return false;
	}
	for (int i = 0; i < op->n_out; i++)
		if (!define(v, op, op->out[i], i, scope))
			return false;
	return true;
}

/* ---- names ---- */

static bool collect_names(Verify *v, const Op *op)
{
	for (int i = 0; i < op->n_out; i++) {
		const char *name = op->out[i]->name;
		if (!name || !*name) {
			verify_fail(v, NULL, "a result of %s has no name", op_info[op->kind].text);
			return false;
		}
		v->hash[v->n_names++] = hash_bytes(name, strlen(name), 0);
	}
	return true;
}

/* Whether two of the collected names may be equal: their hashes have 32 bits and a place in the table in common. */
static bool may_be_twice(Verify *v)
{
	size_t size = 16, n = (size_t)v->n_names;
	while (size < 2 * n)
		size *= 2;
	uint32_t *table = NEW_N(v->arena, uint32_t, size);
	for (size_t k = 0; k < n; k++) {
		uint64_t hash = v->hash[k];
		uint32_t mark = (uint32_t)(hash >> 32) | 1; /* 0 marks a free place */
		size_t i = hash & (size - 1);
		for (; table[i]; i = (i + 1) & (size - 1))
			if (table[i] == mark)
				return true;
		table[i] = mark;
	}
	return false;
}

/* Checks that names are unique. */
static void check_names(Verify *v)
{
	if (!may_be_twice(v))
		return;
	Map *taken = map_new(v->arena);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(v->m, s, op)
			for (int i = 0; i < op->n_out; i++)
				if (!map_add(taken, op->out[i]->name))
					verify_fail(v, op, "the name %%%s is taken twice", op->out[i]->name);
}

/* ---- one op ---- */

static bool operands_visible(Verify *v, const Op *op, int scope)
{
	for (int i = 0; i < op->n_in; i++) {
		const Value *x = op_in(op, i);
		if (x && v->of[x->id].scope != scope) {
			verify_fail(v, op, "operand %d is not defined before it is read, or in another program", i + 1);
			return false;
		}
	}
	return true;
}

static bool check_subject(Verify *v, const Op *op)
{
	const Module *m = v->m;
	unsigned flags = op_info[op->kind].flags;
	const Symbol *s = op->sym;
	bool named = s && s->index >= 0 && s->index < m->n_symbols && m->symbols[s->index] == s;
	if (s ? !(flags & SYM) || !named : flags & SYM) {
		verify_fail(v, op, s ? "it names a symbol that is not the module's" : "it names no symbol");
		return false;
	}
	const Unit *u = op->unit;
	bool known = u && u->index >= 0 && u->index < m->n_units && m->units[u->index] == u;
	if (u ? !(flags & UNIT) || !known : flags & UNIT) {
		verify_fail(v, op, u ? "it names a unit that is not the module's" : "it names no unit");
		return false;
	}
	return true;
}

static bool check_types(Verify *v, const Op *op)
{
	ArenaMark mark = arena_mark(v->arena);
	Type *given = NEW_N(v->arena, Type, MAX(op->n_out, 1)), *out = NEW_N(v->arena, Type, MAX(op->n_out, 1));
	Buf err = {0};
	for (int i = 0; i < op->n_out; i++)
		given[i] = op->out[i]->type;
	bool ok = ir_infer(v->m, op, given, out, &err);
	if (!ok)
		verify_fail(v, op, "%s", err.at);
	for (int i = 0; ok && i < op->n_out; i++) {
		if (type_equal(&out[i], &given[i]))
			continue;
		verify_fail(v, op, "result %d is declared %s but is %s", i + 1, type_str(v->arena, &given[i]),
			type_str(v->arena, &out[i]));
		ok = false;
	}
	buf_free(&err);
	arena_rewind(v->arena, mark);
	return ok;
}

static void check_op(Verify *v, const Op *op, int scope)
{
	const OpInfo *info = &op_info[op->kind];
	Level level = v->m->level;
	if (!op->loc)
		verify_fail(v, NULL, "an op %s has no location", info->text);
	else if (level < info->level || level > info->last)
		verify_fail(v, op, "%s may stand at levels %s to %s, the module is at %s", info->text,
			level_text[info->level], level_text[info->last], level_text[level]);
	else if (operands_visible(v, op, scope) && check_subject(v, op))
		check_types(v, op);
}

/* ---- fused bodies ---- */

static bool check_args(Verify *v, const Op *op, int scope)
{
	for (int i = 0; i < op->n_in; i++) {
		if (!define(v, op, op->args[i], i, scope))
			return false;
		const Type *t = &op->args[i]->type;
		if (!op_in(op, i) || t->rank || t->dtype != op_in(op, i)->type.dtype) {
			verify_fail(v, op, "$%d does not have the dtype of its operand", i);
			return false;
		}
	}
	return true;
}

static bool check_yield(Verify *v, const Op *op)
{
	const Op *yield = op->body_last;
	if (!yield || yield->kind != OP_YIELD || yield->n_in != op->n_out || !op->n_out) {
		verify_fail(v, op, "the body does not end with a yield of all results");
		return false;
	}
	for (int i = 0; i < op->n_out; i++) {
		const Value *x = op_in(yield, i);
		if (!x || x->type.dtype != op->out[i]->type.dtype) {
			verify_fail(v, op, "result %d does not have the dtype that the body yields", i + 1);
			return false;
		}
	}
	return true;
}

static void check_body(Verify *v, const Op *op)
{
	int scope = ++v->n_scopes;
	if (!check_args(v, op, scope))
		return;
	for (const Op *inner = op->body_first; inner; inner = inner->next) {
		bool last = inner == op->body_last;
		bool may = op_info[inner->kind].flags & EW || inner->kind == OP_CONST || inner->kind == OP_BROADCAST;
		if (last ? inner->kind != OP_YIELD : !may) {
			verify_fail(v, op, "%s may not stand %s a fused body", op_info[inner->kind].text,
				last ? "at the end of" : "in");
			return;
		}
		check_op(v, inner, scope);
		if (!define_results(v, inner, scope))
			return;
		for (int i = 0; i < inner->n_out; i++)
			if (inner->out[i]->type.rank)
				verify_fail(v, op, "%s gives more than one element in a fused body", op_info[inner->kind].text);
	}
	check_yield(v, op);
}

/* Checks that an op of a loop's body does nothing but compute the same in each step. */
static void check_pure(Verify *v, const Op *op)
{
	if (op_info[op->kind].flags & (EFFECT | SYM | UNIT | COMM) || op_draws(op) || op->body)
		verify_fail(v, op, "%s may not stand in the body of a loop", op_info[op->kind].text);
}

/* ---- effects ---- */

/* Checks that some effects occur at most once per symbol or unit in a program; `seen` has those met so far. */
static void check_once(Verify *v, PtrMap *seen, const Op *op)
{
	static const OpKind once[] = {OP_OUTPUT, OP_GRAD, OP_UPDATE, OP_UPDATE_SHARD, OP_ACCUMULATE};
	for (int i = 0; i < COUNT_OF(once); i++) {
		if (op->kind != once[i])
			continue;
		const void *key = op->sym ? (const void *)op->sym : (const void *)op->unit;
		if (ptrmap_get(seen, key))
			verify_fail(v, op, "a second %s of the same", op_info[op->kind].text);
		ptrmap_put(seen, key, v);
	}
}

/* Checks that the running statistics that eval uses are buffers of the module. */
static void check_statistics(Verify *v, const Op *op)
{
	static const char *const attrs[] = {"mean", "var"};
	for (int i = 0; op->kind == OP_BATCH_NORM && i < COUNT_OF(attrs); i++) {
		const char *name = attr_get_str(op->attrs, attrs[i], NULL);
		const Symbol *s = name ? ir_find_symbol(v->m, name) : NULL;
		if (name && (!s || s->kind != SYM_BUFFER || s->type.kind != TYPE_TENSOR
			|| !type_same_shape(&s->type, &op->out[1]->type)))
			verify_fail(v, op, "%s=\"%s\" is not a buffer of %s", attrs[i], name,
				type_str(v->arena, &op->out[1]->type));
	}
}

/* Whether x may be joined with the other operands: all are results of one loop, of one type, or of one attention_grad,
 * tokens by heads, and nothing else reads them. */
/* Whether an op that is no loop can write its result into wider rows. */
static bool makes_columns(const Op *op)
{
	return (op->kind == OP_MATMUL && !op_sum(op)) || op->kind == OP_CROSS_ENTROPY_GRAD;
}

static bool is_joinable(const Op *join, const Value *x)
{
	const Value *first = op_in(join, 0);
	int64_t axis = attr_get_int(join->attrs, "axis", 0);
	if (x->op != first->op || x->n_uses != 1)
		return false;
	if (x->op->kind == OP_ATTENTION_GRAD)
		return axis == 2 && attr_get_int(x->op->attrs, "layout", 0);
	if (attr_find(join->attrs, "width"))
		return join->n_in == 1 && axis == x->type.rank - 1 && makes_columns(x->op);
	return x->op->kind == OP_FUSED && axis == x->type.rank - 1 && type_equal(&x->type, &first->type);
}

/* Whether x can be written into the result of a stack: it has a place that is chosen, and nothing else reads it. */
static bool is_stackable(const Op *stack, const Value *x)
{
	return !(op_info[x->op->kind].flags & (VIEW | SRC)) && x->op->kind != OP_ACCUMULATE && x->op->kind != OP_STACK
		&& x->n_uses == 1 && attr_get_int(stack->attrs, "axis", 0) == 0;
}

/* Whether kernels read or write x as rows of a tensor; rows of a gradient are collected, or copied, in bytes. */
static bool is_tile(const Op *op, const Value *x)
{
	bool rows = x->op->kind == OP_ROWS && op->kind != OP_COLLECT && op->kind != OP_COPY;
	return rows || (op->kind == OP_STACK && x->type.kind == TYPE_TENSOR);
}

/* How many columns of x have content, where a join with a width makes its rows; -1: all have. */
static int64_t content_of(const Value *x)
{
	while (x->op->kind == OP_RESHAPE && op_in(x->op, 0))
		x = op_in(x->op, 0);
	bool padded = x->op->kind == OP_JOIN && attr_find(x->op->attrs, "width");
	return padded ? type_columns(&op_in(x->op, 0)->type, (int)attr_get_int(x->op->attrs, "axis", 0)) : -1;
}

/* Whether op reads of x, of which `content` columns have content, no others. */
static bool reads_content(const Op *op, const Value *x, int64_t content)
{
	const Type *rows = &x->type, *y = op->n_out ? &op->out[0]->type : NULL;
	if (op->kind == OP_COLUMNS)
		return attr_get_int(op->attrs, "start", 0) + attr_get_int(op->attrs, "size", 0) <= content;
	return op->kind == OP_RESHAPE && y->rank && y->dim[y->rank - 1] == rows->dim[rows->rank - 1];
}

/* Checks who reads columns of a value, and writes them, what is written into a stack, and where tiles begin. */
static void check_parts(Verify *v, const Op *op)
{
	if (op->kind == OP_ROPE && attr_find(op->attrs, "heads") && v->m->level < LEVEL_SHARD)
		verify_fail(v, op, "rope of columns is legal from level SHARD on");
	for (int i = 0; i < op->n_in; i++) {
		const Value *x = op_in(op, i);
		bool heads = x && x->op->kind == OP_COLUMNS && attr_find(x->op->attrs, "heads");
		if (x && x->op->kind == OP_COLUMNS && !heads && !op_reads_columns(op, i))
			verify_fail(v, op, "%%%s is columns of a wider value, which loops, products and losses alone can read",
				x->name);
		int64_t content = x ? content_of(x) : -1;
		if (content >= 0 && !reads_content(op, x, content))
			verify_fail(v, op, "rows of %%%s have content in %lld columns; only columns of these can be read", x->name,
				(long long)content);
		if (heads && !op_reads_heads(op, i))
			verify_fail(v, op, "%%%s is heads in columns of a wider value, which attention alone can read, as q, k or "
				"v of layout 1", x->name);
		if (x && is_tile(op, x) && value_start(x) * dtype_info[x->type.dtype].bytes % 64)
			verify_fail(v, op, "%%%s begins at byte %lld of a tensor; expected a multiple of 64, as of all that "
				"kernels read and write", x->name, (long long)(value_start(x) * dtype_info[x->type.dtype].bytes));
		if (op->kind == OP_STACK && !is_stackable(op, x))
			verify_fail(v, op, "%%%s cannot be written into a stack along the first axis: it is a view or no result of "
				"computing, or something else reads it", x->name);
		if (op->kind == OP_JOIN && !is_joinable(op, x))
			verify_fail(v, op, "%%%s is not a result of the loop or attention_grad that makes all operands, for the "
				"join's columns alone; nor, of a join with a width, that of one product without a sum or of one "
				"cross_entropy_grad", x->name);
	}
	if (op->kind == OP_CROSS_ENTROPY_GRAD && value_pitch(op_in(op, 1)) != value_pitch(op->out[0]))
		verify_fail(v, op, "rows of %%%s are %lld elements apart, and those of the logits %lld; they have one pitch",
			op->out[0]->name, (long long)value_pitch(op->out[0]), (long long)value_pitch(op_in(op, 1)));
}

/* ---- the whole ---- */

enum { SCOPE_TRAIN = 1, SCOPE_EVAL };

/* Checks everything that an op by itself shows; false: the ops behind it cannot be checked. */
static bool check_all_of(Verify *v, const Op *op, int scope, PtrMap *seen)
{
	int before = v->errors;
	if (!check_body_links(v, op) || !check_slots(v, op))
		return false;
	for (const Op *inner = op->body_first; inner; inner = inner->next)
		if (!check_slots(v, inner))
			return false;
	bool inside = op->kind == OP_YIELD || op->kind == OP_ARGUMENT;
	if (inside && !(v->m->outer && (op->kind == OP_ARGUMENT || !op->next)))
		verify_fail(v, op, "%s stands %s only", op_info[op->kind].text,
			op->kind == OP_YIELD ? "at the end of bodies" : "in the bodies of loops");
	if (v->m->outer && !inside)
		check_pure(v, op);
	check_op(v, op, scope);
	if (v->errors == before && op->kind == OP_FUSED)
		check_body(v, op);
	if (op->body && !ir_verify(op->body, v->after, v->diag))
		v->errors++;
	if (!define_results(v, op, scope) || !collect_names(v, op))
		return false;
	if (v->errors == before) {
		check_parts(v, op);
		check_once(v, seen, op);
		check_statistics(v, op);
	}
	return true;
}

/* One walk over all ops.  They lie far apart in memory, so everything about an op is checked while it is in the
 * cache. */
static bool check_sections(Verify *v)
{
	PtrMap *seen[] = {ptrmap_new(v->arena), ptrmap_new(v->arena)};
	for (int s = 0; s < SEC_COUNT; s++) {
		int scope = s == SEC_EVAL ? SCOPE_EVAL : SCOPE_TRAIN, losses = 0;
		const Op *before = NULL;
		IR_FOR_OPS(v->m, s, op) {
			if (!check_link(v, op, before, (SectionKind)s, NULL)
				|| !check_all_of(v, op, scope, seen[scope == SCOPE_EVAL]))
				return false;
			if (op->kind == OP_REPORT_LOSS && losses++)
				verify_fail(v, op, "a second report_loss in a section");
			before = op;
		}
		if (!check_last(v, before, v->m->last[s], (SectionKind)s))
			return false;
	}
	return true;
}

static void check_size(Verify *v, const char *key, int64_t value)
{
	if (value < 0)
		verify_fail(v, NULL, "%s of the module is %lld, expected at least 0", key, (long long)value);
}

/* Checks that sizes are not negative; the types of other fields leave nothing to check. */
static void check_header(Verify *v)
{
#define SIZE_level(key, field)
#define SIZE_variant(key, field)
#define SIZE_sync(key, field)
#define SIZE_string(key, field)
#define SIZE_size(key, field) check_size(v, #key, v->m->field);
#define MODULE_FIELD(key, kind, field, shown) SIZE_##kind(key, field)
#include "ir/module_fields.def"
}

static void check_symbols(Verify *v)
{
	const Module *m = v->m;
	for (int i = 0; i < m->n_symbols; i++) {
		const Symbol *s = m->symbols[i];
		if (ir_find_symbol(m, s->name) != s || s->index != i)
			verify_fail_at(v, s->at, "symbol \"%s\" is not found by its name", s->name);
		if (s->type.kind == TYPE_TENSOR && dtype_is_scaled(s->type.dtype))
			verify_fail_at(v, s->at, "symbol \"%s\" is of %s, which only values of a program are, beside their scale",
				s->name, dtype_info[s->type.dtype].text);
		if (s->param && (!ir_find_symbol(m, s->param) || ir_find_symbol(m, s->param)->kind != SYM_PARAM))
			verify_fail_at(v, s->at, "state \"%s\" belongs to \"%s\", which is not a parameter", s->name,
				s->param);
		if (s->batched && (s->kind != SYM_INPUT || !s->type.rank))
			verify_fail_at(v, s->at, "\"%s\" is batched but is not an input with an axis of samples", s->name);
	}
}

bool ir_verify(Module *m, const char *after, Diag *d)
{
	Verify v = {.m = m, .after = after, .diag = d, .arena = arena_new(), .n_scopes = SCOPE_EVAL};
	v.of = NEW_N(v.arena, OfValue, MAX(m->n_values, 1));
	v.hash = NEW_N(v.arena, uint64_t, MAX(m->n_values, 1));
	check_header(&v);
	check_symbols(&v);
	verify_units(&v);
	if (m->outer && m->level != m->outer->level)
		verify_fail(&v, NULL, "the body of a loop is at level %s, the module at %s", level_text[m->level],
			level_text[m->outer->level]);
	if (check_sections(&v) && !v.errors)
		check_uses(&v);
	if (!v.errors) {
		check_names(&v);
		verify_sharding(&v);
		verify_train(&v);
	}
	arena_free(v.arena);
	return !v.errors;
}
