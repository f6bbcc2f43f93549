/* passes/parts.c: parts of rows that need no copies: those that are read as columns of a wide tensor, and those that
 * are written there.
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

static bool makes_heads(const Value *heads, const Value *part, int axis)
{
	return heads->type.rank == 4 && type_columns(&heads->type, 2) == type_columns(&part->type, axis);
}

static bool turns_heads(const Op *op)
{
	return op->kind == OP_ROPE && attr_get_int(op->attrs, "layout", 0) && !attr_find(op->attrs, "heads");
}

static bool is_before(const Op *a, const Op *b)
{
	return a->section < b->section || (a->section == b->section && a->order < b->order);
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
static const Op *reader_of_heads(const Value *part, int axis, Op *reshape, Heads *out)
{
	Value *heads = reshape->out[0];
	*out = (Heads){.reshape = reshape, .v = heads};
	if (!makes_heads(heads, part, axis))
		return reshape;
	if (heads->n_uses != 1 || !turns_heads(heads->uses->op) || op_in(heads->uses->op, 0) != heads)
		return reader_but_attention(heads);
	out->rope = heads->uses->op;
	out->v = out->rope->out[0];
	return part->n_uses == 1 && out->v->n_uses ? reader_but_attention(out->v) : reshape;
}

/* An op that can read the part only as a tensor by itself; NULL = none.  *out: of the last of its reshapes, if any. */
static const Op *reader_of_copies(const Value *part, int axis, Heads *out)
{
	*out = (Heads){0};
	for (const Use *u = part->uses; u; u = u->next) {
		bool reshapes = u->op->kind == OP_RESHAPE;
		const Op *reader = reshapes ? reader_of_heads(part, axis, u->op, out) : u->op;
		if (reader && !is_loop(reader))
			return reader;
		if (reader && (reshapes || axis != part->type.rank - 1))
			return u->op; /* a loop over dims that are not those of rows */
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
static Op *first_reader(const Parts *p)
{
	Op *first = NULL;
	for (int i = 0; i < p->n; i++)
		note_first(p->at[i], &first);
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

const char *parts_unreadable(Module *m, const Parts *p)
{
	const Op *first = first_reader(p);
	Heads heads, before = {0};
	for (int i = 0; i < p->n; i++) {
		const char *name = p->at[i]->name;
		const Op *reader = reader_of_copies(p->at[i], p->axis, &heads);
		if (!p->at[i]->n_uses || !type_columns(&p->at[i]->type, p->axis))
			return arena_printf(m->arena, "nothing reads %%%s", name);
		if (reader)
			return arena_printf(m->arena, "%%%s is read by %s, which is no loop and no attention of its heads", name,
				op_info[reader->kind].text);
		if (heads.rope && !tables_precede(heads.rope, first))
			return arena_printf(m->arena, "the tables of the rope of %%%s are made too late", name);
		if (!same_tokens(heads.v, before.v))
			return arena_printf(m->arena, "%%%s has other tokens than the part before", name);
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
static Value *turned(Builder *b, Value *rows, const Heads *heads, const Parts *p)
{
	int64_t start = 0;
	for (int i = 0, k; i < p->n; i = k) {
		int64_t size = 0, count = 0;
		for (k = i; k == i || (k < p->n && turn_together(&heads[i], &heads[k])); k++) {
			size += type_columns(&p->at[k]->type, p->axis);
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

/* wide, `columns` in a row, with the dims of v that are in front of axis. */
static Value *by_rows_of(Builder *b, Value *wide, int64_t columns, const Value *v, int axis)
{
	int64_t dim[IR_MAX_RANK];
	for (int d = 0; d < axis; d++)
		dim[d] = v->type.dim[d];
	dim[axis] = columns;
	return ir_reshape(b, wide, axis + 1, dim);
}

static int64_t columns_of_all(const Parts *p)
{
	int64_t sum = 0;
	for (int i = 0; i < p->n; i++)
		sum += type_columns(&p->at[i]->type, p->axis);
	return sum;
}

/* ---- reading ---- */

typedef struct Columns { Value *rows; int64_t all, start, size; } Columns;

/* The columns as heads, for 0 as they are, of rows with the dims of v that are in front of axis. */
static Value *columns_of(Builder *b, const Columns *c, const Value *v, int axis, int64_t heads)
{
	Value *rows = by_rows_of(b, c->rows, c->all, v, axis);
	Attr *attrs = attr_int(b->m, attr_int(b->m, NULL, "start", c->start), "size", c->size);
	b->loc = v->op->loc;
	return ir_emit(b, OP_COLUMNS, 1, &rows, heads ? attr_int(b->m, attrs, "heads", heads) : attrs);
}

static void show_as(Value *v, Value *columns)
{
	ir_replace_uses(v, columns);
	columns->name = v->name;
}

/* Makes columns of what reads a part: heads of rows, and for loops as they are. */
static void show(Builder *b, const Columns *c, Value *part, int axis)
{
	for (Use *u = part->uses, *next; u; u = next) {
		Heads heads;
		next = u->next;
		if (u->op->kind != OP_RESHAPE)
			continue;
		reader_of_heads(part, axis, u->op, &heads);
		show_as(heads.v, columns_of(b, c, heads.v, 2, heads.v->type.dim[2]));
		if (heads.rope)
			ir_remove(b->m, heads.rope);
		ir_remove(b->m, heads.reshape);
	}
	if (part->n_uses)
		show_as(part, columns_of(b, c, part, axis, 0));
}

void parts_show(Module *m, Value *wide, const Parts *p, Op *near)
{
	Heads *heads = NEW_N(m->arena, Heads, p->n);
	const Value *tokens = NULL;
	for (int i = 0; i < p->n; i++) {
		reader_of_copies(p->at[i], p->axis, &heads[i]);
		tokens = heads[i].rope ? heads[i].v : tokens;
	}
	Op *before = tokens ? first_reader(p) : near;
	Builder b = {.m = m, .section = before->section, .before = before, .loc = wide->op->loc};
	Columns c = {.rows = wide, .all = columns_of_all(p)};
	if (tokens)
		c.rows = turned(&b, by_rows_of(&b, wide, c.all, tokens, 2), heads, p);
	for (int i = 0; i < p->n; i++) {
		c.size = type_columns(&p->at[i]->type, p->axis);
		show(&b, &c, p->at[i], p->axis);
		c.start += c.size;
	}
}

/* ---- writing ---- */

/* The result of an attention_grad that the part is, through what gives it the form of rows; v is NULL: it is none. */
static Heads made_by_attention(const Value *part, int axis)
{
	Heads none = {0}, heads = {.reshape = part->op};
	if (part->op->kind != OP_RESHAPE || !makes_heads(op_in(part->op, 0), part, axis))
		return none;
	heads.v = op_in(part->op, 0);
	if (turns_heads(heads.v->op) && heads.v->n_uses == 1) {
		heads.rope = heads.v->op;
		heads.v = op_in(heads.rope, 0);
	}
	bool made = heads.v->op->kind == OP_ATTENTION_GRAD && attr_get_int(heads.v->op->attrs, "layout", 0);
	return made && heads.v->n_uses == 1 && type_columns(&part->type, axis) ? heads : none;
}

static bool one_loop_makes(const Parts *p)
{
	const Value *first = p->at[0];
	bool one = first->op->kind == OP_FUSED && p->axis == first->type.rank - 1 && type_numel(&first->type);
	for (int i = 0; i < p->n; i++)
		one = one && p->at[i]->op == first->op && type_equal(&p->at[i]->type, &first->type);
	return one;
}

static bool one_attention_makes(const Parts *p)
{
	Heads first = made_by_attention(p->at[0], p->axis);
	for (int i = 0; i < p->n; i++) {
		Heads heads = made_by_attention(p->at[i], p->axis);
		if (!heads.v || heads.v->op != first.v->op || !same_tokens(heads.v, first.v))
			return false;
	}
	return true;
}

bool parts_joinable(const Parts *p)
{
	return one_loop_makes(p) || one_attention_makes(p);
}

Value *parts_join(Module *m, const Parts *p)
{
	Heads *heads = NEW_N(m->arena, Heads, p->n);
	Value **made = NEW_N(m->arena, Value *, p->n);
	bool loop = one_loop_makes(p);
	Op *last = NULL;
	for (int i = 0; i < p->n; i++) {
		heads[i] = loop ? (Heads){0} : made_by_attention(p->at[i], p->axis);
		made[i] = loop ? p->at[i] : heads[i].v;
		last = heads[i].rope && (!last || is_before(last, heads[i].rope)) ? heads[i].rope : last;
	}
	Op *maker = made[0]->op;
	Builder b = {.m = m, .section = maker->section, .before = maker->next, .loc = maker->loc};
	Value *wide = ir_emit_op(&b, OP_JOIN, p->n, made, attr_int(m, NULL, "axis", loop ? p->axis : 2), NULL)->out[0];
	if (last)
		b.before = last; /* the tables are there, and all that reads parts is behind */
	return by_rows_of(&b, turned(&b, wide, heads, p), columns_of_all(p), p->at[0], p->axis);
}

void parts_drop(Module *m, Value *part)
{
	for (Op *op = part->op, *from; op->kind == OP_RESHAPE || op->kind == OP_ROPE; op = from) {
		from = op_in(op, 0)->op;
		ir_remove(m, op);
	}
}
