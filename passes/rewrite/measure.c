/* passes/rewrite/measure.c: computes the measure of measure.h.
 *
 * Costs grow as powers of two of the depth, so they are integers of any size.  A measure takes time and memory in
 * proportion to ops times depth; it is computed only when rewriting is checked. */
#include "passes/rewrite/measure.h"

#include <string.h>

enum { LAYOUT, WORK, SHAPE, PLACE, N_NUMBERS };
static const char *const number_text[N_NUMBERS] = {"LAYOUT", "WORK", "SHAPE", "PLACE"};

/* ---- integers of any size ---- */

typedef struct Big { int n; uint32_t *limb; } Big; /* the lowest limb first, the highest not 0 */

/* sum += factor * x, in place; sum must have room for one limb more than the longer of both. */
static void big_add(Big *sum, const Big *x, uint32_t factor)
{
	uint64_t carry = 0;
	int n = MAX(sum->n, x->n);
	for (int i = 0; i < n || carry; i++) {
		carry += (i < x->n ? (uint64_t)x->limb[i] * factor : 0) + (i < sum->n ? sum->limb[i] : 0);
		sum->limb[i] = (uint32_t)carry;
		carry >>= 32;
		sum->n = MAX(sum->n, i + 1);
	}
	while (sum->n && !sum->limb[sum->n - 1])
		sum->n--;
}

static int big_compare(const Big *a, const Big *b)
{
	if (a->n != b->n)
		return a->n < b->n ? -1 : 1;
	for (int i = a->n - 1; i >= 0; i--)
		if (a->limb[i] != b->limb[i])
			return a->limb[i] < b->limb[i] ? -1 : 1;
	return 0;
}

/* ---- what rules are told by ---- */

bool measure_is_anchor(const Op *op)
{
	static const bool yes[OP_COUNT] = {[OP_CONV] = true, [OP_CONV_GRAD_X] = true, [OP_MAX_POOL] = true,
		[OP_AVG_POOL] = true, [OP_BATCH_NORM] = true};
	return yes[op->kind];
}

bool measure_passes_anchor(const Op *op)
{
	static const bool yes[OP_COUNT] = {[OP_RESHAPE] = true, [OP_TRANSPOSE] = true, [OP_BROADCAST] = true,
		[OP_SLICE] = true, [OP_SPLIT] = true, [OP_CONCAT] = true, [OP_PAD] = true, [OP_GATHER] = true,
		[OP_GATHER_ND] = true, [OP_DROPOUT] = true, [OP_SOFTMAX] = true, [OP_LOG_SOFTMAX] = true,
		[OP_REDUCE_SUM] = true, [OP_REDUCE_MEAN] = true, [OP_REDUCE_MAX] = true, [OP_REDUCE_MIN] = true,
		[OP_REDUCE_PROD] = true};
	return yes[op->kind] || op_info[op->kind].flags & EW;
}

static const Type *type_of(const Op *op)
{
	return &op->out[0]->type;
}

/* By how many dims the rank of the result exceeds that of an operand. */
static int gap(const Op *op, int i)
{
	return MAX(type_of(op)->rank - op->in[i].value->type.rank, 0);
}

static int extents(const Type *t)
{
	int n = 0;
	for (int k = 0; k < t->rank; k++)
		n += t->dim[k] != 1;
	return n;
}

/* A reshape that only puts dims of 1 in front, as a broadcast does before it repeats anything. */
static bool only_raises(const Op *op)
{
	const Type *from = &op->in[0].value->type, *to = type_of(op);
	int extra = to->rank - from->rank;
	return extra > 0 && !memcmp(from->dim, to->dim + extra, sizeof(int64_t) * (size_t)from->rank)
		&& extents(to) == extents(from);
}

static bool is_taken_by_matmul(const Op *transpose)
{
	const Attr *perm = attr_find(transpose->attrs, "perm");
	return perm->n >= 2 && perm->ints[perm->n - 2] == perm->n - 1;
}

bool measure_is_literal(const Value *v)
{
	while (v->op && (v->op->kind == OP_RESHAPE || v->op->kind == OP_BROADCAST))
		v = v->op->in[0].value;
	return v->op && (v->op->kind == OP_CONST || v->op->kind == OP_IOTA);
}

bool measure_literal_is_first(const Op *op)
{
	bool swaps = op_info[op->kind].flags & COM || op->kind == OP_LT || op->kind == OP_LE || op->kind == OP_GT
		|| op->kind == OP_GE;
	return swaps && op->n_in == 2 && measure_is_literal(op->in[0].value) && !measure_is_literal(op->in[1].value);
}

/* ---- the four numbers of an op ---- */

typedef struct Cost { int factor, side, work; } Cost;

static Cost cost_of(const Op *op)
{
	static const Cost table[OP_COUNT] = {
#define COST(kind, factor, side, work) [OP_##kind] = {factor, side, work},
#include "passes/rewrite/measure.def"
	};
	if (table[op->kind].factor)
		return table[op->kind];
	return (Cost){2, op->n_in, op_info[op->kind].flags & EW ? op->n_in : 1};
}

enum { RAISE = 16, RESHAPES = 512, LITERAL = 64 };

static uint32_t shape_factor(const Op *op, int i)
{
	switch (op->kind) {
	case OP_TRANSPOSE: return 1;
	case OP_BROADCAST: return 1u << gap(op, i);
	case OP_RESHAPE: return only_raises(op) ? 1u << gap(op, i) : RESHAPES;
	default: return op_info[op->kind].flags & EW ? 2u << gap(op, i) : 2;
	}
}

/* A literal costs as much as a scalar that is broadcast to its shape; twice the extents when elements differ. */
static uint32_t literal_constant(const Type *t, int each)
{
	return ((uint32_t)LITERAL << t->rank) + (t->rank ? RAISE : 0) + (uint32_t)(each * extents(t) + each - 1);
}

static uint32_t shape_constant(const Op *op)
{
	switch (op->kind) {
	case OP_TRANSPOSE: return 2 + is_taken_by_matmul(op);
	case OP_RESHAPE: return RAISE;
	case OP_BROADCAST:
		return (uint32_t)(extents(type_of(op)) - extents(&op->in[0].value->type)) + (gap(op, 0) ? RAISE : 0);
	case OP_IOTA: return literal_constant(type_of(op), 2);
	case OP_CONST: return literal_constant(type_of(op), attr_find(op->attrs, "value")->n > 1 ? 2 : 1);
	default: return !op->n_in;
	}
}

static uint32_t place_constant(const Op *op)
{
	switch (op->kind) {
	case OP_TRANSPOSE: return 1;
	case OP_RESHAPE: return 4;
	case OP_BROADCAST: return gap(op, 0) ? 7 : 4;
	default: return !op->n_in;
	}
}

static uint32_t factor(const Op *op, int which, int i)
{
	Cost c = cost_of(op);
	if (which == SHAPE)
		return shape_factor(op, i);
	if (which == PLACE)
		return op->kind == OP_RESHAPE || op->kind == OP_BROADCAST ? 1 : 2;
	return i < c.side ? (uint32_t)c.factor : 1;
}

static uint32_t constant(const Op *op, int which, bool anchored)
{
	enum { CHANNELS_FIRST = 100 };
	switch (which) {
	case LAYOUT:
		if (measure_is_anchor(op))
			return attr_get_int(op->attrs, "layout", 0) ? 0 : CHANNELS_FIRST;
		return op->kind == OP_TRANSPOSE && anchored;
	case WORK:
		return (uint32_t)(cost_of(op).work + measure_literal_is_first(op)
			+ (op->kind == OP_MATMUL && type_of(op)->rank == 2));
	case SHAPE: return shape_constant(op);
	default: return place_constant(op);
	}
}

/* ---- the module's ---- */

struct Measure { Arena *arena; Big number[N_NUMBERS]; int room[N_NUMBERS]; };

typedef struct Costs { Arena *arena; Big *big[N_NUMBERS]; bool *anchored; } Costs; /* by Value.id */

static Big weigh(const Costs *c, const Op *op, int which, bool anchored)
{
	int n = 1;
	for (int i = 0; i < op->n_in; i++)
		n = MAX(n, op->in[i].value ? c->big[which][op->in[i].value->id].n : 0);
	/* A sum has fewer than 2^32 operands and a factor below 2^32, so two limbs more are enough. */
	Big sum = {0, NEW_N(c->arena, uint32_t, n + 3)};
	uint32_t more = op->n_out ? constant(op, which, anchored) : 0;
	big_add(&sum, &(Big){1, &more}, 1);
	for (int i = 0; i < op->n_in; i++)
		if (op->in[i].value)
			big_add(&sum, &c->big[which][op->in[i].value->id], op->n_out ? factor(op, which, i) : 1);
	return sum;
}

static void add_to_module(Measure *x, int which, const Big *cost)
{
	Big *sum = &x->number[which];
	if (MAX(sum->n, cost->n) + 2 > x->room[which]) {
		x->room[which] = 2 * (MAX(sum->n, cost->n) + 2);
		uint32_t *limb = NEW_N(x->arena, uint32_t, x->room[which]);
		if (sum->n)
			memcpy(limb, sum->limb, sizeof(*limb) * (size_t)sum->n);
		sum->limb = limb;
	}
	big_add(sum, cost, 1);
}

static void weigh_op(const Costs *c, const Op *op, Measure *x)
{
	bool passed = false;
	for (int i = 0; i < op->n_in && measure_passes_anchor(op); i++)
		passed = passed || c->anchored[op->in[i].value->id];
	for (int which = 0; which < N_NUMBERS; which++) {
		Big cost = weigh(c, op, which, passed);
		for (int i = 0; i < op->n_out; i++)
			c->big[which][op->out[i]->id] = cost;
		if (op_has_effect(op))
			add_to_module(x, which, &cost);
	}
	for (int i = 0; i < op->n_out; i++)
		c->anchored[op->out[i]->id] = passed || measure_is_anchor(op);
}

Measure *measure_new(const Module *m)
{
	Costs c = {.arena = arena_new()};
	Arena *a = arena_new();
	Measure *x = NEW(a, Measure);
	x->arena = a;
	c.anchored = NEW_N(c.arena, bool, m->n_values);
	for (int which = 0; which < N_NUMBERS; which++)
		c.big[which] = NEW_N(c.arena, Big, m->n_values);
	for (int s = 0; s < SEC_COUNT; s++)
		IR_FOR_OPS(m, s, op)
			weigh_op(&c, op, x);
	arena_free(c.arena);
	return x;
}

void measure_free(Measure *x)
{
	if (x)
		arena_free(x->arena);
}

/* The first of the four numbers in which two measures differ; N_NUMBERS: they are equal. */
static int first_difference(const Measure *a, const Measure *b)
{
	int which = 0;
	while (which < N_NUMBERS && !big_compare(&a->number[which], &b->number[which]))
		which++;
	return which;
}

int measure_compare(const Measure *a, const Measure *b)
{
	int which = first_difference(a, b);
	return which == N_NUMBERS ? 0 : big_compare(&a->number[which], &b->number[which]);
}

static void print_big(Buf *b, const Big *x)
{
	buf_printf(b, "0x%x", x->n ? x->limb[x->n - 1] : 0);
	for (int i = x->n - 2; i >= 0; i--)
		buf_printf(b, "%08x", x->limb[i]);
}

const char *measure_text(const Measure *now, const Measure *before, Arena *a)
{
	int which = first_difference(now, before);
	Buf b = {0};
	if (which == N_NUMBERS)
		return "all numbers are as before";
	buf_printf(&b, "%s was ", number_text[which]);
	print_big(&b, &before->number[which]);
	buf_printf(&b, ", is ");
	print_big(&b, &now->number[which]);
	const char *text = arena_strndup(a, b.at, b.n);
	buf_free(&b);
	return text;
}
