/* passes/parts.c: parts of rows that need no copies: those that are read as columns of a wide tensor, and those that are
 * written there.
 *
 * Loops read columns as they are, and attention reads q, k and v there as heads, if a row is made of heads by a reshape
 * alone or by one and a rope.  A rope turns the heads where they are, in the wide rows, before all else reads them; for
 * parts that lie together it is one, if they have the same tables.  Results of one loop, of one type, and of one
 * attention_grad are written into wide rows; there a rope turns the latter back, too. */
#include "passes/passes.h"

/* How the heads of a part are made of it, or it is of heads. */
typedef struct Heads {
	Op *reshape;
	Op *rope;  /* NULL = none */
	Value *v;  /* [B,T,H,D]: what attention reads or makes */
} Heads;

static bool is_loop(const Op *op)
{
	return op->kind == OP_FUSED || op_info[op->kind].flags & EW;
}

static int64_t last_dim(const Value *v)
{
	return v->type.dim[v->type.rank - 1];
}

static bool makes_heads(const Value *heads, const Value *rows)
{
	return heads->type.rank == 4 && rows->type.rank && type_columns(&heads->type, 2) == last_dim(rows);
}

static bool turns_heads(const Op *op)
{
	return op->kind == OP_ROPE && attr_get_int(op->attrs, "layout", 0) && !attr_find(op->attrs, "heads");
}

static bool is_before(const Op *a, const Op *b)
{
	return a->section < b->section || (a->section == b->section && a->order < b->order);
}

static Heads *heads_new(Module *m, int n)
{
	return NEW_N(m->arena, Heads, n);
}

/* ---- what reads ---- */

/* An op that reads v and is no attention, or does not read it as heads; NULL = none. */
static const Op *reader_but_attention(const Value *v)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (!op_reads_heads(u->op, (int)(u - u->op->in)))
			return u->op;
	return NULL;
}

/* The reader of a reshape that makes heads of a part; *out says how. */
static const Op *reader_of_heads(const Value *part, Op *reshape, Heads *out)
{
	Value *heads = reshape->out[0];
	*out = (Heads){.reshape = reshape, .v = heads};
	if (!makes_heads(heads, part))
		return reshape;
	if (heads->n_uses != 1 || !turns_heads(heads->uses->op) || op_in(heads->uses->op, 0) != heads)
		return reader_but_attention(heads);
	out->rope = heads->uses->op;
	out->v = out->rope->out[0];
	return part->n_uses == 1 ? reader_but_attention(out->v) : reshape;
}

/* An op that can read the part only as a tensor by itself; NULL = none.  *out: of the last of its reshapes, if any. */
static const Op *reader_of_copies(const Value *part, Heads *out)
{
	*out = (Heads){0};
	for (const Use *u = part->uses; u; u = u->next) {
		const Op *reader = u->op->kind == OP_RESHAPE ? reader_of_heads(part, u->op, out) : u->op;
		if (reader && !is_loop(reader))
			return reader;
		if (reader && u->op->kind == OP_RESHAPE)
			return u->op; /* a loop over heads, whose rows are not those of the wide tensor */
	}
	return NULL;
}

static void note_first(const Value *v, Op **first)
{
	for (const Use *u = v->uses; u; u = u->next)
		if (u->op->kind == OP_RESHAPE || turns_heads(u->op))
			note_first(u->op->out[0], first);
		else if (!*first || is_before(u->op, *first))
			*first = u->op;
}

/* The first op that reads parts, or heads of them once these are turned: all ropes may stand in front of it. */
static Op *first_reader(Value *const *part, int n)
{
	Op *first = NULL;
	for (int i = 0; i < n; i++)
		note_first(part[i], &first);
	return first;
}

static bool tables_precede(const Op *rope, const Op *op)
{
	for (int i = 1; i < rope->n_in; i++)
		if (!is_before(op_in(rope, i)->op, op))
			return false;
	return true;
}

static bool same_tokens(const Value *a, const Value *b)
{
	return !a || !b || (a->type.dim[0] == b->type.dim[0] && a->type.dim[1] == b->type.dim[1]);
}

const char *parts_unreadable(Module *m, Value *const *part, int n)
{
	const Op *first = first_reader(part, n);
	Heads heads, before = {0};
	for (int i = 0; i < n; i++) {
		const Op *reader = reader_of_copies(part[i], &heads);
		if (!part[i]->n_uses || !last_dim(part[i]))
			return arena_printf(m->arena, "nothing reads %%%s", part[i]->name);
		if (reader)
			return arena_printf(m->arena, "%%%s is read by %s, which is no loop and no attention of its heads",
				part[i]->name, op_info[reader->kind].text);
		if (heads.rope && !tables_precede(heads.rope, first))
			return arena_printf(m->arena, "the tables of the rope of %%%s are made too late", part[i]->name);
		if (!same_tokens(heads.v, before.v))
			return arena_printf(m->arena, "%%%s has other tokens than the part before", part[i]->name);
		before = heads.v ? heads : before;
	}
	return NULL;
}

/* ---- turning ---- */

/* Whether one rope can turn b's heads with a's. */
static bool turn_together(const Heads *a, const Heads *b)
{
	return a->rope && b->rope && a->v->type.dim[3] == b->v->type.dim[3] && op_in(a->rope, 1) == op_in(b->rope, 1)
		&& op_in(a->rope, 2) == op_in(b->rope, 2) && attr_equal(a->rope->attrs, b->rope->attrs);
}

/* The rows [B,T,C] with the heads of those parts turned that have a rope; itself, if none has. */
static Value *turned(Builder *b, Value *rows, const Heads *heads, Value *const *part, int n)
{
	int64_t start = 0;
	for (int i = 0, k; i < n; i = k) {
		int64_t size = 0, count = 0;
		for (k = i; k == i || (k < n && turn_together(&heads[i], &heads[k])); k++) {
			size += last_dim(part[k]);
			count += heads[k].v ? heads[k].v->type.dim[2] : 0;
		}
		const Op *rope = heads[i].rope;
		if (rope) {
			Attr *attrs = attr_int(b->m, attr_int(b->m, rope->attrs, "start", start), "size", size);
			b->loc = rope->loc;
			b->name = rows->name;
			rows = ir_emit(b, OP_ROPE, 3, (Value *[]){rows, op_in(rope, 1), op_in(rope, 2)},
				attr_int(b->m, attrs, "heads", count));
		}
		start += size;
	}
	return rows;
}

/* wide with the leading dims of v. */
static Value *by_rows_of(Builder *b, Value *wide, const Value *v, int rank)
{
	int64_t dim[IR_MAX_RANK];
	for (int d = 0; d < rank; d++)
		dim[d] = v->type.dim[d];
	dim[rank] = last_dim(wide);
	return ir_reshape(b, wide, rank + 1, dim);
}

/* ---- reading ---- */

static Value *columns_of(Builder *b, Value *rows, int64_t start, const Value *part, int64_t heads)
{
	Attr *attrs = attr_int(b->m, attr_int(b->m, NULL, "start", start), "size", last_dim(part));
	return ir_emit(b, OP_COLUMNS, 1, &rows, heads ? attr_int(b->m, attrs, "heads", heads) : attrs);
}

static void show_as(Value *v, Value *columns)
{
	ir_replace_uses(v, columns);
	columns->name = v->name;
}

/* Makes columns of what reads a part: heads of rows, and for loops as they are. */
static void show(Builder *b, Value *rows, int64_t start, Value *part)
{
	for (Use *u = part->uses, *next; u; u = next) {
		Heads heads;
		next = u->next;
		if (u->op->kind != OP_RESHAPE)
			continue;
		reader_of_heads(part, u->op, &heads);
		Value *of_tokens = by_rows_of(b, rows, heads.v, 2);
		b->loc = heads.v->op->loc;
		show_as(heads.v, columns_of(b, of_tokens, start, part, heads.v->type.dim[2]));
		if (heads.rope)
			ir_remove(b->m, heads.rope);
		ir_remove(b->m, heads.reshape);
	}
	if (!part->n_uses)
		return;
	Value *of_part = by_rows_of(b, rows, part, part->type.rank - 1);
	b->loc = part->op->loc;
	show_as(part, columns_of(b, of_part, start, part, 0));
}

void parts_show(Module *m, Value *wide, Value *const *part, int n, Op *near)
{
	Heads *heads = heads_new(m, n);
	const Value *tokens = NULL;
	for (int i = 0; i < n; i++) {
		reader_of_copies(part[i], &heads[i]);
		tokens = heads[i].rope ? heads[i].v : tokens;
	}
	Op *before = tokens ? first_reader(part, n) : near;
	Builder b = {.m = m, .section = before->section, .before = before, .loc = wide->op->loc};
	Value *rows = tokens ? turned(&b, by_rows_of(&b, wide, tokens, 2), heads, part, n) : wide;
	int64_t start = 0;
	for (int i = 0; i < n; i++) {
		int64_t size = last_dim(part[i]);
		show(&b, rows, start, part[i]);
		start += size;
	}
}

/* ---- writing ---- */

/* The result of an attention_grad that the part is, through what gives it the form of rows; v is NULL: it is none. */
static Heads made_by_attention(const Value *part)
{
	Heads none = {0}, heads = {.reshape = part->op};
	if (part->op->kind != OP_RESHAPE || !makes_heads(op_in(part->op, 0), part))
		return none;
	heads.v = op_in(part->op, 0);
	if (turns_heads(heads.v->op) && heads.v->n_uses == 1) {
		heads.rope = heads.v->op;
		heads.v = op_in(heads.rope, 0);
	}
	bool made = heads.v->op->kind == OP_ATTENTION_GRAD && attr_get_int(heads.v->op->attrs, "layout", 0);
	return made && heads.v->n_uses == 1 && last_dim(part) ? heads : none;
}

static bool one_loop_makes(Value *const *part, int n)
{
	for (int i = 0; i < n; i++)
		if (part[i]->op->kind != OP_FUSED || part[i]->op != part[0]->op || !type_equal(&part[i]->type, &part[0]->type)
			|| !type_numel(&part[i]->type))
			return false;
	return true;
}

static bool one_attention_makes(Value *const *part, int n)
{
	Heads first = made_by_attention(part[0]);
	for (int i = 0; i < n; i++) {
		Heads heads = made_by_attention(part[i]);
		if (!heads.v || heads.v->op != first.v->op || !same_tokens(heads.v, first.v)
			|| part[i]->type.rank != part[0]->type.rank)
			return false;
	}
	return true;
}

PartsMaker parts_maker(Value *const *part, int n)
{
	return one_loop_makes(part, n) ? PARTS_OF_LOOP : one_attention_makes(part, n) ? PARTS_OF_ATTENTION : PARTS_APART;
}

Value *parts_join(Module *m, Value *const *part, int n)
{
	Heads *heads = heads_new(m, n);
	Value **made = NEW_N(m->arena, Value *, n);
	bool loop = one_loop_makes(part, n);
	for (int i = 0; i < n; i++) {
		heads[i] = loop ? (Heads){0} : made_by_attention(part[i]);
		made[i] = loop ? part[i] : heads[i].v;
	}
	Op *maker = made[0]->op, *last = NULL;
	Builder b = {.m = m, .section = maker->section, .before = maker->next, .loc = maker->loc};
	Attr *axis = attr_int(m, NULL, "axis", loop ? part[0]->type.rank - 1 : 2);
	Value *wide = ir_emit_op(&b, OP_JOIN, n, made, axis, NULL)->out[0];
	for (int i = 0; i < n; i++)
		last = heads[i].rope && (!last || is_before(last, heads[i].rope)) ? heads[i].rope : last;
	if (last)
		b.before = last; /* the tables are there, and all that reads parts is behind */
	return by_rows_of(&b, turned(&b, wide, heads, part, n), part[0], part[0]->type.rank - 1);
}

void parts_drop(Module *m, Value *part)
{
	for (Op *op = part->op, *from; op->kind == OP_RESHAPE || op->kind == OP_ROPE; op = from) {
		from = op_in(op, 0)->op;
		ir_remove(m, op);
	}
}
